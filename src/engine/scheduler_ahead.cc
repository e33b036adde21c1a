// Rows of the next step that are planned while a step runs: a token each for sequences that will most likely have one
// more to compute. What does not come true is dropped before the next step begins, or, where that has been launched
// already, before it is read.
#include <algorithm>

#include "engine/scheduler.h"

namespace quire {

void Scheduler::launch() {
  CHECK(!is_launched_);
  for (const StepRow& row : given_.rows) row.sequence->num_computed_tokens = row.end_position();
  is_launched_ = true;
}

void Scheduler::plan_ahead(Sequence& sequence) {
  CHECK(is_launched_ && sequence.num_seats == 1 && !sequence.is_planned_ahead);
  CHECK(sequence.num_computed_tokens == sequence.num_tokens() && sequence.pooling == Pooling::kNone);
  if (sequence.wants_prompt_logits()) return;
  const auto must_copy = [](const PageTable& table) { return table.must_copy_last_page(); };
  if (std::any_of(sequence.tables.begin(), sequence.tables.end(), must_copy)) return;
  if (pages_to_grow(sequence, 1) > pool_->num_available()) return;
  for (PageTable& table : sequence.tables) {
    const bool has_grown = table.grow(sequence.num_computed_tokens + 1, &plan_.copies);
    CHECK(has_grown);
  }
  sequence.is_planned_ahead = true;
  plan_.rows.push_back(
      {.sequence = &sequence, .first_position = sequence.num_computed_tokens, .num_tokens = 1, .num_logit_rows = 1});
  ++plan_.num_tokens;
  ++plan_.num_logit_rows;
}

bool Scheduler::can_launch_ahead() const {
  CHECK(is_launched_ && !is_next_launched_);
  const bool has_same_rows = std::equal(plan_.rows.begin(), plan_.rows.end(), given_.rows.begin(), given_.rows.end(),
                                        [](const StepRow& a, const StepRow& b) {
                                          return a.sequence == b.sequence && b.num_tokens == 1 && b.num_logit_rows == 1;
                                        });
  const bool may_admit = !waiting_.empty() && num_seats_taken() < config_.max_num_seqs;
  return has_same_rows && given_.rows.size() == num_given_rows_ && plan_.rows.size() == running_.size() &&
         !plan_.rows.empty() && !plan_.has_copies() && !may_admit && !has_new_due_ && plan_.num_tokens <= step_tokens_;
}

const StepPlan& Scheduler::launch_ahead() {
  CHECK(can_launch_ahead());
  is_next_launched_ = true;
  plan_.num_decode_rows = static_cast<int>(plan_.rows.size());
  number_logit_rows();
  num_next_rows_ = plan_.rows.size();
  return plan_;
}

const StepPlan& Scheduler::take_launched() {
  CHECK(is_next_launched_);
  is_next_launched_ = false;
  given_.clear();
  is_launched_ = false;
  take_ahead();
  plan_.num_decode_rows = static_cast<int>(plan_.rows.size());
  for (const StepRow& row : plan_.rows) row.sequence->is_planned_ahead = false;
  std::swap(plan_, given_);
  num_given_rows_ = num_next_rows_;
  return given_;
}

// The step has ended, and all that was planned ahead and is still there has come true.
void Scheduler::take_ahead() {
  for (const StepRow& row : plan_.rows) {
    Sequence& sequence = *row.sequence;
    CHECK(sequence.num_tokens() == row.end_position());
    release_behind(sequence);
    charge(sequence, row.first_position, row.end_position());
    sequence.num_stalled_steps = 0;
  }
}

// The sequence ends, or gives way.
void Scheduler::drop_ahead(Sequence& sequence) {
  if (!sequence.is_planned_ahead) return;
  sequence.is_planned_ahead = false;
  for (PageTable& table : sequence.tables) table.truncate(sequence.num_computed_tokens);
  const auto it = std::find_if(plan_.rows.begin(), plan_.rows.end(),
                               [&sequence](const StepRow& row) { return row.sequence == &sequence; });
  CHECK(it != plan_.rows.end());
  plan_.rows.erase(it);
  --plan_.num_tokens;
  --plan_.num_logit_rows;
}

}  // namespace quire
