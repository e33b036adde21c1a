#include "text/grammar_free_text.h"

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "text/grammar_lowering.h"

namespace quire::grammar_internal {
namespace {

// Aho and Corasick's automaton of the strings, complete, without the states in which one has been found.
StateGraph graph_without(std::span<const std::string> strings) {
  struct TreeNode {
    std::array<int32_t, 256> next;
    int32_t fallback = 0;
    bool is_found = false;
  };
  std::vector<TreeNode> tree(1);
  tree[0].next.fill(-1);
  for (const std::string& text : strings) {
    int32_t at = 0;
    for (char c : text) {
      const auto byte = static_cast<uint8_t>(c);
      int32_t next = tree[static_cast<size_t>(at)].next[byte];
      if (next < 0) {
        next = static_cast<int32_t>(tree.size());
        tree[static_cast<size_t>(at)].next[byte] = next;
        tree.emplace_back();
        tree.back().next.fill(-1);
      }
      at = next;
    }
    tree[static_cast<size_t>(at)].is_found = true;
  }
  std::vector<int32_t> order{0};  // by depth, so that fallbacks are known
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t at = order[i];
    TreeNode& node = tree[static_cast<size_t>(at)];
    node.is_found = node.is_found || tree[static_cast<size_t>(node.fallback)].is_found;
    for (size_t byte = 0; byte < 256; ++byte) {
      const int32_t beyond = at == 0 ? 0 : tree[static_cast<size_t>(node.fallback)].next[byte];
      if (node.next[byte] < 0) {
        node.next[byte] = beyond;
      } else {
        tree[static_cast<size_t>(node.next[byte])].fallback = beyond;
        order.push_back(node.next[byte]);
      }
    }
  }
  StateGraph graph;
  for (size_t i = 0; i < tree.size(); ++i) graph.add_state(true);
  for (size_t i = 0; i < tree.size(); ++i) {
    if (tree[i].is_found) continue;
    for (size_t byte = 0; byte < 256;) {
      size_t end = byte + 1;
      while (end < 256 && tree[i].next[end] == tree[i].next[byte]) ++end;
      const int32_t target = tree[i].next[byte];
      if (!tree[static_cast<size_t>(target)].is_found) {
        graph.add_edge(static_cast<int32_t>(i),
                       GraphEdge::bytes(static_cast<uint8_t>(byte), static_cast<uint8_t>(end - 1), target));
      }
      byte = end;
    }
  }
  return graph;
}

}  // namespace

NodeIndex text_without(NodePool& pool, std::span<const std::string> strings) {
  const NodeIndex any_text = pool.repeat(pool.character({{0, kMaxCodePoint}}), 0, -1);
  if (strings.empty()) return any_text;
  for (const std::string& text : strings) CHECK(!text.empty());
  const Result<StateGraph> utf8 = lower_regular(pool, any_text);
  if (pool.work().is_spent()) return pool.never();  // the compilation will say so
  CHECK(utf8.is_ok());
  const StateGraph without = graph_without(strings);
  // The product has at most the states of one times those of the other.
  std::optional<StateGraph> both =
      intersect(without, utf8.value(), (without.states.size() + 1) * (utf8.value().states.size() + 1) + 1, pool.work());
  if (pool.work().is_spent()) return pool.never();
  CHECK(both.has_value());
  return pool.graph(std::move(*both));
}

}  // namespace quire::grammar_internal
