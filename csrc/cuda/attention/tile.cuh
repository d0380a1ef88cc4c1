// Which packed rows a block reduces, and over which keys.
//
// Rows of a request are packed as (t, g), row t of the request and query head g of the KV head's group, at t * G + g,
// so a tile of M rows holds any G without waste. A row's key of position j stands in column j mod BK of tile j div BK,
// whatever the rows beside it. Siblings of a tree share a position, so a masked call packs rows over whole spans of
// prefix only; from the last of these on, every row is a tile of its own, over the keys of its own path.
#pragma once
#include "args.cuh"

namespace ssd::gpu {

struct Request {
  int index;  // -1: none
  int row;  // its first row
  int rows;
  int unit;  // number of the unit within the request
};

SSD_DEV int warp_scan(int v, int lane) {  // inclusive sum over the lanes
  for (int d = 1; d < 32; d *= 2) {
    int below = __shfl_up_sync(~0u, v, d);
    v += lane >= d ? below : 0;
  }
  return v;
}

// The request that owns unit `unit`, where request b has ceil(rows_b * per_row / unit_rows) units. Every lane of the
// warp calls this and gets the same answer.
SSD_DEV Request find_request(const int32_t* row_offsets, int requests, int unit, int per_row, int unit_rows) {
  const int lane = threadIdx.x % 32;
  int before = 0;
  for (int base = 0; base < requests; base += 32) {
    int b = base + lane, row = 0, rows = 0;
    if (b < requests) row = row_offsets[b], rows = row_offsets[b + 1] - row;
    int units = (rows * per_row + unit_rows - 1) / unit_rows;
    int end = before + warp_scan(units, lane);
    unsigned found = __ballot_sync(~0u, unit < end);
    if (found) {
      int owner = __ffs(int(found)) - 1;
      return {base + owner, __shfl_sync(~0u, row, owner), __shfl_sync(~0u, rows, owner),
              unit - __shfl_sync(~0u, end - units, owner)};
    }
    before = __shfl_sync(~0u, end, 31);
  }
  return {-1, 0, 0, 0};
}

SSD_DEV int count_bits(const int64_t* words, int n) {
  int bits = 0;
  for (int w = 0; w < n; ++w) bits += __popcll(uint64_t(words[w]));
  return bits;
}

struct Tile {
  int request, row, rows;  // rows of the request from `row` on
  int m0;  // first packed row
  int prefix;  // keys before the path
  int end, step;  // row t sees positions below end + step * t
  const int64_t* path;  // mask words of the only row; if null, positions are logical indices

  SSD_DEV int last(int m, int group) const { return end + step * min((m0 + m - 1) / group, rows - 1); }
};

// Page and slot of logical index j; (-1, 0) past the page table.
SSD_DEV int2 locate(const AttentionArgs& a, int request, int j) {
  const int page = j / a.page_size;
  if (page >= a.table_len) return {-1, 0};
  return {a.page_table[request * a.table_row + page], j - page * a.page_size};
}

// Finds where the keys of the span from `start` on lie; (-1, 0) from position `last` on.
SSD_DEV void find_keys(int2* keys, const AttentionArgs& a, const Tile& t, int start, int last) {
  for (int i = threadIdx.x; i < kSpan; i += kThreads) {
    const int j = start + i;
    if (j >= last || (t.path && j >= t.prefix)) {
      if (j >= last) keys[i] = {-1, 0};
      continue;
    }
    keys[i] = locate(a, t.request, j);
  }
  if (!t.path) return;
  for (int s = threadIdx.x; s < 64 * a.words; s += kThreads) {  // the n-th set bit stands at position prefix + n
    const uint64_t word = uint64_t(t.path[s / 64]), bit = 1ull << s % 64;
    if (!(word & bit)) continue;
    const int i = t.prefix + count_bits(t.path, s / 64) + __popcll(word & (bit - 1)) - start;
    if (i >= 0 && i < kSpan) keys[i] = locate(a, t.request, t.prefix + s);
  }
}

}  // namespace ssd::gpu
