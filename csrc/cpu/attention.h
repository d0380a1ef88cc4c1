// Tree attention over a paged cache: one definition for decoding, prefill, verification and forests.
//
// A row sees the prefix of its request (implicit) and, of the tree slots behind it, those
// whose bit is set in its mask words; without a mask, slots 0 to its own (a causal chain).
// The j-th visible slot stands at position prefix + j. Keys are reduced by ascending
// position in spans of kSpan positions: exact maximum of the span, exp, one sum per lane
// (position mod 16), one chain of fma per output; spans are merged in order. So a row's
// bits depend on its own keys only: not on the other rows, the slots or the threads.
//
// The query heads of a KV head and the rows of a request are packed: a block of up to
// kBlock vectors shares each K and V tile, which is read from the cache once a block.
#pragma once
#include "dot.h"
#include "kernels.h"
#include "transpose.h"

namespace ssd {
namespace SSD_ISA {

constexpr int kKeys = 64;  // keys scored at once
static_assert(kSpan % kKeys == 0 && kKeys % 16 == 0);

struct Block {  // the vectors of one task
  int n, head_dim, words;
  int prefix;                  // keys that every row sees
  int64_t row[kBlock], head[kBlock];
  int limit[kBlock];           // keys that the vector sees without a mask
  const int64_t* bits[kBlock]; // its mask words, or null
  float m[kBlock], l[kBlock];  // running maximum and sum
};

struct Scratch {
  std::vector<float> memory;
  float *q, *s, *y, *o, *kt, *v, *ts, *tv;
  Scratch(int d, int slots) {
    const int64_t sizes[] = {kBlock * d, kBlock * kSpan, kBlock * d,     kBlock * d,
                             kKeys * d,  kSpan * d,      kBlock * slots, slots * d};
    float** parts[] = {&q, &s, &y, &o, &kt, &v, &ts, &tv};
    int64_t total = 16;
    for (int64_t n : sizes) total += n;
    memory.resize(total);
    float* p = (float*)((uintptr_t(memory.data()) + 63) / 64 * 64);
    for (int i = 0; i < 8; ++i) *parts[i] = p, p += sizes[i];
  }
};

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

// Fetches n keys from memory, a line at a time while something else is computed: of a burst the CPU drops what
// exceeds the misses that it can have under way (a few dozen).
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

// Scores of the keys at at[0..n), n <= kKeys, into columns of s for vectors [i0, i1).
template <class T>
void scores(const AttentionArgs& a, const Block& b, Scratch& z, const T* const* at, int n, int i0, int i1, float* s,
            int lds, Fetch<T>& fetch) {
  const int d = b.head_dim, panels = (n + 15) / 16, until = fetch.i + n;
  Fetch<T> none{};
  const bool few = i1 - i0 <= kRowTile;
  for (int p = 0; p < panels; ++p) transpose16(at + 16 * p, n - 16 * p, d, z.kt + 16 * p * d, few ? fetch : none);
  if (few) product(z.q + i0 * d, d, i1 - i0, z.kt, 16 * d, panels, d, s + i0 * lds, lds);
  else product(z.q + i0 * d, d, i1 - i0, z.kt, 16 * d, panels, d, s + i0 * lds, lds, fetch);
  fetch.until(until);
  for (int i = i0; i < i1 && a.softcap > 0; ++i)
    for (int p = 0; p < panels; ++p) {  // cap * tanh(x / cap)
      const f32x16 one = set1(1.f), e = exp(load(s + i * lds + 16 * p) * set1(2.f / a.softcap));
      store(s + i * lds + 16 * p, set1(a.softcap) * (one - set1(2.f) / (e + one)));
    }
}

// The values at at[0..n) as panels [D / 16][stride][16], from column c on.
template <class T> void values(const T* const* at, int n, int d, float* v, int stride, int c) {
  for (int j = 0; j < n; ++j)
    for (int p = 0; p < d / 16; ++p) store(v + (int64_t(p) * stride + c + j) * 16, load(at[j] + 16 * p));
}

// y[r] = sum over keys of s[r][key] times the value at at[key]: the chain of `product`, for up to kRowTile vectors.
template <class T>
void weighted_sum(const float* s, int rows, const T* const* at, int n, int d, float* y, Fetch<T>& fetch) {
  with_rows(
      rows, SSD_EACH(rt) {
        constexpr int NP = panels_with(rt);
        auto panels = [&](auto np, auto first, int p) __attribute__((always_inline)) {
          f32x16 acc[rt * np];
          unroll<rt * np>(SSD_EACH(i) { acc[i] = zero(); });
          for (int j = 0; j < n; ++j) {
            if constexpr (first) fetch.until(j + 1);
            unroll<np>(SSD_EACH(c) {
              const f32x16 v = load(at[j] + 16 * (p + c));
              unroll<rt>(SSD_EACH(r) { acc[r * np + c] = fma(set1(s[r * kSpan + j]), v, acc[r * np + c]); });
            });
          }
          unroll<rt>(SSD_EACH(r) { unroll<np>(SSD_EACH(c) { store(y + r * d + 16 * (p + c), acc[r * np + c]); }); });
        };
        int p = 0;
        if (NP <= d / 16) panels(std::integral_constant<int, NP>{}, std::true_type{}, 0), p = NP;
        for (; p + NP <= d / 16; p += NP) panels(std::integral_constant<int, NP>{}, std::false_type{}, p);
        for (; p < d / 16; ++p) panels(std::integral_constant<int, 1>{}, std::false_type{}, p);
      });
}

// s[0, n) becomes e^(s - maximum); returns maximum and sum.
SSD_INLINE void softmax(float* s, int n, float& m, float& l) {
  f32x16 top = set1(-INFINITY);
  for (int i = 0; i < n; i += 16)
    top = max(n - i < 16 ? select((1u << (n - i)) - 1, load(s + i), top) : load(s + i), top);
  m = reduce_max(top);
  f32x16 sum = zero();
  for (int i = 0; i < n; i += 16) {
    f32x16 e = exp(load(s + i) - set1(m));
    if (n - i < 16) e = select((1u << (n - i)) - 1, e, zero());
    store(s + i, e);
    sum = sum + e;
  }
  l = reduce_add(sum);
}

SSD_INLINE float exp1(float x) {
  float t[16];
  store(t, exp(set1(x)));
  return t[0];
}

// The state (m, l, o) of one vector takes in a span (ms, ls, y).
SSD_INLINE void merge(float& m, float& l, float* o, float ms, float ls, const float* y, int d) {
  if (m == -INFINITY && l == 0) {
    m = ms, l = ls;
    std::memcpy(o, y, d * sizeof(float));
    return;
  }
  const float top = m > ms ? m : ms, old = exp1(m - top), now = exp1(ms - top);
  l = l * old + ls * now;
  for (int i = 0; i < d; i += 16) store(o + i, fma(load(o + i), set1(old), load(y + i) * set1(now)));
  m = top;
}

// The slots of a row's mask at ranks [j0, j1), ascending; ranks are counted from 0.
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

// One span of a block: scores, softmax and values; merged into the state of each vector.
template <class T>
void span_pass(const AttentionArgs& a, Block& b, Scratch& z, const Keys<T>& ks, const Keys<T>& vs, int span,
               int slots) {
  const T *at[kSpan], *v_at[kSpan], *next[kSpan];
  const int d = b.head_dim, p0 = span * kSpan;
  int implicit[kBlock], total[kBlock], most = 0;  // keys of the span in the implicit part, and with tree slots
  for (int i = 0; i < b.n; ++i) {
    implicit[i] = std::clamp(b.limit[i] - p0, 0, kSpan);
    const int all = b.limit[i] + (b.bits[i] ? count_bits(b.bits[i], b.words) : 0);
    total[i] = std::clamp(all - p0, 0, kSpan);
    most = std::max(most, implicit[i]);
  }
  const int later = std::clamp(b.limit[b.n - 1] - p0 - kSpan, 0, kSpan), bytes = d * sizeof(T);
  ks.addresses(p0, most, at);
  vs.addresses(p0, most, v_at);
  ks.addresses(p0 + kSpan, later, next);
  Fetch<T> v_fetch{v_at, most, bytes}, k_fetch{next, later, bytes};  // memory works while this is computed
  for (int j = 0; j < most; j += kKeys) {
    int i0 = 0;  // rows see more keys the later they come
    while (implicit[i0] <= j) ++i0;
    scores(a, b, z, at + j, std::min(kKeys, most - j), i0, b.n, z.s + j, kSpan, v_fetch);
  }
  const bool direct = b.n <= kRowTile;  // one tile of vectors reads the values where they are
  if (!direct) values(v_at, most, d, z.v, kSpan, 0);
  float ms[kBlock], ls[kBlock];
  int32_t list[kSpan];
  for (int i = 0; i < b.n; ++i) {
    float* s = z.s + i * kSpan;
    if (total[i] > implicit[i]) {
      const int j0 = std::max(0, p0 - b.limit[i]);
      const int n = slots_of(b.bits[i], b.words, j0, j0 + total[i] - implicit[i], list);
      for (int j = 0; j < n; ++j) s[implicit[i] + j] = z.ts[i * slots + list[j]];
    }
    if (total[i] > 0) softmax(s, total[i], ms[i], ls[i]);
    if (!direct) k_fetch.until(later * (i + 1) / b.n);
  }
  for (int i0 = 0; i0 < b.n;) {  // tiles of vectors share the keys that all of them see
    const int n = std::min(kRowTile, b.n - i0);
    int common = kSpan;
    for (int i = i0; i < i0 + n; ++i) common = std::min(common, implicit[i]);
    if (direct) weighted_sum(z.s, n, v_at, common, d, z.y, k_fetch);
    else product(z.s + i0 * kSpan, kSpan, n, z.v, 16 * kSpan, d / 16, common, z.y + i0 * d, d);
    i0 += n;
    for (int i = i0 - n; i < i0; ++i) {
      if (total[i] == 0) continue;
      const int j0 = std::max(0, p0 - b.limit[i]);
      if (total[i] > implicit[i]) slots_of(b.bits[i], b.words, j0, j0 + total[i] - implicit[i], list);
      for (int p = 0; p < d / 16 && common < total[i]; ++p) {
        f32x16 acc = load(z.y + i * d + 16 * p);
        for (int j = common; j < implicit[i]; ++j)
          acc = fma(set1(z.s[i * kSpan + j]),
                    direct ? load(v_at[j] + 16 * p) : load(z.v + (int64_t(p) * kSpan + j) * 16), acc);
        for (int j = implicit[i]; j < total[i]; ++j)
          acc = fma(set1(z.s[i * kSpan + j]), load(z.tv + (int64_t(p) * slots + list[j - implicit[i]]) * 16), acc);
        store(z.y + i * d + 16 * p, acc);
      }
      merge(b.m[i], b.l[i], z.o + i * d, ms[i], ls[i], z.y + i * d, d);
    }
  }
}

// Scores and values of the tree slots that any row of the block sees.
template <class T>
void tree_pass(const AttentionArgs& a, const Block& b, Scratch& z, const Keys<T>& ks, const Keys<T>& vs, int slots) {
  Fetch<T> none{};
  const T* at[16];
  for (int s = 0; s < slots; s += 16) {
    int i0 = b.n, i1 = 0;
    uint64_t any = 0;
    for (int i = 0; i < b.n; ++i)
      if (const uint64_t x = uint64_t(b.bits[i][s / 64]) >> s % 64 & 0xffff) any |= x, i0 = std::min(i0, i), i1 = i + 1;
    if (!any) continue;
    const int n = 64 - __builtin_clzll(any);
    ks.addresses(b.prefix + s, n, at);
    scores(a, b, z, at, n, i0, i1, z.ts + s, slots, none);
    vs.addresses(b.prefix + s, n, at);
    values(at, n, b.head_dim, z.tv, slots, s);
  }
}

// f with a null pointer of the storage type.
template <class F> SSD_INLINE void with_type(Type t, F&& f) {
  if (t == Type::f32) f((float*)nullptr);
  else if (t == Type::bf16) f((bf16*)nullptr);
  else f((fp16*)nullptr);
}

inline void read_vector(const AttentionArgs& a, int64_t row, int64_t head, float* q) {
  with_type(a.q_type, [&](auto* null) {
    const auto* p = (decltype(null))a.q + row * a.q_row + head * a.q_head;
    for (int j = 0; j < a.head_dim; j += 16) store(q + j, load(p + j) * set1(a.scale));
  });
}

inline void write_vector(const AttentionArgs& a, int64_t row, int64_t head, float m, float l, const float* o) {
  const bool any = l > 0 || l != l;  // a row without keys: zeros and -inf
  with_type(a.q_type, [&](auto* null) {
    auto* p = (decltype(null))a.out + (row * a.heads + head) * a.head_dim;
    for (int j = 0; j < a.head_dim; j += 16) store(p + j, any ? load(o + j) / set1(l) : zero());
  });
  if (a.lse) a.lse[row * a.heads + head] = any ? m + std::log(l) : -INFINITY;
}

template <class T> void attention_task(const AttentionArgs& a, const AttentionTask& t, float* partials) {
  static thread_local std::unique_ptr<Scratch> kept;
  static thread_local int kept_d = 0, kept_slots = -1;
  Block b{};
  b.head_dim = int(a.head_dim), b.words = int(a.words), b.n = t.n;
  const int d = b.head_dim, group = int(a.heads / a.kv_heads), first = a.row_offsets[t.request];
  b.prefix = a.prefix_lens[t.request];
  int slots = 0;
  for (int i = 0; i < b.n; ++i) {
    b.m[i] = -INFINITY, b.l[i] = 0;
    b.row[i] = first + (t.vec + i) / group, b.head[i] = int64_t(t.kv_head) * group + (t.vec + i) % group;
    b.limit[i] = a.mask ? b.prefix : b.prefix + int(b.row[i] - first) + 1;
    b.bits[i] = a.mask ? a.mask + b.row[i] * a.words : nullptr;
    for (int w = 0; a.mask && w < b.words; ++w)
      if (b.bits[i][w]) slots = std::max(slots, w * 64 + 64 - __builtin_clzll(uint64_t(b.bits[i][w])));
  }
  slots = (slots + 15) / 16 * 16;
  if (kept_d < d || kept_slots < slots) {
    kept_d = std::max(d, kept_d), kept_slots = std::max(slots, kept_slots);
    kept = std::make_unique<Scratch>(kept_d, kept_slots);
  }
  Scratch& z = *kept;
  std::fill(z.o, z.o + b.n * d, 0.f);
  for (int i = 0; i < b.n; ++i) read_vector(a, b.row[i], b.head[i], z.q + i * d);
  const int32_t* pages = a.page_table + t.request * a.table_row;
  const Keys<T> ks{(const T*)a.k + t.kv_head * a.k_head, pages, a.k_page, a.k_slot, a.page_size};
  const Keys<T> vs{(const T*)a.v + t.kv_head * a.v_head, pages, a.v_page, a.v_slot, a.page_size};
  if (slots && (t.span + t.spans) * kSpan > b.prefix) tree_pass(a, b, z, ks, vs, slots);
  for (int s = t.span; s < t.span + t.spans; ++s) span_pass(a, b, z, ks, vs, s, slots);
  for (int i = 0; i < b.n; ++i) {
    if (t.partial < 0) {
      write_vector(a, b.row[i], b.head[i], b.m[i], b.l[i], z.o + i * d);
      continue;
    }
    float* p = partials + (t.partial + i) * (d + 2);  // one span of a split pass
    p[0] = b.m[i], p[1] = b.l[i];
    std::memcpy(p + 2, z.o + i * d, d * sizeof(float));
  }
}

inline void merge_task(const AttentionArgs& a, const AttentionTask& t, const float* partials) {
  const int group = int(a.heads / a.kv_heads), d = int(a.head_dim);
  std::vector<float> o(d);
  for (int i = 0; i < t.n; ++i) {
    float m = -INFINITY, l = 0;
    std::fill(o.begin(), o.end(), 0.f);
    for (int s = 0; s < t.spans; ++s) {
      const float* p = partials + (t.partial + int64_t(s) * t.n + i) * (d + 2);
      if (p[0] != -INFINITY || p[1] != 0) merge(m, l, o.data(), p[0], p[1], p + 2, d);
    }
    const int64_t row = a.row_offsets[t.request] + (t.vec + i) / group;
    write_vector(a, row, int64_t(t.kv_head) * group + (t.vec + i) % group, m, l, o.data());
  }
}

inline void attention(const AttentionArgs& a, const AttentionPlan& plan, float* partials, Team& team) {
  for (int i = plan.bounds[team.rank]; i < plan.bounds[team.rank + 1]; ++i)
    with_type(a.kv_type,
              [&](auto* null) { attention_task<std::remove_pointer_t<decltype(null)>>(a, plan.tasks[i], partials); });
  if (plan.merges.empty()) return;
  team.barrier();
  int64_t i0, i1;
  team.share(int64_t(plan.merges.size()), i0, i1);
  for (int64_t i = i0; i < i1; ++i) merge_task(a, plan.merges[i], partials);
}

}  // namespace SSD_ISA
}  // namespace ssd
