// Growing, sharing and cutting the page table of a sequence.
#include "kv/page_table.h"

#include <algorithm>
#include <bit>

namespace quire {

PageTable::PageTable(PagePool* pool, int page_size, int window) : pool_(pool), window_(window) {
  CHECK(page_size > 0 && std::has_single_bit(static_cast<unsigned>(page_size)));
  page_shift_ = std::countr_zero(static_cast<unsigned>(page_size));
}

bool PageTable::must_copy_last_page() const {
  if ((num_tokens_ & (page_size() - 1)) == 0) return false;
  const PageRef& last = pages_.back();
  CHECK(last.is_given());
  return pool_->ref_count(last.page()) > 1 || pool_->is_cached(last.page());
}

int PageTable::pages_to_grow(int64_t num_tokens) const {
  if (num_tokens <= num_tokens_) return 0;
  const int64_t num_new = logical_pages(num_tokens) - static_cast<int64_t>(pages_.size());
  return static_cast<int>(num_new) + (must_copy_last_page() ? 1 : 0);
}

bool PageTable::grow(int64_t num_tokens, std::vector<PageCopyRequest>* copies) {
  if (num_tokens <= num_tokens_) return true;
  const bool must_copy = must_copy_last_page();
  const size_t num_old = pages_.size();
  if (!pool_->alloc(pages_to_grow(num_tokens), &pages_)) return false;
  if (must_copy) {
    PageRef copy = std::move(pages_.back());
    pages_.pop_back();
    PageRef& last = pages_[num_old - 1];
    page_ids_.back() = copy.page();
    copies->push_back({std::move(last), copy.page()});
    last = std::move(copy);
  }
  for (size_t i = num_old; i < pages_.size(); ++i) page_ids_.push_back(pages_[i].page());
  num_tokens_ = num_tokens;
  return true;
}

void PageTable::clear() {
  // Last page first: of a chain of cached pages, the end is evicted before what it builds on.
  while (!pages_.empty()) pages_.pop_back();
  page_ids_.clear();
  num_tokens_ = 0;
  num_left_behind_ = 0;
}

void PageTable::truncate(int64_t num_tokens) {
  CHECK(num_tokens >= 0);
  if (num_tokens >= num_tokens_) return;
  const size_t num_kept = static_cast<size_t>(logical_pages(num_tokens));
  while (pages_.size() > num_kept) pages_.pop_back();
  page_ids_.resize(num_kept);
  num_left_behind_ = std::min(num_left_behind_, static_cast<int64_t>(num_kept));
  // The token before the cut is read by whoever goes on from here.
  if (num_kept > 0) CHECK(pages_.back().is_given());
  // A page that was full will be written again.
  if ((num_tokens & (page_size() - 1)) != 0) pool_->renew_content(page_ids_.back());
  num_tokens_ = num_tokens;
}

void PageTable::release_behind(int64_t position) {
  if (window_ <= 0) return;
  const int64_t first_seen = position - window_ + 1;  // the oldest token that the query at `position` sees
  if (first_seen <= 0) return;
  const int64_t end = std::min(first_seen >> page_shift_, static_cast<int64_t>(pages_.size()));
  for (int64_t i = end - 1; i >= num_left_behind_; --i) {
    pages_[static_cast<size_t>(i)].reset();
    page_ids_[static_cast<size_t>(i)] = -1;
  }
  num_left_behind_ = std::max(num_left_behind_, end);
}

void PageTable::adopt(std::span<const PageRef> full_pages) {
  CHECK(num_tokens_ == 0);
  pages_.assign(full_pages.begin(), full_pages.end());
  page_ids_.clear();
  num_left_behind_ = 0;
  for (const PageRef& page : pages_) {
    if (!page.is_given()) {
      CHECK(num_left_behind_ == static_cast<int64_t>(page_ids_.size()));
      ++num_left_behind_;
    }
    page_ids_.push_back(page.is_given() ? page.page() : -1);
  }
  num_tokens_ = static_cast<int64_t>(pages_.size()) << page_shift_;
}

void PageTable::restore(std::vector<PageRef> pages, int64_t num_tokens) {
  CHECK(logical_pages(num_tokens) == static_cast<int64_t>(pages.size()));
  adopt(pages);
  num_tokens_ = num_tokens;
}

int64_t PageTable::max_pages(int64_t num_tokens, int page_size, int window, int64_t max_step_tokens) {
  const int64_t all = (num_tokens + page_size - 1) / page_size;
  if (window <= 0) return all;
  // Seen by the first query of a step, plus the step's own tokens; cut at any offset that is a page more at either end.
  const int64_t seen = window + max_step_tokens;
  return std::min(all, (seen + page_size - 1) / page_size + 1);
}

}  // namespace quire
