// Sameness under load: 300 requests of mixed lengths, greedy and seeded, some with several choices, over a pool that is
// far too small, with shared beginnings, aborts, priorities and keys. Each answer must be the one that the request gets
// alone, token by token, while the run preempts by recompute and by swap, reuses prefixes and aborts.
#include <gtest/gtest.h>

#include <random>

#include "engine/engine.h"
#include "engine/testing/history_model.h"
#include "engine/testing/tiny_llama.h"
#include "models/load_model.h"
#include "ops/backends.h"
#include "weights/testing/test_folder.h"

namespace quire {
namespace {

using testing::RecordingSink;

struct Wanted {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int priority = 0;
  uint64_t share_key = 0;
  int64_t abort_after = -1;  // tokens of the first choice
};

class LoadTest : public ::testing::Test {
 protected:
  LoadTest() {
    ops = create_ops({.kind = BackendKind::kCpu, .num_threads = 1, .compute = Compute::kAuto}).value();
    auto loaded = load_model(open_checkpoint(folder.write("tiny.gguf", testing::tiny_quantized_llama())).value(), *ops);
    CHECK(loaded.is_ok());
    model = std::move(loaded).value();
  }

  std::unique_ptr<Engine> make(const EngineOptions& options) {
    auto engine = Engine::create(*ops, *model, options);
    EXPECT_TRUE(engine.is_ok()) << engine.status().message();
    return std::move(engine).value();
  }

  static RequestId add(Engine& engine, const Wanted& wanted, const std::shared_ptr<RecordingSink>& sink) {
    Request request = Request::from_tokens(wanted.prompt, wanted.sampling, sink);
    request.priority = wanted.priority;
    request.share_key = wanted.share_key;
    const auto id = engine.add_request(std::move(request));
    EXPECT_TRUE(id.is_ok()) << id.status().message();
    return id.value();
  }

  std::vector<Wanted> make_wanted() {
    std::mt19937 random(5);
    const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
    const auto tokens = [&](int count) {
      std::vector<int32_t> result;
      for (int i = 0; i < count; ++i) result.push_back(below(static_cast<int>(testing::kTinyLlamaVocab)));
      return result;
    };
    std::vector<std::vector<int32_t>> stems;
    for (int s = 0; s < 4; ++s) stems.push_back(tokens(120));
    std::vector<Wanted> all;
    for (int i = 0; i < 300; ++i) {
      Wanted wanted;
      if (below(3) > 0) {
        const auto& stem = stems[static_cast<size_t>(below(4))];
        wanted.prompt.assign(stem.begin(), stem.begin() + 20 + below(100));
      }
      const std::vector<int32_t> own = tokens(1 + below(60));
      wanted.prompt.insert(wanted.prompt.end(), own.begin(), own.end());
      wanted.sampling.max_tokens = 1 + below(below(4) == 0 ? 120 : 40);
      wanted.sampling.ignore_eos = true;
      if (i % 2 == 0) {
        wanted.sampling.temperature = 0.0f;
      } else {
        wanted.sampling.temperature = 0.9f;
        wanted.sampling.seed = static_cast<uint64_t>(1000 + i);
        wanted.sampling.top_p = below(2) == 0 ? 0.9f : 1.0f;
        wanted.sampling.repetition_penalty = below(3) == 0 ? 1.2f : 1.0f;
        wanted.sampling.n = below(6) == 0 ? 3 : 1;
      }
      wanted.priority = below(3) - 1;
      wanted.share_key = static_cast<uint64_t>(below(3));
      if (i % 7 == 3) wanted.abort_after = below(4) == 0 ? 0 : below(12);
      all.push_back(std::move(wanted));
    }
    return all;
  }

  testing::TestFolder folder;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Model> model;
};

TEST_F(LoadTest, EachAnswerIsTheOneThatItGetsAlone) {
  const std::vector<Wanted> all = make_wanted();
  EngineOptions options;
  options.max_num_seqs = 16;
  options.max_num_batched_tokens = 64;
  options.page_size = 8;
  options.compute = Compute::kAuto;
  options.max_model_len = 320;

  std::vector<std::shared_ptr<RecordingSink>> alone;
  {
    EngineOptions roomy = options;
    roomy.has_prefix_cache = false;
    roomy.kv_cache_memory_bytes = 16 << 20;
    auto engine = make(roomy);
    for (const Wanted& wanted : all) {
      alone.push_back(std::make_shared<RecordingSink>());
      add(*engine, wanted, alone.back());
      while (engine->has_work()) ASSERT_TRUE(engine->step().is_ok());
    }
    EXPECT_EQ(engine->stats().num_preemptions, 0);
  }

  // A page is 8 tokens of 2 layers of K and V of 128 f16 values: 8 KiB.
  constexpr int64_t kPageBytes = 8 * 2 * 2 * 128 * 2;
  options.kv_cache_memory_bytes = 80 * kPageBytes;
  options.swap_space_bytes = 20 * kPageBytes;  // full at times: then tokens are computed again
  options.preemption = PreemptionMode::kSwap;
  auto engine = make(options);
  ASSERT_EQ(engine->stats().num_pages, 80);
  ASSERT_EQ(engine->stats().num_swap_pages, 20);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::mt19937 random(6);
  for (const Wanted& wanted : all) {
    auto sink = std::make_shared<RecordingSink>();
    const RequestId id = add(*engine, wanted, sink);
    if (wanted.abort_after == 0) {
      if (random() % 2 == 0) {
        ASSERT_TRUE(engine->step().is_ok());
      }
      engine->abort(id);
    } else if (wanted.abort_after > 0) {
      sink->then = [&engine, id, &wanted, recorded = sink.get()](const TokenEvent& event) {
        const bool is_enough = static_cast<int64_t>(recorded->choices[0].token_ids.size()) >= wanted.abort_after;
        if (is_enough && event.finish_reason == FinishReason::kNone) engine->abort(id);
      };
    }
    sinks.push_back(std::move(sink));
    for (unsigned steps = random() % 4; steps > 0; --steps) ASSERT_TRUE(engine->step().is_ok());
  }
  for (int i = 0; engine->has_work(); ++i) {
    ASSERT_LT(i, 100000) << "no end in sight";
    ASSERT_TRUE(engine->step().is_ok());
  }

  int num_aborted = 0;
  int num_prefix_hits = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    num_prefix_hits += sinks[i]->num_cached_tokens > 0 ? 1 : 0;
    bool is_aborted = false;
    ASSERT_EQ(sinks[i]->choices.size(), static_cast<size_t>(all[i].sampling.n));
    for (size_t c = 0; c < sinks[i]->choices.size(); ++c) {
      const auto& choice = sinks[i]->choices[c];
      std::vector<int32_t> expected = alone[i]->choices[c].token_ids;
      if (choice.finish_reason == FinishReason::kAborted) {
        is_aborted = true;
        ASSERT_LE(choice.token_ids.size(), expected.size());
        expected.resize(choice.token_ids.size());
      } else {
        EXPECT_EQ(choice.finish_reason, alone[i]->choices[c].finish_reason);
      }
      EXPECT_EQ(choice.token_ids, expected);
    }
    num_aborted += is_aborted ? 1 : 0;
  }
  const EngineStats stats = engine->stats();
  EXPECT_GE(stats.num_swap_outs, 50);
  EXPECT_GE(stats.num_preemptions - stats.num_swap_outs, 50);
  EXPECT_GE(num_prefix_hits, 100);
  EXPECT_GE(num_aborted, 30);
  EXPECT_EQ(stats.num_pages_used, 0);
  EXPECT_EQ(stats.num_swap_pages_used, 0);
  RecordProperty("swap_outs", static_cast<int>(stats.num_swap_outs));
  RecordProperty("recomputes", static_cast<int>(stats.num_preemptions - stats.num_swap_outs));
  RecordProperty("prefix_hits", num_prefix_hits);
  RecordProperty("aborts", num_aborted);
}

}  // namespace
}  // namespace quire
