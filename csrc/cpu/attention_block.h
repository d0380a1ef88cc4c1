// What one attention task works on: the vectors of a block, its scratch memory, the keys of a request.
#pragma once
#include "kernels.h"
#include "simd/simd.h"

namespace ssd {
namespace SSD_ISA {

constexpr int kKeys = 64;  // keys scored at once
static_assert(kSpan % kKeys == 0 && kKeys % 16 == 0);

struct Block {  // the vectors of one task
  int n, head_dim, words;
  int prefix;                         // keys that every row sees
  int64_t row[kBlock], head[kBlock];  // row of the call and query head
  int limit[kBlock];                  // keys that the vector sees without a mask
  const int64_t* bits[kBlock];        // its mask words, or null
  float m[kBlock], l[kBlock];         // running maximum and sum
};

struct Scratch {  // of one thread, for vectors of d elements and so many tree slots
  std::vector<float> memory;
  float* q;   // [kBlock][d] queries, scaled
  float* s;   // [kBlock][kSpan] scores of a span, then its weights
  float* y;   // [kBlock][d] weighted sums of a span
  float* o;   // [kBlock][d] outputs so far, not yet divided by l
  float* kt;  // [kKeys / 16][d][16] keys, transposed
  float* v;   // [d / 16][kSpan][16] values of a span
  float* ts;  // [kBlock][slots] scores of the tree slots
  float* tv;  // [d / 16][slots][16] values of the tree slots

  Scratch(int d, int slots) {
    const int64_t vectors = kBlock * d, span = kBlock * kSpan;
    const int64_t sizes[] = {vectors, span, vectors, vectors, kKeys * d, kSpan * d, kBlock * slots, slots * d};
    float** parts[] = {&q, &s, &y, &o, &kt, &v, &ts, &tv};
    int64_t total = 16;  // to begin at a line of memory
    for (int64_t n : sizes) total += n;
    memory.resize(total);
    float* p = (float*)((uintptr_t(memory.data()) + 63) / 64 * 64);
    for (int i = 0; i < 8; ++i) {
      *parts[i] = p;
      p += sizes[i];
    }
  }
};

// The thread's scratch, grown where d or slots exceed what it has served so far.
inline Scratch& scratch_for(int d, int slots) {
  static thread_local std::unique_ptr<Scratch> kept;
  static thread_local int kept_d = 0, kept_slots = -1;
  if (kept_d < d || kept_slots < slots) {
    kept_d = std::max(d, kept_d);
    kept_slots = std::max(slots, kept_slots);
    kept = std::make_unique<Scratch>(kept_d, kept_slots);
  }
  return *kept;
}

// Addresses of logical keys of one request and head.
template <class T> struct Keys {
  const T* base;
  const int32_t* pages;
  int64_t page_stride, slot_stride, page_size;
  void addresses(int64_t first, int n, const T** out) const {
    int64_t page = first / page_size, slot = first % page_size;
    for (int i = 0; i < n; ++i) {
      out[i] = base + pages[page] * page_stride + slot * slot_stride;
      if (++slot == page_size) slot = 0, ++page;
    }
  }
};

// Fetches n keys from memory, one line at a time between other work: the CPU drops a burst beyond the few dozen misses
// that it can have in flight.
template <class T> struct Fetch {
  const T* const* at;
  int n, bytes;  // keys, bytes of a key
  int i = 0, b = 0;
  SSD_INLINE void next() {
    if (i >= n) return;
    __builtin_prefetch((const char*)at[i] + b);
    if ((b += 64) >= bytes) b = 0, ++i;
  }
  void until(int end) {
    while (i < std::min(end, n)) next();
  }
};

// The set bits of a row's mask that have ranks [j0, j1) among them, ascending; ranks start at 0.
inline int slots_of(const int64_t* bits, int words, int j0, int j1, int32_t* out) {
  int rank = 0, n = 0;
  for (int w = 0; w < words && rank < j1; ++w)
    for (uint64_t x = uint64_t(bits[w]); x && rank < j1; x &= x - 1, ++rank)
      if (rank >= j0) out[n++] = w * 64 + __builtin_ctzll(x);
  return n;
}

inline int count_bits(const int64_t* bits, int words) {
  int n = 0;
  for (int w = 0; w < words; ++w) n += __builtin_popcountll(uint64_t(bits[w]));
  return n;
}

}  // namespace SSD_ISA
}  // namespace ssd
