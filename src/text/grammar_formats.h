// What the "format" of a JSON schema means for a string, as a pattern for the whole string. Internal to the grammar
// files; pure.
#pragma once

#include <cstdint>

#include <string>
#include <string_view>

namespace quire::grammar_internal {

struct FormatPattern {
  enum class Kind : uint8_t {
    kPattern,
    kAnnotation,  // says how a string is meant, not what it looks like
    kUnknown,
  };
  Kind kind = Kind::kUnknown;
  std::string pattern;
};

FormatPattern pattern_of_format(std::string_view format);

}  // namespace quire::grammar_internal
