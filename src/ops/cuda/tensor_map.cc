#include "ops/cuda/tensor_map.h"

#include <array>

#include "base/check.h"
#include "ops/cuda/cuda_support.h"

namespace quire::cuda {

namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// From the driver that runs, so that the library need not be linked.
EncodeTiled find_encode_tiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result));
  CHECK(result == cudaDriverEntryPointSuccess);
  return reinterpret_cast<EncodeTiled>(function);
}

CUtensorMapDataType type_of(DType dtype) {
  if (dtype == DType::kBF16) return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  if (dtype == DType::kF16) return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  CHECK(dtype_bytes(dtype) == 1);
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

}  // namespace

CUtensorMap make_tensor_map(const TensorMapShape& shape) {
  constexpr size_t kMostDimensions = 5;
  const size_t rank = shape.sizes.size();
  CHECK(rank >= 2);
  CHECK(rank <= kMostDimensions);
  CHECK(shape.strides.size() + 1 == rank);
  CHECK(shape.box.size() == rank);
  std::array<cuuint64_t, kMostDimensions> sizes = {};
  std::array<cuuint64_t, kMostDimensions> strides = {};
  std::array<cuuint32_t, kMostDimensions> box = {};
  std::array<cuuint32_t, kMostDimensions> steps = {};
  for (size_t i = 0; i < rank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(shape.sizes[i]);
    box[i] = static_cast<cuuint32_t>(shape.box[i]);
    steps[i] = 1;
    if (i + 1 < rank) strides[i] = static_cast<cuuint64_t>(shape.strides[i] * dtype_bytes(shape.dtype));
  }
  CUtensorMap map;
  const CUresult result = find_encode_tiled()(&map, type_of(shape.dtype), static_cast<cuuint32_t>(rank), shape.data,
                                              sizes.data(), strides.data(), box.data(), steps.data(),
                                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS);
  return map;
}

}  // namespace quire::cuda
