// Decode attention: one query a sequence, KV split into chunks (FlashDecoding), straight from the pages.
//
// A unit of work is a chunk of a sequence and a KV head, or eight of its query heads. As many blocks as multiprocessors
// run; each of their warps works by itself through units a fixed number apart. A warp takes 16 keys a step, 32 of an
// e4m3 or int8 cache. Asynchronous copies bring pages into the warp's own ring in shared memory, several steps ahead
// and over the ends of units, so that memory never waits for arithmetic. Up to 8 query heads of a KV head are the
// columns of one tensor core product, so K and V are read once:
//   scores: Sᵀ (16 keys × 8 heads) = K (16 keys × d) · Qᵀ;  sums: Oᵀ (d × 8 heads) += Vᵀ (d × 16 keys) · Pᵀ
// Where there are few units, all warps of a block share one, and then another: an eighth of the chunk each (head_dim
// 256 has four warps, and quarters).
//
// The limit is the reading of KV: 2 · head_dim elements a key and KV head. Softmax in float, base 2; P is rounded to
// the dtype of the products: the cache's, or f16 where it has codes, which f16 holds exactly; their scales multiply
// scores and weights. Eighths of a chunk are summed apart and merged in ascending order, and so are chunks,
// by a kernel of its own or, where warps share units, by the block that ends last or (attention_decode_fused.cu, one
// unit a block) that of the last chunk: a query's bits do not depend on the batch, on page size or on who computes
// what. Equals the loop of reference_attention.cc.
#include <algorithm>
#include <bit>

#include "ops/cuda/attention_decode_kernel.cuh"

namespace quire::cuda {

bool accepts_decode_split_kv(const AttentionCall& call) {
  const PagedKv& kv = call.kv;
  const int64_t element_bytes = dtype_bytes(kv.dtype);
  const auto is_wide = [&](int64_t stride) { return stride * element_bytes % 16 == 0; };
  if (call.part != StepPart::kDecode || (call.q.dtype() != DType::kBF16 && call.q.dtype() != DType::kF16)) return false;
  if (kv.head_dim > 128 && kv.head_dim != 256) return false;
  if (has_kv_scales(kv.dtype)) {
    if (kv.head_dim % 16 != 0 || !is_aligned(kv.k_scales, 16) || !is_aligned(kv.v_scales, 16) ||
        kv.scale_page_stride % 8 != 0) {
      return false;
    }
  } else if (kv.dtype != call.q.dtype() || kv.head_dim % 8 != 0) {
    return false;
  }
  return kv.page_size >= decode::kKeys && std::has_single_bit(static_cast<unsigned>(kv.page_size)) &&
         kv.token_stride == kv.head_dim && is_aligned(kv.k, 16) && is_aligned(kv.v, 16) && is_wide(kv.page_stride) &&
         is_wide(kv.head_stride) && is_aligned(call.q.raw_data(), 16) && call.q.stride(0) % 8 == 0 &&
         call.q.stride(1) % 8 == 0;
}

void attention_decode_split_kv(const AttentionCall& call) {
  const decode::Args args = decode::args_of(call);
  if (call.q.dtype() == DType::kBF16) return decode::launch_any<bf16, decode::Kind::kPlain>(call, args);
  return decode::launch_any<f16, decode::Kind::kPlain>(call, args);
}

}  // namespace quire::cuda
