// Products of one token with weights of an integer format, inside the kernel of decoder_step.cuh: panels of 16 outputs
// in tiles for the tensor cores, as linear_gemv_integer.cu takes them.
//
// A block has its own panels of every product (of gate_up pairs of a panel of gate and one of up). A panel's k is cut
// into chunks of 256; warps take chunks in turn, over the ends of panels, and add their sums when the product is done.
// A ring a warp is filled as decoder_step_rows.cuh tells. A chunk's sum goes to class `chunk % warps`, ascending;
// classes are added in ascending order: the order depends on k alone.
#pragma once

#include "ops/cuda/decoder_step_args.cuh"
#include "ops/cuda/linear_gemv_integer.cuh"

namespace quire::cuda::step {

template <typename T, int Bits, ScaleKind Kind, int D>
struct Panels {
  using Chunk = integer::Chunk<Bits, Kind>;
  static constexpr int kStageBytes = (Chunk::kBytes + 127) / 128 * 128;
  static constexpr int kPanelsAtOnce = 16;  // whose sums are added over the warps together
  static constexpr int kSumBytes = kPanelsAtOnce * kWarps * kPanelLanes * 4;
  static constexpr bool kIsScaled = true;  // inputs are brought near 1

  static constexpr int input_bytes(int most_inputs) { return 2 * most_inputs + most_inputs / 8 + kSumBytes; }

  const Args& args;
  Ring ring;
  Range* ranges;  // [product] of units
  char* sums;     // [panel][warp][16]
  char* inputs;   // f16, then sums of 32
  int thread = fresh_thread();
  // What is asked for next, known to the lane that asks.
  int layer = 0;
  int product = -1;
  int panel = 0;  // of the block's
  int num_panels = 0;
  int chunk = 0;
  uint64_t policy = 0;

  __device__ __forceinline__ int lane() const { return thread % 32; }
  __device__ __forceinline__ int warp() const { return thread / 32; }

  // Fills `ranges`. All threads, once; a barrier follows.
  __device__ __forceinline__ void divide() const {
    const int of = static_cast<int>(threadIdx.x);
    if (of >= kNumProducts) return;
    const int outputs = of == kOutput || of == kDown ? args.hidden : units_of(args, of, D);
    ranges[of] = share_of(outputs / kPanelLanes, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  }
  // The block's share of a product.
  __device__ __forceinline__ Range units(int of) const { return ranges[of]; }
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

  // False where all has been asked for.
  __device__ __forceinline__ bool ask(int into) {
    if (layer == args.num_layers) return false;
    while (panel >= num_panels) {
      if (++product == kNumProducts) {
        product = 0;
        if (++layer == args.num_layers) return false;
      }
      num_panels = num_panels_of(product);
      const int num_chunks = num_chunks_of(product);
      panel = warp() / num_chunks;
      chunk = warp() % num_chunks;
    }
    const int num_chunks = num_chunks_of(product);
    const int64_t at = int64_t{panel_at(product, panel)} * num_chunks + chunk;
    const uint32_t target = shared_address(ring.stages + into * kStageBytes);
    uint64_t* const barrier = ring.filled + into;
    const LayerArgs& own = args.layers[layer];
    barrier_arrive_expecting(barrier, Chunk::kBytes);
    copy_bulk(target, own.weights[product] + at * Chunk::kCodeBytes, Chunk::kCodeBytes, barrier, policy);
    copy_bulk(target + Chunk::kCodeBytes,
              reinterpret_cast<const char*>(own.scales[product]) + at * integer::scale_bytes(Kind),
              integer::scale_bytes(Kind), barrier, policy);
    for (chunk += kWarps; chunk >= num_chunks; chunk -= num_chunks) ++panel;
    return true;
  }
  // By a warp of its own: lane w fills the ring of warp w. `thread` is a thread of that warp.
  __device__ __forceinline__ void feed(bool has_ring) {
    policy = evict_first_policy();
    int slot = 0;
    uint32_t slot_parity = 1;
    bool has_more = has_ring;
    while (__any_sync(0xffffffffu, has_more)) {
      if (has_more && is_over(ring.used_up + slot, slot_parity)) {
        has_more = ask(slot);
        if (++slot == ring.num_stages) {
          slot = 0;
          slot_parity ^= 1;
        }
      }
    }
  }

  // ---- Inputs -------------------------------------------------------------------------------------------------------

  // Eight inputs from number `at` on, a multiple of eight; four lanes have 32 neighbours.
  __device__ __forceinline__ void put_inputs(int at, int count, const float (&x)[8], float factor) const {
    uint32_t* const place = integer::input_place(reinterpret_cast<uint4*>(inputs), at);
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
      if (at % 32 == 0) reinterpret_cast<float*>(inputs + count * 2)[at / 32] = sum;
    }
  }

  // ---- Products -----------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void prepare(int, int) const {}

  // finish(output, sum, sum of up) by one thread an output.
  template <typename Finish>
  __device__ __forceinline__ void run(int, int of, float input_scale, const Finish& finish) {
    thread = fresh_thread();
    const int num_chunks = num_chunks_of(of);
    const int num_all = num_panels_of(of);
    const uint4* const x = reinterpret_cast<const uint4*>(inputs);
    const float* const input_sums = reinterpret_cast<const float*>(inputs + inputs_of(args, of, D) * 2);
    float* const partials = reinterpret_cast<float*>(sums);
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
