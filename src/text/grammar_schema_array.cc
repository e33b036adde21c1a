// Arrays of a schema: leading items with schemas of their own, the rest, and how many. See grammar_schema_compiler.h.
#include <algorithm>

#include "text/grammar_json.h"
#include "text/grammar_schema_compiler.h"

namespace quire::grammar_internal {

namespace json = boost::json;

// What the parts say of the item at an index. Nothing: no item may stand there. num_listed: how many leading items have
// schemas of their own.
std::optional<Conjunction> SchemaCompiler::schemas_of_item(const MergedSchema& merged, size_t index,
                                                           size_t* num_listed) const {
  Conjunction schemas;
  size_t longest = 0;
  for (const SchemaPart& part : merged.parts) {
    if (!part.schema->is_object()) continue;
    const json::object& object = part.schema->get_object();
    const json::value* listed = object.if_contains("prefixItems");
    const json::value* rest = object.if_contains("items");
    // Before draft 2020-12 a list of items was "items", and the rest "additionalItems".
    if (listed == nullptr && rest != nullptr && rest->is_array()) {
      listed = rest;
      rest = object.if_contains("additionalItems");
    }
    const size_t count = listed != nullptr && listed->is_array() ? listed->get_array().size() : 0;
    longest = std::max(longest, count);
    if (index < count) {
      schemas.push_back({&listed->get_array()[index], 0});
    } else if (rest != nullptr) {
      schemas.push_back({rest, 0});
    }
  }
  if (num_listed != nullptr) *num_listed = longest;
  if (is_never(schemas)) return std::nullopt;
  return schemas;
}

Result<NodeIndex> SchemaCompiler::array_node(const MergedSchema& merged) {
  if (merged.has_unique_items && merged.max_items != 0 && merged.max_items != 1 && !options_.is_lenient) {
    return unimplemented("schema: \"uniqueItems\" is not supported; write the schema without it");
  }
  ASSIGN_OR_RETURN(const int min_items, checked_count(merged.min_items, "minItems"));
  ASSIGN_OR_RETURN(int max_items, checked_count(merged.max_items, "maxItems"));
  size_t num_listed = 0;
  std::optional<Conjunction> rest = schemas_of_item(merged, 0, &num_listed);
  std::vector<NodeIndex> listed;
  for (size_t i = 0; i < num_listed && (max_items == -1 || i < static_cast<size_t>(max_items)); ++i) {
    const std::optional<Conjunction> schemas = schemas_of_item(merged, i, nullptr);
    if (!schemas) {
      max_items = static_cast<int>(i);
      break;
    }
    listed.push_back(node_for(*schemas));
  }
  const int count = static_cast<int>(listed.size());
  if (max_items == -1 || max_items > count) {
    rest = schemas_of_item(merged, num_listed, nullptr);
    if (!rest) max_items = count;
  }
  if (max_items != -1 && max_items < min_items) return pool_.never();
  const NodeIndex comma = pool_.sequence({pool_.bytes(","), space()});
  // From the end: what may follow item i, each time with its comma.
  NodeIndex tail = pool_.empty();
  NodeIndex rest_node = kNoNode;
  if (max_items == -1 || max_items > count) {
    rest_node = node_for(*rest);
    const int most = max_items == -1 ? -1 : max_items - std::max(count, 1);
    tail = pool_.repeat(pool_.sequence({comma, rest_node}), std::max(0, min_items - std::max(count, 1)), most);
  }
  for (int i = count - 1; i >= 1; --i) {
    tail = pool_.sequence({comma, listed[static_cast<size_t>(i)], tail});
    if (i >= min_items) tail = pool_.optional(tail);
  }
  const NodeIndex first = count > 0 ? listed[0] : rest_node;
  NodeIndex items = pool_.empty();
  if (first != kNoNode) {
    items = pool_.sequence({first, tail, space()});
    if (min_items == 0) items = pool_.optional(items);
  }
  return pool_.sequence({pool_.bytes("["), space(), items, pool_.bytes("]")});
}

}  // namespace quire::grammar_internal
