// The row `skinny_mma`: what it accepts, and the launch for float weights. The kernels are in linear_skinny.cuh.
#include "ops/cuda/linear_skinny.cuh"

namespace quire::cuda {

namespace {

// Where float weights have few outputs, cuBLASLt is 10 % slower or equal (4096 × 4096: 12.5 against 11.3 us), elsewhere
// it is faster, as it is for more than one group of 8 tokens (H200). Integer weights gain until they are dequantized.
constexpr int64_t kMaxTokensOfFloats = 8;
constexpr int64_t kMaxOutputsOfFloats = 8192;
constexpr int64_t kMaxTokens = 16;

template <typename T>
void launch_float(const LinearCall& call) {
  const SkinnyArgs args = skinny_args(call);
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(call.weight.n, 16)),
                  static_cast<unsigned>(ceil_div(args.num_tokens, kSkinnyTokens)));
  skinny_float_kernel<T><<<grid, kSkinnyThreads, 0, call.stream>>>(
      reinterpret_cast<const T*>(call.weight.parts[0].data()), call.weight.n, call.weight.k, args);
  CUDA_CHECK_LAUNCH();
}

}  // namespace

SkinnyArgs skinny_args(const LinearCall& call) {
  const Epilogue& epilogue = call.epilogue;
  return {.x = call.x.raw_data(),
          .x_stride = call.x.stride(0),
          .y = call.y.raw_data(),
          .y_stride = call.y.stride(0),
          .y_dtype = call.y.dtype(),
          .bias = epilogue.bias.is_given() ? epilogue.bias.data<float>() : nullptr,
          .residual = epilogue.residual.raw_data(),
          .residual_stride = epilogue.residual.is_given() ? epilogue.residual.stride(0) : 0,
          .num_tokens = static_cast<int>(call.x.size(0))};
}

bool accepts_skinny_mma(const LinearCall& call) {
  const DType dtype = call.x.dtype();
  if (dtype == DType::kF32 || call.offsets.is_given() || call.weight.num_experts != 1) return false;
  if (call.x.size(0) > kMaxTokens) return false;
  // Activations are read 16 bytes at a time beside float weights, else 8.
  const bool is_float = call.weight.quant().is_float;
  if (call.weight.layout != Layout::kCudaPlanes) return false;
  const int64_t access = is_float ? 16 : 8;
  if (!is_aligned(call.x.raw_data(), access) || call.x.stride(0) * 2 % access != 0) return false;
  if (!is_float) return true;
  if (call.x.size(0) > kMaxTokensOfFloats || call.weight.n > kMaxOutputsOfFloats) return false;
  return call.weight.format == (dtype == DType::kBF16 ? FormatId::kBF16 : FormatId::kF16) && call.weight.k % 32 == 0 &&
         is_aligned(call.weight.parts[0].data(), 16);
}

void linear_skinny_mma(const LinearCall& call) {
  if (!call.weight.quant().is_float) {
    if (device_weight(call.weight).stored_bits == 4) {
      launch_skinny_4bit(call);
    } else {
      launch_skinny_8bit(call);
    }
  } else if (call.x.dtype() == DType::kBF16) {
    launch_float<bf16>(call);
  } else {
    launch_float<f16>(call);
  }
}

}  // namespace quire::cuda
