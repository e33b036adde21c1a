// Kernels that work row by row: sums, activations, gathers, norms. All are bound by memory: each reads its inputs and
// writes its outputs once (rms_norm reads x twice, the second time from cache). Sums are float, in an order that
// depends on the row's size alone.
#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/gate.cuh"

namespace quire::cuda {

namespace {

template <typename T>
__device__ __forceinline__ float apply(BinaryOp op, float a, float b) {
  return activate(op == BinaryOp::kSiluMultiply ? Gate::kSilu : Gate::kGeluTanh, kDTypeOf<T>, a) * b;
}

// Grid: x over the row's vectors, y over rows.
template <typename T, int V>
__global__ void binary_kernel(BinaryOp op, Rows<T*> y, Rows<const T*> a, Rows<const T*> b, int64_t num_rows,
                              int64_t size) {
  using Vec = Vector<T, V>;
  let_next_start();
  wait_for_previous();
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * V;
  if (i >= size) return;
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    const Vec left = *reinterpret_cast<const Vec*>(a.data + row * a.token_stride + i);
    const Vec right = *reinterpret_cast<const Vec*>(b.data + row * b.token_stride + i);
    Vec out;
#pragma unroll
    for (int j = 0; j < V; ++j) out.v[j] = from_float<T>(apply<T>(op, to_float(left.v[j]), to_float(right.v[j])));
    *reinterpret_cast<Vec*>(y.data + row * y.token_stride + i) = out;
  }
}

// y and a are X, b is T.
template <typename X, typename T, int V>
__global__ void add_kernel(Rows<X*> y, Rows<const X*> a, Rows<const T*> b, int64_t num_rows, int64_t size) {
  let_next_start();
  wait_for_previous();
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * V;
  if (i >= size) return;
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    const Vector<X, V> left = *reinterpret_cast<const Vector<X, V>*>(a.data + row * a.token_stride + i);
    const Vector<T, V> right = *reinterpret_cast<const Vector<T, V>*>(b.data + row * b.token_stride + i);
    Vector<X, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) out.v[j] = from_float<X>(to_float(left.v[j]) + to_float(right.v[j]));
    *reinterpret_cast<Vector<X, V>*>(y.data + row * y.token_stride + i) = out;
  }
}

template <typename T>
__global__ void add_bias_kernel(Rows<T*> y, Rows<const T*> residual, const float* bias, int64_t num_rows,
                                int64_t size) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= size) return;
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    const float other = residual.data != nullptr ? to_float(residual.data[row * residual.token_stride + i]) : 0.0f;
    y.data[row * y.token_stride + i] = from_float<T>(bias[i] + other);
  }
}

__global__ void soft_cap_kernel(float* x, int64_t stride, int64_t num_rows, int64_t size, float cap) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= size) return;
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    float& value = x[row * stride + i];
    value = cap * tanhf(value / cap);
  }
}

// Moves elements of 2 or 4 bytes.
template <typename T>
__global__ void gather_rows_kernel(Rows<T*> y, Rows<const T*> x, const int32_t* rows, int64_t num_rows, int64_t size) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= size) return;
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    y.data[row * y.token_stride + i] = x.data[rows[row] * x.token_stride + i];
  }
}

// blockDim.x threads a row, blockDim.y rows a block; blockDim.x is 32 where blockDim.y is more than 1. x is X, the
// others are T.
template <typename T, typename X, int V>
__global__ void rms_norm_kernel(Rows<T*> y, Rows<const X*> x, Rows<const T*> delta, Rows<X*> x_sum, const float* weight,
                                float epsilon, int64_t num_rows, int num_heads, int64_t size) {
  __shared__ float partial[32];
  let_next_start();
  wait_for_previous();
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= num_rows) return;
  const int64_t token = row / num_heads;
  const int64_t head = row % num_heads;
  const X* input = x.data + token * x.token_stride + head * x.head_stride;
  T* output = y.data + token * y.token_stride + head * y.head_stride;
  float sum = 0;
  for (int64_t i = int64_t{threadIdx.x} * V; i < size; i += blockDim.x * V) {
    Vector<X, V> value = *reinterpret_cast<const Vector<X, V>*>(input + i);
    if (delta.data != nullptr) {
      const Vector<T, V> other = *reinterpret_cast<const Vector<T, V>*>(delta.data + token * delta.token_stride +
                                                                        head * delta.head_stride + i);
#pragma unroll
      for (int j = 0; j < V; ++j) value.v[j] = from_float<X>(to_float(value.v[j]) + to_float(other.v[j]));
      *reinterpret_cast<Vector<X, V>*>(x_sum.data + token * x_sum.token_stride + head * x_sum.head_stride + i) = value;
    }
#pragma unroll
    for (int j = 0; j < V; ++j) sum += to_float(value.v[j]) * to_float(value.v[j]);
  }
  sum = warp_sum(sum);
  if (blockDim.x > 32) {
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int warp = 0; warp < static_cast<int>(blockDim.x) / 32; ++warp) sum += partial[warp];
  }
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(size) + epsilon);
  // Each thread reads back what it alone has written or read.
  for (int64_t i = int64_t{threadIdx.x} * V; i < size; i += blockDim.x * V) {
    const Vector<X, V> value = *reinterpret_cast<const Vector<X, V>*>(input + i);
    Vector<T, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) out.v[j] = from_float<T>(to_float(value.v[j]) * factor * weight[i + j]);
    *reinterpret_cast<Vector<T, V>*>(output + i) = out;
  }
}

// The same for wide rows of at most 16,384 elements: a block a row, whose elements stay in registers.
template <typename T, typename X>
__global__ void __launch_bounds__(kRowThreads)
    rms_norm_row_kernel(Rows<T*> y, Rows<const X*> x, Rows<const T*> delta, Rows<X*> x_sum, const float* weight,
                        float epsilon, int size) {
  __shared__ float partial[kRowThreads / 32];
  const int num_threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  let_next_start();
  const NormWeights weights(weight, size);
  wait_for_previous();
  const X* input = x.data + blockIdx.x * x.token_stride;
  Vector<X, 8> values[kRowVectors];
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    const int i = (v * num_threads + thread) * 8;
    if (i < size) values[v] = *reinterpret_cast<const Vector<X, 8>*>(input + i);
  }
  float sum = 0;
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    const int i = (v * num_threads + thread) * 8;
    if (i >= size) break;
    if (delta.data != nullptr) {
      const Vector<T, 8> other =
          *reinterpret_cast<const Vector<T, 8>*>(delta.data + blockIdx.x * delta.token_stride + i);
#pragma unroll
      for (int j = 0; j < 8; ++j) values[v].v[j] = from_float<X>(to_float(values[v].v[j]) + to_float(other.v[j]));
      *reinterpret_cast<Vector<X, 8>*>(x_sum.data + blockIdx.x * x_sum.token_stride + i) = values[v];
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += to_float(values[v].v[j]) * to_float(values[v].v[j]);
  }
  sum = warp_sum(sum);
  if (thread % 32 == 0) partial[thread / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int warp = 0; warp < num_threads / 32; ++warp) sum += partial[warp];
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(size) + epsilon);
  T* output = y.data + blockIdx.x * y.token_stride;
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    const int i = (v * num_threads + thread) * 8;
    if (i >= size) break;
    Vector<T, 8> out;
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
      const float4& four = weights.of[v][j / 4];
      out.v[j] = from_float<T>(to_float(values[v].v[j]) * factor * four.x);
      out.v[j + 1] = from_float<T>(to_float(values[v].v[j + 1]) * factor * four.y);
      out.v[j + 2] = from_float<T>(to_float(values[v].v[j + 2]) * factor * four.z);
      out.v[j + 3] = from_float<T>(to_float(values[v].v[j + 3]) * factor * four.w);
    }
    *reinterpret_cast<Vector<T, 8>*>(output + i) = out;
  }
}

// Calls function(T(), X()) for activations and a residual stream beside them.
template <typename Function>
void dispatch_stream(DType dtype, DType stream_dtype, Function&& function) {
  dispatch_activation(dtype, [&](auto type) {
    if (stream_dtype == DType::kF32) return function(type, float());
    CHECK(stream_dtype == dtype);
    function(type, type);
  });
}

}  // namespace

void add(cudaStream_t stream, const TensorView& y, const ConstTensorView& a, const ConstTensorView& b) {
  const int64_t num_rows = y.size(0);
  const int64_t size = y.size(1);
  if (num_rows == 0 || size == 0) return;
  dispatch_stream(b.dtype(), y.dtype(), [&]<typename T, typename X>(T, X) {
    constexpr int V = kVectorSize<T>;
    const bool is_wide = has_vectors(y, V) && has_vectors(a, V) && is_vectorizable(b);
    launch_dependent(stream, is_wide ? add_kernel<X, T, V> : add_kernel<X, T, 1>,
                     row_grid(num_rows, is_wide ? size / V : size), dim3(kThreads), rows_of<X>(y), rows_of<X>(a),
                     rows_of<T>(b), num_rows, size);
  });
  CUDA_CHECK_LAUNCH();
}

void binary(cudaStream_t stream, BinaryOp op, const TensorView& y, const ConstTensorView& a, const ConstTensorView& b) {
  const int64_t num_rows = y.size(0);
  const int64_t size = y.size(1);
  if (num_rows == 0 || size == 0) return;
  const bool is_wide = is_vectorizable(y) && is_vectorizable(a) && is_vectorizable(b);
  dispatch_activation(y.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int V = kVectorSize<T>;
    if (is_wide) {
      launch_dependent(stream, binary_kernel<T, V>, row_grid(num_rows, size / V), dim3(kThreads), op, rows_of<T>(y),
                       rows_of<T>(a), rows_of<T>(b), num_rows, size);
    } else {
      launch_dependent(stream, binary_kernel<T, 1>, row_grid(num_rows, size), dim3(kThreads), op, rows_of<T>(y),
                       rows_of<T>(a), rows_of<T>(b), num_rows, size);
    }
  });
  CUDA_CHECK_LAUNCH();
}

void add_bias(cudaStream_t stream, const TensorView& y, const ConstTensorView& residual, const ConstTensorView& bias) {
  if (y.num_elements() == 0) return;
  dispatch_activation(y.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows<const T*> other = residual.is_given() ? rows_of<T>(residual) : Rows<const T*>{nullptr, 0, 0};
    add_bias_kernel<T><<<row_grid(y.size(0), y.size(1)), kThreads, 0, stream>>>(
        rows_of<T>(y), other, bias.data<float>(), y.size(0), y.size(1));
  });
  CUDA_CHECK_LAUNCH();
}

void soft_cap(cudaStream_t stream, const TensorView& x, float cap) {
  if (x.num_elements() == 0) return;
  soft_cap_kernel<<<row_grid(x.size(0), x.size(1)), kThreads, 0, stream>>>(x.data<float>(), x.stride(0), x.size(0),
                                                                           x.size(1), cap);
  CUDA_CHECK_LAUNCH();
}

void gather_rows(cudaStream_t stream, const TensorView& y, const ConstTensorView& x, const ConstTensorView& rows) {
  if (y.num_elements() == 0) return;
  const dim3 grid = row_grid(y.size(0), y.size(1));
  const int32_t* sources = rows.data<int32_t>();
  if (dtype_bytes(x.dtype()) == 4) {
    gather_rows_kernel<uint32_t>
        <<<grid, kThreads, 0, stream>>>(rows_of<uint32_t>(y), rows_of<uint32_t>(x), sources, y.size(0), y.size(1));
  } else {
    gather_rows_kernel<uint16_t>
        <<<grid, kThreads, 0, stream>>>(rows_of<uint16_t>(y), rows_of<uint16_t>(x), sources, y.size(0), y.size(1));
  }
  CUDA_CHECK_LAUNCH();
}

void rms_norm(cudaStream_t stream, const RmsNormArgs& args) {
  const ConstTensorView& x = args.x;
  const int64_t size = x.size(x.rank() - 1);
  const int num_heads = x.rank() == 3 ? static_cast<int>(x.size(1)) : 1;
  const int64_t num_rows = x.size(0) * num_heads;
  if (num_rows == 0 || size == 0) return;
  const bool has_delta = args.delta.is_given();
  constexpr int64_t kLeastRowSize = 1024;
  dispatch_stream(args.y.dtype(), x.dtype(), [&]<typename T, typename X>(T, X) {
    constexpr int V = kVectorSize<T>;
    const bool is_wide = has_vectors(x, V) && is_vectorizable(args.y) && (!has_delta || is_vectorizable(args.delta));
    const Rows<const T*> delta = has_delta ? rows_of<T>(args.delta) : Rows<const T*>{nullptr, 0, 0};
    const Rows<X*> x_sum = has_delta ? rows_of<X>(args.x_sum) : Rows<X*>{nullptr, 0, 0};
    if constexpr (sizeof(T) == 2) {
      if (is_wide && x.rank() == 2 && size >= kLeastRowSize && size <= kRowThreads * kRowVectors * 8 &&
          is_aligned(args.weight.raw_data(), 16)) {
        const int num_threads = std::min<int>(kRowThreads, static_cast<int>(ceil_div<int64_t>(size, 8 * 32)) * 32);
        launch_dependent(stream, rms_norm_row_kernel<T, X>, dim3(static_cast<unsigned>(num_rows)),
                         dim3(static_cast<unsigned>(num_threads)), rows_of<T>(args.y), rows_of<X>(x), delta, x_sum,
                         args.weight.data<float>(), args.epsilon, static_cast<int>(size));
        return;
      }
    }
    const int64_t num_items = is_wide ? size / V : size;
    const dim3 block = num_items <= 64 ? dim3(32, 4) : dim3(num_items <= 512 ? 128 : kThreads, 1);
    const unsigned grid = static_cast<unsigned>(ceil_div<int64_t>(num_rows, block.y));
    const auto kernel = is_wide ? rms_norm_kernel<T, X, V> : rms_norm_kernel<T, X, 1>;
    launch_dependent(stream, kernel, dim3(grid), block, rows_of<T>(args.y), rows_of<X>(x), delta, x_sum,
                     args.weight.data<float>(), args.epsilon, num_rows, num_heads, size);
  });
  CUDA_CHECK_LAUNCH();
}

}  // namespace quire::cuda
