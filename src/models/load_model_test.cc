// Loading whole models: what is missing or misshapen is named, tied embeddings, shards of two ranks that make up the
// whole, every weight format, and formats mixed within a layer.
#include "models/load_model.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <utility>

#include "base/mapping_fault.h"
#include "models/config_parser.h"
#include "models/decoder_weights.h"
#include "models/testing/model_run.h"
#include "ops/backends.h"
#include "quant/dequantize.h"
#include "weights/testing/gguf_writer.h"
#include "weights/testing/test_folder.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using testing::Bytes;
using testing::GgufWriter;
using testing::Random;
using testing::TestFolder;

std::unique_ptr<Ops> make_ops(BackendKind kind, Compute compute = Compute::kF32) {
  BackendOptions options;
  options.kind = kind;
  options.compute = compute;
  auto ops = create_ops(options);
  CHECK(ops.is_ok());
  return std::move(ops).value();
}

fs::path golden(const std::string& name) {
  return fs::path(QUIRE_SOURCE_DIR) / "tests/goldens/models" / name;
}

Checkpoint open(const std::string& path) {
  auto checkpoint = open_checkpoint(path);
  EXPECT_TRUE(checkpoint.is_ok()) << checkpoint.status().message();
  CHECK(checkpoint.is_ok());
  return std::move(checkpoint).value();
}

// A golden's folder with some keys of config.json changed.
Checkpoint open_changed(const std::string& name, std::initializer_list<std::pair<const char*, const char*>> changes) {
  Checkpoint checkpoint = open(golden(name).string());
  boost::json::object config = boost::json::parse(*checkpoint.config_json).get_object();
  for (const auto& [key, value] : changes) config[key] = boost::json::parse(value);
  checkpoint.config_json = boost::json::serialize(config);
  return checkpoint;
}

std::string load_error(const Checkpoint& checkpoint) {
  const std::unique_ptr<Ops> ops = make_ops(BackendKind::kReference);
  auto model = load_model(checkpoint, *ops);
  return model.is_ok() ? "no error" : model.status().message();
}

void expect_error(const Checkpoint& checkpoint, std::initializer_list<const char*> parts) {
  const std::string message = load_error(checkpoint);
  for (const char* part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
}

TEST(LoadModel, MissingTensorsAreNamed) {
  // An output matrix that the config promises and the file lacks is no reason to make one up.
  expect_error(open_changed("llama-mha", {{"tie_word_embeddings", "false"}}), {"lm_head.weight"});
  expect_error(open_changed("llama", {{"num_hidden_layers", "3"}}),
               {"model.layers.2.self_attn.q_proj.weight", "model.layers.2.mlp.down_proj.weight"});
  expect_error(open_changed("llama", {{"attention_bias", "true"}}), {"model.layers.0.self_attn.q_proj.bias"});
}

TEST(LoadModel, RandomWeightsOfAFormatThatTheFileDoesNotHave) {
  const std::unique_ptr<Ops> ops = make_ops(BackendKind::kReference);
  const Checkpoint checkpoint = open((golden("llama") / "model.gguf").string());
  const auto num_bytes = [&](std::optional<FormatId> format, bool is_forced) {
    LoadModelOptions options;
    options.random_format = format;
    options.is_random_format_forced = is_forced;
    LoadProgress last;
    options.progress = [&](const LoadProgress& progress) { last = progress; };
    auto model = load_model(checkpoint, *ops, options);
    EXPECT_TRUE(model.is_ok()) << model.status().message();
    EXPECT_EQ(last.num_bytes_done, last.num_bytes_total);
    return model.is_ok() ? model.value()->weight_bytes() : 0;
  };
  const int64_t of_file = num_bytes(std::nullopt, false);
  EXPECT_EQ(num_bytes(FormatId::kQ4_0, false), of_file);
  EXPECT_LT(num_bytes(FormatId::kQ4_0, true), of_file);
  EXPECT_GT(num_bytes(FormatId::kF32, true), of_file);
}

TEST(LoadModel, MisshapenTensorsAreNamed) {
  expect_error(open_changed("llama", {{"intermediate_size", "64"}}),
               {"model.layers.1.mlp.up_proj.weight", "[96, 32]", "[64, 32]"});
  expect_error(open_changed("llama", {{"head_dim", "8"}}), {"model.layers.0.self_attn.o_proj.weight"});
  expect_error(open_changed("llama", {{"vocab_size", "300"}}), {"model.embed_tokens.weight", "[272, 32]"});
}

TEST(LoadModel, UnusedTensorsAreTold) {
  const Checkpoint checkpoint = open_changed("llama", {{"num_hidden_layers", "1"}});
  const std::unique_ptr<Ops> ops = make_ops(BackendKind::kReference);
  std::vector<std::string> warnings;
  LoadModelOptions options;
  options.warn = [&](const std::string& what) { warnings.push_back(what); };
  int num_reports = 0;
  options.progress = [&](const LoadProgress& progress) {
    ++num_reports;
    EXPECT_LE(progress.num_bytes_done, progress.num_bytes_total);
  };
  ASSERT_TRUE(load_model(checkpoint, *ops, options).is_ok());
  EXPECT_EQ(warnings.size(), 9u);  // the second layer's
  EXPECT_GT(num_reports, 5);
}

// What load_model says when `spoil` is called in the midst of it, for a copy of a golden that nobody wrote to for long.
std::string load_error_when(const TestFolder& folder, const std::string& opened, const std::string& spoilt,
                            const std::function<void(const fs::path&)>& spoil) {
  const fs::path model = fs::path(folder.path()) / "model";
  fs::remove_all(model);
  fs::copy(golden("llama"), model);
  for (const auto& file : fs::directory_iterator(model)) {
    fs::last_write_time(file.path(), fs::file_time_type::clock::now() - std::chrono::hours(1));
  }
  const Checkpoint checkpoint = open((model / opened).string());
  const std::unique_ptr<Ops> ops = make_ops(BackendKind::kReference);
  LoadModelOptions options;
  bool is_done = false;
  options.progress = [&](const LoadProgress&) {
    if (!std::exchange(is_done, true)) spoil(model / spoilt);
  };
  auto loaded = load_model(checkpoint, *ops, options);
  EXPECT_TRUE(is_done);
  return loaded.is_ok() ? "no error" : loaded.status().message();
}

TEST(LoadModel, AFileThatIsWrittenToMeanwhileIsRefused) {
  const TestFolder folder;
  const auto write = [](const fs::path& path) {
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(4096).put('x');
  };
  for (const char* opened : {"model.gguf", ""}) {
    const std::string spoilt = *opened != '\0' ? opened : "model-00002-of-00002.safetensors";
    const std::string error = load_error_when(folder, opened, spoilt, write);
    EXPECT_NE(error.find(spoilt + " was written to while it was being read"), std::string::npos) << error;
  }
  // Another file that takes its name leaves what is read as it is.
  const auto replace = [](const fs::path& path) {
    std::ofstream(path.string() + ".new") << "another";
    fs::rename(path.string() + ".new", path);
  };
  EXPECT_EQ(load_error_when(folder, "model.gguf", "model.gguf", replace), "no error");
}

TEST(LoadModelDeathTest, AFileThatIsCutOffMeanwhileEndsTheProcess) {
  const TestFolder folder;
  const auto load = [&] {
    catch_mapping_faults();
    load_error_when(folder, "model.gguf", "model.gguf", [](const fs::path& path) { fs::resize_file(path, 10); });
    std::_Exit(0);
  };
  EXPECT_EXIT(load(), ::testing::ExitedWithCode(1), "model.gguf cannot be read any more");
}

LoadedWeights load_rank(const Checkpoint& checkpoint, Rank rank, WeightMap* map_out = nullptr) {
  auto parsed = parse_config(checkpoint);
  CHECK(parsed.is_ok());
  auto map = make_weight_map(*parsed.value().spec, parsed.value().config, checkpoint.kind, checkpoint.tensors(), rank);
  EXPECT_TRUE(map.is_ok()) << map.status().message();
  auto weights = load(map.value(), checkpoint.tensors(), rank, {});
  EXPECT_TRUE(weights.is_ok()) << weights.status().message();
  CHECK(weights.is_ok());
  if (map_out != nullptr) *map_out = std::move(map).value();
  return std::move(weights).value();
}

TEST(LoadModel, TiedOutputIsTheEmbeddingEvenWhereTheFileHasBoth) {
  const Checkpoint checkpoint = open_changed("llama", {{"tie_word_embeddings", "true"}});
  const LoadedWeights weights = load_rank(checkpoint, {});
  EXPECT_EQ(weights.matrix("head").parts[0].data(), weights.matrix("embedding").parts[0].data());
  EXPECT_TRUE(weights.unused_tensors().empty());
}

std::vector<float> values_of(const Weight& weight) {
  std::vector<float> values(static_cast<size_t>(weight.n * weight.k));
  for (int64_t row = 0; row < weight.n; ++row) {
    dequantize_row(weight.format, weight.parts[0].data() + row * weight.quant().row_bytes(weight.k),
                   values.data() + row * weight.k, weight.k);
  }
  return values;
}

// Outputs [first, first + count) of a matrix of so many inputs.
void append_rows(std::vector<float>& out, const std::vector<float>& values, int64_t num_inputs, int64_t first,
                 int64_t count) {
  const auto begin = values.begin() + first * num_inputs;
  out.insert(out.end(), begin, begin + count * num_inputs);
}

// Puts the two halves of each row of a map back together.
void expect_two_ranks_make_up_the_whole(const Checkpoint& checkpoint) {
  WeightMap map;  // of two ranks: units depend on how many share the heads
  const LoadedWeights whole = load_rank(checkpoint, {});
  const LoadedWeights ranks[] = {load_rank(checkpoint, {0, 2}), load_rank(checkpoint, {1, 2}, &map)};
  for (const WeightRow& row : map.rows) {
    if (row.kind == RowKind::kVector) continue;
    const Weight& expected = whole.matrix(row.name);
    const Weight* halves[] = {&ranks[0].matrix(row.name), &ranks[1].matrix(row.name)};
    const std::vector<float> values[] = {values_of(*halves[0]), values_of(*halves[1])};
    std::vector<float> joined;
    if (row.pieces[0].shard.kind == ShardKind::kRows) {
      for (int64_t output = 0; output < expected.n; ++output) {
        for (int r = 0; r < 2; ++r) append_rows(joined, values[r], halves[r]->k, output, 1);
      }
    } else {
      int64_t first[] = {0, 0};
      for (const WeightPiece& piece : row.pieces) {
        for (int r = 0; r < 2; ++r) {
          const auto range = shard_range(piece.num_rows, piece.shard, {r, 2});
          ASSERT_TRUE(range.is_ok());
          // Where both hold the same KV head, it is taken once.
          const bool is_copy = r == 1 && range.value().first == 0;
          if (!is_copy) append_rows(joined, values[r], expected.k, first[r], range.value().count);
          first[r] += range.value().count;
        }
      }
    }
    EXPECT_TRUE(joined == values_of(expected)) << row.name << ": " << joined.size() << " values";
    EXPECT_LT(values[0].size(), joined.size()) << row.name << " is not cut";
  }
}

TEST(LoadModel, TwoRanksMakeUpTheWhole) {
  for (const char* name : {"llama", "llama-mha", "llama-mqa", "qwen2", "qwen3", "phi3"}) {
    SCOPED_TRACE(name);
    expect_two_ranks_make_up_the_whole(open(golden(name).string()));
    if (fs::exists(golden(name) / "model.gguf")) {
      expect_two_ranks_make_up_the_whole(open((golden(name) / "model.gguf").string()));
    }
  }
}

// ---- Formats -------------------------------------------------------------------------------------------------------

constexpr int64_t kHidden = 256;
constexpr int64_t kKvSize = 128;
constexpr int64_t kIntermediate = 512;
constexpr int64_t kVocab = 96;

// One Llama layer of random weights. `format_of` names the format of each matrix; `is_dequantized` writes the same
// values as f32.
template <typename FormatOf>
Bytes tiny_llama(FormatOf format_of, bool is_dequantized) {
  GgufWriter writer;
  writer.add_string("general.architecture", "llama");
  writer.add_u32("llama.block_count", 1);
  writer.add_u32("llama.embedding_length", kHidden);
  writer.add_u32("llama.feed_forward_length", kIntermediate);
  writer.add_u32("llama.attention.head_count", 4);
  writer.add_u32("llama.attention.head_count_kv", 2);
  writer.add_u32("llama.context_length", 128);
  writer.add_f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  Random random(17);
  const auto add = [&](const std::string& name, int64_t n, int64_t k, float size) {
    const FormatId format = format_of(name);
    Bytes data = testing::random_weights(format, n * k, size, random);
    if (is_dequantized) {
      std::vector<float> values(static_cast<size_t>(n * k));
      const int64_t row_bytes = quant_format(format).row_bytes(k);
      for (int64_t row = 0; row < n; ++row) {
        dequantize_row(format, data.data() + row * row_bytes, values.data() + row * k, k);
      }
      writer.add_tensor(name, FormatId::kF32, {n, k}, testing::f32_bytes(values));
    } else {
      writer.add_tensor(name, format, {n, k}, std::move(data));
    }
  };
  const auto add_norm = [&](const std::string& name) {
    writer.add_tensor(name, FormatId::kF32, {kHidden}, testing::f32_bytes(std::vector<float>(kHidden, 1.0f)));
  };
  add("token_embd.weight", kVocab, kHidden, 1.0f);
  add_norm("output_norm.weight");
  add_norm("blk.0.attn_norm.weight");
  add_norm("blk.0.ffn_norm.weight");
  const float size = 1.0f / std::sqrt(static_cast<float>(kHidden));
  add("blk.0.attn_q.weight", kHidden, kHidden, size);
  add("blk.0.attn_k.weight", kKvSize, kHidden, size);
  add("blk.0.attn_v.weight", kKvSize, kHidden, size);
  add("blk.0.attn_output.weight", kHidden, kHidden, size);
  add("blk.0.ffn_gate.weight", kIntermediate, kHidden, size);
  add("blk.0.ffn_up.weight", kIntermediate, kHidden, size);
  add("blk.0.ffn_down.weight", kHidden, kIntermediate, size);
  return writer.finish();
}

std::vector<std::vector<float>> logits_of(const Checkpoint& checkpoint, Ops& ops) {
  auto model = load_model(checkpoint, ops);
  EXPECT_TRUE(model.is_ok()) << model.status().message();
  CHECK(model.is_ok());
  testing::ModelRun run(ops, *model.value(), {.max_tokens = 32});
  const int32_t ids[] = {3, 90, 41, 7, 7, 66, 12, 55, 0};
  return run.forward(ids);
}

// Root of the mean square of a - b, over that of b; NaN where either has one.
double relative_error(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double difference = 0.0;
  double size = 0.0;
  for (size_t row = 0; row < b.size(); ++row) {
    for (size_t i = 0; i < b[row].size(); ++i) {
      const double error = static_cast<double>(a[row][i]) - static_cast<double>(b[row][i]);
      difference += error * error;
      size += static_cast<double>(b[row][i]) * static_cast<double>(b[row][i]);
    }
  }
  return std::sqrt(difference / size);
}

template <typename FormatOf>
void compare_backends(FormatOf format_of) {
  const TestFolder folder;
  const Checkpoint quantized = open(folder.write("quantized.gguf", tiny_llama(format_of, false)));
  const Checkpoint dequantized = open(folder.write("dequantized.gguf", tiny_llama(format_of, true)));
  const auto expected = logits_of(dequantized, *make_ops(BackendKind::kReference));
  EXPECT_LT(relative_error(logits_of(quantized, *make_ops(BackendKind::kReference)), expected), 1e-6);
  EXPECT_LT(relative_error(logits_of(quantized, *make_ops(BackendKind::kCpu)), expected), 1e-5);
  // Activations in 8 bits cost about 0.5 % here, whatever the format.
  EXPECT_LT(relative_error(logits_of(quantized, *make_ops(BackendKind::kCpu, Compute::kAuto)), expected), 0.02);
}

class EveryFormat : public ::testing::TestWithParam<FormatId> {};

TEST_P(EveryFormat, RunsLikeItsDequantizedValues) {
  compare_backends([](const std::string&) { return GetParam(); });
}

std::vector<FormatId> all_formats() {
  std::vector<FormatId> formats;
  for (const QuantFormat& format : kQuantFormats) formats.push_back(format.id);
  return formats;
}

INSTANTIATE_TEST_SUITE_P(All, EveryFormat, ::testing::ValuesIn(all_formats()),
                         [](const auto& test) { return std::string(quant_format(test.param).name); });

TEST(LoadModel, FormatsMayDifferWithinALayer) {
  // q and k could be one matrix, v cannot; gate and up cannot.
  compare_backends([](const std::string& name) {
    if (name == "blk.0.attn_v.weight") return FormatId::kQ8_0;
    if (name == "blk.0.ffn_up.weight") return FormatId::kQ6_K;
    if (name == "blk.0.ffn_down.weight") return FormatId::kF16;
    return FormatId::kQ4_K;
  });
}

}  // namespace
}  // namespace quire
