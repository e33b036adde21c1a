// Text: UTF-8 bytes that remember which of them the template itself wrote (trusted) and which came from messages, tools
// or variables (data). Every string of the template interpreter is a Text; slicing and joining keep the marks. Plain
// value type, used by the jinja_* files only; the tokenizer sees the marks as the spans of RenderedPrompt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::jinja {

class Text {
 public:
  Text() = default;
  Text(std::string bytes, bool is_trusted) : bytes_(std::move(bytes)), starts_trusted_(is_trusted) {}

  std::string_view bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool is_empty() const { return bytes_.empty(); }
  bool is_trusted_at(size_t offset) const;

  void append(std::string_view bytes, bool is_trusted);
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, size_t begin, size_t end);
  Text substr(size_t begin, size_t end) const;
  std::string take_bytes() && { return std::move(bytes_); }
  void clear();

  // Calls visit(begin, end, is_trusted) for the runs of equal trust inside [begin, end), in order.
  template <typename Visit>
  void for_each_run(size_t begin, size_t end, Visit visit) const {
    if (begin >= end) return;
    size_t flip = first_flip_after(begin);
    bool trusted = starts_trusted_ != (flip % 2 == 1);
    while (begin < end) {
      size_t run_end = flip < flips_.size() && flips_[flip] < end ? flips_[flip] : end;
      visit(begin, run_end, trusted);
      begin = run_end;
      trusted = !trusted;
      ++flip;
    }
  }

 private:
  size_t first_flip_after(size_t offset) const;  // index of the first flip at a position > offset

  std::string bytes_;
  bool starts_trusted_ = false;
  std::vector<size_t> flips_;  // offsets, ascending, inside (0, size), at which trust changes
};

// UTF-8. Bytes that are no part of a valid sequence count as one character each, so that any input can be walked.
// Surrogates (a JSON string may hold lone ones) are accepted as three bytes.
struct CodePoint {
  uint32_t value;
  uint32_t num_bytes;
};
CodePoint code_point_at(std::string_view bytes, size_t offset);  // offset < size
size_t previous_offset(std::string_view bytes, size_t offset);   // start of the character that ends at offset > 0
size_t count_code_points(std::string_view bytes);
void append_utf8(std::string& out, uint32_t code_point);
bool is_ascii(std::string_view bytes);
bool is_valid_utf8(std::string_view bytes);

}  // namespace quire::jinja
