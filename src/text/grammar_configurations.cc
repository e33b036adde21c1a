#include "text/grammar_configurations.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace quire::grammar_internal {
namespace {

// In a stack: the end of the whole. Elsewhere states are not negative.
constexpr WalkItem kEnd{.state = -1, .stack = 0};

}  // namespace

Configurations::Configurations(const Automaton& automaton, std::vector<bool> has_special)
    : automaton_(automaton), has_special_(std::move(has_special)), pending_calls_(automaton.rules.size()) {
  stacks_.intern(std::span(&kEnd, 1), false);
  sets_.intern({}, false);
  rows_.push_back(-1);
  closures_.emplace_back();
}

ConfigurationId Configurations::start() {
  ++epoch_;
  add(automaton_.rules[static_cast<size_t>(automaton_.root_rule)].start, kBottom);
  if (automaton_.may_be_empty) next_may_end_ = true;
  return finish_set();
}

ConfigurationId Configurations::from_state(int32_t state) {
  ++epoch_;
  add(state, kBottom);
  next_may_end_ = false;  // what is asked for is what comes after at least one byte
  return finish_set();
}

void Configurations::add(int32_t state, StackId stack) {
  const AutomatonState& facts = automaton_.state(state);
  if (facts.has_edges) next_.push_back({state, stack});
  if (facts.is_final) return_to(stack);
}

void Configurations::return_to(StackId stack) {
  if (return_epoch_.size() < stacks_.size()) return_epoch_.resize(stacks_.size() * 2, 0);
  auto mark = [this](StackId id) {
    if (return_epoch_[static_cast<size_t>(id)] == epoch_) return;
    return_epoch_[static_cast<size_t>(id)] = epoch_;
    returns_.push_back(id);
  };
  const size_t first = returns_.size();
  mark(stack);
  for (size_t i = first; i < returns_.size(); ++i) {
    for (const WalkItem& item : stacks_.get(returns_[i])) {
      if (item.state < 0) {
        next_may_end_ = true;
        continue;
      }
      const AutomatonState& facts = automaton_.state(item.state);
      if (facts.has_edges) next_.push_back(item);
      if (facts.is_final) mark(item.stack);
    }
  }
}

ConfigurationId Configurations::finish_set() {
  std::sort(next_.begin(), next_.end());
  next_.erase(std::unique(next_.begin(), next_.end()), next_.end());
  ConfigurationId id = kDead;
  if (next_.size() <= kMaxItems) {
    const auto interned = sets_.intern(next_, next_may_end_);
    id = interned.id;
    if (interned.is_new) {
      rows_.push_back(-1);
      closures_.emplace_back();
    }
  }
  next_.clear();
  returns_.clear();
  next_may_end_ = false;
  return id;
}

void Configurations::close(ConfigurationId configuration) {
  Closure& closure = closures_[static_cast<size_t>(configuration)];
  if (closure.is_known) return;
  closure.is_known = true;
  closure.begin = static_cast<uint32_t>(closure_items_.size());
  auto call_all = [this](int32_t state, StackId stack) {
    for (const CallEdge& edge : automaton_.call_edges_of(state)) {
      const Automaton::Rule& rule = automaton_.rules[static_cast<size_t>(edge.rule)];
      if (rule.only_without_special >= 0 && has_special_[static_cast<size_t>(rule.only_without_special)]) continue;
      std::vector<WalkItem>& calls = pending_calls_[static_cast<size_t>(edge.rule)];
      if (calls.empty()) {
        heap_.emplace_back(rule.rank, edge.rule);
        std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
      }
      if (edge.is_tail) {
        const std::span<const WalkItem> returns = stacks_.get(stack);
        calls.insert(calls.end(), returns.begin(), returns.end());
      } else {
        calls.push_back({edge.target, stack});
      }
    }
  };
  for (const WalkItem& item : sets_.get(configuration)) {
    closure_items_.push_back(item);
    call_all(item.state, item.stack);
  }
  // Rules by rank: when one is opened, all that call it here have been seen, so it gets one stack.
  while (!heap_.empty()) {
    const int32_t rule = heap_.front().second;
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
    std::vector<WalkItem>& calls = pending_calls_[static_cast<size_t>(rule)];
    std::sort(calls.begin(), calls.end());
    calls.erase(std::unique(calls.begin(), calls.end()), calls.end());
    const StackId stack = stacks_.intern(calls, false).id;
    calls.clear();
    const int32_t start = automaton_.rules[static_cast<size_t>(rule)].start;
    closure_items_.push_back({start, stack});
    call_all(start, stack);
  }
  closure.size = static_cast<uint32_t>(closure_items_.size()) - closure.begin;
}

ConfigurationId Configurations::compute_step(ConfigurationId from, uint8_t byte_class) {
  if (fuel_ <= 0) return kDead;
  close(from);
  const Closure closure = closures_[static_cast<size_t>(from)];
  ++epoch_;
  for (uint32_t i = 0; i < closure.size; ++i) {
    const WalkItem item = closure_items_[closure.begin + i];
    for (const ByteEdge& edge : automaton_.byte_edges_of(item.state)) {
      if (edge.first_class <= byte_class && byte_class <= edge.last_class) add(edge.target, item.stack);
    }
  }
  fuel_ -= 1 + static_cast<int64_t>(closure.size + next_.size());
  const ConfigurationId to = finish_set();
  int32_t& row = rows_[static_cast<size_t>(from)];
  if (row < 0) {
    row = static_cast<int32_t>(transitions_.size());
    transitions_.resize(transitions_.size() + static_cast<size_t>(automaton_.num_classes), kUnknown);
  }
  transitions_[static_cast<size_t>(row) + byte_class] = to;
  return to;
}

ConfigurationId Configurations::step_special(ConfigurationId from, int32_t special) {
  close(from);
  const Closure closure = closures_[static_cast<size_t>(from)];
  ++epoch_;
  for (uint32_t i = 0; i < closure.size; ++i) {
    const WalkItem item = closure_items_[closure.begin + i];
    for (const SpecialEdge& edge : automaton_.special_edges_of(item.state)) {
      if (edge.special == special) add(edge.target, item.stack);
    }
  }
  return finish_set();
}

void Configurations::list_specials(ConfigurationId from, std::vector<int32_t>& specials) {
  close(from);
  const Closure closure = closures_[static_cast<size_t>(from)];
  for (uint32_t i = 0; i < closure.size; ++i) {
    for (const SpecialEdge& edge : automaton_.special_edges_of(closure_items_[closure.begin + i].state)) {
      specials.push_back(edge.special);
    }
  }
}

size_t Configurations::num_bytes() const {
  return stacks_.num_bytes() + sets_.num_bytes() + rows_.capacity() * sizeof(int32_t) +
         transitions_.capacity() * sizeof(ConfigurationId) + closures_.capacity() * sizeof(Closure) +
         closure_items_.capacity() * sizeof(WalkItem);
}

ConfigurationId Configurations::copy_from(const Configurations& other, ConfigurationId configuration) {
  // Stacks refer only to stacks with smaller ids, so those that are needed are copied in ascending order.
  std::vector<bool> is_needed(other.stacks_.size(), false);
  for (const WalkItem& item : other.items(configuration)) is_needed[static_cast<size_t>(item.stack)] = true;
  for (size_t id = other.stacks_.size(); id-- > 0;) {
    if (!is_needed[id]) continue;
    for (const WalkItem& item : other.stacks_.get(static_cast<StackId>(id))) {
      is_needed[static_cast<size_t>(item.stack)] = true;
    }
  }
  std::vector<StackId> copies(other.stacks_.size(), kBottom);
  std::vector<WalkItem> items;
  for (size_t id = 0; id < other.stacks_.size(); ++id) {
    if (!is_needed[id]) continue;
    items.clear();
    for (const WalkItem& item : other.stacks_.get(static_cast<StackId>(id))) {
      items.push_back({item.state, item.state < 0 ? 0 : copies[static_cast<size_t>(item.stack)]});
    }
    std::sort(items.begin(), items.end());
    copies[id] = stacks_.intern(items, false).id;
  }
  for (const WalkItem& item : other.items(configuration)) {
    next_.push_back({item.state, copies[static_cast<size_t>(item.stack)]});
  }
  next_may_end_ = other.may_end(configuration);
  return finish_set();
}

}  // namespace quire::grammar_internal
