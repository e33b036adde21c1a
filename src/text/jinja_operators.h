// Python's operators on values: arithmetic, comparison, membership, slices, subscripts. Used by the evaluator and by
// filters and tests. Errors read as Python's.
#pragma once

#include "text/jinja_runtime.h"

namespace quire::jinja {

enum class BinaryOperator { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
enum class CompareOperator { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

Result<Value> apply_binary(Runtime& runtime, BinaryOperator op, const Value& left, const Value& right);
Result<Value> negate(const Value& value);
Result<Value> identity_plus(const Value& value);  // unary plus
Result<bool> compare(Runtime& runtime, CompareOperator op, const Value& left, const Value& right);
Result<bool> is_less(Runtime& runtime, const Value& left, const Value& right);
Result<bool> contains(Runtime& runtime, const Value& container, const Value& item);

// Stable order of the keys as sorted() gives it: indexes into keys.
Result<std::vector<size_t>> sorted_order(Runtime& runtime, const std::vector<Value>& keys, bool is_reversed);

// value[index] where Python would not raise; none where it would raise a TypeError or LookupError.
Result<std::optional<Value>> subscript(Runtime& runtime, const Value& value, const Value& index);
// Any of the three may be kMissing or None.
Result<Value> slice(Runtime& runtime, const Value& value, const Value& start, const Value& stop, const Value& step);

// The indexes that [start:stop:step] picks from a sequence of that length.
struct SliceIndices {
  int64_t start, step, count;
};
Result<SliceIndices> resolve_slice(const Value& start, const Value& stop, const Value& step, int64_t length);
Text slice_text(const StringObject& string, const SliceIndices& indices);

Result<Value> concatenate(Runtime& runtime, const std::vector<Value>& parts);  // the ~ operator
Result<Value> floor_mod(const Value& left, const Value& right, bool wants_quotient);

}  // namespace quire::jinja
