#include "ops/cpu/weight_memory.h"

#include <gtest/gtest.h>

#include <vector>

#include "ops/host_memory.h"

namespace quire::cpu {
namespace {

TEST(PageChoice, SmallAfterASlowHugePageAndHugeAgainIfTheseAreSlower) {
  PageChoice choice(true);
  choice.tell(0.4e-3, 2);
  choice.tell(12e-3, 40);
  EXPECT_FALSE(choice.is_small());
  choice.tell(8e-3, 2);  // 4 ms each
  EXPECT_TRUE(choice.is_small());
  choice.tell(10e-3, 20);
  choice.tell(9e-3, 1);  // one that waited for a processor is no reason
  EXPECT_TRUE(choice.is_small());
  choice.tell(100e-3, 4);
  EXPECT_FALSE(choice.is_small());
  choice.tell(8e-3, 2);
  EXPECT_FALSE(choice.is_small());
}

TEST(PageChoice, HugeForWhoeverWantsNoSmallOnes) {
  PageChoice choice(false);
  choice.tell(1.0, 1);
  EXPECT_FALSE(choice.is_small());
}

// Whichever pages the machine's speed makes it take.
TEST(WeightMemoryTest, PiecesKeepWhatTheyHoldWhenTheyBecomeHuge) {
  ThreadPool pool(3);
  PageChoice choice(can_make_huge());
  choice.tell(1.0, 1);
  WeightMemory memory(choice);
  const std::vector<int64_t> sizes = {300, 17 << 20, 1 << 20, 15 << 20, (40 << 20) + 5, 7};
  std::vector<std::shared_ptr<std::byte>> pieces;
  for (size_t i = 0; i < sizes.size(); ++i) {
    Result<std::shared_ptr<std::byte>> piece = memory.take(pool, sizes[i]);
    ASSERT_TRUE(piece.is_ok());
    for (int64_t j = 0; j < sizes[i]; ++j)
      piece.value().get()[j] = static_cast<std::byte>(j / 4096 + 31 * static_cast<int64_t>(i));
    pieces.push_back(piece.value());
  }
  pieces[1].reset();  // given up meanwhile
  int num_calls = 0;
  while (memory.make_some_huge(pool)) ++num_calls;
  // Huge pages of 17 MB are gone with their block; the others are 32 MB in a block of pieces and 42.
  EXPECT_GE(num_calls, can_make_huge() ? (8 + 21) / 3 : 0);
  EXPECT_FALSE(memory.make_some_huge(pool));
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (pieces[i] == nullptr) continue;
    for (int64_t j = 0; j < sizes[i]; ++j) {
      ASSERT_EQ(pieces[i].get()[j], static_cast<std::byte>(j / 4096 + 31 * static_cast<int64_t>(i))) << i << " " << j;
    }
  }
}

TEST(WeightMemoryTest, HugePagesLeaveNothingToDo) {
  ThreadPool pool(2);
  WeightMemory memory;
  const auto piece = memory.take(pool, 20 << 20);
  ASSERT_TRUE(piece.is_ok());
  EXPECT_FALSE(memory.make_some_huge(pool));
}

}  // namespace
}  // namespace quire::cpu
