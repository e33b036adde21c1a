#include "tensor/arena.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace quire {
namespace {

Arena make_arena(int64_t num_bytes) {
  return Arena(DeviceBuffer(std::aligned_alloc(256, static_cast<size_t>(num_bytes)), num_bytes, Device{}, std::free));
}

TEST(ArenaTest, TakesAlignedAndGivesBackInScopes) {
  Arena arena = make_arena(1024);
  const TensorView first = arena.take(DType::kF32, {3, 5});
  EXPECT_EQ(arena.used_bytes(), 256);
  {
    ArenaScope scope(arena);
    const TensorView second = arena.take(DType::kI8, {257});
    EXPECT_EQ(static_cast<char*>(second.raw_data()) - static_cast<char*>(first.raw_data()), 256);
    EXPECT_EQ(arena.used_bytes(), 768);
  }
  EXPECT_EQ(arena.used_bytes(), 256);
  EXPECT_EQ(arena.peak_bytes(), 768);
  arena.reset();
  EXPECT_EQ(arena.used_bytes(), 0);
}

TEST(ArenaDeathTest, RunningOutIsAFault) {
  Arena arena = make_arena(256);
  EXPECT_DEATH(arena.take_bytes(257), "CHECK");
}

}  // namespace
}  // namespace quire
