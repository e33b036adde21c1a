// Which rows the tuner prefers, and the file that keeps its choices.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "app/tune_doubts.h"
#include "app/tune_file.h"
#include "app/tune_measure.h"
#include "base/cpu_info.h"

namespace quire::app {
namespace {

RowTimes times(const std::string& row, std::vector<double> seconds) {
  return {row, std::move(seconds)};
}

TEST(TuneMeasure, KeepsTheFirstRowUnlessAnotherIsClearlyFaster) {
  const RowTimes first = times("first", {1.0, 1.0, 1.0, 1.1});
  EXPECT_EQ(choose_fastest({first}), 0u);
  EXPECT_EQ(choose_fastest({first, times("slower", {1.2, 1.2, 1.2, 1.2})}), 0u);
  EXPECT_EQ(choose_fastest({first, times("hardly", {0.98, 0.98, 0.98, 0.98})}), 0u);
  EXPECT_EQ(choose_fastest({first, times("faster", {0.8, 0.8, 0.8, 5.0})}), 1u);
  EXPECT_EQ(choose_fastest({first, times("faster", {0.8, 0.8, 0.8, 0.8}), times("fastest", {0.7, 0.7, 0.7, 0.7})}), 2u);
  EXPECT_EQ(choose_fastest({first, times("fastest", {0.7, 0.7, 0.7, 0.7}), times("faster", {0.8, 0.8, 0.8, 0.8})}), 1u);
  // Half of the samples were disturbed: the quiet ones of the first row are as good.
  EXPECT_EQ(choose_fastest({times("first", {0.8, 0.8, 1.4, 1.4}), times("lucky", {0.8, 0.8, 0.8, 0.8})}), 0u);
}

TEST(TuneMeasure, MeasuresEveryRangeAndKeepsWhatDiffers) {
  ThreadPool pool(2);
  const auto measured =
      measure_shape(pool, detect_cpu_features(), {FormatId::kQ8_0, 64, 64, false}, /*seconds_per_range=*/0.0);
  ASSERT_TRUE(measured.is_ok()) << measured.status().message();
  ASSERT_EQ(measured.value().size(), std::size(kTokenRanges));
  for (const TuneResult& result : measured.value()) {
    ASSERT_FALSE(result.rows.empty());
    EXPECT_LT(result.chosen, result.rows.size());
  }

  TuneResult wide{{FormatId::kQ8_0, 64, 64, true}, kTokenRanges[0], {times("a", {1.0}), times("b", {0.5})}, 1};
  TuneResult narrow = wide;
  narrow.shape.is_for_any_k = false;
  TuneResult usual = wide;
  usual.chosen = 0;
  const std::vector<TunedLinear> choices = choices_of({wide, usual, narrow});
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices[0].k, 64);
  EXPECT_EQ(choices[1].k, 0);
  EXPECT_EQ(choices[1].row, "b");
}

TEST(TuneDoubts, TimesThatSpreadAreToldOf) {
  const auto result = [](std::vector<double> first, std::vector<double> second) {
    return TuneResult{{}, kTokenRanges[0], {times("a", std::move(first)), times("b", std::move(second))}, 0};
  };
  const TuneResult quiet = result({1.0, 1.01, 1.02, 1.1, 9.0}, {2.0, 2.1, 2.1, 2.2, 2.2});
  EXPECT_NEAR(widest_spread(quiet), 0.09 / 1.02, 1e-9);  // one time in five says nothing
  const TuneResult busy = result({1.0, 1.0, 1.0, 1.1, 1.1}, {2.0, 2.0, 4.0, 6.0, 6.0});
  EXPECT_NEAR(widest_spread(busy), 1.0, 1e-9);
  const TuneResult alone{{}, kTokenRanges[0], {times("a", {})}, 0};
  EXPECT_EQ(widest_spread(alone), 0.0);

  EXPECT_EQ(doubts_about({quiet, alone}, {.stolen_cpus = 1.0, .other_cpus = 1.0, .throttled_share = 1.0}), "");
  const auto doubts = [&](const Disturbance& disturbance) { return doubts_about({quiet, busy, alone}, disturbance); };
  EXPECT_TRUE(doubts({}).starts_with("1 of 3 choices may be wrong")) << doubts({});
  for (const char* part : {"100 %", "quire doctor", "tune again", "--forget"}) {
    EXPECT_NE(doubts({}).find(part), std::string::npos) << part << " in " << doubts({});
  }
  EXPECT_NE(doubts({.other_cpus = 1.4}).find("other programs used 1.40 processors"), std::string::npos);
  EXPECT_NE(doubts({.stolen_cpus = 0.5, .other_cpus = 1.4}).find("other guests"), std::string::npos);
  EXPECT_NE(doubts({.other_cpus = 1.4, .throttled_share = 0.2}).find("quota"), std::string::npos);
}

TEST(TuneFile, IsReadAsItWasWritten) {
  const std::filesystem::path folder = testing::TempDir() + "/quire_tune_file_" + std::to_string(::getpid());
  std::filesystem::remove_all(folder);
  const TuningKey key{"Test CPU", "avx2", 2, "1.0"};
  const std::filesystem::path path = tuning_path(folder / "new", key);
  EXPECT_EQ(read_tuning(path, key).value().size(), 0u);
  ASSERT_TRUE(write_tuning(path, key, {.linear = {{FormatId::kQ4_0, 576, 2, 8, "avx2_int8"}}, .products = {}}).is_ok());
  const TunedChoices read = read_tuning(path, key).value();
  const std::vector<TunedLinear>& choices = read.linear;
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(choices[0].format, FormatId::kQ4_0);
  EXPECT_EQ(choices[0].k, 576);
  EXPECT_EQ(choices[0].min_tokens, 2);
  EXPECT_EQ(choices[0].max_tokens, 8);
  EXPECT_EQ(choices[0].row, "avx2_int8");
  for (const TuningKey& other : {TuningKey{"Other CPU", "avx2", 2, "1.0"}, TuningKey{"Test CPU", "", 2, "1.0"},
                                 TuningKey{"Test CPU", "avx2", 3, "1.0"}, TuningKey{"Test CPU", "avx2", 2, "1.1"}}) {
    EXPECT_NE(tuning_path(folder / "new", other), path);
    EXPECT_FALSE(read_tuning(path, other).is_ok());
  }

  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  // Any part of the file is refused, never believed.
  for (size_t length = 0; length + 1 < text.str().size(); ++length) {
    std::ofstream(path, std::ios::trunc) << text.str().substr(0, length);
    EXPECT_FALSE(read_tuning(path, key).is_ok()) << length;
  }
  for (const char* number : {"-1", "0", "1e3", "\"8\"", "99999999999999999999"}) {
    std::string changed = text.str();
    changed.replace(changed.find("\"max_tokens\":8"), 14, std::string("\"max_tokens\":") + number);
    std::ofstream(path, std::ios::trunc) << changed;
    EXPECT_FALSE(read_tuning(path, key).is_ok()) << number;
  }
  EXPECT_FALSE(write_tuning("/proc/no/such/x.json", key, {}).is_ok());
  std::filesystem::remove_all(folder);
}

TEST(TuneFile, KeepsAGpusProductsApart) {
  const std::filesystem::path folder = testing::TempDir() + "/quire_tune_file_gpu_" + std::to_string(::getpid());
  std::filesystem::remove_all(folder);
  const TuningKey key = tuning_key("Test GPU, 9.0, cuBLASLt 1");
  const std::filesystem::path path = tuning_path(folder, key);
  const TunedProduct product{64, 4096, 14336, DType::kF8E4M3, DType::kBF16, true, std::string(128, 'a')};
  ASSERT_TRUE(write_tuning(path, key, {.linear = {}, .products = {product}}).is_ok());
  const TunedChoices choices = read_tuning(path, key).value();
  EXPECT_TRUE(choices.linear.empty());
  ASSERT_EQ(choices.products.size(), 1u);
  EXPECT_TRUE(choices.products[0] == product);
  EXPECT_FALSE(read_tuning(path, tuning_key("Test GPU, 9.0, cuBLASLt 2")).is_ok());

  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  for (const auto& [from, to] : {std::pair{"\"num_tokens\":64", "\"num_tokens\":0"},
                                 {"\"n\":4096", "\"n\":99999999999"},
                                 {"\"bf16\"", "\"q4_0\""},
                                 {"true", "1"},
                                 {"\"matmul\"", "\"attention\""}}) {
    std::string changed = text.str();
    ASSERT_NE(changed.find(from), std::string::npos) << from;
    changed.replace(changed.find(from), std::string(from).size(), to);
    std::ofstream(path, std::ios::trunc) << changed;
    EXPECT_FALSE(read_tuning(path, key).is_ok()) << to;
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace quire::app
