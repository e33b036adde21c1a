// The scheduler's rules. See the header for the order in which they apply.
#include "engine/scheduler.h"

#include <algorithm>

namespace quire {

namespace {

bool goes_before(const Sequence& a, const Sequence& b) {
  if (a.is_due != b.is_due) return a.is_due;
  if (a.priority != b.priority) return a.priority < b.priority;
  if (a.arrival != b.arrival) return a.arrival < b.arrival;
  return a.choice_index < b.choice_index;
}

bool waits_before(const Sequence& a, const Sequence& b) {
  if (a.is_due == b.is_due && a.priority == b.priority && a.was_admitted != b.was_admitted) return a.was_admitted;
  return goes_before(a, b);
}

int64_t num_left(const Sequence& sequence) {
  return sequence.num_tokens() - sequence.num_computed_tokens;
}

}  // namespace

Scheduler::Scheduler(SchedulerConfig config, PagePool* pool, PrefixCache* prefix_cache, SwapSpace* swap_space)
    : config_(std::move(config)),
      step_tokens_(config_.max_num_batched_tokens),
      pool_(pool),
      prefix_cache_(prefix_cache),
      swap_space_(swap_space) {
  CHECK(config_.max_num_seqs > 0);
  CHECK(config_.max_num_batched_tokens >= config_.max_num_seqs);
  CHECK(config_.max_logit_rows >= config_.max_num_seqs);
  running_.reserve(static_cast<size_t>(config_.max_num_seqs));
  readers_.reserve(static_cast<size_t>(config_.max_num_seqs));
  plan_.rows.reserve(static_cast<size_t>(config_.max_num_seqs));
  given_.rows.reserve(static_cast<size_t>(config_.max_num_seqs));
}

Scheduler::~Scheduler() {
  plan_.clear();
  given_.clear();
}

void Scheduler::set_step_tokens(int num_tokens) {
  CHECK(num_tokens >= config_.max_num_seqs && num_tokens <= config_.max_num_batched_tokens);
  step_tokens_ = num_tokens;
}

int64_t Scheduler::max_pages_of(int64_t num_tokens) const {
  int64_t total = 0;
  for (const int window : config_.group_windows) {
    total += PageTable::max_pages(num_tokens, config_.page_size, window, config_.max_num_batched_tokens);
  }
  return total;
}

Status Scheduler::check_fits(int64_t num_prompt_tokens, int64_t max_tokens) const {
  if (num_prompt_tokens > config_.max_model_len || (max_tokens > 0 && num_prompt_tokens + 1 > config_.max_model_len)) {
    return invalid_argument("the prompt has " + std::to_string(num_prompt_tokens) + " tokens, but the context is " +
                            std::to_string(config_.max_model_len) +
                            " tokens, prompt and answer together: shorten the prompt, or raise what limits it: "
                            "--max-model-len, up to what the model allows, or --kv-cache-memory");
  }
  const int64_t longest =
      max_tokens > config_.max_model_len - num_prompt_tokens ? config_.max_model_len : num_prompt_tokens + max_tokens;
  const int64_t num_needed = max_pages_of(longest);
  if (num_needed > pool_->num_pages()) {
    return resource_exhausted("the request may grow to " + std::to_string(longest) + " tokens, which take " +
                              std::to_string(num_needed) + " KV pages, but there are " +
                              std::to_string(pool_->num_pages()) +
                              " in all: lower max_tokens, shorten the prompt or raise --kv-cache-memory");
  }
  return ok_status();
}

Sequence* Scheduler::add(std::unique_ptr<Sequence> sequence) {
  CHECK(sequence->num_tokens() > 0);
  CHECK(sequence->num_seats <= config_.max_num_seqs);
  sequence->arrival = next_arrival_++;
  for (const int window : config_.group_windows) sequence->tables.emplace_back(pool_, config_.page_size, window);
  sequence->share = shares_.join(sequence->share_key);
  Sequence* added = sequence.get();
  insert_in_order(std::move(sequence), /*is_running=*/false);
  return added;
}

void Scheduler::insert_in_order(std::unique_ptr<Sequence> sequence, bool is_running) {
  const auto insert = [&sequence](auto& list, bool (*is_before)(const Sequence&, const Sequence&)) {
    const auto at = std::upper_bound(list.begin(), list.end(), sequence,
                                     [is_before](const auto& a, const auto& b) { return is_before(*a, *b); });
    list.insert(at, std::move(sequence));
  };
  if (is_running) {
    insert(running_, goes_before);
  } else {
    insert(waiting_, waits_before);
  }
}

// Somebody has been passed over for too long.
void Scheduler::put_due_first() {
  has_new_due_ = false;
  std::stable_sort(running_.begin(), running_.end(), [](const auto& a, const auto& b) { return goes_before(*a, *b); });
  std::stable_sort(waiting_.begin(), waiting_.end(), [](const auto& a, const auto& b) { return waits_before(*a, *b); });
}

const StepPlan& Scheduler::schedule() {
  CHECK(!is_next_launched_);
  given_.clear();
  is_launched_ = false;
  if (has_new_due_) put_due_first();
  take_ahead();
  schedule_decodes();
  plan_.num_decode_rows = static_cast<int>(plan_.rows.size());
  schedule_prefills();
  number_logit_rows();
  std::swap(plan_, given_);
  num_given_rows_ = given_.rows.size();
  return given_;
}

void Scheduler::schedule_decodes() {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (num_left(sequence) != 1 || sequence.is_planned_ahead) continue;
    // Sequences go from oldest to newest, so the one that gives way has no row yet, or one that was planned ahead and
    // is dropped; in the end it is this one itself.
    bool has_room = grow(sequence, 1);
    while (!has_room && running_.size() > i + 1) {
      preempt_newest();
      has_room = grow(sequence, 1);
    }
    if (has_room) {
      add_row(sequence, 1);
    } else {
      preempt_newest();
    }
  }
  for (const StepRow& row : plan_.rows) row.sequence->is_planned_ahead = false;
}

// Those that read and those that wait, in one order, so that a long prompt of one client does not keep another out.
void Scheduler::schedule_prefills() {
  readers_.clear();
  for (const auto& sequence : running_) {
    if (num_left(*sequence) != 1) readers_.push_back(sequence.get());
  }
  if (shares_.num_active_keys() > 1) {
    std::stable_sort(readers_.begin(), readers_.end(),
                     [this](const Sequence* a, const Sequence* b) { return reads_before(*a, *b); });
  }
  bool can_admit = plan_.num_preempted == 0;
  for (Sequence* reader : readers_) {
    while (can_admit && can_admit_before(reader)) can_admit = admit_next();
    read_chunk(*reader);
    if (reader->num_stalled_steps >= config_.max_stalled_steps && !reader->is_due) {
      reader->is_due = true;
      has_new_due_ = true;
    }
  }
  while (can_admit) can_admit = admit_next();
  // Nobody moves, so waiting would be for ever: the newest give way until the oldest can.
  while (plan_.rows.empty() && !running_.empty()) {
    preempt_newest();
    if (!running_.empty()) read_chunk(*running_.front());
  }
}

// Among equals the key that has been served less, then who came first.
bool Scheduler::reads_before(const Sequence& a, const Sequence& b) const {
  if (a.is_due != b.is_due || a.priority != b.priority || a.share->num_served == b.share->num_served) {
    return goes_before(a, b);
  }
  return a.share->num_served < b.share->num_served;
}

// As much of the next chunk as there are pages for.
void Scheduler::read_chunk(Sequence& sequence) {
  ++sequence.num_stalled_steps;
  int64_t chunk = largest_chunk(sequence);
  if (chunk <= 0) return;
  release_behind(sequence);
  if (pages_to_grow(sequence, chunk) > pool_->num_available()) {
    int64_t fits = 0;
    while (fits + 1 < chunk) {
      const int64_t middle = fits + (chunk - fits) / 2;
      (pages_to_grow(sequence, middle) <= pool_->num_available() ? fits : chunk) = middle;
    }
    chunk = fits;
  }
  if (chunk <= 0) return;
  const bool has_grown = grow(sequence, chunk);
  CHECK(has_grown);
  add_row(sequence, chunk);
}

int64_t Scheduler::largest_chunk(const Sequence& sequence) const {
  int64_t chunk = std::min<int64_t>(num_left(sequence), step_tokens_ - plan_.num_tokens);
  const int64_t rows_left = config_.max_logit_rows - plan_.num_logit_rows;
  if (sequence.wants_prompt_logits()) {
    // One row a position from next_prompt_logit on, the last position's sample included.
    const int64_t num_without = std::max<int64_t>(sequence.next_prompt_logit - sequence.num_computed_tokens, 0);
    chunk = std::min(chunk, num_without + rows_left);
  } else if (rows_left <= 0 && sequence.pooling == Pooling::kNone) {
    chunk = std::min(chunk, num_left(sequence) - 1);
  }
  if (config_.is_strict) {
    const int64_t num_of_prompt = std::max<int64_t>(sequence.num_prompt_tokens - sequence.num_computed_tokens, 0);
    const int64_t num_drawn = kMostExtraParts - plan_.num_extra_parts + (num_of_prompt > 0 ? 0 : 1);
    chunk = std::min(chunk, num_of_prompt + num_drawn);
  }
  return chunk;
}

int64_t Scheduler::pages_to_grow(const Sequence& sequence, int64_t num_tokens) const {
  int64_t total = 0;
  for (const PageTable& table : sequence.tables) {
    total += table.pages_to_grow(sequence.num_computed_tokens + num_tokens);
  }
  return total;
}

// Pages that the rest of what it has to read will take, less those that its windows will leave behind.
int64_t Scheduler::pages_still_to_come(const Sequence& sequence) const {
  int64_t total = 0;
  for (const PageTable& table : sequence.tables) {
    const int64_t most =
        PageTable::max_pages(sequence.num_tokens(), config_.page_size, table.window(), config_.max_num_batched_tokens);
    total += std::min<int64_t>(table.pages_to_grow(sequence.num_tokens()),
                               std::max<int64_t>(most - table.num_held_pages(), 0));
  }
  return total;
}

void Scheduler::release_behind(Sequence& sequence) {
  for (PageTable& table : sequence.tables) table.release_behind(sequence.num_computed_tokens);
}

// Room for the next `num_tokens` tokens in all groups, or nothing at all.
bool Scheduler::grow(Sequence& sequence, int64_t num_tokens) {
  release_behind(sequence);
  if (pages_to_grow(sequence, num_tokens) > pool_->num_available()) return false;
  for (PageTable& table : sequence.tables) {
    const bool has_grown = table.grow(sequence.num_computed_tokens + num_tokens, &plan_.copies);
    CHECK(has_grown);
  }
  return true;
}

void Scheduler::add_row(Sequence& sequence, int64_t num_tokens) {
  StepRow row;
  row.sequence = &sequence;
  row.first_position = sequence.num_computed_tokens;
  row.num_tokens = static_cast<int>(num_tokens);
  const int64_t end = row.end_position();
  if (sequence.pooling != Pooling::kNone) {
    want_hidden_rows(sequence, row);
  } else if (sequence.wants_prompt_logits()) {
    row.num_logit_rows =
        static_cast<int>(std::max<int64_t>(end - std::max(row.first_position, sequence.next_prompt_logit), 0));
  } else {
    row.num_logit_rows = end == sequence.num_tokens() ? 1 : 0;
  }
  plan_.num_tokens += row.num_tokens;
  plan_.num_logit_rows += row.num_logit_rows;
  if (config_.is_strict) plan_.num_extra_parts += row.num_strict_parts() - 1;
  plan_.rows.push_back(row);
  sequence.num_stalled_steps = 0;
  charge(sequence, row.first_position, end);
}

// What a pooled sequence wants instead of logits.
void Scheduler::want_hidden_rows(const Sequence& sequence, StepRow& row) {
  row.first_hidden_row = plan_.num_hidden_rows;
  if (sequence.pooling == Pooling::kMean) {
    row.num_hidden_rows = row.num_tokens;
  } else if (sequence.pooling == Pooling::kCls) {
    row.num_hidden_rows = row.first_position == 0 ? 1 : 0;
  } else {
    row.num_hidden_rows = row.end_position() == sequence.num_tokens() ? 1 : 0;
    row.first_hidden_token = row.num_tokens - 1;
  }
  plan_.num_hidden_rows += row.num_hidden_rows;
}

// The key pays for what is computed the first time; what was found, or is computed again, is free.
void Scheduler::charge(Sequence& sequence, int64_t first_position, int64_t end_position) {
  const int64_t first = std::max(first_position, sequence.num_charged_tokens);
  if (first >= end_position) return;
  const int64_t num_prompt = std::max<int64_t>(std::min(end_position, sequence.num_prompt_tokens) - first, 0);
  sequence.share->num_served +=
      TokenShares::kPromptWeight * num_prompt + TokenShares::kOutputWeight * (end_position - first - num_prompt);
  sequence.num_charged_tokens = end_position;
}

// Rows whose pages others wait for get logits at their end, so that it is known at once whether the pages are good.
void Scheduler::number_logit_rows() {
  int next = 0;
  for (StepRow& row : plan_.rows) {
    const Sequence& sequence = *row.sequence;
    if (row.num_logit_rows == 0 && sequence.num_waiters > 0 && !sequence.needs_every_position() &&
        plan_.num_logit_rows < config_.max_logit_rows &&
        row.end_position() / config_.page_size > sequence.num_kept_pages) {
      row.num_logit_rows = 1;
      ++plan_.num_logit_rows;
    }
    row.first_logit_row = next;
    next += row.num_logit_rows;
  }
  CHECK(next == plan_.num_logit_rows);
}

bool Scheduler::is_scheduled(const Sequence& sequence) const {
  return std::any_of(plan_.rows.begin(), plan_.rows.end(),
                     [&](const StepRow& row) { return row.sequence == &sequence; });
}

void Scheduler::complete() {
  if (!is_launched_) launch();
  given_.clear_copies();
}

Sequence* Scheduler::fork(Sequence& parent, int choice_index) {
  CHECK(parent.num_seats > 1);
  --parent.num_seats;
  auto child = std::make_unique<Sequence>();
  child->request_id = parent.request_id;
  child->choice_index = choice_index;
  child->priority = parent.priority;
  child->arrival = parent.arrival;
  child->adapter_id = parent.adapter_id;
  child->cache_salt = parent.cache_salt;
  child->share_key = parent.share_key;
  child->share = shares_.join(parent.share_key);
  child->num_charged_tokens = parent.num_charged_tokens;
  child->is_due = parent.is_due;
  child->num_preemptions = parent.num_preemptions;
  child->token_ids.reserve(parent.token_ids.capacity());
  child->token_ids = parent.token_ids;
  child->num_prompt_tokens = parent.num_prompt_tokens;
  child->num_computed_tokens = parent.num_computed_tokens;
  child->next_prompt_logit = parent.next_prompt_logit;
  for (const PageTable& table : parent.tables) child->tables.push_back(table.fork());
  child->cache_node = parent.cache_node;
  child->num_kept_pages = parent.num_kept_pages;
  child->num_cached_tokens = parent.num_cached_tokens;
  child->was_admitted = true;
  Sequence* added = child.get();
  insert_in_order(std::move(child), /*is_running=*/true);
  return added;
}

void Scheduler::keep_pages(Sequence& sequence) {
  if (prefix_cache_ == nullptr) return;
  const int64_t num_full = std::min(sequence.num_computed_tokens, num_shareable_tokens(sequence)) / config_.page_size;
  while (sequence.num_kept_pages < num_full) {
    const auto tokens = std::span<const int32_t>(sequence.token_ids)
                            .subspan(static_cast<size_t>(sequence.num_kept_pages * config_.page_size),
                                     static_cast<size_t>(config_.page_size));
    sequence.cache_node =
        prefix_cache_->insert(sequence.scope(), sequence.cache_node, tokens, sequence.tables, sequence.num_kept_pages);
    ++sequence.num_kept_pages;
  }
}

void Scheduler::forget_pages(Sequence& sequence) {
  if (prefix_cache_ != nullptr) prefix_cache_->forget(sequence.tables);
}

void Scheduler::finish(Sequence* sequence) {
  drop_ahead(*sequence);
  release_waiters(*sequence);
  stop_waiting(*sequence);
  shares_.leave(sequence->share);
  const auto is_it = [sequence](const std::unique_ptr<Sequence>& other) { return other.get() == sequence; };
  if (const auto it = std::find_if(running_.begin(), running_.end(), is_it); it != running_.end()) {
    running_.erase(it);
    return;
  }
  const auto it = std::find_if(waiting_.begin(), waiting_.end(), is_it);
  CHECK(it != waiting_.end());
  waiting_.erase(it);
}

int Scheduler::num_seats_taken() const {
  int total = 0;
  for (const auto& sequence : running_) total += sequence->num_seats;
  return total;
}

}  // namespace quire
