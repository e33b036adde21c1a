// Made-up stacks of decoder layers on the GPU, for tests and benchmarks: StackLayers are the layers, op by op, and
// CudaDecoderStack has a sequence in its pages and takes one step of it as Ops::decoder_step too.
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
  int64_t page_elements() const { return 2 * kv_size() * page_size * num_layers; }
};

class StackLayers {
 public:
  // Of a layer; what is left out leaves its output as it is.
  enum Op : unsigned { kQkv = 1, kAttention = 2, kOutput = 4, kGateUp = 8, kDown = 16, kAllOps = 31 };

  StackLayers(Gpu& gpu, TestRandom& random, const StackCase& c) : gpu_(gpu), case_(c) {
    params_.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
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
  }

  const std::vector<StepLayer>& all() const { return layers_; }
  const AttentionParams& params() const { return params_; }
  float epsilon() const { return 1e-5f; }

  // Pages of page_elements() each, which hold keys, then values, of one layer after another.
  std::vector<PagedKv> layer_kv(void* pages, int num_pages) const {
    const StackCase& c = case_;
    std::vector<PagedKv> all;
    for (int layer = 0; layer < c.num_layers; ++layer) {
      char* const base = static_cast<char*>(pages) + 2 * layer * c.kv_size() * c.page_size * dtype_bytes(c.dtype);
      PagedKv kv;
      kv.k = base;
      kv.v = base + c.kv_size() * c.page_size * dtype_bytes(c.dtype);
      kv.dtype = c.dtype;
      kv.page_stride = c.page_elements();
      kv.head_stride = c.page_size * c.head_dim;
      kv.token_stride = c.head_dim;
      kv.num_pages = num_pages;
      kv.page_size = c.page_size;
      kv.num_kv_heads = c.num_kv_heads;
      kv.head_dim = static_cast<int>(c.head_dim);
      all.push_back(kv);
    }
    return all;
  }

  // Of a token each of as many sequences as the batch has.
  std::unique_ptr<AttentionPlan> make_plan(const AttentionBatch& batch) const {
    const StackCase& c = case_;
    std::unique_ptr<AttentionPlan> plan = gpu_.ops()
                                              .create_attention_plan({.num_heads = c.num_heads,
                                                                      .num_kv_heads = c.num_kv_heads,
                                                                      .head_dim = static_cast<int>(c.head_dim),
                                                                      .page_size = c.page_size,
                                                                      .window = 0,
                                                                      .kv_dtype = c.dtype,
                                                                      .max_num_tokens = batch.num_tokens,
                                                                      .max_num_sequences = batch.num_sequences,
                                                                      .max_context = c.length})
                                              .value();
    gpu_.ops().plan_attention(gpu_.context(), *plan, batch);
    return plan;
  }

  struct Tokens {
    TensorView x;
    ConstTensorView rope_table;
    const std::vector<PagedKv>& kv;
    const AttentionBatch& batch;
    const AttentionPlan& plan;
  };
  // In x; rotation, page writes and attention as one op, or one after another.
  void run(const Tokens& tokens, unsigned wanted = kAllOps, bool fuses_attention = true) const {
    const StackCase& c = case_;
    CudaOps& ops = gpu_.ops();
    OpContext& context = gpu_.context();
    const ArenaScope scope(context.scratch);
    const TensorView& x = tokens.x;
    const int64_t num_tokens = x.size(0);
    const TensorView qkv = context.scratch.take(c.dtype, {num_tokens, c.query_size() + 2 * c.kv_size()});
    const TensorView mixed = context.scratch.take(c.dtype, {num_tokens, c.query_size()});
    const TensorView gated = context.scratch.take(c.dtype, {num_tokens, c.intermediate});
    const TensorView heads = mixed.split_last_dimension(c.head_dim);
    const int64_t k_begin = c.query_size();
    const int64_t v_begin = k_begin + c.kv_size();
    const Ops::QueryKeyValue inputs{.q = qkv.slice(1, 0, k_begin).split_last_dimension(c.head_dim),
                                    .k = qkv.slice(1, k_begin, v_begin).split_last_dimension(c.head_dim),
                                    .v = qkv.slice(1, v_begin, v_begin + c.kv_size()).split_last_dimension(c.head_dim),
                                    .rope_table = tokens.rope_table,
                                    .rope_style = c.rope_style};
    for (size_t i = 0; i < layers_.size(); ++i) {
      const StepLayer& layer = layers_[i];
      const PagedKv& kv = tokens.kv[i];
      if ((wanted & kQkv) != 0)
        ops.norm_linear(context, qkv, x, {layer.attention_norm, epsilon(), c.dtype}, layer.qkv, {});
      if ((wanted & kAttention) != 0) {
        if (fuses_attention) {
          ops.rope_and_attention(context, heads, inputs, kv, tokens.batch, tokens.plan, params_);
        } else {
          ops.Ops::rope_and_attention(context, heads, inputs, kv, tokens.batch, tokens.plan, params_);
        }
      }
      if ((wanted & kOutput) != 0) ops.linear(context, x, mixed, layer.output, {.bias = {}, .residual = x});
      if ((wanted & kGateUp) != 0) {
        ops.norm_gated_linear(context, gated, x, {layer.mlp_norm, epsilon(), c.dtype}, layer.gate_up, {}, c.activation);
      }
      if ((wanted & kDown) != 0) ops.linear(context, x, gated, layer.down, {.bias = {}, .residual = x});
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

  Gpu& gpu_;
  StackCase case_;
  AttentionParams params_;
  std::vector<StepLayer> layers_;
  std::vector<DeviceBuffer> norms_;
};

class CudaDecoderStack {
 public:
  CudaDecoderStack(Gpu& gpu, TestRandom& random, const StackCase& c)
      : gpu_(gpu), case_(c), layers_(gpu, random, c), table_(gpu, DType::kF32, 1, c.head_dim) {
    num_pages_ = (c.length + c.page_size - 1) / c.page_size + 2;
    std::vector<int32_t> pages(static_cast<size_t>(num_pages_));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(7));
    pages_ = pages;
    // Slots outside of the context hold NaN.
    kv_values_.assign(static_cast<size_t>(case_.page_elements() * num_pages_), std::numeric_limits<float>::quiet_NaN());
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
    plan_ = layers_.make_plan(batch_);
  }

  const StackCase& stack_case() const { return case_; }
  const std::vector<StepLayer>& layers() const { return layers_.all(); }
  const std::vector<float>& kv_values() const { return kv_values_; }
  const std::vector<float>& angles() const { return angles_; }
  float epsilon() const { return layers_.epsilon(); }
  float scale() const { return layers_.params().scale; }
  // Of a row in kv_values(), and in what pages() gives.
  int64_t kv_offset(int layer, int key, int kv_head, bool is_v) const {
    const StackCase& c = case_;
    const int64_t page = pages_[static_cast<size_t>(key / c.page_size)];
    return page * case_.page_elements() + (2 * layer + (is_v ? 1 : 0)) * c.kv_size() * c.page_size +
           (int64_t{kv_head} * c.page_size + key % c.page_size) * c.head_dim;
  }

  // The pages as they were before the step.
  DeviceMatrix make_pages() {
    DeviceMatrix pages(gpu_, case_.dtype, num_pages_, case_.page_elements());
    pages.fill(kv_values_);
    return pages;
  }

  bool run_step(TensorView y, ConstTensorView x, DeviceMatrix& pages) {
    const std::vector<PagedKv> kv = layers_.layer_kv(pages.view().raw_data(), num_pages_);
    return gpu_.ops().decoder_step(gpu_.context(), {.layers = layers(),
                                                    .layer_kv = kv,
                                                    .y = y,
                                                    .x = x,
                                                    .norm_epsilon = epsilon(),
                                                    .num_heads = case_.num_heads,
                                                    .rope_table = table_.view(),
                                                    .rope_style = case_.rope_style,
                                                    .attention = layers_.params(),
                                                    .activation = case_.activation,
                                                    .batch = batch_});
  }

  // The same op by op, in x; rotation, page writes and attention as one, or one after another.
  void run_chain(TensorView x, DeviceMatrix& pages, bool fuses_attention = true) {
    const std::vector<PagedKv> kv = layers_.layer_kv(pages.view().raw_data(), num_pages_);
    layers_.run({.x = x, .rope_table = table_.view(), .kv = kv, .batch = batch_, .plan = *plan_}, StackLayers::kAllOps,
                fuses_attention);
  }

 private:
  Gpu& gpu_;
  StackCase case_;
  StackLayers layers_;
  int num_pages_ = 0;
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
  DeviceMatrix table_;
  std::unique_ptr<AttentionPlan> plan_;
};

}  // namespace quire
