// Prefill attention's producers: they bring queries, keys and values into shared memory: see attention_prefill.cu.
// Included by it alone.
#pragma once

#include "ops/cuda/attention_prefill_convert.cuh"
#include "ops/cuda/attention_prefill_tiles.cuh"

namespace quire::cuda::prefill {

struct Maps {
  const CUtensorMap* q;
  const CUtensorMap* k;
  const CUtensorMap* v;
};

// The queries of one tile after the other, with what the consumers must know of it. All lanes of one warp.
template <typename S>
struct QueryProducer {
  const Shared<S>& shared;
  const Maps& maps;
  int lane;
  int turn = 0;

  __device__ __forceinline__ Control<S>& wait_for_room(int stage) const {
    Control<S>& control = shared.control();
    barrier_wait(&control.q_empty[stage], static_cast<uint32_t>(turn / S::kQStages % 2) ^ 1u);
    return control;
  }
  __device__ __forceinline__ void ask(const Tile& tile) {
    const int stage = turn % S::kQStages;
    Control<S>& control = wait_for_room(stage);
    if (lane == 0) {
      control.tiles[stage] = tile;
      barrier_arrive_expecting(&control.q_full[stage], S::kQBytes);
    }
    __syncwarp();
    // Rows behind the sequence's last query are somebody else's: what becomes of them is not stored.
    if (lane < S::kSlabs) {
      copy_box(shared.q(stage) + lane * S::kQSlabBytes, maps.q, Coordinates4{lane * 64, tile.head, tile.first_token, 0},
               &control.q_full[stage]);
    }
    ++turn;
  }
  __device__ __forceinline__ void say_over() const {
    const int stage = turn % S::kQStages;
    Control<S>& control = wait_for_room(stage);
    if (lane == 0) {
      control.tiles[stage].num_rows = 0;
      barrier_arrive(&control.q_full[stage]);
    }
  }
};

// Keys, or values, of a block's steps: one warp, the copy engine does the rest.
template <typename S, bool IsK>
struct PageProducer {
  static constexpr int kStages = IsK ? S::kKStages : S::kVStages;
  const Args& args;
  const Shared<S>& shared;
  const CUtensorMap* map;
  int lane;
  uint32_t num_patches = 0;

  // The page of the lane's box, if that holds a key which is seen. Converted keys lie tile by tile.
  __device__ __forceinline__ int key_of(const Walk<S>& walk) const {
    return walk.j * S::kKeys + (args.box_keys > 0 ? lane * args.box_keys : lane / S::kSlabs * kGroupKeys);
  }
  __device__ __forceinline__ int page_of(const Walk<S>& walk) const {
    if constexpr (S::kHasScales) {
      return lane == 0 ? walk.tile.first_converted + walk.j * S::kKeys / kConvertedKeys : -1;
    }
    const int key = key_of(walk);
    const int num_keys = max(args.box_keys, kGroupKeys);
    if (key >= (walk.j + 1) * S::kKeys || key + num_keys <= walk.tile.first_key || key > walk.tile.last_key) return -1;
    return args.page_table[walk.tile.sequence * args.page_table_stride + key / args.page_size];
  }
  __device__ __forceinline__ void load(const Walk<S>& walk, char* target, float* scales, uint64_t* barrier,
                                       int page) const {
    const bool is_wanted = page >= 0;
    const unsigned wanted = __ballot_sync(0xffffffffu, is_wanted);
    const int box_bytes = args.box_keys > 0 ? args.box_keys / kGroupKeys * S::kGroupBytes : kBlockBytes;
    if (lane == 0) {
      barrier_arrive_expecting(barrier, static_cast<uint32_t>(__popc(wanted) * box_bytes + S::kScaleBytes));
    }
    __syncwarp();
    if (!is_wanted) return;
    const int row = key_of(walk) % args.page_size;
    const int kv_head = (walk.tile.head - args.first_head) / args.group_size;
    if (args.box_keys > 0) {
      copy_box(target + lane * box_bytes, map,
               Coordinates5{0, 0, 0, kv_head * (args.page_size / kGroupKeys) + row / kGroupKeys, page}, barrier);
    } else {
      copy_box(target + lane * kBlockBytes, map, Coordinates4{lane % S::kSlabs * 64, row, kv_head, page}, barrier);
    }
    if constexpr (S::kHasScales) {
      const float* source = args.converted_scales + converted_scales_at(page, kv_head, args, !IsK) +
                            row / S::kKeys * (S::kScaleBytes / 4);
      copy_bytes(scales, source, S::kScaleBytes, barrier);
    }
  }
  __device__ __forceinline__ void bring(const Walk<S>& walk, int page) {
    Control<S>& control = shared.control();
    const int stage = walk.step % kStages;
    const uint32_t parity = static_cast<uint32_t>(walk.step / kStages % 2) ^ 1u;
    if constexpr (IsK) {
      barrier_wait(&control.k_empty[stage], parity);
      load(walk, shared.k(stage), shared.k_scales(stage), &control.k_full[stage], page);
    } else {
      barrier_wait(&control.v_empty[stage], parity);
      const int first_valid = max(0, walk.tile.first_key - walk.j * S::kKeys);
      const int end_valid = min(S::kKeys, walk.tile.last_key + 1 - walk.j * S::kKeys);
      if (first_valid == 0 && end_valid == S::kKeys) {
        load(walk, shared.v(stage), shared.v_scales(stage), &control.v_full[stage], page);
        return;
      }
      // Slots outside may hold NaN, which times a weight of zero is NaN.
      load(walk, shared.v(stage), shared.v_scales(stage), &control.v_loaded, page);
      barrier_wait(&control.v_loaded, num_patches++ % 2);
      for (int r = 0; r < S::kKeys; ++r) {
        if (first_valid <= r && r < end_valid) continue;
        if (lane < S::kSlabs * 8) {
          *reinterpret_cast<uint4*>(shared.v(stage) + r / kGroupKeys * S::kGroupBytes + lane / 8 * kBlockBytes +
                                    r % kGroupKeys * kRowBytes + lane % 8 * 16) = uint4{0, 0, 0, 0};
        }
      }
      fence_async_proxy();
      __syncwarp();
      if (lane == 0) barrier_arrive(&control.v_full[stage]);
    }
  }
  // K's warp brings the queries too.
  __device__ __forceinline__ void run(const Maps& maps) {
    QueryProducer<S> queries{.shared = shared, .maps = maps, .lane = lane};
    Walk<S> walk;
    walk.take_unit(args);
    int page = page_of(walk);
    while (!walk.is_over) {
      if constexpr (IsK) {
        if (walk.is_first()) queries.ask(walk.tile);
      }
      const Walk<S> now = walk;
      const int now_page = page;
      walk.next(args);
      if (!walk.is_over) page = page_of(walk);  // comes while this step waits for room
      bring(now, now_page);
    }
    if constexpr (IsK) queries.say_over();
  }
};

}  // namespace quire::cuda::prefill
