#include "text/grammar_state_graph.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace quire::grammar_internal {
namespace {

using Kind = GraphEdge::Kind;

class EmptyClosure {
 public:
  explicit EmptyClosure(const StateGraph& graph) : graph_(graph), stamp_(graph.states.size(), 0) {}

  // All states that the given ones reach by empty edges, themselves included; sorted.
  std::vector<int32_t> of(std::vector<int32_t> states) {
    ++epoch_;
    std::vector<int32_t> closed;
    for (int32_t state : states) mark(state, closed);
    for (size_t i = 0; i < closed.size(); ++i) {
      for (const GraphEdge& edge : graph_.state(closed[i]).edges) {
        if (edge.kind == Kind::kEmpty) mark(edge.target, closed);
      }
    }
    std::sort(closed.begin(), closed.end());
    return closed;
  }

 private:
  void mark(int32_t state, std::vector<int32_t>& closed) {
    if (stamp_[static_cast<size_t>(state)] == epoch_) return;
    stamp_[static_cast<size_t>(state)] = epoch_;
    closed.push_back(state);
  }

  const StateGraph& graph_;
  std::vector<uint32_t> stamp_;
  uint32_t epoch_ = 0;
};

// The edges that leave a set of states, with bytes cut into pieces that do not overlap.
struct Outgoing {
  struct Piece {
    GraphEdge label;
    std::vector<int32_t> targets;
  };
  std::vector<Piece> pieces;
};

Outgoing outgoing_of(const StateGraph& graph, const std::vector<int32_t>& states) {
  Outgoing outgoing;
  std::vector<GraphEdge> byte_edges;
  std::map<std::pair<Kind, int32_t>, std::vector<int32_t>> others;
  for (int32_t state : states) {
    for (const GraphEdge& edge : graph.state(state).edges) {
      if (edge.kind == Kind::kBytes) byte_edges.push_back(edge);
      if (edge.kind == Kind::kCall || edge.kind == Kind::kSpecial) {
        others[{edge.kind, edge.index}].push_back(edge.target);
      }
    }
  }
  std::array<bool, 257> is_border{};
  for (const GraphEdge& edge : byte_edges) {
    is_border[edge.first] = true;
    is_border[static_cast<size_t>(edge.last) + 1] = true;
  }
  std::sort(byte_edges.begin(), byte_edges.end(),
            [](const GraphEdge& a, const GraphEdge& b) { return a.first < b.first; });
  std::vector<GraphEdge> active;
  size_t next = 0;
  for (int begin = 0; begin < 256;) {
    int end = begin + 1;
    while (end < 256 && !is_border[static_cast<size_t>(end)]) ++end;
    std::erase_if(active, [begin](const GraphEdge& edge) { return edge.last < begin; });
    while (next < byte_edges.size() && byte_edges[next].first <= begin) active.push_back(byte_edges[next++]);
    if (!active.empty()) {
      std::vector<int32_t> targets;
      for (const GraphEdge& edge : active) targets.push_back(edge.target);
      std::sort(targets.begin(), targets.end());
      targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
      const auto first = static_cast<uint8_t>(begin);
      const auto last = static_cast<uint8_t>(end - 1);
      Outgoing::Piece* previous = outgoing.pieces.empty() ? nullptr : &outgoing.pieces.back();
      if (previous != nullptr && previous->label.last + 1 == begin && previous->targets == targets) {
        previous->label.last = last;
      } else {
        outgoing.pieces.push_back({GraphEdge::bytes(first, last, 0), std::move(targets)});
      }
    }
    begin = end;
  }
  for (auto& [key, targets] : others) {
    GraphEdge label{.kind = key.first, .index = key.second};
    outgoing.pieces.push_back({label, std::move(targets)});
  }
  return outgoing;
}

bool has_final(const StateGraph& graph, const std::vector<int32_t>& states) {
  return std::any_of(states.begin(), states.end(), [&](int32_t state) { return graph.state(state).is_final; });
}

}  // namespace

std::optional<StateGraph> determinize(const StateGraph& graph, size_t max_states) {
  EmptyClosure closure(graph);
  StateGraph result;
  std::map<std::vector<int32_t>, int32_t> ids;
  std::vector<const std::vector<int32_t>*> sets;
  // Sets of many states cost as much as many sets: both count.
  size_t total_members = 0;
  auto intern = [&](std::vector<int32_t> set) {
    total_members += set.size();
    const auto [it, is_new] = ids.try_emplace(std::move(set), static_cast<int32_t>(sets.size()));
    if (is_new) {
      sets.push_back(&it->first);
      result.add_state(has_final(graph, it->first));
    }
    return it->second;
  };
  result.start = intern(closure.of({graph.start}));
  for (size_t i = 0; i < sets.size(); ++i) {
    if (sets.size() > max_states || total_members > max_states * 4) return std::nullopt;
    Outgoing outgoing = outgoing_of(graph, *sets[i]);
    for (Outgoing::Piece& piece : outgoing.pieces) {
      GraphEdge edge = piece.label;
      edge.target = intern(closure.of(std::move(piece.targets)));
      result.states[i].edges.push_back(edge);
    }
  }
  return remove_dead_states(result);
}

StateGraph remove_empty_edges(const StateGraph& graph) {
  EmptyClosure closure(graph);
  StateGraph result;
  result.start = graph.start;
  for (size_t i = 0; i < graph.states.size(); ++i) {
    const std::vector<int32_t> closed = closure.of({static_cast<int32_t>(i)});
    GraphState state{.edges = {}, .is_final = has_final(graph, closed)};
    for (int32_t member : closed) {
      for (const GraphEdge& edge : graph.state(member).edges) {
        if (edge.kind != Kind::kEmpty) state.edges.push_back(edge);
      }
    }
    auto order = [](const GraphEdge& e) { return std::tuple(e.kind, e.first, e.last, e.index, e.target); };
    std::sort(state.edges.begin(), state.edges.end(),
              [&](const GraphEdge& a, const GraphEdge& b) { return order(a) < order(b); });
    state.edges.erase(std::unique(state.edges.begin(), state.edges.end(),
                                  [&](const GraphEdge& a, const GraphEdge& b) { return order(a) == order(b); }),
                      state.edges.end());
    result.states.push_back(std::move(state));
  }
  return remove_dead_states(result);
}

StateGraph remove_dead_states(const StateGraph& graph) {
  const size_t num_states = graph.states.size();
  std::vector<bool> is_reached(num_states, false);
  std::vector<int32_t> work{graph.start};
  is_reached[static_cast<size_t>(graph.start)] = true;
  std::vector<std::vector<int32_t>> sources(num_states);
  while (!work.empty()) {
    const int32_t state = work.back();
    work.pop_back();
    for (const GraphEdge& edge : graph.state(state).edges) {
      sources[static_cast<size_t>(edge.target)].push_back(state);
      if (is_reached[static_cast<size_t>(edge.target)]) continue;
      is_reached[static_cast<size_t>(edge.target)] = true;
      work.push_back(edge.target);
    }
  }
  std::vector<bool> is_alive(num_states, false);
  for (size_t i = 0; i < num_states; ++i) {
    if (!is_reached[i] || !graph.states[i].is_final) continue;
    is_alive[i] = true;
    work.push_back(static_cast<int32_t>(i));
  }
  while (!work.empty()) {
    const int32_t state = work.back();
    work.pop_back();
    for (int32_t source : sources[static_cast<size_t>(state)]) {
      if (is_alive[static_cast<size_t>(source)]) continue;
      is_alive[static_cast<size_t>(source)] = true;
      work.push_back(source);
    }
  }
  is_alive[static_cast<size_t>(graph.start)] = true;  // a graph has a start, if only to say that nothing matches
  std::vector<int32_t> new_index(num_states, -1);
  StateGraph result;
  for (size_t i = 0; i < num_states; ++i) {
    if (is_alive[i]) new_index[i] = result.add_state(graph.states[i].is_final);
  }
  for (size_t i = 0; i < num_states; ++i) {
    if (!is_alive[i]) continue;
    for (GraphEdge edge : graph.states[i].edges) {
      edge.target = new_index[static_cast<size_t>(edge.target)];
      if (edge.target >= 0) result.add_edge(new_index[i], edge);
    }
  }
  result.start = new_index[static_cast<size_t>(graph.start)];
  return result;
}

StateGraph join_equal_ends(const StateGraph& graph) {
  const size_t num_states = graph.states.size();
  // States in an order in which targets come first, loops aside.
  std::vector<int32_t> order;
  std::vector<bool> is_seen(num_states, false);
  struct Visit {
    int32_t state;
    size_t next_edge;
  };
  std::vector<Visit> stack{{graph.start, 0}};
  is_seen[static_cast<size_t>(graph.start)] = true;
  while (!stack.empty()) {
    Visit& visit = stack.back();
    const std::vector<GraphEdge>& edges = graph.state(visit.state).edges;
    if (visit.next_edge == edges.size()) {
      order.push_back(visit.state);
      stack.pop_back();
      continue;
    }
    const int32_t target = edges[visit.next_edge++].target;
    if (is_seen[static_cast<size_t>(target)]) continue;
    is_seen[static_cast<size_t>(target)] = true;
    stack.push_back({target, 0});
  }
  // Every state's edges with the targets' representatives; a target inside a loop that is not done yet stands for
  // itself.
  using Signature = std::pair<bool, std::vector<std::tuple<Kind, uint8_t, uint8_t, int32_t, int32_t>>>;
  std::map<Signature, int32_t> known;
  std::vector<int32_t> representative(num_states);
  for (size_t i = 0; i < num_states; ++i) representative[i] = static_cast<int32_t>(i);
  for (int32_t state : order) {
    Signature signature{graph.state(state).is_final, {}};
    for (const GraphEdge& edge : graph.state(state).edges) {
      signature.second.emplace_back(edge.kind, edge.first, edge.last, edge.index,
                                    representative[static_cast<size_t>(edge.target)]);
    }
    std::sort(signature.second.begin(), signature.second.end());
    representative[static_cast<size_t>(state)] = known.try_emplace(std::move(signature), state).first->second;
  }
  StateGraph result = graph;
  for (GraphState& state : result.states) {
    for (GraphEdge& edge : state.edges) edge.target = representative[static_cast<size_t>(edge.target)];
  }
  result.start = representative[static_cast<size_t>(graph.start)];
  return remove_dead_states(result);
}

std::optional<StateGraph> intersect(const StateGraph& a, const StateGraph& b, size_t max_states) {
  std::optional<StateGraph> left = determinize(a, max_states);
  std::optional<StateGraph> right = determinize(b, max_states);
  if (!left || !right) return std::nullopt;
  StateGraph result;
  std::map<std::pair<int32_t, int32_t>, int32_t> ids;
  std::vector<std::pair<int32_t, int32_t>> pairs;
  auto intern = [&](int32_t x, int32_t y) {
    const auto [it, is_new] = ids.try_emplace({x, y}, static_cast<int32_t>(pairs.size()));
    if (is_new) {
      pairs.emplace_back(x, y);
      result.add_state(left->state(x).is_final && right->state(y).is_final);
    }
    return it->second;
  };
  result.start = intern(left->start, right->start);
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pairs.size() > max_states) return std::nullopt;
    const auto [x, y] = pairs[i];
    for (const GraphEdge& p : left->state(x).edges) {
      CHECK(p.kind == Kind::kBytes);
      for (const GraphEdge& q : right->state(y).edges) {
        const uint8_t first = std::max(p.first, q.first);
        const uint8_t last = std::min(p.last, q.last);
        if (first > last) continue;
        const int32_t target = intern(p.target, q.target);
        result.states[i].edges.push_back(GraphEdge::bytes(first, last, target));
      }
    }
  }
  return join_equal_ends(remove_dead_states(result));
}

std::optional<StateGraph> complement(const StateGraph& graph, size_t max_states) {
  std::optional<StateGraph> result = determinize(graph, max_states);
  if (!result) return std::nullopt;
  const int32_t outside = result->add_state();
  for (GraphState& state : result->states) {
    state.is_final = !state.is_final;
    std::sort(state.edges.begin(), state.edges.end(),
              [](const GraphEdge& a, const GraphEdge& b) { return a.first < b.first; });
    std::vector<GraphEdge> edges;
    int next = 0;
    for (const GraphEdge& edge : state.edges) {
      if (edge.first > next) {
        edges.push_back(GraphEdge::bytes(static_cast<uint8_t>(next), static_cast<uint8_t>(edge.first - 1), outside));
      }
      edges.push_back(edge);
      next = edge.last + 1;
    }
    if (next < 256) edges.push_back(GraphEdge::bytes(static_cast<uint8_t>(next), 255, outside));
    state.edges = std::move(edges);
  }
  return result;
}

bool accepts_text(const StateGraph& graph, std::string_view text) {
  std::set<int32_t> states{graph.start};
  for (char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    std::set<int32_t> next;
    for (int32_t state : states) {
      for (const GraphEdge& edge : graph.state(state).edges) {
        if (edge.kind == Kind::kBytes && edge.first <= byte && byte <= edge.last) next.insert(edge.target);
      }
    }
    states = std::move(next);
  }
  return std::any_of(states.begin(), states.end(), [&](int32_t state) { return graph.state(state).is_final; });
}

bool accepts_nothing(const StateGraph& without_dead_states) {
  const GraphState& start = without_dead_states.state(without_dead_states.start);
  return !start.is_final && start.edges.empty();
}

void add_utf8_range(StateGraph& graph, int32_t from, int32_t to, char32_t first, char32_t last) {
  struct Form {
    char32_t first, last;
    int num_continuations;
    uint8_t lead;
  };
  static constexpr Form kForms[] = {
      {0, 0x7F, 0, 0x00}, {0x80, 0x7FF, 1, 0xC0}, {0x800, 0xFFFF, 2, 0xE0}, {0x10000, 0x10FFFF, 3, 0xF0}};
  // Ranges of the code points' trailing bits: cut where the higher bits differ, until every byte is a range of its own.
  struct Writer {
    StateGraph& graph;
    void write(int32_t begin, int32_t end, char32_t low, char32_t high, int num_bytes, uint8_t lead) {
      if (num_bytes == 0) {
        graph.add_edge(begin,
                       GraphEdge::bytes(static_cast<uint8_t>(lead | low), static_cast<uint8_t>(lead | high), end));
        return;
      }
      const int shift = 6 * num_bytes;
      const char32_t mask = (char32_t{1} << shift) - 1;
      if ((low & ~mask) != (high & ~mask)) {
        if ((low & mask) != 0) {
          write(begin, end, low, low | mask, num_bytes, lead);
          write(begin, end, (low | mask) + 1, high, num_bytes, lead);
          return;
        }
        if ((high & mask) != mask) {
          write(begin, end, low, (high & ~mask) - 1, num_bytes, lead);
          write(begin, end, high & ~mask, high, num_bytes, lead);
          return;
        }
        // Whole blocks: the leading byte ranges, the rest is anything.
        const int32_t middle = graph.add_state();
        graph.add_edge(begin, GraphEdge::bytes(static_cast<uint8_t>(lead | (low >> shift)),
                                               static_cast<uint8_t>(lead | (high >> shift)), middle));
        write(middle, end, 0, mask, num_bytes - 1, 0x80);
        return;
      }
      const int32_t middle = graph.add_state();
      const auto byte = static_cast<uint8_t>(lead | (low >> shift));
      graph.add_edge(begin, GraphEdge::bytes(byte, byte, middle));
      write(middle, end, low & mask, high & mask, num_bytes - 1, 0x80);
    }
  };
  Writer writer{graph};
  for (const Form& form : kForms) {
    const char32_t low = std::max(first, form.first);
    const char32_t high = std::min(last, form.last);
    if (low <= high) writer.write(from, to, low, high, form.num_continuations, form.lead);
  }
}

}  // namespace quire::grammar_internal
