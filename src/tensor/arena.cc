#include "tensor/arena.h"

#include <algorithm>

namespace quire {

namespace {
constexpr int64_t kAlignmentBytes = 256;
}  // namespace

void* Arena::take_bytes(int64_t num_bytes) {
  CHECK(num_bytes >= 0);
  const int64_t begin = used_bytes_;
  const int64_t rounded = (num_bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  CHECK(begin + rounded <= block_.num_bytes());
  used_bytes_ = begin + rounded;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return static_cast<char*>(block_.data()) + begin;
}

TensorView Arena::take(DType dtype, std::initializer_list<int64_t> sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return TensorView(take_bytes(count * dtype_bytes(dtype)), dtype, sizes);
}

void Arena::rewind(int64_t mark) {
  CHECK(0 <= mark && mark <= used_bytes_);
  used_bytes_ = mark;
}

}  // namespace quire
