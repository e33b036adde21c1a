// What the kernels of paged attention share: their arguments, and softmax in base 2.
#pragma once

#include "ops/cuda/attention.h"

namespace quire::cuda {

constexpr float kLog2e = 1.4426950408889634f;
// Over a cache of codes weights times scales of V are f16: times 256, those of usual models lie far from its smallest
// numbers. Larger ones than f16 holds become its largest.
constexpr float kValueBoost = 256.0f;
constexpr float kLargestF16 = 65504.0f;

struct AttentionArgs {
  explicit AttentionArgs(const AttentionCall& call)
      : q(call.q.raw_data()),
        q_token_stride(call.q.stride(0)),
        q_head_stride(call.q.stride(1)),
        out(call.out.raw_data()),
        out_token_stride(call.out.stride(0)),
        out_head_stride(call.out.stride(1)),
        num_heads(static_cast<int>(call.q.size(1))),
        num_kv_heads(call.kv.num_kv_heads),
        page_table(call.batch.page_table.data<int32_t>()),
        page_table_stride(call.batch.page_table.stride(0)),
        k_scales(static_cast<const uint16_t*>(call.kv.k_scales)),
        v_scales(static_cast<const uint16_t*>(call.kv.v_scales)),
        scale_page_stride(call.kv.scale_page_stride),
        scale(call.params.soft_cap > 0 ? call.params.scale / call.params.soft_cap : call.params.scale * kLog2e),
        soft_cap(call.params.soft_cap),
        window(call.params.window),
        is_causal(call.params.is_causal) {}

  const void* q;
  int64_t q_token_stride;
  int64_t q_head_stride;
  void* out;
  int64_t out_token_stride;
  int64_t out_head_stride;
  int num_heads;
  int num_kv_heads;
  const int32_t* page_table;
  int64_t page_table_stride;
  const uint16_t* k_scales;  // bf16, of a cache of codes
  const uint16_t* v_scales;
  int64_t scale_page_stride;
  float scale;  // times log2(e), unless there is a soft cap
  float soft_cap;
  int window;
  bool is_causal;
};

}  // namespace quire::cuda
