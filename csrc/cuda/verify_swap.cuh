// The end of a verification round without the host: match, lookup, swap, outcome, the next verification's inputs.
//
// Each request has one warp, whose lane l holds rows l and l + 32 of the tree. Row 0 is the root, row i is node i - 1.
// The inputs of a verification are arrays of fixed shape [B, N + 1], where rows past the tree are padding that sees
// nothing, so this kernel can write the next inputs in place, and a captured graph of forward, sampling and this kernel
// can run again. Protocol and memory: ssd/spec_cache.h; where its verify lane stores word by word, the lanes share the
// words.
#pragma once
#include <ssd/spec_cache.h>

#include "device.cuh"

namespace ssd::gpu {

struct VerifySwapArgs {
  void* cache;
  SpecSizes sizes;
  const int64_t* slots;  // [B] slots of the speculation cache; a request with -1 is left alone
  const int64_t* sampled;  // [B, N + 1] the target's token after each row
  const uint64_t* features;  // [B, N + 1, feature_words] by row, or null; a token's are those of the row before it
  // this verification's inputs; the kernel replaces them by the next one's
  int64_t* ids;  // [B, N + 1]
  int32_t* parents;  // [B, N + 1] parent rows, -1 for root and padding
  int32_t* positions;  // [B, N + 1]
  int64_t* kv_slots;  // [B, N + 1] where K and V are stored, or -1
  int64_t* mask;  // [B, N + 1]
  int32_t* prefix_lens;  // [B]
  const int32_t* page_table;  // [B, table_row]
  int64_t table_row;
  int64_t page_size;
  const int32_t* capacity;  // [B] tokens that the pages of a request hold: the next tree is cut to fit
  // the outcome
  int32_t* count;  // [B] tokens confirmed; 0 if the request was left alone: its log is full or its bonus token no token
  int64_t* confirmed;  // [B, N + 1]
  int32_t *accepted, *branch, *taken, *kind;  // [B] depth of the path; branch adopted or -1, its nodes taken, its kind
  int64_t *sources, *targets;  // [B, N + 1] moves that bring the accepted path behind the prefix, for kv_copy
};

SSD_DEV void fence_release() {
#ifdef __CUDA_ARCH__
  ::cuda::atomic_thread_fence(::cuda::std::memory_order_release, ::cuda::thread_scope_system);
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

SSD_DEV int warp_min(int v) {
  for (int d = 16; d; d /= 2) v = min(v, __shfl_xor_sync(~0u, v, d));
  return v;
}

// Reads element i of an array of 64 that the lanes hold, two values each; all lanes read the same element.
template <class T>
SSD_DEV T pick(const T (&v)[2], int i) {
  return __shfl_sync(~0u, i < 32 ? v[0] : v[1], i % 32);
}

// The lowest of the 64 flags that is set, or -1.
SSD_DEV int lowest(bool a, bool b) {
  const unsigned low = __ballot_sync(~0u, a), high = __ballot_sync(~0u, b);
  return low ? __ffs(int(low)) - 1 : high ? __ffs(int(high)) + 31 : -1;
}

// Looks (node, token) up as SpecCache::match_swap does. Every lane acquires for itself before the lanes agree, so each
// may read what was published.
SSD_DEV Match lookup(const SpecCache& c, int64_t slot, int node, int64_t token, int lane) {
  const int64_t slab = 1 - int64_t(load_relaxed(c.active + slot));
  if (__ballot_sync(~0u, c.is_ready(slot)) != ~0u) return {-1, 0};
  const int64_t* keys = c.keys + c.branch_at(slab, slot, 0);
  int branch = -1;
  for (int base = 0; base < c.d.branches && branch < 0; base += 32) {
    const int b = base + lane;
    const unsigned found = __ballot_sync(~0u, b < c.d.branches && keys[b] == pack_key(node, token));
    if (found) branch = base + __ffs(int(found)) - 1;
  }
  if (branch < 0) return {-1, 0};
  const int nodes = warp_min(load_acquire(c.depth_ready + c.branch_at(slab, slot, branch)));
  return nodes < 1 ? Match{-1, 0} : Match{branch, nodes};
}

// Grid: B blocks of one warp.
static __global__ void __launch_bounds__(32) verify_swap_kernel(const VerifySwapArgs a) {
  const SpecCache c(a.cache, a.sizes);
  const int lane = threadIdx.x, nodes = int(c.d.nodes), width = nodes + 1;
  const int64_t b = blockIdx.x, at = b * width, slot = a.slots[b];
  const int32_t* table = a.page_table + b * a.table_row;
  auto kv_slot = [&](int j) { return table[j / a.page_size] * a.page_size + j % a.page_size; };

  // match
  int64_t id[2] = {-1, -1}, next[2] = {-1, -1}, stored[2] = {-1, -1};
  int parent[2] = {-1, -1}, rank[2] = {-1, -1};  // rank: depth on the accepted path
  const int prefix = a.prefix_lens[b];
  for (int h = 0; h < 2; ++h) {
    const int row = lane + 32 * h;
    if (row >= width) continue;
    id[h] = a.ids[at + row], parent[h] = a.parents[at + row];
    next[h] = a.sampled[at + row], stored[h] = a.kv_slots[at + row];
    a.confirmed[at + row] = a.sources[at + row] = a.targets[at + row] = -1;
  }
  int node = 0, depth = 0;
  if (lane == 0) rank[0] = 0;
  int64_t token = pick(next, 0);
  for (;;) {
    const int child = lowest(lane > node && parent[0] == node && id[0] == token,
                             lane + 32 > node && parent[1] == node && id[1] == token);
    if (child < 0) break;
    node = child, ++depth;
    if (child == lane) rank[0] = depth;
    if (child == lane + 32) rank[1] = depth;
    token = pick(next, node);
  }
  const int count = depth + 1;
  const bool live = slot >= 0 && token >= 0 && token < c.d.vocab && c.length[slot] + count <= c.d.log;
  if (lane == 0) {
    a.count[b] = live ? count : 0;
    a.accepted[b] = depth, a.branch[b] = -1, a.taken[b] = 0, a.kind[b] = -1;
  }
  if (!live) return;

  // lookup and swap
  const Match hit = lookup(c, slot, node - 1, token, lane);
  const int start = prefix + count, room = a.capacity[b] - start - 1;  // behind the new root
  const int taken = hit.branch < 0 ? 0 : max(0, min(min(hit.nodes, nodes), room));
  const int64_t slab = hit.branch < 0 ? 0 : 1 - int64_t(load_relaxed(c.active + slot));
  const int64_t from = c.branch_at(slab, slot, max(hit.branch, 0)) * nodes;
  __syncwarp();
  if (lane == 0 && hit.branch >= 0) {
    store_release(c.active + slot, uint32_t(slab));
    a.branch[b] = hit.branch, a.taken[b] = taken, a.kind[b] = c.kind[c.in_slab(slab, slot)];
  }

  // outcome: first what is stored before it, then its words, then its epoch
  const int64_t length = c.length[slot], epoch = c.round[slot];
  int64_t* record = c.record_of(uint64_t(epoch), slot);
  __syncwarp();
  if (lane == 0) {
    store_relaxed(record + kEpoch, int64_t(0));
    if (c.d.feature_words) store_relaxed(c.claim + slot, uint64_t(length + count));
    const int64_t fields[kNext] = {
        0, c.owner[slot], int64_t(load_relaxed(c.born + slot)), node - 1, token, hit.branch, taken, length + count};
    fence_release();
    for (int i = kOwner; i < kNext; ++i) store_relaxed(record + i, fields[i]);
  }
  __syncwarp();
  fence_release();
  SharedArena arena;
  int* above = arena.take<int>(64);  // parent rows of the next tree
  for (int h = 0; h < 2; ++h) {
    const int row = lane + 32 * h;
    if (rank[h] >= 0) {  // a row of the path: its KV, and the token that the target drew after it
      const int64_t confirmed = next[h], position = length + rank[h], target = kv_slot(prefix + rank[h]);
      store_relaxed(c.log + slot * c.d.log + position, int32_t(confirmed));
      a.confirmed[at + rank[h]] = confirmed;
      if (stored[h] != target) a.sources[at + rank[h]] = stored[h], a.targets[at + rank[h]] = target;
    }
    above[row] = -1, id[h] = 0;
    if (row == 0) id[h] = token;
    if (row > 0 && row <= taken) {
      id[h] = c.tokens[from + row - 1], above[row] = c.parents[from + row - 1] + 1;
      store_relaxed(record + kNext + row - 1, pack_key(above[row] - 1, id[h]));
    }
  }
  if (c.d.feature_words && a.features)
    for (int r = 0; r < width; ++r) {  // rows of the path, one at a time by all lanes
      const int step = pick(rank, r);
      if (step < 0 || count - step > c.d.feature_window) continue;
      uint64_t* to = c.feature_row(slot, length + step);
      for (int64_t w = lane; w < c.d.feature_words; w += 32)
        store_relaxed(to + w, a.features[(at + r) * c.d.feature_words + w]);
    }
  __syncwarp();
  if (lane == 0) {
    c.length[slot] = length + count;
    c.round[slot] = epoch + 1;
    store_release(record + kEpoch, epoch);
    store_release(c.latest + slot, uint64_t(epoch));
    a.prefix_lens[b] = start;
  }

  // the next verification's inputs
  for (int h = 0; h < 2; ++h) {
    const int row = lane + 32 * h;
    if (row >= width) continue;
    uint64_t sees = 0;
    int deep = -1;
    if (row <= taken)
      for (int p = row; p >= 0 && deep < row; p = above[p]) sees |= 1ull << p, ++deep;
    a.ids[at + row] = id[h], a.parents[at + row] = above[row], a.mask[at + row] = int64_t(sees);
    a.positions[at + row] = start + max(deep, 0);
    a.kv_slots[at + row] = row <= taken && row <= room ? kv_slot(start + row) : -1;
  }
}

}  // namespace ssd::gpu
