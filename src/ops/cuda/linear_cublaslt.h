// Matrix products by cuBLASLt, for many tokens: what the library needs to live (handle, workspace, the algorithm chosen
// for each shape) and the two kernel rows that use it. Weights that are not of the activations' dtype are dequantized
// slice by slice into a buffer first.
#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "ops/backends.h"
#include "ops/cuda/linear.h"
#include "tensor/device.h"

namespace quire::cuda {

class SameAnswers;  // linear_answers.h

// y = x · wᵀ + beta * residual, all row-major, pointers and strides aligned to 16 bytes.
struct MatmulShape {
  int64_t num_tokens;
  int64_t n;
  int64_t k;
  DType dtype;    // of x and w
  DType y_dtype;  // of y and residual
  int64_t x_stride;
  int64_t y_stride;
  int64_t residual_stride;
};

struct MatmulArgs {
  void* y;
  const void* x;
  const void* w;
  const void* residual;             // or null
  const float* w_scales = nullptr;  // of e4m3 matrices: [n] and [num_tokens]
  const float* x_scales = nullptr;
};

// A way to multiply. The library has only one algorithm for e4m3 matrices whose rows have scales, of large tiles, and
// splits no k of them; without scales it has eight. So few tokens may be multiplied without, to float, k in parts where
// tiles are too few for the GPU, and a kernel of ours adds the parts and does the rest (linear_f8.h).
struct ProductWay {
  cublasLtMatmulAlgo_t algorithm;
  int num_parts = 0;  // none: all is done by the library
};

class LinearLibrary {
 public:
  // With products that an earlier process has chosen; an error where one means nothing to this version of the library.
  // While tuning, those that are missing are measured thoroughly (product_tuner.h).
  static Result<std::unique_ptr<LinearLibrary>> create(std::span<const TunedProduct> tuned = {},
                                                       bool is_tuning = false);
  ~LinearLibrary();
  LinearLibrary(const LinearLibrary&) = delete;
  LinearLibrary& operator=(const LinearLibrary&) = delete;

  // The first product of a shape times the heuristic's answers (and waits for them), unless its stream is being
  // captured.
  void matmul(cudaStream_t stream, const MatmulShape& shape, const MatmulArgs& args);

  // What was given to create(), or measured while tuning.
  std::vector<TunedProduct> tuned_products() const;

  // What matmul() chooses from.
  std::vector<ProductWay> ways(const MatmulShape& shape);

  // Every answer of the library's heuristic, best first, for benchmarks; run() runs one of them.
  std::vector<cublasLtMatmulAlgo_t> algorithms(const MatmulShape& shape, int max_count, bool may_split_k,
                                               int num_parts = 0);
  void run(cudaStream_t stream, const MatmulShape& shape, const MatmulArgs& args, const ProductWay& way);
  void run(cudaStream_t stream, const MatmulShape& shape, const MatmulArgs& args,
           const cublasLtMatmulAlgo_t& algorithm) {
    run(stream, shape, args, ProductWay{algorithm});
  }

  // Its ways to multiply whose bits are those of our kernels.
  SameAnswers& same_answers() { return *same_answers_; }

  // Whether it multiplies e4m3 matrices here.
  bool has_f8();

  // Where parts of a product give each other their sums: see linear_few_tokens.cuh.
  static constexpr int64_t kMaxPartialSums = int64_t{132} * 256 * 128;
  float* partial_sums() const { return static_cast<float*>(partial_sums_.data()); }

  // The backend says where each of its ops begins. Rows of activations that an op has rounded to e4m3, with a scale a
  // token, into f8_tokens(), are there for the op right after it; whatever else runs in between, they are forgotten.
  void begin_op() { ++op_; }
  void leave_rounded(const ConstTensorView& x) { rounded_ = {x, op_}; }
  bool has_rounded(const ConstTensorView& x) const;

  // Where slices of weights are dequantized to.
  void* slice_data() const { return slice_.data(); }
  int64_t slice_bytes() const { return slice_.num_bytes(); }

 private:
  LinearLibrary();
  Status choose(const TunedProduct& product);

  bool may_have_parts(const MatmulShape& shape, int num_parts) const;
  ProductWay fastest(cudaStream_t stream, const MatmulShape& shape, const MatmulArgs& args,
                     const std::vector<ProductWay>& candidates);

  // Shapes of one bucket of num_tokens share an algorithm.
  using Key = std::tuple<int64_t, int64_t, int64_t, DType, DType, bool>;

  cublasLtHandle_t handle_ = nullptr;
  DeviceBuffer workspace_;
  DeviceBuffer slice_;
  DeviceBuffer partial_sums_;
  std::map<Key, ProductWay> chosen_;
  std::set<Key> tuned_;  // of them
  std::optional<bool> has_f8_;
  std::unique_ptr<SameAnswers> same_answers_;
  bool is_tuning_ = false;
  uint64_t op_ = 1;
  struct Rounded {
    ConstTensorView x;
    uint64_t op;
  };
  Rounded rounded_ = {};
};

// Where activations of e4m3 products lie: in the buffer of slices, which each product has for itself. Scales are at its
// end, whatever k is.
struct F8Tokens {
  uint8_t* codes;  // [num_tokens, k]
  float* scales;   // [num_tokens]
};
F8Tokens f8_tokens(const LinearLibrary& library, int64_t num_tokens, int64_t k);
bool fits_f8_tokens(const LinearLibrary& library, int64_t num_tokens, int64_t k);

bool accepts_cublaslt(const LinearCall& call);
void linear_cublaslt(const LinearCall& call);
bool accepts_cublaslt_f8(const LinearCall& call);
void linear_cublaslt_f8(const LinearCall& call);
bool accepts_dequantize_cublaslt(const LinearCall& call);
void linear_dequantize_cublaslt(const LinearCall& call);

}  // namespace quire::cuda
