// Tree attention over a paged cache: one definition for decoding, prefill, verification and forests.
//
// A row sees the prefix of its request (implicitly) and those of the tree slots behind it whose bits are set in its
// mask words; without a mask it sees slots 0 to its own, a causal chain. The j-th visible slot stands at position
// prefix + j. Keys are reduced by ascending position in spans of kSpan positions: the exact maximum of the span, exp,
// one sum per lane (position mod 16), one chain of fma per output; spans are merged in order. So a row's bits depend on
// its own keys only, not on the other rows, the slots or the threads.
//
// The query heads of a KV head and the rows of a request are packed: a block of up to kBlock vectors shares each tile
// of K and V, which is read from the cache once per block.
#pragma once
#include "attention_block.h"
#include "attention_softmax.h"
#include "dot.h"
#include "transpose.h"

namespace ssd {
namespace SSD_ISA {

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

// The keys of one span, and how many of them each vector of the block sees.
template <class T> struct Span {
  int first;  // position of its first key
  int implicit[kBlock];  // keys seen by position: of the prefix or of a chain
  int total[kBlock];  // these and the vector's tree slots
  int most = 0;  // maximum of implicit
  int later;  // keys of the next span, to fetch meanwhile
  const T *k[kSpan], *v[kSpan], *next[kSpan];
  float m[kBlock], l[kBlock];  // maximum and sum of each vector

  Span(const Block& b, const Keys<T>& ks, const Keys<T>& vs, int span) : first(span * kSpan) {
    for (int i = 0; i < b.n; ++i) {
      implicit[i] = std::clamp(b.limit[i] - first, 0, kSpan);
      const int all = b.limit[i] + (b.bits[i] ? count_bits(b.bits[i], b.words) : 0);
      total[i] = std::clamp(all - first, 0, kSpan);
      most = std::max(most, implicit[i]);
    }
    later = std::clamp(b.limit[b.n - 1] - first - kSpan, 0, kSpan);
    ks.addresses(first, most, k);
    vs.addresses(first, most, v);
    ks.addresses(first + kSpan, later, next);
  }

  // The tree slots that vector i sees in this span, ascending; returns how many.
  int tree_slots(const Block& b, int i, int32_t* out) const {
    const int from = std::max(0, first - b.limit[i]);
    return slots_of(b.bits[i], b.words, from, from + total[i] - implicit[i], out);
  }
};

// Scores of the span's implicit keys to z.s, while its values are fetched.
template <class T> SSD_INLINE void span_scores(const AttentionArgs& a, const Block& b, Scratch& z, const Span<T>& s) {
  Fetch<T> fetch{s.v, s.most, int(b.head_dim * sizeof(T))};
  for (int j = 0; j < s.most; j += kKeys) {
    int i0 = 0;  // the later a vector's row, the more keys it sees
    while (s.implicit[i0] <= j) ++i0;
    scores(a, b, z, s.k + j, std::min(kKeys, s.most - j), i0, b.n, z.s + j, kSpan, fetch);
  }
}

// Weights of each vector from its scores, those of its tree slots behind the implicit ones.
template <class T>
SSD_INLINE void span_softmax(const Block& b, Scratch& z, Span<T>& s, int slots, bool direct, Fetch<T>& fetch) {
  int32_t list[kSpan];
  for (int i = 0; i < b.n; ++i) {
    float* row = z.s + i * kSpan;
    if (s.total[i] > s.implicit[i]) {
      const int n = s.tree_slots(b, i, list);
      for (int j = 0; j < n; ++j) row[s.implicit[i] + j] = z.ts[i * slots + list[j]];
    }
    if (s.total[i] > 0) softmax(row, s.total[i], s.m[i], s.l[i]);
    if (!direct) fetch.until(s.later * (i + 1) / b.n);
  }
}

// Continues the sums of vector i from key `common` on, up to which its tile has summed for all of its vectors.
template <class T>
SSD_INLINE void sum_own_keys(const Block& b, Scratch& z, const Span<T>& s, int i, int common, int slots, bool direct) {
  const int d = b.head_dim, implicit = s.implicit[i], total = s.total[i];
  const float* w = z.s + i * kSpan;
  int32_t list[kSpan];
  if (total > implicit) s.tree_slots(b, i, list);
  for (int p = 0; p < d / 16 && common < total; ++p) {
    f32x16 acc = load(z.y + i * d + 16 * p);
    for (int j = common; j < implicit; ++j)
      acc = fma(set1(w[j]), direct ? load(s.v[j] + 16 * p) : load(z.v + (int64_t(p) * kSpan + j) * 16), acc);
    for (int j = implicit; j < total; ++j)
      acc = fma(set1(w[j]), load(z.tv + (int64_t(p) * slots + list[j - implicit]) * 16), acc);
    store(z.y + i * d + 16 * p, acc);
  }
}

// Weighted sums of the values, merged into the state of each vector. A tile of vectors shares the keys that all of them
// see; each then goes on with its own, so every element stays one chain of fma.
template <class T>
SSD_INLINE void span_sums(Block& b, Scratch& z, const Span<T>& s, int slots, bool direct, Fetch<T>& fetch) {
  const int d = b.head_dim;
  for (int i0 = 0; i0 < b.n; i0 += kRowTile) {
    const int n = std::min(kRowTile, b.n - i0);
    const int common = *std::min_element(s.implicit + i0, s.implicit + i0 + n);
    if (direct) weighted_sum(z.s, n, s.v, common, d, z.y, fetch);
    else product(z.s + i0 * kSpan, kSpan, n, z.v, 16 * kSpan, d / 16, common, z.y + i0 * d, d);
    for (int i = i0; i < i0 + n; ++i) {
      if (s.total[i] == 0) continue;
      sum_own_keys(b, z, s, i, common, slots, direct);
      merge(b.m[i], b.l[i], z.o + i * d, s.m[i], s.l[i], z.y + i * d, d);
    }
  }
}

template <class T>
void span_pass(const AttentionArgs& a, Block& b, Scratch& z, const Keys<T>& ks, const Keys<T>& vs, int span,
               int slots) {
  Span<T> s(b, ks, vs, span);
  Fetch<T> fetch{s.next, s.later, int(b.head_dim * sizeof(T))};  // memory works while this span is computed
  const bool direct = b.n <= kRowTile;  // one tile of vectors reads the values where they are
  span_scores(a, b, z, s);
  if (!direct) values(s.v, s.most, b.head_dim, z.v, kSpan, 0);
  span_softmax(b, z, s, slots, direct, fetch);
  span_sums(b, z, s, slots, direct, fetch);
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

// The vectors of a task; slots becomes the tree slots to hold for them, a multiple of 16.
inline Block block_of(const AttentionArgs& a, const AttentionTask& t, int& slots) {
  Block b{};
  b.n = t.n;
  b.head_dim = int(a.head_dim);
  b.words = int(a.words);
  b.prefix = a.prefix_lens[t.request];
  const int group = int(a.heads / a.kv_heads), first = a.row_offsets[t.request];
  int used = 0;
  for (int i = 0; i < b.n; ++i) {
    b.m[i] = -INFINITY;
    b.row[i] = first + (t.vec + i) / group;
    b.head[i] = int64_t(t.kv_head) * group + (t.vec + i) % group;
    b.limit[i] = a.mask ? b.prefix : b.prefix + int(b.row[i] - first) + 1;
    b.bits[i] = a.mask ? a.mask + b.row[i] * a.words : nullptr;
    for (int w = 0; a.mask && w < b.words; ++w)
      if (b.bits[i][w]) used = std::max(used, w * 64 + 64 - __builtin_clzll(uint64_t(b.bits[i][w])));
  }
  slots = (used + 15) / 16 * 16;
  return b;
}

template <class T> void attention_task(const AttentionArgs& a, const AttentionTask& t, float* partials) {
  int slots;
  Block b = block_of(a, t, slots);
  const int d = b.head_dim;
  Scratch& z = scratch_for(d, slots);
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
    p[0] = b.m[i];
    p[1] = b.l[i];
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
  team.each(int64_t(plan.tasks.size()), 1, [&](int64_t i) {
    with_type(a.kv_type,
              [&](auto* null) { attention_task<std::remove_pointer_t<decltype(null)>>(a, plan.tasks[i], partials); });
  });
  team.each(int64_t(plan.merges.size()), 1, [&](int64_t i) { merge_task(a, plan.merges[i], partials); });
}

}  // namespace SSD_ISA
}  // namespace ssd
