// Resolves every name of a template to a slot, with the scoping of jinja2: which reads look at the inputs, which at an
// outer variable, and where a set ends. Also finds filters and tests by name. Called once, after parsing.
#pragma once

#include "text/jinja_ast.h"

namespace quire::jinja {

Status resolve_scopes(TemplateTree& tree);

}  // namespace quire::jinja
