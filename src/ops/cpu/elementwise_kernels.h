// The bodies of elementwise.h as templates over a lane type. Included only by the kernels_*.cc files, each compiled for
// its instruction set; so nothing here may call an inline function that other files call too (the linker keeps one copy
// of those, perhaps one that this processor cannot run): no containers, no std algorithms, no CHECK.
#pragma once

#include "ops/cpu/elementwise.h"
#include "ops/cpu/lane_math.h"

namespace quire::cpu {
namespace {

template <typename Lanes>
struct ElementwiseKernels {
  using Vec = typename Lanes::Vec;
  using Math = LaneMath<Lanes>;

  template <typename Rows>
  static auto row(const Rows& rows, int64_t num_heads, int64_t r) {
    return rows.data + r / num_heads * rows.token_stride + r % num_heads * rows.head_stride;
  }

  // Calls body(i, count) for the sixteens of [0, size); count < 16 only for the last.
  template <typename Body>
  static void for_each_vector(int64_t size, Body&& body) {
    int64_t i = 0;
    for (; i + 16 <= size; i += 16) body(i, 16);
    if (i < size) body(i, static_cast<int>(size - i));
  }
  static Vec load(const float* p, int count) { return count == 16 ? Lanes::load(p) : Lanes::load(p, count); }
  static void store(float* p, const Vec& v, int count) {
    if (count == 16) {
      Lanes::store(p, v);
    } else {
      Lanes::store(p, v, count);
    }
  }

  // Four sums of sixteen lanes take the sixteens in turn: enough in flight to hide the latency of an addition.
  static float sum_of_squares(const float* x, int64_t size) {
    Vec sums[4] = {Lanes::set(0.0f), Lanes::set(0.0f), Lanes::set(0.0f), Lanes::set(0.0f)};
    int64_t i = 0;
    for (; i + 64 <= size; i += 64) {
      for (int part = 0; part < 4; ++part) {
        const Vec v = Lanes::load(x + i + 16 * part);
        sums[part] = Lanes::fma(v, v, sums[part]);
      }
    }
    for (int part = 0; i < size; i += 16, ++part) {
      const Vec v = load(x + i, size - i < 16 ? static_cast<int>(size - i) : 16);
      sums[part] = Lanes::fma(v, v, sums[part]);
    }
    return Lanes::sum(Lanes::add(Lanes::add(sums[0], sums[1]), Lanes::add(sums[2], sums[3])));
  }

  static void rms_norm(const RmsNormCall& call) {
    for (int64_t r = call.begin; r < call.end; ++r) {
      const float* x = row(call.x, call.num_heads, r);
      float* y = row(call.y, call.num_heads, r);
      if (call.delta.data != nullptr) {
        const float* delta = row(call.delta, call.num_heads, r);
        float* x_sum = row(call.x_sum, call.num_heads, r);
        for_each_vector(call.size, [&](int64_t i, int count) {
          store(x_sum + i, Lanes::add(load(x + i, count), load(delta + i, count)), count);
        });
        x = x_sum;
      }
      const float mean = sum_of_squares(x, call.size) / static_cast<float>(call.size);
      const Vec factor = Lanes::set(1.0f / __builtin_sqrtf(mean + call.epsilon));
      for_each_vector(call.size, [&](int64_t i, int count) {
        store(y + i, Lanes::mul(Lanes::mul(load(x + i, count), factor), load(call.weight + i, count)), count);
      });
    }
  }

  template <typename Combine>
  static void combine_rows(const BinaryCall& call, Combine&& combine) {
    for (int64_t r = call.begin; r < call.end; ++r) {
      float* y = call.y + r * call.y_stride;
      const float* a = call.a + r * call.a_stride;
      const float* b = call.b + r * call.b_stride;
      for_each_vector(call.size, [&](int64_t i, int count) {
        store(y + i, combine(load(a + i, count), load(b + i, count)), count);
      });
    }
  }

  static void binary(const BinaryCall& call) {
    switch (call.op) {
      case BinaryOp::kAdd:
        return combine_rows(call, [](const Vec& a, const Vec& b) { return Lanes::add(a, b); });
      case BinaryOp::kSiluMultiply:
        return combine_rows(call, [](const Vec& a, const Vec& b) { return Lanes::mul(Math::silu(a), b); });
      case BinaryOp::kGeluTanhMultiply:
        return combine_rows(call, [](const Vec& a, const Vec& b) { return Lanes::mul(Math::gelu_tanh(a), b); });
    }
  }

  static void soft_cap(const SoftCapCall& call) {
    const Vec cap = Lanes::set(call.cap);
    for (int64_t r = call.begin; r < call.end; ++r) {
      float* x = call.x + r * call.stride;
      for_each_vector(call.size, [&](int64_t i, int count) {
        store(x + i, Lanes::mul(cap, Math::tanh(Lanes::div(load(x + i, count), cap))), count);
      });
    }
  }

  static void rotate_halves(float* x, const float* cosines, const float* sines, int64_t half) {
    for_each_vector(half, [&](int64_t i, int count) {
      const Vec a = load(x + i, count);
      const Vec b = load(x + half + i, count);
      const Vec c = load(cosines + i, count);
      const Vec s = load(sines + i, count);
      store(x + i, Lanes::sub(Lanes::mul(a, c), Lanes::mul(b, s)), count);
      store(x + half + i, Lanes::add(Lanes::mul(b, c), Lanes::mul(a, s)), count);
    });
  }

  static void rotate_pairs(float* x, const float* cosines, const float* sines, int64_t half) {
    int64_t i = 0;
    for (; i + 8 <= half; i += 8) {
      const Vec pairs = Lanes::load(x + 2 * i);
      const Vec crossed = Lanes::negate_even(Lanes::mul(Lanes::swap_pairs(pairs), Lanes::load_doubled(sines + i)));
      Lanes::store(x + 2 * i, Lanes::add(Lanes::mul(pairs, Lanes::load_doubled(cosines + i)), crossed));
    }
    for (; i < half; ++i) {
      const float a = x[2 * i];
      const float b = x[2 * i + 1];
      x[2 * i] = a * cosines[i] - b * sines[i];
      x[2 * i + 1] = b * cosines[i] + a * sines[i];
    }
  }

  static void rope(const RopeCall& call) {
    for (int64_t r = call.begin; r < call.end; ++r) {
      const float* cosines = call.table + r / call.num_heads * call.table_stride;
      const float* sines = cosines + call.half_size;
      float* x = row(call.x, call.num_heads, r);
      if (call.is_interleaved) {
        rotate_pairs(x, cosines, sines, call.half_size);
      } else {
        rotate_halves(x, cosines, sines, call.half_size);
      }
    }
  }

  // Rounds `size` floats to the cache's dtype; `out` is where index `offset` of the cache stands.
  static void store_rounded(void* cache, DType dtype, int64_t offset, const float* x, int64_t size) {
    if (dtype == DType::kF32) {
      float* out = static_cast<float*>(cache) + offset;
      for_each_vector(size, [&](int64_t i, int count) { store(out + i, load(x + i, count), count); });
      return;
    }
    uint16_t* out = static_cast<uint16_t*>(cache) + offset;
    for_each_vector(size, [&](int64_t i, int count) {
      uint16_t rounded[16];
      uint16_t* target = count == 16 ? out + i : rounded;
      if (dtype == DType::kF16) {
        Lanes::store_f16(target, load(x + i, count));
      } else {
        Lanes::store_bf16(target, load(x + i, count));
      }
      if (count < 16) {
        for (int j = 0; j < count; ++j) out[i + j] = rounded[j];
      }
    });
  }

  static void write_kv(const WriteKvCall& call) {
    for (int64_t r = call.begin; r < call.end; ++r) {
      const int64_t slot = call.slots[r / call.num_heads];
      if (slot < 0) continue;
      const int64_t offset = slot / call.page_size * call.page_stride + r % call.num_heads * call.head_stride +
                             slot % call.page_size * call.token_stride;
      store_rounded(call.k_cache, call.dtype, offset, row(call.k, call.num_heads, r), call.head_dim);
      store_rounded(call.v_cache, call.dtype, offset, row(call.v, call.num_heads, r), call.head_dim);
    }
  }
};

}  // namespace
}  // namespace quire::cpu
