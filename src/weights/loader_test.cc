#include "weights/loader.h"

#include <gtest/gtest.h>

#include <cstring>

#include "quant/dequantize.h"
#include "weights/gguf.h"
#include "weights/safetensors.h"
#include "weights/testing/gguf_writer.h"

namespace quire {
namespace {

using testing::Bytes;
using testing::GgufWriter;
using testing::Random;

#define EXPECT_HAS(text, part) EXPECT_PRED2(has, std::string(text), std::string(part))
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A file in memory and its reader.
struct Source {
  std::shared_ptr<const Bytes> bytes;
  std::unique_ptr<GgufFile> file;
};

Source open(const GgufWriter& writer) {
  Source source;
  source.bytes = std::make_shared<const Bytes>(writer.finish());
  const GgufFile::Part part = {"test.gguf", *source.bytes};
  auto file = GgufFile::parse(std::span(&part, 1), source.bytes);
  CHECK(file.is_ok());
  source.file = std::move(file).value();
  return source;
}

// A weight, row-major, as floats [num_experts][n][k].
std::vector<float> values_of(const Weight& weight) {
  CHECK(weight.layout == Layout::kRowMajor);
  const int64_t num_values = weight.num_experts * weight.n * weight.k;
  CHECK(static_cast<int64_t>(weight.parts[0].size()) == weight.quant().row_bytes(num_values));
  std::vector<float> values(static_cast<size_t>(num_values));
  dequantize_row(weight.format, weight.parts[0].data(), values.data(), num_values);
  return values;
}

// ---- A tiny attention and MLP in any format
// --------------------------------------------------------------------------

constexpr int kHidden = 256;
constexpr int kHeadDim = 64;
constexpr int kNumHeads = 8;
constexpr int kNumKvHeads = 4;
constexpr int kQuerySize = kNumHeads * kHeadDim;
constexpr int kKvSize = kNumKvHeads * kHeadDim;
constexpr int kIntermediate = 1280;  // five blocks of 256: two ranks share them unevenly
constexpr int kVocab = 33;

Source tiny_model(FormatId format, uint64_t seed) {
  Random random(seed);
  GgufWriter writer;
  const auto matrix = [&](const char* name, int64_t n, int64_t k) {
    writer.add_tensor(name, format, {n, k}, testing::random_weights(format, n * k, 1.0f, random));
  };
  matrix("token_embd.weight", kVocab, kHidden);
  matrix("q", kQuerySize, kHidden);
  matrix("k", kKvSize, kHidden);
  matrix("v", kKvSize, kHidden);
  matrix("o", kHidden, kQuerySize);
  matrix("gate_up", 2 * kIntermediate, kHidden);
  matrix("down", kHidden, kIntermediate);
  writer.add_tensor("norm", FormatId::kF32, {kHidden}, testing::random_weights(FormatId::kF32, kHidden, 1.0f, random));
  writer.add_tensor("q.bias", FormatId::kF16, {kQuerySize},
                    testing::random_weights(FormatId::kF16, kQuerySize, 1.0f, random));
  return open(writer);
}

Result<WeightMap> tiny_map(const TensorSource& source, Rank rank) {
  ASSIGN_OR_RETURN(const HeadShare heads, share_heads(kNumHeads, kNumKvHeads, rank));
  const PieceShard query = {ShardKind::kHeads, heads.heads_per_unit * kHeadDim};
  const PieceShard kv = {ShardKind::kHeads, kHeadDim, true};
  const std::vector<std::string> down = {"down"};
  const int64_t unit = common_block(source, down);
  WeightMap map;
  map.rows.push_back(matrix_row("embedding", {"token_embd.weight"}, kVocab, kHidden, {ShardKind::kVocab}));
  map.rows.push_back(matrix_row("head", {"output.weight", "token_embd.weight"}, kVocab, kHidden, {ShardKind::kVocab}));
  WeightRow qkv;
  qkv.name = "qkv";
  qkv.num_inputs = kHidden;
  qkv.pieces.push_back({.tensors = {"q"}, .num_rows = kQuerySize, .shard = query});
  qkv.pieces.push_back({.tensors = {"k"}, .num_rows = kKvSize, .shard = kv});
  qkv.pieces.push_back({.tensors = {"v"}, .num_rows = kKvSize, .shard = kv});
  map.rows.push_back(qkv);
  map.rows.push_back(matrix_row("o", {"o"}, kHidden, kQuerySize, {ShardKind::kRows, query.unit}));
  WeightRow gate = matrix_row("gate", {"gate_up"}, kIntermediate, kHidden, {ShardKind::kColumns, unit});
  gate.pieces[0].tensor_rows = 2 * kIntermediate;
  map.rows.push_back(gate);
  WeightRow up = gate;
  up.name = "up";
  up.pieces[0].first_row = kIntermediate;
  map.rows.push_back(up);
  map.rows.push_back(matrix_row("down", {"down"}, kHidden, kIntermediate, {ShardKind::kRows, unit}));
  WeightRow norm = vector_row("norm", {"norm"}, kHidden);
  norm.add = 1.0f;
  map.rows.push_back(norm);
  map.rows.push_back(vector_row("q.bias", {"q.bias"}, kQuerySize, query));
  return map;
}

LoadedWeights load_tiny(const Source& source, Rank rank) {
  auto map = tiny_map(*source.file, rank);
  CHECK(map.is_ok());
  auto loaded = load(map.value(), *source.file, rank, {});
  EXPECT_TRUE(loaded.is_ok()) << loaded.status().message();
  CHECK(loaded.is_ok());
  return std::move(loaded).value();
}

// The parts that ranks hold, put where they belong in the whole; outputs [first, first + n) or inputs.
void place(std::vector<float>& whole, int64_t whole_k, const std::vector<float>& part, int64_t first_row, int64_t n,
           int64_t first_input, int64_t k) {
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t input = 0; input < k; ++input) {
      whole[static_cast<size_t>((first_row + row) * whole_k + first_input + input)] =
          part[static_cast<size_t>(row * k + input)];
    }
  }
}

class LoaderFormatTest : public ::testing::TestWithParam<QuantFormat> {};
INSTANTIATE_TEST_SUITE_P(AllFormats, LoaderFormatTest, ::testing::ValuesIn(kQuantFormats),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(LoaderFormatTest, WholeModelHasTheValuesOfTheFile) {
  const Source source = tiny_model(GetParam().id, 11);
  const LoadedWeights weights = load_tiny(source, {});
  for (const auto& [row, tensor] : {std::pair{"embedding", "token_embd.weight"}, {"o", "o"}, {"down", "down"}}) {
    const Weight& weight = weights.matrix(row);
    EXPECT_EQ(weight.format, GetParam().id);
    // In place: not a byte is copied.
    EXPECT_EQ(weight.parts[0].data(), source.file->find(tensor)->data.data());
    EXPECT_EQ(weight.parts[0].size(), source.file->find(tensor)->data.size());
  }
  const Weight& qkv = weights.matrix("qkv");
  EXPECT_EQ(qkv.n, kQuerySize + 2 * kKvSize);
  EXPECT_EQ(qkv.k, kHidden);
  Bytes joined;
  for (const char* name : {"q", "k", "v"}) {
    const auto data = source.file->find(name)->data;
    testing::append_bytes(joined, data.data(), data.size());
  }
  ASSERT_EQ(qkv.parts[0].size(), joined.size());
  EXPECT_EQ(std::memcmp(qkv.parts[0].data(), joined.data(), joined.size()), 0);
  EXPECT_EQ(weights.matrix("up").parts[0].data(),
            source.file->find("gate_up")->data.data() + source.file->find("gate_up")->data.size() / 2);
  EXPECT_TRUE(weights.unused_tensors().empty());

  std::vector<float> norm(kHidden);
  std::memcpy(norm.data(), source.file->find("norm")->data.data(), norm.size() * sizeof(float));
  for (float& value : norm) value += 1.0f;
  EXPECT_EQ(weights.vector("norm"), norm);
  std::vector<float> bias(kQuerySize);
  dequantize_row(FormatId::kF16, source.file->find("q.bias")->data.data(), bias.data(), kQuerySize);
  EXPECT_EQ(weights.vector("q.bias"), bias);
}

TEST_P(LoaderFormatTest, ShardsReassembleToTheWhole) {
  const Source source = tiny_model(GetParam().id, 12);
  const LoadedWeights whole = load_tiny(source, {});
  for (const int count : {2, 4}) {
    // Heads of 64 do not always end where blocks of 256 do: refused, see below.
    const bool cuts_blocks = kQuerySize / count % GetParam().values_per_block != 0;
    if (cuts_blocks) continue;
    std::map<std::string, std::vector<float>> assembled;
    std::vector<float> bias(kQuerySize);
    for (int index = 0; index < count; ++index) {
      const Rank rank = {index, count};
      const LoadedWeights part = load_tiny(source, rank);
      const HeadShare heads = share_heads(kNumHeads, kNumKvHeads, rank).value();
      for (const char* name : {"embedding", "head", "o", "gate", "up", "down"}) {
        const Weight& full = whole.matrix(name);
        const Weight& weight = part.matrix(name);
        auto& values = assembled[name];
        values.resize(static_cast<size_t>(full.n * full.k), -99.0f);
        const bool is_cut_in_inputs = weight.shard.kind == ShardKind::kRows;
        place(values, full.k, values_of(weight), is_cut_in_inputs ? 0 : weight.shard.first_index, weight.n,
              is_cut_in_inputs ? weight.shard.first_index : 0, weight.k);
      }
      // Joined: this rank's query heads, then its KV heads twice.
      const Weight& qkv = part.matrix("qkv");
      const int64_t num_query_rows = heads.num_heads * kHeadDim;
      const int64_t num_kv_rows = heads.num_kv_heads * kHeadDim;
      ASSERT_EQ(qkv.n, num_query_rows + 2 * num_kv_rows);
      const std::vector<float> values = values_of(qkv);
      auto& all = assembled["qkv"];
      all.resize(static_cast<size_t>((kQuerySize + 2 * kKvSize) * kHidden), -99.0f);
      const auto rows_from = [&](int64_t first) {
        return std::vector<float>(values.begin() + first * kHidden, values.end());
      };
      place(all, kHidden, values, heads.first_head * kHeadDim, num_query_rows, 0, kHidden);
      place(all, kHidden, rows_from(num_query_rows), kQuerySize + heads.first_kv_head * kHeadDim, num_kv_rows, 0,
            kHidden);
      place(all, kHidden, rows_from(num_query_rows + num_kv_rows),
            kQuerySize + kKvSize + heads.first_kv_head * kHeadDim, num_kv_rows, 0, kHidden);

      const std::vector<float>& bias_part = part.vector("q.bias");
      ASSERT_EQ(static_cast<int64_t>(bias_part.size()), num_query_rows);
      std::copy(bias_part.begin(), bias_part.end(), bias.begin() + heads.first_head * kHeadDim);
      EXPECT_EQ(part.vector("norm"), whole.vector("norm"));
    }
    for (const auto& [name, values] : assembled) EXPECT_EQ(values, values_of(whole.matrix(name))) << name;
    EXPECT_EQ(bias, whole.vector("q.bias"));
  }
}

TEST(LoaderTest, CutsInsideQuantizationBlocksAreRefused) {
  const Source source = tiny_model(FormatId::kQ4_K, 13);
  const Rank rank = {1, 4};  // two heads a rank: 128 inputs of the output projection, half a block
  auto map = tiny_map(*source.file, rank);
  ASSERT_TRUE(map.is_ok());
  const auto loaded = load(map.value(), *source.file, rank, {});
  ASSERT_FALSE(loaded.is_ok());
  EXPECT_HAS(loaded.status().message(), "'o': rank 1 would get inputs 128 to 255, but the blocks of q4_k hold 256");
}

TEST(LoaderTest, KvHeadsAreReplicatedOnManyRanks) {
  const Source source = tiny_model(FormatId::kQ8_0, 14);
  const std::vector<float> whole = values_of(load_tiny(source, {}).matrix("qkv"));
  for (int index = 0; index < 8; ++index) {
    const std::vector<float> part = values_of(load_tiny(source, {index, 8}).matrix("qkv"));
    ASSERT_EQ(part.size(), static_cast<size_t>(3 * kHeadDim * kHidden));
    const auto k = part.begin() + kHeadDim * kHidden;
    const auto wanted = whole.begin() + (kQuerySize + index / 2 * kHeadDim) * kHidden;
    EXPECT_TRUE(std::equal(k, k + kHeadDim * kHidden, wanted)) << "rank " << index;
  }
}

TEST(LoaderTest, TiedEmbeddingsArePackedOnce) {
  const Source source = tiny_model(FormatId::kQ4_1, 15);
  auto map = tiny_map(*source.file, {});
  ASSERT_TRUE(map.is_ok());
  int num_packed = 0;
  int64_t last_done = 0;
  int64_t total = 0;
  int num_reports = 0;
  LoadCallbacks callbacks;
  callbacks.pack = [&](const Weight& weight) -> Result<Weight> {
    ++num_packed;
    Weight packed = weight;  // a copy of the bytes, as a backend makes
    auto copy = std::make_shared<std::vector<std::byte>>(weight.parts[0].begin(), weight.parts[0].end());
    packed.parts[0] = *copy;
    packed.owner = copy;
    return packed;
  };
  callbacks.progress = [&](const LoadProgress& progress) {
    ++num_reports;
    EXPECT_GE(progress.num_bytes_done, last_done);
    last_done = progress.num_bytes_done;
    total = progress.num_bytes_total;
    EXPECT_FALSE(progress.row_name.empty());
  };
  auto loaded = load(map.value(), *source.file, {}, callbacks);
  ASSERT_TRUE(loaded.is_ok());
  const LoadedWeights& weights = loaded.value();
  EXPECT_EQ(weights.matrix("head").parts[0].data(), weights.matrix("embedding").parts[0].data());
  EXPECT_EQ(num_packed, 6);  // embedding, qkv, o, gate, up, down
  EXPECT_EQ(num_reports, 9);
  EXPECT_EQ(last_done, total);
  int64_t num_bytes = 0;
  for (const SourceTensor& tensor : source.file->tensors()) num_bytes += static_cast<int64_t>(tensor.data.size());
  EXPECT_EQ(total, num_bytes);                                 // though head and embedding are two rows
  EXPECT_EQ(weights.num_bytes(), num_bytes + kQuerySize * 2);  // the f16 bias became f32
}

TEST(LoaderTest, WhatPackingSaysIsPassedOn) {
  const Source source = tiny_model(FormatId::kQ4_0, 16);
  auto map = tiny_map(*source.file, {});
  ASSERT_TRUE(map.is_ok());
  LoadCallbacks callbacks;
  callbacks.pack = [](const Weight&) -> Result<Weight> { return resource_exhausted("the device is full"); };
  const auto loaded = load(map.value(), *source.file, {}, callbacks);
  ASSERT_FALSE(loaded.is_ok());
  EXPECT_EQ(loaded.status().code(), StatusCode::kResourceExhausted);
  EXPECT_HAS(loaded.status().message(), "embedding");
  EXPECT_HAS(loaded.status().message(), "the device is full");
}

TEST(LoaderTest, AllFaultsAreNamedAtOnce) {
  GgufWriter writer;
  writer.add_tensor("square", FormatId::kF32, {2, 3}, Bytes(24));
  writer.add_tensor("vector", FormatId::kF32, {4}, Bytes(16));
  writer.add_tensor("flat", FormatId::kF32, {6}, Bytes(24));
  writer.add_raw_description("odd", {1}, 26, 96);  // an i32 behind the others
  Bytes bytes = writer.finish();
  bytes.resize(bytes.size() + 64);
  Source source;
  source.bytes = std::make_shared<const Bytes>(std::move(bytes));
  const GgufFile::Part part = {"test.gguf", *source.bytes};
  auto file = GgufFile::parse(std::span(&part, 1), source.bytes);
  ASSERT_TRUE(file.is_ok()) << file.status().message();
  source.file = std::move(file).value();

  WeightMap map;
  map.rows.push_back(matrix_row("a", {"square"}, 3, 2, {}));
  map.rows.push_back(matrix_row("b", {"none", "nothing"}, 3, 2, {}));
  map.rows.push_back(vector_row("c", {"vector"}, 5));
  map.rows.push_back(matrix_row("d", {"flat"}, 2, 3, {}));
  map.rows.push_back(vector_row("e", {"odd"}, 1));
  map.rows.push_back(vector_row("f", {"absent"}, 1));
  const auto loaded = load(map, *source.file, {}, {});
  ASSERT_FALSE(loaded.is_ok());
  const std::string& message = loaded.status().message();
  EXPECT_HAS(message, "2 missing: 'none' (or 'nothing'), 'absent'");
  EXPECT_HAS(message, "3 of the wrong shape: 'square' is [2, 3], should be [3, 2], 'vector' is [4], should be [5]");
  EXPECT_HAS(message, "'flat' is [6], should be [2, 3]");
  EXPECT_HAS(message, "1 of a type that is not supported: 'odd' is of type i32");
}

TEST(LoaderTest, OptionalRowsMayBeMissingAndUnusedTensorsAreListed) {
  GgufWriter writer;
  writer.add_tensor("a", FormatId::kF32, {2}, testing::f32_bytes({1, 2}));
  writer.add_tensor("extra", FormatId::kF32, {2}, Bytes(8));
  writer.add_tensor("rope_freqs.weight", FormatId::kF32, {2}, Bytes(8));
  const Source source = open(writer);
  WeightMap map;
  map.rows.push_back(vector_row("a", {"a"}, 2));
  WeightRow bias = vector_row("bias", {"none"}, 2);
  bias.is_optional = true;
  map.rows.push_back(bias);
  WeightRow matrix = matrix_row("matrix", {"none"}, 2, 2, {});
  matrix.is_optional = true;
  map.rows.push_back(matrix);
  map.ignored = {"rope_freqs.*"};
  const auto loaded = load(map, *source.file, {}, {});
  ASSERT_TRUE(loaded.is_ok()) << loaded.status().message();
  EXPECT_EQ(loaded.value().vector("a"), (std::vector<float>{1, 2}));
  EXPECT_TRUE(loaded.value().vector("bias").empty());
  EXPECT_FALSE(loaded.value().matrix("matrix").is_given());
  EXPECT_EQ(loaded.value().unused_tensors(), std::vector<std::string>{"extra"});
}

TEST(LoaderTest, PiecesOfDifferentFormatsAreNotJoined) {
  Random random(17);
  GgufWriter writer;
  writer.add_tensor("q", FormatId::kQ4_0, {2, 32}, testing::random_weights(FormatId::kQ4_0, 64, 1, random));
  writer.add_tensor("k", FormatId::kQ8_0, {2, 32}, testing::random_weights(FormatId::kQ8_0, 64, 1, random));
  const Source source = open(writer);
  WeightMap map;
  WeightRow row = matrix_row("qk", {"q"}, 2, 32, {});
  row.pieces.push_back({.tensors = {"k"}, .num_rows = 2, .shard = {}});
  map.rows.push_back(row);
  const auto loaded = load(map, *source.file, {}, {});
  ASSERT_FALSE(loaded.is_ok());
  EXPECT_HAS(loaded.status().message(), "'k' of type q8_0 cannot be joined with 'q' of type q4_0");
  const std::vector<std::string> both = {"q", "k"};
  EXPECT_FALSE(have_same_format(*source.file, both));
  EXPECT_TRUE(have_same_format(*source.file, std::span(both).first(1)));
}

TEST(LoaderTest, ExpertsAreOneWeight) {
  Random random(18);
  constexpr int kNumExperts = 3;
  GgufWriter writer;
  writer.add_tensor("up", FormatId::kQ8_0, {kNumExperts, 4, 64},
                    testing::random_weights(FormatId::kQ8_0, kNumExperts * 4 * 64, 1, random));
  const Source source = open(writer);
  const auto load_with = [&](PieceShard shard, Rank rank) {
    WeightMap map;
    WeightRow row = matrix_row("up", {"up"}, 4, 64, shard);
    row.num_experts = kNumExperts;
    map.rows.push_back(row);
    auto loaded = load(map, *source.file, rank, {});
    CHECK(loaded.is_ok());
    return loaded.value().matrix("up");
  };
  const Weight whole = load_with({}, {});
  EXPECT_EQ(whole.num_experts, kNumExperts);
  EXPECT_EQ(whole.n, 4);
  const std::vector<float> values = values_of(whole);
  const std::vector<float> columns = values_of(load_with({ShardKind::kColumns, 1}, {1, 2}));
  const std::vector<float> rows = values_of(load_with({ShardKind::kRows, 32}, {1, 2}));
  for (int expert = 0; expert < kNumExperts; ++expert) {
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 64; ++j) {
        const float wanted = values[static_cast<size_t>((expert * 4 + i) * 64 + j)];
        if (i >= 2) {
          EXPECT_EQ(columns[static_cast<size_t>((expert * 2 + i - 2) * 64 + j)], wanted);
        }
        if (j >= 32) {
          EXPECT_EQ(rows[static_cast<size_t>((expert * 4 + i) * 32 + j - 32)], wanted);
        }
      }
    }
  }
}

TEST(LoaderTest, MisalignedFloatsAreCopied) {
  // A safetensors header of odd length puts the data at an odd address.
  const std::vector<testing::SafetensorsTensor> tensors = {{"w", "F32", {2, 1}, testing::f32_bytes({1.5f, -2.0f})}};
  Bytes bytes = testing::make_safetensors(tensors);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  header_bytes += 1;
  std::memcpy(bytes.data(), &header_bytes, sizeof(header_bytes));
  bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(8 + header_bytes - 1), std::byte{' '});
  auto file = SafetensorsFiles::parse("w", bytes, nullptr);
  ASSERT_TRUE(file.is_ok()) << file.status().message();
  WeightMap map;
  map.rows.push_back(matrix_row("w", {"w"}, 2, 1, {}));
  const auto loaded = load(map, *file.value(), {}, {});
  ASSERT_TRUE(loaded.is_ok());
  const Weight& weight = loaded.value().matrix("w");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(weight.parts[0].data()) % 4, 0u);
  EXPECT_EQ(values_of(weight), (std::vector<float>{1.5f, -2.0f}));
}

}  // namespace
}  // namespace quire
