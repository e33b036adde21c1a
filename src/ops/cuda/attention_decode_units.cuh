// Decode attention's units of work, and how their pages come into shared memory: see attention_decode.cu. Included by
// it and by attention_decode_state.cuh alone.
#pragma once

#include <type_traits>

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/attention_args.cuh"
#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/launch.cuh"

namespace quire::cuda::decode {

constexpr int kKeys = 16;                  // a tile: they stand in one page
constexpr int kHeads = 8;                  // columns of a product: query heads of one KV head
constexpr int kBoxBytes = kKeys * 128;     // 128 bytes of each key, in 16-byte parts that are swizzled
constexpr int kAllRingBytes = 192 * 1024;  // twice what covers the latency of memory at full speed
constexpr int kMostSharedUnits = 2;        // of one block

struct F8 {};  // the cache holds e4m3, or int8: codes with scales
struct I8 {};
template <typename C>
constexpr bool kIsCode = std::is_same_v<C, F8> || std::is_same_v<C, I8>;

struct Args : AttentionArgs {
  using AttentionArgs::AttentionArgs;

  const char* k;
  const char* v;
  int64_t page_bytes;  // between pages, and between heads
  int64_t head_bytes;
  int row_bytes;  // of a token and head
  int head_dim;
  int page_shift;      // log2 of the page size
  int group_size;      // query heads a KV head
  int parts_of_group;  // of eight query heads, or fewer
  int num_parts;       // of all KV heads
  const DecodeItem* items;
  int num_units;   // items times parts
  bool is_shared;  // all warps of a block a unit
  float* partial_sums;
  float* partial_stats;
  int32_t* counters;
};

// Rows are of D elements; unless IsExact, a head_dim below is filled with zeros.
template <typename C, int D, bool IsExact>
struct Shape {
  static constexpr bool kIsExact = IsExact;
  static constexpr int kWarps = D <= 128 ? 8 : 4;  // registers
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRingBytes = kAllRingBytes / kWarps;
  static constexpr bool kHasCodes = kIsCode<C>;
  static constexpr int kRowBytes = D * (kHasCodes ? 1 : 2);
  static constexpr int kBoxes = kRowBytes / 128;       // of K, and as many of V
  static constexpr int kRowsAtOnce = 512 / kRowBytes;  // that a warp copies with one instruction
  static constexpr int kTileBytes = kBoxes * kBoxBytes;
  static constexpr int kTiles = kHasCodes ? 2 : 1;  // a step
  static constexpr int kStepKeys = kTiles * kKeys;
  static constexpr int kStageBytes = 2 * kTiles * kTileBytes;  // K of all tiles, then V
  static constexpr int kStages = kRingBytes / kStageBytes;
  static constexpr int kScaleBytes = kHasCodes ? 2 * kStepKeys * 2 : 0;  // of K, then of V
  static constexpr int kStateFloats = (D / 4 + 4) * 32;                  // of a warp
  static constexpr int kExchangeOffset = kWarps * (kRingBytes + kStages * kScaleBytes);
  static constexpr int kSharedBytes = kExchangeOffset + (kWarps - 1) * kStateFloats * 4;
  static_assert(kSharedBytes + 384 <= 227 * 1024);
};

template <typename S>
__device__ __forceinline__ int row_bytes_of(const Args& args) {
  return S::kIsExact ? S::kRowBytes : args.row_bytes;
}

__device__ __forceinline__ int num_all_chunks(const DecodeItem& item) {
  return (item.length + item.chunk_size - 1) >> (31 - __clz(item.chunk_size));  // which is a power of two
}

// The keys that one warp takes of a unit.
struct Unit {
  int sequence;
  int kv_head;
  int length;  // keys of the sequence
  int begin;   // keys [begin, end), in steps at multiples of their size
  int end;
  int first_step;
  int num_steps;
  bool is_given;
};

template <typename S>
__device__ __forceinline__ Unit make_unit(const Args& args, const DecodeItem& item, int part, int share) {
  const int first_key = args.window > 0 ? max(0, item.length - args.window) : 0;
  int begin = item.chunk * item.chunk_size;
  int end = begin + item.chunk_size;
  if (args.is_shared) {
    begin += share * (item.chunk_size / S::kWarps);
    end = begin + item.chunk_size / S::kWarps;
  }
  begin = max(begin, first_key);
  end = max(begin, min(end, item.length));
  const int first_step = begin / S::kStepKeys;
  return {.sequence = item.sequence,
          .kv_head = args.parts_of_group == 1 ? part : part / args.parts_of_group,
          .length = item.length,
          .begin = begin,
          .end = end,
          .first_step = first_step,
          .num_steps = end > begin ? (end + S::kStepKeys - 1) / S::kStepKeys - first_step : 0,
          .is_given = item.num_chunks > 0};
}

// Asks for one step after another of the warp's units, of which there is one where IsAlone. All lanes.
template <typename S, bool IsAlone>
struct Loader {
  const Args& args;
  uint32_t ring;    // shared memory, with the lane's place in a tile
  uint32_t column;  // swizzled, of the lane's first row
  uint32_t scales;
  int source;      // of the lane in a tile of the cache
  int num_wanted;  // bytes: none behind a row's end
  int lane;
  int share;
  int index;         // of the unit
  int index_stride;  // to the warp's next
  Unit unit;
  int step = 0;  // of the unit, next
  int stage = 0;
  int known_page;    // lane i: of the unit's tile i, or 32, 64 .. more
  DecodeItem ahead;  // of the unit behind
  Unit next;
  int next_pages;
  bool is_next_made;
  bool has_waited = false;  // for the kernel before

  __device__ __forceinline__ DecodeItem item_of(int i) const {
    DecodeItem none = {};
    return i < args.num_units ? args.items[i / args.num_parts] : none;
  }
  __device__ __forceinline__ int page_of(const Unit& u, int tile) const {
    const int key = u.first_step * S::kStepKeys + tile * kKeys;
    return key < u.end ? args.page_table[u.sequence * args.page_table_stride + (key >> args.page_shift)] : 0;
  }
  __device__ __forceinline__ void make_next() {
    next = make_unit<S>(args, ahead, (index + index_stride) % args.num_parts, share);
    next_pages = next.is_given ? page_of(next, lane) : 0;
    is_next_made = true;
  }
  __device__ __forceinline__ void start(const DecodeItem& item, int part) {
    unit = make_unit<S>(args, item, part, share);
    known_page = unit.is_given ? page_of(unit, lane) : 0;
    if constexpr (!IsAlone) ahead = item_of(index + index_stride);
    is_next_made = false;
  }
  template <bool IsPartial>
  __device__ __forceinline__ void copy_tile(uint32_t target, const char* source, int begin, int end) const {
    constexpr int R = S::kRowsAtOnce;
#pragma unroll
    for (int i = 0; i < kKeys / R; ++i) {
      const int key = R * i + lane / (32 / R);
      copy_16(target + i * R * 128 + (column ^ static_cast<uint32_t>(R * i % 8 * 16)),
              source + i * R * row_bytes_of<S>(args),
              !IsPartial || (begin <= key && key < end) ? (S::kIsExact ? 16 : num_wanted) : 0);
    }
  }
  // One group of copies, empty where all is asked for.
  __device__ __forceinline__ void issue() {
    if constexpr (!IsAlone) {
      while (unit.is_given && step == unit.num_steps) {
        if (!is_next_made) make_next();
        index += index_stride;
        unit = next;
        known_page = next_pages;
        step = 0;
        ahead = item_of(index + index_stride);
        is_next_made = false;
      }
    }
    if (unit.is_given && (!IsAlone || step < unit.num_steps)) {
      if (step > 0) {
        if constexpr (!IsAlone) {
          if (!is_next_made) make_next();  // its item has come meanwhile
        }
        if (step * S::kTiles % 32 == 0) known_page = page_of(unit, step * S::kTiles + lane);
      }
      const int first_key = (unit.first_step + step) * S::kStepKeys;
      if (!has_waited && first_key + S::kStepKeys >= unit.length) {  // its token is written by the kernel before
        wait_for_previous();
        has_waited = true;
      }
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
        const int64_t page = __shfl_sync(0xffffffffu, known_page, (step * S::kTiles + tile) % 32);
        const int key = first_key + tile * kKeys;
        const int row = key & ((1 << args.page_shift) - 1);
        const int64_t offset =
            page * args.page_bytes + unit.kv_head * args.head_bytes + row * row_bytes_of<S>(args) + source;
        const uint32_t target = ring + static_cast<uint32_t>(stage * S::kStageBytes + tile * S::kTileBytes);
        const int begin = unit.begin - key;
        const int end = unit.end - key;
        if (begin <= 0 && end >= kKeys) {
          copy_tile<false>(target, args.k + offset, begin, end);
          copy_tile<false>(target + S::kTiles * S::kTileBytes, args.v + offset, begin, end);
        } else {
          // Slots outside may hold NaN, which times a weight of zero is NaN.
          copy_tile<true>(target, args.k + offset, begin, end);
          copy_tile<true>(target + S::kTiles * S::kTileBytes, args.v + offset, begin, end);
        }
        if constexpr (S::kHasCodes) {
          if (lane < 4) {
            const uint16_t* source = (lane < 2 ? args.k_scales : args.v_scales) + page * args.scale_page_stride +
                                     (unit.kv_head << args.page_shift) + row + lane % 2 * 8;
            copy_16(scales + static_cast<uint32_t>(stage * S::kScaleBytes + lane / 2 * S::kStepKeys * 2 +
                                                   tile * kKeys * 2 + lane % 2 * 16),
                    source, begin < kKeys && end > 0 ? 16 : 0);
          }
        }
      }
      ++step;
      stage = stage + 1 == S::kStages ? 0 : stage + 1;
    }
    end_copy_group();
  }
};

}  // namespace quire::cuda::decode
