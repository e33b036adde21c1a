// Products of one token with rows of float weights, inside the kernel of decoder_step.cuh: weights of the activations'
// dtype, or e4m3 with a scale an output.
//
// A warp has its own rows of every product, and a ring of its own in shared memory, that bulk copies fill. Its first
// lane asks for the next piece of weights whenever a piece has been used, in the order in which the warp will want
// them, over the ends of rows, products and layers: so memory works on while the warp waits for inputs. Two rows are
// multiplied together (of a single row, two pieces); lanes have 16 bytes of each in turn. Sums are float; the order
// depends on k alone.
#pragma once

#include "ops/cuda/decoder_step_args.cuh"
#include "ops/cuda/mma.cuh"

namespace quire::cuda::step {

// Rows that are multiplied together.
struct Item {
  int first;   // or -1: no more
  int second;  // or -1
};

// W is T, or uint8_t for e4m3.
template <typename T, typename W, int D>
struct Rows {
  static constexpr bool kIsF8 = sizeof(W) == 1;
  static constexpr int kStageBytes = 4096;  // of a warp's ring
  static constexpr int kSumBytes = 0;       // of shared memory, for sums
  static constexpr int kHalfStage = kStageBytes / 2;
  static constexpr bool kIsScaled = kIsF8;  // inputs are brought near 1

  static constexpr int input_bytes(int most_inputs) { return 2 * most_inputs; }

  const Args& args;
  Ring ring;
  Range* ranges;  // [product] of units: the block's
  char* sums;     // not used
  char* inputs;   // T; beside e4m3 weights f16, the second eights of 16 apart
  int thread = fresh_thread();
  float next_scale = 1;
  // What is asked for next, known to the lane that asks.
  int layer = 0;
  int product = -1;
  int round = 0;
  const char* first = nullptr;
  const char* second = nullptr;
  int left = 0;  // bytes of a row
  uint64_t policy = 0;

  __device__ __forceinline__ int lane() const { return thread % 32; }

  // Fills `ranges`. All threads, once; a barrier follows.
  __device__ __forceinline__ void divide() const {
    const int of = static_cast<int>(threadIdx.x);
    if (of >= kNumProducts) return;
    ranges[of] = share_of(units_of(args, of, D), static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  }
  __device__ __forceinline__ bool has_units(int of) const { return ranges[of].begin < ranges[of].end; }
  // The rows of the residual stream that the block has.
  __device__ __forceinline__ Range own_rows() const { return {2 * ranges[kOutput].begin, 2 * ranges[kOutput].end}; }
  // Item number `round` of the warp. Warps that work at the same time have neighbouring rows: memory reads whole pages.
  __device__ __forceinline__ Item item_at(int of, int round) const {
    const Range range = ranges[of];
    const int warp = thread / 32;
    if (of == kQkv) {  // pairs of rows, and single ones of what is left
      const int num_pairs = (range.end - range.begin) / (2 * kWarps);
      if (round < num_pairs) {
        const int row = range.begin + 2 * (round * kWarps + warp);
        return {row, row + 1};
      }
      const int row = range.begin + (num_pairs + round) * kWarps + warp;
      return {row < range.end ? row : -1, -1};
    }
    const int unit = range.begin + round * kWarps + warp;
    if (unit >= range.end) return {-1, -1};
    if (of == kGateUp) return {unit, unit + args.intermediate};
    return {2 * unit, 2 * unit + 1};
  }

  // ---- Asking for weights -------------------------------------------------------------------------------------------

  __device__ __forceinline__ void open_item() {
    Item item = {-1, -1};
    if (product >= 0) item = item_at(product, round++);
    while (item.first < 0) {
      if (++product == kNumProducts) {
        product = 0;
        if (++layer == args.num_layers) return;
      }
      item = item_at(product, 0);
      round = 1;
    }
    left = inputs_of(args, product, D) * static_cast<int>(sizeof(W));
    const char* weights = args.layers[layer].weights[product];
    first = weights + int64_t{item.first} * left;
    second = item.second < 0 ? nullptr : weights + int64_t{item.second} * left;
  }
  // False where all has been asked for.
  __device__ __forceinline__ bool ask(int into) {
    if (layer == args.num_layers) return false;
    if (left == 0) open_item();
    if (layer == args.num_layers) return false;
    const uint32_t target = shared_address(ring.stages + into * kStageBytes);
    uint64_t* const barrier = ring.filled + into;
    const int most = second != nullptr ? kHalfStage : kStageBytes;
    const int num_bytes = min(left, most);
    if (second != nullptr) {
      barrier_arrive_expecting(barrier, static_cast<uint32_t>(2 * num_bytes));
      copy_bulk(target, first, num_bytes, barrier, policy);
      copy_bulk(target + kHalfStage, second, num_bytes, barrier, policy);
      second += num_bytes;
    } else {
      barrier_arrive_expecting(barrier, static_cast<uint32_t>(num_bytes));
      copy_bulk(target, first, num_bytes, barrier, policy);
    }
    first += num_bytes;
    left -= num_bytes;
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

  // Eight inputs from number `at` on, a multiple of eight.
  __device__ __forceinline__ void put_inputs(int at, int count, const float (&x)[8], float factor) const {
    if constexpr (kIsF8) {
      *reinterpret_cast<uint4*>(inputs + at % 16 / 8 * count + at / 16 * 16) = {
          pack_pair<f16>(x[0] * factor, x[1] * factor), pack_pair<f16>(x[2] * factor, x[3] * factor),
          pack_pair<f16>(x[4] * factor, x[5] * factor), pack_pair<f16>(x[6] * factor, x[7] * factor)};
    } else {
      *reinterpret_cast<uint4*>(inputs + at * 2) = {pack_pair<T>(x[0], x[1]), pack_pair<T>(x[2], x[3]),
                                                    pack_pair<T>(x[4], x[5]), pack_pair<T>(x[6], x[7])};
    }
  }

  // ---- Products -----------------------------------------------------------------------------------------------------

  // The inputs of the 16 bytes of a row at byte `at`.
  struct Inputs {
    uint4 x[kIsF8 ? 2 : 1];
  };
  __device__ __forceinline__ Inputs load_inputs(int at, int row_bytes) const {
    Inputs loaded;
    loaded.x[0] = *reinterpret_cast<const uint4*>(inputs + at);
    if constexpr (kIsF8) loaded.x[1] = *reinterpret_cast<const uint4*>(inputs + row_bytes + at);
    return loaded;
  }
  static __device__ __forceinline__ float add_products(float sum, const char* weights, const Inputs& in) {
    const uint4 loaded = *reinterpret_cast<const uint4*>(weights);
    const uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
    if constexpr (kIsF8) {
      const uint32_t low[4] = {in.x[0].x, in.x[0].y, in.x[0].z, in.x[0].w};
      const uint32_t high[4] = {in.x[1].x, in.x[1].y, in.x[1].z, in.x[1].w};
      const auto halves = [](uint32_t bits) { return *reinterpret_cast<const __half2*>(&bits); };
      __half2 products = __float2half2_rn(0.0f);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t* x = i < 2 ? low : high;
        products = __hfma2(halves(unpack_f8_pair(words[i])), halves(x[i % 2 * 2]), products);
        products = __hfma2(halves(unpack_f8_pair(words[i] >> 16)), halves(x[i % 2 * 2 + 1]), products);
      }
      return sum + (__low2float(products) + __high2float(products));
    } else {
      const uint32_t x[4] = {in.x[0].x, in.x[0].y, in.x[0].z, in.x[0].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum = fmaf(float_of<T>(words[i]), float_of<T>(x[i]), sum);
        sum = fmaf(high_float_of<T>(words[i]), high_float_of<T>(x[i]), sum);
      }
      return sum;
    }
  }
  // The scale of the lane's row of an item: the first half of the warp has the first row.
  __device__ __forceinline__ float scale_of(int at_layer, int of, const Item& item) const {
    if constexpr (!kIsF8) return 1;
    const float* scales = args.layers[at_layer].scales[of];
    return scales[lane() < 16 || item.second < 0 ? item.first : item.second];
  }
  // Before the inputs are waited for.
  __device__ __forceinline__ void prepare(int at_layer, int of) {
    const Item item = item_at(of, 0);
    if (item.first >= 0) next_scale = scale_of(at_layer, of, item);
  }

  // finish(output, sum, sum of up) by one thread an output.
  template <typename Finish>
  __device__ __forceinline__ void run(int at_layer, int of, float input_scale, const Finish& finish) {
    thread = fresh_thread();
    const int row_bytes = inputs_of(args, of, D) * static_cast<int>(sizeof(W));
    Item next = item_at(of, 0);
#pragma unroll 1
    for (int number = 1; next.first >= 0; ++number) {
      const Item item = next;
      const float scale = next_scale * input_scale;
      next = item_at(of, number);
      if (next.first >= 0) next_scale = scale_of(at_layer, of, next);
      const bool is_pair = item.second >= 0;
      float sums[2] = {0, 0};
      const int step = is_pair ? kHalfStage : kStageBytes;
#pragma unroll 1
      for (int done = 0; done < row_bytes; done += step) {
        ring.wait();
        const char* here = ring.stages + ring.stage * kStageBytes + 16 * lane();
        if (is_pair) {
#pragma unroll 2
          for (int i = 0; i < kHalfStage; i += 512) {
            const int at = done + i + 16 * lane();
            if (at < row_bytes) {
              const Inputs x = load_inputs(at, row_bytes);
              sums[0] = add_products(sums[0], here + i, x);
              sums[1] = add_products(sums[1], here + kHalfStage + i, x);
            }
          }
        } else {
#pragma unroll 2
          for (int i = 0; i < kStageBytes; i += 512) {
            const int at = done + i + 16 * lane();
            if (at < row_bytes) sums[0] = add_products(sums[0], here + i, load_inputs(at, row_bytes));
          }
        }
        ring.use_up(lane());
      }
      // Each half of the warp ends with its row's sum.
      const bool is_upper = lane() >= 16;
      float sum = is_upper ? sums[1] : sums[0];
      sum += __shfl_xor_sync(0xffffffffu, is_upper ? sums[0] : sums[1], 16);
#pragma unroll
      for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      if constexpr (kIsF8) sum *= scale;
      const float up = __shfl_sync(0xffffffffu, sum, 16);
      const bool is_gated = of == kGateUp;
      if (lane() == 0 || (lane() == 16 && is_pair && !is_gated))
        finish(lane() == 0 ? item.first : item.second, sum, up);
    }
  }
};

}  // namespace quire::cuda::step
