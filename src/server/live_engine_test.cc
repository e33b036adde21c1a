// The API over a real engine and its loop, with a model that computes nothing: clients that leave, long prompts beside
// streams, steps that hang, logits that are not numbers. Numbers such as F040 name the public reports that each test
// stands for.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <random>
#include <thread>

#include "engine/engine_loop.h"
#include "engine/testing/history_model.h"
#include "ops/backends.h"
#include "server/chat_completions.h"
#include "server/completions.h"
#include "server/service_routes.h"
#include "server/testing/api_fixture.h"

namespace quire {
namespace {

namespace json = boost::json;
using testing::FakeExchange;
using testing::HistoryModel;
using Exchange = std::shared_ptr<FakeExchange>;

constexpr int kPageSize = 8;
constexpr int64_t kPageBytes = kPageSize * 2 * 8 * 4;

struct Shape {
  int num_pages = 4000;
  int max_num_seqs = 32;
  int max_num_batched_tokens = 64;
  int64_t max_context = 2048;
  int64_t num_swap_pages = 0;
};

// True as soon as `condition` is; false if it is not within a time that no machine needs.
bool becomes(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::vector<int32_t> prompt_of(int num_tokens, int first = 5) {
  std::vector<int32_t> ids;
  for (int i = 0; i < num_tokens; ++i) ids.push_back(4 + (first + i) % 50);
  return ids;
}

class LiveEngineTest : public testing::ApiFixture {
 protected:
  ~LiveEngineTest() override {
    is_held_ = false;
    num_permitted_steps_ = INT64_MAX;
    if (loop_ != nullptr) loop_->stop();
    pool_.reset();
  }

  void make(const Shape& shape = {}) {
    model_ = std::make_unique<HistoryModel>(/*has_window=*/false, shape.max_context);
    ops_ = create_ops({.kind = BackendKind::kReference}).value();
    EngineOptions options;
    options.max_num_seqs = shape.max_num_seqs;
    options.max_num_batched_tokens = shape.max_num_batched_tokens;
    options.page_size = kPageSize;
    options.compute = Compute::kF32;
    options.kv_cache_memory_bytes = shape.num_pages * kPageBytes;
    if (shape.num_swap_pages > 0) options.preemption = PreemptionMode::kSwap;
    options.swap_space_bytes = shape.num_swap_pages * kPageBytes;
    engine_made_ = Engine::create(*ops_, *model_, options).value();
    model_->in_step = [this] {
      const int64_t step = ++num_steps_;
      while (is_held_ || step > num_permitted_steps_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    loop_ = EngineLoop::create(*engine_made_, {}).value();
    client_ = std::make_unique<LoopClient>(*loop_);
    auto context = std::make_shared<ApiContext>(ApiContext{.engine = *client_,
                                                           .text = *text_,
                                                           .pool = *pool_,
                                                           .metrics = metrics_.get(),
                                                           .model_names = {"tiny"},
                                                           .grammar_vocabulary = context_->grammar_vocabulary,
                                                           .grammars = &grammars_,
                                                           .end_token_ids = {testing::kTokenEnd}});
    context_ = context;
  }

  Exchange complete(const std::vector<int32_t>& ids, int max_tokens, const std::string& fields = "") {
    return post(read_completion, R"({"temperature":0,"ignore_eos":true,"return_token_ids":true,"max_tokens":)" +
                                     std::to_string(max_tokens) + R"(,"prompt":)" +
                                     json::serialize(json::value_from(ids)) + fields + "}");
  }
  static std::vector<int32_t> tokens_of(const json::object& answer) {
    return json::value_to<std::vector<int32_t>>(answer.at("choices").at(0).at("token_ids"));
  }
  bool becomes_idle() {
    return becomes([this] {
      const EngineSnapshot now = loop_->snapshot();
      return now.num_active == 0 && now.stats.num_running == 0 && now.stats.num_waiting == 0 &&
             now.stats.num_pages_used == 0;
    });
  }

  // Returns when the engine is inside a step that it may not end, `num_steps` further on.
  bool run_steps(int num_steps) {
    const int64_t last = num_permitted_steps_ += num_steps;
    return becomes([&] { return num_steps_ > last; });
  }
  // Long work of the pool runs one after another: what was posted has been done.
  void wait_for_readers() {
    std::promise<void> is_done;
    ASSERT_TRUE(pool_->create_strand()->post_long(0, [&] { is_done.set_value(); }).is_ok());
    is_done.get_future().wait();
  }
  void expect_all_gauges_are_zero() {
    set_engine_metrics(*metrics_, loop_->snapshot());
    for (const Gauge* gauge : {&metrics_->num_requests_running, &metrics_->num_requests_waiting,
                               &metrics_->kv_cache_usage, &metrics_->gpu_cache_usage, &metrics_->cpu_cache_usage,
                               &metrics_->num_kv_pages_used, &metrics_->num_swap_pages_used}) {
      EXPECT_EQ(gauge->value(), 0.0);
    }
  }

  std::unique_ptr<HistoryModel> model_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Engine> engine_made_;
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<LoopClient> client_;
  std::atomic<int64_t> num_steps_ = 0;
  std::atomic<bool> is_held_ = false;                     // the model stays inside its next step
  std::atomic<int64_t> num_permitted_steps_ = INT64_MAX;  // and inside any after so many
};

// F040: 300 requests with a large budget, each closed by its client during prefill or decode, streamed and not. The
// engine runs a few steps at a time, so that each of them is at work when its client leaves, whoever is quicker.
TEST_F(LiveEngineTest, ClientsThatLeaveTakeNothingWithThem) {
  make();
  constexpr int kBudget = 1500;
  for (int round = 0; round < 15; ++round) {
    num_permitted_steps_ = num_steps_.load();
    std::vector<Exchange> streams, others;
    for (int i = 0; i < 5; ++i) {
      streams.push_back(complete(prompt_of(4, round + i), kBudget, R"(,"stream":true)"));
      others.push_back(complete(prompt_of(4, round - i + 20), kBudget));
    }
    ASSERT_TRUE(becomes([this] { return loop_->snapshot().num_active == 10; }));
    ASSERT_TRUE(run_steps(5));
    for (const Exchange& stream : streams) ASSERT_TRUE(stream->wait_for_events(1));
    // Some are in their prompts when their clients leave, the first have read them: 19,000 tokens, 54 a step.
    for (int i = 0; i < 5; ++i) {
      others.push_back(complete(prompt_of(1900, 10 * i + round), 100, R"(,"stream":true)"));
      others.push_back(complete(prompt_of(1900, 10 * i + round + 1), 100));
    }
    ASSERT_TRUE(becomes([this] { return loop_->snapshot().num_active == 20; }));
    ASSERT_TRUE(run_steps(45));
    wait_for_readers();
    for (const Exchange& exchange : streams) exchange->close();
    for (const Exchange& exchange : others) exchange->close();
    num_permitted_steps_ = INT64_MAX;
    ASSERT_TRUE(becomes_idle());
    EXPECT_EQ(loop_->snapshot().stats.num_aborted[static_cast<size_t>(AbortReason::kDisconnected)], 20 * (round + 1));
  }
  const EngineStats stats = loop_->snapshot().stats;
  EXPECT_EQ(stats.num_requests, 300);
  EXPECT_EQ(stats.num_aborted[static_cast<size_t>(AbortReason::kDisconnected)], 300);
  EXPECT_EQ(stats.num_finished[static_cast<size_t>(FinishReason::kAborted)], 300);
  EXPECT_LT(stats.num_generated_tokens, 300 * 60);  // nobody ran on
  expect_all_gauges_are_zero();

  const int64_t num_steps = num_steps_;
  auto exchange = complete({5, 6, 7}, 10);
  EXPECT_EQ(tokens_of(answer_of(*exchange)), model_->expected_greedy({5, 6, 7}, 10));
  EXPECT_LE(num_steps_ - num_steps, 12);
}

// The same with nobody held up, and answers that may be whole before the engine hears that nobody wants them: each
// request ends in one of the two ways, and leaves nothing.
TEST_F(LiveEngineTest, ClientsThatLeaveAtAnyMoment) {
  make({.num_pages = 200, .max_context = 500, .num_swap_pages = 100});
  constexpr int kNumRequests = 400;
  std::mt19937 random(5);
  std::vector<Exchange> open;
  for (int i = 0; i < kNumRequests; ++i) {
    const int num_tokens = 1 + static_cast<int>(random() % 200);
    open.push_back(complete(prompt_of(num_tokens, i), 1 + static_cast<int>(random() % 200),
                            i % 2 == 0 ? R"(,"stream":true)" : ""));
    // Nobody is refused because too many wait to be read.
    ASSERT_TRUE(becomes([this] { return pool_->num_waiting_long() < 8; }));
    if (open.size() < 40) continue;
    const size_t leaves = random() % open.size();
    if (random() % 4 == 0) {
      ASSERT_TRUE(becomes([this] { return loop_->snapshot().num_active < 30; }));
    }
    open[leaves]->close();
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(leaves));
  }
  wait_for_readers();
  for (const Exchange& exchange : open) exchange->close();
  ASSERT_TRUE(becomes_idle());
  const EngineStats stats = loop_->snapshot().stats;
  const int64_t num_aborted = stats.num_aborted[static_cast<size_t>(AbortReason::kDisconnected)];
  EXPECT_EQ(stats.num_finished[static_cast<size_t>(FinishReason::kAborted)], num_aborted);
  EXPECT_EQ(num_aborted + stats.num_finished[static_cast<size_t>(FinishReason::kLength)], stats.num_requests);
  // Those that were closed before they were read never came to the engine.
  EXPECT_LE(stats.num_requests, kNumRequests);
  EXPECT_GE(num_aborted, 1);
  expect_all_gauges_are_zero();
}

// F042: two requests that each hold about half of the pool, and both need more.
TEST_F(LiveEngineTest, TwoHalvesOfThePoolBothEnd) {
  for (const int64_t num_swap_pages : {0, 64}) {
    make({.num_pages = 64, .max_context = 500, .num_swap_pages = num_swap_pages});
    const std::vector<int32_t> prompts[] = {prompt_of(240, 1), prompt_of(240, 7)};
    is_held_ = true;
    const Exchange exchanges[] = {complete(prompts[0], 200), complete(prompts[1], 200)};
    ASSERT_TRUE(becomes([this] { return loop_->snapshot().num_active == 2; }));
    is_held_ = false;
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(tokens_of(answer_of(*exchanges[i])), model_->expected_greedy(prompts[i], 200));
    }
    EXPECT_GE(loop_->snapshot().stats.num_preemptions, 1);
    EXPECT_TRUE(becomes_idle());
    loop_->stop();
  }
}

// F042: work is queued and no step ends: /health says so, and recovers.
TEST_F(LiveEngineTest, AHungStepIsUnhealthy) {
  make();
  RouteTable routes;
  auto state = std::make_shared<ServiceState>("1");
  state->set_ready();
  register_service_routes(routes, {.state = state,
                                   .check_health = [this] { return check_progress(*loop_, /*timeout_s=*/0.2); },
                                   .metrics_text = [] { return std::string(); },
                                   .model = {}});
  const auto status_of = [&](const std::string& path) {
    HttpRequest request;
    request.method = "GET";
    request.path = path;
    auto exchange = std::make_shared<FakeExchange>(std::move(request));
    routes.find("GET", path).route->handler(exchange);
    return exchange->response().status;
  };
  EXPECT_EQ(status_of("/health"), 200);
  is_held_ = true;
  auto exchange = complete({5, 6, 7}, 5);
  EXPECT_TRUE(becomes([&] { return status_of("/health") == 503; }));
  EXPECT_EQ(status_of("/ready"), 503);
  is_held_ = false;
  answer_of(*exchange);
  EXPECT_TRUE(becomes([&] { return status_of("/health") == 200; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(status_of("/health"), 200);  // with nothing to do no step has to end
}

// F044: a long prompt of another client beside a stream: the stream waits for one chunk at most between two tokens, the
// prompt advances in every step, and its text is tokenized beside all that.
TEST_F(LiveEngineTest, ALongPromptDelaysAStreamByOneChunk) {
  constexpr int kChunk = 512;
  constexpr int kPrompt = 60'000;
  make({.num_pages = 9000, .max_num_batched_tokens = kChunk, .max_context = 65'536});
  // On the engine's thread, as num_steps_ is counted there too.
  class StepSink final : public EventSink {
   public:
    explicit StepSink(const std::atomic<int64_t>& num_steps) : num_steps_(num_steps) {}
    void on_event(const TokenEvent& event) override {
      if (event.token_ids.empty()) return;
      const int64_t now = num_steps_;
      if (last_ >= 0) longest = std::max(longest.load(), now - last_);
      last_ = now;
      ++num_tokens;
    }
    std::atomic<int64_t> longest = 0;  // steps from one token to the next
    std::atomic<int64_t> num_tokens = 0;

   private:
    const std::atomic<int64_t>& num_steps_;
    int64_t last_ = -1;
  };
  const auto sink = std::make_shared<StepSink>(num_steps_);
  const Result<RequestId> stream = loop_->submit(
      Request::from_tokens({5, 6, 7}, {.temperature = 0.0f, .max_tokens = 5000, .ignore_eos = true}, sink));
  ASSERT_TRUE(stream.is_ok());
  ASSERT_TRUE(becomes([&] { return sink->num_tokens > 10; }));

  std::string text;
  for (int i = 0; i < kPrompt; ++i) text += static_cast<char>('0' + i % 10);
  const int64_t num_tokens_before = sink->num_tokens;
  auto exchange =
      post(read_completion, R"({"max_tokens":1,"temperature":0,"ignore_eos":true,"prompt":")" + text + "\"}");
  const json::object answer = answer_of(*exchange);
  EXPECT_EQ(answer.at("usage").at("prompt_tokens"), kPrompt);
  EXPECT_LE(sink->longest, 2);  // sinks are told while the next step runs, which may have been counted or not
  EXPECT_GE(sink->num_tokens - num_tokens_before, kPrompt / kChunk);
  // It took the rest of each step: 511 tokens beside the stream's one.
  const EngineStats stats = loop_->snapshot().stats;
  EXPECT_LE(stats.num_steps_by_tokens[7], kPrompt / (kChunk - 1) + 2);  // with 257 to 512 tokens
  EXPECT_GE(stats.num_steps_by_tokens[7], kPrompt / kChunk - 1);
  loop_->abort(stream.value(), AbortReason::kCaller);
}

// F046: prompts of exactly two pages, of one token less and one more, each twice.
TEST_F(LiveEngineTest, PromptsAroundAPageEnd) {
  for (const int num_tokens : {2 * kPageSize - 1, 2 * kPageSize, 2 * kPageSize + 1}) {
    make();
    const std::vector<int32_t> prompt = prompt_of(num_tokens);
    const std::vector<int32_t> expected = model_->expected_greedy(prompt, 5);
    for (int time = 0; time < 2; ++time) {
      const json::object answer = answer_of(*complete(prompt, 5));
      EXPECT_EQ(tokens_of(answer), expected);
      // The last position at least is computed again, as its logits are needed.
      const int64_t num_cached = answer.at("usage").at("prompt_tokens_details").at("cached_tokens").as_int64();
      EXPECT_EQ(num_cached, time == 0 ? 0 : (num_tokens - 1) / kPageSize * kPageSize);
    }
    ASSERT_TRUE(becomes_idle());  // an answer may be there before its step is counted
    const EngineStats stats = loop_->snapshot().stats;
    int64_t num_steps = 0;
    for (const int64_t count : stats.num_steps_by_tokens) num_steps += count;
    EXPECT_EQ(num_steps, 2 * 5);
    EXPECT_GE(stats.num_prefill_tokens + stats.num_decode_tokens, num_steps);
    loop_->stop();
  }
}

// F080: a stream that fails after three deltas: one line with an error object, then the end.
TEST_F(LiveEngineTest, AStreamWhoseNumbersBreakEndsWithAnError) {
  make();
  // "<" is the token that spoils the logits of what comes after it. The other stream is none the worse.
  auto neighbour = complete({5, 6, 7}, 30, R"(,"stream":true)");
  auto exchange = complete({5, 6, 7}, 30, R"(,"stream":true,"guided_regex":"12<[0-9]*")");
  ASSERT_TRUE(exchange->wait_until_ended());
  const std::vector<std::string> events = exchange->events();
  ASSERT_EQ(events.size(), 4u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(json::parse(events[static_cast<size_t>(i)]).at("choices").at(0).at("text").as_string(),
              std::string(1, "12<"[i]));
  }
  const json::object last = json::parse(events[3]).as_object();
  EXPECT_EQ(last.size(), 1u);
  EXPECT_FALSE(last.at("error").at("message").as_string().empty());
  std::vector<int32_t> tokens;
  for (const json::object& chunk : chunks_of(*neighbour)) {
    const auto more = tokens_of(chunk);
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  EXPECT_EQ(tokens, model_->expected_greedy({5, 6, 7}, 30));
}

// F080: the same where the engine itself fails, for all that run.
TEST_F(LiveEngineTest, AnEngineThatFailsEndsEveryStreamWithAnError) {
  make();
  is_held_ = true;
  std::vector<Exchange> exchanges;
  for (int i = 0; i < 3; ++i) exchanges.push_back(complete({5, 6, 7 + i}, 30, R"(,"stream":true)"));
  exchanges.push_back(complete({8, 9}, 30));
  ASSERT_TRUE(becomes([this] { return loop_->snapshot().num_active >= 4; }));
  model_->fail_after(4);
  is_held_ = false;
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(exchanges[i]->wait_until_ended());
    const std::vector<std::string> events = exchanges[i]->events();
    ASSERT_GE(events.size(), 2u);
    for (size_t e = 0; e + 1 < events.size(); ++e) EXPECT_TRUE(json::parse(events[e]).as_object().contains("choices"));
    EXPECT_TRUE(json::parse(events.back()).as_object().contains("error")) << events.back();
  }
  answer_of(*exchanges[3], 503);
  answer_of(*complete({8, 9}, 30), 503);  // and nothing new is taken
}

// F086: 2,000 requests, each with a schema of its own: what is kept of them is bounded.
TEST_F(LiveEngineTest, GrammarsOfManySchemasAreBounded) {
  make();
  GrammarCache small(size_t{4} << 20);
  auto context = std::make_shared<ApiContext>(*context_);
  context->grammars = &small;
  context_ = context;
  size_t most_bytes = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string name = "field_" + std::to_string(i);
    auto exchange = complete({5, 6, 7}, 0,
                             R"(,"guided_json":{"type":"object","properties":{")" + name +
                                 R"(":{"type":"integer"}},"required":[")" + name + "\"]}");
    answer_of(*exchange);
    most_bytes = std::max(most_bytes, small.stats().num_bytes);
  }
  EXPECT_EQ(small.stats().num_misses, 2000u);
  EXPECT_LT(small.stats().num_grammars, 2000u);
  EXPECT_LE(most_bytes, size_t{5} << 20);  // those in use grow; that is counted when the next one comes
}

// F088: streams of about 600 prompt tokens that are aborted with preemption and cache hits under way.
TEST_F(LiveEngineTest, CountersOnlyRiseAndGaugesReturn) {
  make({.num_pages = 420, .max_num_seqs = 8, .num_swap_pages = 300});
  const auto scrape = [&] {
    set_engine_metrics(*metrics_, loop_->snapshot());
    std::map<std::string, double> values;
    const std::string text = registry_.text();
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      const std::string line = text.substr(begin, end - begin);
      begin = end + 1;
      if (line.empty() || line[0] == '#') continue;
      values[line.substr(0, line.rfind(' '))] = std::stod(line.substr(line.rfind(' ') + 1));
    }
    return values;
  };
  answer_of(*complete(prompt_of(600), 2));  // what some of them will find
  const auto before = scrape();
  std::vector<Exchange> streams;
  for (int i = 0; i < 5; ++i)
    streams.push_back(complete(prompt_of(600, i % 2 == 0 ? 5 : 11 + i), 1200, R"(,"stream":true)"));
  ASSERT_TRUE(becomes([&] {
    const EngineStats stats = loop_->snapshot().stats;
    return stats.num_preemptions > 0 && stats.num_cached_tokens >= 600;
  }));
  for (const Exchange& stream : streams) {
    ASSERT_TRUE(stream->wait_for_events(1));
    stream->close();
  }
  const std::string kAborted = R"(vllm:request_success_total{model_name="tiny",finished_reason="abort"})";
  ASSERT_TRUE(becomes_idle());
  ASSERT_TRUE(becomes([&] { return scrape().at(kAborted) == before.at(kAborted) + 5; }));
  const auto after = scrape();
  for (const auto& [name, value] : before) {
    if (name.find("_total") != std::string::npos || name.find("_bucket") != std::string::npos ||
        name.find("_count") != std::string::npos || name.find("_sum") != std::string::npos) {
      EXPECT_GE(after.at(name), value) << name;
    }
  }
  const auto of_tiny = [&](const std::string& name) { return after.at(name + R"({model_name="tiny"})"); };
  EXPECT_EQ(of_tiny("vllm:num_requests_running"), 0);
  EXPECT_EQ(of_tiny("vllm:num_requests_waiting"), 0);
  EXPECT_EQ(of_tiny("vllm:kv_cache_usage_perc"), 0);
  EXPECT_EQ(of_tiny("quire_kv_pages_used"), 0);
  EXPECT_EQ(of_tiny("quire_swap_pages_used"), 0);
  EXPECT_EQ(of_tiny("quire_kv_pages"), 420);
  EXPECT_GT(of_tiny("quire_swap_outs_total"), 0);
  EXPECT_GT(of_tiny("vllm:num_preemptions_total"), 0);
  EXPECT_GT(of_tiny("vllm:prefix_cache_hits_total"), 0);
  EXPECT_EQ(of_tiny("vllm:generation_tokens_total"), of_tiny("vllm:request_generation_tokens_sum"));
  EXPECT_EQ(of_tiny("vllm:prompt_tokens_total"), of_tiny("vllm:request_prompt_tokens_sum"));
  EXPECT_EQ(of_tiny("vllm:prompt_tokens_total"), 6 * 600);
}

}  // namespace
}  // namespace quire
