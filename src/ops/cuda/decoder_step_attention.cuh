// Attention of one query over pages, inside the kernel of decoder_step.cuh, with the rotation in front of it and the
// write of the new key and value.
//
// A unit of work is a KV head and a chunk of keys; a block takes whole units, its 16 warps equal parts of the chunk's
// keys, 16 keys a step, straight from the pages into registers. Elements are taken in an order in which loads of 16
// bytes are operands of the tensor cores as they come (K) or after a byte permutation (V):
//   scores: S (heads × 8 keys) = Q (heads × d) · Kᵀ;  sums: Oᵀ (d × 8 heads) += Vᵀ (d × 16 keys) · Pᵀ
// The new key and value come from qkv, not from the page. Keys come from the L2 cache, into which they
// are brought while qkv is computed. Sums of warps are added in ascending order, and so are those of chunks, whose
// number depends on the length alone.
#pragma once

#include "ops/cuda/decoder_step_args.cuh"
#include "ops/cuda/mma.cuh"

namespace quire::cuda::step {

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Chunks of a sequence: one of at most 512 keys, else at most 16, in steps of 256 keys.
struct Chunks {
  int size;
  int count;
};
__device__ __forceinline__ Chunks chunks_of(int length) {
  constexpr int kBlockKeys = kStepKeys * kWarps;
  const int most = length <= 2 * kBlockKeys ? 1 : kMostChunks;
  const int size = (length + kBlockKeys * most - 1) / (kBlockKeys * most) * kBlockKeys;
  return {size, (length + size - 1) / size};
}

template <typename T, int D>
struct Attention {
  static constexpr int kPitch = D + 8;  // of a row in shared memory, elements
  static constexpr int kValueVectors = D / 64;

  const Args& args;
  const LayerArgs& layer;
  uint32_t epoch;
  char* shared;   // the new rows; later sums of warps
  float2* stats;  // [warp][head]: largest score, and weight
  int length;     // keys, with the new one
  int thread;

  struct Keys {
    uint4 k[2][D / 32];
    uint4 v[4][kValueVectors];
  };

  __device__ __forceinline__ int lane() const { return thread % 32; }
  __device__ __forceinline__ int warp() const { return thread / 32; }
  __device__ __forceinline__ int group_size() const { return args.num_heads / args.num_kv_heads; }

  // Of the 16 keys from `first` on, which stand in one page; only keys below the length.
  __device__ __forceinline__ int64_t offset_of(int first, int kv_head) const {
    const int64_t page = args.page_table[first >> args.page_shift];
    return page * args.page_bytes + kv_head * args.head_bytes + (first & ((1 << args.page_shift) - 1)) * int64_t{D * 2};
  }
  // Brings the warp's keys into the L2 cache.
  __device__ __forceinline__ void prefetch() const {
    const Chunks chunks = chunks_of(length);
    const int unit = static_cast<int>(blockIdx.x);
    if (unit >= chunks.count * args.num_kv_heads) return;
    const int share = chunks.size / kWarps;
    const int begin = unit / args.num_kv_heads * chunks.size + warp() * share;
    for (int key = begin; key < min(begin + share, length); key += kStepKeys) {
      const int64_t offset = offset_of(key, unit % args.num_kv_heads) + lane() * 128;
      if (lane() < kStepKeys * D * 2 / 128) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(layer.k + offset));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(layer.v + offset));
      }
    }
  }
  __device__ __forceinline__ void load_keys(Keys& keys, int first, int64_t offset) const {
    const int g = lane() / 4;
    const int t = lane() % 4;
    const int count = length - 1 - first;  // in the page already
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = 8 * half + g;
#pragma unroll
      for (int i = 0; i < D / 32; ++i) {
        keys.k[half][i] = uint4{0, 0, 0, 0};
        if (key < count) keys.k[half][i] = load_once(layer.k + offset + key * D * 2 + 64 * i + 16 * t);
      }
    }
  }
  __device__ __forceinline__ void load_values(Keys& keys, int first, int64_t offset) const {
    const int g = lane() / 4;
    const int t = lane() % 4;
    const int count = length - 1 - first;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = 2 * t + i % 2 + i / 2 * 8;
#pragma unroll
      for (int j = 0; j < kValueVectors; ++j) {
        keys.v[i][j] = uint4{0, 0, 0, 0};
        if (key < count) keys.v[i][j] = load_once(layer.v + offset + key * D * 2 + 128 * j + 16 * g);
      }
    }
  }
  __device__ __forceinline__ const char* row_of(int row) const {
    return shared + row * kPitch * 2;
  }
  // Where the new token is one of the 16: its key, or value.
  __device__ __forceinline__ void add_new_key(Keys& keys, int first) const {
    const int place = length - 1 - first;
    if (place < 0 || place >= kStepKeys) return;
    const char* const k = row_of(group_size());
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (8 * half + lane() / 4 == place) {
#pragma unroll
        for (int i = 0; i < D / 32; ++i) {
          keys.k[half][i] = *reinterpret_cast<const uint4*>(k + 64 * i + 16 * (lane() % 4));
        }
      }
    }
  }
  __device__ __forceinline__ void add_new_value(Keys& keys, int first) const {
    const int place = length - 1 - first;
    if (place < 0 || place >= kStepKeys) return;
    const char* const v = row_of(group_size() + 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (2 * (lane() % 4) + i % 2 + i / 2 * 8 == place) {
#pragma unroll
        for (int j = 0; j < kValueVectors; ++j) {
          keys.v[i][j] = *reinterpret_cast<const uint4*>(v + 128 * j + 16 * (lane() / 4));
        }
      }
    }
  }

  // The queries of the KV head's group, rotated, then the new key and value, into shared memory; and the latter two
  // into their page, by whoever has the last chunk.
  __device__ __forceinline__ void take_new_rows(int kv_head, bool is_last) const {
    const int group = group_size();
    const int64_t slot = args.slots[0];
    const int64_t page_size = int64_t{1} << args.page_shift;
    for (int i = thread; i < (group + 2) * (D / 2); i += kThreads) {
      const int row = i / (D / 2);
      const int pair = i % (D / 2);
      const bool is_v = row > group;
      const int first = args.is_interleaved || is_v ? 2 * pair : pair;
      const int second = args.is_interleaved || is_v ? first + 1 : pair + D / 2;
      const float cosine = args.rope_table[pair];
      const float sine = args.rope_table[D / 2 + pair];
      const int head = row < group ? kv_head * group + row : args.num_heads + kv_head + (is_v ? args.num_kv_heads : 0);
      const T* const source = static_cast<const T*>(args.exchange.qkv) + head * D;
      float a = load_of_others(source + first);
      float b = load_of_others(source + second);
      if (!is_v) {
        const float rotated = __fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine));
        b = __fadd_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine));
        a = rotated;
      }
      T* const target = reinterpret_cast<T*>(shared) + row * kPitch;
      target[first] = from_float<T>(a);
      target[second] = from_float<T>(b);
      if (is_last && row >= group && slot >= 0) {
        T* const page = reinterpret_cast<T*>((is_v ? layer.v : layer.k) + (slot >> args.page_shift) * args.page_bytes +
                                             kv_head * args.head_bytes) +
                        (slot & (page_size - 1)) * D;
        page[first] = from_float<T>(a);
        page[second] = from_float<T>(b);
      }
    }
  }

  // One step of 16 keys: thread (g, t) has the scores of head g, and sums of heads 2t and 2t + 1.
  // Values are asked for when keys are done with: registers are few.
  __device__ __forceinline__ void take_keys(int first, int64_t offset, float (&sums)[D / 16][4], float& largest,
                                            float& weight) const {
    Keys keys;
    load_keys(keys, first, offset);
    add_new_key(keys, first);
    const int g = lane() / 4;
    const int t = lane() % 4;
    float scores[2][4] = {};
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      uint4 q;  // heads that are not there have some other row's numbers, and nobody reads what becomes of them
      asm volatile(
          "ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
          : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w)
          : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row_of(min(g, group_size() - 1)) + 64 * i + 16 * t))));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        mma<T>(scores[half], {q.x, 0u, q.y, 0u}, keys.k[half][i].x, keys.k[half][i].y);
        mma<T>(scores[half], {q.z, 0u, q.w, 0u}, keys.k[half][i].z, keys.k[half][i].w);
      }
    }
    load_values(keys, first, offset);
    float new_largest = largest;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first + i / 2 * 8 + 2 * t + i % 2;
      float& score = scores[i / 2][i % 2];
      score = key < length ? score * args.scale : -INFINITY;
      new_largest = fmaxf(new_largest, score);
    }
    new_largest = fmaxf(new_largest, __shfl_xor_sync(0xffffffffu, new_largest, 1));
    new_largest = fmaxf(new_largest, __shfl_xor_sync(0xffffffffu, new_largest, 2));
    const float correction = new_largest == -INFINITY ? 0.0f : exp2_fast(largest - new_largest);
    largest = new_largest;
    weight *= correction;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first + i / 2 * 8 + 2 * t + i % 2;
      float& score = scores[i / 2][i % 2];
      score = key < length ? exp2_fast(score - new_largest) : 0.0f;
      weight += score;
    }
    const float corrections[2] = {__shfl_sync(0xffffffffu, correction, 8 * t),
                                  __shfl_sync(0xffffffffu, correction, 8 * t + 4)};
    add_new_value(keys, first);
    const uint32_t low = pack_pair<T>(scores[0][0], scores[0][1]);
    const uint32_t high = pack_pair<T>(scores[1][0], scores[1][1]);
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[j][i] *= corrections[i % 2];
      // Rows g and g + 8 of the product: see d_of.
      uint32_t pairs[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int vector = kValueVectors == 2 ? half : 0;
        const int element = kValueVectors == 2 ? j : 4 * half + j;
        const auto word = [&](int i) {
          const uint4& v = keys.v[i][vector];
          return element / 2 == 0 ? v.x : element / 2 == 1 ? v.y : element / 2 == 2 ? v.z : v.w;
        };
        const uint32_t selector = element % 2 == 0 ? 0x5410u : 0x7632u;
        pairs[half] = __byte_perm(word(0), word(1), selector);
        pairs[2 + half] = __byte_perm(word(2), word(3), selector);
      }
      mma<T>(sums[j], pairs, low, high);
    }
  }
  static __device__ __forceinline__ int d_of(int g, int j, int half) {
    return kValueVectors == 2 ? 64 * half + 8 * g + j : 8 * g + 4 * half + j;
  }

  // Blocks that tell that attention is done, and whether this one has any work.
  __device__ __forceinline__ int num_telling() const {
    return min(static_cast<int>(gridDim.x), chunks_of(length).count == 1 ? args.num_kv_heads : args.num_heads);
  }
  __device__ __forceinline__ bool has_work() const {
    const int count = chunks_of(length).count;
    return static_cast<int>(blockIdx.x) <
           (count == 1 ? args.num_kv_heads : max(count * args.num_kv_heads, args.num_heads));
  }
  // The block's units, and then its heads of the merge. wait() is called before qkv is read, once.
  template <typename Wait>
  __device__ __forceinline__ void run(const Wait& wait) const {
    const Chunks chunks = chunks_of(length);
    const int num_units = chunks.count * args.num_kv_heads;
    const int num_blocks = static_cast<int>(gridDim.x);
    const int block = static_cast<int>(blockIdx.x);
    for (int unit = block; unit < num_units; unit += num_blocks) {
      take_unit(unit % args.num_kv_heads, unit / args.num_kv_heads, chunks, [&] {
        if (unit == block) wait();
      });
    }
    if (block >= num_units) wait();
    if (chunks.count == 1) return;
    for (int head = block; head < args.num_heads; head += num_blocks) merge_chunks(head, chunks.count);
  }

  template <typename Wait>
  __device__ __forceinline__ void take_unit(int kv_head, int chunk, const Chunks& chunks, const Wait& wait) const {
    const int g = lane() / 4;
    const int t = lane() % 4;
    const int group = group_size();
    const int share = chunks.size / kWarps;
    const int begin = chunk * chunks.size + warp() * share;
    const int end = min(begin + share, length);
    int64_t offset = begin < length ? offset_of(begin, kv_head) : 0;
    wait();
    sync_warps();  // all warps are done with the inputs that lay in shared memory, or with the unit before
    take_new_rows(kv_head, chunk == chunks.count - 1);
    sync_warps();

    float sums[D / 16][4] = {};
    float largest = -INFINITY;  // of head g
    float weight = 0;
#pragma unroll 1
    for (int first = begin; first < end; first += kStepKeys) {
      take_keys(first, offset, sums, largest, weight);
      if (first + kStepKeys < end) offset = offset_of(first + kStepKeys, kv_head);
    }
    weight += __shfl_xor_sync(0xffffffffu, weight, 1);
    weight += __shfl_xor_sync(0xffffffffu, weight, 2);
    if (t == 0) stats[warp() * kMostGroup + g] = {largest, weight};

    float* const parts = reinterpret_cast<float*>(shared);  // [warp][head][d]
    for (int first_head = 0; first_head < group; first_head += kHeadsAtOnce) {
      sync_warps();  // the new rows, or the sums of the heads before, have been read
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int head = 2 * t + h - first_head;
        if (head < 0 || head >= kHeadsAtOnce) continue;
#pragma unroll
        for (int j = 0; j < D / 16; ++j) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            parts[(warp() * kHeadsAtOnce + head) * D + d_of(g, j, half)] = sums[j][h + 2 * half];
          }
        }
      }
      sync_warps();
      for (int i = thread; i < kHeadsAtOnce * D; i += kThreads) {
        const int head = first_head + i / D;
        const int d = i % D;
        if (head >= group) break;
        float all_largest = -INFINITY;
#pragma unroll 4
        for (int w = 0; w < kWarps; ++w) all_largest = fmaxf(all_largest, stats[w * kMostGroup + head].x);
        float sum = 0;
        float all_weight = 0;
#pragma unroll 4
        for (int w = 0; w < kWarps; ++w) {
          const float2 own = stats[w * kMostGroup + head];
          const float factor = own.x == -INFINITY ? 0.0f : exp2_fast(own.x - all_largest);
          sum += parts[(w * kHeadsAtOnce + head - first_head) * D + d] * factor;
          all_weight += own.y * factor;
        }
        const int own_head = kv_head * group + head;
        if (chunks.count == 1) {
          static_cast<T*>(args.exchange.mixed)[own_head * D + d] =
              from_float<T>(all_weight == 0 ? 0.0f : sum / all_weight);
        } else {
          uint64_t* const words = args.exchange.partials + (int64_t{chunk} * args.num_heads + own_head) * (D + 2);
          publish(words + d, sum, epoch);
          if (d == 0) publish(words + D, all_largest, epoch);
          if (d == 0) publish(words + D + 1, all_weight, epoch);
        }
      }
    }
  }

  // A thread an element; each lane has the factor of a chunk.
  __device__ __forceinline__ void merge_chunks(int head, int num_chunks) const {
    const int d = thread;
    if (d >= D) return;
    const int64_t stride = int64_t{args.num_heads} * (D + 2);
    const uint64_t* const words = args.exchange.partials + head * (D + 2);
    uint64_t loaded[kMostChunks];
#pragma unroll
    for (int c = 0; c < kMostChunks; ++c) {
      loaded[c] = 0;
      if (c < num_chunks) loaded[c] = load_word(words + c * stride + d);
    }
    float2 own = {-INFINITY, 0};
    if (lane() < num_chunks) {
      own = {wait_for_float(words + lane() * stride + D, epoch),
             wait_for_float(words + lane() * stride + D + 1, epoch)};
    }
    __syncwarp();
    const float largest = warp_max(own.x);
    const float own_factor = own.x == -INFINITY ? 0.0f : exp2_fast(own.x - largest);
    float sum = 0;
    float weight = 0;
#pragma unroll
    for (int c = 0; c < kMostChunks; ++c) {
      if (c >= num_chunks) break;
      const float part = static_cast<uint32_t>(loaded[c] >> 32) == epoch
                             ? __uint_as_float(static_cast<uint32_t>(loaded[c]))
                             : wait_for_float(words + c * stride + d, epoch);
      __syncwarp();
      const float factor = __shfl_sync(0xffffffffu, own_factor, c);
      sum += part * factor;
      weight += __shfl_sync(0xffffffffu, own.y, c) * factor;
    }
    static_cast<T*>(args.exchange.mixed)[head * D + d] = from_float<T>(weight == 0 ? 0.0f : sum / weight);
  }
};

}  // namespace quire::cuda::step
