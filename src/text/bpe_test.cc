// Both merge loops against the definition: scan for the lowest rank, leftmost, merge, repeat.
#include "text/bpe.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

struct Fixture {
  TokenTable vocabulary;
  std::vector<BpeMerge> merges;
};

// Tokens over two letters up to four long, every merge in a random order, some with equal ranks.
Fixture make_fixture(uint64_t seed, bool has_equal_ranks) {
  std::vector<std::string> texts = {"a", "b"};
  for (size_t i = 0; i < 14; ++i) texts.push_back(texts[i] + "a"), texts.push_back(texts[i] + "b");
  Fixture out{TokenTable(texts), {}};
  for (size_t id = 0; id < texts.size(); ++id) out.vocabulary.make_findable(static_cast<int32_t>(id));
  for (size_t id = 2; id < texts.size(); ++id) {
    for (size_t cut = 1; cut < texts[id].size(); ++cut) {
      const int32_t left = out.vocabulary.find(texts[id].substr(0, cut));
      const int32_t right = out.vocabulary.find(texts[id].substr(cut));
      seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
      const auto rank = static_cast<uint32_t>(has_equal_ranks ? (seed >> 33) % 6 : seed >> 33);
      if ((seed >> 40) % 3 != 0) out.merges.push_back({left, right, static_cast<int32_t>(id), rank});
    }
  }
  return out;
}

std::vector<int32_t> merge_by_definition(const Fixture& fixture, std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(c == 'a' ? 0 : 1);
  while (true) {
    const BpeMerge* best = nullptr;
    size_t best_index = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (const BpeMerge& merge : fixture.merges) {
        if (merge.left_id != ids[i] || merge.right_id != ids[i + 1]) continue;
        if (best == nullptr || merge.rank < best->rank) {
          best = &merge;
          best_index = i;
        }
      }
    }
    if (best == nullptr) return ids;
    ids[best_index] = best->merged_id;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best_index) + 1);
  }
}

TEST(Bpe, MergesAsDefined) {
  std::array<int32_t, 256> no_bytes;
  no_bytes.fill(-1);
  uint64_t state = 7;
  for (uint64_t round = 0; round < 300; ++round) {
    const Fixture fixture = make_fixture(round, round % 2 == 0);
    for (const bool is_byte_level : {false, true}) {
      const BpeModel model(fixture.vocabulary, fixture.merges, no_bytes, {.is_byte_level = is_byte_level});
      SubwordScratch scratch;
      for (const size_t length : {0, 1, 2, 5, 22, 23, 48, 49, 120}) {
        std::string text;
        for (size_t i = 0; i < length; ++i) {
          state = state * 6364136223846793005ULL + 1442695040888963407ULL;
          text.push_back((state >> 40) % 2 == 0 ? 'a' : 'b');
        }
        std::vector<int32_t> ids;
        model.encode(text, scratch, ids);
        EXPECT_EQ(ids, merge_by_definition(fixture, text)) << text;
        ids.clear();
        model.encode(text, scratch, ids);  // from the cache
        EXPECT_EQ(ids, merge_by_definition(fixture, text)) << text;
      }
    }
  }
}

TEST(Bpe, UnknownCharacters) {
  TokenTable vocabulary({"<unk>", "a"});
  vocabulary.make_findable(1);
  std::array<int32_t, 256> no_bytes;
  no_bytes.fill(-1);
  SubwordScratch scratch;
  const auto encode = [&](BpeOptions options, std::string_view text) {
    const BpeModel model(vocabulary, {}, no_bytes, options);
    std::vector<int32_t> ids;
    SubwordScratch fresh;
    model.encode(text, fresh, ids);
    return ids;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(encode({.unknown_id = 0}, "axya"), (Ids{1, 0, 0, 1}));
  EXPECT_EQ(encode({.fuses_unknown = true, .unknown_id = 0}, "axyaz"), (Ids{1, 0, 1, 0}));
  EXPECT_EQ(encode({}, "axya"), (Ids{1, 1}));
}

}  // namespace
}  // namespace quire
