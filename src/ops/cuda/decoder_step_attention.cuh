// Attention of one query over pages, inside the kernel of decoder_step.cuh, with the rotation in front of it and the
// write of the new key and value.
//
// A unit of work is a KV head and a chunk of keys; a block takes whole units, its 16 warps steps of 16 keys in turn.
// Keys and values come through the ring of weights, behind those of qkv, so that they are there before qkv is. Elements
// are taken in an order in which loads of 16 bytes are operands of the tensor cores as they come (K) or after a byte
// permutation (V):
//   scores: S (heads × 8 keys) = Q (heads × d) · Kᵀ;  sums: Oᵀ (d × 8 heads) += Vᵀ (d × 16 keys) · Pᵀ
// The new key and value come from qkv, not from the page. Sums of warps are added in ascending order, and so are those
// of chunks, whose number depends on the length alone.
#pragma once

#include "ops/cuda/decoder_step_args.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/packed_pairs.cuh"

namespace quire::cuda::step {

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <typename T, int D>
struct Attention {
  static constexpr int kPitch = D + 8;  // of a row in shared memory, elements; of sums too
  static constexpr int kValueVectors = D / 64;
  static constexpr int kBytes = kWarps * kHeadsAtOnce * kPitch * 4;  // of shared memory

  const Args& args;
  const LayerArgs& layer;
  uint32_t epoch;
  int copy;       // offset of the layer's copy of results
  char* shared;   // the new rows; later sums of warps
  float2* stats;  // [warp][head]: largest score, and weight
  int length;     // keys, with the new one
  int thread;

  __device__ __forceinline__ int lane() const { return thread % 32; }
  __device__ __forceinline__ int warp() const { return thread / 32; }
  __device__ __forceinline__ int group_size() const { return args.num_heads / args.num_kv_heads; }

  __device__ __forceinline__ T* mixed() const {
    return reinterpret_cast<T*>(static_cast<char*>(args.exchange.mixed) + copy);
  }
  __device__ __forceinline__ const char* row_of(int row) const { return shared + row * kPitch * 2; }

  // The queries of the KV head's group, rotated, then the new key and value, into shared memory; and the latter two
  // into their page, by whoever has the last chunk.
  struct NewRows {  // what is known of them before qkv is there
    float cosine;
    float sine;
    int64_t slot;
  };
  __device__ __forceinline__ NewRows prepare_new_rows() const {
    static_assert(kThreads % (D / 2) == 0);  // a thread has the same pair of every row
    const int pair = thread % (D / 2);
    return {args.rope_table[pair], args.rope_table[D / 2 + pair], args.slots[0]};
  }
  __device__ __forceinline__ void take_new_rows(const NewRows& rows, int kv_head, bool is_last) const {
    const int group = group_size();
    const int64_t page_size = int64_t{1} << args.page_shift;
    const int pair = thread % (D / 2);
    for (int row = thread / (D / 2); row < group + 2; row += kThreads / (D / 2)) {
      const bool is_v = row > group;
      const int first = args.is_interleaved || is_v ? 2 * pair : pair;
      const int second = args.is_interleaved || is_v ? first + 1 : pair + D / 2;
      const int head = row < group ? kv_head * group + row : args.num_heads + kv_head + (is_v ? args.num_kv_heads : 0);
      const T* const source = reinterpret_cast<const T*>(static_cast<const char*>(args.exchange.qkv) + copy) + head * D;
      uint32_t bits[2];
      Patience patience;
      do {
        bits[0] = look_at_half(source + first);
        bits[1] = look_at_half(source + second);
        patience.spend();
      } while (bits[0] == kHalfNothing || bits[1] == kHalfNothing);
      float a = low_float<T>(bits[0]);
      float b = low_float<T>(bits[1]);
      if (!is_v) {
        const float rotated = __fsub_rn(__fmul_rn(a, rows.cosine), __fmul_rn(b, rows.sine));
        b = __fadd_rn(__fmul_rn(b, rows.cosine), __fmul_rn(a, rows.sine));
        a = rotated;
      }
      T* const target = reinterpret_cast<T*>(shared) + row * kPitch;
      target[first] = from_float<T>(a);
      target[second] = from_float<T>(b);
      if (is_last && row >= group && rows.slot >= 0) {
        T* const page =
            reinterpret_cast<T*>((is_v ? layer.v : layer.k) + (rows.slot >> args.page_shift) * args.page_bytes +
                                 kv_head * args.head_bytes) +
            (rows.slot & (page_size - 1)) * D;
        page[first] = from_float<T>(a);
        page[second] = from_float<T>(b);
      }
    }
  }

  // One step of 16 keys: thread (g, t) has the scores of head g, and sums of heads 2t and 2t + 1.
  template <typename Products>
  __device__ __forceinline__ void take_keys(Products& products, int step, int first, float (&sums)[D / 16][4],
                                            float& largest, float& weight) const {
    const int g = lane() / 4;
    const int t = lane() % 4;
    const KeyRows here = products.open_keys(2 * step);
    const char* k[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool is_new = first + 8 * half + g == length - 1;
      k[half] = (is_new ? row_of(group_size()) : here.rows[half] + g * D * 2) + 16 * t;
    }
    // Heads that are not there have some other row's numbers, and nobody reads what becomes of them.
    const char* const queries = row_of(min(g, group_size() - 1)) + 16 * t;
    float scores[2][4] = {};
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      const uint4 q = *reinterpret_cast<const uint4*>(queries + 64 * i);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 x = *reinterpret_cast<const uint4*>(k[half] + 64 * i);
        mma<T>(scores[half], {q.x, 0u, q.y, 0u}, x.x, x.y);
        mma<T>(scores[half], {q.z, 0u, q.w, 0u}, x.z, x.w);
      }
    }
    products.close_keys(2 * step);
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
    const uint32_t low = pack_pair<T>(scores[0][0], scores[0][1]);
    const uint32_t high = pack_pair<T>(scores[1][0], scores[1][1]);
    const KeyRows values = products.open_keys(2 * step + 1);
    const char* v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = 2 * t + i % 2;
      // What is behind the new value has a weight of zero, but must be a number.
      const bool is_stored = first + i / 2 * 8 + key < length - 1;
      v[i] = (is_stored ? values.rows[i / 2] + key * D * 2 : row_of(group_size() + 1)) + 16 * g;
    }
#pragma unroll
    for (int quad = 0; quad < D / 64; ++quad) {  // of j
      // Rows g and g + 8 of the product: see d_of.
      uint2 words[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          words[half][i] = *reinterpret_cast<const uint2*>(v[i] + (D == 128 ? 128 * half + 8 * quad : 8 * half));
        }
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float(&sum)[4] = sums[4 * quad + k];
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] *= corrections[i % 2];
        uint32_t pairs[4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const auto word = [&](int i) { return k / 2 == 0 ? words[half][i].x : words[half][i].y; };
          const uint32_t selector = k % 2 == 0 ? 0x5410u : 0x7632u;
          pairs[half] = __byte_perm(word(0), word(1), selector);
          pairs[2 + half] = __byte_perm(word(2), word(3), selector);
        }
        mma<T>(sum, pairs, low, high);
      }
    }
    products.close_keys(2 * step + 1);
  }
  static __device__ __forceinline__ int d_of(int g, int j, int half) {
    return kValueVectors == 2 ? 64 * half + 8 * g + j : 8 * g + 4 * half + j;
  }

  // Blocks that tell that attention is done, and whether this one has any work.
  static __device__ __forceinline__ int num_telling(const Args& args, int length) {
    return min(static_cast<int>(gridDim.x), chunks_of(length).count == 1 ? args.num_kv_heads : args.num_heads);
  }
  static __device__ __forceinline__ bool has_work(const Args& args, int length) {
    const int count = chunks_of(length).count;
    return static_cast<int>(blockIdx.x) <
           (count == 1 ? args.num_kv_heads : max(count * args.num_kv_heads, args.num_heads));
  }
  // The block's units, and then its heads of the merge.
  template <typename Products>
  __device__ __forceinline__ void run(Products& products) {
    const Chunks chunks = chunks_of(length);
    const int num_units = chunks.count * args.num_kv_heads;
    const int num_blocks = static_cast<int>(gridDim.x);
    const int block = static_cast<int>(blockIdx.x);
    for (int unit = block; unit < num_units; unit += num_blocks) {
      take_unit(products, unit % args.num_kv_heads, unit / args.num_kv_heads, chunks);
    }
    if (chunks.count == 1) return;
    if (block >= num_units) sync_warps();  // no warp tells of its heads before all have told of qkv
    for (int head = block; head < args.num_heads; head += num_blocks) merge_chunks(head, chunks.count);
  }

  template <typename Products>
  __device__ __forceinline__ void take_unit(Products& products, int kv_head, int chunk, const Chunks& chunks) {
    const int group = group_size();
    const int begin = chunk * chunks.size;
    const int num_steps = num_steps_of(chunks, chunk, length);
    const NewRows new_rows = prepare_new_rows();
    sync_warps();  // all warps are done with the inputs that lay in shared memory, or with the unit before
    thread = fresh_thread();
    take_new_rows(new_rows, kv_head, chunk == chunks.count - 1);
    sync_warps();

    float sums[D / 16][4] = {};
    float largest = -INFINITY;  // of head g
    float weight = 0;
#pragma unroll 1
    for (int step = warp(); step < num_steps; step += kWarps) {
      take_keys(products, step, begin + step * kStepKeys, sums, largest, weight);
    }
    products.end_keys(num_steps);
    thread = fresh_thread();
    const int g = lane() / 4;
    const int t = lane() % 4;
    weight += __shfl_xor_sync(0xffffffffu, weight, 1);
    weight += __shfl_xor_sync(0xffffffffu, weight, 2);
    if (t == 0) stats[warp() * kMostGroup + g] = {largest, weight};

    // [warp][head][half][j][g], so that neighbouring threads have neighbouring places.
    float* const parts = reinterpret_cast<float*>(shared);
    const int num_parts = min(num_steps, kWarps);
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
            parts[(warp() * kHeadsAtOnce + head) * kPitch + (half * (D / 16) + j) * 8 + g] = sums[j][h + 2 * half];
          }
        }
      }
      sync_warps();
      for (int i = thread; i < kHeadsAtOnce * D; i += kThreads) {
        const int head = first_head + i / D;
        const int d = d_of(i % 8, i / 8 % (D / 16), i % D / (D / 2));
        if (head >= group) break;
        float all_largest = -INFINITY;
#pragma unroll 8
        for (int w = 0; w < num_parts; ++w) all_largest = fmaxf(all_largest, stats[w * kMostGroup + head].x);
        float sum = 0;
        float all_weight = 0;
#pragma unroll 8
        for (int w = 0; w < num_parts; ++w) {
          const float2 own = stats[w * kMostGroup + head];
          const float factor = own.x == -INFINITY ? 0.0f : exp2_fast(own.x - all_largest);
          sum += parts[(w * kHeadsAtOnce + head - first_head) * kPitch + i % D] * factor;
          all_weight += own.y * factor;
        }
        const int own_head = kv_head * group + head;
        if (chunks.count == 1) {
          send_half(mixed() + own_head * D + d, from_float<T>(all_weight == 0 ? 0.0f : sum / all_weight));
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
    send_half(mixed() + head * D + d, from_float<T>(weight == 0 ? 0.0f : sum / weight));
  }
};

}  // namespace quire::cuda::step
