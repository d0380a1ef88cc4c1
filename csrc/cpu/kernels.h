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

struct ProbeReadArgs {  // result[rank] = XOR of the 8-byte words that the thread read
  const char* data;
  int64_t lines;  // of 64 bytes
  uint64_t* result;
};

struct ProbeFmaArgs {  // flops[rank]: operations done; result keeps them from being left out
  int64_t iterations;
  float* result;
  double* flops;
};

struct Kernels {
  const char* isa;
  void (*rms_norm)(const RmsNormArgs&, Team&);
  void (*probe_read)(const ProbeReadArgs&, Team&);
  void (*probe_fma)(const ProbeFmaArgs&, Team&);
};

extern const Kernels kernels_portable;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avx512;
#endif

const Kernels& kernels();
void set_isa(const char* name);  // "auto", "portable", "avx2", "avx512"; for tests: the bits are the same

}  // namespace ssd
