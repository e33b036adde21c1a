#include "kv/swap_space.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr int kPageSize = 8;

PageTable table_of(PagePool& pool, int64_t num_tokens) {
  PageTable table(&pool, kPageSize, /*window=*/0);
  std::vector<PageCopyRequest> copies;
  EXPECT_TRUE(table.grow(num_tokens, &copies));
  return table;
}

struct Outside {
  std::vector<SwappedTable> swapped;
  int num_copied_out = 0;
};

Outside swap_out(SwapSpace& space, std::vector<PageTable>& tables) {
  Outside outside;
  std::vector<SwapCopy> copies;
  EXPECT_TRUE(space.swap_out(tables, &outside.swapped, &copies));
  for (PageTable& table : tables) table.clear();
  outside.num_copied_out = static_cast<int>(copies.size());
  return outside;
}

// Returns how many pages were copied in.
int swap_in(SwapSpace& space, PagePool& pool, const Outside& outside, std::vector<PageTable>& tables) {
  std::vector<std::vector<PageRef>> found;
  const int num_missing = space.find_on_device(outside.swapped, &found);
  std::vector<SwapCopy> copies;
  tables.clear();
  for (size_t g = 0; g < outside.swapped.size(); ++g) tables.emplace_back(&pool, kPageSize, 0);
  space.swap_in(outside.swapped, std::move(found), tables, &copies);
  EXPECT_EQ(static_cast<int>(copies.size()), num_missing);
  return num_missing;
}

TEST(SwapSpace, WhatAForkStillHoldsIsSharedAgain) {
  PagePool pool(20);
  SwapSpace space(&pool, kPageSize, 20);
  std::vector<PageTable> parent;
  parent.push_back(table_of(pool, 20));  // two full pages and a partly filled one
  std::vector<PageTable> fork;
  fork.push_back(parent[0].fork());
  const std::vector<int32_t> pages(parent[0].page_ids().begin(), parent[0].page_ids().end());
  const Outside outside = swap_out(space, parent);
  EXPECT_EQ(outside.num_copied_out, 3);
  EXPECT_EQ(swap_in(space, pool, outside, parent), 1);  // the last page may have been written since
  EXPECT_EQ(parent[0].num_tokens(), 20);
  EXPECT_EQ(parent[0].page_ids()[0], pages[0]);
  EXPECT_EQ(parent[0].page_ids()[1], pages[1]);
  EXPECT_NE(parent[0].page_ids()[2], pages[2]);
  EXPECT_EQ(pool.num_shared(), 2);
}

TEST(SwapSpace, SharedPagesAreKeptOnceAndComeBackOnce) {
  PagePool pool(20);
  SwapSpace space(&pool, kPageSize, 20);
  std::vector<PageTable> first;
  first.push_back(table_of(pool, 20));
  std::vector<PageTable> second;
  second.push_back(first[0].fork());
  const Outside a = swap_out(space, first);
  const Outside b = swap_out(space, second);
  EXPECT_EQ(a.num_copied_out + b.num_copied_out, 2 + 2);
  EXPECT_EQ(space.pool().num_used(), 4);
  EXPECT_EQ(pool.num_used(), 0);
  std::vector<PageTable> others;
  others.push_back(table_of(pool, 20 * kPageSize));  // the pages now hold something else
  others.clear();
  EXPECT_EQ(swap_in(space, pool, a, first), 3);
  EXPECT_EQ(swap_in(space, pool, b, second), 1);
  EXPECT_EQ(pool.num_used(), 4);
  EXPECT_EQ(pool.num_shared(), 2);
}

TEST(SwapSpace, KeptPagesComeBackWithoutACopyUntilTheyAreTaken) {
  PagePool pool(4);
  SwapSpace space(&pool, kPageSize, 4);
  std::vector<PageTable> table;
  table.push_back(table_of(pool, 3 * kPageSize));
  for (const int32_t page : table[0].page_ids()) pool.set_cached(page);
  Outside outside = swap_out(space, table);
  EXPECT_EQ(swap_in(space, pool, outside, table), 0);
  outside = swap_out(space, table);
  EXPECT_EQ(outside.num_copied_out, 0);  // the copies of before are still good
  {
    std::vector<PageRef> taken;
    ASSERT_TRUE(pool.alloc(2, &taken));  // a free one and a kept one
  }
  EXPECT_EQ(swap_in(space, pool, outside, table), 1);
  for (const int32_t page : table[0].page_ids()) pool.clear_cached(page);
}

TEST(SwapSpace, AFullSpaceTakesNothing) {
  PagePool pool(20);
  SwapSpace space(&pool, kPageSize, 2);
  std::vector<PageTable> table;
  table.push_back(table_of(pool, 17));
  EXPECT_EQ(space.pages_to_swap_out(table), 3);
  std::vector<SwappedTable> swapped;
  std::vector<SwapCopy> copies;
  EXPECT_FALSE(space.swap_out(table, &swapped, &copies));
  EXPECT_TRUE(swapped.empty());
  EXPECT_TRUE(copies.empty());
  EXPECT_EQ(space.pool().num_used(), 0);
}

TEST(SwapSpace, WhatAWindowLeftBehindStaysBehind) {
  PagePool pool(20);
  SwapSpace space(&pool, kPageSize, 20);
  std::vector<PageTable> table;
  table.emplace_back(&pool, kPageSize, /*window=*/10);
  std::vector<PageCopyRequest> copies;
  ASSERT_TRUE(table[0].grow(40, &copies));
  table[0].release_behind(39);
  ASSERT_EQ(table[0].num_held_pages(), 2);
  const Outside outside = swap_out(space, table);
  EXPECT_EQ(outside.num_copied_out, 2);
  std::vector<PageTable> back;
  EXPECT_EQ(swap_in(space, pool, outside, back), 2);
  EXPECT_EQ(back[0].num_held_pages(), 2);
  EXPECT_EQ(back[0].page_ids()[0], -1);
  EXPECT_GE(back[0].page_ids()[3], 0);
}

// A page that is cut and written again is no longer what the space has a copy of.
TEST(SwapSpace, APageThatIsWrittenAgainIsCopiedAgain) {
  PagePool pool(20);
  SwapSpace space(&pool, kPageSize, 20);
  std::vector<PageTable> table;
  table.push_back(table_of(pool, 16));
  const Outside before = swap_out(space, table);
  ASSERT_EQ(swap_in(space, pool, before, table), 2);
  table[0].truncate(12);
  std::vector<PageCopyRequest> copies;
  ASSERT_TRUE(table[0].grow(16, &copies));
  EXPECT_EQ(swap_out(space, table).num_copied_out, 1);
}

}  // namespace
}  // namespace quire
