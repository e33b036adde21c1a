// Every vocabulary of tests/goldens/tokenizer, against what Hugging Face `tokenizers` gave for it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "text/json_reader.h"
#include "text/tokenizer.h"

namespace quire {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<int32_t> to_ids(const JsonValue& value, std::string_view key) {
  std::vector<int32_t> ids;
  auto list = value.get_array(key, "case");
  EXPECT_TRUE(list.is_ok());
  for (const JsonValue& id : list.value()) ids.push_back(static_cast<int32_t>(id.to_integer("id").value()));
  return ids;
}

TEST(TokenizerGoldens, AllAgree) {
  size_t num_vocabularies = 0;
  const std::filesystem::path folder = std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/goldens/tokenizer";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path().filename().string());
    auto tokenizer = Tokenizer::create_from_json(read_file(entry.path() / "tokenizer.json"), "");
    ASSERT_TRUE(tokenizer.is_ok()) << tokenizer.status().message();
    auto document = JsonDocument::parse(read_file(entry.path() / "cases.json"), "cases.json");
    ASSERT_TRUE(document.is_ok()) << document.status().message();
    auto cases = document.value().root().to_array("cases");
    ASSERT_TRUE(cases.is_ok());
    ASSERT_GT(cases.value().size(), 200u);
    const auto scratch = tokenizer.value()->create_scratch();
    for (const JsonValue& one : cases.value()) {
      const std::string text = one.get_string("text", "case").value();
      SCOPED_TRACE(text);
      const std::vector<int32_t> ids = to_ids(one, "ids");
      auto encoded = tokenizer.value()->encode(text, {.adds_bos_eos = false}, scratch.get());
      ASSERT_TRUE(encoded.is_ok());
      EXPECT_EQ(encoded.value(), ids);
      EXPECT_EQ(tokenizer.value()->encode(text).value(), to_ids(one, "with_special"));
      EXPECT_EQ(tokenizer.value()->decode(ids, {.skips_special = false}), one.get_string("decoded", "case").value());
    }
    ++num_vocabularies;
  }
  EXPECT_GE(num_vocabularies, 9u);
}

TEST(TokenizerJson, PartsThatAreNotKnownAreNamed) {
  const auto message_for = [](const std::string& part) {
    auto result = Tokenizer::create_from_json(
        R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]})" + part + "}", "");
    return result.is_ok() ? std::string("loaded") : result.status().message();
  };
  EXPECT_EQ(message_for(""), "loaded");
  EXPECT_NE(message_for(R"(,"normalizer":{"type":"Shiny"})").find("Shiny"), std::string::npos);
  EXPECT_NE(message_for(R"(,"pre_tokenizer":{"type":"UnicodeScripts"})").find("UnicodeScripts"), std::string::npos);
  EXPECT_NE(message_for(R"(,"decoder":{"type":"CTC"})").find("CTC"), std::string::npos);
  EXPECT_NE(message_for(R"(,"post_processor":{"type":"Other"})").find("Other"), std::string::npos);
  EXPECT_NE(message_for(R"(,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a"}})").find("(a"), std::string::npos);
  EXPECT_NE(message_for(R"(,"added_tokens":[{"id":99999999,"content":"<x>"}])").find("99999999"), std::string::npos);
  EXPECT_NE(message_for(R"(,"normalizer":7)").find("normalizer"), std::string::npos);
}

TEST(TokenizerJson, DamagedFilesAreErrors) {
  const std::string whole =
      read_file(std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/goldens/tokenizer/unigram/tokenizer.json");
  for (size_t length = 0; length < whole.size(); length += 97) {
    EXPECT_FALSE(Tokenizer::create_from_json(whole.substr(0, length), "").is_ok()) << length;
  }
  EXPECT_FALSE(Tokenizer::create_from_json(std::string(100000, '['), "").is_ok());
  EXPECT_FALSE(Tokenizer::create_from_json("[]", "").is_ok());
  EXPECT_FALSE(Tokenizer::create_from_json("null", "").is_ok());
}

TEST(TokenizerJson, ConfigNamesTheSpecialTokens) {
  const std::string json =
      R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]},
          "added_tokens":[{"id":3,"content":"<s>","special":true},{"id":4,"content":"<|im_end|>","special":true}]})";
  auto tokenizer = Tokenizer::create_from_json(
      json,
      R"({"bos_token":{"content":"<s>"},"eos_token":"<|im_end|>","add_bos_token":true,"tokenizer_class":"LlamaTokenizer"})");
  ASSERT_TRUE(tokenizer.is_ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer.value()->bos_id(), 3);
  EXPECT_EQ(tokenizer.value()->eos_id(), 4);
  EXPECT_EQ(tokenizer.value()->encode("ab").value(), (std::vector<int32_t>{3, 2}));
  EXPECT_EQ(tokenizer.value()->end_of_turn_ids(), (std::vector<int32_t>{4}));
}

}  // namespace
}  // namespace quire
