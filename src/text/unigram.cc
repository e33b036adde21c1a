// The forward pass keeps the best way to reach each character's end; the backward pass reads it off.
#include "text/unigram.h"

#include <algorithm>
#include <limits>

#include "text/utf8.h"

namespace quire {
namespace {
constexpr double kUnknownPenalty = 10.0;  // SentencePiece's: below the rarest token
// The search costs up to the longest token at each character; real vocabularies stay under 100 bytes.
constexpr size_t kMaxTokenBytes = 1024;
}  // namespace

UnigramModel::UnigramModel(const TokenTable& vocabulary, std::vector<double> scores,
                           const std::array<int32_t, 256>& byte_ids, UnigramOptions options)
    : scores_(std::move(scores)), byte_ids_(byte_ids), options_(options) {
  double lowest = std::numeric_limits<double>::infinity();
  for (size_t id = 0; id < vocabulary.num_ids() && id < scores_.size(); ++id) {
    const std::string& text = vocabulary.text(static_cast<int32_t>(id));
    if (text.empty() || text.size() > kMaxTokenBytes || vocabulary.find(text) != static_cast<int32_t>(id)) continue;
    trie_.insert(text, static_cast<int32_t>(id));
    lowest = std::min(lowest, scores_[id]);
  }
  unknown_score_ = (lowest == std::numeric_limits<double>::infinity() ? 0 : lowest) - kUnknownPenalty;
}

void UnigramModel::encode(std::string_view piece, SubwordScratch& scratch, std::vector<int32_t>& ids) const {
  if (piece.empty()) return;
  const bool is_cacheable = scratch.use_cache && piece.size() <= WordCache::kMaxWordBytes;
  const uint64_t hash = is_cacheable ? hash_bytes(piece) : 0;
  if (is_cacheable && scratch.cache.lookup(piece, hash, ids)) return;
  const size_t num_before = ids.size();
  encode_chunk(piece, scratch, ids);
  if (is_cacheable) scratch.cache.store(piece, hash, ids.data() + num_before, ids.size() - num_before);
}

void UnigramModel::encode_chunk(std::string_view piece, SubwordScratch& scratch, std::vector<int32_t>& ids) const {
  constexpr int32_t kUnreached = -2;
  constexpr int32_t kUnknown = -1;
  std::vector<SubwordScratch::PathNode>& path = scratch.path;
  path.assign(piece.size() + 1, {0.0, 0, kUnreached});
  const auto offer = [&](size_t begin, size_t end, double score, int32_t id) {
    SubwordScratch::PathNode& node = path[end];
    if (node.id != kUnreached && !(score > node.score)) return;
    node = {score, static_cast<uint32_t>(begin), id};
  };
  for (size_t begin = 0; begin < piece.size();) {
    const double score_here = path[begin].score;
    const size_t num_bytes = std::min(utf8_sequence_length(piece[begin]), piece.size() - begin);
    bool has_single = false;
    uint32_t node = ByteTrie::kRoot;
    for (size_t i = begin; i < piece.size(); ++i) {
      node = trie_.step(node, piece[i]);
      if (node == ByteTrie::kNoNode) break;
      const int32_t id = trie_.value(node);
      if (id == ByteTrie::kNoValue) continue;
      offer(begin, i + 1, score_here + scores_[static_cast<size_t>(id)], id);
      has_single = has_single || i + 1 == begin + num_bytes;
    }
    if (!has_single) offer(begin, begin + num_bytes, score_here + unknown_score_, kUnknown);
    begin += num_bytes;
  }
  // Backwards; neighbouring unknown characters are one unknown stretch.
  std::vector<int32_t>& reversed = scratch.reversed_ids;
  reversed.clear();
  size_t end = piece.size();
  while (end > 0) {
    size_t begin = path[end].begin;
    const int32_t id = path[end].id;
    if (id >= 0) {
      reversed.push_back(id);
      end = begin;
      continue;
    }
    while (begin > 0 && path[begin].id == kUnknown) begin = path[begin].begin;
    const bool has_bytes =
        options_.has_byte_fallback &&
        std::all_of(piece.begin() + static_cast<ptrdiff_t>(begin), piece.begin() + static_cast<ptrdiff_t>(end),
                    [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; });
    if (has_bytes) {
      for (size_t i = end; i > begin; --i) reversed.push_back(byte_ids_[static_cast<unsigned char>(piece[i - 1])]);
    } else if (options_.unknown_id >= 0) {
      reversed.push_back(options_.unknown_id);
    }
    end = begin;
  }
  ids.insert(ids.end(), reversed.rbegin(), reversed.rend());
}

}  // namespace quire
