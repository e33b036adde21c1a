// Attention of the reference backend: for every query and head, three passes over the keys it sees (the largest score,
// then the sum and the weighted values), straight from the definition in ops.h.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/reference/reference_ops.h"

namespace quire {

namespace {

// Where an element of K or V stands: offset of (slot's page and token, head).
int64_t kv_offset(const PagedKv& kv, int64_t page, int64_t token, int64_t head) {
  return page * kv.page_stride + head * kv.head_stride + token * kv.token_stride;
}

int64_t scale_offset(const PagedKv& kv, int64_t page, int64_t token, int64_t head) {
  return page * kv.scale_page_stride + head * kv.page_size + token;
}

// One token's K or V of one head.
struct KvRow {
  void* data;
  DType dtype;
  int64_t offset;
  uint16_t* scale;  // bf16, of a cache that has scales
};

KvRow row_of(const PagedKv& kv, bool is_v, int64_t page, int64_t token, int64_t head) {
  KvRow row{is_v ? kv.v : kv.k, kv.dtype, kv_offset(kv, page, token, head), nullptr};
  if (has_kv_scales(kv.dtype)) {
    row.scale = static_cast<uint16_t*>(is_v ? kv.v_scales : kv.k_scales) + scale_offset(kv, page, token, head);
  }
  return row;
}

float load(const KvRow& row, int64_t d) {
  const int64_t index = row.offset + d;
  switch (row.dtype) {
    case DType::kF32:
      return static_cast<const float*>(row.data)[index];
    case DType::kF16:
      return f16_to_f32(static_cast<const uint16_t*>(row.data)[index]);
    case DType::kBF16:
      return bf16_to_f32(static_cast<const uint16_t*>(row.data)[index]);
    case DType::kF8E4M3:
      return f8e4m3_to_f32(static_cast<const uint8_t*>(row.data)[index]) * bf16_to_f32(*row.scale);
    case DType::kI8:
      return static_cast<float>(static_cast<const int8_t*>(row.data)[index]) * bf16_to_f32(*row.scale);
    default:
      CHECK(!"KV memory is f32, f16, bf16, e4m3 or int8");
      return 0;
  }
}

void store(const KvRow& row, const float* values, int64_t head_dim) {
  float inverse = 1.0f;
  if (has_kv_scales(row.dtype)) {
    float largest = 0;
    bool has_nan = false;
    for (int64_t d = 0; d < head_dim; ++d) {
      largest = std::fmax(largest, std::fabs(values[d]));
      has_nan |= std::isnan(values[d]);
    }
    // Codes of int8 do not know NaN.
    if (has_nan && row.dtype == DType::kI8) largest = std::numeric_limits<float>::quiet_NaN();
    *row.scale = f32_to_bf16(largest / largest_kv_code(row.dtype));
    if (bf16_to_f32(*row.scale) == 0) *row.scale = f32_to_bf16(1.0f);
    inverse = 1.0f / bf16_to_f32(*row.scale);
  }
  for (int64_t d = 0; d < head_dim; ++d) {
    const int64_t index = row.offset + d;
    switch (row.dtype) {
      case DType::kF32:
        static_cast<float*>(row.data)[index] = values[d];
        break;
      case DType::kF16:
        static_cast<uint16_t*>(row.data)[index] = f32_to_f16(values[d]);
        break;
      case DType::kBF16:
        static_cast<uint16_t*>(row.data)[index] = f32_to_bf16(values[d]);
        break;
      case DType::kF8E4M3:
        static_cast<uint8_t*>(row.data)[index] = f32_to_f8e4m3(values[d] * inverse);
        break;
      case DType::kI8:
        static_cast<int8_t*>(row.data)[index] =
            static_cast<int8_t>(std::fmax(-127.0f, std::fmin(127.0f, std::nearbyint(values[d] * inverse))));
        break;
      default:
        CHECK(!"KV memory is f32, f16, bf16, e4m3 or int8");
    }
  }
}

// Host and device are one memory here: nothing to plan.
class ReferenceAttentionPlan final : public AttentionPlan {};

// One query row of one head.
struct Query {
  const float* q;
  float* out;
  int64_t kv_head;
  const int32_t* pages;  // of its sequence
  int64_t first_key;     // sees keys [first_key, end_key)
  int64_t end_key;
};

void attend(const Query& query, const PagedKv& kv, const AttentionParams& params) {
  const auto row_at = [&](bool is_v, int64_t key) {
    return row_of(kv, is_v, query.pages[key / kv.page_size], key % kv.page_size, query.kv_head);
  };
  const auto score_of = [&](int64_t key) {
    const KvRow row = row_at(false, key);
    float sum = 0;
    for (int64_t d = 0; d < kv.head_dim; ++d) sum += query.q[d] * load(row, d);
    const float score = params.scale * sum;
    return params.soft_cap > 0 ? params.soft_cap * std::tanh(score / params.soft_cap) : score;
  };
  for (int64_t d = 0; d < kv.head_dim; ++d) query.out[d] = 0;
  if (query.first_key >= query.end_key) return;

  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t key = query.first_key; key < query.end_key; ++key) largest = std::max(largest, score_of(key));
  float sum = 0;
  for (int64_t key = query.first_key; key < query.end_key; ++key) {
    const float weight = std::exp(score_of(key) - largest);
    sum += weight;
    const KvRow row = row_at(true, key);
    for (int64_t d = 0; d < kv.head_dim; ++d) query.out[d] += weight * load(row, d);
  }
  for (int64_t d = 0; d < kv.head_dim; ++d) query.out[d] /= sum;
}

}  // namespace

void ReferenceOps::write_kv(OpContext&, const PagedKv& kv, ConstTensorView k, ConstTensorView v,
                            ConstTensorView slots) {
  CHECK(k.rank() == 3);
  CHECK(v.rank() == 3);
  CHECK(k.size(1) == kv.num_kv_heads);
  CHECK(k.size(2) == kv.head_dim);
  CHECK(v.size(0) == k.size(0));
  CHECK(v.size(1) == k.size(1));
  CHECK(v.size(2) == k.size(2));
  CHECK(slots.num_elements() == k.size(0));
  for (int64_t t = 0; t < k.size(0); ++t) {
    const int64_t slot = slots.data<int64_t>()[t];
    if (slot < 0) continue;
    CHECK(slot < int64_t{kv.num_pages} * kv.page_size);
    for (int64_t head = 0; head < kv.num_kv_heads; ++head) {
      const int64_t page = slot / kv.page_size;
      const int64_t offset = slot % kv.page_size;
      store(row_of(kv, false, page, offset, head), k.data<float>() + t * k.stride(0) + head * k.stride(1), kv.head_dim);
      store(row_of(kv, true, page, offset, head), v.data<float>() + t * v.stride(0) + head * v.stride(1), kv.head_dim);
    }
  }
}

Result<std::unique_ptr<AttentionPlan>> ReferenceOps::create_attention_plan(const AttentionGeometry&) {
  return std::unique_ptr<AttentionPlan>(std::make_unique<ReferenceAttentionPlan>());
}

void ReferenceOps::plan_attention(OpContext&, AttentionPlan&, const AttentionBatch&) {}

void ReferenceOps::attention(OpContext&, TensorView out, ConstTensorView q, const PagedKv& kv,
                             const AttentionBatch& batch, const AttentionPlan&, const AttentionParams& params) {
  CHECK(q.rank() == 3);
  CHECK(out.rank() == 3);
  CHECK(q.size(0) == batch.num_tokens);
  CHECK(out.size(0) == batch.num_tokens);
  CHECK(q.size(2) == kv.head_dim);
  CHECK(out.size(2) == kv.head_dim);
  CHECK(out.size(1) == q.size(1));
  CHECK(params.is_causal || params.window == 0);
  const int64_t num_heads = q.size(1);
  const int32_t* starts = batch.query_starts.data<int32_t>();
  const int32_t* context_lengths = batch.context_lengths.data<int32_t>();
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    const int32_t* pages = batch.page_table.data<int32_t>() + s * batch.page_table.stride(0);
    for (int64_t token = starts[s]; token < starts[s + 1]; ++token) {
      const int64_t position = context_lengths[s] - starts[s + 1] + token;
      for (int64_t head = 0; head < num_heads; ++head) {
        attend({.q = q.data<float>() + token * q.stride(0) + head * q.stride(1),
                .out = out.data<float>() + token * out.stride(0) + head * out.stride(1),
                .kv_head = head * kv.num_kv_heads / num_heads,
                .pages = pages,
                .first_key = params.window > 0 ? std::max<int64_t>(0, position - params.window + 1) : 0,
                .end_key = params.is_causal ? position + 1 : context_lengths[s]},
               kv, params);
      }
    }
  }
}

}  // namespace quire
