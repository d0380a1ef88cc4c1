// Runs tree attention on a case. Each dtype has a translation unit that includes this.
#pragma once
#include "attention/dispatch.cuh"
#include "case.h"

namespace cuda_host {
using namespace ssd::gpu;

inline CacheView view(const Case& c, const char* name) {
  const int64_t* at = c.array<int64_t>((std::string(name) + "_at").c_str());  // offset and strides in elements
  return {c.array<uint16_t>(name) + at[0], at[1], at[2], at[3]};
}

template <class T>
void attention(Case& c) {
  const int head_dim = int(c.integer("head_dim"));
  const int64_t* q_at = c.array<int64_t>("q_at");
  AttentionArgs a{};
  a.q_float = c.integer("q_float");
  a.q = c.array<char>("q") + q_at[0] * (a.q_float ? 4 : 2);
  a.q_row = q_at[1], a.q_head = q_at[2];
  a.k = view(c, "k"), a.v = view(c, "v");
  std::unique_ptr<Far<uint16_t>> far[2];
  if (const int64_t* strides = c.array_or_null<int64_t>("far")) {  // strides of both caches, which are contiguous here
    const int64_t slots = c.integer("page_size"), heads = c.integer("kv_heads");
    const int64_t sizes[3] = {int64_t(c.bytes("k")) / (2 * slots * heads * head_dim), slots, heads};
    for (int i = 0; i < 2; ++i) {
      far[i] = std::make_unique<Far<uint16_t>>(c.array<uint16_t>(i ? "v" : "k"), sizes, head_dim, strides);
      (i ? a.v : a.k) = CacheView{far[i]->data(), strides[0], strides[1], strides[2]};
    }
  }
  a.page_table = c.array<int32_t>("page_table");
  a.table_len = int(c.integer("table_len")), a.table_row = c.integer("table_row");
  a.prefix_lens = c.array<int32_t>("prefix_lens"), a.row_offsets = c.array<int32_t>("row_offsets");
  a.mask = c.array_or_null<int64_t>("mask");
  a.words = int(c.integer("words")), a.mask_row = a.words;
  a.requests = int(c.bytes("prefix_lens") / 4), a.rows = int(c.integer("rows"));
  a.q_heads = int(c.integer("q_heads")), a.kv_heads = int(c.integer("kv_heads"));
  a.page_size = int(c.integer("page_size"));
  const size_t units = size_t(a.rows) * a.q_heads;
  c.fill("out", units * head_dim * (a.q_float ? 4 : 2)), c.fill("lse", units * 4);
  a.out = c.array<char>("out"), a.lse = c.integer("return_lse") ? c.array<float>("lse") : nullptr;
  AttentionPlan plan = plan_attention(a, head_dim);
  if (c.integer("wm")) plan = {int(c.integer("wm")), c.integer("split") != 0};
  finish_args(a, plan, float(c.real("scale")), float(c.real("softcap")));
  const int64_t parts = attention_parts(a) * int64_t(units);
  c.fill("part", parts * head_dim * 4), c.fill("part_ml", parts * 8);
  a.part = c.array<float>("part"), a.part_ml = c.array<float2>("part_ml");
  auto launch = [&](auto kernel, int64_t x, int64_t y, int threads, int shared) {
    Block::run([&] { kernel(a); }, {unsigned(x), unsigned(y), 1}, threads, shared, uint64_t(c.integer("seed")));
  };
#ifdef SSD_HOST_SMALL
  launch_attention<bf16, 64, 1>(a, launch);
#else
  dispatch_attention<T>(a, plan, head_dim, launch);
#endif
}

}  // namespace cuda_host
