// CPU registration of pack_linear, which packs plain weights or the blocks of a GGUF file into panels (ssd/packed.h).
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "check.h"
#include "cpu/kernels.h"

namespace {
using at::Tensor;
using ssd::Format, ssd::fp16, ssd::kPanel;

constexpr std::pair<const char*, Format> kFormats[] = {{"fp32", Format::fp32}, {"bf16", Format::bf16},
                                                       {"int8", Format::int8}, {"q8_0", Format::q8_0},
                                                       {"q4_0", Format::q4_0}, {"q4_1", Format::q4_1}};

// A block of up to 64 inputs of one output, its numbers as they are stored.
struct Block {
  fp16 d{}, m{};
  uint8_t q[64] = {};
};

// Bytes of a block in a file: d, then m if the format has one, then the numbers.
constexpr int block_bytes(Format f) { return group_bytes(f) / kPanel; }

Block read_block(const uint8_t* p, Format f) {
  Block b;
  std::memcpy(&b.d, p, 2), p += 2;
  if (f == Format::q4_1) std::memcpy(&b.m, p, 2), p += 2;
  std::memcpy(b.q, p, quant_bytes(f) / kPanel);
  return b;
}

// Quantises n inputs, rounding as ggml's reference implementation does; int8 divides by the scale as it is stored.
Block make_block(const float* w, int n, Format f) {
  float top = 0, low = w[0], high = w[0];
  for (int j = 0; j < n; ++j) {
    if (std::abs(w[j]) > std::abs(top)) top = w[j];
    low = std::min(low, w[j]), high = std::max(high, w[j]);
  }
  const float d = f == Format::q4_0 ? top / -8.f : f == Format::q4_1 ? (high - low) / 15.f : std::abs(top) / 127.f;
  const float inverse = d ? 1.f / d : 0.f;
  Block b{ssd::to_fp16(d), ssd::to_fp16(f == Format::q4_1 ? low : 0.f)};
  const float s = ssd::to_float(b.d);
  for (int j = 0; j < n; ++j) {
    if (f == Format::int8)
      b.q[j] = s > 0 ? uint8_t(int8_t(std::nearbyint(std::min(127.f, std::max(-127.f, w[j] / s))))) : 0;
    else if (f == Format::q8_0) b.q[j] = uint8_t(int8_t(std::round(w[j] * inverse)));
    else {
      const float x = f == Format::q4_0 ? w[j] * inverse + 8.5f : (w[j] - low) * inverse + 0.5f;
      b.q[j % 16] |= uint8_t(std::min(15, int(x))) << (j / 16 * 4);
    }
  }
  return b;
}

void store_block(const Block& b, int output, Format f, uint8_t* group) {
  for (int j = 0; j < quant_bytes(f) / kPanel; ++j) group[j / 4 * 64 + output * 4 + j % 4] = b.q[j];
  std::memcpy(group + quant_bytes(f) + 2 * output, &b.d, 2);
  if (f == Format::q4_1) std::memcpy(group + quant_bytes(f) + 2 * (kPanel + output), &b.m, 2);
}

bool finite(fp16 x) { return (x.bits & 0x7c00) != 0x7c00; }

// block(i, g): the block of output i and group g of its inputs.
template <class F> Tensor pack_groups(int64_t n, int64_t n_groups, Format f, F&& block) {
  Tensor out = at::zeros({ssd::panels(n), n_groups, group_bytes(f)}, at::kByte);
  uint8_t* o = out.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < n; ++i)
    for (int64_t g = 0; g < n_groups; ++g)
      store_block(block(i, g), int(i % kPanel), f, o + (i / kPanel * n_groups + g) * group_bytes(f));
  return out;
}

Tensor pack_blocks(const Tensor& blocks, c10::string_view name, Format f) {
  SSD_CHECK(blocks.dim() == 3 && blocks.is_contiguous() && quantised(f) && f != Format::int8 &&
                blocks.size(2) == block_bytes(f),
            "weight: got bytes of shape ", blocks.sizes(), " for format '", name,
            "', wanted contiguous blocks of 'q8_0' [N, K / 32, 34], 'q4_0' [N, K / 32, 18] or 'q4_1' [N, K / 32, 20]");
  const uint8_t* p = blocks.const_data_ptr<uint8_t>();
  return pack_groups(blocks.size(0), blocks.size(1), f, [&](int64_t i, int64_t g) {
    const Block b = read_block(p + (i * blocks.size(1) + g) * block_bytes(f), f);
    SSD_CHECK(finite(b.d) && finite(b.m), "weight: row ", i, " has a block with a scale that is not finite");
    return b;
  });
}

// The rows of the whole matrix matter on a GPU only, where they decide how K is split.
Tensor pack_linear(const Tensor& weight, c10::string_view name, std::optional<int64_t>) {
  const auto* found = std::find_if(std::begin(kFormats), std::end(kFormats), [&](auto& f) { return name == f.first; });
  SSD_CHECK(found != std::end(kFormats), "format: got '", name,
            "', wanted 'fp32', 'bf16', 'int8', 'q8_0', 'q4_0' or 'q4_1'");
  const Format f = found->second;
  if (weight.scalar_type() == at::kByte) return pack_blocks(weight, name, f);
  ssd::check_dense(weight, "weight", at::kFloat, 2);
  const int64_t n = weight.size(0), k = weight.size(1);
  const float* w = weight.const_data_ptr<float>();
  if (quantised(f))
    return pack_groups(n, groups(k, f), f, [&](int64_t i, int64_t g) {
      const int64_t k0 = g * group_of(f), k1 = std::min(k, k0 + group_of(f));
      const Block b = make_block(w + i * k + k0, int(k1 - k0), f);
      SSD_CHECK(finite(b.d) && finite(b.m), "weight: row ", i, " is too large for ", name, " with an fp16 scale");
      return b;
    });
  Tensor out = at::zeros({ssd::panels(n), k, kPanel}, f == Format::fp32 ? at::kFloat : at::kBFloat16);
  float* o32 = (float*)out.mutable_data_ptr();
  ssd::bf16* o16 = (ssd::bf16*)out.mutable_data_ptr();
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < k; ++j) {
      const int64_t at = (i / kPanel * k + j) * kPanel;
      if (f == Format::fp32) o32[at + i % kPanel] = w[i * k + j];
      else o16[at + i % 8 * 2 + i % kPanel / 8] = ssd::to_bf16(w[i * k + j]);
    }
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(ssd, CPU, m) { m.impl("pack_linear", pack_linear); }
