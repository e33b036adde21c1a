// From merged schemas to nodes: a rule for every set of schemas that must hold together, made when it is first needed,
// so that schemas may refer to themselves. The bodies by type are in grammar_schema_{string,object,array}.cc. Internal
// to the grammar files; used once.
#pragma once

#include <boost/json.hpp>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/grammar_json.h"
#include "text/grammar_nodes.h"
#include "text/grammar_regex.h"
#include "text/grammar_schema_document.h"
#include "text/grammar_schema_merge.h"
#include "text/grammar_state_graph.h"

namespace quire::grammar_internal {

class SchemaCompiler {
 public:
  SchemaCompiler(NodePool& pool, const SchemaDocument& document, const JsonSchemaOptions& options)
      : pool_(pool), document_(document), options_(options) {}

  Result<NodeIndex> compile();

 private:
  // grammar_schema.cc
  NodeIndex node_for(const Conjunction& conjunction);
  Result<NodeIndex> body_of(const Conjunction& conjunction);
  Result<NodeIndex> choice_body(const MergedSchema& merged);
  Result<NodeIndex> typed_body(const MergedSchema& merged);
  Result<NodeIndex> number_node(const MergedSchema& merged);
  Result<NodeIndex> constants_node(const MergedSchema& merged);
  NodeIndex constant_node(const boost::json::value& value);
  // Whether a value that the schema itself holds satisfies it.
  Result<bool> accepts(const Conjunction& conjunction, const boost::json::value& value, int depth);
  // Of one merged schema, made when they are first needed: what its strings and numbers are, as texts of JSON.
  struct TextGraphs {
    std::optional<StateGraph> string, integer, fraction;
  };
  Result<bool> accepts_typed(const MergedSchema& merged, const boost::json::value& value, int depth,
                             TextGraphs& graphs);
  Result<StateGraph> text_graph(NodeIndex regular);

  // grammar_schema_string.cc
  Result<NodeIndex> string_node(const MergedSchema& merged);
  Result<NodeIndex> pattern_node(const std::string& pattern, bool is_search, RegexNode* tree);
  Result<bool> pattern_matches(const std::string& pattern, std::string_view text);

  // grammar_schema_object.cc
  struct Property {
    std::string name;
    Conjunction schemas;
    bool is_required = false;
  };
  // Keys that the schema does not name, and what their values must be.
  struct OtherKeys {
    NodeIndex key = kNoNode;
    Conjunction schemas;
  };
  Result<NodeIndex> object_node(const MergedSchema& merged);
  Result<std::optional<Conjunction>> schemas_of_property(const MergedSchema& merged, const std::string& name);
  Result<std::vector<Property>> list_properties(const MergedSchema& merged, bool& is_possible);
  Result<std::vector<OtherKeys>> list_other_keys(const MergedSchema& merged, const std::vector<Property>& named);
  Result<std::optional<NodeIndex>> names_node(const MergedSchema& merged);
  NodeIndex counted_members(const std::vector<std::pair<NodeIndex, bool>>& members, NodeIndex others, int64_t min_count,
                            int64_t max_count, NodeIndex separator);
  bool is_never(const Conjunction& conjunction) const;

  // grammar_schema_array.cc
  Result<NodeIndex> array_node(const MergedSchema& merged);
  std::optional<Conjunction> schemas_of_item(const MergedSchema& merged, size_t index, size_t* num_listed) const;

  Result<int> checked_count(int64_t count, std::string_view what) const;
  NodeIndex space() { return json_space(pool_, options_.whitespace); }

  NodePool& pool_;
  const SchemaDocument& document_;
  const JsonSchemaOptions& options_;
  std::map<Conjunction, NodeIndex> rules_;
  std::vector<std::pair<NodeIndex, Conjunction>> open_;  // rules without a body yet
  std::map<std::string, StateGraph> pattern_graphs_;
};

}  // namespace quire::grammar_internal
