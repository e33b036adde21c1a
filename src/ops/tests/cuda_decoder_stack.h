// A made-up stack of decoder layers on the GPU with a sequence in its pages, for tests and benchmarks: one step of it
// as Ops::decoder_step, and op by op.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>

#include "ops/attention_parts.h"
#include "ops/tests/cuda_test_support.h"
#include "tensor/paged_kv.h"

namespace quire {

struct StackCase {
  FormatId format = FormatId::kBF16;
  DType dtype = DType::kBF16;
  int num_layers = 2;
  int64_t hidden = 256;
  int64_t intermediate = 512;
  int num_heads = 4;
  int num_kv_heads = 2;
  int64_t head_dim = 64;
  int length = 40;  // the new token included
  int page_size = 16;
  RopeStyle rope_style = RopeStyle::kHalves;
  Activation activation = Activation::kSilu;
  bool is_written = true;  // the new token has a slot

  int64_t query_size() const { return num_heads * head_dim; }
  int64_t kv_size() const { return num_kv_heads * head_dim; }
};

class CudaDecoderStack {
 public:
  CudaDecoderStack(Gpu& gpu, TestRandom& random, const StackCase& c)
      : gpu_(gpu), case_(c), table_(gpu, DType::kF32, 1, c.head_dim) {
    for (int i = 0; i < c.num_layers; ++i) {
      StepLayer layer;
      layer.attention_norm = norm(random);
      layer.qkv = weight(c.query_size() + 2 * c.kv_size(), c.hidden, 4 * i);
      layer.output = weight(c.hidden, c.query_size(), 4 * i + 1);
      layer.mlp_norm = norm(random);
      layer.gate_up = weight(2 * c.intermediate, c.hidden, 4 * i + 2);
      layer.down = weight(c.hidden, c.intermediate, 4 * i + 3);
      layers_.push_back(layer);
    }
    num_pages_ = (c.length + c.page_size - 1) / c.page_size + 2;
    std::vector<int32_t> pages(static_cast<size_t>(num_pages_));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(7));
    pages_ = pages;
    page_elements_ = 2 * c.kv_size() * c.page_size * c.num_layers;
    // Slots outside of the context hold NaN.
    kv_values_.assign(static_cast<size_t>(page_elements_ * num_pages_), std::numeric_limits<float>::quiet_NaN());
    for (int layer = 0; layer < c.num_layers; ++layer) {
      for (int key = 0; key + 1 < c.length; ++key) {
        for (int kv_head = 0; kv_head < c.num_kv_heads; ++kv_head) {
          for (const bool is_v : {false, true}) {
            const std::vector<float> row = round_all(c.dtype, random.normals(c.head_dim));
            std::copy(row.begin(), row.end(), kv_values_.begin() + kv_offset(layer, key, kv_head, is_v));
          }
        }
      }
    }
    context_lengths_ = gpu.upload(std::vector<int32_t>{c.length});
    query_starts_ = gpu.upload(std::vector<int32_t>{0, 1});
    page_table_ = gpu.upload(pages);
    slot_ = c.is_written ? int64_t{pages_[static_cast<size_t>((c.length - 1) / c.page_size)]} * c.page_size +
                               (c.length - 1) % c.page_size
                         : -1;
    slots_ = gpu.upload(std::vector<int64_t>{slot_});
    batch_ = {.num_sequences = 1,
              .num_tokens = 1,
              .query_starts = ConstTensorView(query_starts_.data(), DType::kI32, {2}),
              .context_lengths = ConstTensorView(context_lengths_.data(), DType::kI32, {1}),
              .page_table = ConstTensorView(page_table_.data(), DType::kI32, {1, num_pages_}),
              .slots = ConstTensorView(slots_.data(), DType::kI64, {1}),
              .host_query_starts = host_query_starts_,
              .host_context_lengths = host_context_lengths_,
              .host_is_prompt = host_is_prompt_};
    host_context_lengths_[0] = c.length;
    angles_ = random.normals(c.head_dim / 2, 2.0f);
    std::vector<float> table;
    for (const float angle : angles_) table.push_back(std::cos(angle));
    for (const float angle : angles_) table.push_back(std::sin(angle));
    table_.fill(table);
    plan_ = gpu.ops()
                .create_attention_plan({.num_heads = c.num_heads,
                                        .num_kv_heads = c.num_kv_heads,
                                        .head_dim = static_cast<int>(c.head_dim),
                                        .page_size = c.page_size,
                                        .window = 0,
                                        .kv_dtype = c.dtype,
                                        .max_num_tokens = 1,
                                        .max_num_sequences = 1,
                                        .max_context = c.length})
                .value();
    gpu.ops().plan_attention(gpu.context(), *plan_, batch_);
    params_.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  }

  const StackCase& stack_case() const { return case_; }
  const std::vector<StepLayer>& layers() const { return layers_; }
  const std::vector<float>& kv_values() const { return kv_values_; }
  const std::vector<float>& angles() const { return angles_; }
  float epsilon() const { return 1e-5f; }
  float scale() const { return params_.scale; }
  // Of a row in kv_values(), and in what pages() gives.
  int64_t kv_offset(int layer, int key, int kv_head, bool is_v) const {
    const StackCase& c = case_;
    const int64_t page = pages_[static_cast<size_t>(key / c.page_size)];
    return page * page_elements_ + (2 * layer + (is_v ? 1 : 0)) * c.kv_size() * c.page_size +
           (int64_t{kv_head} * c.page_size + key % c.page_size) * c.head_dim;
  }

  // The pages as they were before the step.
  DeviceMatrix make_pages() {
    DeviceMatrix pages(gpu_, case_.dtype, num_pages_, page_elements_);
    pages.fill(kv_values_);
    return pages;
  }

  bool run_step(TensorView y, ConstTensorView x, DeviceMatrix& pages) {
    const std::vector<PagedKv> kv = layer_kv(pages);
    return gpu_.ops().decoder_step(gpu_.context(), {.layers = layers_,
                                                    .layer_kv = kv,
                                                    .y = y,
                                                    .x = x,
                                                    .norm_epsilon = epsilon(),
                                                    .num_heads = case_.num_heads,
                                                    .rope_table = table_.view(),
                                                    .rope_style = case_.rope_style,
                                                    .attention = params_,
                                                    .activation = case_.activation,
                                                    .batch = batch_});
  }

  // The same op by op, in x; rotation, page writes and attention as one, or one after another.
  void run_chain(TensorView x, DeviceMatrix& pages, bool fuses_attention = true) {
    const StackCase& c = case_;
    CudaOps& ops = gpu_.ops();
    OpContext& context = gpu_.context();
    const std::vector<PagedKv> kv = layer_kv(pages);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const StepLayer& layer = layers_[i];
      const ArenaScope scope(context.scratch);
      const TensorView qkv = context.scratch.take(c.dtype, {1, c.query_size() + 2 * c.kv_size()});
      ops.norm_linear(context, qkv, x, {layer.attention_norm, epsilon()}, layer.qkv, {});
      const TensorView q = qkv.slice(1, 0, c.query_size()).split_last_dimension(c.head_dim);
      const TensorView k = qkv.slice(1, c.query_size(), c.query_size() + c.kv_size()).split_last_dimension(c.head_dim);
      const TensorView v =
          qkv.slice(1, c.query_size() + c.kv_size(), c.query_size() + 2 * c.kv_size()).split_last_dimension(c.head_dim);
      const TensorView mixed = context.scratch.take(c.dtype, {1, c.query_size()});
      const TensorView heads = mixed.split_last_dimension(c.head_dim);
      const Ops::QueryKeyValue inputs{.q = q, .k = k, .v = v, .rope_table = table_.view(), .rope_style = c.rope_style};
      if (fuses_attention) {
        ops.rope_and_attention(context, heads, inputs, kv[i], batch_, *plan_, params_);
      } else {
        ops.Ops::rope_and_attention(context, heads, inputs, kv[i], batch_, *plan_, params_);
      }
      ops.linear(context, x, mixed, layer.output, {.bias = {}, .residual = x});
      const TensorView gated = context.scratch.take(c.dtype, {1, c.intermediate});
      ops.norm_gated_linear(context, gated, x, {layer.mlp_norm, epsilon()}, layer.gate_up, {}, c.activation);
      ops.linear(context, x, gated, layer.down, {.bias = {}, .residual = x});
    }
  }

 private:
  Weight weight(int64_t n, int64_t k, int seed) {
    Weight shape;
    shape.format = case_.format;
    shape.n = n;
    shape.k = k;
    return gpu_.ops().make_random_weight(shape, static_cast<uint64_t>(seed + 1)).value();
  }
  ConstTensorView norm(TestRandom& random) {
    std::vector<float> values = random.normals(case_.hidden, 0.2f);
    for (float& value : values) value += 1.0f;
    norms_.push_back(gpu_.upload(values));
    return ConstTensorView(norms_.back().data(), DType::kF32, {case_.hidden});
  }
  std::vector<PagedKv> layer_kv(DeviceMatrix& pages) const {
    const StackCase& c = case_;
    std::vector<PagedKv> all;
    for (int layer = 0; layer < c.num_layers; ++layer) {
      char* const base =
          static_cast<char*>(pages.view().raw_data()) + 2 * layer * c.kv_size() * c.page_size * dtype_bytes(c.dtype);
      PagedKv kv;
      kv.k = base;
      kv.v = base + c.kv_size() * c.page_size * dtype_bytes(c.dtype);
      kv.dtype = c.dtype;
      kv.page_stride = page_elements_;
      kv.head_stride = c.page_size * c.head_dim;
      kv.token_stride = c.head_dim;
      kv.num_pages = num_pages_;
      kv.page_size = c.page_size;
      kv.num_kv_heads = c.num_kv_heads;
      kv.head_dim = static_cast<int>(c.head_dim);
      all.push_back(kv);
    }
    return all;
  }

  Gpu& gpu_;
  StackCase case_;
  std::vector<StepLayer> layers_;
  std::vector<DeviceBuffer> norms_;
  int num_pages_ = 0;
  int64_t page_elements_ = 0;
  std::vector<int32_t> pages_;
  std::vector<float> kv_values_;
  std::vector<float> angles_;
  DeviceBuffer context_lengths_;
  DeviceBuffer query_starts_;
  DeviceBuffer page_table_;
  DeviceBuffer slots_;
  int64_t slot_ = 0;
  std::vector<int32_t> host_query_starts_ = {0, 1};
  std::vector<uint8_t> host_is_prompt_ = {kDrawn};
  std::vector<int32_t> host_context_lengths_ = {0};
  AttentionBatch batch_;
  AttentionParams params_;
  DeviceMatrix table_;
  std::unique_ptr<AttentionPlan> plan_;
};

}  // namespace quire
