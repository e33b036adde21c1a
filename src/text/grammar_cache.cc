#include "text/grammar_cache.h"

#include <utility>

namespace quire {

Result<Grammar::Ptr> GrammarCache::json_schema(std::string_view schema_json, const JsonSchemaOptions& options) {
  std::string key = "schema";
  key += options.whitespace == JsonWhitespace::kCompact ? 'c' : 'f';
  key += options.is_lenient ? 'l' : 's';
  key += options.writes_unlisted_properties ? 'u' : 'o';
  key += schema_json;
  return get(key, [&] { return Grammar::from_json_schema(schema_json, options); });
}

Result<Grammar::Ptr> GrammarCache::any_json_object() {
  return get("object", [] { return Grammar::from_any_json_object(); });
}

Result<Grammar::Ptr> GrammarCache::regex(std::string_view pattern) {
  return get("regex" + std::string(pattern), [&] { return Grammar::from_regex(pattern); });
}

Result<Grammar::Ptr> GrammarCache::choices(std::span<const std::string> choices) {
  std::string key = "choices";
  for (const std::string& choice : choices) key += std::to_string(choice.size()) + ":" + choice;
  return get(key, [&] { return Grammar::from_choices(choices); });
}

Result<Grammar::Ptr> GrammarCache::ebnf(std::string_view text) {
  return get("ebnf" + std::string(text), [&] { return Grammar::from_ebnf(text); });
}

Result<Grammar::Ptr> GrammarCache::get(const std::string& key, const std::function<Result<Grammar::Ptr>()>& make) {
  {
    const std::scoped_lock lock(mutex_);
    const auto found = by_key_.find(key);
    if (found != by_key_.end()) {
      ++num_hits_;
      entries_.splice(entries_.begin(), entries_, found->second);
      return found->second->grammar;
    }
    ++num_misses_;
  }
  ASSIGN_OR_RETURN(Grammar::Ptr grammar, make());
  const std::scoped_lock lock(mutex_);
  const auto found = by_key_.find(key);
  if (found != by_key_.end()) return found->second->grammar;
  entries_.push_front({key, grammar});
  by_key_.emplace(entries_.front().key, entries_.begin());
  evict_locked();
  return grammar;
}

void GrammarCache::evict_locked() {
  // Grammars grow while matchers use them, so their sizes are asked for again.
  size_t num_bytes = 0;
  auto entry = entries_.begin();
  for (; entry != entries_.end(); ++entry) {
    num_bytes += entry->key.size() + entry->grammar->num_bytes();
    if (num_bytes > max_bytes_) break;
  }
  while (entry != entries_.end()) {
    by_key_.erase(entry->key);
    entry = entries_.erase(entry);
  }
}

GrammarCache::Stats GrammarCache::stats() const {
  const std::scoped_lock lock(mutex_);
  Stats stats{.num_hits = num_hits_, .num_misses = num_misses_, .num_grammars = entries_.size()};
  for (const Entry& entry : entries_) stats.num_bytes += entry.key.size() + entry.grammar->num_bytes();
  return stats;
}

}  // namespace quire
