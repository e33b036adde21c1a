#include "weights/gguf.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "weights/testing/gguf_writer.h"
#include "weights/testing/test_folder.h"

namespace quire {
namespace {

using testing::append_number;
using testing::append_string;
using testing::Bytes;
using testing::GgufWriter;
using testing::Random;

Result<std::unique_ptr<GgufFile>> parse(const Bytes& bytes) {
  const GgufFile::Part part = {"test.gguf", bytes};
  return GgufFile::parse(std::span(&part, 1), nullptr);
}

// The message of the error that a file must give.
std::string error_of(const Bytes& bytes) {
  const auto file = parse(bytes);
  EXPECT_FALSE(file.is_ok());
  if (file.is_ok()) return "";
  EXPECT_NE(file.status().message().find("test.gguf"), std::string::npos) << file.status().message();
  return file.status().message();
}

#define EXPECT_HAS(text, part) EXPECT_PRED2(has, std::string(text), std::string(part))
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Bytes encoded_array(uint32_t element_type, uint64_t count, const Bytes& elements = {}) {
  Bytes bytes;
  append_number(bytes, element_type);
  append_number(bytes, count);
  testing::append_bytes(bytes, elements.data(), elements.size());
  return bytes;
}

// Touches everything that a reader of the file might touch.
void read_everything(const GgufFile& file) {
  for (const GgufEntry& entry : file.entries()) {
    EXPECT_FALSE(describe(entry.value, 40).empty());
    EXPECT_EQ(file.find_value(entry.key), &entry.value);
    (void)file.find_string(entry.key).is_ok();
    (void)file.find_integer(entry.key).is_ok();
    (void)file.find_number(entry.key).is_ok();
    (void)file.find_bool(entry.key).is_ok();
    (void)file.find_strings(entry.key).is_ok();
    (void)file.find_integers(entry.key).is_ok();
    (void)file.find_floats(entry.key).is_ok();
    (void)file.find_bools(entry.key).is_ok();
  }
  int64_t sum = 0;
  for (const SourceTensor& tensor : file.tensors()) {
    EXPECT_EQ(file.find(tensor.name), &tensor);
    sum += tensor.num_values();
    if (!tensor.data.empty())
      sum += std::to_integer<int>(tensor.data.front()) + std::to_integer<int>(tensor.data.back());
  }
  EXPECT_GE(sum, 0);
}

GgufWriter small_model(uint64_t seed) {
  Random random(seed);
  GgufWriter writer;
  writer.add_string("general.architecture", "llama");
  writer.add_u32("llama.block_count", 2);
  writer.add_f32("llama.epsilon", 1e-5f);
  writer.add_bool("tokenizer.ggml.add_bos_token", true);
  writer.add_strings("tokenizer.ggml.tokens", {"<s>", "", "\xf0\x9f\x98\x80", std::string("a\0b", 3)});
  writer.add_f32s("tokenizer.ggml.scores", {0.0f, -1.0f, -2.5f, 3.0f});
  writer.add_i32s("tokenizer.ggml.token_type", {3, 1, 1, -7});
  writer.add_tensor("token_embd.weight", FormatId::kQ8_0, {4, 64},
                    testing::random_weights(FormatId::kQ8_0, 256, 1.0f, random));
  writer.add_tensor("blk.0.norm.weight", FormatId::kF32, {5}, testing::f32_bytes({1, 2, 3, 4, 5}));
  writer.add_tensor("blk.0.experts.weight", FormatId::kQ4_K, {2, 3, 256},
                    testing::random_weights(FormatId::kQ4_K, 1536, 1.0f, random));
  return writer;
}

TEST(GgufTest, GivesBackWhatWasWritten) {
  for (const uint32_t version : {2u, 3u}) {
    GgufWriter writer = small_model(1);
    writer.version = version;
    const Bytes bytes = writer.finish();
    auto opened = parse(bytes);
    ASSERT_TRUE(opened.is_ok()) << opened.status().message();
    const GgufFile& file = *opened.value();
    EXPECT_EQ(file.version(), static_cast<int>(version));
    EXPECT_EQ(file.find_string("general.architecture").value(), "llama");
    EXPECT_EQ(file.find_integer("llama.block_count").value(), 2);
    EXPECT_EQ(file.find_number("llama.block_count").value(), 2.0);
    EXPECT_EQ(file.find_number("llama.epsilon").value(), static_cast<double>(1e-5f));
    EXPECT_EQ(file.find_bool("tokenizer.ggml.add_bos_token").value(), true);
    const std::vector<std::string_view> tokens = {"<s>", "", "\xf0\x9f\x98\x80", std::string_view("a\0b", 3)};
    EXPECT_EQ(file.find_strings("tokenizer.ggml.tokens").value(), tokens);
    EXPECT_EQ(file.find_floats("tokenizer.ggml.scores").value(), (std::vector<float>{0.0f, -1.0f, -2.5f, 3.0f}));
    EXPECT_EQ(file.find_integers("tokenizer.ggml.token_type").value(), (std::vector<int64_t>{3, 1, 1, -7}));
    EXPECT_EQ(file.find_string("none").value(), std::nullopt);
    EXPECT_EQ(file.find_strings("none").value(), std::nullopt);
    EXPECT_EQ(file.find_value("none"), nullptr);

    ASSERT_EQ(file.tensors().size(), 3u);
    const SourceTensor* embedding = file.find("token_embd.weight");
    ASSERT_NE(embedding, nullptr);
    EXPECT_EQ(embedding->format, FormatId::kQ8_0);
    EXPECT_EQ(embedding->type_name, "q8_0");
    EXPECT_EQ(embedding->sizes, (std::vector<int64_t>{4, 64}));
    EXPECT_EQ(embedding->data.size(), 8u * 34);
    const SourceTensor* norm = file.find("blk.0.norm.weight");
    ASSERT_NE(norm, nullptr);
    const Bytes wanted = testing::f32_bytes({1, 2, 3, 4, 5});
    ASSERT_EQ(norm->data.size(), wanted.size());
    EXPECT_EQ(std::memcmp(norm->data.data(), wanted.data(), wanted.size()), 0);
    EXPECT_EQ(file.find("blk.0.experts.weight")->sizes, (std::vector<int64_t>{2, 3, 256}));
    EXPECT_EQ(file.find("blk.0.experts.weight")->data.size(), 6u * 144);
    EXPECT_EQ(file.find("none"), nullptr);
    read_everything(file);
  }
}

TEST(GgufTest, ReadsMetadataOfEveryType) {
  GgufWriter writer;
  const auto scalar = [&](const char* key, GgufType type, auto value) {
    Bytes encoded;
    append_number(encoded, value);
    writer.add_raw(key, static_cast<uint32_t>(type), encoded);
  };
  scalar("u8", GgufType::kU8, uint8_t{200});
  scalar("i8", GgufType::kI8, int8_t{-100});
  scalar("u16", GgufType::kU16, uint16_t{60000});
  scalar("i16", GgufType::kI16, int16_t{-30000});
  scalar("u32", GgufType::kU32, uint32_t{4000000000});
  scalar("i32", GgufType::kI32, int32_t{-2000000000});
  scalar("u64", GgufType::kU64, uint64_t{1} << 62);
  scalar("huge", GgufType::kU64, std::numeric_limits<uint64_t>::max());
  scalar("i64", GgufType::kI64, std::numeric_limits<int64_t>::min());
  scalar("f64", GgufType::kF64, 0.1);
  Bytes inner;
  for (const char* text : {"x", "yz"}) append_string(inner, text);
  Bytes nested = encoded_array(9, 2);
  const Bytes strings = encoded_array(8, 2, inner);
  const Bytes bools = encoded_array(7, 3, {std::byte{0}, std::byte{1}, std::byte{1}});
  testing::append_bytes(nested, strings.data(), strings.size());
  testing::append_bytes(nested, bools.data(), bools.size());
  writer.add_raw("nested", 9, nested);
  writer.add_raw("bools", 9, bools);
  writer.add_raw("empty", 9, encoded_array(8, 0));
  Bytes doubles;
  append_number(doubles, 0.5);
  writer.add_raw("f64s", 9, encoded_array(12, 1, doubles));

  const Bytes bytes = writer.finish();
  auto opened = parse(bytes);
  ASSERT_TRUE(opened.is_ok()) << opened.status().message();
  const GgufFile& file = *opened.value();
  EXPECT_EQ(file.find_integer("u8").value(), 200);
  EXPECT_EQ(file.find_integer("i8").value(), -100);
  EXPECT_EQ(file.find_integer("u16").value(), 60000);
  EXPECT_EQ(file.find_integer("i16").value(), -30000);
  EXPECT_EQ(file.find_integer("u32").value(), 4000000000);
  EXPECT_EQ(file.find_integer("i32").value(), -2000000000);
  EXPECT_EQ(file.find_integer("u64").value(), int64_t{1} << 62);
  EXPECT_EQ(file.find_integer("i64").value(), std::numeric_limits<int64_t>::min());
  EXPECT_FALSE(file.find_integer("huge").is_ok());
  EXPECT_EQ(describe(*file.find_value("huge"), 40), "18446744073709551615");
  EXPECT_EQ(file.find_number("f64").value(), 0.1);
  EXPECT_EQ(file.find_bools("bools").value(), (std::vector<bool>{false, true, true}));
  EXPECT_EQ(file.find_strings("empty").value(), std::vector<std::string_view>());
  EXPECT_EQ(file.find_floats("f64s").value(), std::vector<float>{0.5f});
  EXPECT_EQ(describe(*file.find_value("nested"), 40), "array of 2 arrays");
  EXPECT_EQ(describe(*file.find_value("bools"), 40), "[false, true, true]");
  EXPECT_EQ(describe(*file.find_value("bools"), 12), "[false, true, ...] (3 in all)");
  read_everything(file);
}

TEST(GgufTest, WrongMetadataTypesAreErrorsThatNameTheKey) {
  GgufWriter writer;
  writer.add_u32("number", 1);
  writer.add_string("text", "x");
  // Scores as int8, with the right count: never read as floats.
  writer.add_raw("scores", 9, encoded_array(1, 4, Bytes(4)));
  const Bytes bytes = writer.finish();
  auto opened = parse(bytes);
  ASSERT_TRUE(opened.is_ok());
  const GgufFile& file = *opened.value();
  const auto scores = file.find_floats("scores");
  ASSERT_FALSE(scores.is_ok());
  EXPECT_HAS(scores.status().message(), "'scores' is of type array of 4 i8; expected an array of floats");
  EXPECT_FALSE(file.find_string("number").is_ok());
  EXPECT_FALSE(file.find_bool("number").is_ok());
  EXPECT_FALSE(file.find_integer("text").is_ok());
  EXPECT_FALSE(file.find_number("text").is_ok());
  EXPECT_FALSE(file.find_strings("scores").is_ok());
  EXPECT_FALSE(file.find_bools("scores").is_ok());
  EXPECT_FALSE(file.find_integers("number").is_ok());
  EXPECT_EQ(file.find_integers("scores").value(), std::vector<int64_t>(4));
}

TEST(GgufTest, ForeignAndUnsupportedFilesAreNamed) {
  const auto text = [](std::string_view start) {
    Bytes bytes(1000, std::byte{' '});
    std::memcpy(bytes.data(), start.data(), start.size());
    return error_of(bytes);
  };
  EXPECT_HAS(text("version https://git-lfs.github.com/spec/v1\noid"), "Git LFS pointer");
  EXPECT_HAS(text("<!DOCTYPE html><html>"), "web page");
  EXPECT_HAS(text("PK\x03\x04"), "zip archive");
  EXPECT_HAS(text("lmgg"), "old GGML");
  EXPECT_HAS(text("hello"), "not a GGUF file");
  EXPECT_HAS(error_of(Bytes(5000)), "filled with zeros");
  EXPECT_HAS(error_of({}), "not a GGUF file");
  EXPECT_HAS(error_of(testing::make_safetensors({})), "a safetensors file");

  GgufWriter writer = small_model(1);
  writer.version = 1;
  EXPECT_HAS(error_of(writer.finish()), "version 1 is not supported");
  writer.version = 4;
  EXPECT_HAS(error_of(writer.finish()), "version 4 is not supported");
  writer.version = 0x03000000;
  EXPECT_HAS(error_of(writer.finish()), "big-endian");
}

TEST(GgufTest, EveryTruncationIsAnError) {
  const Bytes bytes = small_model(2).finish();
  ASSERT_TRUE(parse(bytes).is_ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const Bytes cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    const std::string message = error_of(cut);
    if (size > 200) {
      EXPECT_TRUE(has(message, "incomplete")) << size << ": " << message;
    }
  }
  EXPECT_HAS(
      error_of(Bytes(bytes.begin(), bytes.end() - 1)),
      "has " + std::to_string(bytes.size() - 1) + " bytes, but its tensors need " + std::to_string(bytes.size()));
}

TEST(GgufTest, AbsurdCountsAreErrorsBeforeAnyAllocation) {
  for (const uint64_t count : {uint64_t{1000}, uint64_t{1} << 32, uint64_t{1} << 60, ~uint64_t{0}}) {
    for (const size_t offset : {size_t{8}, size_t{16}}) {  // of the number of tensors, of entries
      Bytes bytes = small_model(3).finish();
      bytes.resize(600);
      std::memcpy(bytes.data() + offset, &count, sizeof(count));
      EXPECT_HAS(error_of(bytes), "");
    }
    for (const uint32_t element_type : {0u, 6u, 7u, 8u, 9u, 12u}) {
      GgufWriter writer;
      writer.add_raw("array", 9, encoded_array(element_type, count, Bytes(64)));
      EXPECT_HAS(error_of(writer.finish()), "");
    }
    GgufWriter writer;
    Bytes length;
    append_number(length, count);
    writer.add_raw("text", 8, length);
    EXPECT_HAS(error_of(writer.finish()), "ends inside");
  }
}

TEST(GgufTest, BadMetadataAreErrors) {
  {
    GgufWriter writer;
    writer.add_u32("a", 1);
    writer.add_u32("a", 1);
    EXPECT_HAS(error_of(writer.finish()), "'a' stands there twice");
  }
  {
    GgufWriter writer;
    writer.add_u32("", 1);
    EXPECT_HAS(error_of(writer.finish()), "empty key");
  }
  {
    GgufWriter writer;
    writer.add_u32(std::string(70000, 'k'), 1);
    EXPECT_HAS(error_of(writer.finish()), "claims 70000 bytes");
  }
  {
    GgufWriter writer;
    writer.add_raw("a", 13, Bytes(8));
    EXPECT_HAS(error_of(writer.finish()), "unknown metadata type 13");
  }
  {
    GgufWriter writer;
    writer.add_raw("a", 7, {std::byte{2}});
    EXPECT_HAS(error_of(writer.finish()), "neither 0 nor 1");
  }
  {
    Bytes nested;
    for (int depth = 0; depth < 1000; ++depth) {
      const Bytes header = encoded_array(9, 1);
      testing::append_bytes(nested, header.data(), header.size());
    }
    GgufWriter writer;
    writer.add_raw("deep", 9, nested);
    EXPECT_HAS(error_of(writer.finish()), "nested");
  }
}

TEST(GgufTest, AlignmentMustBeASanePowerOfTwo) {
  for (const uint32_t alignment : {0u, 1u, 3u, 24u, 1u << 31}) {
    GgufWriter writer;
    writer.add_u32("general.alignment", alignment);
    EXPECT_HAS(error_of(writer.finish()), "general.alignment is " + std::to_string(alignment));
  }
  GgufWriter as_string;
  as_string.add_string("general.alignment", "32");
  EXPECT_HAS(error_of(as_string.finish()), "of type string, not u32");
  GgufWriter as_i32;
  as_i32.add_i32("general.alignment", 32);
  EXPECT_HAS(error_of(as_i32.finish()), "of type i32, not u32");

  for (const uint32_t alignment : {8u, 64u, 4096u}) {
    GgufWriter writer;
    writer.alignment = alignment;
    writer.add_tensor("a", FormatId::kF32, {3}, testing::f32_bytes({1, 2, 3}));
    writer.add_tensor("b", FormatId::kF32, {1}, testing::f32_bytes({7}));
    const Bytes bytes = writer.finish();
    auto file = parse(bytes);
    ASSERT_TRUE(file.is_ok()) << file.status().message();
    float value = 0;
    std::memcpy(&value, file.value()->find("b")->data.data(), sizeof(value));
    EXPECT_EQ(value, 7.0f);
  }
}

TEST(GgufTest, AbsurdTensorsAreErrorsThatNameThem) {
  constexpr uint32_t kF32 = 0;
  constexpr uint32_t kQ4_0 = 2;
  struct Case {
    std::vector<uint64_t> sizes;
    uint32_t type;
    uint64_t offset;
    const char* message;
  };
  const Case cases[] = {
      {{0}, kF32, 0, "dimension of 0"},
      {{~uint64_t{0}}, kF32, 0, "dimension of 18446744073709551615"},
      {{uint64_t{1} << 63}, kF32, 0, "dimension of"},
      {{1, 1, 1, 1, 1}, kF32, 0, "5 dimensions"},
      {{uint64_t{1} << 40, uint64_t{1} << 40}, kF32, 0, "absurd sizes"},
      // Bytes within one alignment of 2^64, and of 2^63.
      {{(uint64_t{1} << 62) - 1}, kF32, 0, "absurd sizes"},
      {{(uint64_t{1} << 61) - 1}, kF32, 0, "incomplete"},
      {{uint64_t{0x7fffffffffffffe0}}, kQ4_0, 0, "incomplete"},
      {{32, uint64_t{1} << 58}, kQ4_0, 0, "absurd sizes"},
      {{32}, kF32, ~uint64_t{0} - 31, "absurd offset"},
      {{8}, kF32, ~uint64_t{0} - 63, "absurd offsets"},
      {{8}, kF32, 96, "incomplete"},
      {{8}, kF32, 33, "not a multiple of the alignment 32"},
      {{33}, kQ4_0, 0, "rows of 33 values, not a multiple of the 32"},
      {{8}, 4, 0, "unknown type number 4"},
      {{8}, 4000000000u, 0, "unknown type number 4000000000"},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.message);
    GgufWriter writer;
    writer.add_tensor("first", FormatId::kF32, {8}, Bytes(32));
    writer.add_raw_description("second", test.sizes, test.type, test.offset);
    const std::string message = error_of(writer.finish());
    EXPECT_HAS(message, test.message);
    if (!has(test.message, "incomplete") && !has(test.message, "offsets")) {
      EXPECT_HAS(message, "'second'");
    }
  }

  // Sizes that sum past 2^64, with a small second tensor.
  GgufWriter writer;
  writer.add_raw_description("a", {uint64_t{1} << 60}, kF32, 0);
  writer.add_raw_description("b", {uint64_t{1} << 60}, kF32, uint64_t{1} << 62);
  writer.add_raw_description("c", {uint64_t{1} << 60}, kF32, uint64_t{1} << 63);
  writer.add_raw_description("d", {8}, kF32, 0);
  EXPECT_HAS(error_of(writer.finish()), "incomplete");
}

TEST(GgufTest, TensorsMayNotOverlapOrRepeat) {
  GgufWriter overlapping;
  overlapping.add_tensor("a", FormatId::kF32, {16}, Bytes(64));
  overlapping.add_raw_description("b", {8}, 0, 32);
  EXPECT_HAS(error_of(overlapping.finish()), "'a' and 'b' overlap");

  GgufWriter twice;
  twice.add_tensor("a", FormatId::kF32, {8}, Bytes(32));
  twice.add_tensor("a", FormatId::kF32, {8}, Bytes(32));
  EXPECT_HAS(error_of(twice.finish()), "'a' stands there twice");
}

TEST(GgufTest, TypesThatWeCannotComputeWithKeepTheirNames) {
  GgufWriter writer;
  writer.add_tensor("a", FormatId::kF32, {32}, Bytes(128));
  writer.add_raw_description("b", {256}, 16, 128);
  Bytes bytes = writer.finish();
  bytes.resize(bytes.size() + 66);
  auto file = parse(bytes);
  ASSERT_TRUE(file.is_ok()) << file.status().message();
  EXPECT_EQ(file.value()->find("b")->format, std::nullopt);
  EXPECT_EQ(file.value()->find("b")->type_name, "iq2_xxs");
}

TEST(GgufTest, VocabularyOnlyFilesNeedNoTensors) {
  GgufWriter writer;
  writer.add_strings("tokenizer.ggml.tokens", {"a"});
  const Bytes bytes = writer.finish();
  auto file = parse(bytes);
  ASSERT_TRUE(file.is_ok()) << file.status().message();
  EXPECT_TRUE(file.value()->tensors().empty());
}

// ---- Split files
// -----------------------------------------------------------------------------------------------------

GgufWriter split_part(uint16_t index, uint16_t count, int32_t num_tensors) {
  GgufWriter writer;
  if (index == 0) writer.add_string("general.architecture", "llama");
  writer.add_u16("split.no", index);
  writer.add_u16("split.count", count);
  writer.add_i32("split.tensors.count", num_tensors);
  writer.add_tensor("tensor." + std::to_string(index), FormatId::kF32, {1}, testing::f32_bytes({index + 0.5f}));
  return writer;
}

TEST(GgufSplitTest, AnyPartOpensTheWhole) {
  testing::TestFolder folder;
  std::vector<std::string> paths;
  for (uint16_t i = 0; i < 3; ++i) {
    paths.push_back(folder.write("m-0000" + std::to_string(i + 1) + "-of-00003.gguf", split_part(i, 3, 3).finish()));
  }
  for (const std::string& path : paths) {
    auto file = GgufFile::open(path);
    ASSERT_TRUE(file.is_ok()) << file.status().message();
    EXPECT_EQ(file.value()->find_string("general.architecture").value(), "llama");
    ASSERT_EQ(file.value()->tensors().size(), 3u);
    // The bytes outlive the object.
    const SourceTensor tensor = *file.value()->find("tensor.2");
    const std::shared_ptr<const void> owner = file.value()->owner();
    file.value()->done_with(tensor.data);
    file.value().reset();
    float value = 0;
    std::memcpy(&value, tensor.data.data(), sizeof(value));
    EXPECT_EQ(value, 2.5f);
  }
}

TEST(GgufSplitTest, MissingRenamedAndMixedPartsAreErrors) {
  testing::TestFolder folder;
  const auto open = [](const std::string& path) {
    auto file = GgufFile::open(path);
    EXPECT_FALSE(file.is_ok());
    return file.is_ok() ? "" : file.status().message();
  };
  const std::string first = folder.write("m-00001-of-00002.gguf", split_part(0, 2, 2).finish());
  EXPECT_HAS(open(first), "part 2 is missing: there is no file " + folder.path() + "/m-00002-of-00002.gguf");
  const std::string renamed = folder.write("m.gguf", split_part(0, 2, 2).finish());
  EXPECT_HAS(open(renamed), "original names");

  folder.write("m-00002-of-00002.gguf", split_part(0, 2, 2).finish());
  EXPECT_HAS(open(first), "it says that it is part 1 of 2");
  folder.write("m-00002-of-00002.gguf", split_part(1, 2, 5).finish());
  EXPECT_HAS(open(first), "split.tensors.count differs");
  folder.write("m-00001-of-00002.gguf", split_part(0, 2, 5).finish());
  EXPECT_HAS(open(first), "should have 5 tensors, but they have 2");
  folder.write("m-00002-of-00002.gguf", split_part(2, 2, 2).finish());
  EXPECT_HAS(open(first), "part 3 of 2");

  GgufWriter same_tensor = split_part(0, 2, 2);
  GgufWriter other;
  other.add_u16("split.no", 1);
  other.add_u16("split.count", 2);
  other.add_tensor("tensor.0", FormatId::kF32, {1}, Bytes(4));
  folder.write("m-00001-of-00002.gguf", same_tensor.finish());
  folder.write("m-00002-of-00002.gguf", other.finish());
  EXPECT_HAS(open(first), "'tensor.0' stands there twice");

  GgufWriter text_count;
  text_count.add_string("split.count", "2");
  EXPECT_HAS(open(folder.write("t.gguf", text_count.finish())), "split.count is not a count");
  // One part alone, in memory, is not a whole model.
  EXPECT_HAS(error_of(split_part(0, 2, 2).finish()), "should be part 1 of 1");
}

// ---- Any bytes
// -------------------------------------------------------------------------------------------------------

TEST(GgufTest, DamagedFilesNeverCrashTheReader) {
  constexpr uint64_t kSeed = 20240711;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  const Bytes original = small_model(5).finish();
  int num_opened = 0;
  for (int round = 0; round < 20'000; ++round) {
    Bytes bytes = original;
    const int64_t num_changes = 1 + random.below(4);
    for (int64_t i = 0; i < num_changes; ++i) {
      const auto place = static_cast<size_t>(random.below(static_cast<int64_t>(bytes.size())));
      const std::byte values[] = {std::byte{0}, std::byte{1}, std::byte{0x7f}, std::byte{0xff},
                                  static_cast<std::byte>(random.next() & 255)};
      bytes[place] = values[random.below(5)];
    }
    const auto file = parse(bytes);
    if (!file.is_ok()) {
      EXPECT_FALSE(file.status().message().empty());
      continue;
    }
    ++num_opened;
    read_everything(*file.value());
  }
  EXPECT_GT(num_opened, 100);
}

}  // namespace
}  // namespace quire
