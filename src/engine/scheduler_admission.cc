// Who is admitted next, and from whose pages. A waiting sequence holds no pages of the device, so whoever runs can
// always go on, and one that waits for another's pages never keeps that one from computing them.
#include <algorithm>

#include "engine/scheduler.h"

namespace quire {

// Is there one to admit that goes before this reader?
bool Scheduler::can_admit_before(const Sequence* reader) {
  if (waiting_.empty()) return false;
  const size_t index = next_to_admit();
  return index < waiting_.size() && reads_before(*waiting_[index], *reader);
}

// Admits the next one, or makes it wait for another's pages; false: nobody else can be admitted in this step.
bool Scheduler::admit_next() {
  if (waiting_.empty() || pool_->num_available() == 0) return false;
  const int num_seats_left = config_.max_num_seqs - num_seats_taken();
  if (num_seats_left == 0) return false;
  const size_t index = next_to_admit();
  if (index == waiting_.size()) return false;
  Sequence& sequence = *waiting_[index];
  if (sequence.num_seats > num_seats_left || largest_chunk(sequence) <= 0) return false;
  if (!admit(sequence)) return sequence.awaited != nullptr;  // those behind it need not wait with it
  std::unique_ptr<Sequence> admitted = std::move(waiting_[index]);
  waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(index));
  count_passed_over(sequence);
  insert_in_order(std::move(admitted), /*is_running=*/true);
  const int64_t chunk = largest_chunk(sequence);
  const bool has_grown = chunk > 0 && grow(sequence, chunk);
  CHECK(has_grown);
  add_row(sequence, chunk);
  return true;
}

// The index of the first in order that need not wait; among new ones of equal priority, of the key served least.
size_t Scheduler::next_to_admit() {
  size_t best = waiting_.size();
  for (size_t i = 0; i < waiting_.size(); ++i) {
    Sequence& sequence = *waiting_[i];
    const bool has_best = best < waiting_.size();
    if (has_best && sequence.priority != waiting_[best]->priority) break;
    if (must_wait(sequence)) continue;
    if (sequence.is_due || sequence.was_admitted || shares_.num_active_keys() <= 1) return has_best ? best : i;
    if (!has_best || sequence.share->num_served < waiting_[best]->share->num_served) best = i;
  }
  return best;
}

// Takes what the prefix cache or the swap space has; true if there are pages for the rest.
bool Scheduler::admit(Sequence& sequence) {
  int64_t num_spoken_for = 0;
  for (const auto& other : running_) num_spoken_for += pages_still_to_come(*other);
  // With others running, a hundredth of the pool is left for them to grow.
  const int64_t num_spare = running_.empty() ? 0 : pool_->num_pages() / 100 + num_spoken_for;
  if (sequence.is_swapped_out()) return swap_in(sequence, num_spare);
  if (!find_prefix(sequence)) return false;
  // Where all but the last token was found, what is left needs a row of logits, and others may have taken them all.
  // Alone it must fit: check_fits said so, unless pages are held by steps in flight.
  if (largest_chunk(sequence) <= 0 || pages_still_to_come(sequence) + num_spare > pool_->num_available()) {
    drop_pages(sequence);
    return false;
  }
  if (!sequence.was_admitted) {
    sequence.was_admitted = true;
    sequence.num_cached_tokens = sequence.num_computed_tokens;
  }
  return true;
}

// Adopts kept pages; false if it is better to wait for more of them.
bool Scheduler::find_prefix(Sequence& sequence) {
  // A sequence whose prompt logits are wanted computes every position.
  if (prefix_cache_ == nullptr || sequence.needs_every_position()) return true;
  // The last position is always computed, so that there are logits.
  const int64_t most = std::min(sequence.num_tokens() - 1, num_shareable_tokens(sequence));
  const int64_t num_found =
      prefix_cache_->find(sequence.scope(), sequence.token_ids, most, &found_pages_, &sequence.cache_node);
  const bool can_go_on = !await_pages(sequence, num_found);
  if (can_go_on) {
    sequence.num_computed_tokens = num_found;
    sequence.num_kept_pages = num_found / config_.page_size;
  } else {
    sequence.cache_node = PrefixCache::Node{};
  }
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    if (can_go_on) sequence.tables[g].adopt(found_pages_[g]);
    found_pages_[g].clear();
  }
  return can_go_on;
}

// True if a running sequence is computing more of this one's beginning than the `num_found` tokens that are there.
bool Scheduler::await_pages(Sequence& sequence, int64_t num_found) {
  if (sequence.is_due) return false;
  const int64_t page_size = config_.page_size;
  int64_t most = num_found;
  for (const auto& other : running_) {
    const int64_t num_pages =
        std::min({num_shareable_tokens(*other), num_shareable_tokens(sequence), sequence.num_tokens() - 1}) / page_size;
    const bool has_more = num_pages * page_size > most && num_pages > other->num_kept_pages;
    // One of lower priority may itself have to wait long.
    if (!has_more || other->priority > sequence.priority) continue;
    if (other->pooling != Pooling::kNone) continue;  // nobody looks whether its pages are good
    if (other->cache_node == PrefixCache::kGone || other->scope() != sequence.scope()) continue;
    const auto begin = sequence.token_ids.begin();
    const auto differs = std::mismatch(begin, begin + num_pages * page_size, other->token_ids.begin()).first;
    const int64_t num_shared = (differs - begin) / page_size * page_size;
    if (num_shared <= most || num_shared <= other->num_kept_pages * page_size) continue;
    most = num_shared;
    sequence.awaited = other.get();
    sequence.num_awaited_tokens = num_shared;
  }
  if (sequence.awaited == nullptr) return false;
  ++sequence.awaited->num_waiters;
  return true;
}

bool Scheduler::must_wait(Sequence& sequence) {
  if (sequence.awaited == nullptr) return false;
  const bool are_there = sequence.awaited->num_kept_pages * config_.page_size >= sequence.num_awaited_tokens;
  if (!are_there && !sequence.is_due) return true;
  stop_waiting(sequence);
  return false;
}

void Scheduler::stop_waiting(Sequence& sequence) {
  if (sequence.awaited == nullptr) return;
  --sequence.awaited->num_waiters;
  sequence.awaited = nullptr;
}

// It will not compute what others wait for: the first of them that is admitted takes over.
void Scheduler::release_waiters(Sequence& sequence) {
  if (sequence.num_waiters == 0) return;
  for (const auto& other : waiting_) {
    if (other->awaited == &sequence) stop_waiting(*other);
  }
  CHECK(sequence.num_waiters == 0);
}

void Scheduler::count_passed_over(const Sequence& admitted) {
  for (const auto& other : waiting_) {
    if (other->arrival >= admitted.arrival || other->is_due) continue;
    if (++other->num_passed_over >= config_.max_passed_over) {
      other->is_due = true;
      has_new_due_ = true;
    }
  }
}

}  // namespace quire
