#include "weights/weight_map.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(WeightMapTest, UnitsAreDealtOutInOrderAndCompletely) {
  for (const int64_t unit : {1, 32, 128, 256}) {
    for (const int64_t num_units : {1, 2, 3, 7, 86}) {
      for (int count = 1; count <= num_units; ++count) {
        int64_t position = 0;
        for (int index = 0; index < count; ++index) {
          const auto range = shard_range(num_units * unit, {ShardKind::kColumns, unit}, {index, count});
          ASSERT_TRUE(range.is_ok());
          EXPECT_EQ(range.value().first, position);
          EXPECT_EQ(range.value().count % unit, 0);
          EXPECT_GT(range.value().count, 0);
          // No rank has two units more than another.
          EXPECT_LE(range.value().count, (num_units + count - 1) / count * unit);
          position += range.value().count;
        }
        EXPECT_EQ(position, num_units * unit);
      }
    }
  }
}

TEST(WeightMapTest, SplitsThatCannotBeAreRefused) {
  // 896 = 3.5 groups of 256 for each of two ranks; 11008 = 21.5 groups of 128 for each of four (dealt unevenly).
  EXPECT_FALSE(shard_range(896, {ShardKind::kRows, 256}, {0, 2}).is_ok());
  const auto uneven = shard_range(11008, {ShardKind::kRows, 128}, {1, 4});
  ASSERT_TRUE(uneven.is_ok());
  EXPECT_EQ(uneven.value().first, 21 * 128);
  EXPECT_EQ(uneven.value().count, 22 * 128);
  EXPECT_FALSE(shard_range(512, {ShardKind::kColumns, 256}, {0, 3}).is_ok());
  // Four KV heads on six ranks; inputs are never replicated, for they would be summed twice.
  EXPECT_FALSE(shard_range(4 * 64, {ShardKind::kHeads, 64, true}, {0, 6}).is_ok());
  EXPECT_FALSE(shard_range(4 * 64, {ShardKind::kRows, 64, true}, {0, 8}).is_ok());
  // One rank takes all, whatever the unit.
  EXPECT_EQ(shard_range(896, {ShardKind::kRows, 256}, {0, 1}).value().count, 896);
}

TEST(WeightMapTest, KvHeadsAreReplicatedWhereRanksOutnumberThem) {
  for (int index = 0; index < 8; ++index) {
    const auto range = shard_range(4 * 64, {ShardKind::kHeads, 64, true}, {index, 8});
    ASSERT_TRUE(range.is_ok());
    EXPECT_EQ(range.value().first, index / 2 * 64);
    EXPECT_EQ(range.value().count, 64);
  }
}

TEST(WeightMapTest, QueryHeadsStayWithTheirKvHeads) {
  struct Case {
    int num_heads;
    int num_kv_heads;
    int count;
  };
  for (const Case& test : {Case{9, 3, 1}, Case{9, 3, 2}, Case{9, 3, 3}, Case{9, 3, 9}, Case{32, 8, 8}, Case{32, 8, 16},
                           Case{32, 4, 8}, Case{32, 4, 3}, Case{8, 1, 4}, Case{64, 8, 5}}) {
    int next_head = 0;
    for (int index = 0; index < test.count; ++index) {
      const Rank rank = {index, test.count};
      const auto shared = share_heads(test.num_heads, test.num_kv_heads, rank);
      ASSERT_TRUE(shared.is_ok()) << shared.status().message();
      const HeadShare share = shared.value();
      EXPECT_EQ(share.first_head, next_head);
      next_head += share.num_heads;
      ASSERT_EQ(share.num_heads % share.num_kv_heads, 0);
      for (int i = 0; i < share.num_heads; ++i) {
        const int whole = (share.first_head + i) * test.num_kv_heads / test.num_heads;
        const int local = share.first_kv_head + i * share.num_kv_heads / share.num_heads;
        EXPECT_EQ(local, whole);
      }
      // The shards of q and kv outputs say the same.
      constexpr int kHeadDim = 16;
      const auto q =
          shard_range(test.num_heads * kHeadDim, {ShardKind::kHeads, share.heads_per_unit * kHeadDim, true}, rank);
      ASSERT_TRUE(q.is_ok()) << q.status().message();
      EXPECT_EQ(q.value().first, share.first_head * kHeadDim);
      EXPECT_EQ(q.value().count, share.num_heads * kHeadDim);
      const auto kv = shard_range(test.num_kv_heads * kHeadDim, {ShardKind::kHeads, kHeadDim, true}, rank);
      ASSERT_TRUE(kv.is_ok());
      EXPECT_EQ(kv.value().first, share.first_kv_head * kHeadDim);
      EXPECT_EQ(kv.value().count, share.num_kv_heads * kHeadDim);
    }
    EXPECT_EQ(next_head, test.num_heads);
  }
  EXPECT_FALSE(share_heads(9, 3, {0, 4}).is_ok());
  EXPECT_FALSE(share_heads(9, 3, {0, 6}).is_ok());
  EXPECT_FALSE(share_heads(9, 4, {0, 1}).is_ok());
  EXPECT_FALSE(share_heads(0, 0, {0, 1}).is_ok());
}

TEST(WeightMapTest, StarsStandForAnyCharacters) {
  EXPECT_TRUE(matches_pattern("model.layers.3.rotary_emb.inv_freq", "*.rotary_emb.inv_freq"));
  EXPECT_TRUE(matches_pattern("a", "a"));
  EXPECT_TRUE(matches_pattern("", "*"));
  EXPECT_TRUE(matches_pattern("abcbc", "a*bc"));
  EXPECT_TRUE(matches_pattern("abXcdYc", "a*c*c"));
  EXPECT_FALSE(matches_pattern("ab", "a"));
  EXPECT_FALSE(matches_pattern("a", "ab"));
  EXPECT_FALSE(matches_pattern("abcb", "a*bc"));
  EXPECT_FALSE(matches_pattern("a", ""));
  EXPECT_FALSE(matches_pattern(std::string(5000, 'a'), "*a*a*a*a*b"));
}

}  // namespace
}  // namespace quire
