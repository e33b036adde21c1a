// What decode attention does first where it takes the rotation over: rotates the queries, and the step's own key, which
// goes to its page together with its value and from registers into the ring, in place of what the page held: see
// attention_decode_kernel.cuh, which alone includes it. The bits are those of rope.cu.
#pragma once

#include "ops/cuda/attention_decode_units.cuh"
#include "ops/cuda/kv_codes.cuh"
#include "ops/cuda/packed_pairs.cuh"

namespace quire::cuda::decode {

struct FusedArgs : Args {
  explicit FusedArgs(const Args& args) : Args(args) {}

  const void* new_k = nullptr;
  int64_t new_k_token_stride = 0;
  int64_t new_k_head_stride = 0;
  const void* new_v = nullptr;
  int64_t new_v_token_stride = 0;
  int64_t new_v_head_stride = 0;
  const float* rope_table = nullptr;
  int64_t rope_stride = 0;
  int rotary_half = 0;  // pairs that are rotated
  bool is_interleaved = false;
  const int64_t* slots = nullptr;
  uint4* messages = nullptr;
  // The pages again, to be written.
  char* k_target = nullptr;
  char* v_target = nullptr;
  uint16_t* k_scale_target = nullptr;
  uint16_t* v_scale_target = nullptr;
};

// Rows that are staged in shared memory: a unit's queries, then the new key and value.
constexpr int kMostStagedRows = kHeads + 2;
template <int D>
constexpr int kStagedStride = D + 8;  // elements: rows apart by a bank group
template <int D>
constexpr int kStagedBytes = kMostStagedRows* kStagedStride<D> * 2;

// As unpack_pair() of packed_pairs.cuh, in other instructions.
template <typename T>
__device__ __forceinline__ float2 pair_of(uint32_t word) {
  const uint16_t low = static_cast<uint16_t>(word);
  const uint16_t high = static_cast<uint16_t>(word >> 16);
  return {to_float(*reinterpret_cast<const T*>(&low)), to_float(*reinterpret_cast<const T*>(&high))};
}

// Elements d and d + 1 (d even) of a row to be rotated, x cos + y sin with a sign: loads first, so that several are on
// their way. Every product is rounded, as ops.h says.
template <typename T>
struct PairToRotate {
  uint32_t own;
  uint32_t other;
  float cosines[2];
  float sines[2];
  bool is_rotated;
  bool is_first;  // of a pair (a, b) a, of style kHalves

  __device__ __forceinline__ void load(const FusedArgs& args, const T* row, const float* table, int d, bool rotates) {
    const int half = args.rotary_half;
    is_rotated = rotates && d < 2 * half;
    is_first = d < half;
    const int partner = !is_rotated || args.is_interleaved ? d : is_first ? d + half : d - half;
    const int angle = !is_rotated ? 0 : args.is_interleaved ? d / 2 : is_first ? d : d - half;
    const int next_angle = args.is_interleaved ? angle : angle + 1;
    own = *reinterpret_cast<const uint32_t*>(row + d);
    other = *reinterpret_cast<const uint32_t*>(row + partner);
    cosines[0] = table[angle];
    cosines[1] = table[next_angle];
    sines[0] = table[half + angle];
    sines[1] = table[half + next_angle];
  }
  __device__ __forceinline__ uint32_t rotated(bool is_interleaved) const {
    const float2 x = pair_of<T>(own);
    const float2 loaded = pair_of<T>(other);
    const float2 y = is_interleaved ? float2{loaded.y, loaded.x} : loaded;
    const float signs[2] = {is_interleaved || is_first ? -1.0f : 1.0f, is_interleaved || !is_first ? 1.0f : -1.0f};
    const uint32_t pair = pack_pair<T>(__fadd_rn(__fmul_rn(x.x, cosines[0]), signs[0] * __fmul_rn(y.x, sines[0])),
                                       __fadd_rn(__fmul_rn(x.y, cosines[1]), signs[1] * __fmul_rn(y.y, sines[1])));
    return is_rotated ? pair : own;
  }
};

// NumThreads threads fill the rows of a unit: its heads' queries, and the new key and value where they are wanted.
// Elements behind head_dim are zeros.
struct StagedUnit {
  int token;
  int first_head;
  int num_heads;
  int kv_head;
  bool has_new_row;
};
template <typename T, int D, int NumThreads>
__device__ __forceinline__ void stage_rows(const FusedArgs& args, T* staged, const StagedUnit& unit, int thread) {
  constexpr int kAtOnce = 2;  // a thread has most often no more
  const float* const table = args.rope_table + unit.token * args.rope_stride;
  const T* const q = static_cast<const T*>(args.q) + unit.token * args.q_token_stride;
  const T* const k =
      static_cast<const T*>(args.new_k) + unit.token * args.new_k_token_stride + unit.kv_head * args.new_k_head_stride;
  const T* const v =
      static_cast<const T*>(args.new_v) + unit.token * args.new_v_token_stride + unit.kv_head * args.new_v_head_stride;
  const int num_pairs = (unit.num_heads + (unit.has_new_row ? 2 : 0)) * (D / 2);
  for (int first = thread; first < num_pairs; first += kAtOnce * NumThreads) {
    PairToRotate<T> pairs[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int i = first + n * NumThreads;
      const int row = i / (D / 2);
      const int d = i % (D / 2) * 2;
      const T* const source = row < unit.num_heads    ? q + (unit.first_head + row) * args.q_head_stride
                              : row == unit.num_heads ? k
                                                      : v;
      if (i < num_pairs && d < args.head_dim) pairs[n].load(args, source, table, d, row <= unit.num_heads);
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int i = first + n * NumThreads;
      const int row = i / (D / 2);
      const int d = i % (D / 2) * 2;
      if (i >= num_pairs) break;
      *reinterpret_cast<uint32_t*>(staged + row * kStagedStride<D> + d) =
          d < args.head_dim ? pairs[n].rotated(args.is_interleaved) : 0;
    }
  }
}

// The new key's and value's rows as the cache holds them, over the lanes of a warp: pairs lane, lane + 32 .. of
// elements.
template <typename T, typename C, int D>
struct NewRow {
  static constexpr bool kHasCodes = kIsCode<C>;
  using Codes = std::conditional_t<std::is_same_v<C, I8>, I8Codes, F8Codes>;
  static constexpr int kPairs = D / 64;
  uint32_t k[kPairs];
  uint32_t v[kPairs];
  uint16_t k_scale;  // bf16
  uint16_t v_scale;

  __device__ __forceinline__ void take(const T* staged_k, int lane) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      k[j] = *reinterpret_cast<const uint32_t*>(staged_k + 2 * (lane + 32 * j));
      v[j] = *reinterpret_cast<const uint32_t*>(staged_k + kStagedStride<D> + 2 * (lane + 32 * j));
    }
    if constexpr (kHasCodes) {
      k_scale = encode(k);
      v_scale = encode(v);
    }
  }
  __device__ __forceinline__ static uint16_t encode(uint32_t (&pairs)[kPairs]) {
    float largest = 0;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const float2 x = pair_of<T>(pairs[j]);
      largest = larger<Codes>(larger<Codes>(largest, x.x), x.y);
    }
#pragma unroll
    for (int other = 16; other > 0; other /= 2) {
      largest = larger<Codes>(largest, __shfl_xor_sync(0xffffffffu, largest, other));
    }
    const float scale = scale_of<Codes>(largest);
    const float inverse = 1.0f / scale;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const float2 x = pair_of<T>(pairs[j]);
      pairs[j] = Codes::pair(x.x * inverse, x.y * inverse);
    }
    return static_cast<uint16_t>(__float_as_uint(scale) >> 16);
  }

  __device__ __forceinline__ static void store(char* target, uint32_t pair) {
    if constexpr (kHasCodes) {
      *reinterpret_cast<uint16_t*>(target) = static_cast<uint16_t>(pair);
    } else {
      *reinterpret_cast<uint32_t*>(target) = pair;
    }
  }

  // Into the token's slot.
  __device__ __forceinline__ void write_to_page(const FusedArgs& args, int64_t slot, int kv_head, int lane) const {
    const int64_t page = slot >> args.page_shift;
    const int64_t row = slot & ((int64_t{1} << args.page_shift) - 1);
    const int64_t offset = page * args.page_bytes + kv_head * args.head_bytes + row * args.row_bytes;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int d = 2 * (lane + 32 * j);
      if (d >= args.head_dim) continue;
      const int byte = kHasCodes ? d : 2 * d;
      store(args.k_target + offset + byte, k[j]);
      store(args.v_target + offset + byte, v[j]);
    }
    if constexpr (kHasCodes) {
      const int64_t scale = page * args.scale_page_stride + (int64_t{kv_head} << args.page_shift) + row;
      if (lane == 0) args.k_scale_target[scale] = k_scale;
      if (lane == 1) args.v_scale_target[scale] = v_scale;
    }
  }

  // Into row `row` of a step's keys and values in the ring, swizzled as Loader does it.
  template <typename S>
  __device__ __forceinline__ void put(const FusedArgs& args, char* stage, char* scales, int row, int lane) const {
    char* const tile = stage + row / kKeys * S::kTileBytes + row % kKeys * 128;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int d = 2 * (lane + 32 * j);
      if (d >= args.head_dim) continue;
      const int byte = kHasCodes ? d : 2 * d;
      char* const target = tile + byte / 128 * kBoxBytes + ((byte / 16 ^ row) % 8) * 16 + byte % 16;
      store(target, k[j]);
      store(target + S::kTiles * S::kTileBytes, v[j]);
    }
    if constexpr (kHasCodes) {
      uint16_t* const step_scales = reinterpret_cast<uint16_t*>(scales);
      if (lane == 0) step_scales[row] = k_scale;
      if (lane == 1) step_scales[S::kStepKeys + row] = v_scale;
    }
  }
};

}  // namespace quire::cuda::decode
