// What a Tokenizer promises to its callers: markers cannot be forged, one BOS, linear time, every byte comes back.
#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <functional>
#include <thread>

#include "text/detokenizer.h"
#include "text/tokenizer_test_data.h"

namespace quire {
namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> make(const TokenizerData& data) {
  auto result = Tokenizer::create(data);
  EXPECT_TRUE(result.is_ok()) << (result.is_ok() ? "" : result.status().message());
  return result.is_ok() ? std::move(result).value() : nullptr;
}

Ids encode(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
  auto ids = tokenizer.encode(text, options);
  EXPECT_TRUE(ids.is_ok());
  return ids.is_ok() ? ids.value() : Ids{};
}

Ids encode(const Tokenizer& tokenizer, const std::vector<TextSpan>& spans, EncodeOptions options = {}) {
  auto ids = tokenizer.encode(spans, options);
  EXPECT_TRUE(ids.is_ok());
  return ids.is_ok() ? ids.value() : Ids{};
}

// 256: "ab", 257: "abc", 258: <bos>, 259: <|im_end|>, 260: </think> (plain), 261: "\n\n" (plain)
TokenizerData chat_data() {
  TokenizerData data = test::byte_level_data({{"a", "b"}, {"ab", "c"}}, {{"<bos>", TokenType::kControl},
                                                                         {"<|im_end|>", TokenType::kControl},
                                                                         {"</think>", TokenType::kUserDefined},
                                                                         {"\n\n", TokenType::kUserDefined}});
  data.bos_id = 258;
  data.eos_id = 259;
  data.add_bos = true;
  return data;
}

TEST(Tokenizer, MarkersInUserTextAreText) {
  const auto tokenizer = make(chat_data());
  const EncodeOptions options{.adds_bos_eos = false};
  EXPECT_EQ(encode(*tokenizer, {{"abc<|im_end|>", true}}, options), (Ids{257, 259}));
  const Ids forged = encode(*tokenizer, {{"abc<|im_end|>", false}}, options);
  EXPECT_EQ(forged, (Ids{257, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>'}));
  // A plain token in the shape of a marker is a marker too; a run of line ends is not.
  EXPECT_EQ(encode(*tokenizer, {{"</think>", true}}, options), (Ids{260}));
  EXPECT_EQ(encode(*tokenizer, {{"</think>", false}}, options), (Ids{'<', '/', 't', 'h', 'i', 'n', 'k', '>'}));
  EXPECT_EQ(encode(*tokenizer, {{"a\n\n", false}}, options), (Ids{'a', 261}));
  EXPECT_EQ(encode(*tokenizer, "</think>", {.adds_bos_eos = false, .recognizes_special = false}),
            (Ids{'<', '/', 't', 'h', 'i', 'n', 'k', '>'}));
}

TEST(Tokenizer, MarkersMayNotTouchUserBytes) {
  const auto tokenizer = make(chat_data());
  const EncodeOptions options{.adds_bos_eos = false};
  const Ids plain{'<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>'};
  EXPECT_EQ(encode(*tokenizer, {{"<|im_", true}, {"end|>", false}}, options), plain);
  EXPECT_EQ(encode(*tokenizer, {{"<", false}, {"|im_end|>", true}}, options), plain);
  EXPECT_EQ(encode(*tokenizer, {{"<|im_e", true}, {"n", false}, {"d|>", true}}, options), plain);
  // Two template spans side by side are one text.
  EXPECT_EQ(encode(*tokenizer, {{"<|im_", true}, {"end|>", true}}, options), (Ids{259}));
}

TEST(Tokenizer, WordsRunAcrossSpans) {
  const auto tokenizer = make(chat_data());
  EXPECT_EQ(encode(*tokenizer, {{"a", true}, {"b", false}, {"c<|im_end|>", true}}, {.adds_bos_eos = false}),
            (Ids{257, 259}));
}

TEST(Tokenizer, ChatPromptsHaveOneBos) {
  const auto tokenizer = make(chat_data());
  const EncodeOptions chat{.keeps_single_bos = true};
  EXPECT_EQ(encode(*tokenizer, {{"<bos>ab", true}}, chat), (Ids{258, 256}));
  EXPECT_EQ(encode(*tokenizer, {{"ab", true}}, chat), (Ids{258, 256}));
  EXPECT_EQ(encode(*tokenizer, {{"<bos>ab", false}}, chat).front(), 258);
  EXPECT_GT(encode(*tokenizer, {{"<bos>ab", false}}, chat).size(), 3u);
  EXPECT_EQ(encode(*tokenizer, "<bos>ab"), (Ids{258, 258, 256}));
  TokenizerData without = chat_data();
  without.add_bos = false;
  const auto quiet = make(without);
  EXPECT_EQ(encode(*quiet, {{"<bos><bos>ab", true}}, chat), (Ids{258, 258, 256}));
}

TEST(Tokenizer, NulIsData) {
  const auto tokenizer = make(chat_data());
  EXPECT_EQ(encode(*tokenizer, std::string_view("a\0b", 3), {.adds_bos_eos = false}), (Ids{'a', 0, 'b'}));
  EXPECT_EQ(tokenizer->decode(Ids{'a', 0, 'b'}), std::string("a\0b", 3));
}

TEST(Tokenizer, IllFormedTextBecomesReplacementCharacters) {
  const auto tokenizer = make(chat_data());
  const EncodeOptions options{.adds_bos_eos = false};
  EXPECT_EQ(encode(*tokenizer,
                   "a\xFF"
                   "b",
                   options),
            encode(*tokenizer,
                   "a\xEF\xBF\xBD"
                   "b",
                   options));
  // A character that lies across a border of spans stays whole.
  EXPECT_EQ(encode(*tokenizer, {{"\xE4\xBD", true}, {"\xA0", false}}, options),
            encode(*tokenizer, "\xE4\xBD\xA0", options));
}

TEST(Tokenizer, IdsOutsideTheVocabularyAreEmpty) {
  const auto tokenizer = make(chat_data());
  EXPECT_EQ(tokenizer->piece(-1), "");
  EXPECT_EQ(tokenizer->piece(262), "");
  EXPECT_EQ(tokenizer->decode(Ids{-5, 256, 1 << 30}), "ab");
  EXPECT_FALSE(tokenizer->is_special(262));
  EXPECT_EQ(tokenizer->find_token("<|im_end|>"), 259);
  EXPECT_EQ(tokenizer->find_token("abc"), 257);
  EXPECT_EQ(tokenizer->find_token("nothing"), -1);
  EXPECT_EQ(tokenizer->end_of_turn_ids(), (Ids{259}));
}

TEST(Tokenizer, TheLowestIdOfEqualTextsWins) {
  TokenizerData data = test::byte_level_data({{"a", "b"}}, {});
  data.tokens.push_back(data.tokens[256]);
  data.token_types.push_back(1);
  const auto tokenizer = make(data);
  EXPECT_EQ(encode(*tokenizer, "ab"), (Ids{256}));
  EXPECT_EQ(tokenizer->decode(Ids{257}), "ab");
}

void run_with_stack(size_t num_bytes, std::function<void()> body) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, num_bytes);
  pthread_t thread;
  const auto entry = [](void* argument) -> void* {
    (*static_cast<std::function<void()>*>(argument))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, entry, &body), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST(Tokenizer, LongRunsNeedNoStackAndLittleTime) {
  const auto byte_level =
      make(test::byte_level_data({{"Z", "Z"}, {"ZZ", "ZZ"}, {"\xE4", "\xB8"}, {"\xE4\xB8", "\xAD"}}, {}));
  const auto metaspace =
      make(test::sentencepiece_data({{"Z", -3}, {"\xE2\x96\x81", -4}, {"ZZ", -1}, {"ZZZZ", -2}, {"\xE4\xB8\xAD", -5}}));
  run_with_stack(128 * 1024, [&] {
    EXPECT_EQ(encode(*byte_level, std::string(131072, 'Z')), Ids(32768, 257));
    std::string ideographs;
    for (int i = 0; i < 26000; ++i) ideographs += "\xE4\xB8\xAD";
    EXPECT_EQ(encode(*byte_level, ideographs).size(), 26000u);
    EXPECT_EQ(encode(*metaspace, std::string(131072, 'Z'), {.adds_bos_eos = false}).size(), 32768u + 1);
    EXPECT_EQ(encode(*metaspace, ideographs, {.adds_bos_eos = false}).size(), 26000u + 1);
    EXPECT_EQ(encode(*byte_level, std::string(1 << 20, ' ')).size(), size_t{1} << 20);
    std::string marks;
    for (int i = 0; i < 50000; ++i) marks += i % 2 == 0 ? "\xCC\x81" : "\xCC\xA3";  // classes 230 and 220
    EXPECT_EQ(encode(*byte_level, marks).size(), 100000u);
  });
}

TEST(Tokenizer, SentencePieceFallsBackToBytes) {
  const std::string space = "\xE2\x96\x81";
  TokenizerData data =
      test::sentencepiece_data({{space, -1}, {"a", -2}, {"b", -3}, {space + "a", -0.5f}, {space + "b", -0.7f}});
  data.add_bos = true;
  const auto tokenizer = make(data);
  const int32_t byte0 = 3, first = 259;
  EXPECT_EQ(encode(*tokenizer, "a\n\n\n b"), (Ids{1, first + 3, byte0 + 10, byte0 + 10, byte0 + 10, first + 4}));
  EXPECT_EQ(encode(*tokenizer, "\xF0\x9F\xA6\x99"),
            (Ids{1, first, byte0 + 0xF0, byte0 + 0x9F, byte0 + 0xA6, byte0 + 0x99}));
  EXPECT_EQ(tokenizer->decode(encode(*tokenizer, "a\n\n\n b")), "a\n\n\n b");
  EXPECT_EQ(tokenizer->decode(encode(*tokenizer, "\xF0\x9F\xA6\x99")), "\xF0\x9F\xA6\x99");
  // After a marker a word has its space again.
  EXPECT_EQ(encode(*tokenizer, "</s>a"), (Ids{1, 2, first + 3}));
  // The text "<0x0A>" is no byte token.
  EXPECT_EQ(tokenizer->decode(encode(*tokenizer, "<0x0A>")), "<0x0A>");
}

TEST(Tokenizer, ManyThreadsMayUseOne) {
  const auto tokenizer = make(chat_data());
  const Ids expected = encode(*tokenizer, "abc abc <|im_end|> abab");
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      const auto scratch = tokenizer->create_scratch();
      for (int i = 0; i < 200; ++i) {
        const auto ids = tokenizer->encode("abc abc <|im_end|> abab", {}, scratch.get());
        wrong[t] += !ids.is_ok() || ids.value() != expected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(TokenizerData, SaysWhatIsWrong) {
  const auto expect_error = [](TokenizerData data, std::string_view word) {
    const Status status = validate(data);
    ASSERT_FALSE(status.is_ok()) << word;
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  };
  TokenizerData data = test::sentencepiece_data({{"a", -1}});
  EXPECT_TRUE(validate(data).is_ok());
  TokenizerData broken = data;
  broken.scores.pop_back();
  expect_error(broken, "scores");
  broken = data;
  broken.token_types.push_back(1);
  expect_error(broken, "token_type");
  broken = data;
  broken.bos_id = 260;
  expect_error(broken, "bos_token_id");
  broken = data;
  broken.bos_id = -1;
  broken.add_bos = true;
  expect_error(broken, "add_bos_token");
  broken = data;
  broken.token_types[3] = 9;
  expect_error(broken, "token_type");
  expect_error(TokenizerData{}, "tokenizer.ggml.model");
}

TEST(TokenizerData, UnknownNamesAreNamed) {
  TokenizerData data = test::byte_level_data({{"a", "b"}}, {}, "shiny-new-model");
  auto result = Tokenizer::create(data);
  ASSERT_FALSE(result.is_ok());
  EXPECT_NE(result.status().message().find("shiny-new-model"), std::string::npos);
  data.model = "rwkv";
  result = Tokenizer::create(data);
  ASSERT_FALSE(result.is_ok());
  EXPECT_NE(result.status().message().find("rwkv"), std::string::npos);
}

TEST(Detokenizer, HoldsBackUnfinishedCharacters) {
  const auto tokenizer = make(chat_data());
  const std::string text = "ok \xF0\x9F\xA6\x99\xE4\xB8\x96 \xC3\xA9!";
  std::string joined;
  Detokenizer detokenizer(*tokenizer);
  for (const int32_t id : encode(*tokenizer, text, {.adds_bos_eos = false})) {
    const std::string delta = detokenizer.add(id);
    EXPECT_TRUE(is_valid_utf8(delta));
    EXPECT_EQ(delta.find("\xEF\xBF\xBD"), std::string::npos);
    joined += delta;
  }
  EXPECT_EQ(detokenizer.finish(), "");
  EXPECT_EQ(joined, text);
}

TEST(Detokenizer, StreamEqualsDecode) {
  const auto tokenizer = make(chat_data());
  uint64_t state = 12345;
  for (int round = 0; round < 300; ++round) {
    Ids ids;
    for (int i = 0; i < 40; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      ids.push_back(static_cast<int32_t>((state >> 33) % 264));
    }
    Detokenizer detokenizer(*tokenizer);
    std::string joined;
    for (const int32_t id : ids) joined += detokenizer.add(id);
    joined += detokenizer.finish();
    EXPECT_EQ(joined, tokenizer->decode(ids));
    EXPECT_TRUE(is_valid_utf8(joined));
    // The same as replacing what is ill-formed in the bytes of all pieces.
    std::string bytes;
    for (const int32_t id : ids) {
      if (!tokenizer->is_special(id)) bytes += tokenizer->piece(id);
    }
    EXPECT_EQ(joined, replace_invalid_utf8(bytes));
  }
}

TEST(Detokenizer, SpecialTokensAreSkippedOnRequest) {
  const auto tokenizer = make(chat_data());
  EXPECT_EQ(tokenizer->decode(Ids{258, 256, 259}), "ab");
  EXPECT_EQ(tokenizer->decode(Ids{258, 256, 259}, {.skips_special = false}), "<bos>ab<|im_end|>");
}

TEST(Detokenizer, LeadingSpaceGoesOnlyAtTheStart) {
  const std::string space = "\xE2\x96\x81";
  const auto tokenizer = make(test::sentencepiece_data({{space + "a", -1}}));
  EXPECT_EQ(tokenizer->decode(Ids{259, 259}), "a a");
  EXPECT_EQ(tokenizer->decode(Ids{259, 259}, {.is_at_start = false}), " a a");
}

}  // namespace
}  // namespace quire
