// The scheduler's rules. See the header for the order in which they apply.
#include "engine/scheduler.h"

#include <algorithm>

namespace quire {

namespace {

bool goes_before(const Sequence& a, const Sequence& b) {
  if (a.priority != b.priority) return a.priority < b.priority;
  if (a.arrival != b.arrival) return a.arrival < b.arrival;
  return a.choice_index < b.choice_index;
}

int64_t num_left(const Sequence& sequence) {
  return sequence.num_tokens() - sequence.num_computed_tokens;
}

}  // namespace

Scheduler::Scheduler(SchedulerConfig config, PagePool* pool, PrefixCache* prefix_cache)
    : config_(std::move(config)), pool_(pool), prefix_cache_(prefix_cache) {
  CHECK(config_.max_num_seqs > 0);
  CHECK(config_.max_num_batched_tokens >= config_.max_num_seqs);
  CHECK(config_.max_logit_rows >= config_.max_num_seqs);
  running_.reserve(static_cast<size_t>(config_.max_num_seqs));
  plan_.rows.reserve(static_cast<size_t>(config_.max_num_seqs));
}

Scheduler::~Scheduler() {
  plan_.clear();
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
  Sequence* added = sequence.get();
  insert_in_order(std::move(sequence), /*is_running=*/false);
  return added;
}

void Scheduler::insert_in_order(std::unique_ptr<Sequence> sequence, bool is_running) {
  const auto comes_later = [](const std::unique_ptr<Sequence>& a, const std::unique_ptr<Sequence>& b) {
    return goes_before(*a, *b);
  };
  if (is_running) {
    running_.insert(std::upper_bound(running_.begin(), running_.end(), sequence, comes_later), std::move(sequence));
  } else {
    waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), sequence, comes_later), std::move(sequence));
  }
}

const StepPlan& Scheduler::schedule() {
  plan_.clear();
  schedule_decodes();
  plan_.num_decode_rows = static_cast<int>(plan_.rows.size());
  schedule_prefills();
  if (plan_.num_preempted == 0) admit_waiting();
  return plan_;
}

void Scheduler::schedule_decodes() {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (num_left(sequence) != 1) continue;
    // Sequences go from oldest to newest, so the one that gives way has no row yet; in the end it is this one itself.
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
}

void Scheduler::schedule_prefills() {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (num_left(sequence) == 1) continue;
    int64_t chunk = largest_chunk(sequence);
    if (chunk <= 0) continue;
    release_behind(sequence);
    // As much of the chunk as there are pages for.
    if (pages_to_grow(sequence, chunk) > pool_->num_available()) {
      int64_t fits = 0;
      while (fits + 1 < chunk) {
        const int64_t middle = fits + (chunk - fits) / 2;
        (pages_to_grow(sequence, middle) <= pool_->num_available() ? fits : chunk) = middle;
      }
      chunk = fits;
    }
    if (chunk > 0) {
      const bool has_grown = grow(sequence, chunk);
      CHECK(has_grown);
      add_row(sequence, chunk);
    } else if (plan_.rows.empty()) {
      // Nobody else moves either, so waiting would be for ever. What gives way has no row.
      const bool is_itself = i + 1 == running_.size();
      preempt_newest();
      if (!is_itself) --i;  // try again
    }
  }
}

int64_t Scheduler::largest_chunk(const Sequence& sequence) const {
  int64_t chunk = std::min<int64_t>(num_left(sequence), config_.max_num_batched_tokens - plan_.num_tokens);
  const int64_t rows_left = config_.max_logit_rows - plan_.num_logit_rows;
  if (sequence.next_prompt_logit < sequence.num_prompt_tokens - 1) {
    // One row a position from next_prompt_logit on, the last position's sample included.
    const int64_t num_without = std::max<int64_t>(sequence.next_prompt_logit - sequence.num_computed_tokens, 0);
    chunk = std::min(chunk, num_without + rows_left);
  } else if (rows_left <= 0) {
    chunk = std::min(chunk, num_left(sequence) - 1);
  }
  return chunk;
}

void Scheduler::admit_waiting() {
  while (!waiting_.empty()) {
    Sequence& sequence = *waiting_.front();
    if (num_seats_taken() + sequence.num_seats > config_.max_num_seqs) return;
    if (largest_chunk(sequence) <= 0) return;
    if (pool_->num_available() == 0) return;
    if (!admit(sequence)) return;
    std::unique_ptr<Sequence> admitted = std::move(waiting_.front());
    waiting_.pop_front();
    insert_in_order(std::move(admitted), /*is_running=*/true);
    const int64_t chunk = largest_chunk(sequence);
    const bool has_grown = chunk > 0 && grow(sequence, chunk);
    CHECK(has_grown);
    add_row(sequence, chunk);
  }
}

// Takes what the prefix cache has; true if there are pages for the rest.
bool Scheduler::admit(Sequence& sequence) {
  // A sequence whose prompt logits are wanted computes every position.
  const bool wants_prompt_logits = sequence.next_prompt_logit < sequence.num_prompt_tokens - 1;
  if (prefix_cache_ != nullptr && !wants_prompt_logits) {
    // The last position is always computed, so that there are logits.
    sequence.num_computed_tokens = prefix_cache_->find(sequence.scope(), sequence.token_ids, sequence.num_tokens() - 1,
                                                       &found_pages_, &sequence.cache_node);
    for (size_t g = 0; g < sequence.tables.size(); ++g) {
      sequence.tables[g].adopt(found_pages_[g]);
      found_pages_[g].clear();
    }
    sequence.num_kept_pages = sequence.num_computed_tokens / config_.page_size;
  }
  int64_t num_spoken_for = 0;
  for (const auto& other : running_) num_spoken_for += pages_still_to_come(*other);
  // With others running, a hundredth of the pool is left for them to grow.
  const int64_t num_spare = running_.empty() ? 0 : pool_->num_pages() / 100 + num_spoken_for;
  const int64_t num_needed = pages_still_to_come(sequence);
  if (num_needed + num_spare > pool_->num_available()) {
    // Alone it must fit: check_fits said so, unless pages are held by steps in flight.
    drop_pages(sequence);
    return false;
  }
  if (!sequence.was_admitted) {
    sequence.was_admitted = true;
    sequence.num_cached_tokens = sequence.num_computed_tokens;
  }
  return true;
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
  row.first_logit_row = plan_.num_logit_rows;
  const int64_t end = row.end_position();
  if (sequence.next_prompt_logit < sequence.num_prompt_tokens - 1) {
    row.num_logit_rows =
        static_cast<int>(std::max<int64_t>(end - std::max(row.first_position, sequence.next_prompt_logit), 0));
  } else {
    row.num_logit_rows = end == sequence.num_tokens() ? 1 : 0;
  }
  plan_.num_tokens += row.num_tokens;
  plan_.num_logit_rows += row.num_logit_rows;
  plan_.rows.push_back(row);
}

bool Scheduler::is_scheduled(const Sequence& sequence) const {
  return std::any_of(plan_.rows.begin(), plan_.rows.end(),
                     [&](const StepRow& row) { return row.sequence == &sequence; });
}

void Scheduler::preempt_newest() {
  CHECK(!running_.empty());
  std::unique_ptr<Sequence> sequence = std::move(running_.back());
  running_.pop_back();
  DCHECK(!is_scheduled(*sequence));
  drop_pages(*sequence);
  ++plan_.num_preempted;
  insert_in_order(std::move(sequence), /*is_running=*/false);
}

void Scheduler::drop_pages(Sequence& sequence) {
  for (PageTable& table : sequence.tables) table.clear();
  sequence.num_computed_tokens = 0;
  sequence.num_kept_pages = 0;
  sequence.cache_node = PrefixCache::Node{};
}

void Scheduler::complete() {
  for (const StepRow& row : plan_.rows) row.sequence->num_computed_tokens = row.end_position();
  plan_.copies.clear();
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
  const int64_t num_full = sequence.num_computed_tokens / config_.page_size;
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
