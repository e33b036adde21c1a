// A step of one token through a stack of decoder layers in one kernel.
//
// As many blocks as multiprocessors, all of them resident, 16 warps each that compute and four that ask for weights. A
// layer is five parts: norm and qkv; rotation, writes to pages and attention; output and residual; norm, gate, up and
// activation; down and residual. Blocks hand numbers on through memory (decoder_step_args.cuh). Each product needs all
// numbers of the part before, so a layer is five times the way of a number from one multiprocessor to all others, 1 to
// 2 us each. The limit is the reading of the weights, which goes on meanwhile: rings of 192 KB a multiprocessor, 25 MB
// in all, are filled over the borders of products (decoder_step_rows.cuh). It takes 6 us at full speed to fill them,
// longer than a border lasts.
//
// Rounds where the separate ops would. A row's sum depends on k alone, attention's on the length alone.
#pragma once

#include "ops/cuda/decoder_step_attention.cuh"
#include "ops/cuda/decoder_step_panels.cuh"
#include "ops/cuda/decoder_step_rows.cuh"

namespace quire::cuda::step {

// A product's inputs, and what is waited for before they are read.
struct Source {
  const void* x;
  const float* norm;  // or null
  int count;
  Part part;
  bool is_sent;  // else it was there before the launch
};

// Waits for the inputs, and lays them into shared memory, normed where that is asked for. Returns what products are
// multiplied with.
template <typename T, typename Products, typename Wait>
__device__ __forceinline__ float take_inputs(const Args& args, Shared& shared, Products& products, const Source& source,
                                             const Wait& wait) {
  const int thread = fresh_thread();
  const auto place_of = [&](int v) { return 8 * (v * kThreads + thread); };
  const bool is_normed = source.norm != nullptr;
  // What is not there becomes zeros: else what was there before would have to be kept.
  float norms[kNormedVectors][8];
#pragma unroll
  for (int v = 0; v < kNormedVectors; ++v) {
    float4 parts[2] = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    if (is_normed && place_of(v) < source.count) {
      parts[0] = *reinterpret_cast<const float4*>(source.norm + place_of(v));
      parts[1] = *reinterpret_cast<const float4*>(source.norm + place_of(v) + 4);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      norms[v][4 * i] = parts[i].x, norms[v][4 * i + 1] = parts[i].y;
      norms[v][4 * i + 2] = parts[i].z, norms[v][4 * i + 3] = parts[i].w;
    }
  }
  wait();
  uint4 loaded[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const uint32_t word = place_of(v) < source.count ? kNothing : 0;
    loaded[v] = uint4{word, word, word, word};
  }
  Patience patience;
  bool is_left = true;
#pragma unroll 1
  while (is_left) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!have_halves_come(loaded[v])) {
        loaded[v] = look_at_quad(static_cast<const char*>(source.x) + 2 * place_of(v));
      }
    }
    is_left = false;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) is_left |= !have_halves_come(loaded[v]);
    is_left &= source.is_sent;
    patience.spend();
  }
  const auto value_of = [&](int v, int i) {
    const uint32_t pair = i / 2 == 0 ? loaded[v].x : i / 2 == 1 ? loaded[v].y : i / 2 == 2 ? loaded[v].z : loaded[v].w;
    return i % 2 == 0 ? low_float<T>(pair) : high_float<T>(pair);
  };
  const auto norm_of = [&](int v, int i) { return v < kNormedVectors ? norms[v][i] : 1.0f; };
  float squares = 0;
  float largest = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (place_of(v) >= source.count) break;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float x = value_of(v, i);
      squares += x * x;
      largest = fmaxf(largest, fabsf(x * norm_of(v, i)));
    }
  }
  squares = warp_sum(squares);
  largest = warp_max(largest);
  if (thread % 32 == 0) shared.reduced[thread / 32] = {squares, largest};
  sync_warps();  // and nobody needs the inputs of the product before any more
  const float2 own = shared.reduced[thread % kWarps];
  squares = own.x;
  largest = own.y;
#pragma unroll
  for (int offset = kWarps / 2; offset > 0; offset /= 2) {
    squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  }
  const float norm = is_normed ? 1.0f / sqrtf(squares / static_cast<float>(source.count) + args.epsilon) : 1.0f;
  // Brought near 1 by a power of two where they become f16.
  const uint32_t exponent = min(max(__float_as_uint(largest * norm) >> 23, 2u), 252u);
  const float up = Products::kIsScaled ? __uint_as_float(exponent << 23) : 1.0f;
  const float down = Products::kIsScaled ? __uint_as_float((254u - exponent) << 23) : 1.0f;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (place_of(v) >= source.count) break;
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] = value_of(v, i);
      if (v < kNormedVectors && is_normed) x[i] = to_float(from_float<T>(x[i] * norm * norm_of(v, i)));
    }
    if (is_normed) products.keep(place_of(v), loaded[v]);
    products.put_inputs(place_of(v), source.count, x, down);
  }
  sync_warps();
  return up;
}

// The last warp of those that compute lays the block's share of a copy back to kNothing.
__device__ __forceinline__ bool thread_clears() {
  return threadIdx.x / 32 == kWarps - 1;
}
__device__ __forceinline__ void clear_share(char* copy, int copy_bytes) {
  const int stride = static_cast<int>(gridDim.x) * 32 * 16;
  for (int at = static_cast<int>(blockIdx.x * 32 + threadIdx.x % 32) * 16; at < copy_bytes; at += stride) {
    forget_quad(copy + at);
  }
}

// The warps that compute. Products: Rows or Panels.
template <typename T, typename Products, int D>
__device__ __forceinline__ void compute_step(const Args& args, Shared& shared, Products& products) {
  const Exchange& exchange = args.exchange;
  const auto counter_of = [&](int part) { return exchange.counters + part * kCounterStride; };
  uint32_t* const launch_counters = counter_of(kNumParts);
  products.begin_step();
  // Read again wherever it is needed: registers are few, and what the compiler keeps in memory comes from the L2 cache,
  // since asking for counters empties the first.
  volatile Launch& launch = shared.launch;
  if (threadIdx.x == 0) {
    const uint32_t last_epoch = *reinterpret_cast<volatile const uint32_t*>(launch_counters);
    const int length = max(args.context_lengths[0], 1);
    launch.last_epoch = last_epoch;
    launch.attention_target = *reinterpret_cast<volatile const uint32_t*>(counter_of(kAttentionDone));
    launch.length = length;
    launch.num_telling = Attention<T, D>::num_telling(args, length);
    shared.progress.released = release_of(last_epoch, kNumParts);
  }
  sync_warps();

  for (int layer = 0; layer < args.num_layers; ++layer) {
    const LayerArgs& own_layer = args.layers[layer];
    // Every block tells each part but attention, and tells none before the one in front of it is complete.
    const auto epoch_of = [&](int of_layer) { return launch.last_epoch + static_cast<uint32_t>(of_layer) + 1; };
    const auto wait_for = [&](int part, int of_layer) {
      const uint32_t of_epoch = epoch_of(of_layer);
      const uint32_t target = part == kAttentionDone
                                  ? launch.attention_target + static_cast<uint32_t>(launch.num_telling * (layer + 1))
                                  : of_epoch * gridDim.x;
      wait_for_part(shared.progress, counter_of(part), target, release_of(of_epoch, part), part == kDownDone,
                    fresh_thread());
    };
    const int copy = static_cast<int>(epoch_of(layer) % 2) * exchange.copy_bytes;
    const int other_copy = exchange.copy_bytes - copy;
    const auto in_copy = [](void* first, int offset) -> void* { return static_cast<char*>(first) + offset; };
    const auto tell = [&](int part, int product) {
      tell_part(shared.progress, counter_of(part), static_cast<uint32_t>(layer * kNumProducts + product + 1),
                fresh_thread());
    };
    // One piece of code for all products: with four, instructions came from memory again and again.
#pragma unroll 1
    for (int product = 0; product < kNumProducts; ++product) {
      const bool is_last = product == kDown && layer + 1 == args.num_layers;
      Source source;
      void* y;
      int done;
      if (product == kQkv) {
        source = {layer == 0 ? args.x : in_copy(exchange.x, other_copy), own_layer.attention_norm, args.hidden,
                  kDownDone, layer > 0};
        y = in_copy(exchange.qkv, copy);
        done = kQkvDone;
      } else if (product == kOutput) {
        source = {in_copy(exchange.mixed, copy), nullptr, args.num_heads * D, kAttentionDone, true};
        y = in_copy(exchange.middle, copy);
        done = kOutputDone;
      } else if (product == kGateUp) {
        source = {in_copy(exchange.middle, copy), own_layer.mlp_norm, args.hidden, kOutputDone, true};
        y = in_copy(exchange.gated, copy);
        done = kGateUpDone;
      } else {
        source = {in_copy(exchange.gated, copy), nullptr, args.intermediate, kGateUpDone, true};
        y = is_last ? args.y : in_copy(exchange.x, copy);
        done = kDownDone;
      }
      const auto wait = [&] {
        // What was laid back while gate_up was computed is so for all who hear that down is done.
        if (product == kDown && thread_clears()) asm volatile("fence.acq_rel.gpu;" ::: "memory");
        if (product > 0 || layer > 0) wait_for(source.part, product == kQkv ? layer - 1 : layer);
        if (product == kGateUp && thread_clears()) clear_share(exchange.copies + other_copy, exchange.copy_bytes);
      };
      if (products.has_units(product)) {
        const float scale = take_inputs<T>(args, shared, products, source, wait);
        products.run(layer, product, scale, [&](int output, float sum, float up) {
          T stored;
          if (product == kGateUp) {
            stored = from_float<T>(gated(args.gate, kDTypeOf<T>, sum, up));
          } else if (product == kQkv) {
            stored = from_float<T>(sum);
          } else {
            stored = products.add_residual(output, sum);
          }
          send_half(static_cast<T*>(y) + output, stored);
        });
      } else {
        wait();
      }
      tell(done, product);
      if (product == kQkv && Attention<T, D>::has_work(args, launch.length)) {
        Attention<T, D> attention{.args = args,
                                  .layer = own_layer,
                                  .epoch = epoch_of(layer),
                                  .copy = copy,
                                  .shared = products.memory + args.inputs_at,
                                  .stats = shared.stats,
                                  .length = launch.length,
                                  .thread = fresh_thread()};
        attention.run(products);
        if (static_cast<int>(blockIdx.x) < launch.num_telling) tell(kAttentionDone, product);
      }
    }
  }

  // Everybody has read the epoch once everybody has come here.
  if (threadIdx.x == 0 && atomicAdd(launch_counters + 1, 1u) == gridDim.x - 1) {
    launch_counters[1] = 0;
    uint4* const claims = reinterpret_cast<uint4*>(exchange.claims);
    for (int layer = 0; layer < args.num_layers; ++layer) claims[layer] = uint4{0, 0, 0, 0};
    launch_counters[0] = launch.last_epoch + static_cast<uint32_t>(args.num_layers);
  }
}

template <typename T, typename Products, int D>
__global__ void __launch_bounds__(kThreads + kAskingThreads, 1) decoder_step_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) char dynamic_shared[];
  __shared__ Shared shared;
  Products products{.args = args, .memory = dynamic_shared, .shared = shared};
  products.set_up();
  if (threadIdx.x == 0) shared.progress = {};
  __syncthreads();
  // Registers of the warpgroup that asks go to those that compute.
  if (threadIdx.x >= kThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
    products.feed();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
    compute_step<T, Products, D>(args, shared, products);
  }
}

}  // namespace quire::cuda::step
