// Every architecture against the logits that transformers computes in float32 for tiny random models
// (tests/goldens/models): from the Hugging Face folder and from the GGUF file, the prompt whole, in chunks, one by one.
#include "models/decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "models/load_model.h"
#include "models/testing/model_run.h"
#include "ops/backends.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
constexpr float kTolerance = 1e-4f;

struct Golden {
  struct Row {
    int position;
    std::vector<float> logits;
  };
  struct Prompt {
    std::vector<int32_t> token_ids;
    std::vector<Row> rows;
  };
  std::vector<Prompt> prompts;
};

Golden read_golden(const fs::path& path) {
  Golden golden;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "prompt") {
      Golden::Prompt prompt;
      for (int32_t id; words >> id;) prompt.token_ids.push_back(id);
      golden.prompts.push_back(std::move(prompt));
    } else if (kind == "logits") {
      Golden::Row row;
      words >> row.position;
      for (float value; words >> value;) row.logits.push_back(value);
      golden.prompts.back().rows.push_back(std::move(row));
    }
  }
  return golden;
}

fs::path models_folder() {
  return fs::path(QUIRE_SOURCE_DIR) / "tests/goldens/models";
}

std::vector<std::string> golden_models() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(models_folder())) {
    if (fs::exists(entry.path() / "logits.txt")) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// NaN counts as the largest difference.
float max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  float worst = 0.0f;
  for (size_t i = 0; i < a.size(); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= worst)) worst = std::isnan(difference) ? INFINITY : difference;
  }
  return worst;
}

void compare_with_golden(const std::string& name, const fs::path& path, Ops& ops) {
  const Golden golden = read_golden(models_folder() / name / "logits.txt");
  const bool is_on_gpu = ops.device().kind == DeviceKind::kCuda;  // there the order of sums follows the step's shape
  ASSERT_EQ(golden.prompts.size(), 2u);
  auto checkpoint = open_checkpoint(path.string());
  ASSERT_TRUE(checkpoint.is_ok()) << checkpoint.status().message();
  for (const Golden::Prompt& prompt : golden.prompts) {
    // Longrope: transformers chooses the factors by the prompt's length, we by the longest context that is served.
    LoadModelOptions options;
    options.max_context = static_cast<int64_t>(prompt.token_ids.size());
    options.activation_dtype = DType::kF32;
    options.warn = [&](const std::string& what) { ADD_FAILURE() << path << ": " << what; };
    auto model = load_model(checkpoint.value(), ops, options);
    ASSERT_TRUE(model.is_ok()) << path << ": " << model.status().message();
    std::vector<std::vector<float>> whole;
    for (const int chunk : {1000, 7, 1}) {
      testing::ModelRun run(ops, *model.value(), {.page_size = 8, .max_tokens = 96});
      const auto logits = run.forward_in_chunks(prompt.token_ids, chunk);
      if (chunk == 1000) whole = logits;
      for (const Golden::Row& row : prompt.rows) {
        const float difference = max_difference(logits[static_cast<size_t>(row.position)], row.logits);
        EXPECT_TRUE(difference <= kTolerance)
            << path << ", chunks of " << chunk << ", position " << row.position << ": " << difference;
      }
      EXPECT_TRUE(is_on_gpu || logits == whole)
          << path << ": chunks of " << chunk << " give other bits than the whole prompt";
    }
    // Wanting fewer rows, none, or one twice changes no bit of those that are wanted.
    testing::ModelRun run(ops, *model.value(), {.page_size = 16, .max_tokens = 96});
    const std::span<const int32_t> ids = prompt.token_ids;
    EXPECT_TRUE(run.forward(ids.first(5), {}).empty());
    const auto some = run.forward(ids.subspan(5), {static_cast<int32_t>(ids.size()) - 6, 0, 0});
    ASSERT_EQ(some.size(), 3u);
    if (is_on_gpu) {
      EXPECT_TRUE(max_difference(some[0], whole.back()) <= kTolerance &&
                  max_difference(some[2], whole[5]) <= kTolerance)
          << path;
      EXPECT_TRUE(some[1] == some[2]) << path;
    } else {
      EXPECT_TRUE(some[0] == whole.back() && some[1] == whole[5] && some[2] == whole[5]) << path;
    }
  }
}

class DecoderGolden : public ::testing::TestWithParam<std::tuple<std::string, BackendKind>> {};

TEST_P(DecoderGolden, LogitsEqualTransformers) {
  const auto& [name, kind] = GetParam();
  BackendOptions options;
  options.kind = kind;
  options.compute = Compute::kF32;
  auto created = create_ops(options);
  if (const StatusCode code = created.status().code();
      code == StatusCode::kUnimplemented || code == StatusCode::kUnavailable) {
    GTEST_SKIP() << created.status().message();
  }
  ASSERT_TRUE(created.is_ok()) << created.status().message();
  Ops* const ops = created.value().get();
  const fs::path folder = models_folder() / name;
  compare_with_golden(name, folder, *ops);
  if (fs::exists(folder / "model.gguf")) compare_with_golden(name, folder / "model.gguf", *ops);
}

std::string test_name(const ::testing::TestParamInfo<std::tuple<std::string, BackendKind>>& info) {
  std::string name = std::get<0>(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  const BackendKind kind = std::get<1>(info.param);
  return name + (kind == BackendKind::kReference ? "_reference" : kind == BackendKind::kCpu ? "_cpu" : "_cuda");
}

INSTANTIATE_TEST_SUITE_P(All, DecoderGolden,
                         ::testing::Combine(::testing::ValuesIn(golden_models()),
                                            ::testing::Values(BackendKind::kReference, BackendKind::kCpu,
                                                              BackendKind::kCuda)),
                         test_name);

}  // namespace
}  // namespace quire
