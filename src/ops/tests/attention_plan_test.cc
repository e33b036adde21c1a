// The pieces of a step's attention: every chunk of every unit once, in order, about equal costs, room for partial
// results that nobody shares, and no allocation.
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "ops/cpu/attention_plan.h"
#include "ops/tests/op_test.h"

namespace quire::cpu {
namespace {

struct Step {
  std::vector<int32_t> query_starts = {0};
  std::vector<int32_t> context_lengths;

  void add(int num_queries, int context_length) {
    query_starts.push_back(query_starts.back() + num_queries);
    context_lengths.push_back(context_length);
  }
  AttentionBatch batch() const {
    AttentionBatch batch;
    batch.num_sequences = static_cast<int>(context_lengths.size());
    batch.num_tokens = query_starts.back();
    batch.host_query_starts = query_starts;
    batch.host_context_lengths = context_lengths;
    return batch;
  }
};

int64_t item_cost(const AttentionGeometry& geometry, const AttentionItem& item) {
  const int64_t rows = int64_t{item.token_end - item.token_begin} * geometry.num_heads / geometry.num_kv_heads;
  return (6 + rows) * (item.chunk_end - item.chunk_begin);
}

void check_plan(const AttentionGeometry& geometry, const Step& step, const CpuAttentionPlan& plan) {
  // What must be covered: rows of each (KV head, token) and the chunks that its unit needs.
  std::map<std::tuple<int, int>, int> tokens_seen;
  std::map<std::tuple<int, int>, int> next_chunk;  // by (first token, KV head)
  std::map<int64_t, int64_t> partials;             // begin → end
  const int group_size = geometry.num_heads / geometry.num_kv_heads;
  for (int piece = 0; piece < plan.num_pieces(); ++piece) {
    EXPECT_FALSE(plan.piece(piece).empty());
    for (const AttentionItem& item : plan.piece(piece)) {
      ASSERT_LT(item.chunk_begin, item.chunk_end);
      const int begin = step.query_starts[static_cast<size_t>(item.sequence)];
      const int end = step.query_starts[static_cast<size_t>(item.sequence) + 1];
      const int context_length = step.context_lengths[static_cast<size_t>(item.sequence)];
      ASSERT_LE(begin, item.token_begin);
      ASSERT_LE(item.token_end, end);
      EXPECT_EQ(item.first_position, context_length - (end - item.token_begin));
      EXPECT_LE((item.token_end - item.token_begin) * group_size, attention_tile_rows(group_size));
      const int last_position = item.first_position + item.token_end - item.token_begin - 1;
      const int first_key = geometry.window > 0 ? std::max(0, item.first_position - geometry.window + 1) : 0;
      const int first_chunk = first_key / kAttentionChunkTokens;
      const int end_chunk = last_position / kAttentionChunkTokens + 1;
      const auto unit = std::tuple(item.token_begin, item.kv_head);
      if (!next_chunk.contains(unit)) next_chunk[unit] = first_chunk;
      EXPECT_EQ(item.chunk_begin, next_chunk[unit]);
      next_chunk[unit] = item.chunk_end;
      EXPECT_LE(item.chunk_end, end_chunk);
      if (item.chunk_begin == first_chunk) {
        for (int token = item.token_begin; token < item.token_end; ++token) {
          ++tokens_seen[std::tuple(token, item.kv_head)];
        }
      }
      const bool is_split = item.chunk_begin != first_chunk || item.chunk_end != end_chunk;
      EXPECT_EQ(is_split, item.partial_offset >= 0);
      if (!is_split) continue;
      EXPECT_EQ(item.is_first_of_split, item.chunk_begin == first_chunk);
      const int64_t num_states = item.is_first_of_split ? 1 : item.chunk_end - item.chunk_begin;
      const int64_t floats =
          num_states *
          attention_state_floats(int64_t{item.token_end - item.token_begin} * group_size, geometry.head_dim);
      partials[item.partial_offset] = item.partial_offset + floats;
    }
  }
  for (int token = 0; token < step.query_starts.back(); ++token) {
    for (int head = 0; head < geometry.num_kv_heads; ++head) {
      EXPECT_EQ(tokens_seen[std::tuple(token, head)], 1) << token << ", " << head;
    }
  }
  int64_t end_of_last = 0;
  for (const auto& [begin, end] : partials) {
    EXPECT_LE(end_of_last, begin);
    end_of_last = end;
  }
  EXPECT_LE(end_of_last * int64_t{sizeof(float)}, int64_t{32} << 20);
  // Every unit was finished.
  for (const AttentionSplit& split : plan.splits()) {
    const auto items = plan.items_of(split);
    EXPECT_GT(items.size(), 1u);
    EXPECT_TRUE(items.front().is_first_of_split);
    for (size_t i = 1; i < items.size(); ++i) {
      EXPECT_EQ(items[i].token_begin, items[0].token_begin);
      EXPECT_EQ(items[i].kv_head, items[0].kv_head);
      EXPECT_FALSE(items[i].is_first_of_split);
    }
  }
}

TEST(AttentionPlan, RandomSteps) {
  TestRandom random(51);
  SCOPED_TRACE(random.trace());
  for (int round = 0; round < 400; ++round) {
    AttentionGeometry geometry;
    geometry.num_kv_heads = static_cast<int>(1 + random.below(8));
    geometry.num_heads = geometry.num_kv_heads * static_cast<int>(1 + random.below(9));
    geometry.head_dim = static_cast<int>(8 * (1 + random.below(32)));
    geometry.page_size = 16;
    geometry.window = random.below(3) == 0 ? static_cast<int>(1 + random.below(1000)) : 0;
    geometry.max_num_tokens = 2048;
    geometry.max_num_sequences = 64;
    const int num_threads = static_cast<int>(1 + random.below(5));
    const auto plan = CpuAttentionPlan::create(geometry, num_threads).value();
    for (int step_index = 0; step_index < 3; ++step_index) {
      Step step;
      const int64_t num_sequences = random.below(20);
      for (int64_t s = 0; s < num_sequences; ++s) {
        const int num_queries = static_cast<int>(random.below(2) == 0 ? 1 : random.below(100));
        step.add(num_queries, num_queries + static_cast<int>(random.below(random.below(4) == 0 ? 20'000 : 300)));
      }
      plan->fill(step.batch());
      check_plan(geometry, step, *plan);
    }
  }
}

// One sequence, three KV heads, two threads: without splits one thread would do two thirds.
TEST(AttentionPlan, DecodingOfOneSequenceIsShared) {
  const AttentionGeometry geometry{.num_heads = 9,
                                   .num_kv_heads = 3,
                                   .head_dim = 64,
                                   .page_size = 16,
                                   .window = 0,
                                   .max_num_tokens = 512,
                                   .max_num_sequences = 8};
  const auto plan = CpuAttentionPlan::create(geometry, 2).value();
  Step step;
  step.add(1, 8192);
  plan->fill(step.batch());
  check_plan(geometry, step, *plan);
  ASSERT_GE(plan->num_pieces(), 4);
  int64_t total = 0;
  int64_t largest = 0;
  for (int piece = 0; piece < plan->num_pieces(); ++piece) {
    int64_t cost = 0;
    for (const AttentionItem& item : plan->piece(piece)) cost += item_cost(geometry, item);
    total += cost;
    largest = std::max(largest, cost);
  }
  EXPECT_LE(largest * plan->num_pieces(), total * 5 / 4);
}

// A context so long that partial results of all splits would not fit is split less, not refused.
TEST(AttentionPlan, VeryLongContextsAreSplitLess) {
  const AttentionGeometry geometry{.num_heads = 64,
                                   .num_kv_heads = 1,
                                   .head_dim = 256,
                                   .page_size = 16,
                                   .window = 0,
                                   .max_num_tokens = 512,
                                   .max_num_sequences = 8};
  const auto plan = CpuAttentionPlan::create(geometry, 8).value();
  Step step;
  for (int s = 0; s < 8; ++s) step.add(1, 1'000'000);
  plan->fill(step.batch());
  check_plan(geometry, step, *plan);
}

TEST(AttentionPlan, AShortStepIsOnePiece) {
  const AttentionGeometry geometry{.num_heads = 9,
                                   .num_kv_heads = 3,
                                   .head_dim = 64,
                                   .page_size = 16,
                                   .window = 0,
                                   .max_num_tokens = 512,
                                   .max_num_sequences = 8};
  const auto plan = CpuAttentionPlan::create(geometry, 2).value();
  Step step;
  step.add(1, 20);
  plan->fill(step.batch());
  EXPECT_EQ(plan->num_pieces(), 1);
  plan->fill(Step().batch());
  EXPECT_EQ(plan->num_pieces(), 0);
}

}  // namespace
}  // namespace quire::cpu
