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
constexpr int64_t kNotFinite = -1, kAllMasked = -2;  // in place of a token: NaN or +inf logits; only -inf

struct SampleArgs {
  const float* logits;  // [rows, vocab], rows `stride` apart
  int64_t stride, rows, vocab;
  SamplingParams params;
  int64_t* tokens;  // [rows]
  float* logprobs;  // [rows] or null
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
  void (*noise)(const NoiseArgs&, Team&);
};

extern const Kernels kernels_portable;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avx512;
#endif

const Kernels& kernels();
void set_isa(const char* name);  // "auto", "portable", "avx2", "avx512"; for tests: the bits are the same

}  // namespace ssd
