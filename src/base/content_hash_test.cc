// The hash: every bit, every place and every length counts.
#include "base/content_hash.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <string>

namespace quire {
namespace {

std::string hash_of(std::initializer_list<std::string_view> parts) {
  ContentHash hash;
  for (const std::string_view part : parts) hash.add(part);
  return hash.hex();
}

TEST(ContentHash, EveryBitAndLengthCounts) {
  std::set<std::string> seen;
  int num_cases = 0;
  for (size_t length = 0; length < 70; ++length) {
    std::string text(length, '\0');
    seen.insert(hash_of({text}));
    ++num_cases;
    for (size_t bit = 0; bit < 8 * length; ++bit) {
      text[bit / 8] = static_cast<char>(1 << (bit % 8));
      seen.insert(hash_of({text}));
      ++num_cases;
      text[bit / 8] = '\0';
    }
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(num_cases));
}

TEST(ContentHash, ABitChangesHalfOfTheBits) {
  ContentHash one, other;
  std::string text(100, 'x');
  one.add(text);
  text[50] ^= 1;
  other.add(text);
  const int num_different =
      std::popcount(one.value()[0] ^ other.value()[0]) + std::popcount(one.value()[1] ^ other.value()[1]);
  EXPECT_GT(num_different, 36);
  EXPECT_LT(num_different, 92);
}

TEST(ContentHash, PartsCountAndValuesStay) {
  EXPECT_NE(hash_of({"ab", "c"}), hash_of({"a", "bc"}));
  EXPECT_NE(hash_of({}), hash_of({""}));
  EXPECT_EQ(hash_of({"The value is written to files."}), hash_of({"The value is written to files."}));
  EXPECT_EQ(hash_of({"quire"}), "f8ca2cd66d708da777ff223b5bf8e00f");
}

}  // namespace
}  // namespace quire
