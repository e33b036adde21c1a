// The named classes of characters that patterns use: \d \w \s and Unicode's general categories. Internal to the grammar
// files; pure.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "text/grammar_nodes.h"

namespace quire::grammar_internal {

// d, w, s (ASCII digits, word characters; Unicode white space) and D, W, S. Nothing for other letters.
std::optional<std::vector<CodePointRange>> class_of_escape(char letter);
// "L", "Lu", "Letter", ... Nothing for names it does not know.
std::optional<std::vector<CodePointRange>> class_of_category(std::string_view name);

}  // namespace quire::grammar_internal
