#include "tensor/tensor.h"

namespace quire {

std::string describe(const ConstTensorView& tensor) {
  std::string text(dtype_name(tensor.dtype()));
  text += '[';
  for (int d = 0; d < tensor.rank(); ++d) {
    if (d > 0) text += ", ";
    text += std::to_string(tensor.size(d));
  }
  return text + ']';
}

}  // namespace quire
