// JSON schemas to nodes. What a schema allows is never exceeded; a keyword that cannot be honoured is refused by name,
// unless the options are lenient. Properties are written in the schema's order, optional ones may be left out. Internal
// to the grammar files; pure.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/grammar_nodes.h"

namespace quire::grammar_internal {

Result<NodeIndex> schema_to_node(NodePool& pool, std::string_view schema_json, const JsonSchemaOptions& options);

}  // namespace quire::grammar_internal
