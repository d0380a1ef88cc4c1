// harness CASES RESULTS: runs each case's kernel on the host.
#include <algorithm>

#include "case.h"
#include "verify_swap.cuh"

using namespace ssd::gpu;
using cuda_host::Block;
using cuda_host::Case;

namespace {

// Every helper puts what it finds into out; the test knows what must be there.
struct WordsTest {
  uint32_t* out;  // [6, 64]
};
void words_test_kernel(const WordsTest& a) {
  const int i = threadIdx.x;
  auto put = [&](int row, auto v) { a.out[row * 64 + i] = std::bit_cast<uint32_t>(v); };
  put(0, __shfl_sync(~0u, i, 5));
  put(1, __shfl_xor_sync(~0u, i, 7));
  put(2, __ballot_sync(~0u, i % 3 == 0));
  put(3, __ffs(i));
  SharedArena arena;
  int* s = arena.take<int>(64);
  put(4, s[i]);  // nothing is there yet
  s[i] = i;
  __syncwarp();
  put(5, s[i ^ 31]);
}

void verify_swap(Case& c, uint64_t seed) {
  const int64_t* d = c.array<int64_t>("sizes");
  VerifySwapArgs a{};
  a.cache = c.array<char>("cache");
  a.sizes = {d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7], d[8]};
  a.slots = c.array<int64_t>("slots"), a.sampled = c.array<int64_t>("sampled");
  a.features = c.array_or_null<uint64_t>("features");
  a.ids = c.array<int64_t>("ids"), a.parents = c.array<int32_t>("parents"), a.mask = c.array<int64_t>("mask");
  a.positions = c.array<int32_t>("positions"), a.kv_slots = c.array<int64_t>("kv_slots");
  a.prefix_lens = c.array<int32_t>("prefix_lens"), a.capacity = c.array<int32_t>("capacity");
  a.page_table = c.array<int32_t>("page_table");
  a.table_row = c.integer("table_row"), a.page_size = c.integer("page_size");
  const size_t requests = c.bytes("slots") / 8;
  for (const char* name : {"count", "accepted", "branch", "taken", "kind"}) c.fill(name, requests * 4);
  for (const char* name : {"confirmed", "sources", "targets"}) c.fill(name, c.bytes("ids"));
  a.count = c.array<int32_t>("count"), a.accepted = c.array<int32_t>("accepted");
  a.branch = c.array<int32_t>("branch"), a.taken = c.array<int32_t>("taken"), a.kind = c.array<int32_t>("kind");
  a.confirmed = c.array<int64_t>("confirmed");
  a.sources = c.array<int64_t>("sources"), a.targets = c.array<int64_t>("targets");
  Block::run([&] { verify_swap_kernel(a); }, {unsigned(requests)}, 32, 256, seed);
}

void run(Case& c) {
  const std::string kernel = c.text("kernel");
  const uint64_t seed = uint64_t(c.integer("seed"));
  cuda_host::planted = c.has("planted") ? int(c.integer("planted")) : 0;
  if (kernel == "verify_swap") {
    verify_swap(c, seed);
  } else if (kernel == "words") {
    c.fill("out", 6 * 64 * 4);
    WordsTest t{c.array<uint32_t>("out")};
    Block::run([&] { words_test_kernel(t); }, {}, 64, 256, seed);
  } else {
    std::fprintf(stderr, "no kernel %s\n", kernel.c_str()), std::abort();
  }
}

}  // namespace

int main(int argc, char** argv) { return cuda_host::run_cases(argc, argv, run); }
