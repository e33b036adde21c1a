// For tests and benchmarks of the CUDA backend: the GPU with scratch memory, and matrices in its memory whose rows may
// lie apart, between guards. Numbers go in and come out as float; what goes in is rounded to the matrix's dtype.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ops/cuda/cuda_ops.h"
#include "ops/tests/op_test.h"

namespace quire {

inline float round_to(DType dtype, float x) {
  if (dtype == DType::kF16) return f16_to_f32(f32_to_f16(x));
  if (dtype == DType::kBF16) return bf16_to_f32(f32_to_bf16(x));
  return x;
}
inline std::vector<float> round_all(DType dtype, std::vector<float> values) {
  for (float& value : values) value = round_to(dtype, value);
  return values;
}
inline int mantissa_bits(DType dtype) {
  return dtype == DType::kF32 ? 24 : dtype == DType::kF16 ? 11 : 8;
}

inline constexpr DType kActivationDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

class Gpu {
 public:
  // Null where this machine has no GPU.
  static std::unique_ptr<Gpu> create(std::map<std::string, std::string> forced_kernels = {},
                                     Compute compute = Compute::kAuto,
                                     WeightQuantization quantization = WeightQuantization::kNone,
                                     bool is_strict = false) {
    BackendOptions options;
    options.compute = compute;
    options.weight_quantization = quantization;
    options.is_strict = is_strict;
    options.forced_kernels = std::move(forced_kernels);
    return create_with(std::move(options));
  }
  static std::unique_ptr<Gpu> create_with(BackendOptions options) {
    options.kind = BackendKind::kCuda;
    options.num_threads = 4;
    Result<std::unique_ptr<CudaOps>> ops = CudaOps::create(options);
    if (!ops.is_ok()) {
      // Only a machine without a GPU may skip.
      EXPECT_EQ(ops.status().code(), StatusCode::kUnavailable) << ops.status().message();
      return nullptr;
    }
    return std::unique_ptr<Gpu>(new Gpu(std::move(ops).value()));
  }

  CudaOps& ops() { return *ops_; }
  OpContext& context() { return context_; }
  void synchronize() { ops_->synchronize(context_); }

  // A copy of host memory.
  DeviceBuffer upload(const void* data, int64_t num_bytes) {
    DeviceBuffer buffer = ops_->allocate(num_bytes, "test").value();
    ops_->copy_to_device(context_, buffer.data(), data, num_bytes);
    return buffer;
  }
  template <typename T>
  DeviceBuffer upload(const std::vector<T>& values) {
    return upload(values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
  }

 private:
  explicit Gpu(std::unique_ptr<CudaOps> ops)
      : ops_(std::move(ops)), arena_(ops_->allocate(16 << 20, "test").value()), context_{arena_} {}

  std::unique_ptr<CudaOps> ops_;
  Arena arena_;
  OpContext context_;
};

class DeviceMatrix {
 public:
  DeviceMatrix(Gpu& gpu, DType dtype, int64_t num_rows, int64_t num_columns, int64_t gap = 0)
      : gpu_(gpu), dtype_(dtype), num_rows_(num_rows), num_columns_(num_columns), stride_(num_columns + gap) {
    host_.assign(static_cast<size_t>((2 * kGuard + num_rows * stride_) * dtype_bytes(dtype)), kGuardByte);
    buffer_ = gpu.upload(host_);
  }

  TensorView view() {
    char* data = static_cast<char*>(buffer_.data()) + kGuard * dtype_bytes(dtype_);
    return TensorView(data, dtype_, {num_rows_, stride_}).slice(1, 0, num_columns_);
  }
  TensorView heads(int64_t head_dim) { return view().split_last_dimension(head_dim); }

  void fill(const std::vector<float>& values) {
    for (int64_t r = 0; r < num_rows_; ++r) {
      for (int64_t c = 0; c < num_columns_; ++c)
        store(r * stride_ + c, values[static_cast<size_t>(r * num_columns_ + c)]);
    }
    gpu_.ops().copy_to_device(gpu_.context(), buffer_.data(), host_.data(), static_cast<int64_t>(host_.size()));
  }

  // The elements without gaps; fails the test if anything outside of them was written.
  std::vector<float> values() {
    std::vector<uint8_t> now(host_.size());
    gpu_.ops().copy_to_host(gpu_.context(), now.data(), buffer_.data(), static_cast<int64_t>(now.size()));
    gpu_.synchronize();
    std::vector<float> all;
    const int64_t bytes = dtype_bytes(dtype_);
    bool is_intact = true;
    for (int64_t i = 0; i < static_cast<int64_t>(now.size()) / bytes; ++i) {
      const int64_t inner = i - kGuard;
      if (inner >= 0 && inner < num_rows_ * stride_ && inner % stride_ < num_columns_) {
        all.push_back(load(now, i));
      } else {
        for (int64_t b = 0; b < bytes; ++b) is_intact &= now[static_cast<size_t>(i * bytes + b)] == kGuardByte;
      }
    }
    EXPECT_TRUE(is_intact) << "something outside of the matrix was written";
    return all;
  }

 private:
  static constexpr int64_t kGuard = 64;        // elements: keeps rows aligned to 16 bytes
  static constexpr uint8_t kGuardByte = 0xff;  // a NaN in every dtype

  void store(int64_t inner, float value) {
    uint8_t* at = host_.data() + (kGuard + inner) * dtype_bytes(dtype_);
    const uint16_t half = dtype_ == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
    if (dtype_ == DType::kF32) {
      std::memcpy(at, &value, 4);
    } else {
      std::memcpy(at, &half, 2);
    }
  }
  float load(const std::vector<uint8_t>& bytes, int64_t i) const {
    if (dtype_ == DType::kF32) {
      float value;
      std::memcpy(&value, bytes.data() + i * 4, 4);
      return value;
    }
    uint16_t half;
    std::memcpy(&half, bytes.data() + i * 2, 2);
    return dtype_ == DType::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
  }

  Gpu& gpu_;
  DType dtype_;
  int64_t num_rows_;
  int64_t num_columns_;
  int64_t stride_;
  std::vector<uint8_t> host_;
  DeviceBuffer buffer_;
};

#define SKIP_WITHOUT_GPU(gpu) \
  if ((gpu) == nullptr) GTEST_SKIP() << "this machine has no GPU"

}  // namespace quire
