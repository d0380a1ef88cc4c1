#include "simd/std.h"
#define SSD_ISA portable
#include "kernels.inl"
