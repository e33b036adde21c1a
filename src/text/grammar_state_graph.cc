#include "text/grammar_state_graph.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "text/grammar_intern_table.h"

namespace quire::grammar_internal {
namespace {

using Kind = GraphEdge::Kind;

// Sets of states closed under empty edges. Only what tells sets apart stays in them: states that have an edge which is
// not empty, and final ones.
class EmptyClosure {
 public:
  EmptyClosure(const StateGraph& graph, CompileWork& work)
      : graph_(graph), work_(work), facts_(graph.states.size()), stamp_(graph.states.size(), 0) {
    for (size_t i = 0; i < graph.states.size(); ++i) {
      facts_[i].is_kept = graph.states[i].is_final;
      for (const GraphEdge& edge : graph.states[i].edges) {
        (edge.kind == Kind::kEmpty ? facts_[i].has_empty : facts_[i].is_kept) = true;
      }
    }
  }

  // All states that the given ones reach by empty edges, themselves included; sorted. Valid until the next call.
  std::span<const int32_t> of(std::span<const int32_t> states) {
    ++epoch_;
    reached_.clear();
    closed_.clear();
    for (int32_t state : states) mark(state);
    size_t num_edges = 0;
    for (size_t i = 0; i < reached_.size(); ++i) {
      const int32_t state = reached_[i];
      const Facts facts = facts_[static_cast<size_t>(state)];
      if (facts.is_kept) closed_.push_back(state);
      if (!facts.has_empty) continue;
      const std::vector<GraphEdge>& edges = graph_.state(state).edges;
      num_edges += edges.size();
      for (const GraphEdge& edge : edges) {
        if (edge.kind == Kind::kEmpty) mark(edge.target);
      }
    }
    work_.spend(reached_.size() + num_edges);
    std::sort(closed_.begin(), closed_.end());
    return closed_;
  }

 private:
  struct Facts {
    bool has_empty = false;
    bool is_kept = false;
  };

  void mark(int32_t state) {
    if (stamp_[static_cast<size_t>(state)] == epoch_) return;
    stamp_[static_cast<size_t>(state)] = epoch_;
    reached_.push_back(state);
  }

  const StateGraph& graph_;
  CompileWork& work_;
  std::vector<Facts> facts_;
  std::vector<uint32_t> stamp_;
  uint32_t epoch_ = 0;
  std::vector<int32_t> reached_, closed_;
};

// The edges that leave a set of states, with bytes cut into pieces that do not overlap.
class Outgoing {
 public:
  struct Piece {
    GraphEdge label;
    uint32_t first_target, num_targets;
  };

  Outgoing(const StateGraph& graph, CompileWork& work) : graph_(graph), work_(work) {}

  void collect(std::span<const int32_t> states) {
    pieces_.clear();
    targets_.clear();
    bytes_.clear();
    others_.clear();
    for (int32_t state : states) {
      for (const GraphEdge& edge : graph_.state(state).edges) {
        if (edge.kind == Kind::kBytes) bytes_.push_back(edge);
        if (edge.kind == Kind::kCall || edge.kind == Kind::kSpecial) others_.push_back(edge);
      }
    }
    work_.spend(states.size() + bytes_.size() + others_.size());
    if (bytes_.size() > 1) {
      std::sort(bytes_.begin(), bytes_.end(), [](const GraphEdge& a, const GraphEdge& b) { return a.first < b.first; });
    }
    const bool overlaps = std::adjacent_find(bytes_.begin(), bytes_.end(), [](const GraphEdge& a, const GraphEdge& b) {
                            return a.last >= b.first;
                          }) != bytes_.end();
    if (overlaps) {
      cut_bytes();
    } else {
      for (const GraphEdge& edge : bytes_) {
        targets_.push_back(edge.target);
        add_bytes(edge.first, edge.last, targets_.size() - 1);
      }
    }
    collect_others();
  }

  std::span<const Piece> pieces() const { return pieces_; }
  std::span<const int32_t> targets(const Piece& piece) const {
    return std::span(targets_).subspan(piece.first_target, piece.num_targets);
  }

 private:
  void cut_bytes() {
    std::array<bool, 257> is_border{};
    for (const GraphEdge& edge : bytes_) {
      is_border[edge.first] = true;
      is_border[static_cast<size_t>(edge.last) + 1] = true;
    }
    active_.clear();
    size_t next = 0;
    for (int begin = bytes_[0].first; begin < 256;) {
      int end = begin + 1;
      while (end < 256 && !is_border[static_cast<size_t>(end)]) ++end;
      std::erase_if(active_, [begin](const GraphEdge& edge) { return edge.last < begin; });
      while (next < bytes_.size() && bytes_[next].first <= begin) active_.push_back(bytes_[next++]);
      work_.spend(1 + active_.size());
      if (!active_.empty()) {
        const size_t first_target = targets_.size();
        for (const GraphEdge& edge : active_) targets_.push_back(edge.target);
        sort_targets(first_target);
        add_bytes(static_cast<uint8_t>(begin), static_cast<uint8_t>(end - 1), first_target);
      } else if (next == bytes_.size()) {
        break;
      }
      begin = end;
    }
  }

  void collect_others() {
    auto key = [](const GraphEdge& edge) { return std::pair(edge.kind, edge.index); };
    std::sort(others_.begin(), others_.end(), [&](const GraphEdge& a, const GraphEdge& b) { return key(a) < key(b); });
    for (size_t i = 0; i < others_.size();) {
      const size_t first_target = targets_.size();
      const GraphEdge label{.kind = others_[i].kind, .index = others_[i].index};
      for (; i < others_.size() && key(others_[i]) == key(label); ++i) targets_.push_back(others_[i].target);
      sort_targets(first_target);
      add_piece(label, first_target);
    }
  }

  void sort_targets(size_t first) {
    const auto begin = targets_.begin() + static_cast<std::ptrdiff_t>(first);
    std::sort(begin, targets_.end());
    targets_.erase(std::unique(begin, targets_.end()), targets_.end());
  }

  // The targets are those from first_target on. Neighbours that lead to the same are one.
  void add_bytes(uint8_t first, uint8_t last, size_t first_target) {
    if (!pieces_.empty() && pieces_.back().label.last + 1 == first &&
        std::ranges::equal(targets(pieces_.back()), std::span(targets_).subspan(first_target))) {
      pieces_.back().label.last = last;
      targets_.resize(first_target);
      return;
    }
    add_piece(GraphEdge::bytes(first, last, 0), first_target);
  }

  void add_piece(GraphEdge label, size_t first_target) {
    pieces_.push_back(
        {label, static_cast<uint32_t>(first_target), static_cast<uint32_t>(targets_.size() - first_target)});
  }

  const StateGraph& graph_;
  CompileWork& work_;
  std::vector<Piece> pieces_;
  std::vector<int32_t> targets_;
  std::vector<GraphEdge> bytes_, others_, active_;
};

bool has_final(const StateGraph& graph, std::span<const int32_t> states) {
  return std::any_of(states.begin(), states.end(), [&](int32_t state) { return graph.state(state).is_final; });
}

// Of an InternTable.
struct Member {
  int32_t state = 0;
  static constexpr int32_t stack = 0;
  bool operator==(const Member&) const = default;
};

// An edge as two numbers, with the target that stands for its own.
struct EdgeSignature {
  int32_t state = 0;  // what the edge reads
  int32_t stack = 0;  // the target
  bool operator==(const EdgeSignature&) const = default;
  auto operator<=>(const EdgeSignature&) const = default;
};

int32_t label_number(const GraphEdge& edge) {
  switch (edge.kind) {
    case Kind::kBytes:
      return edge.first << 8 | edge.last;
    case Kind::kCall:
      return (1 << 16) + edge.index;
    default:
      return -1 - edge.index;
  }
}

}  // namespace

std::optional<StateGraph> determinize(const StateGraph& graph, size_t max_states, CompileWork& work) {
  EmptyClosure closure(graph, work);
  Outgoing outgoing(graph, work);
  StateGraph result;
  InternTable<Member> sets;
  std::vector<Member> members;
  std::vector<int32_t> states;
  // Sets of many states cost as much as many sets: both count.
  size_t total_members = 0;
  auto intern = [&](std::span<const int32_t> set) {
    total_members += set.size();
    members.clear();
    for (int32_t state : set) members.push_back({state});
    const auto [id, is_new] = sets.intern(members, false);
    if (is_new) result.add_state(has_final(graph, set));
    return id;
  };
  result.start = intern(closure.of(std::span(&graph.start, 1)));
  for (size_t i = 0; i < sets.size(); ++i) {
    if (sets.size() > max_states || total_members > max_states * 4 || work.is_spent()) return std::nullopt;
    states.clear();
    for (const Member& member : sets.get(static_cast<int32_t>(i))) states.push_back(member.state);
    outgoing.collect(states);
    std::vector<GraphEdge> edges;
    edges.reserve(outgoing.pieces().size());
    for (const Outgoing::Piece& piece : outgoing.pieces()) {
      edges.push_back(piece.label);
      edges.back().target = intern(closure.of(outgoing.targets(piece)));
    }
    work.spend(2 + edges.size());
    result.states[i].edges = std::move(edges);
  }
  return remove_dead_states(std::move(result));
}

StateGraph remove_empty_edges(const StateGraph& graph, CompileWork& work) {
  EmptyClosure closure(graph, work);
  StateGraph result;
  result.start = graph.start;
  result.states.resize(graph.states.size());
  auto order = [](const GraphEdge& e) { return std::tuple(e.kind, e.first, e.last, e.index, e.target); };
  for (size_t i = 0; i < graph.states.size() && !work.is_spent(); ++i) {
    const auto index = static_cast<int32_t>(i);
    const std::span<const int32_t> closed = closure.of(std::span(&index, 1));
    std::vector<GraphEdge>& edges = result.states[i].edges;
    result.states[i].is_final = has_final(graph, closed);
    for (int32_t member : closed) {
      for (const GraphEdge& edge : graph.state(member).edges) {
        if (edge.kind != Kind::kEmpty) edges.push_back(edge);
      }
    }
    // Edges of a state are in order in what follows, and cost as much again there.
    work.spend(4 * edges.size());
    std::sort(edges.begin(), edges.end(), [&](const GraphEdge& a, const GraphEdge& b) { return order(a) < order(b); });
    edges.erase(std::unique(edges.begin(), edges.end(),
                            [&](const GraphEdge& a, const GraphEdge& b) { return order(a) == order(b); }),
                edges.end());
  }
  return remove_dead_states(std::move(result));
}

StateGraph remove_dead_states(StateGraph graph) {
  const size_t num_states = graph.states.size();
  std::vector<bool> is_reached(num_states, false);
  std::vector<int32_t> work{graph.start};
  is_reached[static_cast<size_t>(graph.start)] = true;
  std::vector<uint32_t> first_source(num_states + 1, 0);  // in `sources`, by target
  while (!work.empty()) {
    const int32_t state = work.back();
    work.pop_back();
    for (const GraphEdge& edge : graph.state(state).edges) {
      const auto target = static_cast<size_t>(edge.target);
      ++first_source[target];
      if (is_reached[target]) continue;
      is_reached[target] = true;
      work.push_back(edge.target);
    }
  }
  // Filled from behind, so that each list's end becomes its beginning.
  for (size_t i = 0; i < num_states; ++i) first_source[i + 1] += first_source[i];
  std::vector<int32_t> sources(first_source[num_states]);
  for (size_t i = 0; i < num_states; ++i) {
    if (!is_reached[i]) continue;
    for (const GraphEdge& edge : graph.states[i].edges) {
      sources[--first_source[static_cast<size_t>(edge.target)]] = static_cast<int32_t>(i);
    }
  }
  std::vector<bool> is_alive(num_states, false);
  for (size_t i = 0; i < num_states; ++i) {
    if (!is_reached[i] || !graph.states[i].is_final) continue;
    is_alive[i] = true;
    work.push_back(static_cast<int32_t>(i));
  }
  while (!work.empty()) {
    const auto state = static_cast<size_t>(work.back());
    work.pop_back();
    for (uint32_t s = first_source[state]; s < first_source[state + 1]; ++s) {
      const int32_t source = sources[s];
      if (is_alive[static_cast<size_t>(source)]) continue;
      is_alive[static_cast<size_t>(source)] = true;
      work.push_back(source);
    }
  }
  is_alive[static_cast<size_t>(graph.start)] = true;  // a graph has a start, if only to say that nothing matches
  std::vector<int32_t> new_index(num_states, -1);
  int32_t num_alive = 0;
  for (size_t i = 0; i < num_states; ++i) {
    if (is_alive[i]) new_index[i] = num_alive++;
  }
  for (size_t i = 0; i < num_states; ++i) {
    if (!is_alive[i]) continue;
    std::vector<GraphEdge>& edges = graph.states[i].edges;
    std::erase_if(edges, [&](const GraphEdge& edge) { return new_index[static_cast<size_t>(edge.target)] < 0; });
    for (GraphEdge& edge : edges) edge.target = new_index[static_cast<size_t>(edge.target)];
    const auto to = static_cast<size_t>(new_index[i]);
    if (to != i) graph.states[to] = std::move(graph.states[i]);
  }
  graph.states.resize(static_cast<size_t>(num_alive));
  graph.start = new_index[static_cast<size_t>(graph.start)];
  return graph;
}

StateGraph join_equal_ends(StateGraph graph, CompileWork& work) {
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
  InternTable<EdgeSignature> known;
  std::vector<int32_t> first_with;  // by the number of the signature: the state that stands for all
  std::vector<EdgeSignature> signature;
  std::vector<int32_t> representative(num_states);
  for (size_t i = 0; i < num_states; ++i) representative[i] = static_cast<int32_t>(i);
  for (int32_t state : order) {
    signature.clear();
    for (const GraphEdge& edge : graph.state(state).edges) {
      signature.push_back({label_number(edge), representative[static_cast<size_t>(edge.target)]});
    }
    work.spend(2 + signature.size());
    std::sort(signature.begin(), signature.end());
    const auto [id, is_new] = known.intern(signature, graph.state(state).is_final);
    if (is_new) first_with.push_back(state);
    representative[static_cast<size_t>(state)] = first_with[static_cast<size_t>(id)];
  }
  for (GraphState& state : graph.states) {
    for (GraphEdge& edge : state.edges) edge.target = representative[static_cast<size_t>(edge.target)];
  }
  graph.start = representative[static_cast<size_t>(graph.start)];
  return remove_dead_states(std::move(graph));
}

std::optional<StateGraph> intersect(const StateGraph& a, const StateGraph& b, size_t max_states, CompileWork& work) {
  std::optional<StateGraph> left = determinize(a, max_states, work);
  std::optional<StateGraph> right = determinize(b, max_states, work);
  if (!left || !right) return std::nullopt;
  StateGraph result;
  InternTable<EdgeSignature> ids;
  std::vector<std::pair<int32_t, int32_t>> pairs;
  auto intern = [&](int32_t x, int32_t y) {
    const EdgeSignature pair{x, y};
    const auto [id, is_new] = ids.intern(std::span(&pair, 1), false);
    if (is_new) {
      pairs.emplace_back(x, y);
      result.add_state(left->state(x).is_final && right->state(y).is_final);
    }
    return id;
  };
  result.start = intern(left->start, right->start);
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pairs.size() > max_states || work.is_spent()) return std::nullopt;
    const auto [x, y] = pairs[i];
    work.spend(4 + left->state(x).edges.size() * (1 + right->state(y).edges.size()));
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
  return join_equal_ends(remove_dead_states(std::move(result)), work);
}

std::optional<StateGraph> complement(const StateGraph& graph, size_t max_states, CompileWork& work) {
  std::optional<StateGraph> result = determinize(graph, max_states, work);
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

bool accepts_text(const StateGraph& graph, std::string_view text, CompileWork& work) {
  std::set<int32_t> states{graph.start};
  for (char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    std::set<int32_t> next;
    for (int32_t state : states) {
      if (!work.spend(4 + graph.state(state).edges.size())) return false;
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
