// What the kernel of decoder_step.cuh is given, and how its blocks tell one another what they have computed.
//
// Results are messages (messages.cuh). Each of a layer's parts has a counter beside, which a block raises when it has
// sent its share; whoever needs the part's results waits for the counter to reach its target, then reads until nothing
// is missing. Counters are never cleared, targets rise with the epoch, a count of layers that goes on from launch to
// launch. One thread of a block asks for the counter, the others look at a flag in shared memory. (Without counters 132
// blocks ask for the same lines again and again, which keeps everything else waiting: a layer took 78 us.) New rows of
// qkv have few readers, who ask for nothing but the messages.
//
// Results of a layer lie in one of two copies, in turn. While gate_up of a layer is computed nobody needs those of the
// layer before any more, since a block reads the results of one part before it tells that it has sent its share of the
// next one: then each block lays a share of that copy back to kNothing, and fences before it tells that down is done,
// the last part before the copy is written again.
#pragma once

#include "ops/cuda/device_dtype.cuh"
#include "ops/cuda/gate.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/messages.cuh"
#include "ops/cuda/packed_pairs.cuh"

namespace quire::cuda::step {

constexpr int kWarps = 16;
constexpr int kThreads = 32 * kWarps;  // that compute
constexpr int kAskingThreads = 128;    // that ask for weights
constexpr int kNap = 40;               // ns, of those that ask, where there is no room
constexpr int kMostLayers = 128;
constexpr int kMostChunks = 16;    // of a sequence's keys
constexpr int kStepKeys = 16;      // of attention, a warp
constexpr int kHeadsAtOnce = 4;    // whose sums are added over the warps at once
constexpr int kMostGroup = 8;      // query heads of a KV head
constexpr int kMostOwnRows = 128;  // of the residual stream, a block
constexpr int kNormedVectors = 2;  // of eight elements, a thread: hidden up to 8,192
constexpr int kVectors = 4;        // intermediate up to 16,384

enum Product : int { kQkv, kOutput, kGateUp, kDown, kNumProducts };

struct LayerArgs {
  const char* weights[kNumProducts];
  const float* scales[kNumProducts];  // of e4m3 weights: an output each; of integer formats as weights.h says
  const float* attention_norm;
  const float* mlp_norm;
  char* k;
  char* v;
};

enum Part : int { kQkvDone, kAttentionDone, kOutputDone, kGateUpDone, kDownDone, kNumParts };

struct Exchange {
  void* qkv;     // of the activations' dtype, like the following
  void* mixed;   // attention's outputs
  void* middle;  // x behind attention
  void* gated;
  void* x;             // behind the layer
  uint64_t* partials;  // attention's: [chunk][head][head_dim + 2]: a float and the epoch
  uint32_t* counters;  // of parts, 32 apart; then the epoch of the last layer so far, and the blocks that are done
  uint32_t* claims;    // [layer][product]: chunks of rows that blocks have taken; zeros between launches
  char* copies;        // the first four and x lie in the first of two copies
  int copy_bytes;
};
constexpr int kCounterStride = 32;

struct Args {
  const void* x;
  void* y;
  const float* rope_table;
  const int32_t* context_lengths;
  const int32_t* page_table;
  const int64_t* slots;
  Exchange exchange;
  int64_t page_bytes;  // between pages, and between heads
  int64_t head_bytes;
  int num_layers;
  int hidden;
  int intermediate;
  int num_heads;
  int num_kv_heads;
  int page_shift;   // log2 of the page size
  int code_offset;  // of integer weights
  int num_stages;   // of a ring
  // Offsets into shared memory, whose begin the rings have.
  int inputs_at;  // a product's inputs, or what attention needs
  int sums_at;
  int barriers_at;
  int kept_at;                      // the residual stream
  int announced_at;                 // what stages hold
  int ends_at;                      // of products
  int items_at;                     // the block's pairs of rows
  int item_scales_at;               // their scales
  int first_items[kNumProducts];    // of a product, in these two
  int most_items[kNumProducts];     // a block
  int static_chunks[kNumProducts];  // a block
  float epsilon;
  float scale;  // of scores, times log2(e)
  Gate gate;
  bool is_interleaved;
  LayerArgs layers[kMostLayers];
};

// Inputs of a product, and pairs of rows: of gate_up a row of gate and one of up, else neighbours.
__host__ __device__ __forceinline__ int inputs_of(const Args& args, int product, int head_dim) {
  if (product == kDown) return args.intermediate;
  return product == kOutput ? args.num_heads * head_dim : args.hidden;
}
__host__ __device__ __forceinline__ int pairs_of(const Args& args, int product, int head_dim) {
  if (product == kQkv) return (args.num_heads + 2 * args.num_kv_heads) * (head_dim / 2);
  return product == kGateUp ? args.intermediate : args.hidden / 2;
}

// Chunks of a sequence's keys: one of at most 512 keys, else at most 16, in steps of 256 keys.
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
// Steps of 16 keys of a chunk.
__device__ __forceinline__ int num_steps_of(const Chunks& chunks, int chunk, int length) {
  return (min(chunks.size, length - chunk * chunks.size) + kStepKeys - 1) / kStepKeys;
}

// ---- Weights on their way -------------------------------------------------------------------------------------------

__device__ __forceinline__ void copy_bulk(uint32_t target, const void* source, int num_bytes, uint64_t* barrier,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(target),
      "l"(source), "r"(num_bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

__device__ __forceinline__ bool is_over(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
               : "=r"(done)
               : "r"(shared_address(barrier)), "r"(parity)
               : "memory");
  return done != 0;
}

// A warp's ring of stages in shared memory, which bulk copies fill: what the warp that uses them knows of it.
struct Ring {
  char* stages;
  uint64_t* filled;   // a stage each: its bytes have come
  uint64_t* used_up;  // its bytes are needed no more
  int num_stages;
  int stage = 0;  // next
  uint32_t parity = 0;

  // All lanes.
  __device__ __forceinline__ void wait() const { barrier_wait(filled + stage, parity); }
  __device__ __forceinline__ void use_up(int lane) {
    __syncwarp();
    if (lane == 0) barrier_arrive(used_up + stage);
    skip();
  }
  __device__ __forceinline__ void skip() {
    if (++stage == num_stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Eight keys or values each, of a step of 16, one behind another.
struct KeyRows {
  const char* rows[2];
};

struct Range {
  int begin;
  int end;
};
__device__ __forceinline__ Range share_of(int count, int index, int num_shares) {
  return {
      static_cast<int>(static_cast<uint32_t>(count) * static_cast<uint32_t>(index) / static_cast<uint32_t>(num_shares)),
      static_cast<int>(static_cast<uint32_t>(count) * static_cast<uint32_t>(index + 1) /
                       static_cast<uint32_t>(num_shares))};
}

// A barrier of the warps that compute.
__device__ __forceinline__ void sync_warps() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// A barrier of those that ask for weights.
__device__ __forceinline__ void sync_askers() {
  asm volatile("bar.sync 2, %0;" ::"n"(kAskingThreads) : "memory");
}

// The thread's number, of which the compiler knows nothing: what depends on it is not computed once before the loop
// over layers and then kept in memory, for want of registers.
__device__ __forceinline__ int fresh_thread() {
  int thread = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(thread));
  return thread;
}

// ---- Results of other blocks ----------------------------------------------------------------------------------------

// Something must be wrong after so many looks, seconds of them at shared memory: better to fail than to hang.
struct Patience {
  int left = 1 << 27;
  __device__ __forceinline__ void spend() {
    if (--left == 0) __trap();
  }
};

template <bool kAcquires>
__device__ __forceinline__ void wait_for_counter(const uint32_t* counter, uint32_t target) {
  Patience patience;
  uint32_t x;
  do {
    if constexpr (kAcquires) {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(counter) : "memory");
    } else {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(counter) : "memory");
    }
    patience.spend();
  } while (static_cast<int32_t>(x - target) < 0);
}

// What a block's warps share about parts.
struct Progress {
  uint32_t released;  // the last part that is known to be complete: the epoch times 8, and the part
  uint32_t arrived;   // warps
  uint32_t finished;  // products, of all layers
};
__device__ __forceinline__ uint32_t release_of(uint32_t epoch, int part) {
  return epoch * 8 + static_cast<uint32_t>(part);
}

// All lanes, all warps of the block: until the counter has reached the target. Acquires: see above of copies.
__device__ __forceinline__ void wait_for_part(Progress& progress, const uint32_t* counter, uint32_t target,
                                              uint32_t release, bool acquires, int thread) {
  if (thread % 32 == 0) {
    Patience patience;
    volatile uint32_t* const released = &progress.released;
    if (thread == 0) {
      if (acquires) {
        wait_for_counter<true>(counter, target);
      } else {
        wait_for_counter<false>(counter, target);
      }
      *released = release;
    } else {
      while (static_cast<int32_t>(*released - release) < 0) patience.spend();
    }
  }
  __syncwarp();
}
// All lanes, all warps of the block, behind what they have sent. `finished`: products, this one counted.
__device__ __forceinline__ void tell_part(Progress& progress, uint32_t* counter, uint32_t finished, int thread) {
  __syncwarp();
  if (thread % 32 != 0) return;
  __threadfence_block();
  if (atomicAdd(&progress.arrived, 1u) != kWarps - 1) return;
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
  progress.arrived = 0;
  *static_cast<volatile uint32_t*>(&progress.finished) = finished;
}

// What does not change during a launch.
struct Launch {
  uint32_t last_epoch;
  uint32_t attention_target;  // of its counter, before the first layer
  int length;
  int num_telling;  // blocks that tell that attention is done
};

// What all warps share beside rings and inputs.
struct alignas(128) Shared {
  float2 reduced[kWarps];
  float2 stats[kWarps * kMostGroup];
  float residuals[kMostOwnRows];  // of panels
  Range ranges[kNumProducts];     // of panels
  Progress progress;
  Launch launch;
  int claims[2];  // of rows: told in turn
};

// Floats that carry the epoch: for few readers.
__device__ __forceinline__ void publish(uint64_t* word, float value, uint32_t epoch) {
  const uint64_t bits = static_cast<uint64_t>(epoch) << 32 | __float_as_uint(value);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(bits) : "memory");
}
__device__ __forceinline__ uint64_t load_word(const uint64_t* word) {
  uint64_t x;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(word) : "memory");
  return x;
}
__device__ __forceinline__ float wait_for_float(const uint64_t* word, uint32_t epoch) {
  Patience patience;
  uint64_t x;
  while (static_cast<uint32_t>((x = load_word(word)) >> 32) != epoch) patience.spend();
  return __uint_as_float(static_cast<uint32_t>(x));
}

}  // namespace quire::cuda::step
