// Executes a CUDA grid on the host: blocks one after the other, the threads of a block as fibers that run until a
// warp collective. The seed permutes blocks, warps and lanes; results must not depend on it.
#pragma once
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "fiber.h"

struct dim3 { unsigned x = 1, y = 1, z = 1; };
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_host {

inline int planted = 0;  // number of the planted fault that is switched on

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "cuda_host: block (%u, %u, %u): %s\n", blockIdx.x, blockIdx.y, blockIdx.z, what);
  std::abort();
}

enum class Op { shuffle, ballot, sync_warp };

struct alignas(16) Warp {
  char slots[2][32][48];  // what the lanes brought to a collective; two, since a fast lane may reach the next one
  Op op;
  int arrived = 0, parity = 0;
};

struct Thread {
  Fiber fiber;
  dim3 index;
  enum { ready, at_warp } state = ready;
  int takes = 0;  // shared arrays taken so far
};

class Block {
 public:
  static inline Block* now = nullptr;
  Thread* self = nullptr;
  int lane() const { return self->index.x % 32; }
  Warp& warp() { return warps_[self->index.x / 32]; }

  // Each lane of the warp brings a value; returns those of all lanes.
  template <class V>
  const V* meet(Op op, const V& value) {
    static_assert(sizeof(V) <= sizeof(Warp::slots[0][0]));
    Warp& w = warp();
    if (w.arrived && w.op != op) fail("lanes of a warp meet at different collectives");
    w.op = op;
    char* slots = w.slots[w.parity][0];
    // values lie sizeof(V) apart
    std::memcpy(slots + lane() * sizeof(V), &value, sizeof(V));
    if (++w.arrived == 32) {
      w.arrived = 0, w.parity ^= 1;
      Thread* first = self - lane();
      for (int i = 0; i < 32; ++i) first[i].state = Thread::ready;
    } else {
      self->state = Thread::at_warp;
      pause();
    }
    return reinterpret_cast<const V*>(slots);
  }

  // The n-th shared array of the block: a heap block of its own, so that the sanitizer sees its ends.
  void* take(size_t bytes) {
    const size_t i = self->takes++;
    if (i == shared_.size()) {
      taken_ += (bytes + 15) / 16 * 16;
      if (taken_ > granted_) fail("the kernel takes more shared memory than the launch grants");
      shared_.push_back({std::unique_ptr<char[]>(new char[bytes]), bytes});
      std::memset(shared_[i].data.get(), 0xff, bytes);  // NaN: nothing may rely on what fresh memory holds
    }
    if (shared_[i].bytes != bytes) fail("threads disagree about a shared array");
    return shared_[i].data.get();
  }

  static void run(const std::function<void()>& kernel, dim3 grid, int threads, size_t shared, uint64_t seed) {
    static Block block;
    now = &block;
    block.random_ = seed * 0x9e3779b97f4a7c15u + 1, block.permute_ = seed != 0;
    gridDim = grid, blockDim = {unsigned(threads), 1, 1};
    while (block.threads_.size() * 32 < size_t(threads)) block.threads_.emplace_back(new Thread[32]);
    std::vector<size_t> order = block.order(size_t(grid.x) * grid.y * grid.z);
    for (size_t i : order) {
      blockIdx = {unsigned(i % grid.x), unsigned(i / grid.x % grid.y), unsigned(i / grid.x / grid.y)};
      block.run_block(kernel, threads, shared);
    }
    now = nullptr;
  }

 private:
  struct Shared {
    std::unique_ptr<char[]> data;
    size_t bytes;
  };

  void pause() {
    self->fiber.yield();
    threadIdx = self->index;
  }

  size_t random(size_t n) {
    random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
    return random_ % n;
  }
  std::vector<size_t> order(size_t n) {
    std::vector<size_t> o(n);
    std::iota(o.begin(), o.end(), 0);
    if (permute_)
      for (size_t i = n; i > 1; --i) std::swap(o[i - 1], o[random(i)]);
    return o;
  }

  // Runs every lane that can run, once. Returns false if none could.
  bool step(int w) {
    bool moved = false;
    for (size_t l : order(32)) {
      Thread& t = threads_[w][l];
      if (t.state != Thread::ready || t.fiber.done()) continue;
      moved = true;
      self = &t, threadIdx = t.index;
      t.fiber.resume();
      alive_ -= t.fiber.done();
    }
    return moved;
  }

  void run_block(const std::function<void()>& kernel, int threads, size_t shared) {
    warp_count_ = (threads + 31) / 32, alive_ = threads;
    warps_.assign(warp_count_, Warp());
    shared_.clear(), taken_ = 0, granted_ = shared;
    for (int w = 0; w < warp_count_; ++w)
      for (int l = 0; l < 32; ++l) {
        Thread& t = threads_[w][l];
        t.index = {unsigned(w * 32 + l), 0, 0}, t.state = Thread::ready, t.takes = 0;
        if (int(t.index.x) < threads) t.fiber.start(kernel);  // a partial warp never meets
      }
    const bool to_end = !permute_ || random(2);  // whole warps one after the other, or mixed at collectives
    while (alive_) {
      bool moved = false;
      for (size_t w : order(warp_count_)) {
        bool m = step(w);
        moved |= m;
        while (to_end && m) m = step(w);
      }
      if (!moved && alive_) fail("deadlock: some threads wait for a collective that others do not reach");
    }
  }

  std::vector<std::unique_ptr<Thread[]>> threads_;  // [warp][lane]
  std::vector<Warp> warps_;
  std::vector<Shared> shared_;
  size_t taken_ = 0, granted_ = 0;
  int warp_count_ = 0, alive_ = 0;
  bool permute_ = false;
  uint64_t random_ = 1;
};

}  // namespace cuda_host
