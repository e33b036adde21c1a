// Decode attention: one query a sequence, KV split into chunks (FlashDecoding), straight from the pages.
//
// A unit of work is a chunk of a sequence and a KV head. As many blocks as multiprocessors run; each of their warps
// works by itself through units a fixed number apart. A warp takes 16 keys a step. Asynchronous copies bring pages into
// the warp's own ring in shared memory, several steps ahead and over the ends of units, so that memory never waits for
// arithmetic. All query heads of a KV head (up to 8) are the 8 columns of one tensor core product, so K and V are read
// once:
//   scores: Sᵀ (16 keys × 8 heads) = K (16 keys × d) · Qᵀ;  sums: Oᵀ (d × 8 heads) += Vᵀ (d × 16 keys) · Pᵀ
// Where there are few units, the eight warps of a block share one, an eighth of the chunk each.
//
// The limit is the reading of KV: 2 · head_dim elements a key and KV head. Softmax in float, base 2; P is rounded to
// the dtype of the products: the cache's, or f16 where the cache is e4m3, whose numbers f16 holds exactly; their scales
// multiply scores and weights. Eighths of a chunk are summed apart and merged in ascending order, and so are chunks,
// by a kernel of its own or, where warps share units, by those that end last: a query's bits do not depend on the
// batch, on page size or on who computes what. Equals the loop of reference_attention.cc.
#include <algorithm>
#include <bit>
#include <type_traits>

#include "ops/cuda/attention.h"
#include "ops/cuda/cuda_support.h"
#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"

namespace quire::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kTeam = 8;                // warps that share a unit where there are few, and shares of a chunk
constexpr int kKeys = 16;               // a step
constexpr int kHeads = 8;               // columns of a product: at most so many query heads a KV head
constexpr int kBoxBytes = kKeys * 128;  // 128 bytes of each key, in 16-byte parts that are swizzled
constexpr int kRingBytes = 24 * 1024;   // a warp: twice what covers the latency of memory at full speed
constexpr float kLog2e = 1.4426950408889634f;
// Weights times scales of V are f16: times 256, those of usual models lie far from its smallest numbers.
constexpr float kValueBoost = 256.0f;
constexpr float kLargestF16 = 65504.0f;

struct F8 {};  // the cache holds e4m3

struct Args {
  const void* q;
  int64_t q_token_stride;
  int64_t q_head_stride;
  void* out;
  int64_t out_token_stride;
  int64_t out_head_stride;
  const char* k;
  const char* v;
  int64_t page_bytes;  // between pages, and between heads
  int64_t head_bytes;
  const uint16_t* k_scales;  // bf16, of an e4m3 cache
  const uint16_t* v_scales;
  int64_t scale_page_stride;
  int page_shift;  // log2 of the page size
  int num_kv_heads;
  int group_size;  // query heads a KV head
  int num_heads;
  const DecodeItem* items;
  int num_units;
  bool is_shared;  // all warps of a block a unit
  const int32_t* page_table;
  int64_t page_table_stride;
  float scale;  // times log2(e), unless there is a soft cap
  float soft_cap;
  int window;
  float* partial_sums;
  float* partial_stats;
  int32_t* counters;
};

template <typename C, int D>
struct Shape {
  static constexpr bool kIsF8 = std::is_same_v<C, F8>;
  static constexpr int kRowBytes = D * (kIsF8 ? 1 : 2);
  static constexpr int kBoxes = kRowBytes / 128;       // of K, and as many of V
  static constexpr int kRowsAtOnce = 512 / kRowBytes;  // that a warp copies with one instruction
  static constexpr int kTileBytes = kBoxes * kBoxBytes;
  static constexpr int kTiles = kIsF8 ? 2 : 1;  // a step
  static constexpr int kStepKeys = kTiles * kKeys;
  static constexpr int kStageBytes = 2 * kTiles * kTileBytes;  // K of all tiles, then V
  static constexpr int kStages = kRingBytes / kStageBytes;
  static constexpr int kScaleBytes = kIsF8 ? 2 * kStepKeys * 2 : 0;  // of K, then of V
  static constexpr int kSharedBytes = kWarps * (kRingBytes + kStages * kScaleBytes);
};

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The keys that one warp takes of a unit.
struct Unit {
  int sequence;
  int head;    // KV head
  int length;  // keys of the sequence
  int begin;   // keys [begin, end), in steps at multiples of their size
  int end;
  int first_step;
  int num_steps;
  bool is_given;
};

template <int StepKeys>
__device__ __forceinline__ Unit make_unit(const Args& args, const DecodeItem& item, int head, int share) {
  const int first_key = args.window > 0 ? max(0, item.length - args.window) : 0;
  int begin = item.chunk * item.chunk_size;
  int end = begin + item.chunk_size;
  if (args.is_shared) {
    begin += share * (item.chunk_size / kTeam);
    end = begin + item.chunk_size / kTeam;
  }
  begin = max(begin, first_key);
  end = max(begin, min(end, item.length));
  const int first_step = begin / StepKeys;
  return {.sequence = item.sequence,
          .head = head,
          .length = item.length,
          .begin = begin,
          .end = end,
          .first_step = first_step,
          .num_steps = end > begin ? (end + StepKeys - 1) / StepKeys - first_step : 0,
          .is_given = item.num_chunks > 0};
}

// One warp's running state: thread (g, t) has heads 2t and 2t + 1.
template <int D>
struct State {
  float sums[D / 16][4];  // d and its partner (d_of), of both heads
  float largest[2];       // of the warp, base 2
  float weight[2];        // of the thread's own keys

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[j][i] = 0;
    }
    largest[0] = largest[1] = -INFINITY;
    weight[0] = weight[1] = 0;
  }
};

// The d that sums[j][2 half + h] stand for.
template <typename C>
__device__ __forceinline__ int d_of(int g, int j, int half) {
  return Shape<C, 128>::kIsF8 ? 16 * j + 2 * g + half : 16 * j + g + 8 * half;
}

// into = into and then `other`. A NaN among the scores spoils sums and weights, not the maximum, which may stay -inf.
template <int D>
__device__ __forceinline__ void merge(State<D>& into, const State<D>& other) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float largest = fmaxf(into.largest[h], other.largest[h]);
    const float mine = into.largest[h] == -INFINITY ? 0.0f : exp2_fast(into.largest[h] - largest);
    const float theirs = other.largest[h] == -INFINITY ? 0.0f : exp2_fast(other.largest[h] - largest);
    into.largest[h] = largest;
    into.weight[h] = into.weight[h] * mine + other.weight[h] * theirs;
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
      into.sums[j][h] = into.sums[j][h] * mine + other.sums[j][h] * theirs;
      into.sums[j][h + 2] = into.sums[j][h + 2] * mine + other.sums[j][h + 2] * theirs;
    }
  }
}

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes that are read once, past the first cache; zeros where they are not wanted.
__device__ __forceinline__ void copy_16(uint32_t target, const void* source, bool is_wanted = true) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(is_wanted ? 16 : 0)
               : "memory");
}

// Asks for one step after another of the warp's units. All lanes.
template <typename C, int D>
struct Loader {
  using S = Shape<C, D>;
  const Args& args;
  uint32_t ring;    // shared memory, with the lane's place in a tile
  uint32_t column;  // swizzled, of the lane's first row
  uint32_t scales;
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
    return i < args.num_units ? args.items[i / args.num_kv_heads] : none;
  }
  __device__ __forceinline__ int page_of(const Unit& u, int tile) const {
    const int key = u.first_step * S::kStepKeys + tile * kKeys;
    return key < u.end ? args.page_table[u.sequence * args.page_table_stride + (key >> args.page_shift)] : 0;
  }
  __device__ __forceinline__ void make_next() {
    next = make_unit<S::kStepKeys>(args, ahead, (index + index_stride) % args.num_kv_heads, share);
    next_pages = next.is_given ? page_of(next, lane) : 0;
    is_next_made = true;
  }
  __device__ __forceinline__ void start() {
    const DecodeItem item = item_of(index);
    unit = make_unit<S::kStepKeys>(args, item, index % args.num_kv_heads, share);
    known_page = unit.is_given ? page_of(unit, lane) : 0;
    ahead = item_of(index + index_stride);
    is_next_made = false;
  }
  template <bool IsPartial>
  __device__ __forceinline__ void copy_tile(uint32_t target, const char* source, int begin, int end) const {
    constexpr int R = S::kRowsAtOnce;
#pragma unroll
    for (int i = 0; i < kKeys / R; ++i) {
      const int key = R * i + lane / (32 / R);
      copy_16(target + i * R * 128 + (column ^ static_cast<uint32_t>(R * i % 8 * 16)), source + i * 512,
              !IsPartial || (begin <= key && key < end));
    }
  }
  // One group of copies, empty where all is asked for.
  __device__ __forceinline__ void issue() {
    while (unit.is_given && step == unit.num_steps) {
      if (!is_next_made) make_next();
      index += index_stride;
      unit = next;
      known_page = next_pages;
      step = 0;
      ahead = item_of(index + index_stride);
      is_next_made = false;
    }
    if (unit.is_given) {
      if (step > 0) {
        if (!is_next_made) make_next();  // its item has come meanwhile
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
        const int64_t offset = page * args.page_bytes + unit.head * args.head_bytes + row * S::kRowBytes + lane * 16;
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
        if constexpr (S::kIsF8) {
          if (lane < 4) {
            const uint16_t* source = (lane < 2 ? args.k_scales : args.v_scales) + page * args.scale_page_stride +
                                     (unit.head << args.page_shift) + row + lane % 2 * 8;
            copy_16(scales + static_cast<uint32_t>(stage * S::kScaleBytes + lane / 2 * S::kStepKeys * 2 +
                                                   tile * kKeys * 2 + lane % 2 * 16),
                    source);
          }
        }
      }
      ++step;
      stage = stage + 1 == S::kStages ? 0 : stage + 1;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
};

__device__ __forceinline__ float scale_at(const char* scales, int i) {
  return __uint_as_float(static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(scales)[i]) << 16);
}

// What other warps have stored: from the L2 cache.
template <int N>
__device__ __forceinline__ Vector<float, N> load_of_others(const float* source) {
  Vector<float, N> x;
  if constexpr (N == 4) {
    const float4 loaded = __ldcg(reinterpret_cast<const float4*>(source));
    x = {loaded.x, loaded.y, loaded.z, loaded.w};
  } else {
    static_assert(N == 2);
    const float2 loaded = __ldcg(reinterpret_cast<const float2*>(source));
    x = {loaded.x, loaded.y};
  }
  return x;
}

// One head's chunks, in ascending order. A lane has D / 32 elements of d, and the factor of one chunk.
template <typename T, int D>
__device__ __forceinline__ void merge_chunks(const Args& args, const DecodeItem& item, int head, int lane, bool is_f8) {
  constexpr int kOwn = D / 32;
  const int64_t slot = int64_t{item.sequence} * kMaxDecodeChunks * args.num_heads + head;
  float2 stats = {-INFINITY, 0.0f};
  if (lane < item.num_chunks) {
    stats = __ldcg(reinterpret_cast<const float2*>(args.partial_stats) + slot + int64_t{lane} * args.num_heads);
  }
  const float largest = warp_max(stats.x);
  const float own_factor = stats.x == -INFINITY ? 0.0f : exp2_fast(stats.x - largest);
  float weight = 0;
  float sums[kOwn] = {};
  const float* source = args.partial_sums + slot * D + lane * kOwn;
  constexpr int kAtOnce = 8;
  for (int first = 0; first < item.num_chunks; first += kAtOnce) {
    Vector<float, kOwn> parts[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < item.num_chunks) {
        parts[i] = load_of_others<kOwn>(source + (first + i) * int64_t{args.num_heads} * D);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= item.num_chunks) break;
      const float factor = __shfl_sync(0xffffffffu, own_factor, first + i);
      weight += __shfl_sync(0xffffffffu, stats.y, first + i) * factor;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) sums[j] += parts[i].v[j] * factor;
    }
  }
  T* out = static_cast<T*>(args.out) + item.token * args.out_token_stride + head * args.out_head_stride + lane * kOwn;
  const float factor = weight == 0 ? 0.0f : (is_f8 ? 1.0f / kValueBoost : 1.0f) / weight;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) out[j] = from_float<T>(sums[j] * factor);
}

// T is the dtype of q and out; products are of T, or of f16 where C is F8, else C is T.
template <typename T, typename C, int D>
__global__ void __launch_bounds__(kThreads, 1) decode_kernel(Args args) {
  using S = Shape<C, D>;
  using P = std::conditional_t<S::kIsF8, f16, T>;
  extern __shared__ __align__(128) char rings[];
  __shared__ int num_done_of_team[kWarps / kTeam];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  char* const ring = rings + warp * kRingBytes;
  char* const scales = rings + kWarps * kRingBytes + warp * S::kStages * S::kScaleBytes;
  let_next_start();

  // Neighbouring units, heads of one chunk, run at the same time on different multiprocessors.
  const int num_blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  const int first_unit = block + num_blocks * (args.is_shared ? warp / kTeam : warp);
  const int unit_stride = num_blocks * (args.is_shared ? kWarps / kTeam : kWarps);
  const int share = warp % kTeam;
  const auto wait_for_team = [&] {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + warp / kTeam), "n"(32 * kTeam) : "memory");
  };
  const int copied_row = lane / (32 / S::kRowsAtOnce);
  const int copied_part = lane % (32 / S::kRowsAtOnce);
  Loader<C, D> loader{
      .args = args,
      .ring = shared_address(ring) + static_cast<uint32_t>(copied_part / 8 * kBoxBytes + copied_row * 128),
      .column = static_cast<uint32_t>((copied_part % 8 ^ copied_row) * 16),
      .scales = shared_address(scales),
      .lane = lane,
      .share = share,
      .index = first_unit,
      .index_stride = unit_stride};
  loader.start();
  for (int s = 0; s < S::kStages; ++s) loader.issue();
  if (!loader.has_waited) {
    wait_for_previous();
    loader.has_waited = true;
  }

  // Where lanes find the rows of their matrices: of K, keys lane % 16, 8 elements (16 of e4m3) from lane / 16 on; of V,
  // keys lane % 8 + lane / 16 * 8, from lane / 8 % 2 on.
  const uint32_t ring_address = shared_address(ring);
  const uint32_t k_row = static_cast<uint32_t>(lane % 16 * 128);
  const uint32_t k_column = static_cast<uint32_t>(((lane / 16) ^ (lane % 8)) * 16);
  const uint32_t v_row = static_cast<uint32_t>((lane % 8 + lane / 16 * 8) * 128);
  const uint32_t v_column = static_cast<uint32_t>(((lane / 8 % 2) ^ (lane % 8)) * 16);

  int stage = 0;
  for (int index = first_unit; index < args.num_units; index += unit_stride) {
    const DecodeItem item = args.items[index / args.num_kv_heads];
    if (item.num_chunks == 0) break;  // so are all that follow
    const Unit unit = make_unit<S::kStepKeys>(args, item, index % args.num_kv_heads, share);
    const int first_head = unit.head * args.group_size;

    // ---- Queries; columns beyond the group's heads are zeros
    uint32_t query[D / 8];
    float score_scale[2] = {args.scale, args.scale};
    const T* q = static_cast<const T*>(args.q) + item.token * args.q_token_stride +
                 (first_head + min(g, args.group_size - 1)) * args.q_head_stride;
    if constexpr (S::kIsF8) {
      // f16, brought to between 1 and 2 at most by a power of two.
      float values[D / 16][4];
      float largest = 0;
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        const uint2 loaded = g < args.group_size ? *reinterpret_cast<const uint2*>(q + 16 * i + 4 * t) : uint2{0, 0};
        const uint32_t words[2] = {loaded.x, loaded.y};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint16_t bits = static_cast<uint16_t>(words[j / 2] >> (16 * (j % 2)));
          values[i][j] = to_float(*reinterpret_cast<const T*>(&bits));
          largest = fmaxf(largest, fabsf(values[i][j]));
        }
      }
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 2u), 252u);
      const float up = __uint_as_float(exponent << 23);
      const float down = __uint_as_float((254u - exponent) << 23);
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        query[2 * i] = pack_pair<f16>(values[i][0] * down, values[i][1] * down);
        query[2 * i + 1] = pack_pair<f16>(values[i][2] * down, values[i][3] * down);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) score_scale[h] *= __shfl_sync(0xffffffffu, up, 4 * (2 * t + h));
    } else {
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        const bool is_head = g < args.group_size;
        query[2 * i] = is_head ? *reinterpret_cast<const uint32_t*>(q + 16 * i + 2 * t) : 0u;
        query[2 * i + 1] = is_head ? *reinterpret_cast<const uint32_t*>(q + 16 * i + 2 * t + 8) : 0u;
      }
    }

    // ---- Keys
    State<D> all;
    State<D> some;  // of the warp's share of the chunk, or of one after another
    all.clear();
    some.clear();
    const int steps_of_share = item.chunk_size / (kTeam * S::kStepKeys);
    int steps_left = steps_of_share - unit.first_step % steps_of_share;
    for (int step = 0; step < unit.num_steps; ++step) {
      asm volatile("cp.async.wait_group %0;" ::"n"(S::kStages - 1) : "memory");
      __syncwarp();
      const uint32_t k_address = ring_address + static_cast<uint32_t>(stage * S::kStageBytes);
      const uint32_t v_address = k_address + S::kTiles * S::kTileBytes;
      const char* const step_scales = scales + stage * S::kScaleBytes;
      stage = stage + 1 == S::kStages ? 0 : stage + 1;
      const int first_key = (unit.first_step + step) * S::kStepKeys;
      const int begin = unit.begin - first_key;
      const int end = unit.end - first_key;

      float scores[S::kTiles][4];
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
        const uint32_t address = k_address + tile * S::kTileBytes + k_row;
        float some_scores[4] = {0, 0, 0, 0};
        float more_scores[4] = {0, 0, 0, 0};
        if constexpr (S::kIsF8) {
#pragma unroll
          for (int i = 0; i < D / 32; ++i) {
            uint32_t x[4];
            load_matrices<false>(x, address + (k_column ^ static_cast<uint32_t>(32 * i)));
            mma<f16>(
                some_scores,
                {unpack_f8_pair(x[0]), unpack_f8_pair(x[1]), unpack_f8_pair(x[0] >> 16), unpack_f8_pair(x[1] >> 16)},
                query[4 * i], query[4 * i + 1]);
            mma<f16>(
                more_scores,
                {unpack_f8_pair(x[2]), unpack_f8_pair(x[3]), unpack_f8_pair(x[2] >> 16), unpack_f8_pair(x[3] >> 16)},
                query[4 * i + 2], query[4 * i + 3]);
          }
        } else {
#pragma unroll
          for (int i = 0; i < D / 16; ++i) {
            uint32_t x[4];
            load_matrices<false>(x, address + i / 4 * kBoxBytes + (k_column ^ static_cast<uint32_t>(32 * (i % 4))));
            mma<T>(i % 2 == 0 ? some_scores : more_scores, x, query[2 * i], query[2 * i + 1]);
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[tile][i] = some_scores[i] + more_scores[i];
      }

      // ---- Scores become weights, and sums so far fit the new maximum
      float new_largest[2] = {some.largest[0], some.largest[1]};
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = tile * kKeys + g + i / 2 * 8;
          float score = scores[tile][i] * score_scale[i % 2];
          if constexpr (S::kIsF8) score *= scale_at(step_scales, key);
          if (args.soft_cap > 0) score = args.soft_cap * tanhf(score) * kLog2e;
          scores[tile][i] = begin <= key && key < end ? score : -INFINITY;
          new_largest[i % 2] = fmaxf(new_largest[i % 2], scores[tile][i]);
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) {
          new_largest[h] = fmaxf(new_largest[h], __shfl_xor_sync(0xffffffffu, new_largest[h], offset));
        }
        const float correction = new_largest[h] == -INFINITY ? 0.0f : exp2_fast(some.largest[h] - new_largest[h]);
        some.largest[h] = new_largest[h];
        some.weight[h] *= correction;
#pragma unroll
        for (int j = 0; j < D / 16; ++j) {
          some.sums[j][h] *= correction;
          some.sums[j][h + 2] *= correction;
        }
      }
      uint32_t weights[S::kTiles][2];
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = tile * kKeys + g + i / 2 * 8;
          const bool is_seen = begin <= key && key < end;
          float weight = is_seen ? exp2_fast(scores[tile][i] - new_largest[i % 2]) : 0.0f;
          some.weight[i % 2] += weight;
          if constexpr (S::kIsF8) {
            // NaN stays NaN.
            const float scaled = weight * (scale_at(step_scales, S::kStepKeys + key) * kValueBoost);
            weight = is_seen ? (scaled > kLargestF16 ? kLargestF16 : scaled) : 0.0f;
          }
          scores[tile][i] = weight;
        }
        weights[tile][0] = transpose_8x8(pack_pair<P>(scores[tile][0], scores[tile][1]));
        weights[tile][1] = transpose_8x8(pack_pair<P>(scores[tile][2], scores[tile][3]));
      }
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
        const uint32_t address = v_address + tile * S::kTileBytes + v_row;
        if constexpr (S::kIsF8) {
#pragma unroll
          for (int i = 0; i < D / 32; ++i) {
            uint32_t x[4];
            load_matrices<true>(x, address + (v_column ^ static_cast<uint32_t>(32 * i)));
#pragma unroll
            for (int part = 0; part < 2; ++part) {
              // Bytes: d 2g and 2g + 1 of key 2t, then of key 2t + 1.
              const uint32_t low = __byte_perm(x[part], 0, 0x3120);
              const uint32_t high = __byte_perm(x[part + 2], 0, 0x3120);
              mma<f16>(
                  some.sums[2 * i + part],
                  {unpack_f8_pair(low), unpack_f8_pair(low >> 16), unpack_f8_pair(high), unpack_f8_pair(high >> 16)},
                  weights[tile][0], weights[tile][1]);
            }
          }
        } else {
#pragma unroll
          for (int j = 0; j < D / 16; ++j) {
            uint32_t x[4];
            load_matrices<true>(x, address + j / 4 * kBoxBytes + (v_column ^ static_cast<uint32_t>(32 * (j % 4))));
            mma<T>(some.sums[j], x, weights[tile][0], weights[tile][1]);
          }
        }
      }
      __syncwarp();  // everybody has read the stage
      loader.issue();

      if (--steps_left == 0 || step + 1 == unit.num_steps) {
        merge<D>(all, some);
        some.clear();
        steps_left = steps_of_share;
      }
    }

    // ---- Warps that share a unit: the first adds the others' sums
    if (args.is_shared) {
      float* const shared = reinterpret_cast<float*>(ring);
      if (share > 0) {
#pragma unroll
        for (int j = 0; j < D / 16; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) shared[(4 * j + i) * 32 + lane] = all.sums[j][i];
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          shared[(D / 4 + h) * 32 + lane] = all.largest[h];
          shared[(D / 4 + 2 + h) * 32 + lane] = all.weight[h];
        }
      }
      wait_for_team();
      for (int other = 1; other < kTeam && share == 0; ++other) {
        const float* theirs = reinterpret_cast<const float*>(ring + other * kRingBytes);
#pragma unroll
        for (int j = 0; j < D / 16; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) some.sums[j][i] = theirs[(4 * j + i) * 32 + lane];
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          some.largest[h] = theirs[(D / 4 + h) * 32 + lane];
          some.weight[h] = theirs[(D / 4 + 2 + h) * 32 + lane];
        }
        merge<D>(all, some);
      }
    }

    // ---- The unit's result
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) {
        all.weight[h] += __shfl_xor_sync(0xffffffffu, all.weight[h], offset);
      }
    }
    constexpr float kFactor = S::kIsF8 ? 1.0f / kValueBoost : 1.0f;
    if (item.num_chunks == 1) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (2 * t + h >= args.group_size || (args.is_shared && share > 0)) continue;
        T* out = static_cast<T*>(args.out) + item.token * args.out_token_stride +
                 (first_head + 2 * t + h) * args.out_head_stride;
        const float factor = all.weight[h] == 0 ? 0.0f : kFactor / all.weight[h];
#pragma unroll
        for (int j = 0; j < D / 16; ++j) {
          out[d_of<C>(g, j, 0)] = from_float<T>(all.sums[j][h] * factor);
          out[d_of<C>(g, j, 1)] = from_float<T>(all.sums[j][h + 2] * factor);
        }
      }
      continue;
    }

    // ---- Of several chunks: all are added in ascending order, where few units run by the team that ends last
    const int64_t first_slot = int64_t{item.sequence} * kMaxDecodeChunks;
    if (!args.is_shared || share == 0) {
      const int num_all_chunks = (item.length + item.chunk_size - 1) / item.chunk_size;
      const int chunk_slot = item.chunk - (num_all_chunks - item.num_chunks);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (2 * t + h >= args.group_size) continue;
        const int64_t slot = (first_slot + chunk_slot) * args.num_heads + first_head + 2 * t + h;
        float* target = args.partial_sums + slot * D;
#pragma unroll
        for (int j = 0; j < D / 16; ++j) {
          target[d_of<C>(g, j, 0)] = all.sums[j][h];
          target[d_of<C>(g, j, 1)] = all.sums[j][h + 2];
        }
        if (g == 0) reinterpret_cast<float2*>(args.partial_stats)[slot] = {all.largest[h], all.weight[h]};
      }
    }
    if (!args.is_shared) continue;  // merge_kernel follows: a fence here would wait for the copies on their way too
    __syncwarp();
    int32_t num_done = 0;
    int32_t* const counter = args.counters + int64_t{item.sequence} * args.num_kv_heads + unit.head;
    if (lane == 0 && share == 0) {
      // Releases what the warp has stored before the barrier, and acquires what others released.
      asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(num_done) : "l"(counter) : "memory");
      if (num_done == item.num_chunks - 1) *counter = 0;
      num_done_of_team[warp / kTeam] = num_done;
    }
    wait_for_team();
    if (num_done_of_team[warp / kTeam] != item.num_chunks - 1) continue;
    for (int head = share; head < args.group_size; head += kTeam) {
      merge_chunks<T, D>(args, item, first_head + head, lane, S::kIsF8);
    }
  }
}

// The same for all sequences of several chunks. Grid: x items, y heads by eight.
template <typename T, int D>
__global__ void __launch_bounds__(kThreads) merge_kernel(Args args, bool is_f8) {
  let_next_start();
  const DecodeItem item = args.items[blockIdx.x];
  wait_for_previous();
  const int head = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int num_all_chunks = item.num_chunks > 1 ? (item.length + item.chunk_size - 1) / item.chunk_size : 0;
  if (item.num_chunks < 2 || item.chunk != num_all_chunks - item.num_chunks || head >= args.num_heads) return;
  merge_chunks<T, D>(args, item, head, static_cast<int>(threadIdx.x) % 32, is_f8);
}

int num_multiprocessors() {
  int device = 0;
  int count = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

template <typename T, typename C, int D>
void launch(const AttentionCall& call, Args args) {
  args.num_units = call.plan.num_decode_items * call.kv.num_kv_heads;
  if (args.num_units == 0) return;
  const int num_blocks = num_multiprocessors();
  args.is_shared = args.num_units <= num_blocks * (kWarps / kTeam);
  const auto kernel = decode_kernel<T, C, D>;
  constexpr int kSharedBytes = Shape<C, D>::kSharedBytes;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  launch_dependent_with_memory(call.stream, kernel, dim3(static_cast<unsigned>(std::min(num_blocks, args.num_units))),
                               dim3(kThreads), kSharedBytes, args);
  if (args.is_shared || !call.plan.has_several_chunks) return;
  launch_dependent(
      call.stream, merge_kernel<T, D>,
      dim3(static_cast<unsigned>(call.plan.num_decode_items), static_cast<unsigned>(ceil_div(args.num_heads, kWarps))),
      dim3(kThreads), args, std::is_same_v<C, F8>);
}

template <typename T>
void launch_any(const AttentionCall& call, const Args& args) {
  if (call.kv.dtype == DType::kF8E4M3) return launch<T, F8, 128>(call, args);
  if (call.kv.head_dim == 128) return launch<T, T, 128>(call, args);
  return launch<T, T, 64>(call, args);
}

}  // namespace

bool accepts_decode_split_kv(const AttentionCall& call) {
  const PagedKv& kv = call.kv;
  const int64_t element_bytes = dtype_bytes(kv.dtype);
  const auto is_wide = [&](int64_t stride) { return stride * element_bytes % 16 == 0; };
  if (call.part != StepPart::kDecode || (call.q.dtype() != DType::kBF16 && call.q.dtype() != DType::kF16)) return false;
  if (kv.dtype == DType::kF8E4M3) {
    if (kv.head_dim != 128 || !is_aligned(kv.k_scales, 16) || !is_aligned(kv.v_scales, 16) ||
        kv.scale_page_stride % 8 != 0) {
      return false;
    }
  } else if (kv.dtype != call.q.dtype() || (kv.head_dim != 128 && kv.head_dim != 64)) {
    return false;
  }
  return call.q.size(1) / kv.num_kv_heads <= kHeads && kv.page_size >= kKeys &&
         std::has_single_bit(static_cast<unsigned>(kv.page_size)) && kv.token_stride == kv.head_dim &&
         is_aligned(kv.k, 16) && is_aligned(kv.v, 16) && is_wide(kv.page_stride) && is_wide(kv.head_stride) &&
         is_aligned(call.q.raw_data(), 16) && call.q.stride(0) % 8 == 0 && call.q.stride(1) % 8 == 0;
}

void attention_decode_split_kv(const AttentionCall& call) {
  const AttentionBatch& batch = call.batch;
  const CudaAttentionPlan& plan = call.plan;
  const AttentionGeometry& geometry = plan.geometry;
  const int64_t num_slots = int64_t{std::max(1, geometry.max_num_sequences)} * kMaxDecodeChunks * geometry.num_heads;
  float* partials = static_cast<float*>(plan.partials.data());
  const float soft_cap = call.params.soft_cap;
  const Args args{.q = call.q.raw_data(),
                  .q_token_stride = call.q.stride(0),
                  .q_head_stride = call.q.stride(1),
                  .out = call.out.raw_data(),
                  .out_token_stride = call.out.stride(0),
                  .out_head_stride = call.out.stride(1),
                  .k = static_cast<const char*>(call.kv.k),
                  .v = static_cast<const char*>(call.kv.v),
                  .page_bytes = call.kv.page_stride * dtype_bytes(call.kv.dtype),
                  .head_bytes = call.kv.head_stride * dtype_bytes(call.kv.dtype),
                  .k_scales = static_cast<const uint16_t*>(call.kv.k_scales),
                  .v_scales = static_cast<const uint16_t*>(call.kv.v_scales),
                  .scale_page_stride = call.kv.scale_page_stride,
                  .page_shift = std::countr_zero(static_cast<unsigned>(call.kv.page_size)),
                  .num_kv_heads = call.kv.num_kv_heads,
                  .group_size = static_cast<int>(call.q.size(1)) / call.kv.num_kv_heads,
                  .num_heads = static_cast<int>(call.q.size(1)),
                  .items = static_cast<const DecodeItem*>(plan.decode_items.data()),
                  .num_units = 0,
                  .is_shared = false,
                  .page_table = batch.page_table.data<int32_t>(),
                  .page_table_stride = batch.page_table.stride(0),
                  .scale = soft_cap > 0 ? call.params.scale / soft_cap : call.params.scale * kLog2e,
                  .soft_cap = soft_cap,
                  .window = call.params.window,
                  .partial_sums = partials,
                  .partial_stats = partials + num_slots * geometry.head_dim,
                  .counters = static_cast<int32_t*>(plan.counters.data())};
  if (call.q.dtype() == DType::kBF16) return launch_any<bf16>(call, args);
  return launch_any<f16>(call, args);
}

}  // namespace quire::cuda
