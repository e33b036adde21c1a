// Decimal numbers as they are written, and the texts of the numbers within a range: what minimum, maximum and
// multipleOf allow. Exact, without floating point. Internal to the grammar files; pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/grammar_nodes.h"

namespace quire::grammar_internal {

struct Decimal {
  bool is_negative = false;
  std::string whole = "0";  // no leading zeros
  std::string fraction;     // no trailing zeros

  // "-12.50", "1e-7". Nothing for what is no number or needs more than some hundred digits.
  static std::optional<Decimal> parse(std::string_view text);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  std::string to_text() const;
};

int compare(const Decimal& a, const Decimal& b);

struct NumberBound {
  Decimal value;
  bool is_exclusive = false;
};

struct NumberLimits {
  std::optional<NumberBound> low, high;
  std::vector<Decimal> multiples_of;
  bool is_integer = false;  // no fraction is written

  bool is_any() const { return !low && !high && multiples_of.empty(); }
};

// The numbers in plain notation (no exponent). Fails where it takes too many states.
Result<NodeIndex> number_in_limits(NodePool& pool, const NumberLimits& limits);

}  // namespace quire::grammar_internal
