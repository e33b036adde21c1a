// What a step is to compute, in words that the scheduler knows: sequences, positions, counts. Made by engine/scheduler,
// turned into tensors by engine/batch_builder. Constant once made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/sequence.h"
#include "kv/page_table.h"
#include "kv/swap_space.h"

namespace quire {

struct StepRow {
  Sequence* sequence = nullptr;
  int64_t first_position = 0;
  int num_tokens = 0;       // [first_position, first_position + num_tokens) are computed
  int num_drafts = 0;       // of them, the last so many are guesses that have yet to be accepted
  int num_logit_rows = 0;   // logits are wanted of the last so many
  int first_logit_row = 0;  // in the step's logits
  // Of sequences with a pooling: hidden states are wanted of so many of its tokens, from this one of them on.
  int num_hidden_rows = 0;
  int first_hidden_token = 0;
  int first_hidden_row = 0;  // in the step's hidden states

  int64_t end_position() const { return first_position + num_tokens; }
  // Its tokens that are of the prompt come first; the others were drawn.
  int num_prompt_tokens() const {
    return static_cast<int>(std::clamp<int64_t>(sequence->num_prompt_tokens - first_position, 0, num_tokens));
  }
  // Where bits must not depend on what is computed together, attention takes prompt and drawn tokens apart, and each
  // drawn one by itself.
  int num_strict_parts() const { return std::min(num_prompt_tokens(), 1) + num_tokens - num_prompt_tokens(); }
};

// So many parts more than sequences may a step have: drawn tokens that are computed again.
constexpr int kMostExtraParts = 64;

// What is copied, in this order, before anything is written: pages out to the swap space (this very step may give them
// to others), pages back from it, pages inside the pool.
struct StepPlan {
  std::vector<SwapCopy> swap_outs;
  std::vector<SwapCopy> swap_ins;
  std::vector<PageCopyRequest> copies;
  std::vector<StepRow> rows;  // those that decode, then those that still read their prompt
  int num_tokens = 0;
  int num_logit_rows = 0;
  int num_hidden_rows = 0;
  int num_extra_parts = 0;  // of rows, beside one each; only where bits must not depend on what is computed together
  int num_decode_rows = 0;  // leading rows of one token that ends in a sample
  int num_preempted = 0;    // sequences that gave way
  int num_swapped_out = 0;  // of them, those whose pages are kept in the swap space; the others compute again
  int num_swapped_in = 0;

  void clear() {
    rows.clear();
    clear_copies();
    num_tokens = num_logit_rows = num_hidden_rows = num_extra_parts = num_decode_rows = 0;
    num_preempted = num_swapped_out = num_swapped_in = 0;
  }
  void clear_copies() {
    swap_outs.clear();
    swap_ins.clear();
    copies.clear();
  }
  bool has_copies() const { return !swap_outs.empty() || !swap_ins.empty() || !copies.empty(); }
};

}  // namespace quire
