// Text under way to the tokenizer, with a mark per byte that says whether it may become part of a special token. Bytes
// of a chat template may, bytes of messages and tools may not. Where every byte may, no marks are kept at all.
#pragma once

#include <string>
#include <string_view>

namespace quire {

struct MarkedText {
  static constexpr char kOpen = 1;    // may become part of a special token
  static constexpr char kClosed = 0;  // is plain text, whatever it spells

  std::string text;
  std::string marks;  // as long as text, or empty: all open

  bool has_marks() const { return !marks.empty(); }

  void append(std::string_view bytes, char mark, bool keeps_marks) {
    text.append(bytes);
    if (keeps_marks) marks.append(bytes.size(), mark);
  }

  // Open only if all bytes of [begin, end) are.
  char mark_of(size_t begin, size_t end) const {
    if (!has_marks()) return kOpen;
    return std::string_view(marks).substr(begin, end - begin).find(kClosed) == std::string_view::npos ? kOpen : kClosed;
  }
};

}  // namespace quire
