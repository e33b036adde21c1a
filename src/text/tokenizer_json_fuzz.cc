// libFuzzer: any bytes as tokenizer.json. Where one loads, it must encode and decode.
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto tokenizer = quire::Tokenizer::create_from_json(text, "");
  if (!tokenizer.is_ok()) return 0;
  auto ids = tokenizer.value()->encode("Hello  w\xC3\xB6rld 123 \xF0\x9F\xA6\x99<s>\n\n");
  if (ids.is_ok()) (void)tokenizer.value()->decode(ids.value(), {.skips_special = false});
  return 0;
}
