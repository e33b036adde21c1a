// The merge loops. Short pieces scan for the best pair (they fit the first-level cache); long ones keep a heap of
// candidates over a linked list of symbols.
#include "text/bpe.h"

#include <algorithm>

#include "text/utf8.h"

namespace quire {
namespace {

constexpr size_t kMaxShortSymbols = 48;
constexpr uint32_t kNoPosition = ~uint32_t{0};
constexpr uint64_t kNoMerge = ~uint64_t{0};

char32_t last_code_point(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return decode_code_point(text, begin).value;
}

uint64_t merge_key(int32_t left, int32_t right) {
  return PairTable::key_of(static_cast<uint32_t>(left), static_cast<uint32_t>(right));
}

}  // namespace

BpeModel::BpeModel(const TokenTable& vocabulary, const std::vector<BpeMerge>& merges,
                   const std::array<int32_t, 256>& byte_ids, BpeOptions options)
    : vocabulary_(vocabulary), options_(options), byte_ids_(byte_ids) {
  if (options_.is_byte_level) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      byte_ids_[byte] = vocabulary.find({&c, 1});
    }
  }
  has_all_bytes_ = std::all_of(byte_ids_.begin(), byte_ids_.end(), [](int32_t id) { return id >= 0; });
  merges_.reserve(merges.size());
  splits_at_seams_ = !options_.is_byte_level;
  for (const BpeMerge& merge : merges) {
    if (!merges_.insert(merge_key(merge.left_id, merge.right_id), merge.rank, static_cast<uint32_t>(merge.merged_id)))
      continue;
    if (options_.is_byte_level) continue;
    const std::string& left = vocabulary.text(merge.left_id);
    const std::string& right = vocabulary.text(merge.right_id);
    const auto is_fallback = [&](int32_t id) {
      return std::find(byte_ids.begin(), byte_ids.end(), id) != byte_ids.end();
    };
    // A <0xNN> token stands for a byte that its text does not show.
    if (left.empty() || right.empty() || !is_valid_utf8(left) || !is_valid_utf8(right) ||
        (left.size() == 6 && is_fallback(merge.left_id)) || (right.size() == 6 && is_fallback(merge.right_id))) {
      splits_at_seams_ = false;
      continue;
    }
    const char32_t a = last_code_point(left);
    const char32_t b = decode_code_point(right, 0).value;
    if (a < 128 && b < 128) {
      ascii_seams_[a * 128 + b] = true;
    } else {
      seams_.insert(PairTable::key_of(a, b), 0, 0);
    }
  }
}

bool BpeModel::can_join(char32_t left, char32_t right) const {
  if (left < 128 && right < 128) return ascii_seams_[left * 128 + right];
  return seams_.find(PairTable::key_of(left, right)) != nullptr;
}

void BpeModel::encode(std::string_view piece, SubwordScratch& scratch, std::vector<int32_t>& ids) const {
  if (piece.empty()) return;
  if (options_.is_byte_level) {
    encode_chunk(piece, scratch, ids);
    return;
  }
  if (options_.ignores_merges) {
    if (const int32_t id = vocabulary_.find(piece); id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  if (!splits_at_seams_) {
    encode_chunk(piece, scratch, ids);
    return;
  }
  const size_t first_id_index = ids.size();
  size_t chunk_begin = 0;
  DecodedCodePoint previous = decode_code_point(piece, 0);
  for (size_t i = previous.num_bytes; i <= piece.size();) {
    DecodedCodePoint current;
    if (i < piece.size()) {
      current = decode_code_point(piece, i);
      if (can_join(previous.value, current.value)) {
        previous = current;
        i += current.num_bytes;
        continue;
      }
    }
    const size_t num_before = ids.size();
    encode_chunk(piece.substr(chunk_begin, i - chunk_begin), scratch, ids);
    if (options_.fuses_unknown && num_before > first_id_index && ids.size() > num_before &&
        ids[num_before - 1] == options_.unknown_id && ids[num_before] == options_.unknown_id) {
      ids.erase(ids.begin() + static_cast<ptrdiff_t>(num_before));
    }
    chunk_begin = i;
    if (i == piece.size()) break;
    previous = current;
    i += current.num_bytes;
  }
}

void BpeModel::encode_chunk(std::string_view chunk, SubwordScratch& scratch, std::vector<int32_t>& ids) const {
  const bool is_cacheable = scratch.use_cache && chunk.size() <= WordCache::kMaxWordBytes;
  const uint64_t hash = is_cacheable ? hash_bytes(chunk) : 0;
  if (is_cacheable && scratch.cache.lookup(chunk, hash, ids)) return;
  const size_t num_before = ids.size();
  int32_t whole_id = -1;
  if (options_.is_byte_level && options_.ignores_merges) whole_id = vocabulary_.find(chunk);
  if (whole_id >= 0) {
    ids.push_back(whole_id);
  } else {
    scratch.symbols.clear();
    make_symbols(chunk, scratch.symbols);
    if (scratch.symbols.size() <= kMaxShortSymbols) {
      merge_short(scratch.symbols);
    } else {
      merge_long(scratch);
    }
    ids.insert(ids.end(), scratch.symbols.begin(), scratch.symbols.end());
  }
  if (is_cacheable) scratch.cache.store(chunk, hash, ids.data() + num_before, ids.size() - num_before);
}

void BpeModel::make_symbols(std::string_view chunk, std::vector<int32_t>& symbols) const {
  bool has_pending_unknown = false;
  if (options_.is_byte_level) {
    for (const char c : chunk) {
      const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
      if (id >= 0) {
        if (has_pending_unknown) symbols.push_back(options_.unknown_id);
        has_pending_unknown = false;
        symbols.push_back(id);
      } else {
        add_fallback({}, has_pending_unknown, symbols);
      }
    }
  } else {
    for (size_t i = 0; i < chunk.size();) {
      const size_t num_bytes = std::min(utf8_sequence_length(chunk[i]), chunk.size() - i);
      const std::string_view character = chunk.substr(i, num_bytes);
      i += num_bytes;
      const int32_t id = vocabulary_.find(character);
      if (id >= 0) {
        if (has_pending_unknown) symbols.push_back(options_.unknown_id);
        has_pending_unknown = false;
        symbols.push_back(id);
      } else {
        add_fallback(character, has_pending_unknown, symbols);
      }
    }
  }
  if (has_pending_unknown) symbols.push_back(options_.unknown_id);
}

// A character without a token: its bytes, else the unknown token (held back to fuse with a following one), else
// nothing.
void BpeModel::add_fallback(std::string_view character, bool& has_pending_unknown,
                            std::vector<int32_t>& symbols) const {
  if (options_.has_byte_fallback && !character.empty()) {
    const bool has_bytes = has_all_bytes_ || std::all_of(character.begin(), character.end(), [&](char c) {
                             return byte_ids_[static_cast<unsigned char>(c)] >= 0;
                           });
    if (has_bytes) {
      if (has_pending_unknown) symbols.push_back(options_.unknown_id);
      has_pending_unknown = false;
      for (const char c : character) symbols.push_back(byte_ids_[static_cast<unsigned char>(c)]);
      return;
    }
  }
  if (options_.unknown_id < 0) return;
  if (has_pending_unknown && !options_.fuses_unknown) symbols.push_back(options_.unknown_id);
  has_pending_unknown = true;
}

void BpeModel::merge_short(std::vector<int32_t>& symbols) const {
  size_t num_symbols = symbols.size();
  if (num_symbols < 2) return;
  uint64_t merges[kMaxShortSymbols];  // of the pair that begins here: rank in the high half, merged id in the low
  const auto look_up = [&](size_t i) {
    const PairTable::Entry* entry = merges_.find(merge_key(symbols[i], symbols[i + 1]));
    return entry == nullptr ? kNoMerge : (uint64_t{entry->first} << 32) | entry->second;
  };
  for (size_t i = 0; i + 1 < num_symbols; ++i) merges[i] = look_up(i);
  while (num_symbols >= 2) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < num_symbols; ++i) {
      if (merges[i] >> 32 < merges[best] >> 32) best = i;
    }
    if (merges[best] == kNoMerge) break;
    symbols[best] = static_cast<int32_t>(merges[best] & 0xFFFFFFFF);
    for (size_t i = best + 1; i + 1 < num_symbols; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = best + 1; i + 2 < num_symbols; ++i) merges[i] = merges[i + 1];
    --num_symbols;
    if (best > 0) merges[best - 1] = look_up(best - 1);
    if (best + 1 < num_symbols) merges[best] = look_up(best);
  }
  symbols.resize(num_symbols);
}

void BpeModel::merge_long(SubwordScratch& scratch) const {
  std::vector<int32_t>& symbols = scratch.symbols;
  const auto num_symbols = static_cast<uint32_t>(symbols.size());
  auto& previous = scratch.previous;
  auto& next = scratch.next;
  auto& heap = scratch.candidates;
  previous.resize(num_symbols);
  next.resize(num_symbols);
  heap.clear();
  for (uint32_t i = 0; i < num_symbols; ++i) {
    previous[i] = i == 0 ? kNoPosition : i - 1;
    next[i] = i + 1 == num_symbols ? kNoPosition : i + 1;
  }
  using Candidate = SubwordScratch::Candidate;
  const auto is_worse = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  // Appends the merge of the pair at `position`, if there is one.
  const auto propose = [&](uint32_t position) {
    const int32_t left = symbols[position];
    const int32_t right = symbols[next[position]];
    const PairTable::Entry* entry = merges_.find(merge_key(left, right));
    if (entry == nullptr) return false;
    heap.push_back({entry->first, position, left, right, static_cast<int32_t>(entry->second)});
    return true;
  };
  for (uint32_t i = 0; i + 1 < num_symbols; ++i) propose(i);
  std::make_heap(heap.begin(), heap.end(), is_worse);
  constexpr int32_t kGone = -1;
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), is_worse);
    const Candidate best = heap.back();
    heap.pop_back();
    const uint32_t position = best.position;
    // The pair may have changed since: then it has been proposed anew.
    if (symbols[position] != best.left_id || next[position] == kNoPosition || symbols[next[position]] != best.right_id)
      continue;
    const uint32_t absorbed = next[position];
    symbols[position] = best.merged_id;
    symbols[absorbed] = kGone;
    next[position] = next[absorbed];
    if (next[position] != kNoPosition) previous[next[position]] = position;
    if (previous[position] != kNoPosition && propose(previous[position]))
      std::push_heap(heap.begin(), heap.end(), is_worse);
    if (next[position] != kNoPosition && propose(position)) std::push_heap(heap.begin(), heap.end(), is_worse);
  }
  symbols.erase(std::remove(symbols.begin(), symbols.end(), kGone), symbols.end());
}

}  // namespace quire
