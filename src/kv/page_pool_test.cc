// The page pool alone: states, counters, order of reuse, and steps in flight.
#include "kv/page_pool.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

std::vector<PageRef> take(PagePool& pool, int count) {
  std::vector<PageRef> pages;
  EXPECT_TRUE(pool.alloc(count, &pages));
  return pages;
}

TEST(PagePool, AllocIsAllOrNothing) {
  PagePool pool(4);
  std::vector<PageRef> pages = take(pool, 3);
  EXPECT_FALSE(pool.alloc(2, &pages));
  EXPECT_EQ(pages.size(), 3u);
  EXPECT_EQ(pool.num_available(), 1);
  EXPECT_TRUE(pool.alloc(1, &pages));
  EXPECT_EQ(pool.num_free(), 0);
  pages.clear();
  EXPECT_EQ(pool.num_free(), 4);
  EXPECT_EQ(pool.peak_used(), 4);
  pool.check_consistency();
}

TEST(PagePool, CopyingSharesAndDestroyingReleases) {
  PagePool pool(2);
  std::vector<PageRef> pages = take(pool, 1);
  const int32_t page = pages[0].page();
  {
    PageRef copy = pages[0];
    EXPECT_EQ(pool.ref_count(page), 2);
    EXPECT_EQ(pool.num_shared(), 1);
    PageRef moved = std::move(copy);
    EXPECT_EQ(pool.ref_count(page), 2);
    pages[0] = moved;  // the same page: the count stays right
    EXPECT_EQ(pool.ref_count(page), 2);
  }
  EXPECT_EQ(pool.ref_count(page), 1);
  EXPECT_EQ(pool.num_shared(), 0);
  EXPECT_EQ(pool.num_used(), 1);
}

TEST(PagePool, APageReleasedDuringAStepWaitsForItsEnd) {
  PagePool pool(1);
  std::vector<PageRef> pages = take(pool, 1);
  const int64_t first = pool.begin_step();
  const int64_t second = pool.begin_step();
  pages.clear();
  EXPECT_EQ(pool.num_retired(), 1);
  EXPECT_FALSE(pool.alloc(1, &pages));
  pool.end_step(first);  // the page was released while the second was in flight too
  EXPECT_FALSE(pool.alloc(1, &pages));
  pool.check_consistency();
  pool.end_step(second);
  EXPECT_TRUE(pool.alloc(1, &pages));
  pool.check_consistency();
}

TEST(PagePool, CachedPagesAreTakenLastAndOldestFirst) {
  class Listener : public PageEvictionListener {
   public:
    void on_page_evicted(int32_t page) override { evicted.push_back(page); }
    std::vector<int32_t> evicted;
  } listener;
  PagePool pool(3);
  pool.set_eviction_listener(&listener);
  std::vector<PageRef> pages = take(pool, 3);
  pool.set_cached(0);
  pool.set_cached(1);
  pages[1].reset();
  pages[0].reset();
  pages[2].reset();
  EXPECT_EQ(pool.num_cached_unused(), 2);
  EXPECT_EQ(pool.num_available(), 3);
  pages.clear();
  pages = take(pool, 1);
  EXPECT_EQ(pages[0].page(), 2);
  PageRef used_again = pool.share(1);  // no longer the oldest unused one: in use
  EXPECT_EQ(pool.num_cached_unused(), 1);
  EXPECT_TRUE(pool.alloc(1, &pages));
  EXPECT_EQ(listener.evicted, std::vector<int32_t>{0});
  EXPECT_FALSE(pool.alloc(1, &pages));
  pool.check_consistency();
  used_again.reset();
  EXPECT_EQ(pool.num_cached_unused(), 1);
  pool.clear_cached(1);
  EXPECT_EQ(pool.num_free(), 1);
  pool.check_consistency();
}

TEST(PagePool, ACachedPageComesBackWhileItIsRetired) {
  PagePool pool(1);
  std::vector<PageRef> pages = take(pool, 1);
  pool.set_cached(0);
  const int64_t first = pool.begin_step();
  pages.clear();
  PageRef again = pool.share(0);
  pool.check_consistency();
  again.reset();
  const int64_t second = pool.begin_step();
  again = pool.share(0);
  pool.end_step(first);
  pool.check_consistency();
  EXPECT_EQ(pool.num_used(), 1);
  again.reset();
  pool.end_step(second);
  pool.check_consistency();
  EXPECT_EQ(pool.num_cached_unused(), 1);
}

}  // namespace
}  // namespace quire
