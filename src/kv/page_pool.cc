// The page pool: counting shares, and where a page goes when the last share has gone.
#include "kv/page_pool.h"

#include <algorithm>

namespace quire {

PageRef::PageRef(const PageRef& other) : pool_(other.pool_), page_(other.page_) {
  if (pool_ != nullptr) pool_->add_share(page_);
}

void PageRef::reset() {
  if (pool_ != nullptr) pool_->release(page_);
  pool_ = nullptr;
  page_ = -1;
}

PagePool::PagePool(int num_pages) {
  CHECK(num_pages >= 0);
  states_.resize(static_cast<size_t>(num_pages));
  free_pages_.reserve(states_.size());
  // Low numbers are handed out first, so that a pool larger than the load leaves the rest of its memory untouched.
  for (int32_t page = num_pages - 1; page >= 0; --page) free_pages_.push_back(page);
}

PagePool::~PagePool() {
  CHECK(num_used_ == 0);
}

bool PagePool::alloc(int num_pages, std::vector<PageRef>* pages) {
  CHECK(num_pages >= 0);
  if (num_pages > num_available()) return false;
  for (int i = 0; i < num_pages; ++i) {
    if (free_pages_.empty()) {
      const int32_t evicted = oldest_cached_;
      if (listener_ != nullptr) listener_->on_page_evicted(evicted);
      clear_cached(evicted);
    }
    const int32_t page = free_pages_.back();
    free_pages_.pop_back();
    State& state = states_[index(page)];
    DCHECK(state.ref_count == 0 && !state.is_cached && !state.is_retired());
    state.ref_count = 1;
    renew_content(page);
    ++num_used_;
    pages->push_back(PageRef(this, page));
  }
  peak_used_ = std::max(peak_used_, num_used_);
  return true;
}

PageRef PagePool::share(int32_t page) {
  add_share(page);
  return PageRef(this, page);
}

void PagePool::add_share(int32_t page) {
  State& state = states_[index(page)];
  if (state.ref_count == 0) {
    CHECK(state.is_cached);
    // A retired page stays in that list; end_step sees that it is in use again.
    if (!state.is_retired()) unlink_cached(page);
    ++num_used_;
    peak_used_ = std::max(peak_used_, num_used_);
  } else if (state.ref_count == 1) {
    ++num_shared_;
  }
  ++state.ref_count;
}

void PagePool::release(int32_t page) {
  State& state = states_[index(page)];
  CHECK(state.ref_count > 0);
  --state.ref_count;
  if (state.ref_count == 1) --num_shared_;
  if (state.ref_count > 0) return;
  --num_used_;
  if (last_begun_step_ > last_ended_step_) {
    retired_.push_back({page, last_begun_step_});
    ++state.num_retired_entries;
  } else {
    settle(page);
  }
}

void PagePool::settle(int32_t page) {
  if (states_[index(page)].is_cached) {
    link_cached_newest(page);
  } else {
    free_pages_.push_back(page);
  }
}

void PagePool::end_step(int64_t step) {
  CHECK(step == last_ended_step_ + 1 && step <= last_begun_step_);
  last_ended_step_ = step;
  while (!retired_.empty() && retired_.front().step <= step) {
    const int32_t page = retired_.front().page;
    retired_.pop_front();
    State& state = states_[index(page)];
    --state.num_retired_entries;
    if (!state.is_retired() && state.ref_count == 0) settle(page);
  }
}

void PagePool::set_cached(int32_t page) {
  State& state = states_[index(page)];
  CHECK(state.ref_count > 0);
  state.is_cached = true;
}

void PagePool::clear_cached(int32_t page) {
  State& state = states_[index(page)];
  if (!state.is_cached) return;
  state.is_cached = false;
  if (state.ref_count == 0 && !state.is_retired()) {
    unlink_cached(page);
    free_pages_.push_back(page);
  }
}

void PagePool::link_cached_newest(int32_t page) {
  State& state = states_[index(page)];
  state.previous = newest_cached_;
  state.next = -1;
  if (newest_cached_ >= 0) {
    states_[index(newest_cached_)].next = page;
  } else {
    oldest_cached_ = page;
  }
  newest_cached_ = page;
  ++num_cached_unused_;
}

void PagePool::unlink_cached(int32_t page) {
  State& state = states_[index(page)];
  if (state.previous >= 0) {
    states_[index(state.previous)].next = state.next;
  } else {
    oldest_cached_ = state.next;
  }
  if (state.next >= 0) {
    states_[index(state.next)].previous = state.previous;
  } else {
    newest_cached_ = state.previous;
  }
  state.previous = state.next = -1;
  --num_cached_unused_;
}

void PagePool::check_consistency() const {
  enum class Place { kNone, kFree, kCached, kRetired };
  std::vector<Place> places(states_.size(), Place::kNone);
  for (const int32_t page : free_pages_) {
    CHECK(places[index(page)] == Place::kNone);
    places[index(page)] = Place::kFree;
  }
  int num_linked = 0;
  for (int32_t page = oldest_cached_; page >= 0; page = states_[index(page)].next) {
    CHECK(places[index(page)] == Place::kNone);
    places[index(page)] = Place::kCached;
    ++num_linked;
  }
  CHECK(num_linked == num_cached_unused_);
  for (const Retired& retired : retired_) places[index(retired.page)] = Place::kRetired;
  int num_used = 0;
  int num_shared = 0;
  for (size_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    num_used += state.ref_count > 0 ? 1 : 0;
    num_shared += state.ref_count > 1 ? 1 : 0;
    CHECK(state.is_retired() == (places[i] == Place::kRetired));
    if (state.ref_count > 0) {
      CHECK(places[i] == Place::kNone || places[i] == Place::kRetired);
    } else {
      CHECK(places[i] != Place::kNone);
      if (!state.is_retired()) CHECK(state.is_cached == (places[i] == Place::kCached));
    }
  }
  CHECK(num_used == num_used_);
  CHECK(num_shared == num_shared_);
}

}  // namespace quire
