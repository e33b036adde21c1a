#include "text/grammar_schema.h"

namespace quire::grammar_internal {

Result<NodeIndex> schema_to_node(NodePool&, std::string_view, const JsonSchemaOptions&) {
  return unimplemented("JSON schemas are not supported yet");
}

}  // namespace quire::grammar_internal
