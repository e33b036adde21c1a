// The pages of KV memory as numbers: which are free, which are in use and by how many, which are kept for reuse. It
// holds no memory itself (kv/kv_cache.h does). Used by page tables, the prefix cache and the scheduler, on the engine's
// thread.
//
// A page is always in exactly one state:
//   in use   one or more PageRefs point at it (more than one: shared)
//   retired  nobody points at it, but a step that may read it is in flight: it waits until that step has ended
//   cached   nobody points at it, but its contents are kept (set_cached); taken for other uses when nothing is free,
//            longest unused first
//   free
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "base/check.h"

namespace quire {

class PagePool;

// A share in a page: copying shares it, destroying gives the share back. The pool outlives its refs.
class PageRef {
 public:
  PageRef() = default;
  PageRef(const PageRef& other);
  PageRef(PageRef&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), page_(std::exchange(other.page_, -1)) {}
  PageRef& operator=(PageRef other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(page_, other.page_);
    return *this;
  }
  ~PageRef() { reset(); }

  void reset();
  bool is_given() const { return pool_ != nullptr; }
  int32_t page() const { return page_; }

 private:
  friend class PagePool;
  PageRef(PagePool* pool, int32_t page) : pool_(pool), page_(page) {}  // takes over a share that was counted already

  PagePool* pool_ = nullptr;
  int32_t page_ = -1;
};

// Told when a cached page is taken for another use.
class PageEvictionListener {
 public:
  virtual ~PageEvictionListener() = default;
  virtual void on_page_evicted(int32_t page) = 0;
};

class PagePool {
 public:
  explicit PagePool(int num_pages);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  ~PagePool();

  // Appends `num_pages` refs to `pages`, or does nothing and returns false. Free pages go first, then cached ones.
  [[nodiscard]] bool alloc(int num_pages, std::vector<PageRef>* pages);

  // Another share in a page that is in use or cached (or retired while cached).
  PageRef share(int32_t page);

  // A cached page's contents are kept after the last share has gone; no one writes to a cached page, even when it is in
  // use by one alone.
  void set_cached(int32_t page);
  void clear_cached(int32_t page);
  bool is_cached(int32_t page) const { return states_[index(page)].is_cached; }
  void set_eviction_listener(PageEvictionListener* listener) { listener_ = listener; }

  // Steps in flight. Pages released between begin_step and the matching end_step wait for that step; steps end in the
  // order in which they began.
  int64_t begin_step() { return ++last_begun_step_; }
  void end_step(int64_t step);

  int num_pages() const { return static_cast<int>(states_.size()); }
  int num_available() const {
    return static_cast<int>(free_pages_.size()) + num_cached_unused_;
  }  // that alloc can give
  int num_free() const { return static_cast<int>(free_pages_.size()); }
  int num_cached_unused() const { return num_cached_unused_; }
  int num_retired() const { return static_cast<int>(retired_.size()); }
  int num_used() const { return num_used_; }
  int num_shared() const { return num_shared_; }
  int peak_used() const { return peak_used_; }
  void reset_peak() { peak_used_ = num_used_; }
  int ref_count(int32_t page) const { return states_[index(page)].ref_count; }

  // Names what the page holds: another number each time the page is given out, and after renew_content. A page has a
  // content as long as it is in use or cached.
  uint64_t content_id(int32_t page) const { return states_[index(page)].content_id; }
  bool has_content(int32_t page, uint64_t content_id) const {
    const State& state = states_[index(page)];
    return state.content_id == content_id && (state.ref_count > 0 || state.is_cached);
  }
  void renew_content(int32_t page) { states_[index(page)].content_id = ++last_content_id_; }

  // Walks everything and CHECKs that each page is in exactly one state and that the counters agree. For tests.
  void check_consistency() const;

 private:
  friend class PageRef;

  struct State {
    int32_t ref_count = 0;
    int32_t previous = -1;  // neighbours in the list of cached, unused pages
    int32_t next = -1;
    uint64_t content_id = 0;
    int32_t num_retired_entries = 0;  // a page may come back to use and be released again while it waits
    bool is_cached = false;

    bool is_retired() const { return num_retired_entries > 0; }
  };
  struct Retired {
    int32_t page;
    int64_t step;
  };

  size_t index(int32_t page) const {
    DCHECK(page >= 0 && page < num_pages());
    return static_cast<size_t>(page);
  }
  void add_share(int32_t page);
  void release(int32_t page);
  void settle(int32_t page);  // an unused page goes to the free list or to the cached ones
  void link_cached_newest(int32_t page);
  void unlink_cached(int32_t page);

  std::vector<State> states_;
  std::vector<int32_t> free_pages_;  // a stack: what was freed last is warm in the caches
  std::deque<Retired> retired_;
  int32_t oldest_cached_ = -1;
  int32_t newest_cached_ = -1;
  int num_cached_unused_ = 0;
  int num_used_ = 0;
  int num_shared_ = 0;
  int peak_used_ = 0;
  uint64_t last_content_id_ = 0;
  int64_t last_begun_step_ = 0;
  int64_t last_ended_step_ = 0;
  PageEvictionListener* listener_ = nullptr;
};

}  // namespace quire
