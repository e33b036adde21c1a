// Linear layers on the CPU over weights in Layout::kCpuPanels: packing, the product, the grouped product and the gather
// of an embedding. Called by cpu_ops on the thread that runs the step; the work is shared by a pool. The kernels
// themselves are rows (linear_rows); what they compute and in which order is written in linear_kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/cpu_info.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "ops/cpu/weight_memory.h"
#include "ops/kernel_table.h"
#include "ops/ops.h"
#include "quant/weight.h"
#include "tensor/arena.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace quire::cpu {

// One product y = x · Wᵀ + bias + residual, of rms_norm(x) where a norm is given. A gated product's outputs are gate
// and up, one half each, and y = activation(gate) * up; it takes no residual, and n / 2 is a multiple of kPanelLanes.
//   x: [num_tokens, k] f32   y: [num_tokens, n] f32, gated: n / 2   weight: n × k, one expert, Layout::kCpuPanels
struct LinearCall {
  ThreadPool& pool;
  Arena& scratch;
  const CpuFeatures& features;
  Compute compute = Compute::kAuto;
  TensorView y;
  ConstTensorView x;
  const Weight& weight;
  Epilogue epilogue = {};
  InputNorm norm = {};
  bool is_gated = false;
  Activation activation = Activation::kSilu;
};

std::span<const KernelRow<LinearCall>> linear_rows();

// Runs the row of that name where it accepts the call, else the best one.
void linear(const LinearCall& call, std::string_view forced_row = {});

// call.weight holds several experts; rows [offsets[e], offsets[e + 1]) of x and y belong to expert e.
//   offsets: [num_experts + 1] i32
void grouped_linear(const LinearCall& call, ConstTensorView offsets, std::string_view forced_row = {});

// Re-lays a row-major weight as panels.
Result<Weight> pack_weight(ThreadPool& pool, WeightMemory& memory, const Weight& file_weight);

// A row-major f16 weight as a row-major bf16 one.
Result<Weight> round_to_bf16(ThreadPool& pool, const Weight& f16_weight);

// y[t] = scale * row ids[t] of the table.   y: [num_tokens, k] f32   ids: [num_tokens] i32   table: Layout::kCpuPanels
void embedding(ThreadPool& pool, TensorView y, const Weight& table, ConstTensorView ids, float scale);

}  // namespace quire::cpu
