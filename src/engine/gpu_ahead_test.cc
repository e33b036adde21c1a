// On a GPU steps are launched before those ahead of them have ended: the answers are those of steps one after another,
// whatever ends in the meantime. Under strict order, so that answers do not depend on who else is in a step.
#include <gtest/gtest.h>

#include <random>

#include "engine/engine.h"
#include "engine/testing/history_model.h"
#include "engine/testing/tiny_llama.h"
#include "kv/kv_cache.h"
#include "models/load_model.h"
#include "ops/backends.h"
#include "weights/testing/test_folder.h"

namespace quire {
namespace {

using testing::RecordingSink;

struct Wanted {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
};

class GpuAhead : public ::testing::Test {
 protected:
  void SetUp() override {
    BackendOptions options{.kind = BackendKind::kCuda};
    options.is_strict = true;
    if (!has_cuda_backend()) GTEST_SKIP() << "a build without CUDA";
    auto created = create_ops(options);
    if (created.status().code() == StatusCode::kUnavailable) GTEST_SKIP() << "this machine has no GPU";
    ASSERT_TRUE(created.is_ok()) << created.status().message();
    ops_ = std::move(created).value();
    model_ =
        load_model(open_checkpoint(folder_.write("tiny.gguf", testing::tiny_quantized_llama())).value(), *ops_).value();
  }

  int below(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }

  std::vector<Wanted> random_requests(int count) {
    std::vector<Wanted> all(static_cast<size_t>(count));
    for (Wanted& wanted : all) {
      const int length = below(6) == 0 ? 1 : 1 + below(60);
      for (int i = 0; i < length; ++i) wanted.prompt.push_back(below(static_cast<int>(testing::kTinyLlamaVocab)));
      SamplingParams& sampling = wanted.sampling;
      sampling.max_tokens = 1 + below(120);
      sampling.temperature = below(2) == 0 ? 0.0f : 0.9f;
      sampling.seed = below(1000);
      sampling.ignore_eos = below(2) == 0;
      if (below(3) == 0) sampling.stop_token_ids = {below(96), below(96)};
      if (below(3) == 0) sampling.num_logprobs = 2;
      if (below(12) == 0) sampling.frequency_penalty = 0.3f;
      if (below(12) == 0) sampling.n = 2;
    }
    return all;
  }

  // Requests come at random; where steps are launched ahead, some are ended from outside.
  std::vector<std::shared_ptr<RecordingSink>> run(const std::vector<Wanted>& all, bool launches_ahead,
                                                  int64_t num_pages) {
    EngineOptions options;
    options.max_num_seqs = 8;
    options.max_num_batched_tokens = 64;
    options.page_size = 16;
    options.is_strict = true;
    options.launches_ahead = launches_ahead;
    options.max_model_len = 256;
    const std::vector<KvGroup> groups = model_->kv_groups(model_->activation_dtype());
    options.kv_cache_memory_bytes = KvCache::page_bytes(groups, options.page_size) * num_pages;
    const std::unique_ptr<Engine> engine = Engine::create(*ops_, *model_, options).value();
    std::mt19937 events(7);
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    std::vector<RequestId> ids;
    while (sinks.size() < all.size() || engine->has_work()) {
      if (sinks.size() < all.size() && (sinks.size() < 4 || events() % 12 == 0 || !engine->has_work())) {
        const Wanted& wanted = all[sinks.size()];
        sinks.push_back(std::make_shared<RecordingSink>());
        ids.push_back(engine->add_request(Request::from_tokens(wanted.prompt, wanted.sampling, sinks.back())).value());
      }
      if (launches_ahead && events() % 100 == 0) engine->abort(ids[events() % ids.size()]);
      const Status status = engine->step();
      EXPECT_TRUE(status.is_ok()) << status.message();
      if (!status.is_ok()) break;
    }
    EXPECT_EQ(engine->stats().num_pages_used, 0);
    num_steps_ahead_ = engine->stats().num_steps_ahead;
    num_preemptions_ = engine->stats().num_preemptions;
    return sinks;
  }

  testing::TestFolder folder_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Model> model_;
  std::mt19937 random_{31};
  int64_t num_steps_ahead_ = 0;
  int64_t num_preemptions_ = 0;
};

TEST_F(GpuAhead, ChangesNoAnswer) {
  for (const int64_t num_pages : {200, 40}) {
    const std::vector<Wanted> all = random_requests(80);
    const auto expected = run(all, /*launches_ahead=*/false, num_pages);
    EXPECT_EQ(num_steps_ahead_, 0);
    const auto got = run(all, /*launches_ahead=*/true, num_pages);
    EXPECT_GT(num_steps_ahead_, 100);
    EXPECT_EQ(num_preemptions_ > 0, num_pages == 40);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      for (size_t c = 0; c < got[i]->choices.size(); ++c) {
        const auto& a = got[i]->choices[c];
        const auto& b = expected[i]->choices[c];
        if (a.finish_reason == FinishReason::kAborted) {
          ASSERT_LE(a.token_ids.size(), b.token_ids.size());
          EXPECT_TRUE(std::equal(a.token_ids.begin(), a.token_ids.end(), b.token_ids.begin())) << "request " << i;
          continue;
        }
        EXPECT_EQ(a.token_ids, b.token_ids) << "request " << i;
        EXPECT_EQ(a.finish_reason, b.finish_reason);
        ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
        for (size_t t = 0; t < a.logprobs.size(); ++t) EXPECT_EQ(a.logprobs[t].logprob, b.logprobs[t].logprob);
      }
    }
  }
}

}  // namespace
}  // namespace quire
