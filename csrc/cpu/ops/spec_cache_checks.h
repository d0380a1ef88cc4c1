// What the operators of the speculation cache check before they touch it.
#pragma once
#include <ATen/core/Tensor.h>
#include <ssd/spec_cache.h>

#include <cstring>
#include <optional>
#include <vector>

#include "check.h"

namespace ssd::spec {
using at::Tensor;
using OptTensor = std::optional<Tensor>;

inline SpecSizes sizes_of(at::IntArrayRef s) {
  SSD_CHECK(s.size() == kSpecSizes, "sizes: got ", s.size(), " numbers, wanted ", kSpecSizes);
  SpecSizes d{s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8]};
  auto within = [](int64_t v, int64_t low, int64_t high, const char* name) {
    SSD_CHECK(v >= low && v <= high, name, ": got ", v, ", wanted ", low, " to ", high);
  };
  within(d.slots, 1, 4096, "slots");
  within(d.branches, 1, 4096, "branches");
  within(d.nodes, 1, 63, "nodes");
  within(d.fan_out, 0, 4096, "fan_out");
  within(d.log, 1, 1 << 26, "log");
  within(d.vocab, 1, INT32_MAX, "vocab");
  within(d.feature_words, 0, 1 << 20, "feature_words");
  within(d.feature_window, d.feature_words ? 1 : 0, d.log, "feature_window");
  within(d.q_width, 0, 1 << 20, "q_width");
  return d;
}

inline std::vector<int64_t> layout(at::IntArrayRef sizes) {
  int64_t offsets[kSpecSections + 1];
  spec_layout(sizes_of(sizes), offsets);
  return {offsets, offsets + kSpecSections + 1};
}

inline void check_block(const Tensor& cache) {
  check_dense(cache, "cache", at::kByte, 1);
  SSD_CHECK(reinterpret_cast<uintptr_t>(cache.const_data_ptr()) % 64 == 0,
            "cache: got an unaligned block, wanted one aligned to 64 bytes");
}

inline SpecCache open(const Tensor& cache) {
  check_block(cache);
  void* base = const_cast<void*>(cache.const_data_ptr());
  const int64_t* header = static_cast<const int64_t*>(base);
  SSD_CHECK(cache.numel() >= 128 && header[0] == kSpecMagic,
            "cache: got an uninitialised block, wanted one that spec_cache_reset set up");
  return {base, sizes_of({header + 1, kSpecSizes})};
}

inline int64_t check_slots(const SpecCache& c, const Tensor& slots) {
  check_dense(slots, "slots", at::kLong, 1);
  const int64_t* s = slots.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < slots.numel(); ++i)
    SSD_CHECK(s[i] >= 0 && s[i] < c.d.slots, "slots: got ", s[i], ", wanted 0 to ", c.d.slots - 1);
  return slots.numel();
}
inline void check_slot(const SpecCache& c, int64_t slot) {
  SSD_CHECK(slot >= 0 && slot < c.d.slots, "slot: got ", slot, ", wanted 0 to ", c.d.slots - 1);
}

template <class T>
const T* in(const Tensor& t, const char* name, at::IntArrayRef shape) {
  check_dense(t, name, c10::CppTypeToScalarType<T>::value, int64_t(shape.size()));
  SSD_CHECK(t.sizes() == shape, name, ": got shape ", t.sizes(), ", wanted ", shape);
  return t.const_data_ptr<T>();
}
template <class T>
const T* in(const OptTensor& t, const char* name, at::IntArrayRef shape) {
  return t ? in<T>(*t, name, shape) : nullptr;
}
template <class T>
T* out(const Tensor& t, const char* name, at::IntArrayRef shape) {
  return const_cast<T*>(in<T>(t, name, shape));
}

inline void check_ids(const SpecCache& c, const int64_t* ids, int64_t n, const char* name) {
  for (int64_t i = 0; i < n; ++i)
    SSD_CHECK(ids[i] >= 0 && ids[i] < c.d.vocab, name, ": got id ", ids[i], ", wanted 0 to ", c.d.vocab - 1);
}

// Rows of features for the last of n tokens, in any dtype that has the right row size.
inline const uint64_t* check_features(const SpecCache& c, const OptTensor& features, int64_t n, int64_t* rows) {
  *rows = 0;
  if (!features) return nullptr;
  SSD_CHECK(features->dim() == 2 && features->is_contiguous(), "features: got shape ", features->sizes(),
            " with strides ", features->strides(), ", wanted a contiguous [rows, hidden]");
  const int64_t bytes = features->size(1) * features->element_size();
  SSD_CHECK(c.d.feature_words && bytes == 8 * c.d.feature_words, "features: got rows of ", bytes, " bytes, wanted ",
            8 * c.d.feature_words);
  *rows = features->size(0);
  SSD_CHECK(*rows <= n, "features: got ", *rows, " rows, wanted at most one for each of ", n, " tokens");
  const void* data = features->const_data_ptr();
  SSD_CHECK(reinterpret_cast<uintptr_t>(data) % 8 == 0, "features: got unaligned rows, wanted rows aligned to 8 bytes");
  return static_cast<const uint64_t*>(data);
}

inline void check_room(const SpecCache& c, int64_t slot, int64_t held, int64_t n, const char* name) {
  SSD_CHECK(held + n <= c.d.log, name, ": got ", n, " tokens, wanted at most ", c.d.log - held,
            " more in the log of slot ", slot);
}

}  // namespace ssd::spec
