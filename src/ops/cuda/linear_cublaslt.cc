#include "ops/cuda/linear_cublaslt.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <string>

#include "base/last_words.h"
#include "ops/cuda/cuda_support.h"
#include "ops/cuda/elementwise.h"
#include "ops/cuda/linear_answers.h"
#include "ops/cuda/linear_f8.h"
#include "ops/cuda/linear_strict.h"
#include "ops/cuda/measuring.h"
#include "ops/cuda/product_tuner.h"
#include "ops/cuda/weights.h"

namespace quire::cuda {

namespace {

constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;
constexpr int64_t kSliceBytes = int64_t{128} << 20;
constexpr int64_t kMinTokensToDequantize = 17;
constexpr int64_t kMaxTokensToSplit = 128;
// e4m3 products that are scaled apart, and parts of their k.
constexpr int64_t kFewTokens = 64;  // have kernels of their own
constexpr int64_t kMaxTokensToScaleApart = 512;
constexpr int64_t kTile = 128;  // of outputs and tokens; what parts of k are multiples of
constexpr int64_t kMostTilesWithParts = 128;
constexpr int64_t kLeastPart = 1024;
constexpr int kTuneCandidates = 16;
constexpr int kTuneRepeats = 3;

#define CUBLAS_CHECK(expression)                                                                           \
  do {                                                                                                     \
    if (const cublasStatus_t quire_status = (expression); quire_status != CUBLAS_STATUS_SUCCESS) {         \
      tell_last_words(std::string(__FILE__ ":") + std::to_string(__LINE__) +                               \
                      ": cuBLASLt failed: " + cublasLtGetStatusString(quire_status) + " in " #expression); \
      std::abort();                                                                                        \
    }                                                                                                      \
  } while (false)

cudaDataType_t cuda_type(DType dtype) {
  if (dtype == DType::kF8E4M3) return CUDA_R_8F_E4M3;
  if (dtype == DType::kF16) return CUDA_R_16F;
  if (dtype == DType::kBF16) return CUDA_R_16BF;
  return CUDA_R_32F;
}

// The descriptions that one product needs. The library is column-major: it computes yᵀ = w · xᵀ. Parts of k are a
// batch, without scales, whose results are float.
class Descriptors {
 public:
  struct Scales {
    const float* w;
    const float* x;
  };
  explicit Descriptors(const MatmulShape& shape, const Scales& scales = {nullptr, nullptr}, int num_parts = 0) {
    // Float products stay float: no TF32.
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    CUBLAS_CHECK(
        cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)));
    if (shape.dtype == DType::kF8E4M3) {
      const int8_t is_fast = 1;
      set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, is_fast);
    }
    if (shape.dtype == DType::kF8E4M3 && num_parts == 0) {
      const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales.w);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales.x);
    }
    const auto make = [&](cublasLtMatrixLayout_t* layout, DType dtype, int64_t rows, int64_t columns, int64_t stride,
                          int64_t to_next_part) {
      CUBLAS_CHECK(cublasLtMatrixLayoutCreate(layout, cuda_type(dtype), static_cast<uint64_t>(rows),
                                              static_cast<uint64_t>(columns), stride));
      if (num_parts <= 1) return;
      const int32_t count = num_parts;
      CUBLAS_CHECK(
          cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
      CUBLAS_CHECK(cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &to_next_part,
                                                    sizeof(to_next_part)));
    };
    const int64_t part_k = shape.k / std::max(num_parts, 1);
    make(&w, shape.dtype, part_k, shape.n, shape.k, part_k);
    make(&x, shape.dtype, part_k, shape.num_tokens, shape.x_stride, part_k);
    if (num_parts > 0) {
      make(&y, DType::kF32, shape.n, shape.num_tokens, shape.n, shape.n * shape.num_tokens);
      make(&residual, DType::kF32, shape.n, shape.num_tokens, shape.n, shape.n * shape.num_tokens);
      return;
    }
    make(&y, shape.y_dtype, shape.n, shape.num_tokens, shape.y_stride, 0);
    make(&residual, shape.y_dtype, shape.n, shape.num_tokens,
         shape.residual_stride > 0 ? shape.residual_stride : shape.y_stride, 0);
  }
  ~Descriptors() {
    for (cublasLtMatrixLayout_t layout : {w, x, y, residual}) (void)cublasLtMatrixLayoutDestroy(layout);
    (void)cublasLtMatmulDescDestroy(operation);
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
  }

  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t y = nullptr;
  cublasLtMatrixLayout_t residual = nullptr;
};

Result<DeviceBuffer> allocate_block(int64_t num_bytes) {
  void* data = nullptr;
  if (const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(num_bytes)); error != cudaSuccess) {
    (void)cudaGetLastError();
    return resource_exhausted(std::string("the GPU has no memory for matrix products (") + cudaGetErrorString(error) +
                              "): is another program using it?");
  }
  return DeviceBuffer(data, num_bytes, Device{DeviceKind::kCuda, 0}, [](void* block) { (void)cudaFree(block); });
}

bool is_matrix_aligned(const ConstTensorView& x) {
  return is_aligned(x.raw_data(), 16) && x.stride(0) * dtype_bytes(x.dtype()) % 16 == 0;
}

bool is_call_aligned(const LinearCall& call) {
  const ConstTensorView& residual = call.epilogue.residual;
  return !call.offsets.is_given() && is_matrix_aligned(call.x) && is_matrix_aligned(call.y) &&
         (!residual.is_given() || is_matrix_aligned(residual)) && call.weight.k % 8 == 0 && call.weight.n % 8 == 0;
}

bool has_dtype_of(const Weight& weight, DType dtype) {
  if (weight.layout != Layout::kCudaPlanes) return false;
  return (weight.format == FormatId::kF32 && dtype == DType::kF32) ||
         (weight.format == FormatId::kF16 && dtype == DType::kF16) ||
         (weight.format == FormatId::kBF16 && dtype == DType::kBF16);
}

// Outputs [begin, end) with weights at `w`.
void multiply(const LinearCall& call, const void* w, int64_t begin, int64_t end) {
  const TensorView y = call.y.slice(1, begin, end);
  ConstTensorView residual = call.epilogue.residual;
  if (residual.is_given()) residual = residual.slice(1, begin, end);
  if (call.epilogue.bias.is_given()) {
    // y first becomes what is to be added.
    add_bias(call.stream, y, residual, call.epilogue.bias.slice(call.epilogue.bias.rank() - 1, begin, end));
    residual = y;
  }
  const MatmulShape shape{.num_tokens = call.x.size(0),
                          .n = end - begin,
                          .k = call.weight.k,
                          .dtype = call.x.dtype(),
                          .y_dtype = y.dtype(),
                          .x_stride = call.x.stride(0),
                          .y_stride = y.stride(0),
                          .residual_stride = residual.is_given() ? residual.stride(0) : 0};
  call.library->matmul(call.stream, shape,
                       {.y = y.raw_data(), .x = call.x.raw_data(), .w = w, .residual = residual.raw_data()});
}

}  // namespace

Result<std::unique_ptr<LinearLibrary>> LinearLibrary::create(std::span<const TunedProduct> tuned, bool is_tuning) {
  std::unique_ptr<LinearLibrary> library(new LinearLibrary());
  if (const cublasStatus_t status = cublasLtCreate(&library->handle_); status != CUBLAS_STATUS_SUCCESS) {
    return internal_error(std::string("cuBLASLt does not start: ") + cublasLtGetStatusString(status));
  }
  ASSIGN_OR_RETURN(library->workspace_, allocate_block(kWorkspaceBytes));
  ASSIGN_OR_RETURN(library->slice_, allocate_block(kSliceBytes));
  ASSIGN_OR_RETURN(library->partial_sums_, allocate_block(kMaxPartialSums * 4));
  CUDA_CHECK(cudaMemset(library->partial_sums(), 0xff, kMaxPartialSums * 4));
  for (const TunedProduct& product : tuned) RETURN_IF_ERROR(library->choose(product));
  library->is_tuning_ = is_tuning;
  return library;
}

Status LinearLibrary::choose(const TunedProduct& product) {
  const std::optional<ProductWay> way = parse_way(product.algorithm);
  const MatmulShape shape{.num_tokens = product.num_tokens,
                          .n = product.n,
                          .k = product.k,
                          .dtype = product.dtype,
                          .y_dtype = product.y_dtype,
                          .x_stride = product.k,
                          .y_stride = product.n,
                          .residual_stride = product.has_residual ? product.n : 0};
  const float* somewhere = static_cast<const float*>(workspace_.data());
  const int num_parts = way.has_value() ? way->num_parts : 0;
  const bool is_meaningful = way.has_value() && (num_parts == 0 || may_have_parts(shape, num_parts));
  const Descriptors descriptors(shape, {somewhere, somewhere}, is_meaningful ? num_parts : 0);
  cublasLtMatmulHeuristicResult_t result;
  if (!is_meaningful ||
      cublasLtMatmulAlgoCheck(handle_, descriptors.operation, descriptors.w, descriptors.x, descriptors.residual,
                              descriptors.y, &way->algorithm, &result) != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > static_cast<size_t>(kWorkspaceBytes)) {
    return invalid_argument("cuBLASLt cannot multiply " + std::to_string(product.num_tokens) + " x " +
                            std::to_string(product.k) + " x " + std::to_string(product.n) +
                            " as was chosen before: run `quire tune` again, or `quire tune --device cuda --forget`");
  }
  const Key key{product.num_tokens, product.n, product.k, product.dtype, product.y_dtype, product.has_residual};
  chosen_.emplace(key, *way);
  tuned_.insert(key);
  return ok_status();
}

std::vector<TunedProduct> LinearLibrary::tuned_products() const {
  std::vector<TunedProduct> products;
  for (const Key& key : tuned_) {
    const auto& [num_tokens, n, k, dtype, y_dtype, has_residual] = key;
    products.push_back({num_tokens, n, k, dtype, y_dtype, has_residual, way_text(chosen_.at(key))});
  }
  return products;
}

LinearLibrary::LinearLibrary() : same_answers_(std::make_unique<SameAnswers>()) {}

LinearLibrary::~LinearLibrary() {
  if (handle_ != nullptr) (void)cublasLtDestroy(handle_);
}

std::vector<cublasLtMatmulAlgo_t> LinearLibrary::algorithms(const MatmulShape& shape, int max_count, bool may_split_k,
                                                            int num_parts) {
  // It is asked about scales by where they lie; any place will do.
  const float* somewhere = static_cast<const float*>(workspace_.data());
  const Descriptors descriptors(shape, {somewhere, somewhere}, num_parts);
  cublasLtMatmulPreference_t preference = nullptr;
  CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  const size_t workspace_bytes = static_cast<size_t>(kWorkspaceBytes);
  CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &workspace_bytes, sizeof(workspace_bytes)));
  if (!may_split_k) {
    const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                      &no_reduction, sizeof(no_reduction)));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(max_count));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, descriptors.operation, descriptors.w, descriptors.x, descriptors.residual,
                                     descriptors.y, preference, max_count, results.data(), &count);
  if (status != CUBLAS_STATUS_SUCCESS) count = 0;
  (void)cublasLtMatmulPreferenceDestroy(preference);
  std::vector<cublasLtMatmulAlgo_t> found;
  for (int i = 0; i < count; ++i) {
    if (results[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
      found.push_back(results[static_cast<size_t>(i)].algo);
  }
  return found;
}

bool LinearLibrary::may_have_parts(const MatmulShape& shape, int num_parts) const {
  if (shape.dtype != DType::kF8E4M3 || shape.y_dtype == DType::kF32) return false;
  if (shape.num_tokens <= kFewTokens || shape.n % 16 != 0) return false;
  const int64_t sum_bytes = num_parts * shape.num_tokens * shape.n * 4;
  if (shape.num_tokens * (shape.k + 4) + sum_bytes + 512 > slice_bytes()) return false;
  if (num_parts == 1) return shape.num_tokens <= kMaxTokensToScaleApart;
  const int64_t num_tiles = ceil_div<int64_t>(shape.n, kTile) * ceil_div<int64_t>(shape.num_tokens, kTile);
  return num_tiles <= kMostTilesWithParts && shape.k % (num_parts * kTile) == 0 && shape.k / num_parts >= kLeastPart;
}

std::vector<ProductWay> LinearLibrary::ways(const MatmulShape& shape) {
  std::vector<ProductWay> found;
  // Few tokens do not fill the GPU with whole sums; many must keep one order whatever their number.
  const bool may_split_k = shape.num_tokens <= kMaxTokensToSplit;
  for (const cublasLtMatmulAlgo_t& algorithm : algorithms(shape, kTuneCandidates, may_split_k)) {
    found.push_back({algorithm});
  }
  for (const int num_parts : {1, 2}) {
    if (!may_have_parts(shape, num_parts)) continue;
    for (const cublasLtMatmulAlgo_t& algorithm : algorithms(shape, kTuneCandidates, false, num_parts)) {
      found.push_back({algorithm, num_parts});
    }
  }
  return found;
}

void LinearLibrary::run(cudaStream_t stream, const MatmulShape& shape, const MatmulArgs& args, const ProductWay& way) {
  const Descriptors descriptors(shape, {args.w_scales, args.x_scales}, way.num_parts);
  const float alpha = 1;
  const auto multiply = [&](void* y, const void* residual, float beta) {
    CUBLAS_CHECK(cublasLtMatmul(handle_, descriptors.operation, &alpha, args.w, descriptors.w, args.x, descriptors.x,
                                &beta, residual, descriptors.residual, y, descriptors.y, &way.algorithm,
                                workspace_.data(), static_cast<size_t>(kWorkspaceBytes), stream));
  };
  if (way.num_parts == 0) {
    return multiply(args.y, args.residual != nullptr ? args.residual : args.y, args.residual != nullptr ? 1.0f : 0.0f);
  }
  // Before the scales of activations, at the end of the buffer.
  const int64_t num_sums = way.num_parts * shape.num_tokens * shape.n;
  char* const end = reinterpret_cast<char*>(f8_tokens(*this, shape.num_tokens, shape.k).scales);
  float* const sums = reinterpret_cast<float*>(end - ceil_div<int64_t>(num_sums * 4, 256) * 256);
  multiply(sums, sums, 0);
  add_parts(stream, {.y = args.y,
                     .residual = args.residual,
                     .sums = sums,
                     .w_scales = args.w_scales,
                     .x_scales = args.x_scales,
                     .dtype = shape.y_dtype,
                     .num_parts = way.num_parts,
                     .num_tokens = shape.num_tokens,
                     .n = shape.n,
                     .y_stride = shape.y_stride,
                     .residual_stride = shape.residual_stride});
}

ProductWay LinearLibrary::fastest(cudaStream_t stream, const MatmulShape& shape, const MatmulArgs& args,
                                  const std::vector<ProductWay>& candidates) {
  // Into memory of its own: y may be the residual, which every product would change.
  MatmulShape apart = shape;
  apart.y_stride = shape.n;
  const BriefMemory y(shape.num_tokens * shape.n * dtype_bytes(shape.y_dtype));
  if (!y.is_there()) return candidates.front();
  MatmulArgs into_y = args;
  into_y.y = y.data();
  StreamClock clock(stream);
  size_t best = 0;
  float best_ms = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    float fastest_ms = 0;
    for (int repeat = 0; repeat < kTuneRepeats; ++repeat) {
      // Pushes the weights out of the L2 cache, as the other layers would.
      CUDA_CHECK(cudaMemsetAsync(workspace_.data(), 0, static_cast<size_t>(kWorkspaceBytes), stream));
      const float ms = clock.milliseconds_of([&] { run(stream, apart, into_y, candidates[i]); });
      if (repeat == 0 || ms < fastest_ms) fastest_ms = ms;
    }
    if (i == 0 || fastest_ms < best_ms) {
      best = i;
      best_ms = fastest_ms;
    }
  }
  return candidates[best];
}

void LinearLibrary::matmul(cudaStream_t stream, const MatmulShape& shape, const MatmulArgs& args) {
  const int64_t bucket =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::min<int64_t>(shape.num_tokens, 4096))));
  const Key key{bucket, shape.n, shape.k, shape.dtype, shape.y_dtype, args.residual != nullptr};
  auto found = chosen_.find(key);
  if (found == chosen_.end()) {
    MatmulShape typical = shape;
    typical.num_tokens = bucket;
    const std::vector<ProductWay> candidates = ways(typical);
    CHECK(!candidates.empty());
    ProductWay way = candidates.front();
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
    if (capture == cudaStreamCaptureStatusNone && is_tuning_) {
      const auto tuned = tune_product(*this, stream, typical, args.residual != nullptr, candidates);
      if (tuned.has_value()) tuned_.insert(key);
      way = tuned.value_or(way);
    } else if (capture == cudaStreamCaptureStatusNone && candidates.size() > 1) {
      way = fastest(stream, shape, args, candidates);
    }
    found = chosen_.emplace(key, way).first;
  }
  run(stream, shape, args, found->second);
}

bool LinearLibrary::has_rounded(const ConstTensorView& x) const {
  const ConstTensorView& rounded = rounded_.x;
  return rounded.is_given() && op_ == rounded_.op + 1 && x.raw_data() == rounded.raw_data() &&
         x.dtype() == rounded.dtype() && x.rank() == 2 && x.size(0) == rounded.size(0) &&
         x.size(1) == rounded.size(1) && x.stride(0) == rounded.stride(0);
}

F8Tokens f8_tokens(const LinearLibrary& library, int64_t num_tokens, int64_t k) {
  CHECK(fits_f8_tokens(library, num_tokens, k));
  uint8_t* const codes = static_cast<uint8_t*>(library.slice_data());
  return {codes, reinterpret_cast<float*>(codes + (library.slice_bytes() - num_tokens * 4) / 256 * 256)};
}

bool fits_f8_tokens(const LinearLibrary& library, int64_t num_tokens, int64_t k) {
  return num_tokens * (k + 4) + 512 <= library.slice_bytes();
}

bool accepts_cublaslt(const LinearCall& call) {
  return !call.norm.weight.is_given() && is_call_aligned(call) && has_dtype_of(call.weight, call.x.dtype()) &&
         is_aligned(call.weight.parts[0].data(), 16);
}

void linear_cublaslt(const LinearCall& call) {
  multiply(call, call.weight.parts[0].data(), 0, call.weight.n);
}

// Where the library multiplies e4m3 matrices whose rows have scales of their own.
bool accepts_cublaslt_f8(const LinearCall& call) {
  return call.weight.layout == Layout::kCudaF8 && is_call_aligned(call) && call.x.dtype() != DType::kF32 &&
         call.weight.n % 16 == 0 && call.weight.k % 16 == 0 &&
         fits_f8_tokens(*call.library, call.x.size(0), call.weight.k) && call.library->has_f8();
}

// The activations are rounded to e4m3 first, with a scale a token, into the buffer of slices.
void linear_cublaslt_f8(const LinearCall& call) {
  const int64_t num_tokens = call.x.size(0);
  const int64_t k = call.weight.k;
  const auto [codes, scales] = f8_tokens(*call.library, num_tokens, k);
  if (call.norm.weight.is_given() || !call.library->has_rounded(call.x)) {
    quantize_tokens_to_f8(
        call.stream,
        {.codes = codes, .scales = scales, .x = call.x, .norm_weight = call.norm.weight, .epsilon = call.norm.epsilon});
  }
  ConstTensorView residual = call.epilogue.residual;
  if (call.epilogue.bias.is_given()) {
    add_bias(call.stream, call.y, residual, call.epilogue.bias);
    residual = call.y;
  }
  const MatmulShape shape{.num_tokens = num_tokens,
                          .n = call.weight.n,
                          .k = k,
                          .dtype = DType::kF8E4M3,
                          .y_dtype = call.y.dtype(),
                          .x_stride = k,
                          .y_stride = call.y.stride(0),
                          .residual_stride = residual.is_given() ? residual.stride(0) : 0};
  call.library->matmul(call.stream, shape,
                       {.y = call.y.raw_data(),
                        .x = codes,
                        .w = call.weight.parts[0].data(),
                        .residual = residual.raw_data(),
                        .w_scales = reinterpret_cast<const float*>(call.weight.parts[1].data()),
                        .x_scales = scales});
}

bool LinearLibrary::has_f8() {
  if (!has_f8_.has_value()) {
    const MatmulShape shape{.num_tokens = 16,
                            .n = 4096,
                            .k = 4096,
                            .dtype = DType::kF8E4M3,
                            .y_dtype = DType::kBF16,
                            .x_stride = 4096,
                            .y_stride = 4096,
                            .residual_stride = 4096};
    has_f8_ = !algorithms(shape, 1, false).empty();
  }
  return *has_f8_;
}

// With float activations and Compute::kF32 nothing is lost: the slices are f32.
bool accepts_dequantize_cublaslt(const LinearCall& call) {
  return is_call_aligned(call) && call.x.size(0) >= kMinTokensToDequantize &&
         call.weight.k * dtype_bytes(call.x.dtype()) * 16 <= call.library->slice_bytes();
}

void linear_dequantize_cublaslt(const LinearCall& call) {
  const int64_t row_bytes = call.weight.k * dtype_bytes(call.x.dtype());
  const int64_t rows_per_slice = call.library->slice_bytes() / row_bytes / 16 * 16;  // whole panels
  for (int64_t begin = 0; begin < call.weight.n; begin += rows_per_slice) {
    const int64_t end = std::min(begin + rows_per_slice, call.weight.n);
    dequantize(
        call.stream, call.weight,
        {.out = call.library->slice_data(), .dtype = call.x.dtype(), .first_row = begin, .num_rows = end - begin});
    multiply(call, call.library->slice_data(), begin, end);
  }
}

void linear(const LinearCall& call, std::string_view forced_row) {
  const Weight& weight = call.weight;
  CHECK(weight.layout == Layout::kCudaPlanes || weight.layout == Layout::kCudaF8 || weight.layout == Layout::kCudaI8);
  CHECK(call.x.rank() == 2);
  CHECK(call.y.rank() == 2);
  CHECK(call.x.size(1) == weight.k);
  CHECK(call.y.size(1) == weight.n);
  CHECK(call.x.size(0) == call.y.size(0));
  CHECK(call.x.is_last_dimension_contiguous());
  CHECK(call.y.is_last_dimension_contiguous());
  CHECK(is_activation_dtype(call.x.dtype()));
  CHECK(call.y.dtype() == call.dtype() || call.y.dtype() == DType::kF32);
  if (call.epilogue.bias.is_given()) {
    CHECK(call.epilogue.bias.dtype() == DType::kF32);
    CHECK(call.epilogue.bias.num_elements() == weight.n);
  }
  if (const ConstTensorView& residual = call.epilogue.residual; residual.is_given()) {
    CHECK(residual.rank() == 2);
    CHECK(residual.dtype() == call.y.dtype());
    CHECK(residual.size(0) == call.y.size(0));
    CHECK(residual.size(1) == call.y.size(1));
    CHECK(residual.is_last_dimension_contiguous());
  }
  if (call.x.size(0) == 0 || weight.n == 0) return;
  if (call.is_strict && forced_row.empty()) return linear_strict(call);
  choose_row(linear_rows(), call, forced_row).launch(call);
}

}  // namespace quire::cuda
