// Embeddings of the tiny models against what transformers pools in float32 (tests/goldens/models/NAME/embeddings.txt):
// from the Hugging Face folder and the GGUF file, the prompt whole and in chunks, alone and beside generating requests.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/engine.h"
#include "models/load_model.h"
#include "ops/backends.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

struct Case {
  std::vector<int32_t> prompt;
  Pooling pooling;
  bool is_normalized;
  std::vector<float> expected;
};

std::vector<Case> read_cases(const fs::path& path) {
  std::vector<Case> cases;
  std::vector<int32_t> prompt;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "prompt") {
      prompt.clear();
      for (int32_t id; words >> id;) prompt.push_back(id);
    } else if (kind == "embedding") {
      std::string pooling, form;
      words >> pooling >> form;
      Case one = {prompt,
                  pooling == "last"   ? Pooling::kLast
                  : pooling == "mean" ? Pooling::kMean
                                      : Pooling::kCls,
                  form == "normalized",
                  {}};
      for (float value; words >> value;) one.expected.push_back(value);
      cases.push_back(std::move(one));
    }
  }
  return cases;
}

class KeepingSink : public EventSink {
 public:
  void on_event(const TokenEvent& event) override {
    embedding.assign(event.embedding.begin(), event.embedding.end());
    error = event.error;
  }
  std::vector<float> embedding;
  Status error;
};

void compare(const fs::path& path, const std::vector<Case>& cases, int max_num_batched_tokens, bool has_neighbours) {
  auto ops = create_ops({.kind = BackendKind::kCpu, .num_threads = 1, .compute = Compute::kF32}).value();
  const Checkpoint checkpoint = open_checkpoint(path.string()).value();
  // Longrope chooses its factors by the longest context that is served; transformers by the prompt.
  for (size_t first = 0; first < cases.size(); first += 6) {
    LoadModelOptions load_options;
    load_options.max_context = static_cast<int64_t>(cases[first].prompt.size()) + (has_neighbours ? 20 : 0);
    const auto model = load_model(checkpoint, *ops, load_options).value();
    EngineOptions options;
    options.max_num_seqs = 4;
    options.max_num_batched_tokens = max_num_batched_tokens;
    options.page_size = 8;
    options.compute = Compute::kF32;
    options.max_model_len = load_options.max_context;
    const auto engine = Engine::create(*ops, *model, options).value();
    std::vector<std::shared_ptr<KeepingSink>> sinks;
    for (size_t i = first; i < first + 6; ++i) {
      sinks.push_back(std::make_shared<KeepingSink>());
      Request request = Request::from_tokens(cases[i].prompt, {.max_tokens = 0}, sinks.back());
      request.pooling = cases[i].pooling;
      request.is_normalized = cases[i].is_normalized;
      ASSERT_TRUE(engine->add_request(std::move(request)).is_ok());
      if (has_neighbours) {
        SamplingParams sampling = {.max_tokens = 9, .ignore_eos = true};
        ASSERT_TRUE(
            engine->add_request(Request::from_tokens(cases[i].prompt, sampling, std::make_shared<KeepingSink>()))
                .is_ok());
      }
    }
    while (engine->has_work()) ASSERT_TRUE(engine->step().is_ok());
    for (size_t i = 0; i < 6; ++i) {
      const Case& one = cases[first + i];
      SCOPED_TRACE(path.string() + " " + pooling_name(one.pooling) + (one.is_normalized ? " normalized" : " raw") +
                   ", steps of " + std::to_string(max_num_batched_tokens));
      ASSERT_EQ(sinks[i]->embedding.size(), one.expected.size()) << sinks[i]->error.message();
      float worst = 0.0f;
      for (size_t e = 0; e < one.expected.size(); ++e) {
        const float difference = std::abs(sinks[i]->embedding[e] - one.expected[e]);
        if (!(difference <= worst)) worst = difference;
      }
      EXPECT_TRUE(worst <= 1e-4f) << worst;
    }
  }
}

TEST(EmbeddingGoldens, EveryModelPoolsWhatTransformersPools) {
  int num_models = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(QUIRE_SOURCE_DIR) / "tests/goldens/models")) {
    const std::vector<Case> cases = read_cases(entry.path() / "embeddings.txt");
    if (cases.empty()) continue;
    ASSERT_EQ(cases.size(), 12u) << entry.path();
    ++num_models;
    const bool depends_on_length = entry.path().filename() == "phi3-longrope";
    compare(entry.path(), cases, 128, false);
    compare(entry.path(), cases, 11, !depends_on_length);
    if (fs::exists(entry.path() / "model.gguf")) compare(entry.path() / "model.gguf", cases, 128, false);
  }
  EXPECT_EQ(num_models, 15);
}

}  // namespace
}  // namespace quire
