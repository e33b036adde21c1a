#include "weights/tensor_source.h"

namespace quire {

int64_t SourceTensor::num_values() const {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;  // readers have checked that it does not overflow
  return count;
}

std::string describe_sizes(std::span<const int64_t> sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(sizes[i]);
  }
  return text + "]";
}

}  // namespace quire
