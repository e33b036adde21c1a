// Prefill attention on Hopper: many queries a sequence, K and V straight from the pages (FlashAttention-3's shape).
//
// A unit of work: a tile of 128 queries of a sequence, one query head. As many blocks as the GPU has multiprocessors
// take units in turn, those that see most keys first. A block has three warpgroups.
//   producer:  one warp asks the copy engine for queries and K, one for V, 128 keys a tile (64 where D is 256), 16 keys
//   of one page a box; they run ahead of the consumers, into the next unit too. A warp asks for one box after the
//   other, some 60 cycles each, so boxes must be few. Of an e4m3 cache all four warps turn codes into f16, exactly;
//   scales of K go to scores, those of V to weights consumers: two warpgroups of 64 queries each; the next tile's
//   scores are computed while this one's values are summed, over the borders of units
// Both products run on the tensor cores from shared memory (wgmma), P from registers. The limit is arithmetic:
// 4 · head_dim operations a query, key and head. Softmax in float, base 2; P is rounded to the dtype of the products.
// A head_dim between 64, 128 and 256 is filled with zeros. Tiles of keys stand at multiples of their size and are taken
// in ascending order, masked keys add zeros: a query's bits do not depend on how the prompt was cut. Equals the loop of
// reference_attention.cc.
#include <algorithm>

#include "ops/cuda/attention_prefill_consumer.cuh"
#include "ops/cuda/attention_prefill_producer.cuh"
#include "ops/cuda/cuda_support.h"
#include "ops/cuda/tensor_map.h"

namespace quire::cuda {

namespace prefill {

template <typename T, int D, bool IsF8>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
                   const __grid_constant__ CUtensorMap v_map, const __grid_constant__ Args args) {
  using S = Shape<D, IsF8>;
  extern __shared__ __align__(1024) char dynamic_shared[];  // the swizzle repeats every 1024 bytes
  const Shared<S> shared{dynamic_shared};
  Control<S>& control = shared.control();
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::kQStages; ++s) {
      barrier_init(&control.q_full[s], 1);
      barrier_init(&control.q_empty[s], 4 * kConsumers);  // a warp each
    }
    for (int s = 0; s < S::kKStages; ++s) {
      barrier_init(&control.k_full[s], IsF8 ? 4 : 1);  // a warp each, or the copies
      barrier_init(&control.k_empty[s], 4 * kConsumers);
    }
    for (int s = 0; s < S::kVStages; ++s) {
      barrier_init(&control.v_full[s], IsF8 ? 4 : 1);
      barrier_init(&control.v_empty[s], 4 * kConsumers);
    }
    barrier_init(&control.v_loaded, 1);
    barrier_init(&control.k_codes, 1);
    barrier_init(&control.v_codes, 1);
    fence_async_proxy();
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (threadIdx.x < 128) {
    const Maps maps{.q = &q_map, .k = &k_map, .v = &v_map};
    if constexpr (IsF8) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
      produce_from_f8<S>(args, shared, maps, thread);
    } else {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
      if (thread < 32) {
        PageProducer<S, true>{.args = args, .shared = shared, .map = &k_map, .lane = thread}.run(maps);
      } else if (thread < 64) {
        PageProducer<S, false>{.args = args, .shared = shared, .map = &v_map, .lane = thread - 32}.run(maps);
      }
    }
  } else {
    if constexpr (IsF8) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    }
    const int consumer = static_cast<int>(threadIdx.x) / 128 - 1;
    const int lane = thread % 32;
    Consumer<T, D, IsF8>{.args = args,
                         .shared = shared,
                         .control = control,
                         .consumer = consumer,
                         .thread = thread,
                         .lane = lane,
                         .row = consumer * kConsumerRows + thread / 32 * 16 + lane / 4}
        .run();
  }
}

// Boxes of some keys and 128 bytes of their elements, from [page][head][token][d].
CUtensorMap make_kv_map(const PagedKv& kv, void* data) {
  const int64_t sizes[] = {kv.head_dim, kv.page_size, kv.num_kv_heads, kv.num_pages};
  const int64_t strides[] = {kv.token_stride, kv.head_stride, kv.page_stride};
  const bool has_codes = kv.dtype == DType::kF8E4M3;
  const int32_t box[] = {kRowBytes / static_cast<int>(dtype_bytes(kv.dtype)), has_codes ? kBoxKeys : kGroupKeys, 1, 1};
  return make_tensor_map({.dtype = kv.dtype, .data = data, .sizes = sizes, .strides = strides, .box = box});
}

// Boxes of 16 keys and all of their D elements, from [page][head and eight tokens][64 elements][token][element].
template <int D>
CUtensorMap make_wide_kv_map(const PagedKv& kv, void* data) {
  const int64_t sizes[] = {64, kGroupKeys, D / 64, int64_t{kv.num_kv_heads} * kv.page_size / kGroupKeys, kv.num_pages};
  const int64_t strides[] = {kv.token_stride, 64, kGroupKeys * kv.token_stride, kv.page_stride};
  const int32_t box[] = {64, kGroupKeys, D / 64, kBoxKeys / kGroupKeys, 1};
  return make_tensor_map({.dtype = kv.dtype, .data = data, .sizes = sizes, .strides = strides, .box = box});
}

// Boxes of a tile's rows and 64 elements of one head.
CUtensorMap make_q_map(const ConstTensorView& q) {
  const int64_t sizes[] = {q.size(2), q.size(1), q.size(0), 1};
  const int64_t strides[] = {q.stride(1), q.stride(0), q.size(0) * q.stride(0)};
  const int32_t box[] = {64, 1, kPrefillTileRows, 1};
  return make_tensor_map(
      {.dtype = q.dtype(), .data = const_cast<void*>(q.raw_data()), .sizes = sizes, .strides = strides, .box = box});
}

template <typename T, int D, bool IsF8>
void launch(const AttentionCall& call, Args args) {
  const PagedKv& kv = call.kv;
  args.is_wide = !IsF8 && kv.head_dim == D && kv.head_stride == kv.page_size * kv.token_stride;
  const auto make_map = [&](void* data) {
    return args.is_wide ? make_wide_kv_map<D>(kv, data) : make_kv_map(kv, data);
  };
  constexpr int kBytes = kSharedBytes<Shape<D, IsF8>>;
  static_assert(kBytes <= 227 * 1024);
  const auto kernel = prefill_kernel<T, D, IsF8>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const unsigned grid = static_cast<unsigned>(std::min(args.num_units, num_multiprocessors()));
  kernel<<<grid, kThreads, kBytes, call.stream>>>(make_q_map(call.q), make_map(kv.k), make_map(kv.v), args);
  CUDA_CHECK_LAUNCH();
}

template <typename T>
void launch_for_dimension(const AttentionCall& call, const Args& args) {
  if (call.kv.dtype == DType::kF8E4M3) return launch<T, 128, true>(call, args);
  if (args.head_dim <= 64) return launch<T, 64, false>(call, args);
  if (args.head_dim <= 128) return launch<T, 128, false>(call, args);
  launch<T, 256, false>(call, args);
}

}  // namespace prefill

bool accepts_prefill_wgmma(const AttentionCall& call) {
  const PagedKv& kv = call.kv;
  const auto is_wide = [&](int64_t stride) { return stride * dtype_bytes(kv.dtype) % 16 == 0; };
  const bool has_dimension = kv.dtype == DType::kF8E4M3
                                 ? kv.head_dim % 16 == 0 && kv.head_dim <= 128
                                 : kv.dtype == call.q.dtype() && kv.head_dim % 8 == 0 && kv.head_dim <= 256;
  return call.part == StepPart::kPrefill && (call.q.dtype() == DType::kBF16 || call.q.dtype() == DType::kF16) &&
         has_dimension && kv.page_size % prefill::kBoxKeys == 0 && is_aligned(kv.k, 16) && is_aligned(kv.v, 16) &&
         is_wide(kv.page_stride) && is_wide(kv.head_stride) && is_wide(kv.token_stride) &&
         is_aligned(call.q.raw_data(), 16) && call.q.stride(0) % 8 == 0 && call.q.stride(1) % 8 == 0 &&
         is_aligned(call.out.raw_data(), 16) && call.out.stride(0) % 8 == 0 && call.out.stride(1) % 8 == 0;
}

void attention_prefill_wgmma(const AttentionCall& call) {
  prefill::Args args(call);
  args.head_dim = call.kv.head_dim;
  args.page_size = call.kv.page_size;
  args.items = static_cast<const PrefillItem*>(call.plan.prefill_items.data());
  args.num_units = call.plan.num_prefill_items * args.num_heads;
  args.is_wide = false;
  if (call.q.dtype() == DType::kBF16) {
    prefill::launch_for_dimension<bf16>(call, args);
  } else {
    prefill::launch_for_dimension<f16>(call, args);
  }
}

}  // namespace quire::cuda
