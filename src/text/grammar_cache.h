// Compiled grammars by their source, so that requests with the same schema compile it once. Bounded in bytes: what was
// not used for longest goes first. Any thread; two threads that ask for the same new source compile it once each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/status.h"
#include "text/grammar.h"

namespace quire {

class GrammarCache {
 public:
  static constexpr size_t kDefaultMaxBytes = size_t{256} << 20;

  explicit GrammarCache(size_t max_bytes = kDefaultMaxBytes) : max_bytes_(max_bytes) {}

  Result<Grammar::Ptr> json_schema(std::string_view schema_json, const JsonSchemaOptions& options = {});
  Result<Grammar::Ptr> any_json_object();
  Result<Grammar::Ptr> regex(std::string_view pattern);
  Result<Grammar::Ptr> choices(std::span<const std::string> choices);
  Result<Grammar::Ptr> ebnf(std::string_view text);
  // For grammars of other makers (tool calls): `key` says all that `make` depends on.
  Result<Grammar::Ptr> get(const std::string& key, const std::function<Result<Grammar::Ptr>()>& make);

  struct Stats {
    uint64_t num_hits = 0;
    uint64_t num_misses = 0;
    size_t num_grammars = 0;
    size_t num_bytes = 0;
  };
  Stats stats() const;

 private:
  struct Entry {
    std::string key;
    Grammar::Ptr grammar;
  };
  void evict_locked();

  const size_t max_bytes_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // latest used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_key_;
  uint64_t num_hits_ = 0;
  uint64_t num_misses_ = 0;
};

}  // namespace quire
