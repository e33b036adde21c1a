#include "text/grammar_schema.h"

#include <algorithm>
#include <utility>

#include "text/grammar_json.h"
#include "text/grammar_lowering.h"
#include "text/grammar_schema_compiler.h"
#include "text/utf8.h"

namespace quire::grammar_internal {
namespace {

namespace json = boost::json;

constexpr int kMaxConstantDepth = 64;

}  // namespace

Result<NodeIndex> schema_to_node(NodePool& pool, std::string_view schema_json, const JsonSchemaOptions& options) {
  if (!is_valid_utf8(schema_json)) return invalid_argument("the schema is not valid UTF-8");
  ASSIGN_OR_RETURN(const SchemaDocument document, SchemaDocument::parse(schema_json, pool.limits()));
  return SchemaCompiler(pool, document, options).compile();
}

Result<NodeIndex> SchemaCompiler::compile() {
  const NodeIndex root = node_for({{&document_.root(), 0}});
  for (size_t num_done = 0; !open_.empty(); ++num_done) {
    if (num_done > static_cast<size_t>(pool_.limits().max_rules)) {
      return resource_exhausted("schema: more than " + std::to_string(pool_.limits().max_rules) +
                                " parts, counting each combination of \"anyOf\" and \"allOf\"; make it smaller");
    }
    const auto [rule, conjunction] = std::move(open_.back());
    open_.pop_back();
    ASSIGN_OR_RETURN(const NodeIndex body, body_of(conjunction));
    RETURN_IF_ERROR(pool_.work().status());
    pool_.define_rule(rule, body);
  }
  return root;
}

NodeIndex SchemaCompiler::node_for(const Conjunction& conjunction) {
  const bool is_anything = std::all_of(conjunction.begin(), conjunction.end(), [](const SchemaPart& part) {
    return (part.schema->is_bool() && part.schema->get_bool()) ||
           (part.schema->is_object() && part.schema->get_object().empty());
  });
  if (is_anything) return json_value(pool_, options_.whitespace);
  const auto found = rules_.find(conjunction);
  if (found != rules_.end()) return found->second;
  const NodeIndex rule = pool_.declare_rule("schema");
  rules_.emplace(conjunction, rule);
  open_.emplace_back(rule, conjunction);
  return rule;
}

Result<NodeIndex> SchemaCompiler::body_of(const Conjunction& conjunction) {
  ASSIGN_OR_RETURN(const MergedSchema merged, merge_schemas(document_, conjunction, options_, pool_.work()));
  if (merged.is_never) return pool_.never();
  if (merged.choice != nullptr) return choice_body(merged);
  if (merged.constants) return constants_node(merged);
  return typed_body(merged);
}

Result<NodeIndex> SchemaCompiler::choice_body(const MergedSchema& merged) {
  std::vector<Conjunction> branches;
  for (const json::value& choice : *merged.choice) branches.push_back(with_choice(merged, choice));
  if (merged.is_exclusive_choice && !options_.is_lenient) {
    constexpr size_t kMaxExclusiveChoices = 200;
    if (branches.size() > kMaxExclusiveChoices) {
      return unimplemented("schema: \"oneOf\" with more than 200 schemas is not supported; use \"anyOf\"");
    }
    std::vector<MergedSchema> earlier;
    for (size_t i = 0; i < branches.size(); ++i) {
      ASSIGN_OR_RETURN(MergedSchema branch, merge_schemas(document_, branches[i], options_, pool_.work()));
      earlier.push_back(std::move(branch));
      for (size_t j = 0; j < i; ++j) {
        ASSIGN_OR_RETURN(const bool is_apart, are_disjoint(document_, earlier[i], earlier[j], options_, pool_.work()));
        if (is_apart) continue;
        return unimplemented("schema: a value could satisfy both schema " + std::to_string(j) + " and schema " +
                             std::to_string(i) +
                             " of a \"oneOf\"; use \"anyOf\", or give each a required property with its own \"const\"");
      }
    }
  }
  std::vector<NodeIndex> ways;
  for (const Conjunction& branch : branches) ways.push_back(node_for(branch));
  return pool_.alternatives(std::move(ways));
}

Result<NodeIndex> SchemaCompiler::typed_body(const MergedSchema& merged) {
  std::vector<NodeIndex> ways;
  if ((merged.types & kObjectType) != 0) {
    ASSIGN_OR_RETURN(const NodeIndex object, object_node(merged));
    ways.push_back(object);
  }
  if ((merged.types & kArrayType) != 0) {
    ASSIGN_OR_RETURN(const NodeIndex array, array_node(merged));
    ways.push_back(array);
  }
  if ((merged.types & kStringType) != 0) {
    ASSIGN_OR_RETURN(const NodeIndex string, string_node(merged));
    ways.push_back(string);
  }
  if ((merged.types & kNumberTypes) != 0) {
    ASSIGN_OR_RETURN(const NodeIndex number, number_node(merged));
    ways.push_back(number);
  }
  if ((merged.types & kBooleanType) != 0) {
    ways.push_back(pool_.alternatives({pool_.bytes("true"), pool_.bytes("false")}));
  }
  if ((merged.types & kNullType) != 0) ways.push_back(pool_.bytes("null"));
  return pool_.alternatives(std::move(ways));
}

Result<NodeIndex> SchemaCompiler::number_node(const MergedSchema& merged) {
  const bool is_integer = (merged.types & kNumberTypes) == kIntegerType;
  if (merged.number.is_any()) return is_integer ? json_integer(pool_) : json_number(pool_);
  NumberLimits limits = merged.number;
  limits.is_integer = is_integer;
  return number_in_limits(pool_, limits);
}

Result<NodeIndex> SchemaCompiler::constants_node(const MergedSchema& merged) {
  std::vector<NodeIndex> ways;
  TextGraphs graphs;
  for (const json::value* constant : *merged.constants) {
    ASSIGN_OR_RETURN(const bool is_allowed, accepts_typed(merged, *constant, 0, graphs));
    RETURN_IF_ERROR(pool_.work().status());
    if (is_allowed) ways.push_back(constant_node(*constant));
  }
  return pool_.alternatives(std::move(ways));
}

NodeIndex SchemaCompiler::constant_node(const json::value& value) {
  if (value.is_string()) return pool_.bytes(quote_json({value.get_string().data(), value.get_string().size()}));
  std::vector<NodeIndex> parts;
  if (value.is_array()) {
    parts.push_back(pool_.bytes("["));
    parts.push_back(space());
    bool is_first = true;
    for (const json::value& element : value.get_array()) {
      if (!is_first) parts.push_back(pool_.sequence({pool_.bytes(","), space()}));
      is_first = false;
      parts.push_back(constant_node(element));
    }
    if (!is_first) parts.push_back(space());
    parts.push_back(pool_.bytes("]"));
    return pool_.sequence(std::move(parts));
  }
  if (value.is_object()) {
    parts.push_back(pool_.bytes("{"));
    parts.push_back(space());
    bool is_first = true;
    for (const auto& member : value.get_object()) {
      if (!is_first) parts.push_back(pool_.sequence({pool_.bytes(","), space()}));
      is_first = false;
      parts.push_back(pool_.bytes(quote_json({member.key().data(), member.key().size()}) + ":"));
      parts.push_back(space());
      parts.push_back(constant_node(member.value()));
    }
    if (!is_first) parts.push_back(space());
    parts.push_back(pool_.bytes("}"));
    return pool_.sequence(std::move(parts));
  }
  return pool_.bytes(json::serialize(value));
}

Result<StateGraph> SchemaCompiler::text_graph(NodeIndex regular) {
  ASSIGN_OR_RETURN(const StateGraph lowered, lower_regular(pool_, regular));
  return remove_empty_edges(lowered, pool_.work());
}

Result<bool> SchemaCompiler::accepts(const Conjunction& conjunction, const json::value& value, int depth) {
  if (depth > kMaxConstantDepth) return invalid_argument("schema: a constant is nested too deep to be checked");
  ASSIGN_OR_RETURN(const MergedSchema merged, merge_schemas(document_, conjunction, options_, pool_.work()));
  if (merged.is_never) return false;
  if (merged.choice != nullptr) {
    for (const json::value& choice : *merged.choice) {
      ASSIGN_OR_RETURN(const bool is_accepted, accepts(with_choice(merged, choice), value, depth + 1));
      if (is_accepted) return true;
    }
    return false;
  }
  if (merged.constants && std::none_of(merged.constants->begin(), merged.constants->end(),
                                       [&](const json::value* constant) { return *constant == value; })) {
    return false;
  }
  TextGraphs graphs;
  return accepts_typed(merged, value, depth, graphs);
}

Result<bool> SchemaCompiler::accepts_typed(const MergedSchema& merged, const json::value& value, int depth,
                                           TextGraphs& graphs) {
  if ((merged.types & types_of_value(value)) == 0) return false;
  if (value.is_string()) {
    if (merged.patterns.empty() && merged.formats.empty() && !merged.limits_length()) return true;
    if (!graphs.string) {
      ASSIGN_OR_RETURN(const NodeIndex string, string_node(merged));
      ASSIGN_OR_RETURN(graphs.string, text_graph(string));
    }
    const std::string text = quote_json({value.get_string().data(), value.get_string().size()});
    return accepts_text(*graphs.string, text, pool_.work());
  }
  if (value.is_number() && !merged.number.is_any()) {
    const std::optional<Decimal> number = Decimal::parse(json::serialize(value));
    if (!number) return false;
    NumberLimits limits = merged.number;
    limits.is_integer = number->fraction.empty();
    std::optional<StateGraph>& graph = limits.is_integer ? graphs.integer : graphs.fraction;
    if (!graph) {
      ASSIGN_OR_RETURN(const NodeIndex node, number_in_limits(pool_, limits));
      ASSIGN_OR_RETURN(graph, text_graph(node));
    }
    return accepts_text(*graph, number->to_text(), pool_.work());
  }
  if (value.is_array()) {
    const json::array& array = value.get_array();
    const auto size = static_cast<int64_t>(array.size());
    if (size < merged.min_items || (merged.max_items != -1 && size > merged.max_items)) return false;
    for (size_t i = 0; i < array.size(); ++i) {
      const std::optional<Conjunction> schemas = schemas_of_item(merged, i, nullptr);
      if (!schemas) continue;
      ASSIGN_OR_RETURN(const bool is_accepted, accepts(*schemas, array[i], depth + 1));
      if (!is_accepted) return false;
      for (size_t j = 0; j < i && merged.has_unique_items; ++j) {
        if (array[i] == array[j]) return false;
      }
    }
  }
  if (value.is_object()) {
    const json::object& object = value.get_object();
    const auto size = static_cast<int64_t>(object.size());
    if (size < merged.min_properties || (merged.max_properties != -1 && size > merged.max_properties)) return false;
    for (const std::string& name : merged.required) {
      if (!object.contains(name)) return false;
    }
    for (const auto& member : object) {
      ASSIGN_OR_RETURN(const auto schemas, schemas_of_property(merged, std::string(member.key())));
      if (!schemas) continue;
      ASSIGN_OR_RETURN(const bool is_accepted, accepts(*schemas, member.value(), depth + 1));
      if (!is_accepted) return false;
    }
  }
  return true;
}

Result<int> SchemaCompiler::checked_count(int64_t count, std::string_view what) const {
  if (count > pool_.limits().max_repetition) {
    return invalid_argument("schema: \"" + std::string(what) + "\" is above the " +
                            std::to_string(pool_.limits().max_repetition) + " that are supported");
  }
  return static_cast<int>(count);
}

}  // namespace quire::grammar_internal
