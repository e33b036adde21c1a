// The table of tests ("value is name"). See jinja_filters.h.
#include <algorithm>

#include "text/jinja_attributes.h"
#include "text/jinja_filters.h"
#include "text/jinja_format.h"
#include "text/jinja_operators.h"

namespace quire::jinja {
namespace {

Status no_arguments(const Arguments& arguments) {
  return bind_arguments("test", arguments, {}, 0).status();
}

template <bool (*holds)(const Value&)>
Result<bool> plain_test(Runtime&, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(no_arguments(arguments));
  return holds(input);
}

bool is_defined(const Value& value) {
  return !value.is_undefined();
}
bool is_undefined(const Value& value) {
  return value.is_undefined();
}
bool is_none(const Value& value) {
  return value.is_none();
}
bool is_boolean(const Value& value) {
  return value.is_bool();
}
bool is_false(const Value& value) {
  return value.is_bool() && value.int_value() == 0;
}
bool is_exactly_true(const Value& value) {
  return value.is_bool() && value.int_value() != 0;
}
bool is_integer(const Value& value) {
  return value.kind() == Kind::kInt || value.kind() == Kind::kBigInt;
}
bool is_float(const Value& value) {
  return value.kind() == Kind::kFloat;
}
bool is_number(const Value& value) {
  return value.is_number() || value.kind() == Kind::kBigInt;
}
bool is_string(const Value& value) {
  return value.is_string();
}
bool is_mapping(const Value& value) {
  return value.is_dict();
}
bool is_any_iterable(const Value& value) {
  return is_iterable(value);
}
bool is_escaped(const Value& value) {
  return value.is_string() && value.str().is_markup;
}

bool is_sequence(const Value& value) {
  switch (value.kind()) {
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kRange:
    case Kind::kUndefined:
      return true;
    default:
      return false;
  }
}

bool is_callable(const Value& value) {
  switch (value.kind()) {
    case Kind::kMacro:
    case Kind::kMethod:
    case Kind::kGlobal:
    case Kind::kJoiner:
    case Kind::kLoop:
    case Kind::kUndefined:
      return true;
    default:
      return false;
  }
}

template <CompareOperator op>
Result<bool> compare_test(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("test", arguments, {"/other"}, 1));
  return compare(runtime, op, input, bound[0]);
}

Result<bool> in_test(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("in", arguments, {"seq"}, 1));
  return contains(runtime, bound[0], input);
}

Result<bool> remainder_is(Runtime& runtime, const Value& input, const Value& divisor, int64_t expected) {
  ASSIGN_OR_RETURN(const Value rest, apply_binary(runtime, BinaryOperator::kMod, input, divisor));
  return are_equal(rest, Value::integer(expected));
}

Result<bool> odd_test(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(no_arguments(arguments));
  return remainder_is(runtime, input, Value::integer(2), 1);
}

Result<bool> even_test(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(no_arguments(arguments));
  return remainder_is(runtime, input, Value::integer(2), 0);
}

Result<bool> divisibleby_test(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("divisibleby", arguments, {"num"}, 1));
  return remainder_is(runtime, input, bound[0], 0);
}

Result<bool> sameas_test(Runtime&, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("sameas", arguments, {"other"}, 1));
  const Value& other = bound[0];
  if (input.kind() != other.kind()) return false;
  if (input.is_none()) return true;
  if (input.is_number() || input.is_string()) return are_equal(input, other);
  return input.identity() == other.identity();
}

Result<bool> case_test(Runtime& runtime, const Value& input, const char* method) {
  ASSIGN_OR_RETURN(Text text, to_text(runtime, input));
  ASSIGN_OR_RETURN(const Value result, call_string_method(runtime, runtime.make_string(std::move(text)), method, {}));
  return is_true(result);
}

Result<bool> lower_test(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(no_arguments(arguments));
  return case_test(runtime, input, "islower");
}

Result<bool> upper_test(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(no_arguments(arguments));
  return case_test(runtime, input, "isupper");
}

Result<bool> filter_test(Runtime&, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(no_arguments(arguments));
  if (!is_hashable(input)) return invalid_argument(std::string("unhashable type: '") + type_name(input) + "'");
  return input.is_string() && find_filter(input.bytes()) != nullptr;
}

Result<bool> test_test(Runtime&, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(no_arguments(arguments));
  if (!is_hashable(input)) return invalid_argument(std::string("unhashable type: '") + type_name(input) + "'");
  return input.is_string() && find_test(input.bytes()) != nullptr;
}

constexpr TestRow kTests[] = {
    {"!=", compare_test<CompareOperator::kNe>},
    {"<", compare_test<CompareOperator::kLt>},
    {"<=", compare_test<CompareOperator::kLe>},
    {"==", compare_test<CompareOperator::kEq>},
    {">", compare_test<CompareOperator::kGt>},
    {">=", compare_test<CompareOperator::kGe>},
    {"boolean", plain_test<is_boolean>},
    {"callable", plain_test<is_callable>},
    {"defined", plain_test<is_defined>},
    {"divisibleby", divisibleby_test},
    {"eq", compare_test<CompareOperator::kEq>},
    {"equalto", compare_test<CompareOperator::kEq>},
    {"escaped", plain_test<is_escaped>},
    {"even", even_test},
    {"false", plain_test<is_false>},
    {"filter", filter_test},
    {"float", plain_test<is_float>},
    {"ge", compare_test<CompareOperator::kGe>},
    {"greaterthan", compare_test<CompareOperator::kGt>},
    {"gt", compare_test<CompareOperator::kGt>},
    {"in", in_test},
    {"integer", plain_test<is_integer>},
    {"iterable", plain_test<is_any_iterable>},
    {"le", compare_test<CompareOperator::kLe>},
    {"lessthan", compare_test<CompareOperator::kLt>},
    {"lower", lower_test},
    {"lt", compare_test<CompareOperator::kLt>},
    {"mapping", plain_test<is_mapping>},
    {"ne", compare_test<CompareOperator::kNe>},
    {"none", plain_test<is_none>},
    {"number", plain_test<is_number>},
    {"odd", odd_test},
    {"sameas", sameas_test},
    {"sequence", plain_test<is_sequence>},
    {"string", plain_test<is_string>},
    {"test", test_test},
    {"true", plain_test<is_exactly_true>},
    {"undefined", plain_test<is_undefined>},
    {"upper", upper_test},
};

}  // namespace

const TestRow* find_test(std::string_view name) {
  const auto it =
      std::find_if(std::begin(kTests), std::end(kTests), [&](const TestRow& row) { return row.name == name; });
  return it == std::end(kTests) ? nullptr : it;
}

}  // namespace quire::jinja
