// The arithmetic of one token with weights of an integer format, a chunk of 256 k of a panel at a time: what
// linear_gemv_integer.cu and decoder_step_panels.cuh share. The former tells how it works.
#pragma once

#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/linear_skinny.cuh"
#include "ops/cuda/mma.cuh"

namespace quire::cuda::integer {

constexpr int kChunk = 256;  // k
constexpr int kGroups = 8;   // of 32, in a chunk

// Bytes of a chunk's scales.
constexpr int scale_bytes(ScaleKind kind) {
  if (kind == ScaleKind::kSuperBytes) return 64 + 256;
  if (kind == ScaleKind::kHalfAndZero) return kChunk / 128 * 48;
  return kGroups * (kind == ScaleKind::kHalfAndMin ? 64 : 32);
}

template <int Bits, ScaleKind Kind>
struct Chunk {
  static constexpr int kTiles = Bits == 4 ? 4 : 8;
  static constexpr int kCodeBytes = kTiles * kWeightTileBytes;
  static constexpr int kBytes = kCodeBytes + scale_bytes(Kind);
  static constexpr bool kHasMin = Kind == ScaleKind::kHalfAndMin || Kind == ScaleKind::kSuperBytes;
};

// One instruction, which the compiler makes two of where both constants are known.
__device__ __forceinline__ uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
  return y;
}

// Codes of 4 bits less an offset, as f16: nibbles p and p + 4 of the word are the pair of register p.
struct Offsets {
  __half2 low;   // 1024 + offset
  __half2 high;  // -(64 + offset), of its own
};
__device__ __forceinline__ Offsets offsets_of(uint32_t low, uint32_t high) {
  // The bits of 1024 + offset, and of -(64 + offset).
  const uint32_t low_bits = 0x64006400u + low * 0x00010001u;
  const uint32_t high_bits = 0xd400d400u + high * 0x00100010u;
  return {*reinterpret_cast<const __half2*>(&low_bits), *reinterpret_cast<const __half2*>(&high_bits)};
}
__device__ __forceinline__ void unpack(uint32_t (&a)[4], uint32_t word, const Offsets& offsets) {
#pragma unroll
  for (int p = 0; p < 4; p += 2) {
    // 0x6400 | code is 1024 + code, 0x6400 | code << 4 is 1024 + 16 code.
    const uint32_t low = and_or(word, 0x000f000fu, 0x64006400u);
    const uint32_t high = and_or(word, 0x00f000f0u, 0x64006400u);
    const __half2 first = __hsub2(*reinterpret_cast<const __half2*>(&low), offsets.low);
    const __half2 second = __hfma2(*reinterpret_cast<const __half2*>(&high), __float2half2_rn(0.0625f), offsets.high);
    a[p] = *reinterpret_cast<const uint32_t*>(&first);
    a[p + 1] = *reinterpret_cast<const uint32_t*>(&second);
    word >>= 8;
  }
}

// Inputs lie in the order of the tensor cores' operand: of 8 neighbours from `at` on a pair for each of the four lanes
// of a row, which have four pairs of 32 k. Pair i goes to [4 i] of this place.
__device__ __forceinline__ uint32_t* input_place(uint4* inputs, int at) {
  return reinterpret_cast<uint32_t*>(inputs + at / 32 * 4) + at % 32 / 8;
}

// Adds a chunk's products to the sums of rows g and g + 8, of which each of the four threads of a row has a part (of
// groups of 128 all of it). `here`: the chunk's codes and scales. `inputs`, `input_sums`: of all chunks.
template <int Bits, ScaleKind Kind>
__device__ __forceinline__ void take_chunk(float (&sums)[2], const char* here, const uint4* inputs,
                                           const float* input_sums, int chunk, int offset) {
  using S = Chunk<Bits, Kind>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  if constexpr (Kind == ScaleKind::kHalfAndZero) {
    // A sum for each tile, so that few products wait for one another.
    float product[S::kTiles][4] = {};
    float scales[2][2];
    Offsets zeros[2];
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      const char* block = here + S::kCodeBytes + group * 48;
      scales[group][0] = to_float(reinterpret_cast<const f16*>(block)[g]);
      scales[group][1] = to_float(reinterpret_cast<const f16*>(block)[g + 8]);
      const uint8_t* bytes = reinterpret_cast<const uint8_t*>(block + 32);
      zeros[group] = offsets_of(bytes[g], bytes[g + 8]);
    }
#pragma unroll
    for (int tile = 0; tile < S::kTiles; ++tile) {
      const int group = tile / 2;
      const uint4 loaded = *reinterpret_cast<const uint4*>(here + tile * kWeightTileBytes + 16 * lane);
      const uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // 32 k
        const uint4 x = inputs[(chunk * kGroups + 2 * tile + half) * 4 + t];
        uint32_t a[4];
        unpack(a, words[2 * half], zeros[group]);
        mma<f16>(product[tile], a, x.x, x.y);
        unpack(a, words[2 * half + 1], zeros[group]);
        mma<f16>(product[tile], a, x.z, x.w);
      }
    }
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      sums[0] += scales[group][0] * (product[2 * group][0] + product[2 * group + 1][0]);
      sums[1] += scales[group][1] * (product[2 * group][2] + product[2 * group + 1][2]);
    }
  } else {
    const Offsets offsets = offsets_of(static_cast<uint32_t>(offset), static_cast<uint32_t>(offset));
    // Of groups 2 t and 2 t + 1: [half of the rows][group]
    ScaleAndMin scales[2][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint8_t* block = reinterpret_cast<const uint8_t*>(here + S::kCodeBytes);
        if constexpr (Kind != ScaleKind::kSuperBytes) block += (2 * t + i) * scale_bytes(Kind) / kGroups;
        scales[half][i] = decode_scale<Kind>(load_raw_scale<Kind>(block, g + 8 * half, 2 * t + i));
      }
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const uint4 x = inputs[(chunk * kGroups + group) * 4 + t];
      constexpr int kGroupsOfTile = kGroups / S::kTiles;
      const uint4 loaded = *reinterpret_cast<const uint4*>(here + group / kGroupsOfTile * kWeightTileBytes + 16 * lane);
      const uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
      float product[4] = {};
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        uint32_t a[4];
        if constexpr (Bits == 4) {
          unpack(a, words[group % 2 * 2 + s], offsets);
        } else {
          unpack_8bit<f16>(a, words[2 * s], words[2 * s + 1], offset);
        }
        mma<f16>(product, a, s == 0 ? x.x : x.z, s == 0 ? x.y : x.w);
      }
      if (t == group / 2) {
        sums[0] += scales[0][group % 2].scale * product[0];
        sums[1] += scales[1][group % 2].scale * product[2];
      }
    }
    if constexpr (S::kHasMin) {
      const float2 group_sums = *reinterpret_cast<const float2*>(input_sums + chunk * kGroups + 2 * t);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums[half] += scales[half][0].min * group_sums.x + scales[half][1].min * group_sums.y;
      }
    }
  }
}

// A row's whole sum, to all four of its threads.
template <ScaleKind Kind>
__device__ __forceinline__ float whole_sum(float sum) {
  if constexpr (Kind != ScaleKind::kHalfAndZero) {  // where each thread has sums of its own
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  }
  return sum;
}

}  // namespace quire::cuda::integer
