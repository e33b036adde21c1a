// The prefix cache: what is found, what is told apart, and what eviction leaves.
#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>

namespace quire {
namespace {

constexpr int kPageSize = 8;

std::vector<int32_t> counting(int count, int first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class PrefixCacheTest : public testing::Test {
 protected:
  // Fills tables with `tokens` and keeps their full pages.
  std::vector<PageTable> fill(PrefixCache& cache, PrefixCache::Scope scope, const std::vector<int32_t>& tokens,
                              std::vector<int> windows = {0}) {
    std::vector<PageTable> tables;
    for (const int window : windows) {
      tables.emplace_back(&pool_, kPageSize, window);
      EXPECT_TRUE(tables.back().grow(static_cast<int64_t>(tokens.size()), &copies_));
    }
    PrefixCache::Node node;
    for (size_t page = 0; (page + 1) * kPageSize <= tokens.size(); ++page) {
      node = cache.insert(scope, node, std::span(tokens).subspan(page * kPageSize, kPageSize), tables,
                          static_cast<int64_t>(page));
    }
    return tables;
  }

  int64_t find(PrefixCache& cache, PrefixCache::Scope scope, const std::vector<int32_t>& tokens, int64_t most = 1000) {
    PrefixCache::Node node;
    return cache.find(scope, tokens, most, &found_, &node);
  }

  void TearDown() override { found_.clear(); }

  PagePool pool_{16};
  std::vector<PageCopyRequest> copies_;
  std::vector<std::vector<PageRef>> found_;
};

TEST_F(PrefixCacheTest, FindsWholePagesOnly) {
  PrefixCache cache(&pool_, kPageSize, {{0}});
  { auto tables = fill(cache, {}, counting(20)); }
  EXPECT_EQ(pool_.num_used(), 0);
  EXPECT_EQ(pool_.num_cached_unused(), 2);
  EXPECT_EQ(find(cache, {}, counting(20)), 16);
  EXPECT_EQ(pool_.num_used(), 2);
  EXPECT_EQ(find(cache, {}, counting(16), 15), 8);  // the last position is left to compute
  EXPECT_EQ(find(cache, {}, counting(7)), 0);
  std::vector<int32_t> other = counting(20);
  other[9] = 77;
  EXPECT_EQ(find(cache, {}, other), 8);
  other[0] = 77;
  EXPECT_EQ(find(cache, {}, other), 0);
}

// F048.
TEST_F(PrefixCacheTest, AdapterAndSaltAreDifferentThings) {
  PrefixCache cache(&pool_, kPageSize, {{0}});
  { auto tables = fill(cache, {.adapter_id = 0, .salt = "7"}, counting(16)); }
  EXPECT_EQ(find(cache, {.adapter_id = 0, .salt = "7"}, counting(16)), 16);
  EXPECT_EQ(find(cache, {.adapter_id = 7, .salt = ""}, counting(16)), 0);
  EXPECT_EQ(find(cache, {.adapter_id = 0, .salt = ""}, counting(16)), 0);
  EXPECT_EQ(find(cache, {.adapter_id = 7, .salt = "7"}, counting(16)), 0);
}

TEST_F(PrefixCacheTest, EqualPagesInAnotherPlaceAreAnotherEntry) {
  PrefixCache cache(&pool_, kPageSize, {{0}});
  std::vector<int32_t> tokens = counting(8);
  const std::vector<int32_t> again = counting(8);
  tokens.insert(tokens.end(), again.begin(), again.end());
  { auto tables = fill(cache, {}, tokens); }
  EXPECT_EQ(cache.num_entries(), 2);
  EXPECT_EQ(find(cache, {}, tokens), 16);
  EXPECT_NE(found_[0][0].page(), found_[0][1].page());
}

TEST_F(PrefixCacheTest, TheEndOfAChainIsEvictedFirst) {
  PrefixCache cache(&pool_, kPageSize, {{0}});
  { auto tables = fill(cache, {}, counting(32)); }
  std::vector<PageRef> pages;
  ASSERT_TRUE(pool_.alloc(14, &pages));  // 12 free, 2 kept
  EXPECT_EQ(find(cache, {}, counting(32)), 16);
  EXPECT_EQ(cache.num_entries(), 2);
  found_.clear();
  ASSERT_TRUE(pool_.alloc(2, &pages));
  EXPECT_EQ(cache.num_entries(), 0);
  EXPECT_EQ(find(cache, {}, counting(32)), 0);
  pool_.check_consistency();
}

TEST_F(PrefixCacheTest, TwoThatComputedTheSameKeepOnePageEach) {
  PrefixCache cache(&pool_, kPageSize, {{0}});
  auto first = fill(cache, {}, counting(16));
  auto second = fill(cache, {}, counting(16));
  EXPECT_EQ(cache.num_entries(), 2);
  second.clear();
  EXPECT_EQ(pool_.num_free(), 14);
  EXPECT_EQ(find(cache, {}, counting(16)), 16);
  EXPECT_EQ(found_[0][0].page(), first[0].page_ids()[0]);
}

TEST_F(PrefixCacheTest, AGoneParentTakesNoChildren) {
  PrefixCache cache(&pool_, kPageSize, {{0}});
  const std::vector<int32_t> tokens = counting(16);
  auto tables = fill(cache, {}, counting(8));
  PrefixCache::Node node;
  EXPECT_EQ(cache.find({}, tokens, 8, &found_, &node), 8);
  found_.clear();
  cache.forget(tables);
  ASSERT_TRUE(tables[0].grow(16, &copies_));
  EXPECT_EQ(cache.insert({}, node, std::span(tokens).subspan(8, 8), tables, 1), PrefixCache::kGone);
  EXPECT_EQ(cache.num_entries(), 0);
}

TEST_F(PrefixCacheTest, AWindowNeedsItsLastPagesOnly) {
  PrefixCache cache(&pool_, kPageSize, {{0}, {10}});
  {
    auto tables = fill(cache, {}, counting(32), {0, 10});
    tables[1].release_behind(32);  // sees 23..32: pages 2 and 3
  }
  EXPECT_EQ(pool_.num_cached_unused(), 8);
  EXPECT_EQ(find(cache, {}, counting(40)), 32);
  EXPECT_FALSE(found_[1][1].is_given());
  EXPECT_TRUE(found_[1][2].is_given());
  found_.clear();
  std::vector<PageRef> pages;
  // The window's pages that were left behind go first; with a page of its end lost, a shorter hit must not be given
  // unless its own window is there.
  ASSERT_TRUE(pool_.alloc(8 + 2, &pages));
  EXPECT_EQ(find(cache, {}, counting(40)), 32);
}

// What is kept elsewhere: parents first, and nothing whose beginning has gone, which would be taken for a beginning.
TEST_F(PrefixCacheTest, SavesWhatCanBeFound) {
  PrefixCache cache(&pool_, kPageSize, {{0}});
  const std::vector<int32_t> tokens = counting(24);
  std::vector<PageRef> pages;
  ASSERT_TRUE(pool_.alloc(3, &pages));
  PrefixCache::Node node;
  for (size_t i = 0; i < 3; ++i) {
    node = cache.insert({.adapter_id = 0, .salt = "s"}, node, std::span(tokens).subspan(8 * i, 8),
                        std::span(pages).subspan(i, 1));
  }
  const auto saved = cache.saved_entries();
  ASSERT_EQ(saved.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(saved[i].parent, static_cast<int32_t>(i) - 1);
    EXPECT_TRUE(
        std::equal(saved[i].tokens.begin(), saved[i].tokens.end(), tokens.begin() + static_cast<int64_t>(8 * i)));
    EXPECT_EQ(saved[i].pages[0], pages[i].page());
  }
  EXPECT_EQ(saved[0].scope.salt, "s");
  // The beginning is released first, so it is the first to be taken for another use.
  for (PageRef& page : pages) page.reset();
  EXPECT_EQ(find(cache, {.adapter_id = 0, .salt = "s"}, tokens), 24);
  found_.clear();
  pages.clear();
  {
    PageRef first = pool_.share(saved[0].pages[0]);
    PageRef second = pool_.share(saved[1].pages[0]);
    PageRef third = pool_.share(saved[2].pages[0]);
    first.reset();
    second.reset();
    third.reset();
  }
  ASSERT_TRUE(pool_.alloc(14, &pages));
  EXPECT_EQ(cache.num_entries(), 2);
  EXPECT_TRUE(cache.saved_entries().empty());
}

}  // namespace
}  // namespace quire
