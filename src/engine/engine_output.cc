// From a step's logits to events. Requests end in one place, close_choice.
#include <algorithm>
#include <cmath>

#include "engine/active_request.h"
#include "engine/device_sampler.h"
#include "engine/engine.h"
#include "engine/parallel_sampler.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"

namespace quire {

namespace {

// Waking a thread takes about as long as drawing a token.
constexpr size_t kFewestSideBySide = 4;

bool contains(std::span<const int32_t> tokens, int32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

}  // namespace

ActiveRequest* Engine::find(RequestId request_id) {
  const auto it = requests_.find(request_id);
  return it == requests_.end() ? nullptr : it->second.get();
}

ActiveRequest& Engine::owner_of(const Sequence& sequence) {
  ActiveRequest* const request = find(sequence.request_id);
  CHECK(request != nullptr);
  return *request;
}

std::span<const float> Engine::logit_row(std::span<const float> logits, int row) const {
  const size_t vocab_size = static_cast<size_t>(model_.config().vocab_size);
  return logits.subspan(static_cast<size_t>(row) * vocab_size, vocab_size);
}

void Engine::read_logits(const StepRow& row, std::span<const float> logits, std::optional<Result<Sample>> sample) {
  Sequence& sequence = *row.sequence;
  ActiveRequest* const request = &owner_of(sequence);
  if (sequence.next_prompt_logit < sequence.num_prompt_tokens - 1) {
    const Status status = read_prompt_logprobs(*request, row, logits);
    if (!status.is_ok()) {
      fail(*request, sequence, status);
      return;
    }
  }
  const std::span<const float> last = logit_row(logits, row.first_logit_row + row.num_logit_rows - 1);
  if (row.end_position() < sequence.num_tokens()) {
    // Others wait for the pages that it has computed so far: they are theirs if they are good.
    const Status seen =
        sample.has_value() ? sample->status() : sampler_->logprobs_of(last, sequence.token_ids.front(), 0).status();
    if (!seen.is_ok()) {
      fail(*request, sequence, seen);
      return;
    }
    scheduler_->keep_pages(sequence);
    return;
  }
  if (request->sampling.max_tokens == 0) {
    end_all(request->id, FinishReason::kLength);
    return;
  }
  if (sequence.num_seats == 1) {
    if (request->choices[static_cast<size_t>(sequence.choice_index)].is_ending) return;
    sample_choice(*request, sequence,
                  sample.has_value() ? std::move(*sample) : sampler_->sample(sample_call(*request, sequence, last)));
    return;
  }
  fork_choices(*request, sequence);
  for (const RequestId id = request->id; Sequence * forked : forked_) {
    ActiveRequest* const rest = find(id);
    if (rest == nullptr) return;  // the request goes with its last choice
    if (rest->choices[static_cast<size_t>(forked->choice_index)].is_ending) continue;
    sample_choice(*rest, *forked, sampler_->sample(sample_call(*rest, *forked, last)));
  }
}

// Rows do not depend on each other, so their samples are made before any is told of: those that the device has drawn,
// and side by side those of other rows with one choice. The rest is sampled when it is read.
void Engine::sample_ahead(const StepPlan& plan, std::span<const float> logits) {
  samples_.clear();
  samples_.resize(plan.rows.size());
  sample_calls_.clear();
  sample_targets_.clear();
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const StepRow& row = plan.rows[r];
    const Sequence& sequence = *row.sequence;
    if (row.num_logit_rows == 0 || sequence.pooling != Pooling::kNone) continue;
    const int last_row = row.first_logit_row + row.num_logit_rows - 1;
    if (device_sampler_ != nullptr && device_sampler_->is_drawn(last_row)) {
      samples_[r] = device_sampler_->sample_of(last_row);
      continue;
    }
    if (parallel_sampler_ == nullptr || sequence.num_seats > 1 || row.end_position() < sequence.num_tokens()) continue;
    const ActiveRequest& request = owner_of(sequence);
    if (request.sampling.max_tokens == 0) continue;
    sample_calls_.push_back(sample_call(request, sequence, logit_row(logits, last_row)));
    sample_targets_.push_back(&samples_[r]);
  }
  if (sample_calls_.size() >= kFewestSideBySide) parallel_sampler_->sample(sample_calls_, sample_targets_);
}

// A row may bring positions that have been read before: after preemption they are computed once more.
void Engine::read_hidden(const StepRow& row, std::span<const float> hidden) {
  ActiveRequest& request = owner_of(*row.sequence);
  const size_t hidden_size = request.pooled.size();
  const bool is_mean = request.pooling == Pooling::kMean;
  for (int h = 0; h < row.num_hidden_rows; ++h) {
    const int64_t position = row.first_position + row.first_hidden_token + h;
    if (position < request.num_pooled) continue;
    request.num_pooled = position + 1;
    const float* values = hidden.data() + static_cast<size_t>(row.first_hidden_row + h) * hidden_size;
    for (size_t i = 0; i < hidden_size; ++i) {
      request.pooled[i] = is_mean ? request.pooled[i] + double{values[i]} : double{values[i]};
    }
  }
  const bool is_ending = request.choices[0].is_ending;
  if (row.end_position() == row.sequence->num_tokens() && !is_ending) finish_embedding(request, *row.sequence);
}

// The whole prompt has been computed.
void Engine::finish_embedding(ActiveRequest& request, Sequence& sequence) {
  double scale = request.pooling == Pooling::kMean ? 1.0 / static_cast<double>(request.num_pooled) : 1.0;
  if (request.is_normalized) {
    double squares = 0.0;
    for (const double value : request.pooled) squares += value * value;
    // The length is that of the scaled vector; nothing at all stays nothing, as in PyTorch.
    scale /= std::max(std::sqrt(squares) * scale, 1e-12);
  }
  embedding_.clear();
  for (const double value : request.pooled) embedding_.push_back(static_cast<float>(value * scale));
  if (!std::all_of(embedding_.begin(), embedding_.end(), [](float value) { return std::isfinite(value); })) {
    fail(request, sequence,
         internal_error("the model's hidden states are not numbers for this prompt: nothing can be made of it"));
    return;
  }
  scheduler_->keep_pages(sequence);
  ActiveChoice& choice = request.choices[0];
  choice.first_token = choice.last_token = step_end_;
  TokenEvent event;
  event.finish_reason = FinishReason::kStop;
  event.embedding = embedding_;
  emit(request, event);
  close_choice(request, 0);
}

Status Engine::read_prompt_logprobs(ActiveRequest& request, const StepRow& row, std::span<const float> logits) {
  Sequence& sequence = *row.sequence;
  const int64_t first = row.end_position() - row.num_logit_rows;
  CHECK(first == sequence.next_prompt_logit);
  const int64_t end = std::min(row.end_position(), sequence.num_prompt_tokens - 1);
  for (int64_t position = first; position < end; ++position) {
    const int r = row.first_logit_row + static_cast<int>(position - first);
    if (device_sampler_ != nullptr && device_sampler_->is_drawn(r)) {
      ASSIGN_OR_RETURN(Sample given, device_sampler_->sample_of(r));
      request.prompt_logprobs.push_back(std::move(given.logprobs));
      continue;
    }
    ASSIGN_OR_RETURN(TokenLogprobs entry,
                     sampler_->logprobs_of(logit_row(logits, r), sequence.token_ids[static_cast<size_t>(position + 1)],
                                           request.sampling.num_prompt_logprobs));
    request.prompt_logprobs.push_back(std::move(entry));
  }
  sequence.next_prompt_logit = end;
  return ok_status();
}

// The prompt has been computed by one sequence: now every choice gets its own. Fills forked_.
void Engine::fork_choices(ActiveRequest& request, Sequence& sequence) {
  forked_.assign(1, &sequence);
  for (size_t c = 0; c < request.choices.size(); ++c) {
    ActiveChoice& choice = request.choices[c];
    if (choice.is_finished || choice.sequence == &sequence) continue;
    choice.sequence = scheduler_->fork(sequence, static_cast<int>(c));
    choice.sequence->sampling.counts = sequence.sampling.counts;
    if (sequence.sampling.constraint != nullptr) {
      choice.sequence->sampling.constraint = sequence.sampling.constraint->clone();
    }
    forked_.push_back(choice.sequence);
  }
  CHECK(sequence.num_seats == 1);
}

SampleCall Engine::sample_call(const ActiveRequest& request, const Sequence& sequence, std::span<const float> logits,
                               int num_ahead) const {
  const int64_t output_index = sequence.num_output_tokens() + num_ahead;
  const bool may_stop = output_index >= request.sampling.min_tokens;
  return {
      .logits = logits,
      .params = request.sampling,
      .state = sequence.sampling,
      .seed = request.seed,
      .choice_index = sequence.choice_index,
      .output_index = output_index,
      .suppressed_token_ids = may_stop ? std::span<const int32_t>() : std::span<const int32_t>(request.stop_tokens)};
}

void Engine::sample_choice(ActiveRequest& request, Sequence& sequence, Result<Sample> sample) {
  const int choice_index = sequence.choice_index;
  const SamplingParams& sampling = request.sampling;
  const bool may_stop = sequence.num_output_tokens() >= sampling.min_tokens;
  if (!sample.is_ok()) {
    fail(request, sequence, sample.status());
    return;
  }
  const int32_t token = sample.value().token_id;
  scheduler_->keep_pages(sequence);
  sequence.token_ids.push_back(token);
  if (Sampler::needs_counts(sampling)) Sampler::count_output(sequence.sampling, token);
  if (sequence.sampling.constraint != nullptr) sequence.sampling.constraint->accept(token);
  ++stats_.num_generated_tokens;
  ActiveChoice& choice = request.choices[static_cast<size_t>(choice_index)];
  if (choice.first_token == Clock::time_point{}) choice.first_token = step_end_;
  choice.last_token = step_end_;

  TokenEvent event;
  event.choice_index = choice_index;
  event.token_ids = std::span(&token, 1);
  if (sampling.num_logprobs >= 0) event.logprobs = std::span(&sample.value().logprobs, 1);
  if (contains(request.stop_tokens, token) && may_stop) {
    event.finish_reason = FinishReason::kStop;
    event.stop_token_id = token;
  } else if (sequence.num_output_tokens() >= sampling.max_tokens || sequence.num_tokens() >= limits_.max_model_len) {
    event.finish_reason = FinishReason::kLength;
  }
  emit(request, event);
  if (event.finish_reason != FinishReason::kNone) close_choice(request, choice_index);
}

// The sequence's contents cannot be trusted: its choice ends, or all of them while it stands for all.
void Engine::fail(ActiveRequest& request, Sequence& sequence, const Status& status) {
  scheduler_->forget_pages(sequence);
  if (sequence.num_seats > 1) {
    end_all(request.id, FinishReason::kError, status);
  } else {
    end_choice(request, sequence.choice_index, FinishReason::kError, status);
  }
}

void Engine::emit(ActiveRequest& request, TokenEvent& event) {
  event.request_id = request.id;
  event.num_prompt_tokens = static_cast<int>(request.num_prompt_tokens);
  event.num_cached_tokens = request.num_cached_tokens;
  if (!request.has_told_prompt_logprobs) {
    event.prompt_logprobs = request.prompt_logprobs;
    request.has_told_prompt_logprobs = true;
  }
  const ActiveChoice& choice = request.choices[static_cast<size_t>(event.choice_index)];
  event.times = {.arrived = request.arrived,
                 .first_scheduled = request.first_scheduled,
                 .first_token = choice.first_token,
                 .last_token = choice.last_token,
                 .finished = {},
                 .num_preemptions = choice.sequence != nullptr ? choice.sequence->num_preemptions : 0};
  if (event.finish_reason != FinishReason::kNone) {
    event.times.finished = Clock::now();
    ++stats_.num_finished[static_cast<size_t>(event.finish_reason)];
  }
  held_events_.add(request.sink, event);
}

void Engine::end_choice(ActiveRequest& request, int choice_index, FinishReason reason, const Status& error) {
  if (request.choices[static_cast<size_t>(choice_index)].is_finished) return;
  TokenEvent event;
  event.choice_index = choice_index;
  event.finish_reason = reason;
  event.error = error;
  emit(request, event);
  close_choice(request, choice_index);
}

void Engine::end_all(RequestId request_id, FinishReason reason, const Status& error) {
  const ActiveRequest* request = find(request_id);
  const int num_choices = request == nullptr ? 0 : static_cast<int>(request->choices.size());
  for (int c = 0; c < num_choices; ++c) {
    ActiveRequest* rest = find(request_id);  // gone once its last choice has ended
    if (rest == nullptr) return;
    end_choice(*rest, c, reason, error);
  }
}

// Gives back what the choice holds. The request itself goes with its last choice: do not touch it afterwards.
void Engine::close_choice(ActiveRequest& request, int choice_index) {
  ActiveChoice& choice = request.choices[static_cast<size_t>(choice_index)];
  CHECK(!choice.is_finished);
  choice.is_finished = true;
  --request.num_unfinished;
  if (Sequence* sequence = choice.sequence; sequence != nullptr && (sequence->num_seats == 1)) {
    scheduler_->finish(sequence);
    choice.sequence = nullptr;
  } else {
    // Not forked yet: one seat less for the sequence that stands for all, which goes on for another choice.
    Sequence* shared = nullptr;
    for (ActiveChoice& other : request.choices) shared = other.sequence != nullptr ? other.sequence : shared;
    if (shared != nullptr) {
      --shared->num_seats;
      choice.sequence = nullptr;
      if (shared->choice_index == choice_index) {
        for (size_t c = 0; c < request.choices.size(); ++c) {
          if (request.choices[c].is_finished) continue;
          shared->choice_index = static_cast<int>(c);
          request.choices[c].sequence = shared;
          break;
        }
      }
    }
  }
  if (request.num_unfinished > 0) return;
  if (!request.was_scheduled) --num_requests_queued_;
  requests_.erase(request.id);
}

void Engine::abort(RequestId request_id, AbortReason reason) {
  ActiveRequest* request = find(request_id);
  if (request == nullptr) return;
  if (std::exchange(request->is_aborting, true)) return;
  ++stats_.num_aborted[static_cast<size_t>(reason)];
  for (ActiveChoice& choice : request->choices) choice.is_ending = true;
  pending_endings_.push_back({request_id, -1, FinishReason::kAborted});
  if (!is_telling_) settle();
}

void Engine::abort_all(AbortReason reason) {
  CHECK(!is_telling_);
  while (!requests_.empty()) abort(requests_.begin()->first, reason);
}

void Engine::fail_all(const Status& error) {
  CHECK(!is_telling_);
  while (!requests_.empty()) end_all(requests_.begin()->first, FinishReason::kError, error);
  publish();
  pending_endings_.clear();
}

void Engine::stop_choice(RequestId request_id, int choice_index) {
  ActiveRequest* request = find(request_id);
  if (request == nullptr || choice_index < 0 || choice_index >= static_cast<int>(request->choices.size())) return;
  request->choices[static_cast<size_t>(choice_index)].is_ending = true;
  pending_endings_.push_back({request_id, choice_index, FinishReason::kStop});
  if (!is_telling_) settle();
}

// Ends what was asked for.
void Engine::end_pending() {
  for (const Ending& ending : pending_endings_) {
    if (ending.choice_index < 0) {
      end_all(ending.request_id, ending.reason);
    } else if (ActiveRequest* request = find(ending.request_id); request != nullptr) {
      end_choice(*request, ending.choice_index, ending.reason);
    }
  }
  pending_endings_.clear();
}

// Sinks may ask for ends, which come later: a step may be running. Of a choice whose end is asked for no more tokens
// are told.
void Engine::publish() {
  is_telling_ = true;
  held_events_.tell([this](const TokenEvent& event) {
    if (pending_endings_.empty() || event.finish_reason != FinishReason::kNone) return true;
    const ActiveRequest* const request = find(event.request_id);
    if (request == nullptr) return true;
    const ActiveChoice& choice = request->choices[static_cast<size_t>(event.choice_index)];
    return choice.is_finished || !choice.is_ending;
  });
  is_telling_ = false;
}

// Between steps: ends what was asked for, and tells everything, until nobody asks for more.
void Engine::settle() {
  do {
    end_pending();
    publish();
  } while (!pending_endings_.empty());
}

}  // namespace quire
