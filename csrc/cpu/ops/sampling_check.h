// Checks that the operators which draw tokens share.
#pragma once
#include "check.h"
#include "cpu/kernels.h"

namespace ssd {

inline void check_logits(const at::Tensor& logits, const char* name = "logits") {
  SSD_CHECK_TYPE(logits.scalar_type() == at::kFloat, name, ": got dtype ", logits.scalar_type(), ", wanted Float");
  SSD_CHECK(logits.dim() == 2, name, ": got ", logits.dim(), " dimensions, wanted 2");
  SSD_CHECK(logits.size(1) > 0 && logits.size(1) < (int64_t(1) << 31), name, ": got a vocabulary of ", logits.size(1),
            " tokens, wanted 1 to 2^31 - 1");
  SSD_CHECK(logits.stride(1) == 1 || logits.size(1) == 1, name, ": got strides ", logits.strides(),
            ", wanted each row contiguous");
}

inline void check_entries(const at::Tensor& t, const char* name, at::ScalarType dtype, int64_t n) {
  check_dense(t, name, dtype, 1);
  SSD_CHECK(t.size(0) == n, name, ": got ", t.size(0), " entries, wanted ", n);
}

// Raises an error that names the first entry of t which does not satisfy ok.
template <class T, class Ok> void check_values(const at::Tensor& t, const char* name, const char* wanted, Ok ok) {
  const T* p = t.const_data_ptr<T>();
  for (int64_t i = 0; i < t.size(0); ++i)
    SSD_CHECK(ok(p[i]), name, ": got ", p[i], " in entry ", i, ", wanted ", wanted);
}

inline bool is_index(int64_t i) { return i >= 0 && i < (int64_t(1) << 31); }

inline void check_positions(const at::Tensor& positions, int64_t n) {
  check_entries(positions, "positions", at::kLong, n);
  check_values<int64_t>(positions, "positions", "0 to 2^31 - 1", is_index);
}

inline SamplingParams filter_params(const at::Tensor& temperature, const at::Tensor& top_k, const at::Tensor& top_p,
                                    const at::Tensor& min_p, int64_t n) {
  check_entries(temperature, "temperature", at::kFloat, n);
  check_entries(top_k, "top_k", at::kInt, n);
  check_entries(top_p, "top_p", at::kFloat, n);
  check_entries(min_p, "min_p", at::kFloat, n);
  check_values<float>(temperature, "temperature", "a finite number from 0 up",
                      [](float t) { return t >= 0 && t <= 3e38f; });
  check_values<int32_t>(top_k, "top_k", "0 (off) or more", [](int32_t k) { return k >= 0; });
  check_values<float>(top_p, "top_p", "a number in (0, 1]", [](float p) { return p > 0 && p <= 1; });
  check_values<float>(min_p, "min_p", "a number in [0, 1]", [](float p) { return p >= 0 && p <= 1; });
  return {.temperature = temperature.const_data_ptr<float>(),
          .top_k = top_k.const_data_ptr<int32_t>(),
          .top_p = top_p.const_data_ptr<float>(),
          .min_p = min_p.const_data_ptr<float>(),
          .seeds = nullptr,
          .positions = nullptr};
}

inline SamplingParams sampling_params(const at::Tensor& temperature, const at::Tensor& top_k, const at::Tensor& top_p,
                                      const at::Tensor& min_p, const at::Tensor& seeds, const at::Tensor& positions,
                                      int64_t n) {
  SamplingParams params = filter_params(temperature, top_k, top_p, min_p, n);
  check_entries(seeds, "seeds", at::kLong, n);
  check_positions(positions, n);
  params.seeds = seeds.const_data_ptr<int64_t>(), params.positions = positions.const_data_ptr<int64_t>();
  return params;
}

// Raises if `result` is an error of row `row` instead of a token or a count.
inline void check_result(int64_t result, int64_t row) {
  SSD_CHECK(result != kNotFinite, "logits: got NaN or +inf in row ", row, ", wanted numbers or -inf");
  SSD_CHECK(result != kAllMasked, "logits: got nothing but -inf in row ", row, ", wanted at least one finite logit");
  SSD_CHECK(result != kNotNormal, "q: row ", row, " is not a distribution, wanted non-negative numbers that sum to 1");
  SSD_CHECK(result != kNotProposed, "q: got 0 in row ", row,
            " for a token proposed there, wanted the distribution that it was sampled from, ",
            "siblings being drawn without replacement");
}

}  // namespace ssd
