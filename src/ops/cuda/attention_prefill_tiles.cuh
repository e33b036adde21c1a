// Prefill attention's work and its shared memory: see attention_prefill.cu. Included by its parts alone.
#pragma once

#include "ops/cuda/attention_args.cuh"
#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/mma.cuh"

namespace quire::cuda::prefill {

constexpr int kBoxKeys = 16;   // keys of one copy from a page, which holds a whole number of them
constexpr int kGroupKeys = 8;  // whose rows are one unit of the swizzle
constexpr int kConsumers = 2;
constexpr int kConsumerRows = 64;
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kLongKeys = 176;      // a tile where every query sees all keys, of which there are
constexpr int kLongLength = 12288;  // as many at least
constexpr int kRowBytes = 128;      // 64 elements: a swizzled row
constexpr int kBlockBytes = kGroupKeys * kRowBytes;

// What one D takes. Slabs are 64 of the D elements: rows of 128 bytes. Queries lie slab after slab; keys and values in
// groups of eight, which have a block of 1024 bytes for each slab, so that one copy brings whole rows.
template <int D, bool HasCodes, int Keys = D <= 128 ? 128 : 64>
struct Shape {
  static constexpr int kKeys = Keys;  // a tile
  static constexpr int kSlabs = D / 64;
  static constexpr int kGroupBytes = kSlabs * kBlockBytes;
  static constexpr bool kHasScales = HasCodes;
  static constexpr int kQStages = D == 256 || HasCodes || Keys > 128 ? 1 : 2;
  static constexpr int kKStages = HasCodes || Keys > 128 ? 2 : 3;
  static constexpr int kVStages = HasCodes && D <= 128 ? 3 : 2;
  static constexpr int kConsumerRegisters = Keys > 128 ? 240 : 232;  // a thread
  static constexpr int kProducerRegisters = Keys > 128 ? 24 : 40;
  static constexpr int kQSlabBytes = kPrefillTileRows * kRowBytes;
  static constexpr int kQBytes = kSlabs * kQSlabBytes;
  static constexpr int kTileBytes = kKeys / kGroupKeys * kGroupBytes;
  // Four lanes of a row of scores each find their keys' scales in a row.
  static constexpr int kScaleStride = kKeys / 4 + 4;
  static constexpr int kScaleBytes = HasCodes ? 4 * kScaleStride * 4 : 0;
  static constexpr int kKOffset = kQStages * kQBytes;
  static constexpr int kVOffset = kKOffset + kKStages * kTileBytes;
  static constexpr int kScaleOffset = kVOffset + kVStages * kTileBytes;
  static constexpr int kControlOffset = kScaleOffset + (kKStages + kVStages) * kScaleBytes;
};

struct Args : AttentionArgs {
  using AttentionArgs::AttentionArgs;

  int head_dim;
  int page_size;
  const PrefillItem* items;
  int group_size;  // query heads a KV head
  int first_head;  // query heads of this launch, of whole groups
  int num_unit_heads;
  int num_units;                  // items times those
  int box_keys;                   // of boxes that bring all slabs; 0: boxes are of eight keys and one slab
  const float* converted_scales;  // of a cache of codes: see attention_prefill_convert.cuh
};

// A unit of work: the queries of one item and head, and the keys that they see.
struct Tile {
  int sequence;
  int head;
  int first_token;     // row of q
  int num_rows;        // none: there are no more tiles
  int first_position;  // of the first query
  int first_key;       // the first that any query sees
  int last_key;
  int begin;  // tiles of keys
  int end;
  int first_converted;  // of a cache of codes: where tile 0 would lie
};

template <typename S>
struct Control {
  uint64_t q_full[S::kQStages];
  uint64_t q_empty[S::kQStages];
  uint64_t k_full[S::kKStages];
  uint64_t k_empty[S::kKStages];
  uint64_t v_full[S::kVStages];
  uint64_t v_empty[S::kVStages];
  uint64_t v_loaded;        // before rows that nobody may read are cleared
  Tile tiles[S::kQStages];  // of the queries
};

template <typename S>
constexpr int kSharedBytes = S::kControlOffset + static_cast<int>(sizeof(Control<S>));

template <typename S>
struct Shared {
  char* base;
  __device__ __forceinline__ char* q(int stage) const { return base + stage * S::kQBytes; }
  __device__ __forceinline__ char* k(int stage) const { return base + S::kKOffset + stage * S::kTileBytes; }
  __device__ __forceinline__ char* v(int stage) const { return base + S::kVOffset + stage * S::kTileBytes; }
  __device__ __forceinline__ float* k_scales(int stage) const {
    return reinterpret_cast<float*>(base + S::kScaleOffset + stage * S::kScaleBytes);
  }
  __device__ __forceinline__ float* v_scales(int stage) const { return k_scales(S::kKStages + stage); }
  __device__ __forceinline__ Control<S>& control() const {
    return *reinterpret_cast<Control<S>*>(base + S::kControlOffset);
  }
};

// A block's steps, one after the other: the tiles of keys of its units. Units come longest first; blocks take them back
// and forth, so that all get about the same.
template <typename S>
struct Walk {
  int round = 0;
  int step = 0;  // of all
  int j = 0;     // tile of keys
  bool is_over = false;
  Tile tile;

  __device__ __forceinline__ void take_unit(const Args& args) {
    const int num_blocks = static_cast<int>(gridDim.x);
    const int block = static_cast<int>(blockIdx.x);
    const int unit = round * num_blocks + (round % 2 == 0 ? block : num_blocks - 1 - block);
    is_over = unit >= args.num_units;
    if (is_over) return;
    const PrefillItem item = args.items[unit / args.num_unit_heads];
    tile.sequence = item.sequence;
    tile.head = args.first_head + unit % args.num_unit_heads;
    tile.first_token = item.first_token;
    tile.num_rows = item.num_rows;
    tile.first_position = item.first_position;
    tile.first_key = args.window > 0 ? max(0, tile.first_position - args.window + 1) : 0;
    tile.last_key = args.is_causal ? tile.first_position + tile.num_rows - 1 : item.length - 1;
    tile.begin = tile.first_key / S::kKeys;
    tile.end = tile.last_key / S::kKeys + 1;
    tile.first_converted = item.first_converted;
    j = tile.begin;
  }
  __device__ __forceinline__ void next(const Args& args) {
    ++step;
    if (++j < tile.end) return;
    ++round;
    take_unit(args);
  }
  __device__ __forceinline__ bool is_first() const { return j == tile.begin; }
};

}  // namespace quire::cuda::prefill
