// CUDA registration: checks, outputs, launches.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
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
void check_launch(cudaError_t status, const char* kernel) {
  TORCH_CHECK(status == cudaSuccess, kernel, ": the launch failed, ", cudaGetErrorString(status));
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

// Rows of head_dim elements are copied 16 bytes at a time, so they have to start at multiples of 16 bytes.
void check_rows(const Tensor& t, const char* name) {
  const int64_t unit = 16 / t.element_size();
  bool aligned = t.stride(-1) == 1 && reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
  for (int64_t i = 0; i + 1 < t.dim(); ++i) aligned = aligned && (t.stride(i) % unit == 0 || t.size(i) == 1);
  SSD_CHECK(aligned, name, ": got strides ", t.strides(), ", wanted a last stride of 1 and rows aligned to 16 bytes");
}

CacheView view(const Tensor& t, const char* name, const Tensor& q, at::ScalarType dtype, at::IntArrayRef shape) {
  SSD_CHECK_TYPE(t.scalar_type() == dtype, name, ": got dtype ", t.scalar_type(), ", wanted ", dtype);
  check_device(t, name, q);
  check_shape(t, name, shape);
  check_rows(t, name);
  return {static_cast<const uint16_t*>(t.const_data_ptr()), t.stride(0), t.stride(1), t.stride(2)};
}

std::tuple<Tensor, Tensor> tree_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& page_table,
                                          const Tensor& prefix_lens, const Tensor& row_offsets, const OptTensor& mask,
                                          double scale, double softcap, bool return_lse) {
  SSD_CHECK(q.dim() == 3, "q: got ", q.dim(), " dimensions, wanted 3");
  SSD_CHECK(k.dim() == 4, "k_cache: got ", k.dim(), " dimensions, wanted 4");
  const int64_t R = q.size(0), Hq = q.size(1), D = q.size(2), Hkv = k.size(2), B = prefix_lens.numel();
  const auto dtype = k.scalar_type();
  SSD_CHECK_TYPE(dtype == at::kBFloat16 || dtype == at::kHalf, "k_cache: got dtype ", dtype,
                 ", wanted bfloat16 or float16: the tensor-core kernels have no float32 form");
  SSD_CHECK_TYPE(q.scalar_type() == dtype || q.scalar_type() == at::kFloat, "q: got dtype ", q.scalar_type(),
                 ", wanted float32 or ", dtype);
  SSD_CHECK(attention_has(D), "q: got head_dim ", D, ", wanted 64, 80, 96, 128 or 256");
  SSD_CHECK(Hkv > 0 && Hq % Hkv == 0, "q: got ", Hq, " heads, wanted a multiple of the ", Hkv, " of k_cache");
  SSD_CHECK(k.size(1) > 0 && k.size(3) == D, "k_cache: got shape ", k.sizes(), ", wanted [pages, page_size, Hkv, ", D,
            "]");
  SSD_CHECK(softcap >= 0, "softcap: got ", softcap, ", wanted 0 or more");
  SSD_CHECK(page_table.dim() == 2, "page_table: got ", page_table.dim(), " dimensions, wanted 2");
  check_rows(q, "q");

  AttentionArgs a{};
  a.q = q.const_data_ptr(), a.q_row = q.stride(0), a.q_head = q.stride(1), a.q_float = q.scalar_type() == at::kFloat;
  a.k = view(k, "k_cache", q, dtype, k.sizes()), a.v = view(v, "v_cache", q, dtype, k.sizes());
  a.page_table = dense<int32_t>(page_table, "page_table", q, {B, page_table.size(1)});
  a.table_row = page_table.size(1);
  a.prefix_lens = dense<int32_t>(prefix_lens, "prefix_lens", q, {B});
  a.row_offsets = dense<int32_t>(row_offsets, "row_offsets", q, {B + 1});
  if (mask) {
    SSD_CHECK(mask->dim() == 2 && mask->size(1) >= 1 && mask->size(1) <= 8, "mask: got shape ", mask->sizes(),
              ", wanted [", R, ", 1 to 8]");
    a.mask = dense<int64_t>(*mask, "mask", q, {R, mask->size(1)});
    a.mask_row = mask->size(1), a.words = int(mask->size(1));
  }
  SSD_CHECK(R * Hq < INT32_MAX && page_table.size(1) * k.size(1) < INT32_MAX, "q: got ", R, " rows of ", Hq,
            " heads and a page table of ", page_table.size(1) * k.size(1), " tokens, wanted fewer than 2^31 of each");
  a.requests = int(B), a.rows = int(R), a.q_heads = int(Hq), a.kv_heads = int(Hkv);
  a.page_size = int(k.size(1)), a.table_len = int(page_table.size(1));

  const c10::DeviceGuard guard(q.device());
  Tensor out = at::empty(q.sizes(), q.options());
  Tensor lse = at::empty({return_lse ? R : 0, Hq}, q.options().dtype(at::kFloat));
  a.out = out.mutable_data_ptr(), a.lse = return_lse ? lse.mutable_data_ptr<float>() : nullptr;
  const AttentionPlan plan = plan_attention(a, D);
  finish_args(a, plan, float(scale), float(softcap));
  const int64_t parts = attention_parts(a) * R * Hq;
  const Tensor part = at::empty({parts, D}, lse.options()), part_ml = at::empty({parts, 2}, lse.options());
  a.part = part.mutable_data_ptr<float>(), a.part_ml = reinterpret_cast<float2*>(part_ml.mutable_data_ptr<float>());
  const auto launch = dtype == at::kBFloat16 ? launch_attention_bf16 : launch_attention_fp16;
  check_launch(launch(a, plan, D, stream_of(q)), "tree_attention");
  return {out, lse};
}

void kv_copy(const Tensor& k, const Tensor& v, const Tensor& sources, const Tensor& targets) {
  SSD_CHECK(k.dim() == 5 && k.is_contiguous(), "k_cache: got shape ", k.sizes(), " with strides ", k.strides(),
            ", wanted a contiguous [layers, pages, page_size, kv heads, head_dim]");
  SSD_CHECK(v.is_contiguous(), "v_cache: got strides ", v.strides(), ", wanted a contiguous tensor");
  SSD_CHECK_TYPE(v.scalar_type() == k.scalar_type(), "v_cache: got dtype ", v.scalar_type(), ", wanted ",
                 k.scalar_type());
  check_shape(v, "v_cache", k.sizes());
  check_device(v, "v_cache", k);
  SSD_CHECK(sources.numel() <= kMaxMoves, "sources: got ", sources.numel(), " moves, wanted at most ", kMaxMoves,
            " in one call");
  const int64_t bytes = k.size(3) * k.size(4) * k.element_size(), n = sources.numel();
  auto aligned = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0; };
  SSD_CHECK(bytes % 16 == 0 && aligned(k) && aligned(v), "k_cache: got ", bytes,
            " bytes a slot, wanted a multiple of 16 and both caches aligned to 16 bytes");
  KvCopyArgs a{.k = static_cast<uint4*>(k.mutable_data_ptr()),
               .v = static_cast<uint4*>(v.mutable_data_ptr()),
               .layer = k.stride(0) * k.element_size() / 16,
               .units = bytes / 16,
               .sources = dense<int64_t>(sources, "sources", k, {n}),
               .targets = dense<int64_t>(targets, "targets", k, {n}),
               .moves = n};
  const c10::DeviceGuard guard(k.device());
  check_launch(launch_kv_copy(a, k.size(0), stream_of(k)), "kv_copy");
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
  check_launch(launch_verify_swap(a, B, stream_of(slots)), "verify_swap");
  return o;
}

}  // namespace

TORCH_LIBRARY_IMPL(ssd, CUDA, m) {
  m.impl("cuda_tree_attention", tree_attention);
  m.impl("cuda_kv_copy", kv_copy);
  m.impl("verify_swap", verify_swap);
}
