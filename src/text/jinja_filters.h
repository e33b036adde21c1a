// The tables of filters and tests. A row is a name and a function; adding one is adding a row. Called by the evaluator.
#pragma once

#include <span>
#include <string_view>

#include "text/jinja_runtime.h"

namespace quire::jinja {

struct FilterRow {
  std::string_view name;
  Result<Value> (*apply)(Runtime& runtime, const Value& input, const Arguments& arguments);
};

struct TestRow {
  std::string_view name;
  Result<bool> (*holds)(Runtime& runtime, const Value& input, const Arguments& arguments);
};

const FilterRow* find_filter(std::string_view name);  // null where there is none
const TestRow* find_test(std::string_view name);

// item.a.b for the path "a.b", by the rules of value[index]; digits are indexes. An undefined step becomes *fallback,
// if any.
Result<Value> attribute_path(Runtime& runtime, const Value& item, const Value& path, const Value* fallback);

std::span<const FilterRow> text_filters();      // jinja_filters_text.cc
std::span<const FilterRow> sequence_filters();  // jinja_filters_sequence.cc

}  // namespace quire::jinja
