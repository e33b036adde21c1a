// Prefill attention's producers: they bring queries, keys and values into shared memory: see attention_prefill.cu.
// Included by it alone.
#pragma once

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

  // The page of the lane's box, if that holds a key which is seen: 16 keys, or 8 and one slab where a box is not wide.
  __device__ __forceinline__ int key_of(const Walk<S>& walk) const {
    return walk.j * S::kKeys + (args.is_wide ? lane * kBoxKeys : lane / S::kSlabs * kGroupKeys);
  }
  __device__ __forceinline__ int page_of(const Walk<S>& walk) const {
    const int key = key_of(walk);
    const int num_keys = args.is_wide ? kBoxKeys : kGroupKeys;
    if (key >= (walk.j + 1) * S::kKeys || key + num_keys <= walk.tile.first_key || key > walk.tile.last_key) return -1;
    return args.page_table[walk.tile.sequence * args.page_table_stride + key / args.page_size];
  }
  __device__ __forceinline__ void load(const Walk<S>& walk, char* target, uint64_t* barrier, int page) const {
    const bool is_wanted = page >= 0;
    const unsigned wanted = __ballot_sync(0xffffffffu, is_wanted);
    const int box_bytes = args.is_wide ? 2 * S::kGroupBytes : kBlockBytes;
    if (lane == 0) barrier_arrive_expecting(barrier, static_cast<uint32_t>(__popc(wanted) * box_bytes));
    __syncwarp();
    if (!is_wanted) return;
    const int row = key_of(walk) % args.page_size;
    const int kv_head = walk.tile.head * args.num_kv_heads / args.num_heads;
    if (args.is_wide) {
      copy_box(target + lane * 2 * S::kGroupBytes, map,
               Coordinates5{0, 0, 0, kv_head * (args.page_size / kGroupKeys) + row / kGroupKeys, page}, barrier);
    } else {
      copy_box(target + lane * kBlockBytes, map, Coordinates4{lane % S::kSlabs * 64, row, kv_head, page}, barrier);
    }
  }
  __device__ __forceinline__ void bring(const Walk<S>& walk, int page) {
    Control<S>& control = shared.control();
    const int stage = walk.step % kStages;
    const uint32_t parity = static_cast<uint32_t>(walk.step / kStages % 2) ^ 1u;
    if constexpr (IsK) {
      barrier_wait(&control.k_empty[stage], parity);
      load(walk, shared.k(stage), &control.k_full[stage], page);
    } else {
      barrier_wait(&control.v_empty[stage], parity);
      const int first_valid = max(0, walk.tile.first_key - walk.j * S::kKeys);
      const int end_valid = min(S::kKeys, walk.tile.last_key + 1 - walk.j * S::kKeys);
      if (first_valid == 0 && end_valid == S::kKeys) {
        load(walk, shared.v(stage), &control.v_full[stage], page);
        return;
      }
      // Slots outside may hold NaN, which times a weight of zero is NaN.
      load(walk, shared.v(stage), &control.v_loaded, page);
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

// Codes of K or of V become f16, which holds them exactly, a key a thread; the next step's are asked for before. Scales
// are for the consumers.
template <typename S, bool IsK>
struct CodeProducer {
  static constexpr int kStages = IsK ? S::kKStages : S::kVStages;
  const Args& args;
  const Shared<S>& shared;
  const CUtensorMap* map;
  int thread;
  Walk<S> walk;
  uint16_t scale = 0;  // of the thread's key in the step to come; bf16
  bool is_seen = false;
  int box_page = 0;  // of that step, of the lane's box
  int key_page = 0;  // of the thread's key

  __device__ __forceinline__ char* codes() const { return IsK ? shared.k_codes() : shared.v_codes(); }
  __device__ __forceinline__ uint64_t* have_come() const {
    return IsK ? &shared.control().k_codes : &shared.control().v_codes;
  }
  __device__ __forceinline__ int page_of(int key) const {
    if (key > walk.tile.last_key) return 0;
    return args.page_table[walk.tile.sequence * args.page_table_stride + key / args.page_size];
  }
  __device__ __forceinline__ void find_pages(int j) {
    box_page = page_of(j * S::kKeys + thread % 8 * kBoxKeys);
    key_page = page_of(j * S::kKeys + thread);
  }
  __device__ __forceinline__ void ask() {
    if (walk.is_over) return;
    if (walk.is_first()) find_pages(walk.j);
    const int kv_head = walk.tile.head * args.num_kv_heads / args.num_heads;
    if (thread < 32) {
      const int key = walk.j * S::kKeys + thread * kBoxKeys;
      const bool is_wanted = thread < S::kKeys / kBoxKeys && walk.sees_box(key);
      const unsigned wanted = __ballot_sync(0xffffffffu, is_wanted);
      if (thread == 0) {
        barrier_arrive_expecting(have_come(), static_cast<uint32_t>(__popc(wanted) * kBoxKeys * kRowBytes));
      }
      __syncwarp();
      if (is_wanted) {
        copy_box(codes() + thread * kBoxKeys * kRowBytes, map, Coordinates4{0, key % args.page_size, kv_head, box_page},
                 have_come());
      }
    }
    const int key = walk.j * S::kKeys + thread;
    is_seen = walk.sees(key);
    scale = 0;
    if (is_seen) {
      const uint16_t* scales = IsK ? args.k_scales : args.v_scales;
      scale = scales[key_page * args.scale_page_stride + kv_head * args.page_size + key % args.page_size];
    }
    find_pages(walk.j + 1);  // of this unit, if it has one more
  }
  __device__ __forceinline__ void convert() {
    Control<S>& control = shared.control();
    const int step = walk.step;
    const int stage = step % kStages;
    barrier_wait(have_come(), static_cast<uint32_t>(step % 2));
    uint4 row[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      row[i] = *reinterpret_cast<const uint4*>(codes() + thread * kRowBytes + (i ^ (thread % 8)) * 16);
    }
    if (!is_seen) {  // slots outside may hold NaN
#pragma unroll
      for (int i = 0; i < 8; ++i) row[i] = {0, 0, 0, 0};
    }
    const float key_scale = __uint_as_float(static_cast<uint32_t>(scale) << 16);
    asm volatile("bar.sync 7, 128;" ::: "memory");  // everybody has read the codes
    walk.next(args);
    ask();
    barrier_wait(IsK ? &control.k_empty[stage] : &control.v_empty[stage],
                 static_cast<uint32_t>(step / kStages % 2) ^ 1u);
    char* const target = (IsK ? shared.k(stage) : shared.v(stage)) + thread / kGroupKeys * S::kGroupBytes +
                         thread % kGroupKeys * kRowBytes;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t words[4] = {row[i].x, row[i].y, row[i].z, row[i].w};
      uint32_t pairs[8];
#pragma unroll
      for (int p = 0; p < 8; ++p) pairs[p] = unpack_f8_pair(words[p / 2] >> (p % 2 * 16));
      char* const slab = target + i / 4 * kBlockBytes;
      const int first = i % 4 * 2;
      *reinterpret_cast<uint4*>(slab + (first ^ (thread % 8)) * 16) = {pairs[0], pairs[1], pairs[2], pairs[3]};
      *reinterpret_cast<uint4*>(slab + ((first + 1) ^ (thread % 8)) * 16) = {pairs[4], pairs[5], pairs[6], pairs[7]};
    }
    float* const scales = IsK ? shared.k_scales(stage) : shared.v_scales(stage);
    scales[thread % 8 / 2 * S::kScaleStride + thread / 8 * 2 + thread % 2] =
        IsK ? key_scale : fminf(key_scale * kValueBoost, kLargestF16);
    fence_async_proxy();
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(IsK ? &control.k_full[stage] : &control.v_full[stage]);
  }
};

// Where the cache is e4m3: a whole warpgroup.
template <typename S>
__device__ __forceinline__ void produce_from_f8(const Args& args, const Shared<S>& shared, const Maps& maps,
                                                int thread) {
  QueryProducer<S> queries{.shared = shared, .maps = maps, .lane = thread % 32};
  Walk<S> first;
  first.take_unit(args);
  CodeProducer<S, true> k{.args = args, .shared = shared, .map = maps.k, .thread = thread, .walk = first};
  CodeProducer<S, false> v{.args = args, .shared = shared, .map = maps.v, .thread = thread, .walk = first};
  k.ask();
  v.ask();
  while (!v.walk.is_over) {
    if (!k.walk.is_over) {
      if (thread < 32 && k.walk.is_first()) queries.ask(k.walk.tile);
      k.convert();
    }
    if (v.walk.step + 1 == k.walk.step && !k.walk.is_over) continue;  // values follow one step behind
    v.convert();
  }
  if (thread < 32) queries.say_over();
}

}  // namespace quire::cuda::prefill
