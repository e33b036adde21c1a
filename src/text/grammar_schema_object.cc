// Objects of a schema: named properties in order, further keys behind them, and how many. See
// grammar_schema_compiler.h.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "text/grammar_json.h"
#include "text/grammar_lowering.h"
#include "text/grammar_schema_compiler.h"
#include "text/grammar_schema_members.h"

namespace quire::grammar_internal {
namespace {

namespace json = boost::json;

constexpr size_t kMaxKeyStates = 60'000;
constexpr size_t kMaxKeyPatterns = 4;
constexpr int64_t kMaxCountedMembers = 20'000;

const json::object* member_object(const SchemaPart& part, std::string_view key) {
  if (!part.schema->is_object()) return nullptr;
  const json::value* value = part.schema->get_object().if_contains(key);
  return value != nullptr && value->is_object() ? &value->get_object() : nullptr;
}

const json::value* additional_of(const SchemaPart& part) {
  return part.schema->is_object() ? part.schema->get_object().if_contains("additionalProperties") : nullptr;
}

std::string text_of(json::string_view view) {
  return std::string(view.data(), view.size());
}

}  // namespace

bool SchemaCompiler::is_never(const Conjunction& conjunction) const {
  return std::any_of(conjunction.begin(), conjunction.end(),
                     [](const SchemaPart& part) { return part.schema->is_bool() && !part.schema->get_bool(); });
}

// What the parts say of a property: "properties", "patternProperties", and where neither has it "additionalProperties".
// Nothing: it may not be there.
Result<std::optional<Conjunction>> SchemaCompiler::schemas_of_property(const MergedSchema& merged,
                                                                       const std::string& name) {
  Conjunction schemas;
  pool_.work().spend(4 + 2 * merged.parts.size());
  for (const SchemaPart& part : merged.parts) {
    bool is_known = false;
    if (const json::object* properties = member_object(part, "properties")) {
      if (const json::value* schema = properties->if_contains(name)) {
        schemas.push_back({schema, 0});
        is_known = true;
      }
    }
    if (const json::object* patterns = member_object(part, "patternProperties")) {
      for (const auto& pattern : *patterns) {
        ASSIGN_OR_RETURN(const bool is_match, pattern_matches(text_of(pattern.key()), name));
        if (!is_match) continue;
        schemas.push_back({&pattern.value(), 0});
        is_known = true;
      }
    }
    const json::value* additional = additional_of(part);
    if (!is_known && additional != nullptr) schemas.push_back({additional, 0});
  }
  if (is_never(schemas)) return std::optional<Conjunction>();
  return std::optional<Conjunction>(std::move(schemas));
}

Result<std::optional<NodeIndex>> SchemaCompiler::names_node(const MergedSchema& merged) {
  Conjunction names;
  for (const SchemaPart& part : merged.parts) {
    if (!part.schema->is_object()) continue;
    if (const json::value* schema = part.schema->get_object().if_contains("propertyNames"))
      names.push_back({schema, 0});
  }
  if (names.empty()) return std::optional<NodeIndex>();
  ASSIGN_OR_RETURN(const MergedSchema limits, merge_schemas(document_, names, options_, pool_.work()));
  if (limits.choice != nullptr) return unimplemented("schema: \"anyOf\" in \"propertyNames\" is not supported");
  if (limits.is_never) return std::optional<NodeIndex>(pool_.never());
  if (!limits.constants) {
    ASSIGN_OR_RETURN(const NodeIndex node, string_node(limits));
    return std::optional<NodeIndex>(node);
  }
  std::vector<NodeIndex> ways;
  for (const json::value* constant : *limits.constants) {
    if (constant->is_string()) ways.push_back(constant_node(*constant));
  }
  return std::optional<NodeIndex>(pool_.alternatives(std::move(ways)));
}

// is_possible: false where a required property may not be there.
Result<std::vector<SchemaCompiler::Property>> SchemaCompiler::list_properties(const MergedSchema& merged,
                                                                              bool& is_possible) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const SchemaPart& part : merged.parts) {
    const json::object* properties = member_object(part, "properties");
    if (properties == nullptr) continue;
    for (const auto& property : *properties) {
      if (seen.insert(text_of(property.key())).second) names.push_back(text_of(property.key()));
    }
  }
  for (const std::string& name : merged.required) {
    if (seen.insert(name).second) names.push_back(name);
  }
  const std::set<std::string> required(merged.required.begin(), merged.required.end());
  ASSIGN_OR_RETURN(const std::optional<NodeIndex> allowed_names, names_node(merged));
  std::optional<StateGraph> names_graph;
  if (allowed_names) {
    ASSIGN_OR_RETURN(names_graph, text_graph(*allowed_names));
  }
  std::vector<Property> properties;
  is_possible = true;
  for (const std::string& name : names) {
    const bool is_required = required.contains(name);
    ASSIGN_OR_RETURN(std::optional<Conjunction> schemas, schemas_of_property(merged, name));
    RETURN_IF_ERROR(pool_.work().status());
    if (schemas && names_graph && !accepts_text(*names_graph, quote_json(name), pool_.work())) schemas.reset();
    if (schemas) {
      properties.push_back({name, std::move(*schemas), is_required});
    } else if (is_required) {
      is_possible = false;
    }
  }
  return properties;
}

// Keys that are not named fall into classes by the patterns that they match; each class has its own schemas.
Result<std::vector<SchemaCompiler::OtherKeys>> SchemaCompiler::list_other_keys(const MergedSchema& merged,
                                                                               const std::vector<Property>& named) {
  std::vector<std::string> patterns;
  bool has_properties = false, has_additional = false;
  for (const SchemaPart& part : merged.parts) {
    has_properties = has_properties || member_object(part, "properties") != nullptr;
    has_additional = has_additional || additional_of(part) != nullptr;
    if (const json::object* object = member_object(part, "patternProperties")) {
      for (const auto& pattern : *object) {
        const std::string text = text_of(pattern.key());
        if (std::find(patterns.begin(), patterns.end(), text) == patterns.end()) patterns.push_back(text);
      }
    }
  }
  if (patterns.size() > kMaxKeyPatterns) {
    return unimplemented("schema: more than 4 \"patternProperties\" in one object are not supported");
  }
  std::vector<std::string> excluded;
  for (const Property& property : named) excluded.push_back(property.name);
  ASSIGN_OR_RETURN(const std::optional<NodeIndex> allowed_names, names_node(merged));
  std::vector<OtherKeys> classes;
  for (size_t subset = 0; subset < size_t{1} << patterns.size(); ++subset) {
    // Where a schema lists properties and says nothing of others, none are written.
    if (subset == 0 && has_properties && !has_additional && !options_.writes_unlisted_properties) continue;
    if (subset == 0 && !patterns.empty() && !has_additional && !options_.writes_unlisted_properties) continue;
    OtherKeys keys;
    for (const SchemaPart& part : merged.parts) {
      bool is_known = false;
      if (const json::object* object = member_object(part, "patternProperties")) {
        for (const auto& pattern : *object) {
          const auto at = std::find(patterns.begin(), patterns.end(), text_of(pattern.key())) - patterns.begin();
          if ((subset >> at & 1) == 0) continue;
          keys.schemas.push_back({&pattern.value(), 0});
          is_known = true;
        }
      }
      if (!is_known && additional_of(part) != nullptr) keys.schemas.push_back({additional_of(part), 0});
    }
    if (is_never(keys.schemas)) continue;
    keys.key = json_string_except(pool_, excluded);
    if (!patterns.empty() || allowed_names) {
      ASSIGN_OR_RETURN(StateGraph graph, lower_regular(pool_, keys.key));
      auto meet = [&graph, this](std::optional<StateGraph> other) -> Status {
        if (other) other = intersect(graph, *other, kMaxKeyStates, pool_.work());
        RETURN_IF_ERROR(pool_.work().status());
        if (!other) return resource_exhausted("schema: the patterns of an object's keys need too many states");
        graph = std::move(*other);
        return ok_status();
      };
      for (size_t i = 0; i < patterns.size(); ++i) {
        RegexNode tree;
        ASSIGN_OR_RETURN(const NodeIndex content, pattern_node(patterns[i], true, &tree));
        const NodeIndex quote = pool_.bytes("\"");
        ASSIGN_OR_RETURN(const StateGraph lowered, lower_regular(pool_, pool_.sequence({quote, content, quote})));
        const bool must_match = (subset >> i & 1) != 0;
        RETURN_IF_ERROR(meet(must_match ? lowered : complement(lowered, kMaxKeyStates, pool_.work())));
      }
      if (allowed_names) {
        ASSIGN_OR_RETURN(const StateGraph lowered, lower_regular(pool_, *allowed_names));
        RETURN_IF_ERROR(meet(lowered));
      }
      if (accepts_nothing(graph)) continue;
      keys.key = pool_.graph(std::move(graph));
    }
    classes.push_back(std::move(keys));
  }
  return classes;
}

// Members in order, those that are not required may be left out, then others; with their number between bounds. A rule
// for each (next member, number so far).
NodeIndex SchemaCompiler::counted_members(const std::vector<std::pair<NodeIndex, bool>>& members, NodeIndex others,
                                          int64_t min_count, int64_t max_count, NodeIndex separator) {
  const int64_t cap = max_count == -1 ? std::max<int64_t>(min_count, 1) : max_count;
  std::map<std::pair<size_t, int64_t>, NodeIndex> rules;
  std::vector<std::pair<size_t, int64_t>> open;
  auto rule_for = [&](size_t next, int64_t count) {
    const auto [it, is_new] = rules.try_emplace({next, std::min(count, cap)}, kNoNode);
    if (is_new) {
      it->second = pool_.declare_rule("members");
      open.push_back(it->first);
    }
    return it->second;
  };
  const NodeIndex root = rule_for(0, 0);
  while (!open.empty()) {
    const auto [next, count] = open.back();
    open.pop_back();
    std::vector<NodeIndex> ways;
    const bool may_add = max_count == -1 || count < max_count;
    auto written = [&, has_some = count > 0](NodeIndex member, NodeIndex then) {
      return has_some ? pool_.sequence({separator, member, then}) : pool_.sequence({member, then});
    };
    if (next < members.size()) {
      const auto& [member, is_required] = members[next];
      if (may_add) ways.push_back(written(member, rule_for(next + 1, count + 1)));
      if (!is_required) ways.push_back(rule_for(next + 1, count));
    } else {
      if (may_add && others != kNoNode) ways.push_back(written(others, rule_for(next, count + 1)));
      if (count >= min_count) ways.push_back(pool_.empty());
    }
    pool_.define_rule(rules.at({next, count}), pool_.alternatives(std::move(ways)));
  }
  return root;
}

Result<NodeIndex> SchemaCompiler::object_node(const MergedSchema& merged) {
  bool is_possible = true;
  ASSIGN_OR_RETURN(const std::vector<Property> properties, list_properties(merged, is_possible));
  if (!is_possible) return pool_.never();
  ASSIGN_OR_RETURN(const std::vector<OtherKeys> other_keys, list_other_keys(merged, properties));
  std::vector<ObjectMember> members;
  int64_t num_required = 0;
  size_t longest_run = 0, run = 0;  // of members that may be left out
  for (const Property& property : properties) {
    members.push_back({quote_json(property.name) + ":", node_for(property.schemas), property.is_required});
    run = property.is_required ? 0 : run + 1;
    longest_run = std::max(longest_run, run);
    if (property.is_required) ++num_required;
  }
  std::vector<NodeIndex> other_members;
  for (const OtherKeys& keys : other_keys) {
    other_members.push_back(pool_.sequence({keys.key, pool_.bytes(":"), space(), node_for(keys.schemas)}));
  }
  const NodeIndex others = other_members.empty() ? kNoNode : pool_.alternatives(std::move(other_members));
  const NodeIndex comma = pool_.sequence({pool_.bytes(","), space()});
  const auto num_members = static_cast<int64_t>(members.size());
  const bool counts = merged.min_properties > num_required ||
                      (merged.max_properties != -1 && (others != kNoNode || merged.max_properties < num_members));
  auto whole = [this](const ObjectMember& member) {
    return pool_.sequence({pool_.bytes(member.key), space(), member.value});
  };
  NodeIndex all = kNoNode;
  if (counts) {
    const int64_t cap = std::max(merged.min_properties, merged.max_properties);
    if ((num_members + 1) * (cap + 1) > kMaxCountedMembers) {
      return unimplemented("schema: \"minProperties\" or \"maxProperties\" is too large for so many properties");
    }
    std::vector<std::pair<NodeIndex, bool>> whole_members;
    for (const ObjectMember& member : members) whole_members.emplace_back(whole(member), member.is_required);
    all = counted_members(whole_members, others, merged.min_properties, merged.max_properties, comma);
  } else if (!members.empty() || others != kNoNode) {
    if (longest_run > kMaxListedRun) {
      all = long_members(pool_, members, others, space(), comma);
    } else {
      std::vector<ListItem> items;
      for (const ObjectMember& member : members) items.push_back({whole(member), member.is_required ? 1 : 0, 1});
      if (others != kNoNode) items.push_back({others, 0, -1});
      all = pool_.list(items, comma);
    }
    all = pool_.sequence({all, space()});
    if (num_required == 0) all = pool_.optional(all);
    return pool_.sequence({pool_.bytes("{"), space(), all, pool_.bytes("}")});
  }
  if (all == kNoNode) return pool_.sequence({pool_.bytes("{"), space(), pool_.bytes("}")});
  return pool_.sequence({pool_.bytes("{"), space(), all, space(), pool_.bytes("}")});
}

}  // namespace quire::grammar_internal
