// The step: schedule, run, plan and launch what comes next while it runs, read what it gave (engine_output.cc).
#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/active_request.h"
#include "engine/device_sampler.h"
#include "engine/engine.h"
#include "engine/model_runner.h"
#include "engine/parallel_sampler.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"

namespace quire {

namespace {

size_t step_bucket(int num_tokens) {
  const auto& bounds = EngineStats::kStepTokenBounds;
  return static_cast<size_t>(std::lower_bound(bounds.begin(), bounds.end(), num_tokens) - bounds.begin());
}

}  // namespace

Status Engine::step() {
  CHECK(!is_telling_);
  end_pending();
  if (stats_.num_generated_tokens > 0) ops_.do_late_work();
  const Clock::time_point begin = Clock::now();
  const bool was_launched = std::exchange(is_next_launched_, false);
  if (step_budget_.has_value()) scheduler_->set_step_tokens(step_budget_->num_tokens());
  const StepPlan& plan = was_launched ? scheduler_->take_launched() : scheduler_->schedule();
  int64_t step = next_step_;
  if (was_launched) {
    device_sampler_ = other_sampler();
    ++stats_.num_steps_ahead;
    if (plan.rows.empty()) return drop_launched(step);
  } else {
    stats_.num_preemptions += plan.num_preempted;
    stats_.num_swap_outs += plan.num_swapped_out;
    stats_.num_swap_ins += plan.num_swapped_in;
    if (plan.rows.empty()) {
      // With everything preempted this step is empty, and the next one admits again.
      if (plan.has_copies()) runner_->copy_pages(plan);
      scheduler_->complete();
      settle();
      return ok_status();
    }
    note_scheduled(plan, begin);
    step = pool_->begin_step();
    start(plan, /*num_ahead=*/0);
  }

  // While it runs:
  scheduler_->launch();
  stats_.kv_useful_share_sum += useful_share();
  publish();
  plan_ahead(plan);
  if (can_launch_ahead(plan)) launch_ahead();

  ASSIGN_OR_RETURN(const ModelRunner::Output output, runner_->finish());
  step_end_ = Clock::now();
  pool_->end_step(step);
  scheduler_->complete();
  int num_decode_tokens = 0;
  for (const StepRow& row : plan.rows) {
    if (row.num_tokens == 1 && row.first_position >= row.sequence->num_prompt_tokens) ++num_decode_tokens;
  }

  sample_ahead(plan, output.logits);
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const StepRow& row = plan.rows[r];
    if (row.sequence->pooling != Pooling::kNone) {
      read_hidden(row, output.hidden);
    } else if (row.num_logit_rows > 0) {
      read_logits(row, output.logits, std::move(samples_[r]));
    }
  }
  end_pending();

  ++stats_.num_steps;
  ++stats_.num_steps_by_tokens[step_bucket(plan.num_tokens)];
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const double decode_share = static_cast<double>(num_decode_tokens) / plan.num_tokens;
  stats_.num_decode_tokens += num_decode_tokens;
  stats_.num_prefill_tokens += plan.num_tokens - num_decode_tokens;
  stats_.decode_seconds += seconds * decode_share;
  stats_.prefill_seconds += seconds * (1.0 - decode_share);
  if (step_budget_.has_value()) step_budget_->observe(plan.num_tokens, plan.num_tokens - num_decode_tokens, seconds);
  if (requests_.empty()) settle();
  return ok_status();
}

// Everything that the step needs is enqueued, or on the CPU given to the runner's thread.
void Engine::start(const StepPlan& plan, int num_ahead) {
  if (num_ahead > 0) {
    runner_->begin_behind(plan);
  } else {
    runner_->begin(plan);
  }
  DeviceSampler* const next = other_sampler();
  if (next == nullptr) return;
  plan_sampling(*next, plan, num_ahead);
  runner_->sample(*next);
  if (num_ahead == 0) device_sampler_ = next;
}

DeviceSampler* Engine::other_sampler() const {
  return device_samplers_[device_sampler_ == device_samplers_[0].get() ? 1 : 0].get();
}

// All of its sequences have ended since it was launched.
Status Engine::drop_launched(int64_t step) {
  RETURN_IF_ERROR(runner_->finish().status());
  pool_->end_step(step);
  scheduler_->complete();
  settle();
  return ok_status();
}

// The next step may be enqueued before this one's tokens are known where these, which are on the device, are all that
// it lacks.
bool Engine::can_launch_ahead(const StepPlan& plan) {
  if (!options_.launches_ahead || device_sampler_ == nullptr || !device_sampler_->draws_all_unchanged() ||
      !runner_->can_begin_behind() || !scheduler_->can_launch_ahead()) {
    return false;
  }
  // Penalties and constraints go by the token that is being drawn.
  return std::none_of(plan.rows.begin(), plan.rows.end(), [this](const StepRow& row) {
    return row.sequence->sampling.constraint != nullptr || Sampler::needs_counts(owner_of(*row.sequence).sampling);
  });
}

void Engine::launch_ahead() {
  next_step_ = pool_->begin_step();
  start(scheduler_->launch_ahead(), /*num_ahead=*/1);
  is_next_launched_ = true;
}

// Rows of the next step, for those that will have another token to compute unless they stop.
void Engine::plan_ahead(const StepPlan& plan) {
  for (const StepRow& row : plan.rows) {
    Sequence& sequence = *row.sequence;
    const bool is_sampled = row.num_logit_rows > 0 && row.end_position() == sequence.num_tokens();
    if (!is_sampled || sequence.num_seats > 1 || sequence.pooling != Pooling::kNone) continue;
    const ActiveRequest& request = owner_of(sequence);
    const bool is_last = sequence.num_output_tokens() + 1 >= request.sampling.max_tokens ||
                         sequence.num_tokens() + 1 >= limits_.max_model_len;
    if (is_last || request.choices[static_cast<size_t>(sequence.choice_index)].is_ending) continue;
    scheduler_->plan_ahead(sequence);
  }
}

// What the device draws by itself.
void Engine::plan_sampling(DeviceSampler& sampler, const StepPlan& plan, int num_ahead) {
  sampler.begin(plan.num_logit_rows);
  for (const StepRow& row : plan.rows) {
    const Sequence& sequence = *row.sequence;
    if (row.num_logit_rows == 0) continue;
    const ActiveRequest& request = owner_of(sequence);
    int64_t position = row.end_position() - row.num_logit_rows;
    for (int r = row.first_logit_row; r < row.first_logit_row + row.num_logit_rows; ++r, ++position) {
      if (position >= sequence.next_prompt_logit && position < sequence.num_prompt_tokens - 1) {
        const int32_t next = sequence.token_ids[static_cast<size_t>(position + 1)];
        (void)sampler.add_given(r, next, request.sampling.num_prompt_logprobs);
      } else if (position + 1 < sequence.num_tokens() + num_ahead) {
        sampler.add_check(r);
      } else if (sequence.num_seats == 1) {
        (void)sampler.add(r, sample_call(request, sequence, {}, num_ahead));
      }
    }
  }
  sampler.prepare(parallel_sampler_ == nullptr ? nullptr : &parallel_sampler_->pool());
}

// Of the requests whose first row is in the plan. A sequence that has just been admitted still reads its prompt.
void Engine::note_scheduled(const StepPlan& plan, Clock::time_point now) {
  for (size_t r = static_cast<size_t>(plan.num_decode_rows); r < plan.rows.size(); ++r) {
    const Sequence& sequence = *plan.rows[r].sequence;
    ActiveRequest& request = owner_of(sequence);
    if (request.was_scheduled) continue;
    request.was_scheduled = true;
    request.first_scheduled = now;
    request.num_cached_tokens = static_cast<int>(sequence.num_cached_tokens);
    --num_requests_queued_;
    stats_.num_prompt_tokens += request.num_prompt_tokens;
    stats_.num_cached_tokens += sequence.num_cached_tokens;
    if (prefix_cache_ != nullptr && !sequence.needs_every_position()) {
      stats_.num_queried_tokens += request.num_prompt_tokens;
    }
  }
}

// Of the slots of the pages in use, those that hold a token; shared pages are counted once.
double Engine::useful_share() {
  const int64_t page_size = options_.page_size;
  int64_t num_empty = 0;
  for (const auto& sequence : scheduler_->running()) {
    for (const PageTable& table : sequence->tables) {
      const int64_t num_in_last = table.num_tokens() % page_size;
      if (num_in_last == 0) continue;
      int64_t& mark = page_marks_[static_cast<size_t>(table.page_ids().back())];
      if (std::exchange(mark, stats_.num_steps) != stats_.num_steps) num_empty += page_size - num_in_last;
    }
  }
  const int64_t num_slots = pool_->num_used() * page_size;
  return num_slots == 0 ? 1.0 : 1.0 - static_cast<double>(num_empty) / static_cast<double>(num_slots);
}

}  // namespace quire
