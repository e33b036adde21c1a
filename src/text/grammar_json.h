// The parts of JSON: strings, numbers, any value, constants, white space. Used by the schema compiler and the builder.
// What is written is canonical where that loses nothing: no white space before ',' and ':', '/' and letters unescaped
// in constants and patterns. Internal to the grammar files; pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/grammar_nodes.h"

namespace quire::grammar_internal {

NodeIndex json_space(NodePool& pool, JsonWhitespace whitespace);
// One character inside a string, plain or escaped in any way that JSON allows (surrogates in pairs).
NodeIndex json_any_character(NodePool& pool);
// One character out of ranges, escaped only if it must be.
NodeIndex json_character(NodePool& pool, const std::vector<CodePointRange>& ranges);
NodeIndex json_string(NodePool& pool);
NodeIndex json_number(NodePool& pool);
NodeIndex json_integer(NodePool& pool);
NodeIndex json_value(NodePool& pool, JsonWhitespace whitespace);
NodeIndex json_object(NodePool& pool, JsonWhitespace whitespace);
NodeIndex json_array(NodePool& pool, JsonWhitespace whitespace);

// The text as a JSON string, with its quotes.
std::string quote_json(std::string_view text);
// A string that is none of these, quotes and all. Characters are escaped only if they must be, so that no other
// spelling of an excluded string gets in.
NodeIndex json_string_except(NodePool& pool, const std::vector<std::string>& excluded);

}  // namespace quire::grammar_internal
