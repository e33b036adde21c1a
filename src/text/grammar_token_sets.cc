#include "text/grammar_token_sets.h"

#include <algorithm>
#include <utility>

namespace quire::grammar_internal {
namespace {

// For configurations that bytes lead back to (inside a string): the classes of bytes that do.
class Loops {
 public:
  explicit Loops(Configurations& walk) : walk_(walk) {}

  uint64_t classes(ConfigurationId configuration) {
    const auto index = static_cast<size_t>(configuration);
    if (index >= known_.size()) known_.resize(index + 64);
    Known& known = known_[index];
    if (!known.is_computed && ++known.num_visits > kNumVisitsBefore) {
      known.is_computed = true;
      uint64_t leaving = 0;
      for (int byte = 0; byte < 256; ++byte) {
        if (walk_.step(configuration, static_cast<uint8_t>(byte)) == configuration) continue;
        leaving |= uint64_t{1} << GrammarVocabulary::byte_class(static_cast<uint8_t>(byte));
      }
      known.classes = ~leaving;
    }
    return known.classes;
  }

 private:
  // The question takes 256 steps, so it is asked only of configurations that are met again and again.
  static constexpr int kNumVisitsBefore = 8;
  struct Known {
    uint64_t classes = 0;
    int num_visits = 0;
    bool is_computed = false;
  };
  Configurations& walk_;
  std::vector<Known> known_;
};

std::unique_ptr<TokenSet> compute_token_set(const GrammarVocabulary& vocabulary, int32_t state, Configurations& walk) {
  auto set = std::make_unique<TokenSet>();
  std::vector<ConfigurationId> at_depth(vocabulary.max_token_bytes() + 1, Configurations::kDead);
  // Whether the rule could have ended before the current byte, but after the first.
  std::vector<char> has_returned(vocabulary.max_token_bytes() + 1, 0);
  at_depth[0] = walk.from_state(state);
  auto leave_open = [&](uint32_t begin, uint32_t end) {
    std::vector<NodeRange>& open = set->open;
    if (!open.empty() && open.back().end == begin &&
        vocabulary.node_parent(open.back().begin) == vocabulary.node_parent(begin)) {
      open.back().end = end;
    } else {
      open.push_back({begin, end});
    }
  };
  constexpr uint32_t kMinSubtree = 4;
  constexpr uint32_t kStepsForFuel = 8;  // steps that are remembered are quick
  Loops loops(walk);
  const auto num_nodes = static_cast<uint32_t>(vocabulary.num_nodes());
  uint32_t num_steps = 0;
  for (uint32_t node = 1; node < num_nodes && walk.fuel() > 0; ++num_steps) {
    const size_t depth = vocabulary.node_depth(node);
    const ConfigurationId next = walk.step(at_depth[depth - 1], vocabulary.node_byte(node));
    if (next == Configurations::kDead) {
      const uint32_t end = vocabulary.subtree_end(node);
      if (has_returned[depth - 1] != 0) leave_open(node, end);
      node = end;
      continue;
    }
    at_depth[depth] = next;
    has_returned[depth] = static_cast<char>(has_returned[depth - 1] != 0 || walk.may_end(next));
    const std::span<const int32_t> tokens = vocabulary.node_tokens(node);
    set->tokens.insert(set->tokens.end(), tokens.begin(), tokens.end());
    const uint32_t end = vocabulary.subtree_end(node);
    if (end - node > kMinSubtree && (vocabulary.classes_below(node) & ~loops.classes(next)) == 0) {
      const std::span<const int32_t> below = vocabulary.tokens_below(node);
      set->tokens.insert(set->tokens.end(), below.begin(), below.end());
      node = end;
      continue;
    }
    ++node;
  }
  walk.spend(num_steps / kStepsForFuel);
  // Bits take 4 bytes for 32 tokens, ids 4 bytes each.
  if (set->tokens.size() > vocabulary.num_mask_words()) {
    set->mask.assign(vocabulary.num_mask_words(), 0);
    for (int32_t id : set->tokens) set->mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
    set->tokens = {};
  }
  set->tokens.shrink_to_fit();
  set->open.shrink_to_fit();
  return set;
}

// States of one rule with the same future for as many bytes as a token has get the same number: the middle of a long
// repetition looks the same everywhere. Each round of the refinement looks one byte further. Empty: each stands for
// itself.
std::vector<int32_t> find_representatives(const Automaton& automaton, int32_t first, int32_t end, size_t max_bytes) {
  constexpr int32_t kMinStates = 64;
  constexpr int32_t kMaxStates = 20'000;  // some 20 ns a state and round
  const int32_t num_states = end - first;
  if (num_states < kMinStates || num_states > kMaxStates) return {};
  auto mix = [](uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0xFF51AFD7ED558CCDu;
    return hash ^ hash >> 29;
  };
  std::vector<uint64_t> futures(static_cast<size_t>(num_states), 0);
  std::vector<uint64_t> next(futures.size());
  for (size_t round = 0; round < max_bytes; ++round) {
    for (int32_t i = 0; i < num_states; ++i) {
      const int32_t state = first + i;
      uint64_t hash = automaton.state(state).is_final ? 1 : 2;
      auto target = [&](int32_t to) { return futures[static_cast<size_t>(to - first)]; };
      for (const ByteEdge& edge : automaton.byte_edges_of(state)) {
        hash = mix(hash, edge.first_class * 256u + edge.last_class);
        hash = mix(hash, target(edge.target));
      }
      for (const CallEdge& edge : automaton.call_edges_of(state)) {
        hash = mix(hash, (uint64_t{1} << 40) + static_cast<uint64_t>(edge.rule));
        hash = mix(hash, target(edge.target));
      }
      next[static_cast<size_t>(i)] = hash;
    }
    std::swap(futures, next);
  }
  std::unordered_map<uint64_t, int32_t> first_with;
  std::vector<int32_t> representatives;
  for (int32_t i = 0; i < num_states; ++i) {
    representatives.push_back(first_with.try_emplace(futures[static_cast<size_t>(i)], i).first->second);
  }
  return representatives;
}

// Everything that the walk from a state of the rule can depend on, callers aside: the rule and those that it calls.
// Empty where that is too long to be worth while; num_bytes: how much was looked at.
std::string rule_text(const Automaton& automaton, int32_t root, size_t& num_bytes) {
  constexpr size_t kMaxTextBytes = 64 * 1024;
  const std::vector<int32_t>& first_state = automaton.first_state_of_rule;
  std::string text;
  auto put = [&text](int32_t number) { text.append(reinterpret_cast<const char*>(&number), sizeof(number)); };
  // Classes differ between grammars, bytes do not.
  std::vector<int32_t> first_byte(static_cast<size_t>(automaton.num_classes) + 1, 256);
  for (int byte = 255; byte >= 0; --byte) first_byte[automaton.class_of_byte[static_cast<size_t>(byte)]] = byte;
  std::vector<int32_t> order{root};
  std::unordered_map<int32_t, int32_t> number_of{{root, 0}};
  for (size_t i = 0; i < order.size(); ++i) {
    const auto rule = static_cast<size_t>(order[i]);
    const int32_t begin = first_state[rule];
    const int32_t end = first_state[rule + 1];
    put(end - begin);
    put(automaton.rules[rule].start - begin);
    const int32_t special = automaton.rules[rule].only_without_special;
    put(special >= 0 ? 1 : 0);
    for (int32_t state = begin; state < end; ++state) {
      put(automaton.state(state).is_final ? 1 : 0);
      for (const ByteEdge& edge : automaton.byte_edges_of(state)) {
        put(first_byte[edge.first_class]);
        put(first_byte[static_cast<size_t>(edge.last_class) + 1] - 1);
        put(edge.target - begin);
      }
      put(-1);
      for (const CallEdge& edge : automaton.call_edges_of(state)) {
        const auto [it, is_new] = number_of.try_emplace(edge.rule, static_cast<int32_t>(order.size()));
        if (is_new) order.push_back(edge.rule);
        put(it->second);
        put(edge.target - begin);
      }
      put(-1);
      for (const SpecialEdge& edge : automaton.special_edges_of(state)) {
        const std::string& name = automaton.specials[static_cast<size_t>(edge.special)];
        put(static_cast<int32_t>(name.size()));
        text += name;
        put(edge.target - begin);
      }
      put(-1);
      num_bytes = text.size();
      if (text.size() > kMaxTextBytes) return {};
    }
  }
  return text;
}

}  // namespace

RuleTokenSets::~RuleTokenSets() {
  for (std::atomic<const TokenSet*>& set : sets_) delete set.load();
}

size_t RuleTokenSets::representative(size_t state, const std::function<std::vector<int32_t>()>& find_all) {
  std::call_once(representatives_once_, [&] { representatives_ = find_all(); });
  return representatives_.empty() ? state : static_cast<size_t>(representatives_[state]);
}

const TokenSet* RuleTokenSets::publish(size_t state, std::unique_ptr<TokenSet> set) {
  const TokenSet* present = nullptr;
  const size_t bytes = set->num_bytes();
  if (!sets_[state].compare_exchange_strong(present, set.get(), std::memory_order_acq_rel)) return present;
  num_set_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return set.release();
}

std::shared_ptr<RuleTokenSets> TokenSetStore::get(const std::string& rule_text, size_t num_states) {
  const std::scoped_lock lock(mutex_);
  const auto found = by_text_.find(rule_text);
  if (found != by_text_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->sets;
  }
  entries_.push_front({rule_text, std::make_shared<RuleTokenSets>(num_states)});
  by_text_.emplace(entries_.front().rule_text, entries_.begin());
  size_t num_bytes = num_bytes_locked();
  while (entries_.size() > 1 && (num_bytes > kMaxBytes || entries_.size() > kMaxEntries)) {
    const Entry& last = entries_.back();
    num_bytes -= last.rule_text.size() + last.sets->num_bytes();
    by_text_.erase(last.rule_text);
    entries_.pop_back();
  }
  return entries_.front().sets;
}

size_t TokenSetStore::num_bytes_locked() const {
  size_t num_bytes = 0;
  for (const Entry& entry : entries_) num_bytes += entry.rule_text.size() + entry.sets->num_bytes();
  return num_bytes;
}

size_t TokenSetStore::num_bytes() const {
  const std::scoped_lock lock(mutex_);
  return num_bytes_locked();
}

TokenSetTable::TokenSetTable(const Automaton& automaton, GrammarVocabulary::Ptr vocabulary)
    : automaton_(automaton), vocabulary_(std::move(vocabulary)), sets_of_rule_(automaton.rules.size()) {
  for (const std::string& special : automaton.specials) special_ids_.push_back(vocabulary_->find_special(special));
}

RuleTokenSets& TokenSetTable::sets_of(size_t rule, Configurations& walk) const {
  if (RuleTokenSets* sets = sets_of_rule_[rule].load(std::memory_order_acquire)) return *sets;
  const std::scoped_lock lock(mutex_);
  if (RuleTokenSets* sets = sets_of_rule_[rule].load(std::memory_order_relaxed)) return *sets;
  const std::vector<int32_t>& first_state = automaton_.first_state_of_rule;
  const auto num_states = static_cast<size_t>(first_state[rule + 1] - first_state[rule]);
  size_t num_bytes = 0;
  const std::string text = rule_text(automaton_, static_cast<int32_t>(rule), num_bytes);
  constexpr size_t kBytesForFuel = 64;
  walk.spend(static_cast<int64_t>(num_bytes / kBytesForFuel));
  owned_.push_back(text.empty() ? std::make_shared<RuleTokenSets>(num_states)
                                : vocabulary_->token_set_store().get(text, num_states));
  sets_of_rule_[rule].store(owned_.back().get(), std::memory_order_release);
  return *owned_.back();
}

int32_t TokenSetTable::find_special_by_id(int32_t token_id) const {
  const auto it = std::find(special_ids_.begin(), special_ids_.end(), token_id);
  return it == special_ids_.end() ? -1 : static_cast<int32_t>(it - special_ids_.begin());
}

std::vector<bool> TokenSetTable::has_special() const {
  std::vector<bool> has;
  for (int32_t id : special_ids_) has.push_back(id >= 0);
  return has;
}

const TokenSet& TokenSetTable::get(int32_t state, Configurations& walk, std::unique_ptr<TokenSet>& spare) const {
  const auto rule = static_cast<size_t>(automaton_.rule_of_state[static_cast<size_t>(state)]);
  const int32_t first_state = automaton_.first_state_of_rule[rule];
  auto local = static_cast<size_t>(state - first_state);
  RuleTokenSets& sets = sets_of(rule, walk);
  if (const TokenSet* set = sets.find(local)) return *set;
  local = sets.representative(local, [&] {
    return find_representatives(automaton_, first_state, automaton_.first_state_of_rule[rule + 1],
                                vocabulary_->max_token_bytes());
  });
  if (const TokenSet* set = sets.find(local)) return *set;
  std::unique_ptr<TokenSet> computed = compute_token_set(*vocabulary_, first_state + static_cast<int32_t>(local), walk);
  const bool is_whole = walk.fuel() > 0;
  if (is_whole && sets.num_bytes() < kMaxBytes) return *sets.publish(local, std::move(computed));
  spare = std::move(computed);
  return *spare;
}

size_t TokenSetTable::num_bytes() const {
  size_t num_bytes = sizeof(*this);
  // What several grammars share is counted in parts.
  num_bytes += sets_of_rule_.size() * sizeof(sets_of_rule_[0]);
  const std::scoped_lock lock(mutex_);
  for (const auto& sets : owned_) num_bytes += sets->num_bytes() / static_cast<size_t>(sets.use_count());
  return num_bytes;
}

}  // namespace quire::grammar_internal
