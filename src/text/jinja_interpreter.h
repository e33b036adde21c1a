// Walks the tree of a template and writes the prompt. One Interpreter is one rendering on one thread; the tree is
// shared.
#pragma once

#include <unordered_map>

#include "text/jinja_ast.h"

namespace quire::jinja {

// Renders with these variables, which shadow the global functions. `max_depth` bounds the C++ stack.
Result<Text> interpret(const TemplateTree& tree, Runtime& runtime, int max_depth,
                       const std::unordered_map<std::string_view, Value>& variables);

}  // namespace quire::jinja
