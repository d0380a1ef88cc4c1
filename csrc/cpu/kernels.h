// The table of CPU kernels: one per ISA, chosen once by what the CPU has.
// Every entry is SPMD: all threads of a team call it with the same arguments.
#pragma once
#include <cstdint>

#include "pool.h"
#include "types.h"

namespace ssd {

struct RmsNormArgs {  // y = (x + residual) / rms(x + residual) * weight; sum = x + residual
  const float* x;         // [rows, n]
  const float* residual;  // [rows, n] or null
  const float* weight;    // [n]
  float* y;               // [rows, n]
  float* sum;             // [rows, n] or null
  int64_t rows, n;
  float eps;
};

struct SamplingParams {  // one entry a row, or a request
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const int64_t* seeds;
  const int64_t* positions;  // index in the sequence of the token being drawn
};
// Errors, in place of a token or a count: NaN or +inf among the logits; nothing but -inf; a row of q that is no
// distribution; a proposed token to which q gives no probability.
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
  const int64_t* exclude;     // [rows, excluded] of target ids, -1 for none
  int64_t excluded, f;
  uint32_t purpose;
  int64_t* ids;   // [rows, f], best first, then -1
  float* scores;  // [rows, f]
};

struct ProbsArgs {
  const float* logits;  // [rows, vocab], rows `stride` apart
  int64_t stride, rows, vocab;
  SamplingParams params;  // seeds and positions are not read
  float* probs;           // [rows, vocab]; an error is in the first of a row
};

struct VerifyArgs {
  const float* logits;  // [rows, vocab], rows `stride` apart: of each request the root, then its nodes
  int64_t stride, vocab;
  const int32_t* row_offsets;  // [batch + 1]
  const int32_t* tokens;       // [batch, nodes]
  const int8_t* parents;       // [batch, nodes], -1 the root
  int64_t batch, nodes;
  SamplingParams params;  // one entry a request; position: of the token drawn at the root
  const int8_t* kinds;    // [batch], or null for the coupled rule
  const float* q;         // [rows, vocab], rows `q_stride` apart, or null
  int64_t q_stride;
  int8_t* path;       // [batch, nodes]: accepted nodes, then -1
  int64_t* emitted;   // [batch, nodes + 1]: their tokens, the bonus token, then -1; the row of an error first
  float* logprobs;    // [batch, nodes + 1] or null
  int32_t* accepted;  // [batch]: how many, or an error
};

struct NoiseArgs {  // the words behind the noise
  const int64_t* seeds;      // [rows]
  const int64_t* positions;  // [rows]
  int64_t rows, ids;
  uint32_t purpose;
  int64_t* words;  // [rows, ids]
};

struct Kernels {
  const char* isa;
  void (*rms_norm)(const RmsNormArgs&, Team&);
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
