// harness CASES RESULTS: runs each case's kernel on the host.
#include <algorithm>

#include "attention/tile.cuh"
#include "case.h"
#include "kv_copy.cuh"
#include "verify_swap.cuh"

void attention_bf16(cuda_host::Case&);
void attention_fp16(cuda_host::Case&);

using namespace ssd::gpu;
using cuda_host::Block;
using cuda_host::Case;

namespace {

// One warp multiplies a [16, 16] by b [16, 8] onto c, through ldmatrix from row-major shared arrays.
struct MmaTest {
  const uint16_t *a, *b;  // b [8, 16] when not transposed: rows of n
  float* c;
  bool trans;
};
template <class T>
void mma_test_kernel(const MmaTest& x) {
  SharedArena arena;
  uint16_t *sa = arena.take<uint16_t>(256), *sb = arena.take<uint16_t>(256);
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) sa[i] = x.a[i];
  for (int i = lane; i < 256; i += 32) sb[i] = x.b[i];
  __syncthreads();
  uint32_t a[4], b[4];
  float c[2][4];
  ldmatrix_x4(a, sa + lane % 16 * 16 + lane / 16 * 8);
  if (x.trans) ldmatrix_x4_trans(b, sb + lane % 16 * 16 + lane / 16 * 8);
  else ldmatrix_x4(b, sb + (lane / 16 * 8 + lane % 8) * 16 + lane / 8 % 2 * 8);
  for (int n = 0; n < 2; ++n) {
    for (int e = 0; e < 4; ++e) c[n][e] = x.c[(lane / 4 + e / 2 * 8) * 16 + n * 8 + lane % 4 * 2 + e % 2];
    mma(T(), c[n], a, b[2 * n], b[2 * n + 1]);
    for (int e = 0; e < 4; ++e) x.c[(lane / 4 + e / 2 * 8) * 16 + n * 8 + lane % 4 * 2 + e % 2] = c[n][e];
  }
}

// Every helper puts what it finds into out; the test knows what must be there.
struct WordsTest {
  const float* x;
  uint32_t* out;  // [14, 64]
};
void words_test_kernel(const WordsTest& a) {
  SharedArena arena;
  float* s = arena.take<float>(4 * 64);
  const int i = threadIdx.x, lane = i % 32;
  auto put = [&](int row, auto v) { a.out[row * 64 + i] = std::bit_cast<uint32_t>(v); };
  put(0, __shfl_sync(~0u, i, 5));
  put(1, __shfl_xor_sync(~0u, i, 7));
  put(2, __shfl_up_sync(~0u, i, 3));
  put(3, __ballot_sync(~0u, i % 3 == 0));
  put(4, __syncthreads_or(i == 63));
  put(5, __syncthreads_or(0));
  put(6, warp_scan(i, lane));
  cp_async16(s + 4 * i, a.x + 4 * i, i % 2 ? 16 : 0);
  cp_async_commit();
  put(7, s[4 * i]);  // not yet there: NaN
  cp_async_wait<1>();
  put(8, s[4 * i]);  // one group may be in flight
  cp_async_wait<0>();
  put(9, s[4 * i + 3]);
  __syncthreads();
  put(10, s[4 * (63 - i)]);
  put(11, pack(bf16(), a.x[i], a.x[i + 1]));
  put(12, pack(fp16(), a.x[i], a.x[i + 1]));
  put(13, unpack(fp16(), pack(fp16(), a.x[i], a.x[i + 1])).y);
}

void kv_copy(Case& c, uint64_t seed) {
  KvCopyArgs a{};
  a.k = c.array<uint4>("k"), a.v = c.array<uint4>("v");
  a.layer = c.integer("layer"), a.units = c.integer("units");
  a.sources = c.array<int64_t>("sources"), a.targets = c.array<int64_t>("targets");
  a.moves = int64_t(c.bytes("sources") / 8);
  // slots and layers that lie `far` apart instead of side by side
  const int64_t apart = c.has("far") ? c.integer("far") : 0, layers = c.integer("layers"), slots = a.layer / a.units;
  const int64_t sizes[3] = {layers, slots, 1}, strides[3] = {slots * apart * a.units, apart * a.units, 0};
  std::unique_ptr<cuda_host::Far<uint4>> far[2];
  if (apart) {
    for (int i = 0; i < 2; ++i)
      far[i] = std::make_unique<cuda_host::Far<uint4>>(i ? a.v : a.k, sizes, a.units, strides);
    for (const char* name : {"sources", "targets"})
      for (int64_t i = 0; i < a.moves; ++i) c.array<int64_t>(name)[i] *= apart;
    a.k = far[0]->data(), a.v = far[1]->data(), a.layer = strides[0];
  }
  const int threads = copy_threads(a.moves);
  const dim3 grid = {unsigned((a.units + threads - 1) / threads), unsigned(layers), 2};
  Block::run([&] { kv_copy_kernel(a); }, grid, threads, copy_shared_bytes(a.moves), seed);
  for (int i = 0; apart && i < 2; ++i) far[i]->back(c.array<uint4>(i ? "v" : "k"), sizes, a.units, strides);
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
  mma_order = int(c.integer("mma_order"));
  const bool half = c.has("dtype") && c.text("dtype") == "fp16";
  if (kernel == "tree_attention") {
    half ? attention_fp16(c) : attention_bf16(c);
  } else if (kernel == "kv_copy") {
    kv_copy(c, seed);
  } else if (kernel == "verify_swap") {
    verify_swap(c, seed);
  } else if (kernel == "mma") {
    MmaTest t{c.array<uint16_t>("a"), c.array<uint16_t>("b"), c.array<float>("out"), c.integer("trans") != 0};
    Block::run([&] { half ? mma_test_kernel<fp16>(t) : mma_test_kernel<bf16>(t); }, {}, 32, 1024, seed);
  } else if (kernel == "words") {
    c.fill("out", 14 * 64 * 4);
    WordsTest t{c.array<float>("x"), c.array<uint32_t>("out")};
    Block::run([&] { words_test_kernel(t); }, {}, 64, 1024, seed);
  } else {
    std::fprintf(stderr, "no kernel %s\n", kernel.c_str()), std::abort();
  }
}

}  // namespace

int main(int argc, char** argv) { return cuda_host::run_cases(argc, argv, run); }
