// Products of one token with weights of an integer format, inside the kernel of decoder_step.cuh: panels of 16 outputs
// in tiles for the tensor cores, as linear_gemv_integer.cu takes them.
//
// A block has its own panels of every product (of gate_up pairs of a panel of gate and one of up). A panel's k is cut
// into chunks of 256; warps take chunks in turn, over the ends of panels, and add their sums when the product is done.
// A ring a warp is filled as decoder_step_rows.cuh tells. A chunk's sum goes to class `chunk % warps`, ascending;
// classes are added in ascending order: the order depends on k alone.
#pragma once

#include <algorithm>

#include "ops/cuda/decoder_step_attention.cuh"
#include "ops/cuda/linear_gemv_integer.cuh"

namespace quire::cuda::step {

template <typename T, int Bits, ScaleKind Kind, int D>
struct Panels {
  using Chunk = integer::Chunk<Bits, Kind>;
  static constexpr int kStageBytes = (Chunk::kBytes + 127) / 128 * 128;
  static constexpr int kPanelsAtOnce = 16;  // whose sums are added over the warps together
  static constexpr int kSumBytes = kPanelsAtOnce * kWarps * kPanelLanes * 4;
  static constexpr bool kIsScaled = true;  // inputs are brought near 1
  static_assert(kStepKeys / 2 * D * 2 <= kStageBytes);

  const Args& args;
  char* memory;  // shared: see Args; the inputs are f16, then sums of 32
  Shared& shared;
  int thread = fresh_thread();
  Ring ring;  // of the warp, or of the warp for which the thread asks

  // What is asked for next, known to the lane that asks.
  int layer = 0;
  int product = -1;
  int panel = 0;  // of the block's
  int num_panels = 0;
  int chunk = 0;
  bool has_keys = false;  // still to be asked for, of the layer
  int unit = -1;          // of attention, or -1
  int step = 0;           // of the unit
  int quarter = 0;        // of the step: half of the keys each, then of the values
  int length = 0;
  uint64_t policy = 0;

  __device__ __forceinline__ int lane() const { return thread % 32; }
  __device__ __forceinline__ int warp() const { return thread / 32; }

  // Fills in what Args has of shared memory. Returns the bytes that are needed, or 0 where there are not as many.
  static int plan(Args& args, int most_bytes, int /*num_blocks*/) {
    const int most_inputs = std::max({args.hidden, args.num_heads * D, args.intermediate});
    const int input_bytes = 2 * most_inputs + most_inputs / 8;
    const int own_bytes = std::max(Attention<T, D>::kBytes, input_bytes + kSumBytes);
    constexpr int kBarrierBytes = 2 * 8;  // of a stage
    constexpr int kRingsBytes = kWarps * (kStageBytes + kBarrierBytes);
    args.num_stages = (most_bytes - own_bytes) / kRingsBytes;
    if (args.num_stages < 2) return 0;
    args.inputs_at = args.num_stages * kWarps * kStageBytes;
    args.sums_at = args.inputs_at + input_bytes;
    args.barriers_at = args.inputs_at + own_bytes;
    return args.num_stages * kRingsBytes + own_bytes;
  }
  __device__ __forceinline__ char* inputs() const { return memory + args.inputs_at; }
  // All threads, once; a barrier follows.
  __device__ __forceinline__ void set_up() {
    const int of = static_cast<int>(threadIdx.x);
    if (of < kNumProducts) {
      const int outputs = pairs_of(args, of, D) * (of == kGateUp ? 1 : 2);
      shared.ranges[of] = share_of(outputs / kPanelLanes, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    }
    const bool asks = threadIdx.x >= kThreads;
    const int own = asks ? asked_ring() : static_cast<int>(threadIdx.x) / 32;
    uint64_t* const barriers = reinterpret_cast<uint64_t*>(memory + args.barriers_at);
    ring = {.stages = memory + own * args.num_stages * kStageBytes,
            .filled = barriers + own * args.num_stages,
            .used_up = barriers + (kWarps + own) * args.num_stages,
            .num_stages = args.num_stages};
    for (int i = static_cast<int>(threadIdx.x); i < 2 * kWarps * args.num_stages; i += kThreads + kAskingThreads) {
      barrier_init(barriers + i, 1);
    }
    fence_async_proxy();
  }
  __device__ __forceinline__ void begin_step() const {
    const Range own = own_rows();
    for (int i = static_cast<int>(threadIdx.x); i < own.end - own.begin; i += kThreads) {
      shared.residuals[i] = to_float(static_cast<const T*>(args.x)[own.begin + i]);
    }
  }
  // The residual stream: the block that has a row's sum has had it in the layers before.
  __device__ __forceinline__ void keep(int, const uint4&) const {}
  __device__ __forceinline__ T add_residual(int output, float sum) const {
    float& residual = shared.residuals[output - own_rows().begin];
    const T stored = from_float<T>(sum + residual);
    residual = to_float(stored);
    return stored;
  }

  // The block's share of a product.
  __device__ __forceinline__ Range units(int of) const { return shared.ranges[of]; }
  __device__ __forceinline__ bool has_units(int of) const {
    const Range range = units(of);
    return range.begin < range.end;
  }
  __device__ __forceinline__ Range own_rows() const {
    const Range range = units(kOutput);
    return {range.begin * kPanelLanes, range.end * kPanelLanes};
  }
  __device__ __forceinline__ int num_panels_of(int of) const {
    const Range range = units(of);
    return (range.end - range.begin) * (of == kGateUp ? 2 : 1);
  }
  // Of the matrix.
  __device__ __forceinline__ int panel_at(int of, int own) const {
    const Range range = units(of);
    if (of != kGateUp) return range.begin + own;
    return range.begin + own / 2 + (own % 2 == 0 ? 0 : args.intermediate / kPanelLanes);
  }
  __device__ __forceinline__ int num_chunks_of(int of) const { return inputs_of(args, of, D) / integer::kChunk; }

  // ---- Asking for weights -------------------------------------------------------------------------------------------

  // False where the unit's warps want no more keys.
  __device__ __forceinline__ bool ask_keys(uint32_t target, uint64_t* barrier) {
    const Chunks chunks = chunks_of(length);
    const int num_units = chunks.count * args.num_kv_heads;
    while (unit < num_units && step >= num_steps_of(chunks, unit / args.num_kv_heads, length)) {
      unit += static_cast<int>(gridDim.x);
      step = warp();
    }
    if (unit >= num_units) return false;
    const int first = unit / args.num_kv_heads * chunks.size + step * kStepKeys;
    const int64_t page = __ldg(args.page_table + (first >> args.page_shift));
    const int place = (first & ((1 << args.page_shift) - 1)) + quarter % 2 * (kStepKeys / 2);
    const int count = max(0, min(length - 1 - first - quarter % 2 * (kStepKeys / 2), kStepKeys / 2));
    const char* const source = (quarter < 2 ? args.layers[layer].k : args.layers[layer].v) + page * args.page_bytes +
                               unit % args.num_kv_heads * args.head_bytes + place * int64_t{D * 2};
    barrier_arrive_expecting(barrier, static_cast<uint32_t>(count * D * 2));
    if (count > 0) copy_bulk(target, source, count * D * 2, barrier, policy);
    if (++quarter == 4) {
      quarter = 0;
      step += kWarps;
    }
    return true;
  }
  // False where all has been asked for.
  __device__ __forceinline__ bool ask(int into) {
    const uint32_t target = shared_address(ring.stages + into * kStageBytes);
    uint64_t* const barrier = ring.filled + into;
    while (true) {
      if (unit >= 0) {
        if (ask_keys(target, barrier)) return true;
        unit = -1;
      }
      if (panel < num_panels) break;
      if (has_keys) {
        has_keys = false;
        unit = static_cast<int>(blockIdx.x);
        step = warp();
        continue;
      }
      if (++product == kNumProducts) {
        product = 0;
        ++layer;
      }
      if (layer == args.num_layers) return false;
      has_keys = product == kQkv;
      num_panels = num_panels_of(product);
      const int num_chunks = num_chunks_of(product);
      panel = warp() / num_chunks;
      chunk = warp() % num_chunks;
    }
    const int num_chunks = num_chunks_of(product);
    const int64_t at = int64_t{panel_at(product, panel)} * num_chunks + chunk;
    const LayerArgs& own = args.layers[layer];
    barrier_arrive_expecting(barrier, Chunk::kBytes);
    copy_bulk(target, own.weights[product] + at * Chunk::kCodeBytes, Chunk::kCodeBytes, barrier, policy);
    copy_bulk(target + Chunk::kCodeBytes,
              reinterpret_cast<const char*>(own.scales[product]) + at * integer::scale_bytes(Kind),
              integer::scale_bytes(Kind), barrier, policy);
    for (chunk += kWarps; chunk >= num_chunks; chunk -= num_chunks) ++panel;
    return true;
  }
  // The ring that a thread fills: four of each warp.
  static __device__ __forceinline__ int asked_ring() {
    constexpr int kRings = kWarps * 32 / kAskingThreads;
    return (static_cast<int>(threadIdx.x) - kThreads) / 32 * kRings + static_cast<int>(threadIdx.x) % kRings;
  }
  // By warps of their own.
  __device__ __forceinline__ void feed() {
    const bool has_ring = threadIdx.x % 32 < kWarps * 32 / kAskingThreads;
    thread = asked_ring() * 32;
    policy = evict_first_policy();
    length = max(args.context_lengths[0], 1);
    int slot = 0;
    uint32_t slot_parity = 1;
    bool has_more = has_ring;
    while (__any_sync(0xffffffffu, has_more)) {
      const bool is_ready = has_more && is_over(ring.used_up + slot, slot_parity);
      if (is_ready) {
        has_more = ask(slot);
        if (++slot == ring.num_stages) {
          slot = 0;
          slot_parity ^= 1;
        }
      }
      if (!__any_sync(0xffffffffu, is_ready)) __nanosleep(kNap);
    }
  }

  // ---- Inputs -------------------------------------------------------------------------------------------------------

  // Eight inputs from number `at` on, a multiple of eight; four lanes have 32 neighbours.
  __device__ __forceinline__ void put_inputs(int at, int count, const float (&x)[8], float factor) const {
    uint32_t* const place = integer::input_place(reinterpret_cast<uint4*>(inputs()), at);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __half2 pair = __floats2half2_rn(x[2 * i] * factor, x[2 * i + 1] * factor);
      place[4 * i] = *reinterpret_cast<const uint32_t*>(&pair);
      sum += __low2float(pair) + __high2float(pair);
    }
    if constexpr (Chunk::kHasMin) {
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (at % 32 == 0) reinterpret_cast<float*>(inputs() + count * 2)[at / 32] = sum;
    }
  }

  // ---- Products -----------------------------------------------------------------------------------------------------

  // Keys, then values of the warp's steps, in turn. All lanes of the warp that has the step.
  __device__ __forceinline__ KeyRows open_keys(int) const {
    ring.wait();
    Ring next = ring;
    next.skip();
    next.wait();
    return {{ring.stages + ring.stage * kStageBytes, next.stages + next.stage * kStageBytes}};
  }
  __device__ __forceinline__ void close_keys(int) {
    ring.use_up(lane());
    ring.use_up(lane());
  }
  __device__ __forceinline__ void end_keys(int) const {}

  // finish(output, sum, sum of up) by one thread an output.
  template <typename Finish>
  __device__ __forceinline__ void run(int, int of, float input_scale, const Finish& finish) {
    thread = fresh_thread();
    const int num_chunks = num_chunks_of(of);
    const int num_all = num_panels_of(of);
    const uint4* const x = reinterpret_cast<const uint4*>(inputs());
    const float* const input_sums = reinterpret_cast<const float*>(inputs() + inputs_of(args, of, D) * 2);
    float* const partials = reinterpret_cast<float*>(memory + args.sums_at);
    int at_panel = warp() / num_chunks;
    int at_chunk = warp() % num_chunks;
#pragma unroll 1
    for (int first_panel = 0; first_panel < num_all; first_panel += kPanelsAtOnce) {
      const int end_panel = min(first_panel + kPanelsAtOnce, num_all);
      if (first_panel > 0) sync_warps();  // the sums before have been read
      float own[2] = {0, 0};              // rows g and g + 8
      while (at_panel < end_panel) {
        ring.wait();
        integer::take_chunk<Bits, Kind>(own, ring.stages + ring.stage * kStageBytes, x, input_sums, at_chunk,
                                        args.code_offset);
        ring.use_up(lane());
        const int before = at_panel;
        for (at_chunk += kWarps; at_chunk >= num_chunks; at_chunk -= num_chunks) ++at_panel;
        if (at_panel == before) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          own[half] = integer::whole_sum<Kind>(own[half]);
          if (lane() % 4 == 0) {
            partials[((before - first_panel) * kWarps + warp()) * kPanelLanes + lane() / 4 + 8 * half] = own[half];
          }
          own[half] = 0;
        }
      }
      sync_warps();
      // A thread an output: warps in the order of the chunks that they began with.
      const int row = thread % kPanelLanes;
      const int index = first_panel + thread / kPanelLanes * (of == kGateUp ? 2 : 1);
      if (index < end_panel) {
        const auto sum_of = [&](int of_panel) {
          float sum = 0;
          const int first_warp = of_panel * num_chunks % kWarps;
          for (int i = 0; i < min(kWarps, num_chunks); ++i) {
            sum += partials[((of_panel - first_panel) * kWarps + (first_warp + i) % kWarps) * kPanelLanes + row];
          }
          return sum * input_scale;
        };
        const float sum = sum_of(index);
        finish(panel_at(of, index) * kPanelLanes + row, sum, of == kGateUp ? sum_of(index + 1) : 0.0f);
      }
    }
  }
};

}  // namespace quire::cuda::step
