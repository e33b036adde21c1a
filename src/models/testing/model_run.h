// For tests: runs a model over sequences without an engine, over page tables made by hand. Pages are handed out in a
// scattered order, so that nothing can depend on neighbours. One sequence a ModelRun.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "models/model.h"
#include "ops/ops.h"

namespace quire::testing {

struct ModelRunOptions {
  DType kv_dtype = DType::kF32;
  int page_size = 16;
  int max_tokens = 256;
};

class ModelRun {
 public:
  ModelRun(Ops& ops, const Model& model, const ModelRunOptions& options = {});

  // Feeds the next tokens of the sequence in one step; the logits of all of them, a row a token.
  std::vector<std::vector<float>> forward(std::span<const int32_t> token_ids);
  // The same; the logits of these rows only.
  std::vector<std::vector<float>> forward(std::span<const int32_t> token_ids, const std::vector<int32_t>& rows);

  // The same, at most `chunk` tokens a step.
  std::vector<std::vector<float>> forward_in_chunks(std::span<const int32_t> token_ids, int chunk);

  // Forgets the sequence.
  void restart() { num_tokens_ = 0; }

  // The most scratch that a step took.
  int64_t peak_scratch_bytes() const { return scratch_->peak_bytes(); }

 private:
  // Copies host values to the device, into the scratch arena.
  template <typename T>
  ConstTensorView to_device(OpContext& context, DType dtype, const std::vector<T>& values,
                            std::initializer_list<int64_t> sizes);

  Ops& ops_;
  const Model& model_;
  ModelRunOptions options_;
  std::vector<KvGroup> groups_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Arena> scratch_;
  std::vector<std::unique_ptr<AttentionPlan>> plans_;  // one a group
  std::vector<std::vector<int32_t>> page_tables_;      // one a group
  int num_tokens_ = 0;
};

}  // namespace quire::testing
