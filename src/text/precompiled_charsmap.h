// SentencePiece's compiled character map: a double-array trie from byte strings to their replacements, as GGUF files
// (precompiled_charsmap) and tokenizer.json ("Precompiled", in base64) carry it. Every read is inside bounds whatever
// the bytes say. Called by the normalizer; immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

class PrecompiledCharsmap {
 public:
  static Result<std::shared_ptr<const PrecompiledCharsmap>> create(std::string_view bytes);

  // The replacement of the shortest entry that the text begins with.
  std::optional<std::string_view> find_prefix(std::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;  // NUL-terminated strings
};

// Standard base64; nothing where the text is not that.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace quire
