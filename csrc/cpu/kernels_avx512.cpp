#include "simd/std.h"
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 finds fault with its own intrinsics
#define SSD_ISA avx512
#define SSD_AVX512 1
#include "kernels.inl"
#endif
