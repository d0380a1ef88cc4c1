// The tables of CPU kernels, one per instruction set; the best that the CPU supports is chosen once. All threads of
// a team call an entry with the same arguments, a late one when the work is done: an entry reads what is behind
// pointers only within the items that the team shares.
#pragma once
#include <cstdint>
#include <vector>

#include "pool.h"
#include "simd/types.h"
#include "ssd/attention.h"
#include "ssd/packed.h"

namespace ssd {

struct RmsNormArgs {  // y = (x + residual) / rms(x + residual) * weight; sum = x + residual
  const float* x;  // [rows, n]
  const float* residual;  // [rows, n] or null
  const float* weight;  // [n]
  float* y;  // [rows, n], rows y_stride apart
  float* sum;  // [rows, n] or null
  int64_t rows, n, y_stride;
  float eps;
};

constexpr int64_t kProbeLines = 1 << 14;  // of a part

struct ProbeReadArgs {  // result[i]: XOR of the 8-byte words of part i
  const char* data;
  int64_t lines;  // of 64 bytes
  uint64_t* result;
  int64_t parts() const { return (lines + kProbeLines - 1) / kProbeLines; }
};

struct ProbeFmaArgs {  // flops[i]: operations of part i; result keeps the compiler from removing them
  int64_t iterations, parts;
  float* result;
  double* flops;
};

struct RowGroup {  // inputs of a row in int8 that share a scale
  float scale, moment;  // moment: scale times the sum of the integers
  int32_t base;  // their sum times -128, or -8 for q4_0, 0 for q4_1
};

struct LinearArgs {  // y = x W^T (+ bias) (+ residual); swiglu: silu(gate) * up, y of n / 2 columns
  const float* x;  // [rows, k]
  const void* w;  // packed, see ssd/packed.h
  const float* bias;  // [n] or null
  const float* residual;  // like y, or null
  float* y;  // [rows, n] or [rows, n / 2]
  int8_t* xq;  // scratch of quantised weights: [rows, padded(k)]
  RowGroup* xs;  // the same: [rows, groups]
  int64_t rows, n, k;
  Format format;
  bool swiglu;
};

enum class Type { f32, bf16, f16 };

// Rows of many requests over a paged cache, see attention.h. Strides count elements; the last one is 1.
struct AttentionArgs {
  const void *q, *k, *v;  // q [R, Hq, D]; k, v [pages, page_size, Hkv, D]
  void* out;  // [R, Hq, D], contiguous, of q's type
  float* lse;  // [R, Hq] or null
  const int32_t* page_table;  // [B, pages_per_request]
  const int32_t *prefix_lens, *row_offsets;  // [B], [B + 1]
  const int64_t* mask;  // [R, words] or null: causal
  int64_t q_row, q_head, k_page, k_slot, k_head, v_page, v_slot, v_head, table_row;
  int64_t requests, heads, kv_heads, head_dim, page_size, words;
  Type q_type, kv_type;
  float scale, softcap;
};

constexpr int kBlock = 64;  // vectors of a task at most

// How one pass over the cache is cut. A plan serves all layers.
// Vector v of a KV head is row v / group of its request and query head v % group of that KV head.
struct AttentionTask {
  int32_t request, kv_head, vec, n, span, spans;
  int64_t partial;
};
struct AttentionPlan {
  std::vector<AttentionTask> tasks;  // one pass over `spans` spans from `span` on
  std::vector<AttentionTask> merges;  // ordered merges of split passes
  int64_t partials = 0;  // vectors of head_dim + 2 floats
};
AttentionPlan plan_attention(const AttentionArgs&, int threads);

struct RopeArgs {
  const float *qkv, *cos, *sin;  // [R, (Hq + 2 Hkv) D]; [positions, D / 2]
  const int32_t* positions;  // [R]
  const int64_t* slots;  // [R], page * page_size + offset, or -1: not stored
  float* q;  // [R, Hq, D]
  void *k, *v;  // [pages, page_size, Hkv, D], strides in elements
  int64_t k_page, k_slot, k_head, v_page, v_slot, v_head;
  int64_t rows, heads, kv_heads, head_dim, page_size;
  Type kv_type;
  const float *q_norm, *k_norm;  // [D]: weights of the RMSNorm that each head passes before its rotation, or null
  float eps;
};
constexpr int kMaxNormedHead = 256;  // largest head_dim with these norms

struct SamplingParams {  // one entry per row or per request
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const int64_t* seeds;
  const int64_t* positions;  // index in the sequence of the token being drawn
};
// Errors that take the place of a token or a count: NaN or +inf among the logits; nothing but -inf; a row of q that is
// not a distribution; a proposed token to which q gives no probability.
constexpr int64_t kNotFinite = -2, kAllMasked = -3, kNotNormal = -4, kNotProposed = -5;

struct SampleArgs {
  const float* logits;  // [rows, vocab], rows `stride` apart
  int64_t stride, rows, vocab;
  SamplingParams params;
  int64_t* tokens;  // [rows]
  float* logprobs;  // [rows] or null
};

struct TopFArgs {
  const float* logits;  // [rows, vocab], rows `stride` apart
  int64_t stride, rows, vocab;
  SamplingParams params;
  const int64_t* target_ids;  // [vocab] or null: ids are the target's
  const int64_t* exclude;  // [rows, excluded] of target ids, -1 for none
  int64_t excluded, f;
  uint32_t purpose;
  int64_t* ids;  // [rows, f], best first, then -1
  float* scores;  // [rows, f]
};

struct ProbsArgs {
  const float* logits;  // [rows, vocab], rows `stride` apart
  int64_t stride, rows, vocab;
  SamplingParams params;  // seeds and positions are not read
  float* probs;  // [rows, vocab]; an error takes the first element of its row
};

struct VerifyArgs {
  const float* logits;  // [rows, vocab], rows `stride` apart: each request's root, then its nodes
  int64_t stride, vocab;
  const int32_t* row_offsets;  // [batch + 1]
  const int32_t* tokens;  // [batch, nodes]
  const int8_t* parents;  // [batch, nodes], -1 the root
  int64_t batch, nodes;
  SamplingParams params;  // one entry per request; its position is that of the token drawn at the root
  const int8_t* kinds;  // [batch], or null for the coupled rule
  const float* q;  // [rows, vocab], rows `q_stride` apart, or null
  int64_t q_stride;
  int8_t* path;  // [batch, nodes]: accepted nodes, then -1
  int64_t* emitted;  // [batch, nodes + 1]: their tokens, the bonus token, then -1; or an error's row, first
  float* logprobs;  // [batch, nodes + 1] or null
  int32_t* accepted;  // [batch]: how many, or an error
};

struct NoiseArgs {  // the random words behind the noise
  const int64_t* seeds;  // [rows]
  const int64_t* positions;  // [rows]
  int64_t rows, ids;
  uint32_t purpose;
  int64_t* words;  // [rows, ids]
};

struct Kernels {
  const char* isa;
  void (*rope_append)(const RopeArgs&, Team&);
  void (*attention)(const AttentionArgs&, const AttentionPlan&, float* partials, Team&);
  void (*linear)(const LinearArgs&, Team&);
  void (*rms_norm)(const RmsNormArgs&, Team&);
  void (*probe_read)(const ProbeReadArgs&, Team&);
  void (*probe_fma)(const ProbeFmaArgs&, Team&);
  void (*sample)(const SampleArgs&, Team&);
  void (*top_f)(const TopFArgs&, Team&);
  void (*probs)(const ProbsArgs&, Team&);
  void (*verify)(const VerifyArgs&, Team&);
  void (*noise)(const NoiseArgs&, Team&);
};

extern const Kernels kernels_portable;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avx512;
#endif

const Kernels& kernels();
void set_isa(const char* name);  // "auto", "portable", "avx2", "avx512"; for tests: the bits are the same

}  // namespace ssd
