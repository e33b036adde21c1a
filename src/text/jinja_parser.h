// Template source → syntax tree, with jinja2's grammar. Errors carry the line. Pure function; any thread.
#pragma once

#include <memory>
#include <string_view>

#include "text/jinja_ast.h"

namespace quire::jinja {

Result<std::unique_ptr<TemplateTree>> parse_template(std::string_view source);  // names are not resolved yet

}  // namespace quire::jinja
