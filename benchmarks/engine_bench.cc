// What the engine costs the host, and how full it keeps its seats, over a model that computes nothing.
//   engine_bench              all of it
//   engine_bench occupancy    1,920 requests of exponential output lengths over 64 seats
//   engine_bench host         a step of 256 decoding sequences: all but sampling
//   engine_bench sampling     the same with a large vocabulary
// Times are CPU time of the one thread that runs the engine; the stub's forward runs on another. Beside it: for how
// long nothing computes between two forwards, which is less, since events are told and decodes planned meanwhile.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "models/model.h"
#include "ops/backends.h"

namespace quire {
namespace {

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// A model whose forward hands out logits that were made beforehand.
class StubModel : public Model {
 public:
  explicit StubModel(int64_t vocab_size) {
    config_.architecture = "stub";
    config_.num_layers = 1;
    config_.hidden_size = 8;
    config_.intermediate_size = 8;
    config_.vocab_size = vocab_size;
    config_.num_heads = 1;
    config_.num_kv_heads = 1;
    config_.head_dim = 8;
    config_.max_context = 1 << 20;
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 2.0f);
    logits_.resize(static_cast<size_t>(vocab_size) * kNumRows);
    for (float& logit : logits_) logit = normal(random);
    // The last two ids are stop tokens, and never come.
    for (size_t row = 1; row <= kNumRows; ++row) {
      logits_[row * static_cast<size_t>(vocab_size) - 1] = -50.0f;
      logits_[row * static_cast<size_t>(vocab_size) - 2] = -50.0f;
    }
  }

  const ModelConfig& config() const override { return config_; }
  int64_t weight_bytes() const override { return 0; }
  std::vector<KvGroup> kv_groups(DType dtype) const override {
    return {{.kind = KvKind::kFull, .layers = {0}, .num_kv_heads = 1, .head_dim = 8, .dtype = dtype}};
  }

  // A forward takes so long, in which it sleeps, as the host does while a device computes.
  void set_pause(std::chrono::microseconds pause) { pause_ = pause; }

  Result<StepOutput> forward(StepContext& context, const StepBatch& batch) const override {
    gaps_us_.push_back(1e6 * std::chrono::duration<double>(Clock::now() - last_end_).count());
    const int64_t num_rows = batch.output_rows.size(0);
    const TensorView logits = context.op_context.scratch.take(DType::kF32, {num_rows, config_.vocab_size});
    const size_t row_size = static_cast<size_t>(config_.vocab_size);
    for (int64_t r = 0; r < num_rows; ++r) {
      const size_t row = (next_row_++ * 7) % kNumRows;
      std::memcpy(logits.data<float>() + r * config_.vocab_size, logits_.data() + row * row_size,
                  row_size * sizeof(float));
    }
    const TensorView hidden = context.op_context.scratch.take(DType::kF32, {0, config_.hidden_size});
    if (pause_.count() > 0) std::this_thread::sleep_for(pause_);
    last_end_ = Clock::now();
    return StepOutput{logits, hidden};
  }

  // Between the end of each forward and the beginning of the next.
  const std::vector<double>& gaps_us() const { return gaps_us_; }

 private:
  static constexpr size_t kNumRows = 64;

  ModelConfig config_;
  std::vector<float> logits_;
  mutable size_t next_row_ = 0;
  mutable std::vector<double> gaps_us_;
  mutable Clock::time_point last_end_ = Clock::now();
  std::chrono::microseconds pause_{0};
};

struct CountingSink : EventSink {
  void on_event(const TokenEvent& event) override {
    num_tokens += static_cast<int64_t>(event.token_ids.size());
    num_ended += event.finish_reason != FinishReason::kNone ? 1 : 0;
  }
  int64_t num_tokens = 0;
  int64_t num_ended = 0;
};

// Every second token is allowed, as a mask that lies ready.
class HalfOfTheTokens : public TokenConstraint {
 public:
  explicit HalfOfTheTokens(int64_t vocab_size) : mask_(static_cast<size_t>((vocab_size + 31) / 32), 0x55555555u) {}
  void fill_mask(std::span<uint32_t> mask) override { std::copy_n(mask_.begin(), mask.size(), mask.begin()); }
  void accept(int32_t) override {}
  void rollback(int) override {}
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<HalfOfTheTokens>(*this); }

 private:
  std::vector<uint32_t> mask_;
};

std::unique_ptr<Engine> make_engine(Ops& ops, const Model& model, const EngineOptions& options) {
  auto engine = Engine::create(ops, model, options);
  CHECK(engine.is_ok());
  return std::move(engine).value();
}

std::vector<int32_t> random_prompt(std::mt19937& random, int length, int64_t vocab_size) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size)));
  return tokens;
}

struct Job {
  std::vector<int32_t> prompt;
  int64_t num_outputs = 0;
};

// Runs the jobs, at most `batch_size` given to the engine at a time (0: all at once). Returns tokens and steps.
std::pair<int64_t, int64_t> run_jobs(Engine& engine, const std::vector<Job>& jobs, size_t batch_size) {
  auto sink = std::make_shared<CountingSink>();
  engine.reset_stats();
  for (size_t first = 0; first < jobs.size();) {
    const size_t end = batch_size == 0 ? jobs.size() : std::min(jobs.size(), first + batch_size);
    for (; first < end; ++first) {
      const SamplingParams sampling = {.temperature = 0.0f, .max_tokens = jobs[first].num_outputs, .ignore_eos = true};
      CHECK(engine.add_request(Request::from_tokens(jobs[first].prompt, sampling, sink)).is_ok());
    }
    while (engine.has_work()) CHECK(engine.step().is_ok());
  }
  return {sink->num_tokens, engine.stats().num_steps};
}

void run_occupancy(Ops& ops) {
  constexpr int kSeats = 64;
  constexpr int64_t kVocab = 256;
  StubModel model(kVocab);
  EngineOptions options;
  options.max_num_seqs = kSeats;
  options.max_num_batched_tokens = 512;
  options.max_model_len = 4096;
  options.kv_cache_memory_bytes = int64_t{256} << 20;
  auto engine = make_engine(ops, model, options);
  std::mt19937 random(3);
  std::exponential_distribution<double> lengths(1.0 / 200.0);
  std::vector<Job> jobs;
  for (int i = 0; i < 1920; ++i) {
    const int64_t num_outputs = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(lengths(random))), 1, 3500);
    jobs.push_back({random_prompt(random, 16 + static_cast<int>(random() % 100), kVocab), num_outputs});
  }
  for (const bool is_static : {false, true}) {
    const auto [num_tokens, num_steps] = run_jobs(*engine, jobs, is_static ? kSeats : 0);
    std::printf("occupancy  %-10s  1920 requests, %lld tokens in %lld steps of %d seats: %.1f %% of the slot-steps\n",
                is_static ? "static" : "continuous", static_cast<long long>(num_tokens),
                static_cast<long long>(num_steps), kSeats,
                100.0 * static_cast<double>(num_tokens) / static_cast<double>(num_steps * kSeats));
  }
}

struct HostCase {
  const char* name;
  int64_t vocab_size;
  int num_penalized;  // of 256
  int num_masked;
};

// Microseconds of a step, less the stub's forward: the median, and what a tenth of the steps stay below, which a busy
// machine disturbs less.
struct HostTimes {
  double median_us = 0.0;
  double tenth_us = 0.0;
};

HostTimes of_sorted(std::vector<double> micros) {
  std::sort(micros.begin(), micros.end());
  return {.median_us = micros[micros.size() / 2], .tenth_us = micros[micros.size() / 10]};
}

// `pause`: of the forward; then what is measured is for how long the device has nothing to do between two steps.
HostTimes measure_host(Ops& ops, const HostCase& c, std::chrono::microseconds pause) {
  constexpr int kNumSequences = 256;
  constexpr int kPromptLength = 1000;
  const int num_steps = c.vocab_size > 1000 ? 60 : 1500;
  StubModel model(c.vocab_size);
  EngineOptions options;
  options.max_num_seqs = kNumSequences;
  options.max_num_batched_tokens = 4096;
  options.max_model_len = 8192;
  options.kv_cache_memory_bytes = int64_t{1} << 30;
  auto engine = make_engine(ops, model, options);
  model.set_pause(pause);
  std::mt19937 random(5);
  auto sink = std::make_shared<CountingSink>();
  for (int i = 0; i < kNumSequences; ++i) {
    SamplingParams sampling = {.temperature = 0.0f, .max_tokens = 6000};
    const bool is_masked = i < c.num_masked;
    const bool is_penalized = !is_masked && i < c.num_masked + c.num_penalized;
    if (is_penalized) sampling.repetition_penalty = 1.1f;
    if (is_penalized) sampling.frequency_penalty = 0.1f;
    sampling.stop_token_ids = {static_cast<int32_t>(c.vocab_size - 1), static_cast<int32_t>(c.vocab_size - 2)};
    sampling.seed = static_cast<uint64_t>(i);
    Request request = Request::from_tokens(random_prompt(random, kPromptLength, c.vocab_size), sampling, sink);
    if (is_masked) request.constraint = std::make_unique<HalfOfTheTokens>(c.vocab_size);
    CHECK(engine->add_request(std::move(request)).is_ok());
  }
  std::vector<double> micros;
  while (static_cast<int>(micros.size()) < num_steps) {
    const int64_t before = sink->num_tokens;
    const double begin = thread_seconds();
    CHECK(engine->step().is_ok());
    const double total = thread_seconds() - begin;
    if (sink->num_tokens - before == kNumSequences) micros.push_back(1e6 * total);
    CHECK(sink->num_ended == 0);
  }
  if (pause.count() == 0) return of_sorted(micros);
  return of_sorted({model.gaps_us().end() - num_steps + 1, model.gaps_us().end()});
}

// With a vocabulary of 64 the logits cost next to nothing and what is left is bookkeeping; with 49,152 it is sampling.
void run_host(Ops& ops, int64_t vocab_size) {
  const HostCase cases[] = {
      {"256 greedy", vocab_size, 0, 0},
      {"192 greedy, 64 with penalties", vocab_size, 64, 0},
      {"192 greedy, 64 with a mask", vocab_size, 0, 64},
      {"192 greedy, 32 with penalties, 32 with a mask", vocab_size, 32, 32},
  };
  for (const HostCase& c : cases) {
    const HostTimes work = measure_host(ops, c, std::chrono::microseconds(0));
    const HostTimes gap = measure_host(ops, c, std::chrono::microseconds(1000));
    std::printf(
        "host work  256 sequences of 1,000 tokens and more, vocabulary %lld, %s: %.0f us a step (best tenth %.0f); "
        "from a forward's end to the next one's begin %.0f us (%.0f)\n",
        static_cast<long long>(c.vocab_size), c.name, work.median_us, work.tenth_us, gap.median_us, gap.tenth_us);
  }
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "all";
  auto ops = quire::create_ops({.kind = quire::BackendKind::kCpu, .num_threads = 1});
  CHECK(ops.is_ok());
  if (what == "all" || what == "occupancy") quire::run_occupancy(*ops.value());
  if (what == "all" || what == "host") quire::run_host(*ops.value(), 64);
  if (what == "all" || what == "sampling") quire::run_host(*ops.value(), 49152);
  return 0;
}
