// Aho-Corasick over bytes. The depth of the current node is exactly how much text may still become a match.
#include "text/stop_strings.h"

#include <deque>

namespace quire {
namespace {
constexpr uint32_t kNoChild = ~uint32_t{0};
}

Result<StopStringMatcher> StopStringMatcher::create(const std::vector<std::string>& stop_strings, bool includes_match) {
  if (stop_strings.size() > kMaxStrings) {
    return invalid_argument("there are " + std::to_string(stop_strings.size()) + " stop strings; at most " +
                            std::to_string(kMaxStrings) + " are allowed");
  }
  size_t total = 0;
  for (const std::string& text : stop_strings) {
    if (text.empty()) return invalid_argument("a stop string is empty; leave it out");
    total += text.size();
    if (total > kMaxTotalBytes) {
      return invalid_argument("the stop strings have more than " + std::to_string(kMaxTotalBytes) + " bytes together");
    }
  }
  auto automaton = std::make_shared<Automaton>();
  automaton->includes_match = includes_match;
  automaton->nodes.emplace_back();
  for (size_t i = 0; i < stop_strings.size(); ++i) {
    uint32_t node = 0;
    for (const char c : stop_strings[i]) {
      uint32_t child = automaton->find_child(node, c);
      if (child == kNoChild) {
        child = static_cast<uint32_t>(automaton->nodes.size());
        const uint32_t depth = automaton->nodes[node].depth + 1;
        automaton->nodes[node].children.emplace_back(c, child);
        automaton->nodes.emplace_back();
        automaton->nodes.back().depth = depth;
      }
      node = child;
    }
    if (automaton->nodes[node].match < 0) automaton->nodes[node].match = static_cast<int32_t>(i);
    automaton->lengths.push_back(stop_strings[i].size());
  }
  std::deque<uint32_t> queue = {0};
  while (!queue.empty()) {
    const uint32_t parent = queue.front();
    queue.pop_front();
    for (const auto& [byte, child] : automaton->nodes[parent].children) {
      Node& node = automaton->nodes[child];
      node.failure = parent == 0 ? 0 : automaton->step(automaton->nodes[parent].failure, byte);
      if (node.match < 0) node.match = automaton->nodes[node.failure].match;
      queue.push_back(child);
    }
  }
  StopStringMatcher matcher;
  matcher.automaton_ = std::move(automaton);
  return matcher;
}

uint32_t StopStringMatcher::Automaton::find_child(uint32_t node, char byte) const {
  for (const auto& [label, child] : nodes[node].children) {
    if (label == byte) return child;
  }
  return kNoChild;
}

uint32_t StopStringMatcher::Automaton::step(uint32_t node, char byte) const {
  while (true) {
    const uint32_t child = find_child(node, byte);
    if (child != kNoChild) return child;
    if (node == 0) return 0;
    node = nodes[node].failure;
  }
}

bool StopStringMatcher::add(std::string_view text, std::string& out) {
  if (is_stopped()) return true;
  if (automaton_->lengths.empty()) {
    out.append(text);
    return false;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = automaton_->step(state_, text[i]);
    const int32_t match = automaton_->nodes[state_].match;
    if (match < 0) continue;
    // All text up to here, less the match.
    held_.append(text.substr(0, i + 1));
    const size_t length = automaton_->lengths[static_cast<size_t>(match)];
    out.append(held_, 0, automaton_->includes_match ? held_.size() : held_.size() - length);
    held_.clear();
    matched_index_ = match;
    return true;
  }
  held_.append(text);
  const size_t num_possible = automaton_->nodes[state_].depth;
  const size_t num_certain = held_.size() - num_possible;
  out.append(held_, 0, num_certain);
  held_.erase(0, num_certain);
  return false;
}

void StopStringMatcher::finish(std::string& out) {
  if (!is_stopped()) out.append(held_);
  held_.clear();
  state_ = 0;
}

}  // namespace quire
