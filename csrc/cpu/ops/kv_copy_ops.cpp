// CPU form and registration of kv_copy. Threads share out the layers; all sources of a layer are read before any target
// is written.
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "check.h"
#include "cpu/pool.h"

namespace {
using at::Tensor;

constexpr int64_t kAlone = 1 << 18;  // bytes that one thread copies in the time that waking others takes

void kv_copy(const Tensor& k, const Tensor& v, const Tensor& sources, const Tensor& targets) {
  SSD_CHECK(k.dim() == 5, "k_cache: got shape ", k.sizes(), ", wanted [layers, pages, page_size, Hkv, D]");
  SSD_CHECK(v.sizes() == k.sizes(), "v_cache: got shape ", v.sizes(), ", wanted that of k_cache, ", k.sizes());
  SSD_CHECK_TYPE(v.scalar_type() == k.scalar_type(), "v_cache: got dtype ", v.scalar_type(),
                 ", wanted that of k_cache, ", k.scalar_type());
  SSD_CHECK(k.is_contiguous(), "k_cache: got strides ", k.strides(), ", wanted a contiguous tensor");
  SSD_CHECK(v.is_contiguous(), "v_cache: got strides ", v.strides(), ", wanted a contiguous tensor");
  ssd::check_dense(sources, "sources", at::kLong, 1);
  ssd::check_dense(targets, "targets", at::kLong, 1);
  const int64_t count = sources.size(0), slots = k.size(1) * k.size(2), layers = k.size(0);
  SSD_CHECK(targets.size(0) == count, "targets: got ", targets.size(0), " elements, wanted ", count);
  const int64_t *from = sources.const_data_ptr<int64_t>(), *to = targets.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    SSD_CHECK(from[i] < slots, "sources: got ", from[i], " at ", i, ", wanted at most ", slots - 1);
    SSD_CHECK(to[i] < slots, "targets: got ", to[i], " at ", i, ", wanted at most ", slots - 1);
  }
  std::vector<int64_t> written;
  for (int64_t i = 0; i < count; ++i)
    if (from[i] >= 0 && to[i] >= 0) written.push_back(to[i]);
  std::sort(written.begin(), written.end());
  const auto twice = std::adjacent_find(written.begin(), written.end());
  SSD_CHECK(twice == written.end(), "targets: got slot ", *twice, " twice, wanted each at most once");
  const size_t bytes = k.size(3) * k.size(4) * k.element_size();
  char *keys = static_cast<char*>(k.mutable_data_ptr()), *values = static_cast<char*>(v.mutable_data_ptr());
  ssd::pool().run(
      [=](ssd::Team& team) {
        team.share(2 * layers, ssd::items_of(2 * count * bytes), [&](int64_t first, int64_t last) {
          std::vector<char> held(count * bytes);
          for (int64_t n = first; n < last; ++n) {
            char* p = (n % 2 ? values : keys) + n / 2 * slots * bytes;
            for (int64_t i = 0; i < count; ++i)
              if (from[i] >= 0 && to[i] >= 0) std::memcpy(&held[i * bytes], p + from[i] * bytes, bytes);
            for (int64_t i = 0; i < count; ++i)
              if (from[i] >= 0 && to[i] >= 0) std::memcpy(p + to[i] * bytes, &held[i * bytes], bytes);
          }
        });
      },
      2 * layers * int64_t(count * bytes) > kAlone ? 2 * layers : 1);
}

}  // namespace

TORCH_LIBRARY_IMPL(ssd, CPU, m) { m.impl("kv_copy", kv_copy); }
