#include "base/content_hash.h"

#include <cstdio>
#include <cstring>

namespace quire {

namespace {

constexpr uint64_t kFirst = 0x9e3779b97f4a7c15u;
constexpr uint64_t kSecond = 0xd1b54a32d192ed03u;

// Both halves of the product of all bits with all bits.
uint64_t fold(uint64_t x, uint64_t y) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(x) * y;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

void ContentHash::add(std::span<const std::byte> bytes) {
  const std::byte* data = bytes.data();
  size_t left = bytes.size();
  uint64_t a = a_;
  uint64_t b = b_;
  const auto mix = [&](uint64_t x, uint64_t y) {
    a = fold(a ^ x, y ^ kFirst) + y;
    b = fold(b ^ y, x ^ kSecond) + x;
  };
  for (; left >= 16; left -= 16, data += 16) {
    uint64_t words[2];
    std::memcpy(words, data, 16);
    mix(words[0], words[1]);
  }
  uint64_t words[2] = {0, 0};
  if (left > 0) std::memcpy(words, data, left);
  mix(words[0], words[1]);
  mix(bytes.size(), ~uint64_t{bytes.size()});
  a_ = a;
  b_ = b;
}

std::array<uint64_t, 2> ContentHash::value() const {
  return {fold(a_ ^ kSecond, b_ ^ kFirst) ^ a_, fold(b_ ^ kSecond, a_ + kFirst) ^ b_};
}

std::string ContentHash::hex() const {
  const auto [first, second] = value();
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(first),
                static_cast<unsigned long long>(second));
  return text;
}

}  // namespace quire
