// What the methods of Python's str share: the call of one, and how its arguments are read. jinja_string_methods.cc has
// the table of all; those that split a string, and format, are in files of their own.
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "text/jinja_attributes.h"
#include "text/jinja_operators.h"

namespace quire::jinja {

struct StringCall {
  Runtime& runtime;
  const Value& self;
  std::string_view name;
  const Arguments& arguments;

  const Text& text() const { return self.text(); }
  std::string_view bytes() const { return self.bytes(); }
  bool is_markup() const { return self.str().is_markup; }
  Value make(Text result) const { return runtime.make_string(std::move(result), is_markup()); }
  Value piece(size_t begin, size_t end) const { return make(text().substr(begin, end)); }
  Result<std::vector<Value>> bind(std::initializer_list<std::string_view> names, size_t num_required) const {
    return bind_arguments(name, arguments, names, num_required);
  }
};

// Part of a string, in bytes.
struct Piece {
  size_t begin, end;
};

Status expects_string(std::string_view method, const Value& value);
Result<int64_t> integer_argument(const Value& value, int64_t fallback);

// split, rsplit, splitlines, partition, rpartition: by call.name.
Result<Value> split(const StringCall& call);
Result<Value> split_lines(const StringCall& call);
Result<Value> partition(const StringCall& call);

// format and format_map.
Result<Value> format(const StringCall& call);
Result<Value> format_map(const StringCall& call);

}  // namespace quire::jinja
