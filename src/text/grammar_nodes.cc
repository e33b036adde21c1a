#include "text/grammar_nodes.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::grammar_internal {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 40;

int64_t saturating_product(int64_t a, int64_t b) {
  return a != 0 && b > kMaxSize / a ? kMaxSize : a * b;
}

}  // namespace

std::vector<CodePointRange> normalize_ranges(std::vector<CodePointRange> ranges) {
  static constexpr CodePointRange kAllowed[] = {{0, 0xD7FF}, {0xE000, kMaxCodePoint}};
  std::sort(ranges.begin(), ranges.end(),
            [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
  std::vector<CodePointRange> joined;
  for (const CodePointRange& range : ranges) {
    if (range.first > range.last) continue;
    if (!joined.empty() && range.first <= joined.back().last + 1) {
      joined.back().last = std::max(joined.back().last, range.last);
    } else {
      joined.push_back(range);
    }
  }
  return intersect_ranges(joined, kAllowed);
}

std::vector<CodePointRange> complement_ranges(std::span<const CodePointRange> normalized) {
  std::vector<CodePointRange> gaps;
  char32_t next = 0;
  for (const CodePointRange& range : normalized) {
    if (range.first > next) gaps.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kMaxCodePoint) gaps.push_back({next, kMaxCodePoint});
  return normalize_ranges(std::move(gaps));
}

std::vector<CodePointRange> intersect_ranges(std::span<const CodePointRange> a, std::span<const CodePointRange> b) {
  std::vector<CodePointRange> both;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const char32_t first = std::max(a[i].first, b[j].first);
    const char32_t last = std::min(a[i].last, b[j].last);
    if (first <= last) both.push_back({first, last});
    if (a[i].last < b[j].last) {
      ++i;
    } else {
      ++j;
    }
  }
  return both;
}

NodeIndex NodePool::add(Node node) {
  // A node is some 200 bytes, which are also looked at later.
  work_->spend(8 + node.children.size() + node.ranges.size() + node.bytes.size() / 16);
  int depth = 0;
  for (NodeIndex child : node.children) depth = std::max(depth, this->node(child).depth);
  node.depth = depth + 1;
  nodes_.push_back(std::move(node));
  return static_cast<NodeIndex>(nodes_.size()) - 1;
}

NodeIndex NodePool::empty() {
  return add({.kind = NodeKind::kEmpty});
}

NodeIndex NodePool::never() {
  return add({.kind = NodeKind::kAlternatives});
}

NodeIndex NodePool::bytes(std::string_view text) {
  if (text.empty()) return empty();
  return add({.kind = NodeKind::kBytes, .size = static_cast<int64_t>(text.size()), .bytes = std::string(text)});
}

NodeIndex NodePool::character(std::vector<CodePointRange> ranges) {
  ranges = normalize_ranges(std::move(ranges));
  if (ranges.empty()) return never();
  int64_t size = 1;
  for (const CodePointRange& range : ranges) size += range.last < 0x80 ? 0 : range.last < 0x800 ? 2 : 4;
  return add({.kind = NodeKind::kCharacter, .size = size, .ranges = std::move(ranges)});
}

NodeIndex NodePool::sequence(std::vector<NodeIndex> children) {
  if (children.empty()) return empty();
  if (children.size() == 1) return children[0];
  int64_t size = 0;
  for (NodeIndex child : children) size = std::min(kMaxSize, size + node(child).size);
  return add({.kind = NodeKind::kSequence, .size = size, .children = std::move(children)});
}

NodeIndex NodePool::alternatives(std::vector<NodeIndex> children) {
  if (children.size() == 1) return children[0];
  int64_t size = 1;
  for (NodeIndex child : children) size = std::min(kMaxSize, size + node(child).size);
  return add({.kind = NodeKind::kAlternatives, .size = size, .children = std::move(children)});
}

NodeIndex NodePool::repeat(NodeIndex child, int min_count, int max_count) {
  CHECK(min_count >= 0);
  CHECK(max_count == -1 || max_count >= min_count);
  if (max_count == 0) return empty();
  if (min_count == 1 && max_count == 1) return child;
  // (x?){m,n} is x{0,n}, and (x*){m,n} is x*: copies that may each be left out are ways around all others.
  const Node& inner = this->node(child);
  if (inner.kind == NodeKind::kRepeat && inner.min_count == 0 && (inner.max_count == 1 || inner.max_count == -1)) {
    return repeat(inner.children[0], 0, inner.max_count == -1 ? -1 : max_count);
  }
  const int64_t copies = max_count == -1 ? std::max(1, min_count) : max_count;
  return add({.kind = NodeKind::kRepeat,
              .min_count = min_count,
              .max_count = max_count,
              .size = saturating_product(node(child).size + 1, copies),
              .children = {child}});
}

NodeIndex NodePool::list(std::span<const ListItem> items, NodeIndex separator) {
  Node list{.kind = NodeKind::kList};
  int64_t size = 0;
  for (const ListItem& item : items) {
    list.children.push_back(item.node);
    list.counts.emplace_back(item.min_count, item.max_count);
    const int64_t copies = std::max({1, item.min_count, item.max_count});
    const int64_t item_size = node(item.node).size + node(separator).size;
    size = std::min(kMaxSize, size + saturating_product(2 * item_size, copies));
  }
  list.children.push_back(separator);
  list.size = std::max<int64_t>(1, size);
  return add(std::move(list));
}

NodeIndex NodePool::special(std::string_view text) {
  CHECK(!text.empty());
  auto it = std::find(specials_.begin(), specials_.end(), text);
  if (it == specials_.end()) it = specials_.insert(it, std::string(text));
  return add({.kind = NodeKind::kSpecial, .index = static_cast<int32_t>(it - specials_.begin())});
}

NodeIndex NodePool::graph(StateGraph graph) {
  const auto size = static_cast<int64_t>(graph.states.size());
  graphs_.push_back(std::move(graph));
  return add({.kind = NodeKind::kGraph, .index = static_cast<int32_t>(graphs_.size()) - 1, .size = size});
}

NodeIndex NodePool::declare_rule(std::string_view name, bool is_never_inlined) {
  rules_.push_back({.name = std::string(name), .body = kNoNode, .is_never_inlined = is_never_inlined});
  return add({.kind = NodeKind::kRule, .index = static_cast<int32_t>(rules_.size()) - 1});
}

void NodePool::define_rule(NodeIndex reference, NodeIndex body) {
  CHECK(node(reference).kind == NodeKind::kRule);
  Rule& rule = rules_[static_cast<size_t>(node(reference).index)];
  CHECK(rule.body == kNoNode);
  rule.body = body;
}

}  // namespace quire::grammar_internal
