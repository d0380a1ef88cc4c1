#include "simd/std.h"
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,lzcnt,popcnt")
#define SSD_ISA avx2
#define SSD_AVX2 1
#include "kernels.inl"
#endif
