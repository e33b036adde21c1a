// An attention problem in a GPU's memory, for the tests of attention there.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ops/cuda/attention.h"
#include "ops/tests/attention_problem.h"
#include "ops/tests/cuda_test_support.h"

namespace quire {

// A problem's tables, pages and queries in the GPU's memory.
class DeviceProblem {
 public:
  // `is_prompt`, of each sequence: only for a backend that asks for it.
  DeviceProblem(Gpu& gpu, AttentionProblem& problem, DType dtype, int64_t gap, std::vector<uint8_t> is_prompt = {})
      : gpu_(gpu),
        problem_(problem),
        is_prompt_(std::move(is_prompt)),
        q_(gpu, dtype, problem.num_tokens(), problem.row_size(), gap),
        out_(gpu, dtype, problem.num_tokens(), problem.row_size(), gap) {
    const AttentionBatch host = problem.batch();
    const AttentionCase& c = problem.attention_case();
    batch_ = host;
    batch_.host_is_prompt = is_prompt_;
    query_starts_ = copy(host.query_starts);
    context_lengths_ = copy(host.context_lengths);
    page_table_ = copy(host.page_table);
    slots_ = copy(host.slots);
    batch_.query_starts = moved(host.query_starts, query_starts_);
    batch_.context_lengths = moved(host.context_lengths, context_lengths_);
    batch_.page_table = moved(host.page_table, page_table_);
    batch_.slots = moved(host.slots, slots_);
    kv_ = problem.kv();
    int64_t page_elements = 2 * c.num_kv_heads * kv_.head_stride;
    if (has_kv_scales(kv_.dtype)) page_elements += 2 * 2 * int64_t{c.num_kv_heads} * c.page_size;
    const int64_t num_elements = (kv_.num_pages - 1) * kv_.page_stride + page_elements;
    const char* const host_k = static_cast<const char*>(kv_.k);
    pool_ = gpu.upload(kv_.k, num_elements * dtype_bytes(kv_.dtype));
    for (void** part : {&kv_.v, &kv_.k_scales, &kv_.v_scales}) {
      if (*part != nullptr) *part = static_cast<char*>(pool_.data()) + (static_cast<char*>(*part) - host_k);
    }
    kv_.k = pool_.data();
    std::vector<float> queries;
    const ConstTensorView q = problem.q();
    for (int64_t t = 0; t < q.size(0); ++t) {
      const float* row = q.data<float>() + t * q.stride(0);
      queries.insert(queries.end(), row, row + problem.row_size());
    }
    q_.fill(queries);
  }

  bool accepts(const KernelRow<cuda::AttentionCall>& row, cuda::StepPart part) {
    const std::unique_ptr<AttentionPlan> plan = make_plan();
    return row.accepts({.stream = nullptr,
                        .part = part,
                        .out = out(),
                        .q = q_.heads(head_dim()),
                        .kv = kv_,
                        .batch = batch_,
                        .plan = static_cast<const cuda::CudaAttentionPlan&>(*plan),
                        .params = problem_.attention_case().params});
  }

  // With room for so many converted tiles of one KV head, where that is said.
  std::vector<float> run(int num_converted_tiles = 0) {
    const std::unique_ptr<AttentionPlan> plan = make_plan(num_converted_tiles);
    gpu_.synchronize();
    const int64_t free_bytes = gpu_.ops().memory().free_bytes;
    for (int i = 0; i < 2; ++i) {  // a plan serves many layers
      gpu_.ops().attention(gpu_.context(), out(), q_.heads(head_dim()), kv_, batch_, *plan,
                           problem_.attention_case().params);
    }
    gpu_.synchronize();
    bytes_taken_ = free_bytes - gpu_.ops().memory().free_bytes;
    return out_.values();
  }

  // By the calls themselves.
  int64_t bytes_taken() const { return bytes_taken_; }

 private:
  std::unique_ptr<AttentionPlan> make_plan(int num_converted_tiles = 0) {
    std::unique_ptr<AttentionPlan> plan = gpu_.ops().create_attention_plan(problem_.geometry()).value();
    if (num_converted_tiles > 0) {
      const int64_t num_bytes = num_converted_tiles * cuda::converted_tile_bytes(problem_.attention_case().head_dim);
      static_cast<cuda::CudaAttentionPlan&>(*plan).converted = gpu_.ops().allocate(num_bytes, "test").value();
    }
    gpu_.ops().plan_attention(gpu_.context(), *plan, batch_);
    return plan;
  }
  TensorView out() { return out_.heads(head_dim()); }
  int64_t head_dim() const { return problem_.attention_case().head_dim; }
  DeviceBuffer copy(const ConstTensorView& x) {
    return gpu_.upload(x.raw_data(), x.num_elements() * dtype_bytes(x.dtype()));
  }
  static ConstTensorView moved(const ConstTensorView& x, const DeviceBuffer& buffer) {
    if (x.rank() == 2) return ConstTensorView(buffer.data(), x.dtype(), {x.size(0), x.size(1)});
    return ConstTensorView(buffer.data(), x.dtype(), {x.size(0)});
  }

  Gpu& gpu_;
  AttentionProblem& problem_;
  std::vector<uint8_t> is_prompt_;
  DeviceMatrix q_;
  DeviceMatrix out_;
  AttentionBatch batch_;
  PagedKv kv_;
  DeviceBuffer query_starts_;
  DeviceBuffer context_lengths_;
  DeviceBuffer page_table_;
  DeviceBuffer slots_;
  DeviceBuffer pool_;
  int64_t bytes_taken_ = 0;
};

}  // namespace quire
