// Searches in sorted ranges, behind a bit per 256 code points that is almost always clear.
#include "text/unicode_updates.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "text/utf8.h"

namespace quire {
namespace {

struct CodePointRange {
  char32_t first;
  char32_t last;
};
struct StandIn {
  char32_t first;
  char32_t last;
  char32_t stand_in;
};

#include "text/unicode_updates.inc"

using BlockBits = std::array<bool, 0x1100>;

template <typename Row, size_t kCount>
constexpr BlockBits blocks_of(const Row (&rows)[kCount]) {
  BlockBits bits{};
  for (const Row& row : rows) {
    for (char32_t block = row.first >> 8; block <= row.last >> 8; ++block) bits[block] = true;
  }
  return bits;
}

constexpr BlockBits kNewerBlocks = blocks_of(kNewerCharacters);
constexpr BlockBits kNotNormalizedBlocks = blocks_of(kNotNormalized);

template <typename Row, size_t kCount>
const Row* find_range(const Row (&rows)[kCount], char32_t c) {
  const Row* row = std::upper_bound(std::begin(rows), std::end(rows), c,
                                    [](char32_t value, const Row& candidate) { return value < candidate.first; });
  if (row == std::begin(rows)) return nullptr;
  --row;
  return c <= row->last ? row : nullptr;
}

}  // namespace

std::string replace_newer_characters(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (i + 8 <= text.size()) {
      uint64_t word;
      std::memcpy(&word, text.data() + i, 8);
      if ((word & 0x8080808080808080ULL) == 0) {
        i += 8;
        continue;
      }
    }
    const size_t num_bytes = utf8_sequence_length(text[i]);
    if (num_bytes >= 3) {
      const char32_t c = decode_code_point(text, i).value;
      if (kNewerBlocks[c >> 8]) {
        if (const StandIn* row = find_range(kNewerCharacters, c)) {
          if (out.empty()) out = text;
          std::string encoded;
          append_utf8(row->stand_in, encoded);
          out.replace(i, num_bytes, encoded);
        }
      }
    }
    i += num_bytes;
  }
  return out;
}

bool stays_unnormalized(char32_t c) {
  return kNotNormalizedBlocks[c >> 8] && find_range(kNotNormalized, c) != nullptr;
}
bool is_newer_number(char32_t c) {
  return find_range(kMoreNumbers, c) != nullptr;
}
bool is_newer_punctuation(char32_t c) {
  return find_range(kMorePunctuation, c) != nullptr;
}
bool is_unknown_punctuation(char32_t c) {
  return find_range(kUnknownPunctuation, c) != nullptr;
}

}  // namespace quire
