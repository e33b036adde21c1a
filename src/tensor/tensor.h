// Views of memory as tensors of up to four dimensions. A view borrows: it never owns or frees, and is passed by value.
// Sizes are in elements; strides are in elements too. A default-constructed view has no data and means "not given".
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "base/check.h"
#include "tensor/dtype.h"

namespace quire {

constexpr int kMaxRank = 4;

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::kI8;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};

// Pointer is void* (TensorView) or const void* (ConstTensorView).
template <typename Pointer>
class BasicTensorView {
 public:
  BasicTensorView() = default;

  // A contiguous tensor.
  BasicTensorView(Pointer data, DType dtype, std::initializer_list<int64_t> sizes) : data_(data), dtype_(dtype) {
    CHECK(sizes.size() <= kMaxRank);
    rank_ = static_cast<int>(sizes.size());
    int i = 0;
    for (const int64_t size : sizes) sizes_[i++] = size;
    int64_t stride = 1;
    for (int d = rank_ - 1; d >= 0; --d) {
      strides_[d] = stride;
      stride *= sizes_[d];
    }
  }

  // From a mutable view to a const one.
  template <typename Other>
  requires(std::is_convertible_v<Other, Pointer> && !std::is_same_v<Other, Pointer>)
      BasicTensorView(const BasicTensorView<Other>& other)
      : data_(other.raw_data()), dtype_(other.dtype()), rank_(other.rank()) {
    for (int d = 0; d < rank_; ++d) {
      sizes_[d] = other.size(d);
      strides_[d] = other.stride(d);
    }
  }

  bool is_given() const { return data_ != nullptr; }
  Pointer raw_data() const { return data_; }
  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }
  int64_t size(int dimension) const {
    DCHECK(dimension < rank_);
    return sizes_[dimension];
  }
  int64_t stride(int dimension) const {
    DCHECK(dimension < rank_);
    return strides_[dimension];
  }

  int64_t num_elements() const {
    int64_t count = 1;
    for (int d = 0; d < rank_; ++d) count *= sizes_[d];
    return count;
  }

  bool is_contiguous() const {
    int64_t stride = 1;
    for (int d = rank_ - 1; d >= 0; --d) {
      if (sizes_[d] != 1 && strides_[d] != stride) return false;
      stride *= sizes_[d];
    }
    return true;
  }
  bool is_last_dimension_contiguous() const { return rank_ == 0 || sizes_[rank_ - 1] <= 1 || strides_[rank_ - 1] == 1; }

  // The data as elements of T, which must be the view's dtype. 16-bit floats are read as uint16_t.
  template <typename T>
  auto data() const {
    using Element = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const T, T>;
    if constexpr (std::is_same_v<T, uint16_t>) {
      CHECK(dtype_ == DType::kF16 || dtype_ == DType::kBF16);
    } else {
      CHECK(dtype_ == DTypeOf<T>::value);
    }
    return static_cast<Element*>(data_);
  }

  // Elements [begin, end) of one dimension.
  BasicTensorView slice(int dimension, int64_t begin, int64_t end) const {
    CHECK(dimension < rank_);
    CHECK(0 <= begin && begin <= end && end <= sizes_[dimension]);
    BasicTensorView view = *this;
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
    view.data_ = static_cast<Byte*>(data_) + begin * strides_[dimension] * dtype_bytes(dtype_);
    view.sizes_[dimension] = end - begin;
    return view;
  }

  // The same elements with the last dimension split in two: [.., a * b] becomes [.., a, b].
  BasicTensorView split_last_dimension(int64_t inner_size) const {
    CHECK(rank_ >= 1 && rank_ < kMaxRank);
    CHECK(is_last_dimension_contiguous());
    CHECK(inner_size > 0 && sizes_[rank_ - 1] % inner_size == 0);
    BasicTensorView view = *this;
    view.rank_ = rank_ + 1;
    view.sizes_[rank_ - 1] = sizes_[rank_ - 1] / inner_size;
    view.strides_[rank_ - 1] = inner_size;
    view.sizes_[rank_] = inner_size;
    view.strides_[rank_] = 1;
    return view;
  }

 private:
  Pointer data_ = nullptr;
  DType dtype_ = DType::kF32;
  int rank_ = 0;
  std::array<int64_t, kMaxRank> sizes_{};
  std::array<int64_t, kMaxRank> strides_{};
};

using TensorView = BasicTensorView<void*>;
using ConstTensorView = BasicTensorView<const void*>;

// "f32[4, 576]", for messages.
std::string describe(const ConstTensorView& tensor);

}  // namespace quire
