// The pages of one sequence in one KV group: logical page i holds the K and V of tokens [i * page_size, (i + 1) *
// page_size). Pages may be shared with other tables (fork, prefix cache); what is shared is never written: the last,
// partly filled page is copied before the table grows into it. Used by the scheduler, on the engine's thread. It knows
// numbers only: copying memory is asked for by PageCopyRequest.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kv/page_pool.h"

namespace quire {

// Copy page `from` to page `to`, all layers, before anything of this step is written. Holds its source until then.
struct PageCopyRequest {
  PageRef from;
  int32_t to = -1;
};

class PageTable {
 public:
  // window > 0: a query sees the last `window` tokens only, itself included, and release_behind may free older pages.
  // page_size is a power of two.
  PageTable(PagePool* pool, int page_size, int window);
  PageTable(PageTable&&) = default;
  PageTable& operator=(PageTable&& other) {
    clear();
    std::swap(num_tokens_, other.num_tokens_);
    std::swap(num_left_behind_, other.num_left_behind_);
    pages_.swap(other.pages_);
    page_ids_.swap(other.page_ids_);
    pool_ = other.pool_;
    page_shift_ = other.page_shift_;
    window_ = other.window_;
    return *this;
  }
  ~PageTable() { clear(); }

  // Shares every page with a new table of the same contents.
  PageTable fork() const { return PageTable(*this); }

  // New pages that growing to `num_tokens` would take, the copy of a shared last page included.
  int pages_to_grow(int64_t num_tokens) const;

  // The last page is partly filled and others use it too: growing copies it.
  bool must_copy_last_page() const;

  // Makes room for `num_tokens` in all, or does nothing and returns false. A shared page that would be written is
  // replaced, and its copy asked for in `copies`.
  [[nodiscard]] bool grow(int64_t num_tokens, std::vector<PageCopyRequest>* copies);

  // Forgets the tokens after the first `num_tokens`.
  void truncate(int64_t num_tokens);

  // Frees the pages that no query at `position` or later can see. Nothing without a window.
  void release_behind(int64_t position);

  // Takes full pages that others have filled as the first pages of this empty table; a ref that is not given stands for
  // a page left behind by the window.
  void adopt(std::span<const PageRef> full_pages);

  // Makes this empty table one of `num_tokens` tokens over these pages; likewise not given where left behind. The last
  // page may be partly filled, and is then nobody else's.
  void restore(std::vector<PageRef> pages, int64_t num_tokens);

  void clear();

  // Where the K and V of the token at `position` lie: page * page_size + offset.
  int64_t slot(int64_t position) const {
    DCHECK(position >= 0 && position < num_tokens_);
    const int32_t page = page_ids_[static_cast<size_t>(position >> page_shift_)];
    DCHECK(page >= 0);
    return (static_cast<int64_t>(page) << page_shift_) + (position & (page_size() - 1));
  }

  // Physical page of each logical page, -1 where it was left behind.
  std::span<const int32_t> page_ids() const { return page_ids_; }
  const PageRef& page(int64_t logical_page) const { return pages_[static_cast<size_t>(logical_page)]; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_held_pages() const { return static_cast<int64_t>(pages_.size()) - num_left_behind_; }
  int page_size() const { return 1 << page_shift_; }
  int window() const { return window_; }

  // Most pages that a sequence of `num_tokens` holds at once in a group like this, when steps add up to
  // `max_step_tokens`.
  static int64_t max_pages(int64_t num_tokens, int page_size, int window, int64_t max_step_tokens);

 private:
  PageTable(const PageTable&) = default;

  int64_t logical_pages(int64_t num_tokens) const { return (num_tokens + page_size() - 1) >> page_shift_; }

  PagePool* pool_;
  int page_shift_;
  int window_;
  int64_t num_tokens_ = 0;
  int64_t num_left_behind_ = 0;  // leading logical pages that were released
  std::vector<PageRef> pages_;
  std::vector<int32_t> page_ids_;
};

}  // namespace quire
