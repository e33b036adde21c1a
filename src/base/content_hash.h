// A 128-bit hash of bytes, to tell whether two files hold the same and whether one is damaged. Fast (a multiplication
// for every eight bytes) and not for secrets: who wants to can make two texts of equal hash. The value is the same on
// all little-endian machines and is written to files: do not change it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace quire {

class ContentHash {
 public:
  // Where one part ends and the next begins counts: {"ab", "c"} and {"a", "bc"} differ.
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }

  std::array<uint64_t, 2> value() const;
  std::string hex() const;  // 32 digits

 private:
  uint64_t a_ = 0x243f6a8885a308d3u;  // of pi
  uint64_t b_ = 0x13198a2e03707344u;
};

}  // namespace quire
