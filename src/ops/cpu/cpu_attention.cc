// Attention of the CPU backend: checks, then the pieces of the plan for the pool's threads, then the split units.
#include "ops/cpu/attention.h"

#include "ops/cpu/attention_plan.h"
#include "ops/cpu/cpu_ops.h"

namespace quire {

Result<std::unique_ptr<AttentionPlan>> CpuOps::create_attention_plan(const AttentionGeometry& geometry) {
  ASSIGN_OR_RETURN(std::unique_ptr<cpu::CpuAttentionPlan> plan,
                   cpu::CpuAttentionPlan::create(geometry, pool_.num_threads()));
  return std::unique_ptr<AttentionPlan>(std::move(plan));
}

void CpuOps::plan_attention(OpContext&, AttentionPlan& plan, const AttentionBatch& batch) {
  static_cast<cpu::CpuAttentionPlan&>(plan).fill(batch);
}

void CpuOps::attention(OpContext&, TensorView out, ConstTensorView q, const PagedKv& kv, const AttentionBatch& batch,
                       const AttentionPlan& any_plan, const AttentionParams& params) {
  const auto& plan = static_cast<const cpu::CpuAttentionPlan&>(any_plan);
  const AttentionGeometry& geometry = plan.geometry();
  CHECK(q.rank() == 3);
  CHECK(out.rank() == 3);
  CHECK(q.size(0) == batch.num_tokens);
  CHECK(out.size(0) == batch.num_tokens);
  CHECK(q.size(1) == geometry.num_heads);
  CHECK(out.size(1) == geometry.num_heads);
  CHECK(q.size(2) == geometry.head_dim);
  CHECK(out.size(2) == geometry.head_dim);
  CHECK(q.is_last_dimension_contiguous());
  CHECK(out.is_last_dimension_contiguous());
  CHECK(kv.head_dim == geometry.head_dim);
  CHECK(kv.num_kv_heads == geometry.num_kv_heads);
  CHECK(kv.page_size > 0);
  CHECK(kv.dtype == DType::kF32 || kv.dtype == DType::kF16 || kv.dtype == DType::kBF16);
  CHECK(params.window == geometry.window);
  CHECK(params.is_causal);
  if (batch.num_tokens == 0) return;

  const cpu::AttentionInputs inputs{.features = features_,
                                    .kv = kv,
                                    .q = q.data<float>(),
                                    .q_token_stride = q.stride(0),
                                    .q_head_stride = q.stride(1),
                                    .out = out.data<float>(),
                                    .out_token_stride = out.stride(0),
                                    .out_head_stride = out.stride(1),
                                    .page_table = batch.page_table.data<int32_t>(),
                                    .page_table_stride = batch.page_table.stride(0),
                                    .group_size = geometry.num_heads / geometry.num_kv_heads,
                                    .scale = params.scale,
                                    .soft_cap = params.soft_cap,
                                    .window = params.window,
                                    .partials = plan.partials(),
                                    .compute = compute_};
  const std::string_view forced = forced_kernel("attention");
  const auto& attend = choose_row(cpu::attention_rows(), cpu::AttentionCall{inputs, nullptr, 0, nullptr}, forced);
  pool_.parallel_for(plan.num_pieces(), 1, [&](const WorkRange& range) {
    for (int64_t piece = range.begin; piece < range.end; ++piece) {
      const std::span<const cpu::AttentionItem> items = plan.piece(static_cast<int>(piece));
      attend.launch({inputs, items.data(), static_cast<int>(items.size()), plan.workspace(range.worker_index)});
    }
  });

  const std::span<const cpu::AttentionSplit> splits = plan.splits();
  if (splits.empty()) return;
  const auto& merge = choose_row(cpu::attention_merge_rows(), cpu::AttentionMergeCall{inputs, nullptr, 0}, forced);
  pool_.parallel_for(static_cast<int64_t>(splits.size()), 1, [&](const WorkRange& range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const std::span<const cpu::AttentionItem> items = plan.items_of(splits[static_cast<size_t>(i)]);
      merge.launch({inputs, items.data(), static_cast<int>(items.size())});
    }
  });
}

}  // namespace quire
