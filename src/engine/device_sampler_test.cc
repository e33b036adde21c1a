// An engine whose device draws the tokens answers as one whose host does: over the plain loops of the ops, which stand
// in for a GPU here.
#include "engine/device_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/testing/history_model.h"
#include "ops/reference/reference_ops.h"

namespace quire {
namespace {

using testing::HistoryModel;
using testing::kHistoryVocab;
using testing::kPoisonToken;
using testing::RecordingSink;

// Calls itself a GPU, and remembers how many rows of logits were taken from it.
class PlainDevice final : public ReferenceOps {
 public:
  Device device() const override { return {DeviceKind::kCuda, 0}; }
  void copy_to_host(OpContext& context, void* host_data, const void* device_data, int64_t num_bytes) override {
    if (num_bytes == kHistoryVocab * 4) ++num_rows_taken;
    ReferenceOps::copy_to_host(context, host_data, device_data, num_bytes);
  }
  int num_rows_taken = 0;
};

// Never the same token parity twice in a row.
class Alternate final : public TokenConstraint {
 public:
  void fill_mask(std::span<uint32_t> mask) override {
    for (uint32_t& word : mask) word = tokens_.empty() || tokens_.back() % 2 == 0 ? 0xaaaaaaaau : 0x55555555u;
  }
  void accept(int32_t token_id) override { tokens_.push_back(token_id); }
  void rollback(int num_tokens) override { tokens_.resize(tokens_.size() - static_cast<size_t>(num_tokens)); }
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<Alternate>(*this); }

 private:
  std::vector<int32_t> tokens_;
};

struct Job {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  bool is_constrained = false;
};

class DeviceSamplerTest : public ::testing::Test {
 protected:
  std::vector<int32_t> random_tokens(int count, int end = kPoisonToken) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(end)));
    return tokens;
  }

  // All that a request may ask for, in all sorts of mixtures.
  Job random_job() {
    Job job;
    job.prompt = random_tokens(1 + static_cast<int>(random() % 60));
    SamplingParams& sampling = job.sampling;
    sampling.temperature = 0.0f;
    sampling.max_tokens = 1 + static_cast<int64_t>(random() % 40);
    sampling.ignore_eos = random() % 2 == 0;
    const auto maybe = [this] { return random() % 3 == 0; };
    if (maybe()) sampling.repetition_penalty = 1.4f;
    if (maybe()) sampling.presence_penalty = 0.6f;
    if (maybe()) sampling.frequency_penalty = 0.3f;
    if (maybe()) {
      for (const int32_t token : random_tokens(12)) {
        sampling.logit_bias.emplace_back(token, static_cast<float>(random() % 100) * 0.037f - 1.5f);
      }
    }
    if (maybe()) sampling.allowed_token_ids = random_tokens(40);
    if (maybe()) sampling.banned_token_ids = random_tokens(20);
    if (maybe()) sampling.min_tokens = sampling.max_tokens / 2;
    if (maybe()) sampling.stop_token_ids = random_tokens(3);
    if (random() % 2 == 0) sampling.num_logprobs = static_cast<int>(random() % 8);
    if (maybe()) sampling.logprob_mode = LogprobMode::kProcessed;
    if (random() % 8 == 0) sampling.typical_p = 0.5f;
    if (random() % 8 == 0) sampling.n = 2;
    if (random() % 8 == 0) sampling.num_prompt_logprobs = 2;
    job.is_constrained = maybe() && sampling.allowed_token_ids.empty();
    return job;
  }

  EngineOptions options(int num_pages = 1000) {
    EngineOptions result;
    result.max_num_seqs = 8;
    result.max_num_batched_tokens = 32;
    result.page_size = 8;
    result.compute = Compute::kF32;
    result.max_model_len = 128;
    result.kv_cache_memory_bytes = int64_t{num_pages} * result.page_size * 2 * 8 * 4;
    return result;
  }

  std::vector<std::shared_ptr<RecordingSink>> run(Ops& ops, const EngineOptions& engine_options,
                                                  const std::vector<Job>& jobs) {
    const std::unique_ptr<Engine> engine = Engine::create(ops, model, engine_options).value();
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (const Job& job : jobs) {
      sinks.push_back(std::make_shared<RecordingSink>());
      Request request = Request::from_tokens(job.prompt, job.sampling, sinks.back());
      if (job.is_constrained) request.constraint = std::make_unique<Alternate>();
      EXPECT_TRUE(engine->add_request(std::move(request)).is_ok());
    }
    while (engine->has_work()) {
      if (!engine->step().is_ok()) {
        ADD_FAILURE() << "a step failed";
        break;
      }
    }
    num_preemptions = engine->stats().num_preemptions;
    return sinks;
  }

  HistoryModel model;
  std::mt19937 random{23};
  int64_t num_preemptions = 0;
};

void expect_near(const TokenLogprobs& a, const TokenLogprobs& b) {
  EXPECT_EQ(a.token_id, b.token_id);
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_NEAR(a.logprob, b.logprob, 1e-5f);
  ASSERT_EQ(a.top.size(), b.top.size());
  for (size_t i = 0; i < a.top.size(); ++i) {
    EXPECT_EQ(a.top[i].token_id, b.top[i].token_id);
    EXPECT_NEAR(a.top[i].logprob, b.top[i].logprob, 1e-5f);
  }
}

TEST_F(DeviceSamplerTest, GreedyAnswersAreThoseOfTheHost) {
  std::vector<Job> jobs;
  for (int i = 0; i < 150; ++i) jobs.push_back(random_job());
  ReferenceOps host;
  const auto expected = run(host, options(), jobs);
  for (const int num_threads : {1, 3}) {
    PlainDevice device;
    EngineOptions engine_options = options(60);
    engine_options.num_sampling_threads = num_threads;
    const auto sinks = run(device, engine_options, jobs);
    EXPECT_GT(num_preemptions, 0);
    for (size_t i = 0; i < jobs.size(); ++i) {
      SCOPED_TRACE("request " + std::to_string(i));
      ASSERT_EQ(sinks[i]->choices.size(), expected[i]->choices.size());
      ASSERT_EQ(sinks[i]->prompt_logprobs.size(), expected[i]->prompt_logprobs.size());
      for (size_t t = 0; t < sinks[i]->prompt_logprobs.size(); ++t) {
        expect_near(sinks[i]->prompt_logprobs[t], expected[i]->prompt_logprobs[t]);
      }
      for (size_t c = 0; c < sinks[i]->choices.size(); ++c) {
        const RecordingSink::Choice& own = sinks[i]->choices[c];
        const RecordingSink::Choice& other = expected[i]->choices[c];
        EXPECT_EQ(own.token_ids, other.token_ids);
        EXPECT_EQ(own.finish_reason, other.finish_reason);
        EXPECT_EQ(own.error.message(), other.error.message());
        ASSERT_EQ(own.logprobs.size(), other.logprobs.size());
        for (size_t t = 0; t < own.logprobs.size(); ++t) expect_near(own.logprobs[t], other.logprobs[t]);
      }
    }
  }
}

// The logits stay where they are but for what only a host can do.
// A step that is launched before the one ahead of it is read changes no answer: not where choices end in it, or
// requests are ended from outside, nor where rows come to need the host or others wait.
TEST_F(DeviceSamplerTest, LaunchingAheadChangesNoAnswer) {
  int64_t num_steps_ahead = 0;
  for (int round = 0; round < 40; ++round) {
    std::vector<Job> jobs;
    const int num_jobs = 1 + static_cast<int>(random() % 12);
    for (int i = 0; i < num_jobs; ++i) {
      Job job = random() % 4 == 0 ? random_job() : Job{};
      if (job.prompt.empty()) {
        job.prompt = random_tokens(1 + static_cast<int>(random() % 30));
        job.sampling.max_tokens = 1 + static_cast<int64_t>(random() % 60);
        job.sampling.temperature = random() % 2 == 0 ? 0.0f : 1.5f;
        job.sampling.seed = i;
        job.sampling.ignore_eos = random() % 2 == 0;
        if (random() % 3 == 0) job.sampling.stop_token_ids = random_tokens(20);
        if (random() % 3 == 0) job.sampling.num_logprobs = 3;
      }
      jobs.push_back(std::move(job));
    }
    const int num_pages = random() % 3 == 0 ? 40 : 1000;
    const uint32_t seed = static_cast<uint32_t>(random());
    std::vector<std::shared_ptr<RecordingSink>> answers[2];
    for (const bool launches_ahead : {false, true}) {
      PlainDevice device;
      EngineOptions engine_options = options(num_pages);
      engine_options.launches_ahead = launches_ahead;
      const std::unique_ptr<Engine> engine = Engine::create(device, model, engine_options).value();
      std::mt19937 events(seed);
      std::vector<RequestId> ids;
      size_t next = 0;
      while (next < jobs.size() || engine->has_work()) {
        if (next < jobs.size() && (next < 3 || events() % 8 == 0 || !engine->has_work())) {
          answers[launches_ahead].push_back(std::make_shared<RecordingSink>());
          Request request =
              Request::from_tokens(jobs[next].prompt, jobs[next].sampling, answers[launches_ahead].back());
          if (jobs[next].is_constrained) request.constraint = std::make_unique<Alternate>();
          ids.push_back(engine->add_request(std::move(request)).value());
          ++next;
        }
        if (launches_ahead && events() % 64 == 0) engine->abort(ids[events() % ids.size()]);
        ASSERT_TRUE(engine->step().is_ok());
      }
      EXPECT_EQ(engine->stats().num_pages_used, 0);
      EXPECT_TRUE(launches_ahead || engine->stats().num_steps_ahead == 0);
      num_steps_ahead += engine->stats().num_steps_ahead;
    }
    ASSERT_EQ(answers[0].size(), answers[1].size());
    for (size_t i = 0; i < jobs.size(); ++i) {
      for (size_t c = 0; c < answers[1][i]->choices.size(); ++c) {
        const auto& expected = answers[0][i]->choices[c];
        const auto& got = answers[1][i]->choices[c];
        if (got.finish_reason == FinishReason::kAborted) {
          ASSERT_LE(got.token_ids.size(), expected.token_ids.size());
          EXPECT_TRUE(std::equal(got.token_ids.begin(), got.token_ids.end(), expected.token_ids.begin()));
          continue;
        }
        EXPECT_EQ(got.token_ids, expected.token_ids) << "round " << round << " job " << i;
        EXPECT_EQ(got.finish_reason, expected.finish_reason);
      }
    }
  }
  EXPECT_GT(num_steps_ahead, 200);
}

TEST_F(DeviceSamplerTest, RowsOfLogitsAreNotTaken) {
  std::vector<Job> jobs;
  for (int i = 0; i < 40; ++i) {
    jobs.push_back(random_job());
    jobs.back().sampling.n = 1;
    jobs.back().sampling.typical_p = 1.0f;
    jobs.back().sampling.temperature = 0.8f;
    jobs.back().sampling.allowed_token_ids.clear();
  }
  PlainDevice device;
  run(device, options(), jobs);
  EXPECT_EQ(device.num_rows_taken, 0);
  jobs[0].sampling.typical_p = 0.9f;
  run(device, options(), jobs);
  EXPECT_GT(device.num_rows_taken, 0);
}

float logprob_of(const std::vector<float>& logits, int32_t id, double scale) {
  double total = 0.0;
  for (const float logit : logits) total += std::exp(scale * (double{logit} - 10.0));
  return static_cast<float>(scale * (double{logits[static_cast<size_t>(id)]} - 10.0) - std::log(total));
}

// Drawn from adjusted logits, by the request's own random numbers, whoever else is in the step.
TEST_F(DeviceSamplerTest, DrawsAreThoseOfTheOpAfterTheAdjustments) {
  std::vector<Job> jobs;
  for (int i = 0; i < 24; ++i) {
    jobs.push_back({.prompt = random_tokens(5 + i), .sampling = {}, .is_constrained = i % 3 == 0});
    jobs.back().sampling = {.temperature = 0.5f + 0.1f * static_cast<float>(i),
                            .top_k = i % 4 == 0 ? 12 : 0,
                            .top_p = i % 2 == 0 ? 0.8f : 1.0f,
                            .min_p = i % 5 == 0 ? 0.05f : 0.0f,
                            .repetition_penalty = 1.2f,
                            .frequency_penalty = 0.4f,
                            .seed = 100 + i,
                            .logit_bias = {{7, 1.5f}, {9, -2.0f}},
                            .banned_token_ids = {20, 21, 22},
                            .max_tokens = 30,
                            .ignore_eos = true,
                            .num_logprobs = i % 2,
                            .logprob_mode = i % 4 == 1 ? LogprobMode::kProcessed : LogprobMode::kRaw};
  }
  PlainDevice device;
  const auto sinks = run(device, options(), jobs);
  for (size_t i = 0; i < jobs.size(); ++i) {
    const SamplingParams& sampling = jobs[i].sampling;
    SamplingState state;
    if (jobs[i].is_constrained) state.constraint = std::make_unique<Alternate>();
    Sampler::count_prompt(state, jobs[i].prompt);
    std::vector<int32_t> tokens = jobs[i].prompt;
    ASSERT_EQ(sinks[i]->choices[0].token_ids.size(), 30u);
    for (const int32_t drawn : sinks[i]->choices[0].token_ids) {
      std::vector<float> logits = model.logits(tokens);
      const SampleCall call = {.logits = {},
                               .params = sampling,
                               .state = state,
                               .seed = *sampling.seed,
                               .output_index = static_cast<int64_t>(tokens.size() - jobs[i].prompt.size())};
      for (const auto& [token, count] : state.counts.entries()) {
        float& logit = logits[static_cast<size_t>(token)];
        logit = penalized_logit(logit, Sampler::penalties_of(sampling), count);
      }
      logits[7] += 1.5f;
      logits[9] += -2.0f;
      std::vector<uint32_t> mask(2);
      Sampler::fill_mask(call, mask);
      for (size_t t = 0; t < logits.size(); ++t) {
        if ((mask[t / 32] >> (t % 32) & 1u) == 0) logits[t] = -INFINITY;
      }
      const SamplingRow row = Sampler::device_row(call, kHistoryVocab);
      int32_t id = -1;
      Arena arena(device.allocate(1024, "test").value());
      OpContext context{arena};
      device.sample(context, TensorView(&id, DType::kI32, {1}),
                    ConstTensorView(logits.data(), DType::kF32, {1, kHistoryVocab}), &row);
      ASSERT_EQ(drawn, id) << "request " << i << ", token " << tokens.size() - jobs[i].prompt.size();
      const std::vector<float> raw = model.logits(tokens);
      const float expected = sampling.logprob_mode == LogprobMode::kRaw
                                 ? logprob_of(raw, id, 1.0)
                                 : logprob_of(logits, id, 1.0 / double{sampling.temperature});
      EXPECT_NEAR(sinks[i]->choices[0].logprobs[tokens.size() - jobs[i].prompt.size()].logprob, expected, 1e-5f);
      tokens.push_back(id);
      Sampler::count_output(state, id);
      if (state.constraint != nullptr) state.constraint->accept(id);
    }
  }
}

TEST_F(DeviceSamplerTest, ErrorsSayWhatWentWrong) {
  std::vector<Job> jobs(5);
  for (Job& job : jobs) {
    job.prompt = random_tokens(9);
    job.sampling = {.temperature = 0.0f, .max_tokens = 5, .ignore_eos = true};
  }
  jobs[0].prompt[3] = kPoisonToken;
  jobs[1].prompt[3] = kPoisonToken;
  jobs[1].sampling.allowed_token_ids = {1};
  jobs[1].sampling.num_logprobs = 3;
  jobs[2].sampling.allowed_token_ids = {1};
  jobs[2].sampling.banned_token_ids = {1};
  jobs[2].sampling.num_logprobs = 3;
  jobs.push_back(jobs[0]);
  jobs[5].sampling.num_prompt_logprobs = 1;
  PlainDevice device;
  const auto sinks = run(device, options(), jobs);
  for (const size_t i : {0u, 1u, 5u}) {
    EXPECT_EQ(sinks[i]->choices[0].finish_reason, FinishReason::kError);
    EXPECT_EQ(sinks[i]->choices[0].error.message(), Sampler::not_numbers().message());
  }
  EXPECT_EQ(sinks[2]->choices[0].error.message(), Sampler::all_excluded().message());
  for (const size_t i : {3u, 4u}) {
    EXPECT_EQ(sinks[i]->choices[0].token_ids, model.expected_greedy(jobs[i].prompt, 5));
  }
}

}  // namespace
}  // namespace quire
