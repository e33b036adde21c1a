// Which full pages hold the KV of which tokens, so that a prompt that begins like an earlier one reuses its pages. An
// entry is a page's worth of tokens that follow a given parent entry; it is found by hash and then compared token by
// token, so a hit is never a guess. The first entry of a chain also compares the adapter and the salt. An entry has one
// page in each KV group; the pool may take a page whose contents nobody uses, longest unused first, and an entry that
// has lost all of its pages is gone. All memory but that of salts is taken at construction. Used by the scheduler, on
// the engine's thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/page_pool.h"
#include "kv/page_table.h"

namespace quire {

class PrefixCache : public PageEvictionListener {
 public:
  struct GroupShape {
    int window = 0;  // 0: every past token is read
  };

  // What stands before the tokens: prompts share pages only where both are equal.
  struct Scope {
    int64_t adapter_id = 0;
    std::string_view salt;
    bool operator==(const Scope&) const = default;
  };

  // A place in a chain of pages. The beginning of a prompt is a default-constructed one. Ids are never used twice, so
  // that an entry that has gone is noticed, whatever has taken its place since.
  struct Node {
    uint64_t id = 0;
    int32_t entry = -1;
    bool operator==(const Node&) const = default;
  };
  static constexpr Node kGone = {~uint64_t{0}, -1};

  PrefixCache(PagePool* pool, int page_size, std::vector<GroupShape> groups);
  ~PrefixCache() override;

  // How many leading tokens of `tokens`, a multiple of the page size, can be had from the cache, at most `max_tokens`.
  // Fills `pages[group]` with a ref a page (not given where the group's window has left it behind) and the node of the
  // last page.
  int64_t find(const Scope& scope, std::span<const int32_t> tokens, int64_t max_tokens,
               std::vector<std::vector<PageRef>>* pages, Node* last_node);

  // Says that logical page `index` of the tables (full, computed) holds `tokens`, which follow `parent`. Returns the
  // node: of the entry there already (which then keeps its own pages), or of a new one; kGone where the parent is gone.
  Node insert(const Scope& scope, Node parent, std::span<const int32_t> tokens, std::span<const PageTable> tables,
              int64_t index);

  // The same for pages that are in no table: one a group, not given where there is none.
  Node insert(const Scope& scope, Node parent, std::span<const int32_t> tokens, std::span<const PageRef> pages);

  // All that can be found, parents before their children, for keeping it elsewhere. Views are valid until the cache
  // changes.
  struct SavedEntry {
    int32_t parent = -1;  // index of an entry before it; -1: the beginning of a prompt
    Scope scope;          // of beginnings
    std::span<const int32_t> tokens;
    std::span<const int32_t> pages;  // a group each, -1: lost
  };
  std::vector<SavedEntry> saved_entries() const;

  // Forgets what the tables' pages hold: their contents have turned out to be wrong.
  void forget(std::span<const PageTable> tables);
  void clear();  // forgets everything; pages in use stay with their users

  void on_page_evicted(int32_t page) override;

  int num_entries() const { return num_entries_; }

 private:
  struct Entry {
    uint64_t id = 0;  // 0: unused
    uint64_t parent_id = 0;
    uint64_t hash = 0;
    int64_t adapter_id = 0;
    std::string salt;   // of first entries only
    int32_t next = -1;  // in the bucket, or in the list of unused entries
    int num_pages = 0;
  };

  Node insert_pages(const Scope& scope, Node parent, std::span<const int32_t> tokens);
  uint64_t hash_of(const Scope& scope, uint64_t parent_id, std::span<const int32_t> tokens) const;
  int32_t find_entry(const Scope& scope, uint64_t parent_id, std::span<const int32_t> tokens, uint64_t hash) const;
  bool is_there(Node node) const;
  int32_t& page_of(int32_t entry, size_t group) {
    return entry_pages_[static_cast<size_t>(entry) * num_groups_ + group];
  }
  void detach_page(int32_t page);
  void erase(int32_t entry);
  std::span<const int32_t> tokens_of(int32_t entry) const;

  PagePool* pool_;
  int page_size_;
  std::vector<GroupShape> groups_;
  size_t num_groups_;
  std::vector<Entry> entries_;
  std::vector<int32_t> entry_pages_;   // [entry][group], -1: lost
  std::vector<int32_t> entry_tokens_;  // [entry][page_size]
  std::vector<int32_t> buckets_;       // first entry, -1: none
  std::vector<int32_t> page_entry_;    // per page: the entry that it belongs to, or -1
  std::vector<int32_t> path_;          // scratch of find
  std::vector<int64_t> runs_;          // likewise
  std::vector<int32_t> new_pages_;     // scratch of insert: a group each, -1: none
  int32_t unused_entries_ = -1;
  int num_entries_ = 0;
  uint64_t next_id_ = 1;
};

}  // namespace quire
