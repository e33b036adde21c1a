// Packing of weights for the GPU, and the kernels that read single rows of them: embedding and dequantize.
#include "ops/cuda/weights.h"

#include <cuda_fp8.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "ops/cuda/cuda_support.h"
#include "ops/cuda/device_weight.cuh"
#include "ops/host_memory.h"
#include "quant/dequantize.h"
#include "quant/random_rows.h"

namespace quire::cuda {

namespace {

constexpr int kThreads = 256;

struct Iq4Table {
  uint8_t codes[16];
};

// The code of (lane, k of the tile) in a tile of quant/packing.h.
__device__ int read_cpu_code(const PanelFormat& panel, const Iq4Table& iq4, const uint8_t* tile, int lane, int k) {
  const int group = k / 4;
  const int byte = 4 * lane + k % 4;
  if (panel.code_bits == 8) return tile[64 * group + byte];
  int code = 0;
  int num_bits = 0;
  if (panel.code_bits >= 4) {
    code = tile[64 * (group / 2) + byte] >> (group % 2 * 4) & 15;
    tile += 256;
    num_bits = 4;
  }
  if (panel.code_bits - num_bits >= 2) {
    code |= (tile[64 * (group / 4) + byte] >> (group % 4 * 2) & 3) << num_bits;
    tile += 128;
    num_bits += 2;
  }
  if (panel.code_bits > num_bits) code |= (tile[byte] >> group & 1) << num_bits;
  return panel.is_lookup ? iq4.codes[code] : code;
}

// A thread makes one 4-byte word of parts[0].
__global__ void retile_kernel(uint32_t* out, const uint8_t* cpu_codes, DeviceWeight w, Iq4Table iq4,
                              int64_t num_words) {
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= num_words) return;
  const int64_t words_per_panel = w.panel_code_bytes / 4;
  const int64_t panel_index = index / words_per_panel;
  const int64_t word_in_panel = index % words_per_panel;
  const int64_t tile = word_in_panel / (kWeightTileBytes / 4);
  const int lane = static_cast<int>(word_in_panel % (kWeightTileBytes / 4)) / 4;
  const int word_of_lane = static_cast<int>(word_in_panel % 4);
  const int64_t cpu_panel_bytes = w.k / kTileK * (w.panel.code_bits * kTileK * kPanelLanes / 8);
  const uint8_t* panel_codes = cpu_codes + panel_index * cpu_panel_bytes;
  const auto code_at = [&](int64_t first_k, int reg, int second) {
    const int row = lane / 4 + 8 * (reg % 2);
    const int64_t k = first_k + lane % 4 * 2 + 8 * (reg / 2) + second;
    if (k >= w.k) return 0;
    const uint8_t* cpu_tile = panel_codes + k / kTileK * (w.panel.code_bits * kTileK * kPanelLanes / 8);
    return read_cpu_code(w.panel, iq4, cpu_tile, row, static_cast<int>(k % kTileK));
  };
  uint32_t word = 0;
  if (w.stored_bits == 4) {
    for (int reg = 0; reg < 4; ++reg) {
      word |= static_cast<uint32_t>(code_at(tile * 64 + word_of_lane * 16, reg, 0)) << (4 * reg);
      word |= static_cast<uint32_t>(code_at(tile * 64 + word_of_lane * 16, reg, 1)) << (4 * (reg + 4));
    }
  } else {
    for (int byte = 0; byte < 4; ++byte) {
      const int reg = word_of_lane % 2 * 2 + byte / 2;
      word |= static_cast<uint32_t>(code_at(tile * 32 + word_of_lane / 2 * 16, reg, byte % 2)) << (8 * byte);
    }
  }
  out[index] = word;
}

// Grid of both: x over rows, y over k.
template <typename T>
__global__ void embedding_kernel(T* y, int64_t y_stride, DeviceWeight table, const int32_t* ids, float scale) {
  const int64_t token = blockIdx.x;
  const int64_t k = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (k >= table.k) return;
  // A token that could not be drawn is -1: what is computed of it is not used, but must not read elsewhere.
  const int32_t id = max(ids[token], 0);
  y[token * y_stride + k] = from_float<T>(load_weight(table, 0, id, k) * scale);
}

template <typename T>
__global__ void dequantize_kernel(T* out, DeviceWeight w, int64_t first_row) {
  const int64_t row = blockIdx.x;
  const int64_t k = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (k >= w.k) return;
  out[row * w.k + k] = from_float<T>(load_weight(w, 0, first_row + row, k));
}

// Integer formats: a warp a tile, whose 512 bytes it loads at once; a thread writes 2 neighbours in k at a time.
// first_row is a multiple of 16. Grid: x panels, y tiles, 8 a block.
template <typename T>
__global__ void dequantize_tiles_kernel(T* out, DeviceWeight w, int64_t first_row, int64_t num_rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int tile_k = w.stored_bits == 4 ? 64 : 32;
  const int64_t tile = int64_t{blockIdx.y} * 8 + threadIdx.x / 32;
  if (tile * tile_k >= w.k) return;
  const int64_t panel_index = first_row / kPanelLanes + blockIdx.x;
  const uint4 loaded =
      *reinterpret_cast<const uint4*>(w.codes + panel_index * w.panel_code_bytes + tile * kWeightTileBytes + lane * 16);
  const uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
  const uint8_t* scales = w.scales + panel_index * w.panel_scale_bytes;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const int64_t k = tile * tile_k + step * 16 + lane % 4 * 2;
    if (step * 16 >= tile_k || k >= w.k) break;
    const uint8_t* block = scales + k / w.panel.scale_block_size * w.panel.scale_block_bytes;
    const int group = static_cast<int>(k % w.panel.scale_block_size) / w.panel.group_size;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      const int64_t target_row = int64_t{blockIdx.x} * kPanelLanes + row;
      if (target_row >= num_rows) break;
      const ScaleAndMin scale = load_scale(w.panel, block, row, group);
      Vector<T, 2> values[2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int reg = half + i / 2 * 2;
        const uint32_t code = w.stored_bits == 4 ? words[step] >> (4 * (reg + i % 2 * 4)) & 15u
                                                 : words[step % 2 * 2 + reg / 2] >> (8 * (reg % 2 * 2 + i % 2)) & 255u;
        values[i / 2].v[i % 2] = from_float<T>(
            __fadd_rn(__fmul_rn(scale.scale, static_cast<float>(static_cast<int>(code) - w.panel.offset)), scale.min));
      }
      *reinterpret_cast<Vector<T, 2>*>(out + target_row * w.k + k) = values[0];
      *reinterpret_cast<Vector<T, 2>*>(out + target_row * w.k + k + 8) = values[1];
    }
  }
}

// Evenly spread values, 8 a thread, each from a hash of its place.
template <typename T>
__global__ void random_values_kernel(T* out, int64_t num_values, uint64_t seed) {
  const int64_t first = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 8;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (first + j >= num_values) return;
    uint64_t x = (seed << 40) + static_cast<uint64_t>(first + j) * 0x9e3779b97f4a7c15u;  // SplitMix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    const int32_t bits = static_cast<int32_t>((x ^ (x >> 31)) >> 32);
    out[first + j] = from_float<T>(static_cast<float>(bits) * (1.7320508f * 0.02f * 0x1p-31f));
  }
}

Result<DeviceBuffer> allocate_weight(int64_t num_bytes) {
  void* data = nullptr;
  if (const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(std::max<int64_t>(num_bytes, 256)));
      error != cudaSuccess) {
    (void)cudaGetLastError();
    return resource_exhausted("the GPU has no " + format_bytes(num_bytes) + " left for weights (" +
                              cudaGetErrorString(error) + "): use a smaller model or a format of fewer bits");
  }
  return DeviceBuffer(data, num_bytes, Device{DeviceKind::kCuda, 0}, [](void* block) { (void)cudaFree(block); });
}

// Codes as the CPU's panels have them are turned into tiles on the device.
Result<Weight> pack_integer_weight(ThreadPool& pool, const Weight& file_weight) {
  const PanelBytes cpu_bytes = packed_bytes(file_weight);
  std::vector<std::byte> codes(static_cast<size_t>(cpu_bytes.codes));
  std::vector<std::byte> scales(static_cast<size_t>(cpu_bytes.scales));
  pack_cpu_panels(pool, file_weight, codes, scales);

  Weight packed = file_weight;
  packed.layout = Layout::kCudaPlanes;
  const DeviceWeight shape = device_weight(packed);
  const int64_t code_bytes = shape.panels_per_expert * packed.num_experts * shape.panel_code_bytes;
  ASSIGN_OR_RETURN(DeviceBuffer buffer, allocate_weight(code_bytes + cpu_bytes.scales));
  ASSIGN_OR_RETURN(DeviceBuffer staging, allocate_weight(cpu_bytes.codes));
  std::byte* device_codes = static_cast<std::byte*>(buffer.data());
  std::byte* device_scales = device_codes + code_bytes;  // a multiple of 512
  CUDA_CHECK(cudaMemcpy(staging.data(), codes.data(), codes.size(), cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaMemcpy(device_scales, scales.data(), scales.size(), cudaMemcpyHostToDevice));
  Iq4Table iq4;
  for (int i = 0; i < 16; ++i) iq4.codes[i] = static_cast<uint8_t>(kIq4Values[i] + 128);
  const int64_t num_words = code_bytes / 4;
  if (num_words > 0) {
    retile_kernel<<<static_cast<unsigned>(ceil_div<int64_t>(num_words, kThreads)), kThreads>>>(
        reinterpret_cast<uint32_t*>(device_codes), static_cast<const uint8_t*>(staging.data()), shape, iq4, num_words);
    CUDA_CHECK_LAUNCH();
  }
  CUDA_CHECK(cudaDeviceSynchronize());
  packed.parts[0] = {device_codes, static_cast<size_t>(code_bytes)};
  packed.parts[1] = {device_scales, scales.size()};
  packed.owner = std::make_shared<DeviceBuffer>(std::move(buffer));
  return packed;
}

struct F8Rows {
  static constexpr Layout kLayout = Layout::kCudaF8;
  __device__ __forceinline__ static float scale_of(float largest) { return largest > 0 ? largest / kLargestF8 : 1.0f; }
  __device__ __forceinline__ static uint8_t code_of(float x) {
    return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
  }
};
// See quant/int8_rows.h.
struct I8Rows {
  static constexpr Layout kLayout = Layout::kCudaI8;
  __device__ __forceinline__ static float scale_of(float largest) {
    if (largest == 0) return 1.0f;
    const float scale = largest / 127.0f;
    return to_float(from_float<f16>(scale < 0x1p-24f ? 0x1p-24f : scale));
  }
  __device__ __forceinline__ static uint8_t code_of(float x) {
    return static_cast<uint8_t>(max(-127, min(127, __float2int_rn(x))));
  }
};

// A block a row: its largest, then the codes. Of int8 NaN is the largest.
template <typename T, typename C>
__global__ void quantize_rows_kernel(uint8_t* codes, float* scales, const T* rows, int64_t k) {
  __shared__ uint32_t partial[kThreads / 32];
  constexpr bool kSeesNan = std::is_same_v<C, I8Rows>;
  const T* row = rows + blockIdx.x * k;
  uint32_t largest = 0;  // the bits of a number that is not negative
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    const float x = fabsf(to_float(row[i]));
    if (kSeesNan || x == x) largest = max(largest, __float_as_uint(x));
  }
  largest = __reduce_max_sync(0xffffffffu, largest);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = largest;
  __syncthreads();
  for (int warp = 0; warp < kThreads / 32; ++warp) largest = max(largest, partial[warp]);
  const float scale = C::scale_of(__uint_as_float(largest));
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    codes[blockIdx.x * k + i] = C::code_of(to_float(row[i]) / scale);
  }
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}

template <typename C>
Result<Weight> quantize_rows(const Weight& packed) {
  CHECK(packed.layout == Layout::kCudaPlanes);
  CHECK(packed.quant().is_float);
  const int64_t num_rows = packed.n * packed.num_experts;
  const int64_t code_bytes = ceil_div<int64_t>(num_rows * packed.k, 256) * 256;
  ASSIGN_OR_RETURN(DeviceBuffer buffer, allocate_weight(code_bytes + num_rows * 4));
  std::byte* codes = static_cast<std::byte*>(buffer.data());
  if (num_rows > 0) {
    const DType dtype = packed.format == FormatId::kF32   ? DType::kF32
                        : packed.format == FormatId::kF16 ? DType::kF16
                                                          : DType::kBF16;
    dispatch_activation(dtype, [&](auto type) {
      using T = decltype(type);
      quantize_rows_kernel<T, C><<<static_cast<unsigned>(num_rows), kThreads>>>(
          reinterpret_cast<uint8_t*>(codes), reinterpret_cast<float*>(codes + code_bytes),
          reinterpret_cast<const T*>(packed.parts[0].data()), packed.k);
    });
    CUDA_CHECK_LAUNCH();
    CUDA_CHECK(cudaDeviceSynchronize());
  }
  Weight weight = packed;
  weight.layout = C::kLayout;
  weight.parts[0] = {codes, static_cast<size_t>(num_rows * packed.k)};
  weight.parts[1] = {codes + code_bytes, static_cast<size_t>(num_rows * 4)};
  weight.owner = std::make_shared<DeviceBuffer>(std::move(buffer));
  return weight;
}

}  // namespace

Result<Weight> pack_weight(ThreadPool& pool, const Weight& file_weight) {
  CHECK(file_weight.layout == Layout::kRowMajor);
  if (!file_weight.quant().is_float) return pack_integer_weight(pool, file_weight);
  const std::span<const std::byte> bytes = file_weight.parts[0];
  ASSIGN_OR_RETURN(DeviceBuffer buffer, allocate_weight(static_cast<int64_t>(bytes.size())));
  if (!bytes.empty()) CUDA_CHECK(cudaMemcpy(buffer.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  Weight packed = file_weight;
  packed.layout = Layout::kCudaPlanes;
  packed.parts[0] = {static_cast<const std::byte*>(buffer.data()), bytes.size()};
  packed.owner = std::make_shared<DeviceBuffer>(std::move(buffer));
  return packed;
}

Result<Weight> quantize_to_f8(const Weight& packed) {
  return quantize_rows<F8Rows>(packed);
}

Result<Weight> quantize_to_i8(const Weight& packed) {
  return quantize_rows<I8Rows>(packed);
}

Result<Weight> make_random_weight(ThreadPool& pool, const Weight& shape, uint64_t seed) {
  Weight weight = shape;
  weight.layout = Layout::kCudaPlanes;
  weight.parts = {};
  if (shape.quant().is_float) {
    const int64_t num_values = shape.num_experts * shape.n * shape.k;
    ASSIGN_OR_RETURN(DeviceBuffer buffer, allocate_weight(num_values * shape.quant().bytes_per_block));
    const DType dtype = shape.format == FormatId::kF32   ? DType::kF32
                        : shape.format == FormatId::kF16 ? DType::kF16
                                                         : DType::kBF16;
    if (num_values > 0) {
      dispatch_activation(dtype, [&](auto type) {
        using T = decltype(type);
        random_values_kernel<T><<<static_cast<unsigned>(ceil_div<int64_t>(num_values, 8 * kThreads)), kThreads>>>(
            static_cast<T*>(buffer.data()), num_values, seed);
      });
      CUDA_CHECK_LAUNCH();
    }
    weight.parts[0] = {static_cast<const std::byte*>(buffer.data()), static_cast<size_t>(buffer.num_bytes())};
    weight.owner = std::make_shared<DeviceBuffer>(std::move(buffer));
    return weight;
  }
  constexpr int64_t kSampleRows = 256;
  Weight sample = shape;
  sample.layout = Layout::kRowMajor;
  sample.num_experts = 1;
  sample.n = std::min(shape.n, kSampleRows);
  std::vector<std::byte> rows(static_cast<size_t>(sample.n * sample.quant().row_bytes(sample.k)));
  fill_random_rows(sample.format, rows, seed);
  sample.parts = {};
  sample.parts[0] = rows;
  ASSIGN_OR_RETURN(const Weight packed, pack_weight(pool, sample));
  const DeviceWeight target = device_weight(weight);
  const int64_t panels = target.panels_per_expert * shape.num_experts;
  const int64_t code_bytes = panels * target.panel_code_bytes;
  const int64_t scale_bytes = panels * target.panel_scale_bytes;
  ASSIGN_OR_RETURN(DeviceBuffer buffer, allocate_weight(code_bytes + scale_bytes));
  std::byte* codes = static_cast<std::byte*>(buffer.data());
  const auto repeat = [](std::byte* out, int64_t num_bytes, std::span<const std::byte> source) {
    for (int64_t done = 0; done < num_bytes; done += static_cast<int64_t>(source.size())) {
      const size_t part = static_cast<size_t>(std::min(num_bytes - done, static_cast<int64_t>(source.size())));
      CUDA_CHECK(cudaMemcpyAsync(out + done, source.data(), part, cudaMemcpyDeviceToDevice, nullptr));
    }
  };
  repeat(codes, code_bytes, packed.parts[0]);
  repeat(codes + code_bytes, scale_bytes, packed.parts[1]);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  weight.parts[0] = {codes, static_cast<size_t>(code_bytes)};
  weight.parts[1] = {codes + code_bytes, static_cast<size_t>(scale_bytes)};
  weight.owner = std::make_shared<DeviceBuffer>(std::move(buffer));
  return weight;
}

DeviceWeight device_weight(const Weight& packed) {
  CHECK(packed.layout == Layout::kCudaPlanes || packed.layout == Layout::kCudaF8 || packed.layout == Layout::kCudaI8);
  DeviceWeight w;
  w.codes = reinterpret_cast<const uint8_t*>(packed.parts[0].data());
  w.scales = reinterpret_cast<const uint8_t*>(packed.parts[1].data());
  w.format = packed.format;
  w.n = packed.n;
  w.k = packed.k;
  w.is_f8 = packed.layout == Layout::kCudaF8;
  w.is_i8 = packed.layout == Layout::kCudaI8;
  if (packed.quant().is_float) return w;
  w.panel = panel_format(packed.format);
  w.stored_bits = w.panel.code_bits <= 4 && !w.panel.is_lookup ? 4 : 8;
  w.panels_per_expert = num_panels(packed.n);
  w.panel_code_bytes = ceil_div<int64_t>(packed.k, w.stored_bits == 4 ? 64 : 32) * kWeightTileBytes;
  w.panel_scale_bytes = panel_bytes(packed.format, packed.k).scales;
  return w;
}

void embedding(cudaStream_t stream, const TensorView& y, const Weight& table, const ConstTensorView& ids, float scale) {
  if (y.num_elements() == 0) return;
  const DeviceWeight w = device_weight(table);
  const dim3 grid(static_cast<unsigned>(y.size(0)), static_cast<unsigned>(ceil_div<int64_t>(w.k, kThreads)));
  dispatch_activation(y.dtype(), [&](auto type) {
    using T = decltype(type);
    embedding_kernel<T>
        <<<grid, kThreads, 0, stream>>>(static_cast<T*>(y.raw_data()), y.stride(0), w, ids.data<int32_t>(), scale);
  });
  CUDA_CHECK_LAUNCH();
}

void dequantize(cudaStream_t stream, const Weight& packed, const DequantizeArgs& args) {
  if (args.num_rows == 0 || packed.k == 0) return;
  const DeviceWeight w = device_weight(packed);
  const bool has_tiles = w.stored_bits > 0 && args.first_row % kPanelLanes == 0 && is_aligned(args.out, 16);
  dispatch_activation(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (has_tiles) {
      const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(args.num_rows, kPanelLanes)),
                      static_cast<unsigned>(ceil_div<int64_t>(w.panel_code_bytes / kWeightTileBytes, 8)));
      dequantize_tiles_kernel<T>
          <<<grid, kThreads, 0, stream>>>(static_cast<T*>(args.out), w, args.first_row, args.num_rows);
    } else {
      const dim3 grid(static_cast<unsigned>(args.num_rows), static_cast<unsigned>(ceil_div<int64_t>(w.k, kThreads)));
      dequantize_kernel<T><<<grid, kThreads, 0, stream>>>(static_cast<T*>(args.out), w, args.first_row);
    }
  });
  CUDA_CHECK_LAUNCH();
}

}  // namespace quire::cuda
