// The noise of sampling: Philox4x32-10 (Salmon et al., SC 2011), a function of seed, position, token id and purpose.
//
// key = the 64-bit seed, counter = (position, token div 4, purpose, 0), word token mod 4.
// Plain header: for C++ and CUDA.
#pragma once
#include <cmath>
#include <cstdint>

#include "host_device.h"

namespace ssd {

// What a number is drawn for. Numbers of different purposes are independent.
enum Purpose : uint32_t {
  kCoupled = 0,   // the target's token, and the draft's in coupled mode
  kAccept = 1,    // rejection sampling: the uniform that accepts child number `token`
  kResidual = 2,  // rejection sampling: the token drawn from the residual
  kProposal = 3,  // rejection sampling: the draft's own tokens
};

constexpr uint32_t kPhiloxM0 = 0xD2511F53u, kPhiloxM1 = 0xCD9E8D57u;  // multipliers
constexpr uint32_t kPhiloxW0 = 0x9E3779B9u, kPhiloxW1 = 0xBB67AE85u;  // added to the key after every round
constexpr float kMaxUniform = 0x1.fffffep-1f;                         // 1 - 2^-24: a greater number would round to 1

struct Words4 { uint32_t w[4]; };

SSD_HD Words4 philox4x32_10(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    uint64_t a = uint64_t(kPhiloxM0) * c0, b = uint64_t(kPhiloxM1) * c2;
    c0 = uint32_t(b >> 32) ^ c1 ^ k0, c1 = uint32_t(b);
    c2 = uint32_t(a >> 32) ^ c3 ^ k1, c3 = uint32_t(a);
    k0 += kPhiloxW0, k1 += kPhiloxW1;
  }
  return {{c0, c1, c2, c3}};
}

SSD_HD uint32_t noise_word(uint64_t seed, uint32_t position, uint32_t token, uint32_t purpose) {
  return philox4x32_10(position, token / 4, purpose, 0, uint32_t(seed), uint32_t(seed >> 32)).w[token % 4];
}

// A number in (0, 1), finest near 0. Every operation rounds to float32, so that all backends agree.
SSD_HD float open_uniform(uint32_t word) {
  float w = (float(word) + 0.5f) * 0x1p-32f;
  return w < kMaxUniform ? w : kMaxUniform;
}

// Exponential with mean 1, from 1.2e-10 to 16.7. argmax over v of log p(v) - log E(v) has distribution p.
SSD_HD float exponential(uint32_t word) { return -std::log1p(-open_uniform(word)); }

}  // namespace ssd
