#include "weights/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "weights/testing/gguf_writer.h"
#include "weights/testing/test_folder.h"

namespace quire {
namespace {

using testing::Bytes;
using testing::make_safetensors;
using testing::SafetensorsTensor;

#define EXPECT_HAS(text, part) EXPECT_PRED2(has, std::string(text), std::string(part))
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string error_of(const Bytes& bytes) {
  const auto file = SafetensorsFiles::parse("test.safetensors", bytes, nullptr);
  EXPECT_FALSE(file.is_ok());
  return file.is_ok() ? "" : file.status().message();
}

// A file with this header and `data_bytes` zeros.
std::string error_of_header(std::string_view header, size_t data_bytes) {
  Bytes bytes = make_safetensors({}, header);
  bytes.resize(bytes.size() + data_bytes);
  return error_of(bytes);
}

TEST(SafetensorsTest, GivesBackWhatWasWritten) {
  const Bytes bytes = make_safetensors({{"b", "F32", {2, 1}, testing::f32_bytes({1.0f, 2.0f})},
                                        {"a \\u00e9", "BF16", {3}, Bytes(6)},
                                        {"scalar", "F16", {}, Bytes(2)},
                                        {"none", "I64", {0, 5}, {}},
                                        {"mask", "BOOL", {2}, Bytes(2)}});
  auto opened = SafetensorsFiles::parse("test", bytes, nullptr);
  ASSERT_TRUE(opened.is_ok()) << opened.status().message();
  const SafetensorsFiles& file = *opened.value();
  ASSERT_EQ(file.tensors().size(), 5u);
  EXPECT_EQ(file.find("b")->format, FormatId::kF32);
  EXPECT_EQ(file.find("b")->sizes, (std::vector<int64_t>{2, 1}));
  float value = 0;
  std::memcpy(&value, file.find("b")->data.data() + 4, sizeof(value));
  EXPECT_EQ(value, 2.0f);
  EXPECT_EQ(file.find("a \xc3\xa9")->format, FormatId::kBF16);
  EXPECT_EQ(file.find("scalar")->data.size(), 2u);
  EXPECT_EQ(file.find("none")->data.size(), 0u);
  EXPECT_EQ(file.find("mask")->format, std::nullopt);
  EXPECT_EQ(file.find("mask")->type_name, "BOOL");
  EXPECT_EQ(file.find("x"), nullptr);
}

TEST(SafetensorsTest, TwoTensorsOfOneNameAreRefused) {
  const std::string one = R"("a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]})";
  EXPECT_HAS(error_of_header("{" + one + "," + one + "}", 2), "two tensors of one name");
  EXPECT_HAS(error_of_header(R"({"\u0061":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},)" + one + "}", 2),
             "two tensors of one name");
  Bytes bytes = make_safetensors({}, R"({"a:\"{:":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})");
  bytes.resize(bytes.size() + 2);
  EXPECT_TRUE(SafetensorsFiles::parse("test", bytes, nullptr).is_ok());
}

TEST(SafetensorsTest, MetadataAndTrailingSpacesAreFine) {
  Bytes bytes = make_safetensors(
      {}, R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}   )");
  bytes.resize(bytes.size() + 2);
  const auto file = SafetensorsFiles::parse("test", bytes, nullptr);
  ASSERT_TRUE(file.is_ok()) << file.status().message();
  EXPECT_EQ(file.value()->tensors().size(), 1u);
}

TEST(SafetensorsTest, WrongTensorsAreNamed) {
  const auto with = [](const char* fields, size_t data_bytes) {
    const std::string message = error_of_header("{\"bad\":" + std::string(fields) + "}", data_bytes);
    EXPECT_HAS(message, "'bad'");
    return message;
  };
  EXPECT_HAS(with(R"({"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]})", 4),
             "F32[1000, 1000] should have 4000000 bytes, but its data_offsets give it 4");
  EXPECT_HAS(with(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", 4), "ends before it begins");
  EXPECT_HAS(with(R"({"dtype":"F32","shape":[1],"data_offsets":[4]})", 4), "no data_offsets of two counts");
  EXPECT_HAS(with(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,8]})", 4), "no data_offsets");
  EXPECT_HAS(with(R"({"dtype":"F32","shape":[1],"data_offsets":[-4,0]})", 4), "no data_offsets");
  EXPECT_HAS(with(R"({"dtype":"F32","shape":[1],"data_offsets":["0","4"]})", 4), "no data_offsets");
  EXPECT_HAS(with(R"({"dtype":"F32","shape":[1],"data_offsets":[0.0,4.0]})", 4), "no data_offsets");
  EXPECT_HAS(with(R"({"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]})", 4), "no data_offsets");
  EXPECT_HAS(with(R"({"dtype":"F32","shape":[1]})", 4), "no data_offsets");
  EXPECT_HAS(with(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", 4), "no shape");
  EXPECT_HAS(with(R"({"dtype":"F32","shape":4,"data_offsets":[0,4]})", 4), "no shape");
  EXPECT_HAS(with(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]})", 4), "no shape");
  EXPECT_HAS(with(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]})", 4), "absurd sizes");
  EXPECT_HAS(with(R"({"dtype":"F99","shape":[1],"data_offsets":[0,4]})", 4), "unknown dtype 'F99'");
  EXPECT_HAS(with(R"({"shape":[1],"data_offsets":[0,4]})", 4), "no dtype");
  EXPECT_HAS(with(R"({"dtype":"F4","shape":[3],"data_offsets":[0,1]})", 1), "should have");
  EXPECT_HAS(with("[1]", 4), "not described by a JSON object");
  EXPECT_HAS(with(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 4), "the download is incomplete");
  EXPECT_HAS(with(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", 8), "hole");
}

TEST(SafetensorsTest, TensorsCoverTheDataExactly) {
  const char* twice = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                          "b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  EXPECT_HAS(error_of_header(twice, 4), "overlap");
  const char* one = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  EXPECT_HAS(error_of_header(one, 5), "1 bytes are left over");
}

TEST(SafetensorsTest, WrongHeadersAreErrors) {
  EXPECT_HAS(error_of_header("[1, 2, 3]", 0), "not a safetensors file");
  EXPECT_HAS(error_of_header("{\"a\": ", 0), "not valid JSON");
  EXPECT_HAS(error_of_header("{} x", 0), "not valid JSON");
  EXPECT_HAS(error_of_header(R"({"__metadata__": 3})", 0), "__metadata__");
  EXPECT_HAS(error_of_header("{\"a\":" + std::string(5000, '[') + std::string(5000, ']') + "}", 0), "not valid JSON");
  EXPECT_HAS(error_of({}), "not a safetensors file");
  EXPECT_HAS(error_of(Bytes(100)), "filled with zeros");
  Bytes huge = make_safetensors({});
  const uint64_t length = ~uint64_t{0};
  std::memcpy(huge.data(), &length, sizeof(length));
  EXPECT_HAS(error_of(huge), "absurdly long");
  const uint64_t long_length = 5000;
  std::memcpy(huge.data(), &long_length, sizeof(long_length));
  EXPECT_HAS(error_of(huge), "incomplete");
}

TEST(SafetensorsTest, EveryTruncationIsAnError) {
  const Bytes bytes = make_safetensors({{"a", "F32", {3}, Bytes(12)}, {"b", "F16", {2, 2}, Bytes(8)}});
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(error_of(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size))).empty());
  }
}

// ---- Folders
// ---------------------------------------------------------------------------------------------------------

TEST(SafetensorsFolderTest, ShardsAreReadThroughTheirIndex) {
  testing::TestFolder folder;
  folder.write("s-1.safetensors", make_safetensors({{"a", "F32", {1}, testing::f32_bytes({1})}}));
  folder.write("s-2.safetensors", make_safetensors({{"b", "F32", {1}, testing::f32_bytes({2})},
                                                    {"a", "F32", {1}, testing::f32_bytes({3})}}));
  folder.write_text("model.safetensors.index.json",
                    R"({"metadata":{}, "weight_map":{"a":"s-1.safetensors", "b":"s-2.safetensors"}})");
  auto files = SafetensorsFiles::open_folder(folder.path());
  ASSERT_TRUE(files.is_ok()) << files.status().message();
  ASSERT_EQ(files.value()->tensors().size(), 2u);  // the index takes one copy of "a"
  const SourceTensor tensor = *files.value()->find("a");
  const std::shared_ptr<const void> owner = files.value()->owner();
  files.value()->done_with(tensor.data);
  files.value().reset();
  float value = 0;
  std::memcpy(&value, tensor.data.data(), sizeof(value));
  EXPECT_EQ(value, 1.0f);
}

TEST(SafetensorsFolderTest, WrongIndexesAreErrors) {
  testing::TestFolder folder;
  const auto error_with = [&](const std::string& index) {
    folder.write_text("model.safetensors.index.json", index);
    const auto files = SafetensorsFiles::open_folder(folder.path());
    EXPECT_FALSE(files.is_ok());
    return files.is_ok() ? "" : files.status().message();
  };
  const auto nothing = SafetensorsFiles::open_folder(folder.path());
  ASSERT_FALSE(nothing.is_ok());
  EXPECT_EQ(nothing.status().code(), StatusCode::kNotFound);

  folder.write("s-1.safetensors", make_safetensors({{"a", "F32", {1}, Bytes(4)}}));
  EXPECT_HAS(error_with("{"), "not valid JSON");
  EXPECT_HAS(error_with("{}"), "no weight_map");
  EXPECT_HAS(error_with("[]"), "no weight_map");
  EXPECT_HAS(error_with(R"({"weight_map":{"a":3}})"), "'a'");
  EXPECT_HAS(error_with(R"({"weight_map":{"a":"../s-1.safetensors"}})"), "not the name of a file in the same folder");
  EXPECT_HAS(error_with(R"({"weight_map":{"a":"/etc/passwd"}})"), "not the name of a file");
  EXPECT_HAS(error_with(R"({"weight_map":{"a":"s-1.safetensors", "b":"s-2.safetensors"}})"),
             "'s-2.safetensors', which");
  EXPECT_HAS(error_with(R"({"weight_map":{"a":"s-1.safetensors", "b":"s-1.safetensors"}})"), "'b' of s-1.safetensors");
}

}  // namespace
}  // namespace quire
