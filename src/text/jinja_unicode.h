// Character properties and case mappings as Python's str has them, for the methods and filters of templates.
// Tables are made by tools/make_jinja_unicode_tables.py. Pure functions; any thread.
#pragma once

#include <cstdint>

#include "text/jinja_text.h"

namespace quire::jinja {

bool is_python_space(uint32_t code_point);  // str.isspace(), and what strip() and split() take off
bool is_line_break(uint32_t code_point);    // where str.splitlines() splits ("\r\n" counts as one)
bool is_printable(uint32_t code_point);
bool is_alpha(uint32_t code_point);
bool is_decimal(uint32_t code_point);
int decimal_value(uint32_t code_point);  // of a decimal digit of any script, or -1
bool is_digit(uint32_t code_point);
bool is_numeric(uint32_t code_point);
bool is_lower(uint32_t code_point);
bool is_upper(uint32_t code_point);
bool is_title(uint32_t code_point);

// Whole strings; every byte of the result is trusted if the byte that it came from was.
enum class CaseMapping { kLower, kUpper, kTitle, kCapitalize, kSwap, kFold };
Text map_case(const Text& text, CaseMapping mapping);

}  // namespace quire::jinja
