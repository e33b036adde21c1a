// Sums of the parts of an e4m3 product: see AddPartsArgs. What is read has just been written and lies in the L2 cache;
// all of a thread's reads are on their way at once.
#include "ops/cuda/linear_f8.h"

#include "ops/cuda/elementwise.cuh"

namespace quire::cuda {

namespace {

// Grid: x columns by 8 * kThreads, y tokens.
template <typename T, int kParts>
__global__ void __launch_bounds__(kThreads) add_parts_kernel(AddPartsArgs args) {
  let_next_start();
  const int64_t column = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 8;
  const int64_t token = blockIdx.y;
  if (column >= args.n) return;
  const float4* const w_scales = reinterpret_cast<const float4*>(args.w_scales + column);
  const float4 scales[2] = {w_scales[0], w_scales[1]};  // nobody writes weights
  wait_for_previous();
  float4 sums[kParts][2];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const float4* const at =
        reinterpret_cast<const float4*>(args.sums + (part * args.num_tokens + token) * args.n + column);
    sums[part][0] = __ldcs(at);
    sums[part][1] = __ldcs(at + 1);
  }
  Vector<T, 8> values = {};
  if (args.residual != nullptr) {
    values = *reinterpret_cast<const Vector<T, 8>*>(static_cast<const T*>(args.residual) +
                                                    token * args.residual_stride + column);
  }
  const float x_scale = args.x_scales[token];
  const auto add = [&](int half, int place, float float4::*number) {
    float sum = sums[0][half].*number;
#pragma unroll
    for (int part = 1; part < kParts; ++part) sum += sums[part][half].*number;
    T& value = values.v[4 * half + place];
    value = from_float<T>(sum * (scales[half].*number) * x_scale + to_float(value));
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    add(half, 0, &float4::x);
    add(half, 1, &float4::y);
    add(half, 2, &float4::z);
    add(half, 3, &float4::w);
  }
  *reinterpret_cast<Vector<T, 8>*>(static_cast<T*>(args.y) + token * args.y_stride + column) = values;
}

template <typename T>
void launch(cudaStream_t stream, const AddPartsArgs& args) {
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(args.n, 8 * kThreads)),
                  static_cast<unsigned>(args.num_tokens));
  if (args.num_parts == 1) return launch_dependent(stream, add_parts_kernel<T, 1>, grid, dim3(kThreads), args);
  CHECK(args.num_parts == 2);
  launch_dependent(stream, add_parts_kernel<T, 2>, grid, dim3(kThreads), args);
}

}  // namespace

void add_parts(cudaStream_t stream, const AddPartsArgs& args) {
  CHECK(args.num_tokens <= kMaxGridRows);
  if (args.dtype == DType::kBF16) return launch<bf16>(stream, args);
  CHECK(args.dtype == DType::kF16);
  launch<f16>(stream, args);
}

}  // namespace quire::cuda
