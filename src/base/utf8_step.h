// UTF-8 a character at a time, by the table of well-formed sequences (Unicode 15, table 3-7). Allocates nothing: a
// signal's handler may call it. What can be done with whole texts is in text/utf8.h.
#pragma once

#include <cstddef>
#include <string_view>

namespace quire {

// What the bytes at `offset` of arbitrary data are. An ill-formed sequence is cut after its longest prefix that could
// have begun a character (Unicode's "maximal subpart"), which is what Python and browsers replace by one U+FFFD.
struct Utf8Step {
  enum class Kind { kValid, kInvalid, kIncomplete } kind;  // kIncomplete: the data ends inside a character
  size_t num_bytes;
};
Utf8Step step_utf8(std::string_view bytes, size_t offset);

}  // namespace quire
