#include "text/grammar_decimal.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "text/grammar_lowering.h"

namespace quire::grammar_internal {
namespace {

constexpr size_t kMaxDigits = 400;
constexpr int64_t kMaxModulus = 20'000;
constexpr size_t kMaxNumberStates = 100'000;

NodeIndex digits(NodePool& pool, int min, int max) {
  return pool.repeat(pool.character({{'0', '9'}}), min, max);
}

NodeIndex digit_between(NodePool& pool, int first, int last) {
  if (first > last) return pool.never();
  return pool.character({{U'0' + static_cast<char32_t>(first), U'0' + static_cast<char32_t>(last)}});
}

// The numbers from zero that lie on one side of a bound that is not negative.
class OneSide {
 public:
  OneSide(NodePool& pool, bool is_integer) : pool_(pool), is_integer_(is_integer) {}

  NodeIndex at_least(const Decimal& bound, bool is_exclusive) {
    const int length = static_cast<int>(bound.whole.size());
    std::vector<NodeIndex> ways;
    ways.push_back(pool_.sequence({digit_between(pool_, 1, 9), digits(pool_, length, -1), any_fraction()}));
    for (int i = 0; i < length; ++i) {
      const int digit = bound.whole[static_cast<size_t>(i)] - '0';
      ways.push_back(pool_.sequence({pool_.bytes(bound.whole.substr(0, static_cast<size_t>(i))),
                                     digit_between(pool_, digit + 1, 9), digits(pool_, length - i - 1, length - i - 1),
                                     any_fraction()}));
    }
    ways.push_back(pool_.sequence({pool_.bytes(bound.whole), fraction_at_least(bound.fraction, is_exclusive)}));
    return pool_.alternatives(std::move(ways));
  }

  NodeIndex at_most(const Decimal& bound, bool is_exclusive) {
    const int length = static_cast<int>(bound.whole.size());
    std::vector<NodeIndex> ways;
    if (length > 1) {
      const NodeIndex shorter = pool_.sequence({digit_between(pool_, 1, 9), digits(pool_, 0, length - 2)});
      ways.push_back(pool_.sequence({pool_.alternatives({pool_.bytes("0"), shorter}), any_fraction()}));
    }
    for (int i = 0; i < length; ++i) {
      const int digit = bound.whole[static_cast<size_t>(i)] - '0';
      const int lowest = i == 0 && length > 1 ? 1 : 0;
      ways.push_back(pool_.sequence({pool_.bytes(bound.whole.substr(0, static_cast<size_t>(i))),
                                     digit_between(pool_, lowest, digit - 1),
                                     digits(pool_, length - i - 1, length - i - 1), any_fraction()}));
    }
    ways.push_back(pool_.sequence({pool_.bytes(bound.whole), fraction_at_most(bound.fraction, is_exclusive)}));
    return pool_.alternatives(std::move(ways));
  }

 private:
  NodeIndex any_fraction() {
    if (is_integer_) return pool_.empty();
    return pool_.optional(pool_.sequence({pool_.bytes("."), digits(pool_, 1, -1)}));
  }

  NodeIndex digits_not_all_zero() {
    return pool_.sequence({pool_.repeat(pool_.bytes("0"), 0, -1), digit_between(pool_, 1, 9), digits(pool_, 0, -1)});
  }

  // Behind a whole part that equals the bound's.
  NodeIndex fraction_at_least(const std::string& bound, bool is_exclusive) {
    if (is_integer_) return bound.empty() && !is_exclusive ? pool_.empty() : pool_.never();
    if (bound.empty()) {
      return is_exclusive ? pool_.sequence({pool_.bytes("."), digits_not_all_zero()}) : any_fraction();
    }
    std::vector<NodeIndex> ways;
    for (size_t i = 0; i < bound.size(); ++i) {
      ways.push_back(pool_.sequence(
          {pool_.bytes(bound.substr(0, i)), digit_between(pool_, bound[i] - '0' + 1, 9), digits(pool_, 0, -1)}));
    }
    ways.push_back(pool_.sequence({pool_.bytes(bound), is_exclusive ? digits_not_all_zero() : digits(pool_, 0, -1)}));
    return pool_.sequence({pool_.bytes("."), pool_.alternatives(std::move(ways))});
  }

  NodeIndex fraction_at_most(const std::string& bound, bool is_exclusive) {
    if (is_integer_) return bound.empty() && is_exclusive ? pool_.never() : pool_.empty();
    const NodeIndex zeros = pool_.repeat(pool_.bytes("0"), 0, -1);
    if (bound.empty()) {
      if (is_exclusive) return pool_.never();
      return pool_.optional(pool_.sequence({pool_.bytes(".0"), zeros}));
    }
    std::vector<NodeIndex> ways;
    for (size_t i = 0; i < bound.size(); ++i) {
      ways.push_back(pool_.sequence(
          {pool_.bytes(bound.substr(0, i)), digit_between(pool_, 0, bound[i] - '0' - 1), digits(pool_, 0, -1)}));
      // A shorter fraction is smaller: the bound's last digit is not zero.
      if (i > 0) ways.push_back(pool_.bytes(bound.substr(0, i)));
    }
    if (!is_exclusive) ways.push_back(pool_.sequence({pool_.bytes(bound), zeros}));
    return pool_.optional(pool_.sequence({pool_.bytes("."), pool_.alternatives(std::move(ways))}));
  }

  NodePool& pool_;
  const bool is_integer_;
};

// Remainders of the digits read so far, and how many of them stood behind the point. Signs aside.
Result<StateGraph> multiples_graph(const Decimal& step, bool is_integer) {
  const std::string text = step.whole == "0" ? step.fraction : step.whole + step.fraction;
  const size_t num_places = step.fraction.size();
  int64_t modulus = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), modulus);
  const size_t num_layers = is_integer ? 1 : num_places + 1;
  if (parsed.ec != std::errc() || modulus > kMaxModulus ||
      static_cast<int64_t>(num_layers) * modulus > 2 * kMaxModulus) {
    return unimplemented("schema: \"multipleOf\" " + step.to_text() + " has too many digits; at most about " +
                         std::to_string(kMaxModulus) + " steps of its last place are supported");
  }
  StateGraph graph;
  graph.start = graph.add_state();
  const int32_t zero = graph.add_state();  // the whole part is "0": no digit may follow
  std::vector<int32_t> first_of_layer;
  for (size_t layer = 0; layer < num_layers; ++layer) {
    first_of_layer.push_back(static_cast<int32_t>(graph.states.size()));
    int64_t scale = 1 % modulus;
    for (size_t i = layer; i < num_places; ++i) scale = scale * 10 % modulus;
    for (int64_t r = 0; r < modulus; ++r) graph.add_state(r * scale % modulus == 0);
  }
  graph.state(zero).is_final = true;
  auto state_of = [&](size_t layer, int64_t remainder) {
    return first_of_layer[layer] + static_cast<int32_t>(remainder);
  };
  auto add_digits = [&](int32_t from, size_t layer, int64_t remainder, int first) {
    for (int digit = first; digit <= 9; ++digit) {
      const auto byte = static_cast<uint8_t>('0' + digit);
      graph.add_edge(from, GraphEdge::bytes(byte, byte, state_of(layer, (remainder * 10 + digit) % modulus)));
    }
  };
  graph.add_edge(graph.start, GraphEdge::bytes('0', '0', zero));
  add_digits(graph.start, 0, 0, 1);
  for (int64_t r = 0; r < modulus; ++r) add_digits(state_of(0, r), 0, r, 0);
  // Between the layers stands the point, with a digit behind it.
  auto add_point = [&](int32_t from, int64_t remainder) {
    const int32_t point = graph.add_state();
    graph.add_edge(from, GraphEdge::bytes('.', '.', point));
    add_digits(point, 1, remainder, 0);
  };
  if (num_layers > 1) {
    add_point(zero, 0);
    for (int64_t r = 0; r < modulus; ++r) add_point(state_of(0, r), r);
  }
  for (size_t layer = 1; layer + 1 < num_layers; ++layer) {
    for (int64_t r = 0; r < modulus; ++r) add_digits(state_of(layer, r), layer + 1, r, 0);
  }
  return graph;
}

}  // namespace

std::optional<Decimal> Decimal::parse(std::string_view text) {
  Decimal decimal;
  if (text.starts_with('-')) {
    decimal.is_negative = true;
    text.remove_prefix(1);
  }
  int exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    std::string_view number = text.substr(e + 1);
    if (number.starts_with('+')) number.remove_prefix(1);
    const auto parsed = std::from_chars(number.data(), number.data() + number.size(), exponent);
    if (parsed.ec != std::errc() || parsed.ptr != number.data() + number.size()) return std::nullopt;
    text = text.substr(0, e);
  }
  const size_t point = std::min(text.size(), text.find('.'));
  std::string all(text.substr(0, point));
  if (point < text.size()) all += text.substr(point + 1);
  if (all.empty() || !std::all_of(all.begin(), all.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  const auto limit = static_cast<int64_t>(kMaxDigits);
  const int64_t num_whole = static_cast<int64_t>(point) + exponent;  // digits before the point
  if (num_whole > limit || num_whole < -limit || all.size() > kMaxDigits) return std::nullopt;
  if (num_whole < 0) all.insert(0, static_cast<size_t>(-num_whole), '0');
  const auto split = static_cast<size_t>(std::max<int64_t>(0, num_whole));
  if (all.size() < split) all.append(split - all.size(), '0');
  decimal.whole = all.substr(0, split);
  decimal.fraction = all.substr(split);
  decimal.whole.erase(0, std::min(decimal.whole.find_first_not_of('0'), decimal.whole.size()));
  if (decimal.whole.empty()) decimal.whole = "0";
  decimal.fraction.erase(decimal.fraction.find_last_not_of('0') + 1);
  if (decimal.is_zero()) decimal.is_negative = false;
  return decimal;
}

std::string Decimal::to_text() const {
  return (is_negative ? "-" : "") + whole + (fraction.empty() ? "" : "." + fraction);
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.is_negative != b.is_negative) return a.is_negative ? -1 : 1;
  const int sign = a.is_negative ? -1 : 1;
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -sign : sign;
  const int whole = a.whole.compare(b.whole);
  if (whole != 0) return whole < 0 ? -sign : sign;
  const int fraction = a.fraction.compare(b.fraction);  // no trailing zeros, so the order of texts is that of numbers
  return fraction == 0 ? 0 : fraction < 0 ? -sign : sign;
}

Result<NodeIndex> number_in_limits(NodePool& pool, const NumberLimits& limits) {
  OneSide side(pool, limits.is_integer);
  const Decimal zero;
  auto all_of = [&](std::vector<NodeIndex> parts) -> Result<NodeIndex> {
    ASSIGN_OR_RETURN(StateGraph both, lower_regular(pool, parts[0]));
    auto meet = [&both, &pool](const StateGraph& other) -> Status {
      std::optional<StateGraph> met = intersect(both, other, kMaxNumberStates, pool.work());
      RETURN_IF_ERROR(pool.work().status());
      if (!met) return resource_exhausted("schema: the limits of a number need too many states; use rounder ones");
      both = std::move(*met);
      return ok_status();
    };
    for (size_t i = 1; i < parts.size(); ++i) {
      ASSIGN_OR_RETURN(const StateGraph other, lower_regular(pool, parts[i]));
      RETURN_IF_ERROR(meet(other));
    }
    for (const Decimal& multiple : limits.multiples_of) {
      ASSIGN_OR_RETURN(const StateGraph other, multiples_graph(multiple, limits.is_integer));
      RETURN_IF_ERROR(meet(other));
    }
    return pool.graph(std::move(both));
  };
  std::vector<NodeIndex> ways;
  if (!limits.high || compare(limits.high->value, zero) >= 0) {
    const bool has_low = limits.low && compare(limits.low->value, zero) >= 0;
    std::vector<NodeIndex> parts{
        side.at_least(has_low ? limits.low->value : zero, has_low && limits.low->is_exclusive)};
    if (limits.high) parts.push_back(side.at_most(limits.high->value, limits.high->is_exclusive));
    ASSIGN_OR_RETURN(const NodeIndex way, all_of(std::move(parts)));
    ways.push_back(way);
  }
  if (!limits.low || limits.low->value.is_negative) {
    // Without the sign the bounds change places. "-0" is not written.
    const bool has_high = limits.high && limits.high->value.is_negative;
    std::vector<NodeIndex> parts{
        side.at_least(has_high ? limits.high->value : zero, has_high ? limits.high->is_exclusive : true)};
    if (limits.low) parts.push_back(side.at_most(limits.low->value, limits.low->is_exclusive));
    ASSIGN_OR_RETURN(const NodeIndex way, all_of(std::move(parts)));
    ways.push_back(pool.sequence({pool.bytes("-"), way}));
  }
  return pool.alternatives(std::move(ways));
}

}  // namespace quire::grammar_internal
