// How kernels see the paged KV memory of one layer. kv/kv_cache.h makes these; ops/ops.h takes them.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace quire {

// K of token t in page p for KV head h starts at k + p * page_stride + h * head_stride + t * token_stride (elements of
// dtype), and is head_dim long; V likewise. No kernel assumes that the layer is the outermost dimension, so page_stride
// may span many layers. One page of one head is a contiguous run: token_stride == head_dim.
//
// An e4m3 or int8 cache has a scale for each token and head, K and V apart, as bf16: element = code * scale. That of
// token t in page p for head h is k_scales[p * scale_page_stride + h * page_size + t].
constexpr bool has_kv_scales(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kI8;
}
// What the largest element of a row becomes.
constexpr float largest_kv_code(DType dtype) {
  return dtype == DType::kI8 ? 127.0f : 448.0f;
}

struct PagedKv {
  void* k = nullptr;
  void* v = nullptr;
  DType dtype = DType::kF16;
  int64_t page_stride = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
  int num_pages = 0;
  int page_size = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  void* k_scales = nullptr;  // where the dtype has scales
  void* v_scales = nullptr;
  int64_t scale_page_stride = 0;
};

}  // namespace quire
