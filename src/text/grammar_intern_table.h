// Lists of small integers, each stored once and known by a number. What makes equal stacks and equal configurations of
// a grammar's walk the same number. Internal to the grammar files; one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace quire::grammar_internal {

template <typename Entry>
class InternTable {
 public:
  InternTable() : slots_(64, 0) {}

  struct Interned {
    int32_t id;
    bool is_new;
  };

  // `tag` is part of the identity.
  Interned intern(std::span<const Entry> entries, bool tag) {
    if ((lists_.size() + 1) * 2 > slots_.size()) grow();
    const uint64_t hash = hash_of(entries, tag);
    const size_t mask = slots_.size() - 1;
    for (size_t slot = hash & mask;; slot = (slot + 1) & mask) {
      const int32_t occupant = slots_[slot];
      if (occupant == 0) {
        const auto id = static_cast<int32_t>(lists_.size());
        lists_.push_back({hash, static_cast<uint32_t>(entries_.size()), static_cast<uint32_t>(entries.size()), tag});
        entries_.insert(entries_.end(), entries.begin(), entries.end());
        slots_[slot] = id + 1;
        return {id, true};
      }
      const List& list = lists_[static_cast<size_t>(occupant - 1)];
      if (list.hash == hash && list.tag == tag && std::ranges::equal(get(occupant - 1), entries)) {
        return {occupant - 1, false};
      }
    }
  }

  // Valid until the next intern.
  std::span<const Entry> get(int32_t id) const {
    const List& list = lists_[static_cast<size_t>(id)];
    return {entries_.data() + list.begin, list.size};
  }
  bool tag(int32_t id) const { return lists_[static_cast<size_t>(id)].tag; }
  size_t size() const { return lists_.size(); }
  size_t num_bytes() const {
    return lists_.capacity() * sizeof(List) + entries_.capacity() * sizeof(Entry) + slots_.capacity() * sizeof(int32_t);
  }

 private:
  struct List {
    uint64_t hash;
    uint32_t begin;
    uint32_t size;
    bool tag;
  };

  static uint64_t hash_of(std::span<const Entry> entries, bool tag) {
    uint64_t hash = tag ? 0x9E3779B97F4A7C15u : 0xC2B2AE3D27D4EB4Fu;
    for (const Entry& entry : entries) {
      hash ^= (static_cast<uint64_t>(static_cast<uint32_t>(entry.state)) << 32) | static_cast<uint32_t>(entry.stack);
      hash *= 0xFF51AFD7ED558CCDu;
      hash ^= hash >> 32;
    }
    return hash;
  }

  void grow() {
    slots_.assign(slots_.size() * 2, 0);
    const size_t mask = slots_.size() - 1;
    for (size_t id = 0; id < lists_.size(); ++id) {
      size_t slot = lists_[id].hash & mask;
      while (slots_[slot] != 0) slot = (slot + 1) & mask;
      slots_[slot] = static_cast<int32_t>(id) + 1;
    }
  }

  std::vector<int32_t> slots_;  // id + 1; 0: free
  std::vector<List> lists_;
  std::vector<Entry> entries_;
};

}  // namespace quire::grammar_internal
