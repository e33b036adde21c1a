// The marks are kept as the offsets where trust flips: most strings are uniform and have none. See jinja_text.h.
#include "text/jinja_text.h"

#include <algorithm>

namespace quire::jinja {

size_t Text::first_flip_after(size_t offset) const {
  if (flips_.empty()) return 0;
  return static_cast<size_t>(std::upper_bound(flips_.begin(), flips_.end(), offset) - flips_.begin());
}

bool Text::is_trusted_at(size_t offset) const {
  return starts_trusted_ != (first_flip_after(offset) % 2 == 1);
}

void Text::append(std::string_view bytes, bool is_trusted) {
  if (bytes.empty()) return;
  if (bytes_.empty()) {
    starts_trusted_ = is_trusted;
  } else if ((starts_trusted_ != (flips_.size() % 2 == 1)) != is_trusted) {
    flips_.push_back(bytes_.size());
  }
  bytes_.append(bytes);
}

void Text::append(const Text& other, size_t begin, size_t end) {
  other.for_each_run(begin, end, [&](size_t run_begin, size_t run_end, bool is_trusted) {
    append(std::string_view(other.bytes_).substr(run_begin, run_end - run_begin), is_trusted);
  });
}

Text Text::substr(size_t begin, size_t end) const {
  Text result;
  result.append(*this, begin, end);
  return result;
}

void Text::clear() {
  bytes_.clear();
  flips_.clear();
}

CodePoint code_point_at(std::string_view bytes, size_t offset) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[offset + i]); };
  const size_t left = bytes.size() - offset;
  const auto follows = [&](size_t i) { return i < left && (byte(i) & 0xC0) == 0x80; };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead >= 0xC2 && lead < 0xE0 && follows(1)) return {(lead & 0x1F) << 6 | (byte(1) & 0x3Fu), 2};
  if (lead >= 0xE0 && lead < 0xF0 && follows(1) && follows(2)) {
    const uint32_t value = (lead & 0x0F) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu);
    if (value >= 0x800) return {value, 3};
  }
  if (lead >= 0xF0 && lead < 0xF5 && follows(1) && follows(2) && follows(3)) {
    const uint32_t value = (lead & 0x07) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu);
    if (value >= 0x10000 && value <= 0x10FFFF) return {value, 4};
  }
  return {0xFFFD, 1};
}

size_t previous_offset(std::string_view bytes, size_t offset) {
  for (size_t back = 1; back <= 4 && back <= offset; ++back) {
    if ((static_cast<uint8_t>(bytes[offset - back]) & 0xC0) == 0x80) continue;
    if (code_point_at(bytes, offset - back).num_bytes == back) return offset - back;
    break;
  }
  return offset - 1;
}

size_t count_code_points(std::string_view bytes) {
  size_t count = 0;
  for (size_t i = 0; i < bytes.size(); ++count) i += code_point_at(bytes, i).num_bytes;
  return count;
}

void append_utf8(std::string& out, uint32_t code_point) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

bool is_ascii(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

bool is_valid_utf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const CodePoint point = code_point_at(bytes, i);
    if (point.num_bytes == 1 && point.value == 0xFFFD) return false;
    i += point.num_bytes;
  }
  return true;
}

}  // namespace quire::jinja
