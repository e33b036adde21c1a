#include "text/grammar_regex.h"

#include <algorithm>
#include <span>
#include <utility>

namespace quire::grammar_internal {
namespace {

using Kind = RegexNode::Kind;

constexpr int64_t kMaxLength = int64_t{1} << 40;

// Where a part stands: at the edges of the text '^' and '$' mean something, and a search goes on beyond them.
struct Edges {
  bool is_first = false, is_last = false;
};

class RegexToNode {
 public:
  RegexToNode(NodePool& pool, const RegexOptions& options) : pool_(pool), options_(options) {}

  Result<NodeIndex> convert(const RegexNode& regex, Edges edges) {
    if (!regex.has_anchor) return around(plain(regex), edges);
    switch (regex.kind) {
      case Kind::kTextStart:
        if (!edges.is_first) return misplaced();
        return around(pool_.empty(), {.is_first = false, .is_last = edges.is_last});
      case Kind::kTextEnd:
        if (!edges.is_last) return misplaced();
        return around(pool_.empty(), {.is_first = edges.is_first, .is_last = false});
      case Kind::kAlternatives: {
        std::vector<NodeIndex> parts;
        for (const RegexNode& child : regex.children) {
          ASSIGN_OR_RETURN(const NodeIndex part, convert(child, edges));
          parts.push_back(part);
        }
        return pool_.alternatives(std::move(parts));
      }
      case Kind::kSequence:
        return convert_sequence(regex.children, edges);
      default:
        return misplaced();
    }
  }

 private:
  static Status misplaced() {
    return unimplemented("'^' and '$' are supported only at the beginning and the end of a pattern or an alternative");
  }

  NodeIndex any_text() {
    if (any_text_ == kNoNode) {
      const std::vector<CodePointRange> all = normalize_ranges({{0, kMaxCodePoint}});
      any_text_ = pool_.repeat(make_character(all), 0, -1);
    }
    return any_text_;
  }

  NodeIndex make_character(const std::vector<CodePointRange>& ranges) {
    return options_.make_character ? options_.make_character(pool_, ranges) : pool_.character(ranges);
  }

  NodeIndex around(NodeIndex node, Edges edges) {
    if (!options_.is_search || (!edges.is_first && !edges.is_last)) return node;
    std::vector<NodeIndex> parts;
    if (edges.is_first) parts.push_back(any_text());
    parts.push_back(node);
    if (edges.is_last) parts.push_back(any_text());
    return pool_.sequence(std::move(parts));
  }

  Result<NodeIndex> convert_sequence(std::span<const RegexNode> parts, Edges edges) {
    // Leading '^' and trailing '$' fix the edges for all that is between.
    bool starts = false, ends = false;
    while (!parts.empty() && parts.front().kind == Kind::kTextStart && edges.is_first) {
      parts = parts.subspan(1);
      starts = true;
    }
    while (!parts.empty() && parts.back().kind == Kind::kTextEnd && edges.is_last) {
      parts = parts.first(parts.size() - 1);
      ends = true;
    }
    std::vector<NodeIndex> nodes;
    if (parts.empty()) {
      return around(pool_.empty(), {.is_first = edges.is_first && !starts, .is_last = edges.is_last && !ends});
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      // A part behind '^' may have a '^' of its own; it needs no text before it either way.
      const bool is_first = i == 0 && edges.is_first;
      const bool is_last = i + 1 == parts.size() && edges.is_last;
      if (parts[i].has_anchor) {
        if ((is_first && starts) || (is_last && ends)) return misplaced();
        ASSIGN_OR_RETURN(const NodeIndex node, convert(parts[i], {.is_first = is_first, .is_last = is_last}));
        nodes.push_back(node);
      } else {
        nodes.push_back(around(plain(parts[i]), {.is_first = is_first && !starts, .is_last = is_last && !ends}));
      }
    }
    return pool_.sequence(std::move(nodes));
  }

  NodeIndex plain(const RegexNode& regex) {
    std::vector<NodeIndex> children;
    for (const RegexNode& child : regex.children) children.push_back(plain(child));
    switch (regex.kind) {
      case Kind::kCharacter:
        return make_character(regex.ranges);
      case Kind::kSequence:
        return pool_.sequence(std::move(children));
      case Kind::kAlternatives:
        return pool_.alternatives(std::move(children));
      case Kind::kRepeat:
        return pool_.repeat(children[0], regex.min_count, regex.max_count);
      default:
        return pool_.empty();
    }
  }

  NodePool& pool_;
  const RegexOptions& options_;
  NodeIndex any_text_ = kNoNode;
};

}  // namespace

RegexLength length_of(const RegexNode& regex) {
  RegexLength length;
  switch (regex.kind) {
    case Kind::kCharacter:
      return {1, 1};
    case Kind::kSequence:
      for (const RegexNode& child : regex.children) {
        const RegexLength part = length_of(child);
        length.min = std::min(kMaxLength, length.min + part.min);
        length.max = length.max == -1 || part.max == -1 ? -1 : std::min(kMaxLength, length.max + part.max);
      }
      return length;
    case Kind::kAlternatives:
      length = {kMaxLength, 0};
      for (const RegexNode& child : regex.children) {
        const RegexLength part = length_of(child);
        length.min = std::min(length.min, part.min);
        length.max = length.max == -1 || part.max == -1 ? -1 : std::max(length.max, part.max);
      }
      return length;
    case Kind::kRepeat: {
      const RegexLength part = length_of(regex.children[0]);
      length.min = std::min(kMaxLength, part.min * regex.min_count);
      if (part.max == 0 || regex.max_count == 0) return length;
      length.max = part.max == -1 || regex.max_count == -1 ? -1 : std::min(kMaxLength, part.max * regex.max_count);
      return length;
    }
    default:
      return length;
  }
}

Result<NodeIndex> regex_to_node(NodePool& pool, const RegexNode& regex, const RegexOptions& options) {
  return RegexToNode(pool, options).convert(regex, {.is_first = true, .is_last = true});
}

}  // namespace quire::grammar_internal
