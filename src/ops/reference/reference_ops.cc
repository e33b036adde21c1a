// Memory, weights, norms and elementwise ops of the reference backend. Attention is in reference_attention.cc.
#include "ops/reference/reference_ops.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "ops/host_memory.h"
#include "quant/dequantize.h"
#include "quant/int8_rows.h"

namespace quire {

namespace {

template <typename T>
T* row(const TensorView& x, int64_t index) {
  return x.data<T>() + index * x.stride(0);
}
template <typename T>
const T* row(const ConstTensorView& x, int64_t index) {
  return x.data<T>() + index * x.stride(0);
}

void check_same_matrix(const ConstTensorView& a, const ConstTensorView& b) {
  CHECK(a.rank() == 2);
  CHECK(b.rank() == 2);
  CHECK(a.size(0) == b.size(0));
  CHECK(a.size(1) == b.size(1));
  CHECK(a.is_last_dimension_contiguous());
  CHECK(b.is_last_dimension_contiguous());
}

const std::byte* weight_row(const Weight& weight, int64_t index) {
  CHECK(weight.layout == Layout::kRowMajor);
  return weight.parts[0].data() + index * weight.quant().row_bytes(weight.k);
}

// y[t] = x[t] · Wᵀ for rows [begin, end) of x and one expert's matrix.
void multiply(Arena& scratch, const TensorView& y, const ConstTensorView& x, const Weight& weight, int64_t expert,
              const Epilogue& epilogue) {
  CHECK(x.rank() == 2);
  CHECK(y.rank() == 2);
  CHECK(x.size(1) == weight.k);
  CHECK(y.size(1) == weight.n);
  CHECK(x.size(0) == y.size(0));
  if (epilogue.residual.is_given()) check_same_matrix(epilogue.residual, y);
  if (epilogue.bias.is_given()) CHECK(epilogue.bias.num_elements() == weight.n);
  ArenaScope scope(scratch);
  float* weights = scratch.take(DType::kF32, {weight.k}).data<float>();
  for (int64_t n = 0; n < weight.n; ++n) {
    dequantize_row(weight.format, weight_row(weight, expert * weight.n + n), weights, weight.k);
    for (int64_t t = 0; t < x.size(0); ++t) {
      const float* inputs = row<float>(x, t);
      float sum = 0;
      for (int64_t k = 0; k < weight.k; ++k) sum += inputs[k] * weights[k];
      if (epilogue.bias.is_given()) sum += epilogue.bias.data<float>()[n];
      if (epilogue.residual.is_given()) sum += row<float>(epilogue.residual, t)[n];
      row<float>(y, t)[n] = sum;
    }
  }
}

}  // namespace

Result<DeviceBuffer> ReferenceOps::allocate(int64_t num_bytes, const char* purpose) {
  return allocate_host(num_bytes, purpose);
}

void ReferenceOps::copy_to_device(OpContext&, void* device_data, const void* host_data, int64_t num_bytes) {
  if (num_bytes > 0) std::memcpy(device_data, host_data, static_cast<size_t>(num_bytes));
}

void ReferenceOps::copy_to_host(OpContext&, void* host_data, const void* device_data, int64_t num_bytes) {
  if (num_bytes > 0) std::memcpy(host_data, device_data, static_cast<size_t>(num_bytes));
}

Result<Weight> ReferenceOps::pack(const Weight& given_weight) {
  CHECK(given_weight.layout == Layout::kRowMajor);
  Weight file_weight = given_weight;
  if (weight_quantization_ == WeightQuantization::kI8 && can_round_to_int8(given_weight)) {
    ThreadPool pool(1);
    file_weight = round_to_int8(pool, given_weight);
  }
  const std::span<const std::byte> bytes = file_weight.parts[0];
  ASSIGN_OR_RETURN(DeviceBuffer buffer, allocate(static_cast<int64_t>(bytes.size()), "weights"));
  if (!bytes.empty()) std::memcpy(buffer.data(), bytes.data(), bytes.size());
  Weight packed = file_weight;
  packed.parts[0] = {static_cast<const std::byte*>(buffer.data()), bytes.size()};
  packed.owner = std::make_shared<DeviceBuffer>(std::move(buffer));
  return packed;
}

void ReferenceOps::embedding(OpContext&, TensorView y, const Weight& table, ConstTensorView ids, float scale) {
  CHECK(y.rank() == 2);
  CHECK(y.size(0) == ids.num_elements());
  CHECK(y.size(1) == table.k);
  for (int64_t t = 0; t < y.size(0); ++t) {
    const int32_t id = ids.data<int32_t>()[t];
    CHECK(0 <= id && id < table.n);
    float* outputs = row<float>(y, t);
    dequantize_row(table.format, weight_row(table, id), outputs, table.k);
    for (int64_t k = 0; k < table.k; ++k) outputs[k] *= scale;
  }
}

void ReferenceOps::gather_rows(OpContext&, TensorView y, ConstTensorView x, ConstTensorView rows) {
  CHECK(y.size(0) == rows.num_elements());
  CHECK(y.size(1) == x.size(1));
  for (int64_t i = 0; i < y.size(0); ++i) {
    const int32_t source = rows.data<int32_t>()[i];
    CHECK(0 <= source && source < x.size(0));
    for (int64_t k = 0; k < y.size(1); ++k) row<float>(y, i)[k] = row<float>(x, source)[k];
  }
}

void ReferenceOps::rms_norm(OpContext&, TensorView y, ConstTensorView x, ConstTensorView weight, float epsilon) {
  CHECK(x.rank() == 2 || x.rank() == 3);
  CHECK(y.rank() == x.rank());
  const int64_t size = x.size(x.rank() - 1);
  const int64_t num_heads = x.rank() == 3 ? x.size(1) : 1;
  CHECK(weight.num_elements() == size);
  for (int64_t t = 0; t < x.size(0); ++t) {
    for (int64_t head = 0; head < num_heads; ++head) {
      const float* inputs = row<float>(x, t) + (x.rank() == 3 ? head * x.stride(1) : 0);
      float* outputs = row<float>(y, t) + (y.rank() == 3 ? head * y.stride(1) : 0);
      float sum = 0;
      for (int64_t k = 0; k < size; ++k) sum += inputs[k] * inputs[k];
      const float factor = 1.0f / std::sqrt(sum / static_cast<float>(size) + epsilon);
      for (int64_t k = 0; k < size; ++k) outputs[k] = inputs[k] * factor * weight.data<float>()[k];
    }
  }
}

void ReferenceOps::add(OpContext&, TensorView y, ConstTensorView a, ConstTensorView b) {
  check_same_matrix(y, a);
  check_same_matrix(y, b);
  for (int64_t t = 0; t < y.size(0); ++t) {
    for (int64_t k = 0; k < y.size(1); ++k) row<float>(y, t)[k] = row<float>(a, t)[k] + row<float>(b, t)[k];
  }
}

void ReferenceOps::gated_activation(OpContext&, TensorView y, ConstTensorView gate, ConstTensorView up,
                                    Activation activation) {
  check_same_matrix(y, gate);
  check_same_matrix(y, up);
  constexpr float kSqrtTwoOverPi = 0.7978845608028654f;
  for (int64_t t = 0; t < y.size(0); ++t) {
    for (int64_t k = 0; k < y.size(1); ++k) {
      const float g = row<float>(gate, t)[k];
      const float activated = activation == Activation::kSilu
                                  ? g / (1.0f + std::exp(-g))
                                  : 0.5f * g * (1.0f + std::tanh(kSqrtTwoOverPi * (g + 0.044715f * g * g * g)));
      row<float>(y, t)[k] = activated * row<float>(up, t)[k];
    }
  }
}

void ReferenceOps::soft_cap(OpContext&, TensorView x, float cap) {
  CHECK(x.rank() == 2);
  for (int64_t t = 0; t < x.size(0); ++t) {
    for (int64_t k = 0; k < x.size(1); ++k) row<float>(x, t)[k] = cap * std::tanh(row<float>(x, t)[k] / cap);
  }
}

void ReferenceOps::linear(OpContext& context, TensorView y, ConstTensorView x, const Weight& weight,
                          const Epilogue& epilogue) {
  CHECK(weight.num_experts == 1);
  multiply(context.scratch, y, x, weight, 0, epilogue);
}

void ReferenceOps::grouped_linear(OpContext& context, TensorView y, ConstTensorView x, const Weight& weight,
                                  ConstTensorView offsets) {
  CHECK(offsets.num_elements() == weight.num_experts + 1);
  const int32_t* starts = offsets.data<int32_t>();
  for (int64_t expert = 0; expert < weight.num_experts; ++expert) {
    const int64_t begin = starts[expert];
    const int64_t end = starts[expert + 1];
    multiply(context.scratch, y.slice(0, begin, end), x.slice(0, begin, end), weight, expert, {});
  }
}

void ReferenceOps::rope_table(OpContext&, TensorView table, ConstTensorView positions, const RopeParams& params) {
  const int64_t half = params.inverse_frequencies.num_elements();
  CHECK(table.rank() == 2);
  CHECK(table.size(0) == positions.num_elements());
  CHECK(table.size(1) == 2 * half);
  for (int64_t t = 0; t < table.size(0); ++t) {
    const float position = static_cast<float>(positions.data<int32_t>()[t]);
    float* out = row<float>(table, t);
    for (int64_t i = 0; i < half; ++i) {
      const float angle = position * params.inverse_frequencies.data<float>()[i];
      out[i] = std::cos(angle) * params.attention_factor;
      out[half + i] = std::sin(angle) * params.attention_factor;
    }
  }
}

void ReferenceOps::rope(OpContext&, TensorView x, ConstTensorView table, RopeStyle style) {
  CHECK(x.rank() == 3);
  CHECK(table.rank() == 2);
  CHECK(table.size(0) == x.size(0));
  CHECK(table.size(1) % 2 == 0);
  CHECK(table.size(1) <= x.size(2));
  const int64_t half = table.size(1) / 2;
  for (int64_t t = 0; t < x.size(0); ++t) {
    const float* cosines = row<float>(table, t);
    const float* sines = cosines + half;
    for (int64_t head = 0; head < x.size(1); ++head) {
      float* elements = row<float>(x, t) + head * x.stride(1);
      for (int64_t i = 0; i < half; ++i) {
        float& a = elements[style == RopeStyle::kHalves ? i : 2 * i];
        float& b = elements[style == RopeStyle::kHalves ? i + half : 2 * i + 1];
        const float rotated_a = a * cosines[i] - b * sines[i];
        const float rotated_b = b * cosines[i] + a * sines[i];
        a = rotated_a;
        b = rotated_b;
      }
    }
  }
}

void ReferenceOps::copy_pages(OpContext&, void* base, int64_t page_bytes, std::span<const PageCopy> pages) {
  for (const PageCopy& page : pages) {
    char* bytes = static_cast<char*>(base);
    std::memmove(bytes + page.to * page_bytes, bytes + page.from * page_bytes, static_cast<size_t>(page_bytes));
  }
}

}  // namespace quire
