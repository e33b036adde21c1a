// libFuzzer: any bytes as text, cut into spans; any bytes as ids. Streaming must equal decoding, and plain text must
// come back.
#include <memory>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"
#include "text/tokenizer_test_data.h"
#include "text/utf8.h"

namespace {

using namespace quire;

std::unique_ptr<Tokenizer> make(const TokenizerData& data) {
  auto result = Tokenizer::create(data);
  CHECK(result.is_ok());
  return std::move(result).value();
}

void check_round_trip(const Tokenizer& tokenizer, std::string_view text, size_t cut) {
  cut = text.empty() ? 0 : cut % text.size();
  const TextSpan spans[] = {{text.substr(0, cut), true}, {text.substr(cut), false}};
  auto ids = tokenizer.encode(spans, {.adds_bos_eos = false});
  CHECK(ids.is_ok());
  auto plain = tokenizer.encode(text, {.adds_bos_eos = false, .recognizes_special = false});
  CHECK(plain.is_ok());
  for (const int32_t id : plain.value()) CHECK(!tokenizer.is_special(id));
  CHECK(tokenizer.decode(plain.value()) == replace_invalid_utf8(text));
}

void check_stream(const Tokenizer& tokenizer, std::string_view bytes) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    ids.push_back(static_cast<unsigned char>(bytes[i]) + 256 * (static_cast<unsigned char>(bytes[i + 1]) % 3));
  }
  Detokenizer detokenizer(tokenizer);
  auto stop = StopStringMatcher::create({"ab\n", "\xE4\xBD\xA0"});
  std::string joined, until_stop;
  for (const int32_t id : ids) {
    const std::string delta = detokenizer.add(id);
    CHECK(is_valid_utf8(delta));
    joined += delta;
    stop.value().add(delta, until_stop);
    CHECK(is_valid_utf8(until_stop));
  }
  joined += detokenizer.finish();
  stop.value().finish(until_stop);
  CHECK(joined == tokenizer.decode(ids));
  CHECK(joined.substr(0, until_stop.size()) == until_stop);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Made once for the whole run of the fuzzer.
  static const auto* byte_level =
      make(test::byte_level_data({{"a", "b"}, {" ", "a"}, {"\xE4", "\xBD"}, {"\xE4\xBD", "\xA0"}},
                                 {{"<|x|>", TokenType::kControl}, {"\n\n", TokenType::kUserDefined}}, "llama-bpe"))
          .release();
  static const auto* metaspace = make(test::sentencepiece_data({{"\xE2\x96\x81", -1},
                                                                {"a", -2},
                                                                {"\xE2\x96\x81"
                                                                 "a",
                                                                 -0.5f}}))
                                     .release();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t cut = size == 0 ? 0 : data[0];
  check_round_trip(*byte_level, text, cut);
  auto ids = metaspace->encode(text);
  CHECK(ids.is_ok());
  (void)metaspace->decode(ids.value());
  check_stream(*byte_level, text);
  check_stream(*metaspace, text);
  return 0;
}
