// CHECK(a == b): our own invariants. On failure it prints the expression, both values and the place, and aborts,
// in release builds too. User input never reaches a CHECK: that is what Status is for. DCHECK is the same in debug
// builds and nothing in release: for inner loops.
#pragma once

#include <concepts>
#include <ostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

namespace quire::check_internal {

[[noreturn]] void fail(const char* file, int line, const char* expression, const std::string& values);

template <typename T>
concept Printable = requires(std::ostream& out, const T& value) {
  out << value;
};

template <typename T>
concept PlainInteger =
    std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char> && !std::same_as<T, wchar_t> &&
    !std::same_as<T, char8_t> && !std::same_as<T, char16_t> && !std::same_as<T, char32_t>;

template <typename T>
std::string describe(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_enum_v<T>) {
    out << static_cast<long long>(value);
  } else if constexpr (Printable<T>) {
    out << value;
  } else {
    out << "(value)";
  }
  return out.str();
}

// The outcome of a checked comparison; `values` is filled on failure only.
struct Outcome {
  bool passed;
  std::string values;
  explicit operator bool() const { return passed; }
};

// Integers of different signedness are compared as numbers, so that CHECK(vector.size() == count) is right.
#define QUIRE_CHECK_COMPARISON(symbol, safe_function)                   \
  template <typename R>                                                 \
  Outcome operator symbol(const R& right) const {                       \
    bool passed;                                                        \
    if constexpr (PlainInteger<L> && PlainInteger<R>) {                 \
      passed = safe_function(left, right);                              \
    } else {                                                            \
      passed = static_cast<bool>(left symbol right);                    \
    }                                                                   \
    if (passed) [[likely]]                                              \
      return {true, {}};                                                \
    return {false, describe(left) + " " #symbol " " + describe(right)}; \
  }

// Holds the left operand, so that a comparison can print both sides.
template <typename L>
struct LeftOperand {
  const L& left;

  explicit operator bool() const { return static_cast<bool>(left); }
  QUIRE_CHECK_COMPARISON(==, std::cmp_equal)
  QUIRE_CHECK_COMPARISON(!=, std::cmp_not_equal)
  QUIRE_CHECK_COMPARISON(<, std::cmp_less)
  QUIRE_CHECK_COMPARISON(<=, std::cmp_less_equal)
  QUIRE_CHECK_COMPARISON(>, std::cmp_greater)
  QUIRE_CHECK_COMPARISON(>=, std::cmp_greater_equal)
};
#undef QUIRE_CHECK_COMPARISON

// `<<` binds tighter than the comparisons and looser than arithmetic: `Decomposer() << a + 1 == b` compares a + 1.
struct Decomposer {
  template <typename L>
  LeftOperand<L> operator<<(const L& left) const {
    return {left};
  }
};

inline Outcome evaluate(Outcome outcome) {
  return outcome;
}
inline Outcome evaluate(bool passed) {
  return {passed, {}};
}
template <typename L>
Outcome evaluate(const LeftOperand<L>& operand) {
  return {static_cast<bool>(operand), {}};
}

}  // namespace quire::check_internal

#define CHECK(...)                                                                                                    \
  do {                                                                                                                \
    if (auto quire_outcome = ::quire::check_internal::evaluate(::quire::check_internal::Decomposer() << __VA_ARGS__); \
        !quire_outcome.passed) [[unlikely]]                                                                           \
      ::quire::check_internal::fail(__FILE__, __LINE__, #__VA_ARGS__, quire_outcome.values);                          \
  } while (false)

#ifdef NDEBUG
#define DCHECK(...) \
  do {              \
  } while (false)
#else
#define DCHECK(...) CHECK(__VA_ARGS__)
#endif
