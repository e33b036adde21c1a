#include "ops/cuda/product_tuner.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/cuda/cuda_support.h"
#include "ops/cuda/measuring.h"
#include "tensor/dtype.h"

namespace quire::cuda {

namespace {

constexpr int64_t kRotatedBytes = int64_t{256} << 20;  // five times the L2 cache of an H200
constexpr int64_t kMostCopies = 16;
constexpr int kNumRuns = 11;
constexpr int64_t kNumCheckedOutputs = 16;  // of the first token and the last

constexpr size_t kNumWords = sizeof(cublasLtMatmulAlgo_t::data) / sizeof(uint64_t);
constexpr size_t kDigitsPerWord = 16;

double number_of(DType dtype, const std::byte* bytes) {
  uint16_t half = 0;
  float single = 0;
  switch (dtype) {
    case DType::kF8E4M3:
      return double{f8e4m3_to_f32(static_cast<uint8_t>(*bytes))};
    case DType::kF16:
      std::memcpy(&half, bytes, 2);
      return double{f16_to_f32(half)};
    case DType::kBF16:
      std::memcpy(&half, bytes, 2);
      return double{bf16_to_f32(half)};
    default:
      std::memcpy(&single, bytes, 4);
      return double{single};
  }
}

// Numbers in [-1, 1) of a dtype, which matrices of any size repeat. Their count is odd, so that rows differ.
class RandomTile {
 public:
  RandomTile(DType dtype, uint64_t seed) : dtype_(dtype), bytes_(kCount * static_cast<size_t>(dtype_bytes(dtype))) {
    uint64_t state = seed;
    for (size_t i = 0; i < kCount; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const float x = static_cast<float>(state >> 40) * 0x1p-23f - 1.0f;
      std::byte* const at = bytes_.data() + i * static_cast<size_t>(dtype_bytes(dtype));
      if (dtype == DType::kF8E4M3) {
        *at = static_cast<std::byte>(f32_to_f8e4m3(x));
      } else if (dtype == DType::kF32) {
        std::memcpy(at, &x, 4);
      } else {
        const uint16_t half = dtype == DType::kF16 ? f32_to_f16(x) : f32_to_bf16(x);
        std::memcpy(at, &half, 2);
      }
    }
  }

  void fill(void* device, int64_t count) const {
    const int64_t size = dtype_bytes(dtype_);
    for (int64_t begin = 0; begin < count; begin += static_cast<int64_t>(kCount)) {
      const int64_t num_bytes = std::min(count - begin, static_cast<int64_t>(kCount)) * size;
      CUDA_CHECK(cudaMemcpy(static_cast<char*>(device) + begin * size, bytes_.data(), static_cast<size_t>(num_bytes),
                            cudaMemcpyHostToDevice));
    }
  }

  double at(int64_t index) const {
    const size_t i = static_cast<size_t>(index) % kCount;
    return number_of(dtype_, bytes_.data() + i * static_cast<size_t>(dtype_bytes(dtype_)));
  }

 private:
  static constexpr size_t kCount = (size_t{1} << 20) - 3;
  DType dtype_;
  std::vector<std::byte> bytes_;
};

// The matrices of a product, and what some of its outputs should be.
class Problem {
 public:
  Problem(const MatmulShape& shape, bool has_residual)
      : shape_(shape),
        has_residual_(has_residual),
        w_bytes_(shape.n * shape.k * dtype_bytes(shape.dtype)),
        num_copies_(std::clamp(kRotatedBytes / w_bytes_ + 1, int64_t{1}, kMostCopies)),
        w_tile_(shape.dtype, 1),
        x_tile_(shape.dtype, 2),
        residual_tile_(shape.y_dtype, 3),
        w_(num_copies_ * w_bytes_),
        x_(shape.num_tokens * shape.k * dtype_bytes(shape.dtype)),
        residual_(y_bytes()),
        y_(y_bytes()),
        scales_(std::max(shape.n, shape.num_tokens) * 4) {
    shape_.x_stride = shape.k;
    shape_.y_stride = shape.n;
    shape_.residual_stride = has_residual ? shape.n : 0;
    if (!is_there()) return;
    for (int64_t copy = 0; copy < num_copies_; ++copy) {
      w_tile_.fill(w_.at(copy * w_bytes_), shape.n * shape.k);
    }
    x_tile_.fill(x_.data(), shape.num_tokens * shape.k);
    residual_tile_.fill(residual_.data(), shape.num_tokens * shape.n);
    const std::vector<float> ones(static_cast<size_t>(std::max(shape.n, shape.num_tokens)), 1.0f);
    CUDA_CHECK(cudaMemcpy(scales_.data(), ones.data(), ones.size() * 4, cudaMemcpyHostToDevice));
    for (const int64_t token : {int64_t{0}, shape.num_tokens - 1}) {
      for (int64_t i = 0; i < kNumCheckedOutputs; ++i) {
        expect(token, i * (shape.n - 1) / (kNumCheckedOutputs - 1));
      }
    }
  }

  bool is_there() const {
    return w_.is_there() && x_.is_there() && residual_.is_there() && y_.is_there() && scales_.is_there();
  }

  void run(LinearLibrary& library, cudaStream_t stream, const ProductWay& way) {
    const float* scales = shape_.dtype == DType::kF8E4M3 ? static_cast<const float*>(scales_.data()) : nullptr;
    library.run(stream, shape_,
                {.y = y_.data(),
                 .x = x_.data(),
                 .w = w_.at(next_copy_ * w_bytes_),
                 .residual = has_residual_ ? residual_.data() : nullptr,
                 .w_scales = scales,
                 .x_scales = scales},
                way);
    next_copy_ = (next_copy_ + 1) % num_copies_;
  }

  void poison(cudaStream_t stream) {  // every bit set is NaN in all these dtypes
    CUDA_CHECK(cudaMemsetAsync(y_.data(), 0xff, static_cast<size_t>(y_bytes()), stream));
  }

  bool is_right() const {
    const int64_t size = dtype_bytes(shape_.y_dtype);
    return std::all_of(expected_.begin(), expected_.end(), [&](const Expected& expected) {
      std::array<std::byte, 4> bytes{};
      CUDA_CHECK(
          cudaMemcpy(bytes.data(), y_.at(expected.index * size), static_cast<size_t>(size), cudaMemcpyDeviceToHost));
      return std::fabs(number_of(shape_.y_dtype, bytes.data()) - expected.value) <= expected.tolerance;
    });
  }

 private:
  struct Expected {
    int64_t index;
    double value;
    double tolerance;
  };

  int64_t y_bytes() const { return shape_.num_tokens * shape_.n * dtype_bytes(shape_.y_dtype); }

  void expect(int64_t token, int64_t output) {
    double sum = 0;
    double sum_of_sizes = 0;
    for (int64_t i = 0; i < shape_.k; ++i) {
      const double product = x_tile_.at(token * shape_.k + i) * w_tile_.at(output * shape_.k + i);
      sum += product;
      sum_of_sizes += std::fabs(product);
    }
    const int64_t index = token * shape_.n + output;
    if (has_residual_) sum += residual_tile_.at(index);
    // Two roundings of the output, and what sums of e4m3 lose (14 bits are kept of a step's largest term).
    const double of_sums = shape_.dtype == DType::kF8E4M3 ? 0x1p-12 : 0x1p-18;
    expected_.push_back({index, sum, std::fabs(sum) * 0x1p-7 + sum_of_sizes * of_sums + 1e-3});
  }

  MatmulShape shape_;
  bool has_residual_;
  int64_t w_bytes_;
  int64_t num_copies_;
  int64_t next_copy_ = 0;
  RandomTile w_tile_;
  RandomTile x_tile_;
  RandomTile residual_tile_;
  BriefMemory w_;
  BriefMemory x_;
  BriefMemory residual_;
  BriefMemory y_;
  BriefMemory scales_;
  std::vector<Expected> expected_;
};

}  // namespace

std::string way_text(const ProductWay& way) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint64_t word : way.algorithm.data) {
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[word >> shift & 15];
  }
  if (way.num_parts > 0) text += "/" + std::to_string(way.num_parts);
  return text;
}

std::optional<ProductWay> parse_way(std::string_view text) {
  if (text.size() < kNumWords * kDigitsPerWord) return std::nullopt;
  ProductWay way{};
  for (size_t i = 0; i < kNumWords; ++i) {
    const std::string_view digits = text.substr(i * kDigitsPerWord, kDigitsPerWord);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), way.algorithm.data[i], 16);
    if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  }
  const std::string_view parts = text.substr(kNumWords * kDigitsPerWord);
  if (parts.empty()) return way;
  if (parts != "/1" && parts != "/2") return std::nullopt;
  way.num_parts = parts[1] - '0';
  return way;
}

std::optional<ProductWay> tune_product(LinearLibrary& library, cudaStream_t stream, const MatmulShape& shape,
                                       bool has_residual, std::span<const ProductWay> candidates) {
  Problem problem(shape, has_residual);
  if (!problem.is_there()) return std::nullopt;
  StreamClock clock(stream);
  const ProductWay* best = nullptr;
  float best_ms = 0;
  for (const ProductWay& candidate : candidates) {
    problem.poison(stream);
    problem.run(library, stream, candidate);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    if (!problem.is_right()) continue;
    std::vector<float> times;
    for (int i = 0; i < kNumRuns; ++i) {
      times.push_back(clock.milliseconds_of([&] { problem.run(library, stream, candidate); }));
    }
    std::nth_element(times.begin(), times.begin() + kNumRuns / 2, times.end());
    const float ms = times[kNumRuns / 2];
    if (best == nullptr || ms < best_ms) {
      best = &candidate;
      best_ms = ms;
    }
  }
  return best != nullptr ? std::optional(*best) : std::nullopt;
}

}  // namespace quire::cuda
