// Cuts a step's attention into pieces of about equal cost (attention.h says what units, items and pieces are). Made by
// cpu_ops, filled once a step, read by every layer of a KV group. Filling allocates nothing: room for the largest step
// is taken at the start.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "ops/cpu/attention.h"
#include "ops/ops.h"
#include "tensor/device.h"

namespace quire::cpu {

class CpuAttentionPlan final : public AttentionPlan {
 public:
  static Result<std::unique_ptr<CpuAttentionPlan>> create(const AttentionGeometry& geometry, int num_threads);

  void fill(const AttentionBatch& batch);

  const AttentionGeometry& geometry() const { return geometry_; }
  int num_pieces() const { return static_cast<int>(piece_starts_.size()) - 1; }
  std::span<const AttentionItem> piece(int index) const {
    return std::span(items_).subspan(
        static_cast<size_t>(piece_starts_[static_cast<size_t>(index)]),
        static_cast<size_t>(piece_starts_[static_cast<size_t>(index) + 1] - piece_starts_[static_cast<size_t>(index)]));
  }
  std::span<const AttentionSplit> splits() const { return splits_; }
  std::span<const AttentionItem> items_of(const AttentionSplit& split) const {
    return std::span(items_).subspan(static_cast<size_t>(split.item_begin),
                                     static_cast<size_t>(split.item_end - split.item_begin));
  }

  float* workspace(int worker_index) const {
    return static_cast<float*>(workspaces_.data()) + worker_index * workspace_floats_;
  }
  float* partials() const { return static_cast<float*>(partials_.data()); }

 private:
  CpuAttentionPlan(const AttentionGeometry& geometry, int num_threads)
      : geometry_(geometry), num_threads_(num_threads) {}

  int group_size() const { return geometry_.num_heads / geometry_.num_kv_heads; }
  void add_unit(AttentionItem unit);
  void end_piece();

  AttentionGeometry geometry_;
  int num_threads_;
  std::vector<AttentionItem> items_;
  std::vector<int32_t> piece_starts_;  // one more than pieces
  std::vector<AttentionSplit> splits_;
  int64_t workspace_floats_ = 0;
  DeviceBuffer workspaces_;  // one a thread
  DeviceBuffer partials_;

  // While filling.
  int64_t piece_cost_ = 0;  // that a piece should have
  int64_t cost_left_ = 0;   // of the piece that is being filled
  int64_t used_partial_floats_ = 0;
};

}  // namespace quire::cpu
