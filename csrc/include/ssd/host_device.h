// SSD_HD: functions that host and device share.
#pragma once

#if defined(__CUDACC__)
#define SSD_HD __host__ __device__ __forceinline__
#else
#define SSD_HD inline __attribute__((always_inline))
#endif
