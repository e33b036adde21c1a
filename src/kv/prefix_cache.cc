// The prefix cache: a hash table of entries chained by parent, in arrays of fixed size.
#include "kv/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>

namespace quire {

namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  // One round of a multiply-and-fold hash; equality of tokens is checked apart, so speed matters more than strength.
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 32);
}

}  // namespace

PrefixCache::PrefixCache(PagePool* pool, int page_size, std::vector<GroupShape> groups)
    : pool_(pool), page_size_(page_size), groups_(std::move(groups)), num_groups_(groups_.size()) {
  // An entry has at least one page of its own, so there are never more entries than pages.
  const size_t num_pages = static_cast<size_t>(pool->num_pages());
  entries_.resize(num_pages);
  entry_pages_.assign(num_pages * num_groups_, -1);
  entry_tokens_.resize(num_pages * static_cast<size_t>(page_size));
  buckets_.assign(std::bit_ceil(std::max<size_t>(num_pages, 1) * 2), -1);
  page_entry_.assign(num_pages, -1);
  path_.reserve(num_pages);
  runs_.reserve(num_groups_);
  new_pages_.reserve(num_groups_);
  for (size_t i = num_pages; i-- > 0;) {
    entries_[i].next = unused_entries_;
    unused_entries_ = static_cast<int32_t>(i);
  }
  pool_->set_eviction_listener(this);
}

PrefixCache::~PrefixCache() {
  clear();
  pool_->set_eviction_listener(nullptr);
}

std::span<const int32_t> PrefixCache::tokens_of(int32_t entry) const {
  const size_t size = static_cast<size_t>(page_size_);
  return std::span(entry_tokens_).subspan(static_cast<size_t>(entry) * size, size);
}

uint64_t PrefixCache::hash_of(const Scope& scope, uint64_t parent_id, std::span<const int32_t> tokens) const {
  uint64_t hash = mix(0, parent_id);
  if (parent_id == 0) {
    hash = mix(hash, static_cast<uint64_t>(scope.adapter_id));
    hash = mix(hash, scope.salt.size());
    for (const char c : scope.salt) hash = mix(hash, static_cast<unsigned char>(c));
  }
  for (const int32_t token : tokens) hash = mix(hash, static_cast<uint32_t>(token));
  return hash;
}

int32_t PrefixCache::find_entry(const Scope& scope, uint64_t parent_id, std::span<const int32_t> tokens,
                                uint64_t hash) const {
  for (int32_t i = buckets_[hash & (buckets_.size() - 1)]; i >= 0; i = entries_[static_cast<size_t>(i)].next) {
    const Entry& entry = entries_[static_cast<size_t>(i)];
    if (entry.hash != hash || entry.parent_id != parent_id) continue;
    if (parent_id == 0 && (entry.adapter_id != scope.adapter_id || entry.salt != scope.salt)) continue;
    const std::span<const int32_t> own = tokens_of(i);
    if (std::equal(own.begin(), own.end(), tokens.begin(), tokens.end())) return i;
  }
  return -1;
}

int64_t PrefixCache::find(const Scope& scope, std::span<const int32_t> tokens, int64_t max_tokens,
                          std::vector<std::vector<PageRef>>* pages, Node* last_node) {
  const size_t page_size = static_cast<size_t>(page_size_);
  const size_t most = std::min(tokens.size(), static_cast<size_t>(std::max<int64_t>(max_tokens, 0))) / page_size;
  path_.clear();
  runs_.assign(num_groups_, 0);
  size_t best = 0;
  uint64_t parent_id = 0;
  while (path_.size() < most) {
    const auto page_tokens = tokens.subspan(path_.size() * page_size, page_size);
    const int32_t entry = find_entry(scope, parent_id, page_tokens, hash_of(scope, parent_id, page_tokens));
    if (entry < 0) break;
    path_.push_back(entry);
    parent_id = entries_[static_cast<size_t>(entry)].id;
    // This length will do if every group still has all the pages that the next query sees.
    const int64_t length = static_cast<int64_t>(path_.size());
    bool is_usable = true;
    bool can_go_on = true;
    for (size_t g = 0; g < num_groups_; ++g) {
      runs_[g] = page_of(entry, g) >= 0 ? runs_[g] + 1 : 0;
      const int64_t window = groups_[g].window;
      const int64_t first_seen = window > 0 ? std::max<int64_t>(length * page_size_ - window + 1, 0) / page_size_ : 0;
      if (runs_[g] < length - first_seen) is_usable = false;
      if (window <= 0 && runs_[g] < length) can_go_on = false;
    }
    if (is_usable) best = path_.size();
    if (!can_go_on) break;
  }
  *last_node = Node{};
  pages->resize(num_groups_);
  for (size_t g = 0; g < num_groups_; ++g) {
    std::vector<PageRef>& refs = (*pages)[g];
    refs.clear();
    const int64_t window = groups_[g].window;
    const int64_t next_position = static_cast<int64_t>(best) * page_size_;
    const int64_t first_seen = window > 0 ? std::max<int64_t>(next_position - window + 1, 0) / page_size_ : 0;
    for (size_t i = 0; i < best; ++i) {
      refs.push_back(static_cast<int64_t>(i) < first_seen ? PageRef() : pool_->share(page_of(path_[i], g)));
    }
  }
  if (best > 0) *last_node = Node{entries_[static_cast<size_t>(path_[best - 1])].id, path_[best - 1]};
  return static_cast<int64_t>(best * page_size);
}

bool PrefixCache::is_there(Node node) const {
  if (node.id == 0) return true;
  return node.entry >= 0 && entries_[static_cast<size_t>(node.entry)].id == node.id;
}

PrefixCache::Node PrefixCache::insert(const Scope& scope, Node parent, std::span<const int32_t> tokens,
                                      std::span<const PageTable> tables, int64_t index) {
  CHECK(tables.size() == num_groups_);
  new_pages_.clear();
  for (const PageTable& table : tables) new_pages_.push_back(table.page(index).page());
  return insert_pages(scope, parent, tokens);
}

PrefixCache::Node PrefixCache::insert(const Scope& scope, Node parent, std::span<const int32_t> tokens,
                                      std::span<const PageRef> pages) {
  CHECK(pages.size() == num_groups_);
  new_pages_.clear();
  for (const PageRef& page : pages) new_pages_.push_back(page.page());
  return insert_pages(scope, parent, tokens);
}

// Of new_pages_, which are in use.
PrefixCache::Node PrefixCache::insert_pages(const Scope& scope, Node parent, std::span<const int32_t> tokens) {
  CHECK(tokens.size() == static_cast<size_t>(page_size_));
  if (!is_there(parent)) return kGone;
  const uint64_t hash = hash_of(scope, parent.id, tokens);
  int32_t found = find_entry(scope, parent.id, tokens, hash);
  if (found < 0) {
    const bool has_page = std::any_of(new_pages_.begin(), new_pages_.end(), [&](int32_t page) {
      return page >= 0 && page_entry_[static_cast<size_t>(page)] < 0;
    });
    if (!has_page || unused_entries_ < 0) return kGone;
    found = unused_entries_;
    Entry& entry = entries_[static_cast<size_t>(found)];
    unused_entries_ = entry.next;
    entry.id = next_id_++;
    entry.parent_id = parent.id;
    entry.hash = hash;
    entry.adapter_id = parent.id == 0 ? scope.adapter_id : 0;
    entry.salt = parent.id == 0 ? scope.salt : std::string_view();
    entry.num_pages = 0;
    std::copy(tokens.begin(), tokens.end(), entry_tokens_.begin() + static_cast<int64_t>(found) * page_size_);
    int32_t& bucket = buckets_[hash & (buckets_.size() - 1)];
    entry.next = bucket;
    bucket = found;
    ++num_entries_;
  }
  Entry& entry = entries_[static_cast<size_t>(found)];
  for (size_t g = 0; g < num_groups_; ++g) {
    const int32_t page = new_pages_[g];
    if (page < 0 || page_of(found, g) >= 0) continue;
    if (page_entry_[static_cast<size_t>(page)] >= 0) continue;
    page_of(found, g) = page;
    page_entry_[static_cast<size_t>(page)] = found;
    pool_->set_cached(page);
    ++entry.num_pages;
  }
  return Node{entry.id, found};
}

std::vector<PrefixCache::SavedEntry> PrefixCache::saved_entries() const {
  std::vector<int32_t> order;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].id != 0) order.push_back(static_cast<int32_t>(i));
  }
  // A child is inserted after its parent.
  std::sort(order.begin(), order.end(), [this](int32_t a, int32_t b) {
    return entries_[static_cast<size_t>(a)].id < entries_[static_cast<size_t>(b)].id;
  });
  std::vector<SavedEntry> saved;
  std::unordered_map<uint64_t, int32_t> index_of_id;
  for (const int32_t i : order) {
    const Entry& entry = entries_[static_cast<size_t>(i)];
    SavedEntry one = {.parent = -1,
                      .scope = {entry.adapter_id, entry.salt},
                      .tokens = tokens_of(i),
                      .pages = std::span(entry_pages_).subspan(static_cast<size_t>(i) * num_groups_, num_groups_)};
    if (entry.parent_id != 0) {
      const auto parent = index_of_id.find(entry.parent_id);
      if (parent == index_of_id.end()) continue;  // it has gone, and nothing leads here any more
      one.parent = parent->second;
    }
    index_of_id[entry.id] = static_cast<int32_t>(saved.size());
    saved.push_back(one);
  }
  return saved;
}

// The page's contents are no longer known to the cache. The pool is told by the caller.
void PrefixCache::detach_page(int32_t page) {
  const int32_t entry = page_entry_[static_cast<size_t>(page)];
  CHECK(entry >= 0);
  page_entry_[static_cast<size_t>(page)] = -1;
  for (size_t g = 0; g < num_groups_; ++g) {
    if (page_of(entry, g) == page) page_of(entry, g) = -1;
  }
  if (--entries_[static_cast<size_t>(entry)].num_pages == 0) erase(entry);
}

void PrefixCache::erase(int32_t index) {
  Entry& entry = entries_[static_cast<size_t>(index)];
  int32_t* link = &buckets_[entry.hash & (buckets_.size() - 1)];
  while (*link != index) link = &entries_[static_cast<size_t>(*link)].next;
  *link = entry.next;
  entry.id = 0;
  entry.salt.clear();
  entry.next = unused_entries_;
  unused_entries_ = index;
  --num_entries_;
}

void PrefixCache::on_page_evicted(int32_t page) {
  detach_page(page);
}

void PrefixCache::forget(std::span<const PageTable> tables) {
  for (const PageTable& table : tables) {
    for (const int32_t page : table.page_ids()) {
      if (page < 0 || page_entry_[static_cast<size_t>(page)] < 0) continue;
      detach_page(page);
      pool_->clear_cached(page);
    }
  }
}

void PrefixCache::clear() {
  for (size_t page = 0; page < page_entry_.size(); ++page) {
    if (page_entry_[page] < 0) continue;
    detach_page(static_cast<int32_t>(page));
    pool_->clear_cached(static_cast<int32_t>(page));
  }
}

}  // namespace quire
