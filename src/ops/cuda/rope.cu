// Rotations of queries and keys, and the writes of keys and values to their pages: one after the other, or both at
// once. All are bound by memory.
#include <type_traits>

#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/kv_codes.cuh"

namespace quire::cuda {

namespace {

// A thread an angle.
__global__ void rope_table_kernel(float* table, int64_t stride, const int32_t* positions,
                                  const float* inverse_frequencies, float attention_factor, int64_t num_tokens,
                                  int half) {
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= num_tokens * half) return;
  const int64_t token = index / half;
  const int64_t i = index % half;
  const float angle = __fmul_rn(static_cast<float>(positions[token]), inverse_frequencies[i]);
  table[token * stride + i] = cosf(angle) * attention_factor;
  table[token * stride + half + i] = sinf(angle) * attention_factor;
}

// A thread a pair. Every product is rounded, as ops.h says.
template <typename T>
__global__ void rope_kernel(Rows<T*> x, const float* table, int64_t table_stride, bool is_interleaved,
                            int64_t num_pairs, int num_heads, int half) {
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= num_pairs) return;
  const int i = static_cast<int>(index % half);
  const int64_t row = index / half;
  const int64_t token = row / num_heads;
  T* elements = x.data + token * x.token_stride + row % num_heads * x.head_stride;
  T& first = elements[is_interleaved ? 2 * i : i];
  T& second = elements[is_interleaved ? 2 * i + 1 : i + half];
  const float cosine = table[token * table_stride + i];
  const float sine = table[token * table_stride + half + i];
  const float a = to_float(first);
  const float b = to_float(second);
  first = from_float<T>(__fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)));
  second = from_float<T>(__fadd_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine)));
}

// A thread an element of K and the same of V.
template <typename T>
__global__ void write_kv_kernel(PagedKv kv, Rows<const T*> k, Rows<const T*> v, const int64_t* slots,
                                int64_t num_elements) {
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= num_elements) return;
  const int64_t d = index % kv.head_dim;
  const int64_t head = index / kv.head_dim % kv.num_kv_heads;
  const int64_t token = index / kv.head_dim / kv.num_kv_heads;
  const int64_t slot = slots[token];
  if (slot < 0) return;
  const int64_t offset =
      slot / kv.page_size * kv.page_stride + head * kv.head_stride + slot % kv.page_size * kv.token_stride + d;
  store_float_as(kv.k, kv.dtype, offset, to_float(k.data[token * k.token_stride + head * k.head_stride + d]));
  store_float_as(kv.v, kv.dtype, offset, to_float(v.data[token * v.token_stride + head * v.head_stride + d]));
}

// The same for a cache with scales: a warp a row of K or of V. Grid: x rows of K and then of V.
template <typename T, typename C>
__global__ void write_kv_codes_kernel(PagedKv kv, Rows<const T*> k, Rows<const T*> v, const int64_t* slots,
                                      int64_t num_rows) {
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= 2 * num_rows) return;
  const bool is_v = row >= num_rows;
  const int64_t token = row % num_rows / kv.num_kv_heads;
  const int64_t head = row % kv.num_kv_heads;
  const int64_t slot = slots[token];
  if (slot < 0) return;
  const Rows<const T*>& rows = is_v ? v : k;
  const T* source = rows.data + token * rows.token_stride + head * rows.head_stride;
  float largest = 0;
  for (int d = lane; d < kv.head_dim; d += 32) largest = larger<C>(largest, to_float(source[d]));
#pragma unroll
  for (int other = 16; other > 0; other /= 2) {
    largest = larger<C>(largest, __shfl_xor_sync(0xffffffffu, largest, other));
  }
  const float scale = scale_of<C>(largest);
  const float inverse = 1.0f / scale;
  const int64_t page = slot / kv.page_size;
  const int64_t offset = slot % kv.page_size;
  uint8_t* target = static_cast<uint8_t*>(is_v ? kv.v : kv.k) + page * kv.page_stride + head * kv.head_stride +
                    offset * kv.token_stride;
  for (int d = lane; d < kv.head_dim; d += 32) {
    target[d] = C::of(to_float(source[d]) * inverse);
  }
  if (lane == 0) {
    static_cast<bf16*>(is_v ? kv.v_scales : kv.k_scales)[page * kv.scale_page_stride + head * kv.page_size + offset] =
        from_float<bf16>(scale);
  }
}

template <typename T>
struct RopeWrite {
  Rows<T*> q;
  Rows<const T*> k;
  Rows<const T*> v;
  const float* table;
  int64_t table_stride;
  const int64_t* slots;
  PagedKv kv;
  int num_heads;
  bool is_interleaved;
  int64_t num_items;
};

template <typename C>
__device__ __forceinline__ uint2 pack_codes(const float (&x)[8], float factor) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = C::pair(x[2 * i] * factor, x[2 * i + 1] * factor);
  return {words[0] | words[1] << 16, words[2] | words[3] << 16};
}

// A thread 16 elements of a head: 8 pairs of q or of k, or 16 elements of v. Heads of a token: q's, k's, v's. Where the
// cache holds codes (C is not void) a head's threads are neighbours in one warp.
template <typename T, typename C>
__global__ void rope_and_write_kernel(RopeWrite<T> args) {
  using Vec = Vector<T, 8>;
  constexpr bool kHasCodes = !std::is_void_v<C>;
  let_next_start();
  wait_for_previous();
  const int64_t own_index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (!kHasCodes && own_index >= args.num_items) return;
  const int64_t index = min(own_index, args.num_items - 1);  // all lanes of a warp go on together
  const int num_kv_heads = args.kv.num_kv_heads;
  const int half = args.kv.head_dim / 2;
  const int chunks = half / 8;
  const int all_heads = args.num_heads + 2 * num_kv_heads;
  const int chunk = static_cast<int>(index % chunks);
  const int64_t row = index / chunks;
  const int head = static_cast<int>(row % all_heads);
  const int64_t token = row / all_heads;
  const bool is_q = head < args.num_heads;
  const bool is_v = head >= args.num_heads + num_kv_heads;
  const int kv_head = is_v ? head - args.num_heads - num_kv_heads : head - args.num_heads;
  const T* source = is_q   ? args.q.data + token * args.q.token_stride + head * args.q.head_stride
                    : is_v ? args.v.data + token * args.v.token_stride + kv_head * args.v.head_stride
                           : args.k.data + token * args.k.token_stride + kv_head * args.k.head_stride;
  // Where the two vectors of 8 lie: a half apart, or one after another.
  const int first_offset = args.is_interleaved || is_v ? 16 * chunk : 8 * chunk;
  const int second_offset = args.is_interleaved || is_v ? first_offset + 8 : first_offset + half;
  Vec first = *reinterpret_cast<const Vec*>(source + first_offset);
  Vec second = *reinterpret_cast<const Vec*>(source + second_offset);
  if (!is_v) {
    float cosines[8];
    float sines[8];
    const float* table = args.table + token * args.table_stride + 8 * chunk;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      cosines[i] = table[i];
      sines[i] = table[half + i];
    }
    const auto rotate = [&](T& x, T& y, int i) {
      const float a = to_float(x);
      const float b = to_float(y);
      x = from_float<T>(__fsub_rn(__fmul_rn(a, cosines[i]), __fmul_rn(b, sines[i])));
      y = from_float<T>(__fadd_rn(__fmul_rn(b, cosines[i]), __fmul_rn(a, sines[i])));
    };
    if (args.is_interleaved) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        rotate(first.v[2 * i], first.v[2 * i + 1], i);
        rotate(second.v[2 * i], second.v[2 * i + 1], i + 4);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) rotate(first.v[i], second.v[i], i);
    }
  }
  if constexpr (kHasCodes) {
    float values[2][8];
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[0][i] = to_float(first.v[i]);
      values[1][i] = to_float(second.v[i]);
      largest = larger<C>(larger<C>(largest, values[0][i]), values[1][i]);
    }
    for (int lane = 1; lane < chunks; lane *= 2) {
      largest = larger<C>(largest, __shfl_xor_sync(0xffffffffu, largest, lane));
    }
    if (own_index >= args.num_items) return;
    if (!is_q) {
      const int64_t slot = args.slots[token];
      if (slot < 0) return;
      const float scale = scale_of<C>(largest);
      const float inverse = 1.0f / scale;
      const int64_t page = slot / args.kv.page_size;
      const int64_t offset = slot % args.kv.page_size;
      uint8_t* codes = static_cast<uint8_t*>(is_v ? args.kv.v : args.kv.k) + page * args.kv.page_stride +
                       kv_head * args.kv.head_stride + offset * args.kv.token_stride;
      *reinterpret_cast<uint2*>(codes + first_offset) = pack_codes<C>(values[0], inverse);
      *reinterpret_cast<uint2*>(codes + second_offset) = pack_codes<C>(values[1], inverse);
      if (chunk == 0) {
        static_cast<bf16*>(
            is_v ? args.kv.v_scales
                 : args.kv.k_scales)[page * args.kv.scale_page_stride + kv_head * args.kv.page_size + offset] =
            from_float<bf16>(scale);
      }
      return;
    }
  }
  T* target = nullptr;
  if (is_q) {
    target = args.q.data + token * args.q.token_stride + head * args.q.head_stride;
  } else {
    const int64_t slot = args.slots[token];
    if (slot < 0) return;
    target = static_cast<T*>(is_v ? args.kv.v : args.kv.k) + slot / args.kv.page_size * args.kv.page_stride +
             kv_head * args.kv.head_stride + slot % args.kv.page_size * args.kv.token_stride;
  }
  *reinterpret_cast<Vec*>(target + first_offset) = first;
  *reinterpret_cast<Vec*>(target + second_offset) = second;
}

}  // namespace

void rope_table(cudaStream_t stream, const TensorView& table, const ConstTensorView& positions,
                const ConstTensorView& inverse_frequencies, float attention_factor) {
  const int64_t half = inverse_frequencies.num_elements();
  const int64_t num_tokens = positions.num_elements();
  if (half == 0 || num_tokens == 0) return;
  rope_table_kernel<<<flat_grid(num_tokens * half), kThreads, 0, stream>>>(
      table.data<float>(), table.stride(0), positions.data<int32_t>(), inverse_frequencies.data<float>(),
      attention_factor, num_tokens, static_cast<int>(half));
  CUDA_CHECK_LAUNCH();
}

void rope(cudaStream_t stream, const TensorView& x, const ConstTensorView& table, bool is_interleaved) {
  const int half = static_cast<int>(table.size(1) / 2);
  const int64_t num_pairs = x.size(0) * x.size(1) * half;
  if (num_pairs == 0) return;
  dispatch_activation(x.dtype(), [&](auto type) {
    using T = decltype(type);
    rope_kernel<T><<<flat_grid(num_pairs), kThreads, 0, stream>>>(rows_of<T>(x), table.data<float>(), table.stride(0),
                                                                  is_interleaved, num_pairs,
                                                                  static_cast<int>(x.size(1)), half);
  });
  CUDA_CHECK_LAUNCH();
}

void write_kv(cudaStream_t stream, const PagedKv& kv, const ConstTensorView& k, const ConstTensorView& v,
              const ConstTensorView& slots) {
  const int64_t num_elements = k.num_elements();
  if (num_elements == 0) return;
  dispatch_activation(k.dtype(), [&](auto type) {
    using T = decltype(type);
    if (has_kv_scales(kv.dtype)) {
      const int64_t num_rows = k.size(0) * k.size(1);
      const auto kernel =
          kv.dtype == DType::kI8 ? write_kv_codes_kernel<T, I8Codes> : write_kv_codes_kernel<T, F8Codes>;
      kernel<<<flat_grid(2 * num_rows * 32), kThreads, 0, stream>>>(kv, rows_of<T>(k), rows_of<T>(v),
                                                                    slots.data<int64_t>(), num_rows);
      return;
    }
    write_kv_kernel<T><<<flat_grid(num_elements), kThreads, 0, stream>>>(kv, rows_of<T>(k), rows_of<T>(v),
                                                                         slots.data<int64_t>(), num_elements);
  });
  CUDA_CHECK_LAUNCH();
}

bool accepts_rope_and_write(const RopeWriteArgs& args) {
  const PagedKv& kv = args.kv;
  const DType dtype = args.q.dtype();
  const bool has_codes = has_kv_scales(kv.dtype);
  const int chunks = kv.head_dim / 16;
  if (has_codes && (chunks > 32 || (chunks & (chunks - 1)) != 0)) return false;
  return dtype != DType::kF32 && args.k.dtype() == dtype && args.v.dtype() == dtype &&
         (has_codes || kv.dtype == dtype) && kv.head_dim % 16 == 0 && args.q.size(2) == kv.head_dim &&
         args.table.size(1) == kv.head_dim && is_vectorizable(args.q) && is_vectorizable(args.k) &&
         is_vectorizable(args.v) && is_aligned(kv.k, 16) && is_aligned(kv.v, 16) && kv.page_stride % 8 == 0 &&
         kv.head_stride % 8 == 0 && kv.token_stride % 8 == 0;
}

void rope_and_write(cudaStream_t stream, const RopeWriteArgs& args) {
  const PagedKv& kv = args.kv;
  const int num_heads = static_cast<int>(args.q.size(1));
  const int64_t num_items = args.q.size(0) * (num_heads + 2 * kv.num_kv_heads) * (kv.head_dim / 16);
  if (num_items == 0) return;
  dispatch_activation(args.q.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int kThreadsHere = 128;
    const RopeWrite<T> call{.q = rows_of<T>(args.q),
                            .k = rows_of<T>(args.k),
                            .v = rows_of<T>(args.v),
                            .table = args.table.data<float>(),
                            .table_stride = args.table.stride(0),
                            .slots = args.slots.data<int64_t>(),
                            .kv = kv,
                            .num_heads = num_heads,
                            .is_interleaved = args.is_interleaved,
                            .num_items = num_items};
    const auto kernel = kv.dtype == DType::kF8E4M3 ? rope_and_write_kernel<T, F8Codes>
                        : kv.dtype == DType::kI8   ? rope_and_write_kernel<T, I8Codes>
                                                   : rope_and_write_kernel<T, void>;
    launch_dependent(stream, kernel, dim3(static_cast<unsigned>(ceil_div<int64_t>(num_items, kThreadsHere))),
                     dim3(kThreadsHere), call);
  });
}

}  // namespace quire::cuda
