// Draws a step's tokens where the logits are, on a GPU: penalties, biases, masks, the draw itself and log-probabilities
// are enqueued behind the forward, and only ids and a few numbers come back. The engine says for each row of logits
// what is wanted of it, while the forward runs; the model runner enqueues. All memory is taken at creation. There are
// two, which share the device's memory: one may be told of a step while the other's runs. On the engine's thread, but
// for the masks and lists, which the engine's sampling threads write side by side.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "engine/sampler.h"
#include "ops/logits_rows.h"
#include "ops/ops.h"

namespace quire {

class DeviceSampler {
 public:
  struct Limits {
    int max_rows = 0;  // of logits
    int64_t vocab_size = 0;
    int64_t num_token_ids = 0;
    int max_logprobs = 0;
  };

  // Of the device, for the memory plan.
  static int64_t device_bytes(const Limits& limits);
  static Result<std::array<std::unique_ptr<DeviceSampler>, 2>> create(Ops& ops, const Limits& limits);

  // A step begins, with so many rows of logits. Those that are not added are the host's.
  void begin(int num_rows);
  // It is only asked whether the row's logits are numbers.
  void add_check(int row);
  // False where the host must sample. That depends on the request alone, so that its tokens do not depend on others:
  // the host draws by other sums. The call stays valid until enqueue; its logits are not read.
  bool add(int row, const SampleCall& call);
  // The log-probabilities of a prompt's token in this row, as the model has them. False as above.
  bool add_given(int row, int32_t token_id, int num_top);
  // Writes masks and lists. With a pool side by side.
  void prepare(ThreadPool* pool);

  // Draws to `ids`, [rows] i32 on the device, where the next step may find them.
  void enqueue(OpContext& context, const TensorView& logits, const TensorView& ids);
  // The step has ended; its logits are still there.
  void finish(OpContext& context);

  std::span<const int> host_rows() const { return host_rows_; }
  // All rows are drawn here, from logits as they are: the step that follows may be enqueued before they are known.
  bool draws_all_unchanged() const { return host_rows_.empty() && adjustments_.empty(); }
  bool is_drawn(int row) const { return rows_[static_cast<size_t>(row)].is_drawn; }
  Result<Sample> sample_of(int row) const;

 private:
  // Parts of the block that goes to the device, and of the one that comes back: offsets in bytes.
  struct Upload {
    int64_t rows = 0;
    int64_t adjustments = 0;
    int64_t penalized = 0;
    int64_t biases = 0;
    int64_t masks = 0;
    int64_t logprobs = 0;
    int64_t num_bytes = 0;
  };
  struct Answer {
    int64_t ids = 0;
    int64_t results = 0;
    int64_t top = 0;
    int64_t num_bytes = 0;
  };
  struct Amounts {
    int64_t num_rows = 0;
    int64_t num_adjustments = 0;
    int64_t num_penalized = 0;
    int64_t num_biases = 0;
    int64_t num_masks = 0;
    int64_t num_logprobs = 0;
  };
  // What is known of a row of logits.
  struct Row {
    bool is_drawn = false;
    bool is_adjusted = false;
    bool is_excluded = false;  // of all tokens none may come
    int32_t given_id = -1;
    int logprobs = -1;  // the entry of logprobs_rows_
  };

  // Used by steps in their order.
  struct DeviceMemory {
    DeviceBuffer upload;
    DeviceBuffer answer;
    DeviceBuffer kept;  // logits as they were, of rows that are changed and whose own log-probabilities are wanted
  };

  DeviceSampler(Ops& ops, const Limits& limits, std::shared_ptr<DeviceMemory> memory)
      : ops_(ops), limits_(limits), memory_(std::move(memory)) {}
  Status init();
  static Amounts most(const Limits& limits);
  static Upload divide_upload(const Limits& limits, const Amounts& amounts);
  static Answer divide_answer(const Limits& limits, const Amounts& amounts);
  static int64_t most_penalized(const Limits& limits);
  static int64_t num_mask_words(const Limits& limits) { return (limits.vocab_size + 31) / 32; }
  void write_lists(const SampleCall& call, const LogitsAdjustment& adjustment);
  template <typename T>
  T* to_upload(int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(host_upload_.data()) + offset);
  }
  template <typename T>
  const T* uploaded(int64_t offset) const {
    return reinterpret_cast<const T*>(static_cast<const char*>(memory_->upload.data()) + offset);
  }

  Ops& ops_;
  Limits limits_;
  std::shared_ptr<DeviceMemory> memory_;
  DeviceBuffer host_upload_;
  DeviceBuffer host_answer_;
  // Of the step:
  Amounts amounts_;
  Upload upload_parts_;
  Answer answer_parts_;
  int num_kept_ = 0;
  std::vector<Row> rows_;
  std::vector<int> host_rows_;
  std::vector<SamplingRow> sampling_rows_;
  std::vector<LogitsAdjustment> adjustments_;
  std::vector<SampleCall> adjusted_calls_;
  std::vector<LogprobsRow> logprobs_rows_;
  TensorView logits_;
  std::vector<float> seen_row_;  // scratch
};

}  // namespace quire
