// Storage types of the CPU kernels and their conversions, which round to nearest even.
#pragma once
#include <cstdint>
#include <cstring>

namespace ssd {

struct bf16 { uint16_t bits; };
struct fp16 { uint16_t bits; };

inline uint32_t to_bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}
inline float from_bits(uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return from_bits(uint32_t(x.bits) << 16); }
inline float to_float(fp16 x) {
  uint32_t sign = uint32_t(x.bits & 0x8000) << 16, e = x.bits >> 10 & 31, m = x.bits & 0x3ff;
  if (e == 31) return from_bits(sign | 0x7f800000 | m << 13 | (m ? 0x400000 : 0));
  if (e) return from_bits(sign | (e + 112) << 23 | m << 13);
  float v = float(m) * from_bits(0x33800000);  // m * 2^-24
  return sign ? -v : v;
}
inline bf16 to_bf16(float x) {
  uint32_t u = to_bits(x);
  if (x != x) return {0x7fc0};
  return {uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
inline fp16 to_fp16(float x) {
  uint32_t u = to_bits(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
  if (a > 0x7f800000) return {uint16_t(sign | 0x7e00 | (a >> 13 & 0x3ff))};
  if (a >= 0x477ff000) return {uint16_t(sign | 0x7c00)};  // rounds to infinity
  if (a < 0x38800000) {                                    // subnormal half: add 0.5 so that its ulp is 2^-24
    float v = from_bits(a) + 0.5f;
    return {uint16_t(sign | (to_bits(v) - 0x3f000000))};
  }
  return {uint16_t(sign | ((a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13))};
}

}  // namespace ssd
