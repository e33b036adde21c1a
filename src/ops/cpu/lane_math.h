// exp, tanh and activations on sixteen lanes, the same operations in the same order for every lane type, so that all
// kernel rows agree bit for bit. Included where kernels are instantiated.
#pragma once

namespace quire::cpu {
namespace {

template <typename Lanes>
struct LaneMath {
  using Vec = typename Lanes::Vec;

  // Adding this rounds to an integer, to nearest even, and leaves it in the low bits.
  static constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23
  static constexpr float kLog2E = 1.44269504f;
  static constexpr float kLog2ERest = 1.92596299e-8f;  // log2(e) - kLog2E

  // 2^f for |f| <= 1/2: minimax polynomial, relative error below 1.6e-8 before rounding; exactly 1 at 0.
  static Vec exp2_fraction(const Vec& f) {
    Vec p = Lanes::set(0x1.41fbbcp-13f);
    p = Lanes::fma(p, f, Lanes::set(0x1.5f3e52p-10f));
    p = Lanes::fma(p, f, Lanes::set(0x1.3b2d4cp-7f));
    p = Lanes::fma(p, f, Lanes::set(0x1.c6aee8p-5f));
    p = Lanes::fma(p, f, Lanes::set(0x1.ebfbdcp-3f));
    p = Lanes::fma(p, f, Lanes::set(0x1.62e430p-1f));
    return Lanes::fma(p, f, Lanes::set(1.0f));
  }

  // 2^x for x <= 127; below -126 it is 2^-126. Error at most 1 unit in the last place. A NaN stays a NaN.
  static Vec exp2(const Vec& x) {
    const Vec bounded = Lanes::max(Lanes::set(-126.0f), x);
    const Vec rounded = Lanes::add(bounded, Lanes::set(kRounder));
    const Vec fraction = Lanes::sub(bounded, Lanes::sub(rounded, Lanes::set(kRounder)));
    return Lanes::mul(exp2_fraction(fraction), Lanes::power_of_two(rounded));
  }

  // The same to 13 bits, for what is rounded to bfloat16 next; exactly 1 at 0. Below -125 it is 2^-125.
  static Vec exp2_13_bits(const Vec& x) {
    const Vec bounded = Lanes::max(Lanes::set(-125.0f), x);
    const Vec rounded = Lanes::add(bounded, Lanes::set(kRounder));
    const Vec fraction = Lanes::sub(bounded, Lanes::sub(rounded, Lanes::set(kRounder)));
    Vec p = Lanes::set(0x1.c2a218p-5f);
    p = Lanes::fma(p, fraction, Lanes::set(0x1.f00c52p-3f));
    p = Lanes::fma(p, fraction, Lanes::set(0x1.62f5fap-1f));
    return Lanes::add_to_exponent(Lanes::fma(p, fraction, Lanes::set(1.0f)), rounded);
  }

  // e^x, with x held inside [-87.3, 88.3]. Error at most 1.5 units in the last place.
  static Vec exp(const Vec& x) {
    const Vec bounded = Lanes::max(Lanes::set(-87.3f), Lanes::min(Lanes::set(88.3f), x));
    const Vec rounded = Lanes::fma(bounded, Lanes::set(kLog2E), Lanes::set(kRounder));
    const Vec whole = Lanes::sub(rounded, Lanes::set(kRounder));
    Vec fraction = Lanes::fma(bounded, Lanes::set(kLog2E), Lanes::sub(Lanes::set(0.0f), whole));
    fraction = Lanes::fma(bounded, Lanes::set(kLog2ERest), fraction);
    return Lanes::mul(exp2_fraction(fraction), Lanes::power_of_two(rounded));
  }

  // Error at most 3 units in the last place.
  static Vec tanh(const Vec& x) {
    // Below 5/8: x + x³ p(x²), relative error below 1e-8 before rounding.
    const Vec square = Lanes::mul(x, x);
    Vec p = Lanes::set(-0x1.75e1cap-8f);
    p = Lanes::fma(p, square, Lanes::set(0x1.52269ap-6f));
    p = Lanes::fma(p, square, Lanes::set(-0x1.b83c5ap-5f));
    p = Lanes::fma(p, square, Lanes::set(0x1.110726p-3f));
    p = Lanes::fma(p, square, Lanes::set(-0x1.555532p-2f));
    const Vec small = Lanes::fma(Lanes::mul(p, square), x, x);
    // Above: 1 - 2 / (e^2|x| + 1).
    const Vec magnitude = Lanes::abs(x);
    const Vec one = Lanes::set(1.0f);
    const Vec denominator = Lanes::add(exp(Lanes::add(magnitude, magnitude)), one);
    const Vec large = Lanes::copy_sign(Lanes::sub(one, Lanes::div(Lanes::set(2.0f), denominator)), x);
    return Lanes::select_less(magnitude, Lanes::set(0.625f), small, large);
  }

  // x / (1 + e^-x)
  static Vec silu(const Vec& x) {
    const Vec minus_x = Lanes::sub(Lanes::set(0.0f), x);
    return Lanes::div(x, Lanes::add(Lanes::set(1.0f), exp(minus_x)));
  }

  // 0.5 x (1 + tanh u) is x / (1 + e^-2u), which does not cancel for negative u; u = sqrt(2/pi) (x + 0.044715 x³).
  static Vec gelu_tanh(const Vec& x) {
    constexpr float kMinusTwoSqrtTwoOverPi = -1.5957691216f;
    const Vec square = Lanes::mul(x, x);
    const Vec inner = Lanes::mul(x, Lanes::fma(square, Lanes::set(0.044715f), Lanes::set(1.0f)));
    const Vec exponential = exp(Lanes::mul(inner, Lanes::set(kMinusTwoSqrtTwoOverPi)));
    return Lanes::div(x, Lanes::add(Lanes::set(1.0f), exponential));
  }
};

}  // namespace
}  // namespace quire::cpu
