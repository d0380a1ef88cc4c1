// CUDA registration: checks, outputs, launches.
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include "check.h"
#include "launch.cuh"

namespace {
using at::Tensor;
using OptTensor = std::optional<Tensor>;
using namespace ssd::gpu;

cudaStream_t stream_of(const Tensor& t) {
  c10::impl::VirtualGuardImpl guard(at::kCUDA);
  return static_cast<cudaStream_t>(guard.getStream(t.device()).native_handle());
}
void check_device(const Tensor& t, const char* name, const Tensor& like) {
  SSD_CHECK(t.device() == like.device(), name, ": got device ", t.device(), ", wanted ", like.device());
}
void check_shape(const Tensor& t, const char* name, at::IntArrayRef shape) {
  SSD_CHECK(t.sizes() == shape, name, ": got shape ", t.sizes(), ", wanted ", shape);
}
template <class T>
T* dense(const Tensor& t, const char* name, const Tensor& like, at::IntArrayRef shape) {
  ssd::check_dense(t, name, c10::CppTypeToScalarType<T>::value, int64_t(shape.size()));
  check_device(t, name, like);
  check_shape(t, name, shape);
  return const_cast<T*>(t.const_data_ptr<T>());
}

using Outcome = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Outcome verify_swap(const Tensor& cache, at::IntArrayRef sizes, const Tensor& slots, const Tensor& sampled,
                    const Tensor& ids, const Tensor& parents, const Tensor& positions, const Tensor& kv_slots,
                    const Tensor& mask, const Tensor& prefix_lens, const Tensor& page_table, int64_t page_size,
                    const Tensor& capacity, const OptTensor& features) {
  SSD_CHECK(sizes.size() == ssd::kSpecSizes, "sizes: got ", sizes.size(), " numbers, wanted ", ssd::kSpecSizes);
  SSD_CHECK(page_table.dim() == 2, "page_table: got ", page_table.dim(), " dimensions, wanted 2");
  SSD_CHECK(page_size > 0, "page_size: got ", page_size, ", wanted 1 or more");
  VerifySwapArgs a{};
  a.sizes = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], sizes[7], sizes[8]};
  int64_t offsets[ssd::kSpecSections + 1];
  ssd::spec_layout(a.sizes, offsets);
  const int64_t B = slots.numel(), width = a.sizes.nodes + 1;
  a.cache = dense<uint8_t>(cache, "cache", slots, {offsets[ssd::kSpecSections]});
  SSD_CHECK(reinterpret_cast<uintptr_t>(a.cache) % 64 == 0,
            "cache: got an unaligned block, wanted one aligned to 64 bytes");
  a.slots = dense<int64_t>(slots, "slots", slots, {B});
  a.sampled = dense<int64_t>(sampled, "sampled", slots, {B, width});
  a.ids = dense<int64_t>(ids, "ids", slots, {B, width});
  a.parents = dense<int32_t>(parents, "parents", slots, {B, width});
  a.positions = dense<int32_t>(positions, "positions", slots, {B, width});
  a.kv_slots = dense<int64_t>(kv_slots, "kv_slots", slots, {B, width});
  a.mask = dense<int64_t>(mask, "mask", slots, {B, width});
  a.prefix_lens = dense<int32_t>(prefix_lens, "prefix_lens", slots, {B});
  a.page_table = dense<int32_t>(page_table, "page_table", slots, {B, page_table.size(1)});
  a.table_row = page_table.size(1), a.page_size = page_size;
  a.capacity = dense<int32_t>(capacity, "capacity", slots, {B});
  if (features) {
    SSD_CHECK(features->dim() == 3 && features->is_contiguous() && features->size(0) == B &&
                  features->size(1) == width &&
                  features->size(2) * features->element_size() == 8 * a.sizes.feature_words,
              "features: got shape ", features->sizes(), ", wanted a contiguous [", B, ", ", width, ", ",
              8 * a.sizes.feature_words, " bytes]");
    check_device(*features, "features", slots);
    a.features = static_cast<const uint64_t*>(features->const_data_ptr());
  }
  const c10::DeviceGuard guard(slots.device());
  const auto narrow = slots.options().dtype(at::kInt);
  auto row = [&] { return at::empty({B}, narrow); };
  auto wide = [&] { return at::empty({B, width}, slots.options()); };
  Outcome o{row(), wide(), row(), row(), row(), row(), wide(), wide()};
  a.count = std::get<0>(o).mutable_data_ptr<int32_t>(), a.confirmed = std::get<1>(o).mutable_data_ptr<int64_t>();
  a.accepted = std::get<2>(o).mutable_data_ptr<int32_t>(), a.branch = std::get<3>(o).mutable_data_ptr<int32_t>();
  a.taken = std::get<4>(o).mutable_data_ptr<int32_t>(), a.kind = std::get<5>(o).mutable_data_ptr<int32_t>();
  a.sources = std::get<6>(o).mutable_data_ptr<int64_t>(), a.targets = std::get<7>(o).mutable_data_ptr<int64_t>();
  const cudaError_t status = launch_verify_swap(a, B, stream_of(slots));
  TORCH_CHECK(status == cudaSuccess, "verify_swap: the launch failed, ", cudaGetErrorString(status));
  return o;
}

}  // namespace

TORCH_LIBRARY_IMPL(ssd, CUDA, m) { m.impl("verify_swap", verify_swap); }
