// Products of one token with rows of float weights, inside the kernel of decoder_step.cuh: weights of the activations'
// dtype, or e4m3 with a scale an output.
//
// Rows go in pairs, pairs in chunks of about 32 KB. Half of the chunks have their blocks from the start; the others are
// taken from a counter by whoever has room for them, since blocks that are given the same bytes end far apart. One ring
// a block in shared memory is filled by four warps of their own, a lane a stage, over the ends of products and layers:
// so memory works on while the block waits for inputs. (Asking for a stage takes a lane 600 cycles by itself, a warp
// 200, where memory brings one in 245.) A stage holds 2 KB of both rows of a pair; warps take stages in turn, and leave
// both sums; when all stages of the product are done, a thread a pair adds them, ascending. The order of a sum depends
// on k alone.
#pragma once

#include <algorithm>

#include "ops/cuda/decoder_step_attention.cuh"

namespace quire::cuda::step {

// W is T, or uint8_t for e4m3.
template <typename T, typename W, int D>
struct Rows {
  static constexpr bool kIsF8 = sizeof(W) == 1;
  static constexpr int kHalfStage = 2048;
  static constexpr int kStageBytes = 2 * kHalfStage;
  static constexpr int kChunkBytes = 32768;
  static constexpr int kMostEven = 8;       // chunks
  static constexpr int kEnds = 8;           // of products, that are remembered
  static constexpr bool kIsScaled = kIsF8;  // inputs are brought near 1
  static_assert(kStepKeys * D * 2 <= kStageBytes);

  const Args& args;
  char* memory;  // shared: see Args; the inputs are T, beside e4m3 weights f16, the second eights of 16 apart
  Shared& shared;
  int thread = fresh_thread();
  uint32_t first_stage = 0;  // of what comes next, counted from the launch on

  __device__ __forceinline__ int lane() const { return thread % 32; }
  __device__ __forceinline__ int warp() const { return thread / 32; }

  // ---- Shared memory ------------------------------------------------------------------------------------------------

  __host__ __device__ static int parts_of(const Args& args, int of) {
    return (inputs_of(args, of, D) * static_cast<int>(sizeof(W)) + kHalfStage - 1) / kHalfStage;
  }
  // A lane has at most one piece of a chunk.
  __host__ __device__ static int pairs_of_chunk(const Args& args, int of) {
    const int size = kChunkBytes / (2 * inputs_of(args, of, D) * static_cast<int>(sizeof(W)));
    const int most = kWarps / parts_of(args, of);
    return size < 1 || most < 1 ? 1 : size < most ? size : most;
  }
  // Fills in what Args has of this. Returns the bytes that are needed, or 0 where there are not as many.
  static int plan(Args& args, int most_bytes, int num_blocks) {
    int at = 0;
    const auto take = [&](int bytes) {
      const int offset = at;
      at += (bytes + 15) / 16 * 16;
      return offset;
    };
    int num_items = 0;
    int num_sums = 0;
    for (int of = 0; of < kNumProducts; ++of) {
      const int size = pairs_of_chunk(args, of);
      const int num_chunks = (pairs_of(args, of, D) + size - 1) / size;
      args.static_chunks[of] = std::max(1, num_chunks / (2 * num_blocks));
      args.first_items[of] = num_items;
      // What fits into the rings is there before it is needed: then equal shares end first.
      const int share = (num_chunks + num_blocks - 1) / num_blocks;
      args.most_items[of] = (share <= kMostEven ? share + (of == kQkv ? 2 : 0) : share * 3 / 2 + 2) * size;
      num_items += args.most_items[of];
      num_sums = std::max(num_sums, args.most_items[of] * parts_of(args, of));
    }
    const int input_bytes = 2 * std::max({args.hidden, args.num_heads * D, args.intermediate});
    args.inputs_at = take(std::max(Attention<T, D>::kBytes, input_bytes + 8 * num_sums));
    args.sums_at = args.inputs_at + input_bytes;
    args.kept_at = take(2 * args.hidden);
    args.ends_at = take(8 * kEnds);
    args.items_at = take(4 * num_items);
    args.item_scales_at = take(kIsF8 ? 8 * num_items : 0);
    constexpr int kBarrierBytes = 3 * 8;  // of a stage: two barriers, and a word that announces it
    args.num_stages = (most_bytes - at) / (kStageBytes + kBarrierBytes) / 4 * 4;  // each the same warp's that asks
    if (args.num_stages < kWarps) return 0;
    args.announced_at = take(8 * args.num_stages);
    args.barriers_at = take(16 * args.num_stages);
    const int ring_bytes = args.num_stages * kStageBytes;
    for (int* offset : {&args.inputs_at, &args.sums_at, &args.kept_at, &args.ends_at, &args.items_at,
                        &args.item_scales_at, &args.announced_at, &args.barriers_at}) {
      *offset += ring_bytes;
    }
    return ring_bytes + at;
  }
  __device__ __forceinline__ char* inputs() const { return memory + args.inputs_at; }
  __device__ __forceinline__ T* kept() const { return reinterpret_cast<T*>(memory + args.kept_at); }
  __device__ __forceinline__ float* sums() const { return reinterpret_cast<float*>(memory + args.sums_at); }
  __device__ __forceinline__ int* items(int of) const {
    return reinterpret_cast<int*>(memory + args.items_at) + args.first_items[of];
  }
  __device__ __forceinline__ float2* item_scales(int of) const {
    return reinterpret_cast<float2*>(memory + args.item_scales_at) + args.first_items[of];
  }
  __device__ __forceinline__ uint64_t* filled() const { return reinterpret_cast<uint64_t*>(memory + args.barriers_at); }
  __device__ __forceinline__ uint64_t* used_up() const { return filled() + args.num_stages; }
  // What a stage holds: its number plus 1, then the product (of kEnds in turn; 3 bits), the part of k, the place of
  // its sums (20 bits).
  __device__ __forceinline__ volatile uint64_t* announced() const {
    return reinterpret_cast<volatile uint64_t*>(memory + args.announced_at);
  }
  // Of a product: its number plus 1, the pairs (12 bits), and the number of the stage behind it.
  __device__ __forceinline__ volatile uint64_t* ends() const {
    return reinterpret_cast<volatile uint64_t*>(memory + args.ends_at);
  }

  // All threads, once; a barrier follows.
  __device__ __forceinline__ void set_up() const {
    for (int i = static_cast<int>(threadIdx.x); i < args.num_stages; i += kThreads + kAskingThreads) {
      barrier_init(filled() + i, kIsF8 ? 2 : 1);
      barrier_init(used_up() + i, 1);
      announced()[i] = 0;
      if (i < kEnds) ends()[i] = 0;
    }
    fence_async_proxy();
  }
  __device__ __forceinline__ void begin_step() const {}
  __device__ __forceinline__ bool has_units(int) const { return true; }

  // The residual stream, which a block has whole.
  __device__ __forceinline__ void keep(int at, const uint4& x) const { *reinterpret_cast<uint4*>(kept() + at) = x; }
  __device__ __forceinline__ T add_residual(int output, float sum) const {
    return from_float<T>(sum + to_float(kept()[output]));
  }

  // ---- Asking for weights -------------------------------------------------------------------------------------------

  // Of the warps that fill the ring: each has the same. They have few registers.
  struct Feeder {
    int slot = 0;
    uint32_t parity = 1;
    uint32_t number = 0;      // of the next stage
    uint32_t num_claims = 0;  // told by the first of them
  };
  // The piece of those that are asked for at once that a thread has. A stage is always filled by the same warp.
  static __device__ __forceinline__ int own_piece(const Feeder& feeder) {
    constexpr uint32_t kAskers = kAskingThreads / 32;
    const uint32_t thread = threadIdx.x - kThreads;
    return static_cast<int>(thread % 32 * kAskers + (thread / 32 - feeder.number) % kAskers);
  }
  // What goes into a stage: so many bytes, and as many of another row `apart` behind them. And what is announced of it.
  struct Piece {
    const char* first;
    int64_t apart;
    int num_bytes;
    uint32_t holds;
  };
  // Asks for `count` pieces, each when its stage is free. more(barrier) arrives once more, for e4m3.
  template <typename More>
  __device__ __forceinline__ void ask(Feeder& feeder, int count, const Piece& piece, const More& more) const {
    const int own = own_piece(feeder);
    int slot = feeder.slot + own;
    uint32_t parity = feeder.parity;
    if (slot >= args.num_stages) {
      slot -= args.num_stages;
      parity ^= 1;
    }
    bool is_left = own < count;
    while (__any_sync(0xffffffffu, is_left)) {
      const bool is_ready = is_left && is_over(used_up() + slot, parity);
      if (is_ready) {
        const uint64_t policy = evict_first_policy();
        uint64_t* const barrier = filled() + slot;
        const uint32_t target = shared_address(memory) + static_cast<uint32_t>(slot * kStageBytes);
        const uint32_t num_bytes = static_cast<uint32_t>(piece.num_bytes);
        announced()[slot] = static_cast<uint64_t>(feeder.number + static_cast<uint32_t>(own) + 1) << 32 | piece.holds;
        barrier_arrive_expecting(barrier, piece.apart != 0 ? 2 * num_bytes : num_bytes);
        if (piece.num_bytes > 0) copy_bulk(target, piece.first, piece.num_bytes, barrier, policy);
        if (piece.apart != 0) {
          copy_bulk(target + kHalfStage, piece.first + piece.apart, piece.num_bytes, barrier, policy);
        }
        if constexpr (kIsF8) more(barrier);
        is_left = false;
      }
      if (!__any_sync(0xffffffffu, is_ready)) __nanosleep(kNap);
    }
    feeder.number += static_cast<uint32_t>(count);
    feeder.slot += count;
    if (feeder.slot >= args.num_stages) {
      feeder.slot -= args.num_stages;
      feeder.parity ^= 1;
    }
  }
  static __device__ __forceinline__ void copy_word(float* target, const float* source) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(target)), "l"(source) : "memory");
  }
  // Arrives when what the thread has copied so has come.
  static __device__ __forceinline__ void arrive_with_words(uint64_t* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
  }
  // Stages of keys and values that the block asks for.
  __device__ __forceinline__ int key_stages_of(const Chunks& chunks, int length) const {
    int count = 0;
    for (int unit = static_cast<int>(blockIdx.x); unit < chunks.count * args.num_kv_heads;
         unit += static_cast<int>(gridDim.x)) {
      count += 2 * num_steps_of(chunks, unit / args.num_kv_heads, length);
    }
    return count;
  }
  // Pairs of qkv that the block may have at most: its keys come behind them, and should be there when all of qkv is.
  __device__ __forceinline__ int most_pairs_of_qkv(int length) const {
    const Chunks chunks = chunks_of(length);
    const int own_stages = key_stages_of(chunks, length);
    if (own_stages == 0) return args.most_items[kQkv];
    const int num_pieces = pairs_of(args, kQkv, D) * parts_of(args, kQkv);
    const int all_stages = 2 * ((length + kStepKeys - 1) / kStepKeys) * args.num_kv_heads;
    const int num_blocks = static_cast<int>(gridDim.x);
    const int share = (num_pieces + all_stages + num_blocks - 1) / num_blocks - own_stages;
    const int size = pairs_of_chunk(args, kQkv);
    const int num_chunks = (max(share, 0) / parts_of(args, kQkv) + size) / size;
    // Blocks without keys must have room for the rest.
    const int num_with_keys = min(num_blocks, chunks.count * args.num_kv_heads);
    const int all_chunks = (pairs_of(args, kQkv, D) + size - 1) / size;
    const int rest = max(all_chunks - (num_blocks - num_with_keys) * (args.most_items[kQkv] / size), 0);
    return min(max(num_chunks, (rest + num_with_keys - 1) / num_with_keys) * size, args.most_items[kQkv]);
  }
  // All pieces of the block's rows. At most `most` pairs are taken, but for those that are the block's anyway.
  __device__ __forceinline__ void feed_product(Feeder& feeder, int layer, int of, int most) const {
    const uint32_t instance = static_cast<uint32_t>(layer * kNumProducts + of);
    // Its items stand where those of the layer before stood.
    volatile const uint32_t* const finished = &shared.progress.finished;
    while (static_cast<int>(*finished + kNumProducts - instance - 1) < 0) {
    }
    const int row_bytes = inputs_of(args, of, D) * static_cast<int>(sizeof(W));
    const int num_parts = parts_of(args, of);
    const int count = pairs_of(args, of, D);
    const int size = pairs_of_chunk(args, of);
    const int asker = static_cast<int>(threadIdx.x) - kThreads;
    const char* const weights = args.layers[layer].weights[of];
    const float* const scales = args.layers[layer].scales[of];
    const int num_blocks = static_cast<int>(gridDim.x);
    // Two claims are on their way, by threads of two warps, and looked at when what is known already has been asked
    // for.
    int claimed = 0;
    int num_claimed = 0;
    const auto claim = [&](uint32_t number) {
      if (asker == static_cast<int>(number % 2) * 32) {
        claimed =
            args.static_chunks[of] * num_blocks + static_cast<int>(atomicAdd(args.exchange.claims + instance, 1u));
      }
      ++num_claimed;
    };
    int chunk = static_cast<int>(blockIdx.x);
    for (int i = 0; i < 2; ++i) {
      // Those who have nothing to do look at no claim, so that they must not make one.
      const bool has_work = chunk * size < count;
      if (has_work && (args.static_chunks[of] + i + 1) * size <= most)
        claim(feeder.num_claims + static_cast<uint32_t>(i));
    }
    int num_static = args.static_chunks[of];
    int local = 0;
    while (chunk * size < count) {
      const int num_items = min(size, count - chunk * size);
      const int own_item = own_piece(feeder) / num_parts;
      const int part = own_piece(feeder) % num_parts;
      const int item = chunk * size + own_item;
      const int row = of == kGateUp ? item : 2 * item;
      const int other = of == kGateUp ? item + args.intermediate : row + 1;
      if (part == 0 && own_item < num_items) items(of)[local + own_item] = item;
      const Piece piece{.first = weights + int64_t{row} * row_bytes + part * kHalfStage,
                        .apart = int64_t{other - row} * row_bytes,
                        .num_bytes = min(row_bytes - part * kHalfStage, kHalfStage),
                        .holds = instance % kEnds << 29 | static_cast<uint32_t>(part) << 20 |
                                 static_cast<uint32_t>((local + own_item) * num_parts + part)};
      ask(feeder, num_items * num_parts, piece, [&](uint64_t* barrier) {
        if (part > 0) {
          barrier_arrive(barrier);
          return;
        }
        copy_word(&item_scales(of)[local + own_item].x, scales + row);
        copy_word(&item_scales(of)[local + own_item].y, scales + other);
        arrive_with_words(barrier);
      });
      local += num_items;
      if (--num_static > 0) {
        chunk += num_blocks;
        continue;
      }
      chunk = count;
      while (num_claimed > 0 && chunk * size >= count) {  // of two, the second may be the lower one
        volatile int* const told = shared.claims + feeder.num_claims % 2;
        if (asker == static_cast<int>(feeder.num_claims % 2) * 32) *told = claimed;
        --num_claimed;
        sync_askers();
        chunk = *told;
        // Not more than there is room for.
        if (chunk * size < count && local + (num_claimed + 2) * size <= most) claim(feeder.num_claims);
        ++feeder.num_claims;
      }
    }
    sync_askers();  // all items are written down
    if (asker == 0) {
      __threadfence_block();
      ends()[instance % kEnds] =
          static_cast<uint64_t>(instance + 1) << 32 | static_cast<uint64_t>(local) << 20 | feeder.number;
    }
  }
  // Keys and values of the block's chunks, a stage for each 16.
  __device__ __forceinline__ void feed_keys(Feeder& feeder, int layer, int length) const {
    const Chunks chunks = chunks_of(length);
    // No piece of qkv, whose end they may be taken for.
    const uint32_t holds = static_cast<uint32_t>(layer * kNumProducts + kQkv + 2) % kEnds << 29;
#pragma unroll 1
    for (int unit = static_cast<int>(blockIdx.x); unit < chunks.count * args.num_kv_heads;
         unit += static_cast<int>(gridDim.x)) {
      const int chunk = unit / args.num_kv_heads;
      const int num_steps = num_steps_of(chunks, chunk, length);
#pragma unroll 1
      for (int step = 0; step < num_steps; step += kWarps / 2) {  // keys and values of so many at once
        const int own = own_piece(feeder);
        const int own_step = min(step + own / 2, num_steps - 1);
        const int first = chunk * chunks.size + own_step * kStepKeys;
        const int64_t page = args.page_table[first >> args.page_shift];
        const char* const base = own % 2 == 0 ? args.layers[layer].k : args.layers[layer].v;
        const Piece piece{.first = base + page * args.page_bytes + unit % args.num_kv_heads * args.head_bytes +
                                   (first & ((1 << args.page_shift) - 1)) * int64_t{D * 2},
                          .apart = 0,
                          .num_bytes = min(length - 1 - first, kStepKeys) * D * 2,  // the new key is not in its page
                          .holds = holds};
        ask(feeder, 2 * min(kWarps / 2, num_steps - step), piece, [](uint64_t* barrier) { barrier_arrive(barrier); });
      }
    }
  }
  // By warps of their own.
  __device__ __forceinline__ void feed() const {
    Feeder feeder;
    const int length = max(args.context_lengths[0], 1);
    const int most_of_qkv = most_pairs_of_qkv(length);
#pragma unroll 1
    for (int layer = 0; layer < args.num_layers; ++layer) {
#pragma unroll 1
      for (int of = 0; of < kNumProducts; ++of) {
        feed_product(feeder, layer, of, of == kQkv ? most_of_qkv : args.most_items[of]);
        if (of == kQkv) feed_keys(feeder, layer, length);
      }
    }
  }

  // ---- Inputs -------------------------------------------------------------------------------------------------------

  // Eight inputs from number `at` on, a multiple of eight.
  __device__ __forceinline__ void put_inputs(int at, int count, const float (&x)[8], float factor) const {
    if constexpr (kIsF8) {
      *reinterpret_cast<uint4*>(inputs() + at % 16 / 8 * count + at / 16 * 16) = {
          pack_pair<f16>(x[0] * factor, x[1] * factor), pack_pair<f16>(x[2] * factor, x[3] * factor),
          pack_pair<f16>(x[4] * factor, x[5] * factor), pack_pair<f16>(x[6] * factor, x[7] * factor)};
    } else {
      *reinterpret_cast<uint4*>(inputs() + at * 2) = {pack_pair<T>(x[0], x[1]), pack_pair<T>(x[2], x[3]),
                                                      pack_pair<T>(x[4], x[5]), pack_pair<T>(x[6], x[7])};
    }
  }

  // ---- Products -----------------------------------------------------------------------------------------------------

  struct Place {
    int slot;
    uint32_t parity;
  };
  __device__ __forceinline__ Place place_of(uint32_t stage) const {
    const uint32_t num_stages = static_cast<uint32_t>(args.num_stages);
    return {static_cast<int>(stage % num_stages), stage / num_stages & 1};
  }
  __device__ __forceinline__ void use_up(int slot) const {
    __syncwarp();
    if (lane() == 0) barrier_arrive(used_up() + slot);
  }

  // Keys and values of step `index / 2`, counted from where the last product ended. All lanes of the warp that has the
  // step.
  __device__ __forceinline__ KeyRows open_keys(int index) const {
    const uint32_t number = first_stage + static_cast<uint32_t>(index);
    const Place place = place_of(number);
    // A barrier tells even laps of the ring from odd ones, no more, and another warp may be a lap behind: it is asked
    // once the stage is announced to be this one.
    for (Patience patience; static_cast<uint32_t>(announced()[place.slot] >> 32) != number + 1;) patience.spend();
    barrier_wait(filled() + place.slot, place.parity);
    const char* const stage = memory + place.slot * kStageBytes;
    return {{stage, stage + 8 * D * 2}};
  }
  __device__ __forceinline__ void close_keys(int index) const {
    use_up(place_of(first_stage + static_cast<uint32_t>(index)).slot);
  }
  // All warps: behind a chunk.
  __device__ __forceinline__ void end_keys(int num_steps) {
    first_stage += 2 * static_cast<uint32_t>(num_steps);
  }

  // The inputs of the 16 bytes of a row at byte `at`.
  struct Inputs {
    uint4 x[kIsF8 ? 2 : 1];
  };
  __device__ __forceinline__ Inputs load_inputs(int at, int row_bytes) const {
    Inputs loaded;
    loaded.x[0] = *reinterpret_cast<const uint4*>(inputs() + at);
    if constexpr (kIsF8) loaded.x[1] = *reinterpret_cast<const uint4*>(inputs() + row_bytes + at);
    return loaded;
  }
  static __device__ __forceinline__ float add_products(float sum, const char* weights, const Inputs& in) {
    const uint4 loaded = *reinterpret_cast<const uint4*>(weights);
    const uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
    if constexpr (kIsF8) {
      const uint32_t low[4] = {in.x[0].x, in.x[0].y, in.x[0].z, in.x[0].w};
      const uint32_t high[4] = {in.x[1].x, in.x[1].y, in.x[1].z, in.x[1].w};
      const auto halves = [](const uint32_t& bits) { return *reinterpret_cast<const __half2*>(&bits); };
      __half2 products = __float2half2_rn(0.0f);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t* x = i < 2 ? low : high;
        uint32_t pairs[2];
        asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, "
            "high;\n}\n"
            : "=r"(pairs[0]), "=r"(pairs[1])
            : "r"(words[i]));
        products = __hfma2(halves(pairs[0]), halves(x[i % 2 * 2]), products);
        products = __hfma2(halves(pairs[1]), halves(x[i % 2 * 2 + 1]), products);
      }
      return sum + (__low2float(products) + __high2float(products));
    } else {
      const uint32_t x[4] = {in.x[0].x, in.x[0].y, in.x[0].z, in.x[0].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum = fmaf(low_float<T>(words[i]), low_float<T>(x[i]), sum);
        sum = fmaf(high_float<T>(words[i]), high_float<T>(x[i]), sum);
      }
      return sum;
    }
  }

  // finish(output, sum, sum of up) by one thread an output.
  template <typename Finish>
  __device__ __forceinline__ void run(int at_layer, int of, float input_scale, const Finish& finish) {
    thread = fresh_thread();
    const uint32_t instance = static_cast<uint32_t>(at_layer * kNumProducts + of);
    const int row_bytes = inputs_of(args, of, D) * static_cast<int>(sizeof(W));
    uint32_t number = first_stage + static_cast<uint32_t>(warp());
    Place place = place_of(number);
    uint64_t end = 0;
#pragma unroll 1
    while (true) {
      uint64_t word = 0;
      Patience patience;
      while (true) {
        word = announced()[place.slot];
        if (word >> 32 == number + 1 && (static_cast<uint32_t>(word) >> 29) == instance % kEnds) break;
        end = ends()[instance % kEnds];
        if (end >> 32 == instance + 1 && number >= (static_cast<uint32_t>(end) & 0xfffffu)) break;
        end = 0;
        patience.spend();
      }
      if (end != 0) break;
      const int done = static_cast<int>(word >> 20 & 0x1ff) * kHalfStage;
      barrier_wait(filled() + place.slot, place.parity);
      const char* here = memory + place.slot * kStageBytes + 16 * lane();
      float own[2] = {0, 0};
      const auto take = [&](int i) {
        const Inputs x = load_inputs(done + i + 16 * lane(), row_bytes);
        own[0] = add_products(own[0], here + i, x);
        own[1] = add_products(own[1], here + kHalfStage + i, x);
      };
      if (done + kHalfStage <= row_bytes) {
#pragma unroll
        for (int i = 0; i < kHalfStage; i += 512) take(i);
      } else {
#pragma unroll 1
        for (int i = 0; done + i + 16 * lane() < row_bytes; i += 512) take(i);
      }
      use_up(place.slot);
      // Each half of the warp ends with its row's sum.
      const bool is_upper = lane() >= 16;
      float sum = is_upper ? own[1] : own[0];
      sum += __shfl_xor_sync(0xffffffffu, is_upper ? own[0] : own[1], 16);
#pragma unroll
      for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      if (lane() % 16 == 0) sums()[2 * (static_cast<uint32_t>(word) & 0xfffffu) + lane() / 16] = sum;
      number += kWarps;
      place.slot += kWarps;
      if (place.slot >= args.num_stages) {
        place.slot -= args.num_stages;
        place.parity ^= 1;
      }
    }
    first_stage = static_cast<uint32_t>(end) & 0xfffffu;
    const int num_items = static_cast<int>(static_cast<uint32_t>(end) >> 20);
    sync_warps();
    const int num_parts = parts_of(args, of);
    for (int i = thread; i < num_items; i += kThreads) {
      float2 sum = {0, 0};
      for (int part = 0; part < num_parts; ++part) {
        const float2 own = reinterpret_cast<const float2*>(sums())[i * num_parts + part];
        sum.x += own.x;
        sum.y += own.y;
      }
      if constexpr (kIsF8) {
        const float2 scales = item_scales(of)[i];
        sum.x *= scales.x * input_scale;
        sum.y *= scales.y * input_scale;
      }
      const int item = items(of)[i];
      if (of == kGateUp) {
        finish(item, sum.x, sum.y);
      } else {
        finish(2 * item, sum.x, 0.0f);
        finish(2 * item + 1, sum.y, 0.0f);
      }
    }
  }
};

}  // namespace quire::cuda::step
