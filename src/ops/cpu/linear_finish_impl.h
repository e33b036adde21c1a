// What becomes of the sums of a product (OutputBlock) as a template over lanes. Included by linear_int8_impl.h and
// linear_f32_impl.h.
#pragma once

#include <cstdint>

#include "ops/cpu/lane_math.h"
#include "ops/cpu/linear_kernels.h"

namespace quire::cpu {
namespace {

template <typename Lanes>
struct LinearFinish {
  using Vec = typename Lanes::Vec;
  using Math = LaneMath<Lanes>;

  // Calls visit(index, count, token) for the sixteens of every token's outputs; count < 16 only for the last.
  template <typename Visit>
  [[gnu::always_inline]] static void visit_vectors(const OutputBlock& block, Visit visit) {
    for (int64_t t = 0; t < block.num_tokens; ++t) {
      int64_t i = 0;
      for (; i + 16 <= block.num_outputs; i += 16) visit(t, i, 16);
      if (i < block.num_outputs) visit(t, i, static_cast<int>(block.num_outputs - i));
    }
  }
  static Vec load(const float* p, int count) { return count == 16 ? Lanes::load(p) : Lanes::load(p, count); }
  static Vec add(const Vec& sum, const float* bias, int64_t i, int count) {
    return bias != nullptr ? Lanes::add(sum, load(bias + i, count)) : sum;
  }
  static void store(const OutputBlock& block, int64_t t, int64_t i, int count, const Vec& v) {
    float* y = block.y + t * block.y_stride + i;
    if (count == 16) {
      Lanes::store(y, v);
    } else {
      Lanes::store(y, v, count);
    }
  }

  template <typename Activate>
  [[gnu::always_inline]] static void finish_gated(const OutputBlock& block, Activate activate) {
    visit_vectors(block, [&](int64_t t, int64_t i, int count) {
      const int64_t at = t * block.sums_stride + i;
      const Vec gate = add(Lanes::load(block.sums + at), block.bias, i, count);
      const Vec up = add(Lanes::load(block.up_sums + at), block.up_bias, i, count);
      store(block, t, i, count, Lanes::mul(activate(gate), up));
    });
  }

  static void finish(const OutputBlock& block) {
    if (block.up_sums == nullptr) {
      visit_vectors(block, [&](int64_t t, int64_t i, int count) {
        Vec sum = add(Lanes::load(block.sums + t * block.sums_stride + i), block.bias, i, count);
        if (block.residual != nullptr) {
          sum = Lanes::add(sum, load(block.residual + t * block.residual_stride + i, count));
        }
        store(block, t, i, count, sum);
      });
    } else if (block.activation == Activation::kSilu) {
      finish_gated(block, [](const Vec& gate) { return Math::silu(gate); });
    } else {
      finish_gated(block, [](const Vec& gate) { return Math::gelu_tanh(gate); });
    }
  }
};

}  // namespace
}  // namespace quire::cpu
