// See jinja_operators.h. Integers are 64 bits here: where Python would go on with a longer one, the result is an error.
#include "text/jinja_operators.h"

#include <cmath>
#include <limits>

#include "text/jinja_format.h"

namespace quire::jinja {
namespace {

const char* symbol_of(BinaryOperator op) {
  switch (op) {
    case BinaryOperator::kAdd:
      return "+";
    case BinaryOperator::kSub:
      return "-";
    case BinaryOperator::kMul:
      return "*";
    case BinaryOperator::kDiv:
      return "/";
    case BinaryOperator::kFloorDiv:
      return "//";
    case BinaryOperator::kMod:
      return "%";
    case BinaryOperator::kPow:
      return "**";
  }
  return "?";
}

const char* symbol_of(CompareOperator op) {
  switch (op) {
    case CompareOperator::kLt:
      return "<";
    case CompareOperator::kLe:
      return "<=";
    case CompareOperator::kGt:
      return ">";
    case CompareOperator::kGe:
      return ">=";
    default:
      return "==";
  }
}

Status operand_error(const char* symbol, const Value& left, const Value& right) {
  return invalid_argument(std::string("unsupported operand type(s) for ") + symbol + ": '" + type_name(left) +
                          "' and '" + type_name(right) + "'");
}

Status overflow_error() {
  return invalid_argument("an integer in the chat template exceeds 64 bits");
}
Status zero_division_error() {
  return invalid_argument("division by zero");
}

Result<Value> power_of_ints(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return invalid_argument("0.0 cannot be raised to a negative power");
    return Value::number(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return overflow_error();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return overflow_error();
  }
  return Value::integer(result);
}

Result<Value> apply_to_ints(BinaryOperator op, int64_t left, int64_t right) {
  int64_t result = 0;
  switch (op) {
    case BinaryOperator::kAdd:
      if (__builtin_add_overflow(left, right, &result)) return overflow_error();
      return Value::integer(result);
    case BinaryOperator::kSub:
      if (__builtin_sub_overflow(left, right, &result)) return overflow_error();
      return Value::integer(result);
    case BinaryOperator::kMul:
      if (__builtin_mul_overflow(left, right, &result)) return overflow_error();
      return Value::integer(result);
    case BinaryOperator::kDiv: {
      if (right == 0) return zero_division_error();
      // Python rounds the exact quotient once; long double holds both operands exactly on the machines we know.
      return Value::number(static_cast<double>(static_cast<long double>(left) / static_cast<long double>(right)));
    }
    case BinaryOperator::kFloorDiv:
      return floor_mod(Value::integer(left), Value::integer(right), true);
    case BinaryOperator::kMod:
      return floor_mod(Value::integer(left), Value::integer(right), false);
    case BinaryOperator::kPow:
      return power_of_ints(left, right);
  }
  return overflow_error();
}

Result<Value> apply_to_floats(BinaryOperator op, double left, double right) {
  switch (op) {
    case BinaryOperator::kAdd:
      return Value::number(left + right);
    case BinaryOperator::kSub:
      return Value::number(left - right);
    case BinaryOperator::kMul:
      return Value::number(left * right);
    case BinaryOperator::kDiv:
      if (right == 0) return zero_division_error();
      return Value::number(left / right);
    case BinaryOperator::kFloorDiv:
      return floor_mod(Value::number(left), Value::number(right), true);
    case BinaryOperator::kMod:
      return floor_mod(Value::number(left), Value::number(right), false);
    case BinaryOperator::kPow: {
      if (left == 0 && right < 0) return invalid_argument("0.0 cannot be raised to a negative power");
      if (left < 0 && std::isfinite(left) && std::isfinite(right) && right != std::floor(right)) {
        return invalid_argument("a negative number to a fractional power is complex, which templates do not have");
      }
      const double result = std::pow(left, right);
      if (std::isinf(result) && std::isfinite(left) && std::isfinite(right)) {
        return invalid_argument("(34, 'Numerical result out of range')");
      }
      return Value::number(result);
    }
  }
  return overflow_error();
}

Result<Value> add_strings(Runtime& runtime, const Value& left, const Value& right) {
  RETURN_IF_ERROR(runtime.check_string_size(left.text().size() + right.text().size()));
  const bool is_markup = left.str().is_markup || right.str().is_markup;
  Text out = is_markup && !left.str().is_markup ? escape_html(left.text()) : left.text();
  if (is_markup && !right.str().is_markup) {
    out.append(escape_html(right.text()));
  } else {
    out.append(right.text());
  }
  return runtime.make_string(std::move(out), is_markup);
}

Result<Value> repeat(Runtime& runtime, const Value& sequence, int64_t count) {
  const size_t times = count > 0 ? static_cast<size_t>(count) : 0;
  if (sequence.is_string()) {
    const Text& text = sequence.text();
    if (!text.is_empty() && times > runtime.limits().max_output_bytes / text.size()) {
      return runtime.check_string_size(std::numeric_limits<size_t>::max() / 2);
    }
    RETURN_IF_ERROR(runtime.check_string_size(text.size() * times));
    Text out;
    if (!text.is_empty()) {
      for (size_t i = 0; i < times; ++i) out.append(text);
    }
    return runtime.make_string(std::move(out), sequence.str().is_markup);
  }
  const std::vector<Value>& items = sequence.items();
  const size_t limit = runtime.limits().max_memory_bytes / sizeof(Value);
  if (!items.empty() && times > limit / items.size()) {
    return resource_exhausted("the chat template repeats a list too often");
  }
  RETURN_IF_ERROR(runtime.touch_items(items.size() * times));
  std::vector<Value> out;
  if (!items.empty()) {
    out.reserve(items.size() * times);
    for (size_t i = 0; i < times; ++i) out.insert(out.end(), items.begin(), items.end());
  }
  return runtime.make_list(std::move(out), sequence.kind());
}

bool is_sequence(const Value& value) {
  return value.is_string() || value.kind() == Kind::kList || value.kind() == Kind::kTuple;
}

Result<bool> compare_sequences(Runtime& runtime, CompareOperator op, const std::vector<Value>& left,
                               const std::vector<Value>& right) {
  const size_t common = std::min(left.size(), right.size());
  for (size_t i = 0; i < common; ++i) {
    RETURN_IF_ERROR(runtime.step());
    if (!are_equal(left[i], right[i])) return compare(runtime, op, left[i], right[i]);
  }
  const auto a = left.size(), b = right.size();
  switch (op) {
    case CompareOperator::kLt:
      return a < b;
    case CompareOperator::kLe:
      return a <= b;
    case CompareOperator::kGt:
      return a > b;
    default:
      return a >= b;
  }
}

std::optional<bool> order_holds(CompareOperator op, int sign) {
  switch (op) {
    case CompareOperator::kLt:
      return sign < 0;
    case CompareOperator::kLe:
      return sign <= 0;
    case CompareOperator::kGt:
      return sign > 0;
    case CompareOperator::kGe:
      return sign >= 0;
    default:
      return std::nullopt;
  }
}

Result<std::optional<int64_t>> slice_index(const Value& value) {
  if (value.is_missing() || value.is_none()) return std::optional<int64_t>();
  if (value.is_int_like()) return std::optional<int64_t>(value.int_value());
  if (value.kind() == Kind::kBigInt) {
    const bool is_negative = value.as<BigIntObject>().digits.front() == '-';
    return std::optional<int64_t>(is_negative ? std::numeric_limits<int64_t>::min()
                                              : std::numeric_limits<int64_t>::max());
  }
  return invalid_argument("slice indices must be integers or None or have an __index__ method");
}

}  // namespace

Result<Value> floor_mod(const Value& left, const Value& right, bool wants_quotient) {
  if (left.is_int_like() && right.is_int_like()) {
    const int64_t a = left.int_value(), b = right.int_value();
    if (b == 0) return invalid_argument("integer division or modulo by zero");
    if (b == -1) {
      int64_t negated = 0;
      if (!wants_quotient) return Value::integer(0);
      if (__builtin_sub_overflow(int64_t{0}, a, &negated)) return overflow_error();
      return Value::integer(negated);
    }
    const int64_t quotient = a / b, remainder = a % b;
    const bool is_off = remainder != 0 && (remainder < 0) != (b < 0);
    return Value::integer(wants_quotient ? quotient - (is_off ? 1 : 0) : remainder + (is_off ? b : 0));
  }
  const double a = left.to_double(), b = right.to_double();
  if (b == 0) return invalid_argument("float floor division or modulo by zero");
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0) {
    if ((b < 0) != (remainder < 0)) {
      remainder += b;
      quotient -= 1;
    }
  } else {
    remainder = std::copysign(0.0, b);
  }
  if (!wants_quotient) return Value::number(remainder);
  if (quotient == 0) return Value::number(std::copysign(0.0, a / b));
  double floored = std::floor(quotient);
  if (quotient - floored > 0.5) floored += 1;
  return Value::number(floored);
}

Result<Value> apply_binary(Runtime& runtime, BinaryOperator op, const Value& left, const Value& right) {
  RETURN_IF_ERROR(runtime.step());
  if (left.is_number() && right.is_number()) {
    if (left.is_int_like() && right.is_int_like()) return apply_to_ints(op, left.int_value(), right.int_value());
    return apply_to_floats(op, left.to_double(), right.to_double());
  }
  // An undefined value may be formatted: it prints as nothing.
  if (op == BinaryOperator::kMod && left.is_string()) {
    ASSIGN_OR_RETURN(Text text, format_percent(runtime, left.text(), right));
    return runtime.make_string(std::move(text), left.str().is_markup);
  }
  if (left.is_undefined()) return undefined_error(left);
  if (right.is_undefined()) return undefined_error(right);
  if (op == BinaryOperator::kAdd) {
    if (left.is_string() && right.is_string()) return add_strings(runtime, left, right);
    if (left.kind() == right.kind() && (left.kind() == Kind::kList || left.kind() == Kind::kTuple)) {
      std::vector<Value> items = left.items();
      RETURN_IF_ERROR(runtime.touch_items(items.size() + right.items().size()));
      items.insert(items.end(), right.items().begin(), right.items().end());
      return runtime.make_list(std::move(items), left.kind());
    }
    if (left.is_string()) {
      return invalid_argument(std::string("can only concatenate str (not \"") + type_name(right) + "\") to str");
    }
  }
  if (op == BinaryOperator::kMul) {
    if (is_sequence(left) && right.is_int_like()) return repeat(runtime, left, right.int_value());
    if (is_sequence(right) && left.is_int_like()) return repeat(runtime, right, left.int_value());
  }
  if (left.kind() == Kind::kBigInt || right.kind() == Kind::kBigInt) return overflow_error();
  return operand_error(symbol_of(op), left, right);
}

Result<Value> negate(const Value& value) {
  if (value.is_int_like()) {
    int64_t result = 0;
    if (__builtin_sub_overflow(int64_t{0}, value.int_value(), &result)) return overflow_error();
    return Value::integer(result);
  }
  if (value.kind() == Kind::kFloat) return Value::number(-value.float_value());
  if (value.is_undefined()) return undefined_error(value);
  return invalid_argument(std::string("bad operand type for unary -: '") + type_name(value) + "'");
}

Result<Value> identity_plus(const Value& value) {
  if (value.is_int_like()) return Value::integer(value.int_value());
  if (value.kind() == Kind::kFloat || value.kind() == Kind::kBigInt) return value;
  if (value.is_undefined()) return undefined_error(value);
  return invalid_argument(std::string("bad operand type for unary +: '") + type_name(value) + "'");
}

Result<bool> compare(Runtime& runtime, CompareOperator op, const Value& left, const Value& right) {
  RETURN_IF_ERROR(runtime.step());
  switch (op) {
    case CompareOperator::kEq:
    case CompareOperator::kNe: {
      if (left.is_items() && right.is_items()) {
        RETURN_IF_ERROR(runtime.touch_items(left.items().size()));
      } else if (left.is_string() && right.is_string()) {
        RETURN_IF_ERROR(runtime.touch_bytes(std::min(left.text().size(), right.text().size())));
      }
      return are_equal(left, right) == (op == CompareOperator::kEq);
    }
    case CompareOperator::kIn:
      return contains(runtime, right, left);
    case CompareOperator::kNotIn: {
      ASSIGN_OR_RETURN(const bool is_in, contains(runtime, right, left));
      return !is_in;
    }
    default:
      break;
  }
  if (left.is_number() && right.is_number()) {
    const std::optional<int> sign = compare_numbers(left, right);
    return sign && *order_holds(op, *sign);
  }
  if (left.is_string() && right.is_string()) {
    const int order = left.bytes().compare(right.bytes());  // UTF-8 sorts as code points do
    return *order_holds(op, order < 0 ? -1 : order > 0 ? 1 : 0);
  }
  if (left.kind() == right.kind() && (left.kind() == Kind::kList || left.kind() == Kind::kTuple)) {
    return compare_sequences(runtime, op, left.items(), right.items());
  }
  if (left.is_undefined()) return undefined_error(left);
  if (right.is_undefined()) return undefined_error(right);
  return invalid_argument(std::string("'") + symbol_of(op) + "' not supported between instances of '" +
                          type_name(left) + "' and '" + type_name(right) + "'");
}

Result<bool> is_less(Runtime& runtime, const Value& left, const Value& right) {
  return compare(runtime, CompareOperator::kLt, left, right);
}

Result<bool> contains(Runtime& runtime, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is_string()) {
        return invalid_argument(std::string("'in <string>' requires string as left operand, not ") + type_name(item));
      }
      RETURN_IF_ERROR(runtime.touch_bytes(container.text().size()));
      return container.bytes().find(item.bytes()) != std::string_view::npos;
    case Kind::kDict:
    case Kind::kDictKeys:
      if (!is_hashable(item)) return invalid_argument(std::string("unhashable type: '") + type_name(item) + "'");
      if (container.is_dict()) {
        RETURN_IF_ERROR(runtime.touch_items(container.dict_object().entries.size()));
        return container.dict_object().find(item) != nullptr;
      }
      break;
    case Kind::kRange: {
      const RangeObject& range = container.as<RangeObject>();
      if (!item.is_number()) return false;
      double number = item.to_double();
      if (number != std::floor(number) || std::fabs(number) > 9e15) return false;
      const int64_t value = item.is_int_like() ? item.int_value() : static_cast<int64_t>(number);
      if (range.length == 0) return false;
      const int64_t last = range.start + (range.length - 1) * range.step;
      if (value < std::min(range.start, last) || value > std::max(range.start, last)) return false;
      return (value - range.start) % range.step == 0;
    }
    default:
      break;
  }
  if (!is_iterable(container) || container.kind() == Kind::kLoop) {
    return invalid_argument(std::string("argument of type '") + type_name(container) + "' is not iterable");
  }
  ASSIGN_OR_RETURN(ValueIterator iterator, ValueIterator::over(container));
  for (;;) {
    Value candidate;
    ASSIGN_OR_RETURN(const bool has_item, iterator.next(runtime, &candidate));
    if (!has_item) return false;
    if (are_equal(candidate, item)) return true;
  }
}

Result<std::vector<size_t>> sorted_order(Runtime& runtime, const std::vector<Value>& keys, bool is_reversed) {
  // A merge sort of our own: std::sort may not be given a comparison that fails or contradicts itself (NaN).
  std::vector<size_t> order(keys.size()), merged(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = is_reversed ? order.size() - 1 - i : i;
  for (size_t width = 1; width < order.size(); width *= 2) {
    for (size_t begin = 0; begin < order.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, order.size()), end = std::min(begin + 2 * width, order.size());
      size_t left = begin, right = middle;
      for (size_t out = begin; out < end; ++out) {
        bool takes_right = left == middle;
        if (!takes_right && right < end) {
          ASSIGN_OR_RETURN(takes_right, is_less(runtime, keys[order[right]], keys[order[left]]));
        }
        merged[out] = takes_right ? order[right++] : order[left++];
      }
    }
    order.swap(merged);
  }
  if (is_reversed) std::reverse(order.begin(), order.end());
  return order;
}

Result<std::optional<Value>> subscript(Runtime& runtime, const Value& value, const Value& index) {
  if (value.is_undefined()) return undefined_error(value);
  if (value.is_dict()) {
    if (!is_hashable(index)) return std::optional<Value>();
    RETURN_IF_ERROR(runtime.touch_items(value.dict_object().entries.size()));
    const Value* found = value.dict_object().find(index);
    return found != nullptr ? std::optional<Value>(*found) : std::nullopt;
  }
  const bool is_sequence_like = is_sequence(value) || value.kind() == Kind::kRange;
  if (!is_sequence_like || !index.is_int_like()) return std::optional<Value>();
  const int64_t length = static_cast<int64_t>(*length_of(value));
  int64_t position = index.int_value();
  if (position < 0) position += length;
  if (position < 0 || position >= length) return std::optional<Value>();
  if (value.kind() == Kind::kRange) {
    const RangeObject& range = value.as<RangeObject>();
    return std::optional<Value>(Value::integer(range.start + position * range.step));
  }
  if (!value.is_string()) return std::optional<Value>(value.items()[static_cast<size_t>(position)]);
  RETURN_IF_ERROR(runtime.touch_bytes(value.text().size()));
  const size_t begin = value.str().offset_of(static_cast<size_t>(position));
  const size_t end = begin + code_point_at(value.bytes(), begin).num_bytes;
  return std::optional<Value>(runtime.make_string(value.text().substr(begin, end), value.str().is_markup));
}

Result<SliceIndices> resolve_slice(const Value& start, const Value& stop, const Value& step, int64_t length) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> step_value, slice_index(step));
  ASSIGN_OR_RETURN(std::optional<int64_t> from, slice_index(start));
  ASSIGN_OR_RETURN(std::optional<int64_t> to, slice_index(stop));
  int64_t by = step_value.value_or(1);
  if (by == 0) return invalid_argument("slice step cannot be zero");
  by = std::clamp(by, -std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max());
  const int64_t lowest = by < 0 ? -1 : 0, highest = by < 0 ? length - 1 : length;
  const auto clip = [&](int64_t index) {
    if (index < 0) index = index < -length ? lowest : std::max(index + length, lowest);
    return std::min(index, highest);
  };
  const int64_t first = from ? clip(*from) : (by < 0 ? highest : lowest);
  const int64_t last = to ? clip(*to) : (by < 0 ? lowest : highest);
  int64_t count = 0;
  if (by > 0 && last > first) count = (last - first - 1) / by + 1;
  if (by < 0 && last < first) count = (first - last - 1) / -by + 1;
  return SliceIndices{first, by, count};
}

Text slice_text(const StringObject& string, const SliceIndices& indices) {
  Text out;
  if (indices.count == 0) return out;
  if (indices.step == 1) {
    const size_t begin = string.offset_of(static_cast<size_t>(indices.start));
    size_t end = begin;
    if (string.is_ascii()) {
      end = begin + static_cast<size_t>(indices.count);
    } else {
      for (int64_t i = 0; i < indices.count; ++i) end += code_point_at(string.text.bytes(), end).num_bytes;
    }
    out.append(string.text, begin, end);
    return out;
  }
  std::vector<size_t> offsets;
  if (!string.is_ascii()) {
    for (size_t i = 0; i < string.text.size(); i += code_point_at(string.text.bytes(), i).num_bytes)
      offsets.push_back(i);
  }
  int64_t index = indices.start;
  for (int64_t i = 0; i < indices.count; ++i, index += indices.step) {
    const size_t begin = string.is_ascii() ? static_cast<size_t>(index) : offsets[static_cast<size_t>(index)];
    out.append(string.text, begin, begin + code_point_at(string.text.bytes(), begin).num_bytes);
    if (i + 1 == indices.count) break;
  }
  return out;
}

Result<Value> slice(Runtime& runtime, const Value& value, const Value& start, const Value& stop, const Value& step) {
  if (value.is_undefined()) return undefined_error(value);
  const bool is_range = value.kind() == Kind::kRange;
  if (!is_sequence(value) && !is_range) {
    return invalid_argument(std::string("'") + type_name(value) + "' object cannot be sliced");
  }
  ASSIGN_OR_RETURN(const SliceIndices indices,
                   resolve_slice(start, stop, step, static_cast<int64_t>(*length_of(value))));
  if (value.is_string()) {
    RETURN_IF_ERROR(runtime.touch_bytes(value.text().size()));
    return runtime.make_string(slice_text(value.str(), indices), value.str().is_markup);
  }
  if (is_range) {
    const RangeObject& range = value.as<RangeObject>();
    auto object = runtime.make_object<RangeObject>();
    object->start = range.start + indices.start * range.step;
    if (__builtin_mul_overflow(range.step, indices.step, &object->step) ||
        __builtin_mul_overflow(object->step, indices.count, &object->stop) ||
        __builtin_add_overflow(object->stop, object->start, &object->stop)) {
      return overflow_error();
    }
    object->length = indices.count;
    return Value::from_object(Kind::kRange, std::move(object));
  }
  RETURN_IF_ERROR(runtime.touch_items(static_cast<size_t>(indices.count)));
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(indices.count));
  int64_t index = indices.start;
  for (int64_t i = 0; i < indices.count; ++i) {
    items.push_back(value.items()[static_cast<size_t>(index)]);
    if (i + 1 < indices.count) index += indices.step;
  }
  return runtime.make_list(std::move(items), value.kind());
}

Result<Value> concatenate(Runtime& runtime, const std::vector<Value>& parts) {
  Text out;
  for (const Value& part : parts) RETURN_IF_ERROR(append_str(runtime, out, part));
  return runtime.make_string(std::move(out));
}

}  // namespace quire::jinja
