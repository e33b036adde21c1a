// What a step is to compute, in words that the scheduler knows: sequences, positions, counts. Made by engine/scheduler,
// turned into tensors by engine/batch_builder. Constant once made.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/sequence.h"
#include "kv/page_table.h"

namespace quire {

struct StepRow {
  Sequence* sequence = nullptr;
  int64_t first_position = 0;
  int num_tokens = 0;       // [first_position, first_position + num_tokens) are computed
  int num_drafts = 0;       // of them, the last so many are guesses that have yet to be accepted
  int num_logit_rows = 0;   // logits are wanted of the last so many
  int first_logit_row = 0;  // in the step's logits

  int64_t end_position() const { return first_position + num_tokens; }
};

struct StepPlan {
  std::vector<StepRow> rows;            // those that decode, then those that still read their prompt
  std::vector<PageCopyRequest> copies;  // before anything is written
  int num_tokens = 0;
  int num_logit_rows = 0;
  int num_decode_rows = 0;  // leading rows of one token that ends in a sample
  int num_preempted = 0;

  void clear() {
    rows.clear();
    copies.clear();
    num_tokens = num_logit_rows = num_decode_rows = num_preempted = 0;
  }
};

}  // namespace quire
