#include "text/grammar_json.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "text/utf8.h"

namespace quire::grammar_internal {
namespace {

constexpr int kMaxIndentSpaces = 40;
constexpr int kMaxIndentTabs = 10;

struct ShortEscape {
  char32_t character;
  std::string_view text;
};
constexpr ShortEscape kShortEscapes[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'\b', "\\b"}, {'\f', "\\f"},
                                         {'\n', "\\n"}, {'\r', "\\r"},  {'\t', "\\t"}};

const std::vector<CodePointRange>& plain_characters() {
  static const std::vector<CodePointRange> ranges =
      normalize_ranges({{0x20, 0x21}, {0x23, 0x5B}, {0x5D, kMaxCodePoint}});
  return ranges;
}

NodeIndex shared(NodePool& pool, const std::string& name, const std::function<NodeIndex()>& make) {
  const auto found = pool.shared_parts().find(name);
  if (found != pool.shared_parts().end()) return found->second;
  const NodeIndex node = make();
  pool.shared_parts().emplace(name, node);
  return node;
}

// A rule that keeps an automaton of its own, so that all grammars share what was computed for it.
NodeIndex shared_rule(NodePool& pool, const std::string& name, const std::function<NodeIndex()>& make_body) {
  const auto found = pool.shared_parts().find(name);
  if (found != pool.shared_parts().end()) return found->second;
  const NodeIndex rule = pool.declare_rule(name, true);
  pool.shared_parts().emplace(name, rule);
  pool.define_rule(rule, make_body());
  return rule;
}

std::string suffix(JsonWhitespace whitespace) {
  return whitespace == JsonWhitespace::kCompact ? " compact" : "";
}

std::string escape_of(char32_t character) {
  for (const ShortEscape& escape : kShortEscapes) {
    if (escape.character == character) return std::string(escape.text);
  }
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "\\u00";
  text += kDigits[(character >> 4) & 0xF];
  text += kDigits[character & 0xF];
  return text;
}

bool must_be_escaped(char32_t character) {
  return character < 0x20 || character == '"' || character == '\\';
}

NodeIndex hex_digits(NodePool& pool, int count) {
  return pool.repeat(pool.character({{'0', '9'}, {'A', 'F'}, {'a', 'f'}}), count, count);
}

NodeIndex unicode_escape(NodePool& pool) {
  const NodeIndex u = pool.bytes("\\u");
  const NodeIndex d = pool.character({{'D', 'D'}, {'d', 'd'}});
  const NodeIndex other = pool.character({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}});
  const NodeIndex low_digit = pool.character({{'0', '7'}});
  const NodeIndex high_half = pool.character({{'8', '9'}, {'A', 'B'}, {'a', 'b'}});
  const NodeIndex low_half = pool.character({{'C', 'F'}, {'c', 'f'}});
  const NodeIndex pair = pool.sequence({d, high_half, hex_digits(pool, 2), u, d, low_half, hex_digits(pool, 2)});
  return pool.sequence({u, pool.alternatives({pool.sequence({other, hex_digits(pool, 3)}),
                                              pool.sequence({d, low_digit, hex_digits(pool, 2)}), pair})});
}

}  // namespace

NodeIndex json_space(NodePool& pool, JsonWhitespace whitespace) {
  if (whitespace == JsonWhitespace::kCompact) return shared(pool, "json no space", [&] { return pool.empty(); });
  return shared_rule(pool, "json space", [&] {
    const NodeIndex indent = pool.alternatives(
        {pool.repeat(pool.bytes(" "), 0, kMaxIndentSpaces), pool.repeat(pool.bytes("\t"), 1, kMaxIndentTabs)});
    return pool.optional(pool.alternatives({pool.bytes(" "), pool.sequence({pool.bytes("\n"), indent})}));
  });
}

NodeIndex json_any_character(NodePool& pool) {
  return shared(pool, "json character", [&] {
    const NodeIndex simple = pool.sequence(
        {pool.bytes("\\"),
         pool.character(
             {{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 'b'}, {'f', 'f'}, {'n', 'n'}, {'r', 'r'}, {'t', 't'}})});
    return pool.alternatives({pool.character(plain_characters()), simple, unicode_escape(pool)});
  });
}

NodeIndex json_character(NodePool& pool, const std::vector<CodePointRange>& ranges) {
  std::vector<NodeIndex> parts;
  const std::vector<CodePointRange> plain = intersect_ranges(ranges, plain_characters());
  if (!plain.empty()) parts.push_back(pool.character(plain));
  for (const CodePointRange& range : ranges) {
    for (char32_t c = range.first; c <= std::min<char32_t>(range.last, '\\'); ++c) {
      if (must_be_escaped(c)) parts.push_back(pool.bytes(escape_of(c)));
    }
  }
  return pool.alternatives(std::move(parts));
}

NodeIndex json_string(NodePool& pool) {
  return shared_rule(pool, "json string", [&] {
    return pool.sequence({pool.bytes("\""), pool.repeat(json_any_character(pool), 0, -1), pool.bytes("\"")});
  });
}

NodeIndex json_integer(NodePool& pool) {
  return shared_rule(pool, "json integer", [&] {
    const NodeIndex digits =
        pool.sequence({pool.character({{'1', '9'}}), pool.repeat(pool.character({{'0', '9'}}), 0, -1)});
    return pool.sequence({pool.optional(pool.bytes("-")), pool.alternatives({pool.bytes("0"), digits})});
  });
}

NodeIndex json_number(NodePool& pool) {
  return shared_rule(pool, "json number", [&] {
    const NodeIndex digit = pool.character({{'0', '9'}});
    const NodeIndex digits = pool.repeat(digit, 1, -1);
    const NodeIndex whole =
        pool.alternatives({pool.bytes("0"), pool.sequence({pool.character({{'1', '9'}}), pool.repeat(digit, 0, -1)})});
    const NodeIndex fraction = pool.sequence({pool.bytes("."), digits});
    const NodeIndex exponent = pool.sequence(
        {pool.character({{'e', 'e'}, {'E', 'E'}}), pool.optional(pool.character({{'+', '+'}, {'-', '-'}})), digits});
    return pool.sequence({pool.optional(pool.bytes("-")), whole, pool.optional(fraction), pool.optional(exponent)});
  });
}

NodeIndex json_value(NodePool& pool, JsonWhitespace whitespace) {
  return shared_rule(pool, "json value" + suffix(whitespace), [&] {
    return pool.alternatives({json_object(pool, whitespace), json_array(pool, whitespace), json_string(pool),
                              json_number(pool), pool.bytes("true"), pool.bytes("false"), pool.bytes("null")});
  });
}

NodeIndex json_object(NodePool& pool, JsonWhitespace whitespace) {
  return shared_rule(pool, "json object" + suffix(whitespace), [&] {
    const NodeIndex space = json_space(pool, whitespace);
    const NodeIndex pair = pool.sequence({json_string(pool), pool.bytes(":"), space, json_value(pool, whitespace)});
    const NodeIndex more = pool.repeat(pool.sequence({pool.bytes(","), space, pair}), 0, -1);
    return pool.sequence({pool.bytes("{"), space, pool.optional(pool.sequence({pair, more, space})), pool.bytes("}")});
  });
}

NodeIndex json_array(NodePool& pool, JsonWhitespace whitespace) {
  return shared_rule(pool, "json array" + suffix(whitespace), [&] {
    const NodeIndex space = json_space(pool, whitespace);
    const NodeIndex value = json_value(pool, whitespace);
    const NodeIndex more = pool.repeat(pool.sequence({pool.bytes(","), space, value}), 0, -1);
    return pool.sequence({pool.bytes("["), space, pool.optional(pool.sequence({value, more, space})), pool.bytes("]")});
  });
}

std::string quote_json(std::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (must_be_escaped(byte)) {
      quoted += escape_of(byte);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

NodeIndex json_string_except(NodePool& pool, const std::vector<std::string>& excluded) {
  if (excluded.empty()) return json_string(pool);
  const std::vector<CodePointRange> all = normalize_ranges({{0, kMaxCodePoint}});
  const NodeIndex rest = pool.repeat(json_character(pool, all), 0, -1);
  // A tree of the excluded strings' characters. Where a path leaves the tree anything may follow; where it ends the
  // string may not.
  struct TreeNode {
    std::map<char32_t, size_t> children;
    bool is_excluded = false;
  };
  std::vector<TreeNode> tree(1);
  for (const std::string& text : excluded) {
    size_t at = 0;
    for (size_t i = 0; i < text.size();) {
      const DecodedCodePoint c = decode_code_point(text, i);
      i += c.num_bytes;
      const auto [it, is_new] = tree[at].children.try_emplace(c.value, tree.size());
      const size_t next = it->second;
      if (is_new) tree.emplace_back();
      at = next;
    }
    tree[at].is_excluded = true;
  }
  // Children have greater indices than their parents.
  std::vector<NodeIndex> node_of(tree.size(), kNoNode);
  for (size_t i = tree.size(); i-- > 0;) {
    std::vector<CodePointRange> taken;
    std::vector<NodeIndex> ways;
    for (const auto& [character, child] : tree[i].children) {
      taken.push_back({character, character});
      ways.push_back(pool.sequence({json_character(pool, {{character, character}}), node_of[child]}));
    }
    ways.push_back(pool.sequence({json_character(pool, complement_ranges(normalize_ranges(std::move(taken)))), rest}));
    if (!tree[i].is_excluded) ways.push_back(pool.empty());
    node_of[i] = pool.alternatives(std::move(ways));
  }
  return pool.sequence({pool.bytes("\""), node_of[0], pool.bytes("\"")});
}

}  // namespace quire::grammar_internal
