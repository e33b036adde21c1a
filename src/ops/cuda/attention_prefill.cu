// Prefill attention on Hopper: many queries a sequence, K and V straight from the pages (FlashAttention-3's shape).
//
// A unit of work: a tile of 128 queries of a sequence, one query head. As many blocks as the GPU has multiprocessors
// take units in turn, those that see most keys first. A block has three warpgroups:
// - the producer: one warp asks the copy engine for queries and K, one for V, 128 keys a tile (64 where D is 256, 176
//   where long sequences have no mask), 16 keys of one page a box; they run ahead of the consumers, into the next unit
//   too. A warp asks for one box after the other, some 60 cycles each, so boxes must be few.
// - two consumers, of 64 queries each: the next tile's scores are computed while this one's values are summed, over the
//   borders of units.
// Codes of an e4m3 or int8 cache become f16 in memory first, exactly (attention_prefill_convert.cuh), in as many passes
// as that memory is small; their scales multiply scores and weights.
//
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

template <typename T, int D, bool HasCodes, typename S>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
                   const __grid_constant__ CUtensorMap v_map, const __grid_constant__ Args args) {
  extern __shared__ __align__(1024) char dynamic_shared[];  // the swizzle repeats every 1024 bytes
  const Shared<S> shared{dynamic_shared};
  Control<S>& control = shared.control();
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::kQStages; ++s) {
      barrier_init(&control.q_full[s], 1);
      barrier_init(&control.q_empty[s], 4 * kConsumers);  // a warp each
    }
    for (int s = 0; s < S::kKStages; ++s) {
      barrier_init(&control.k_full[s], 1);
      barrier_init(&control.k_empty[s], 4 * kConsumers);
    }
    for (int s = 0; s < S::kVStages; ++s) {
      barrier_init(&control.v_full[s], 1);
      barrier_init(&control.v_empty[s], 4 * kConsumers);
    }
    barrier_init(&control.v_loaded, 1);
    fence_async_proxy();
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (threadIdx.x < 128) {
    const Maps maps{.q = &q_map, .k = &k_map, .v = &v_map};
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kProducerRegisters));
    if (thread < 32) {
      PageProducer<S, true>{.args = args, .shared = shared, .map = &k_map, .lane = thread}.run(maps);
    } else if (thread < 64) {
      PageProducer<S, false>{.args = args, .shared = shared, .map = &v_map, .lane = thread - 32}.run(maps);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kConsumerRegisters));
    // From one lane, so that the compiler knows it to be the warp's: addresses then need no vector registers.
    const int consumer = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128 - 1, 0);
    const int lane = thread % 32;
    Consumer<T, D, HasCodes, S>{.args = args,
                                .shared = shared,
                                .control = control,
                                .consumer = consumer,
                                .thread = thread,
                                .lane = lane,
                                .row = consumer * kConsumerRows + thread / 32 * 16 + lane / 4}
        .run();
  }
}

// Boxes of eight keys and 128 bytes of their elements, from [page][head][token][d].
CUtensorMap make_narrow_kv_map(const PagedKv& kv, void* data) {
  const int64_t sizes[] = {kv.head_dim, kv.page_size, kv.num_kv_heads, kv.num_pages};
  const int64_t strides[] = {kv.token_stride, kv.head_stride, kv.page_stride};
  const int32_t box[] = {64, kGroupKeys, 1, 1};
  return make_tensor_map({.dtype = kv.dtype, .data = data, .sizes = sizes, .strides = strides, .box = box});
}

// Boxes of some keys and all of their D elements, from [page][head and eight tokens][64 elements][token][element].
template <int D>
CUtensorMap make_wide_kv_map(const PagedKv& kv, void* data, int num_keys) {
  const int64_t sizes[] = {64, kGroupKeys, D / 64, int64_t{kv.num_kv_heads} * kv.page_size / kGroupKeys, kv.num_pages};
  const int64_t strides[] = {kv.token_stride, 64, kGroupKeys * kv.token_stride, kv.page_stride};
  const int32_t box[] = {64, kGroupKeys, D / 64, num_keys / kGroupKeys, 1};
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

// `kv` holds what the kernel reads: the cache, or what was converted of it.
template <typename T, int D, bool HasCodes, typename S = Shape<D, HasCodes>>
void launch_kernel(const AttentionCall& call, const PagedKv& kv, const Args& args) {
  const auto make_map = [&](void* data) {
    return args.box_keys > 0 ? make_wide_kv_map<D>(kv, data, args.box_keys) : make_narrow_kv_map(kv, data);
  };
  constexpr int kBytes = kSharedBytes<S>;
  static_assert(kBytes <= 227 * 1024);
  const auto kernel = prefill_kernel<T, D, HasCodes, S>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const unsigned grid = static_cast<unsigned>(std::min(args.num_units, num_multiprocessors()));
  kernel<<<grid, kThreads, kBytes, call.stream>>>(make_q_map(call.q), make_map(kv.k), make_map(kv.v), args);
  CUDA_CHECK_LAUNCH();
}

// Larger tiles have fewer ends; on less than this the last one, which is not full, costs more.
bool takes_long_tiles(const AttentionCall& call, const Args& args) {
  return !args.is_causal && args.window == 0 && args.box_keys > 0 && !call.plan.is_strict &&
         std::ranges::all_of(call.batch.host_context_lengths, [](int32_t length) { return length >= kLongLength; });
}

template <typename T, int D>
void launch(const AttentionCall& call, Args args) {
  const PagedKv& kv = call.kv;
  args.box_keys = kv.head_dim == D && kv.head_stride == kv.page_size * kv.token_stride ? kBoxKeys : 0;
  if constexpr (D == 128) {
    if (takes_long_tiles(call, args)) {
      return launch_kernel<T, D, false, Shape<D, false, kLongKeys>>(call, kv, args);
    }
  }
  launch_kernel<T, D, false>(call, kv, args);
}

// As many KV heads at once as the memory takes.
template <typename T, int D>
void launch_pass(const AttentionCall& call, Args args, const PrefillPass& pass) {
  constexpr int64_t kTileBytes = int64_t{kConvertedKeys} * D * 2;
  const CudaAttentionPlan& plan = call.plan;
  const int64_t num_tiles = pass.num_tiles;
  const int64_t head_bytes = num_tiles * converted_tile_bytes(D);
  CHECK(head_bytes <= plan.converted.num_bytes());
  const int heads_at_once =
      static_cast<int>(std::min<int64_t>(args.num_kv_heads, plan.converted.num_bytes() / head_bytes));
  char* const memory = static_cast<char*>(plan.converted.data());
  const PagedKv& kv = call.kv;
  args.items += pass.first_item;
  for (int first = 0; first < kv.num_kv_heads; first += heads_at_once) {
    const int num_heads = std::min(heads_at_once, kv.num_kv_heads - first);
    PagedKv converted;
    converted.dtype = DType::kF16;
    converted.k = memory;
    converted.v = memory + num_tiles * num_heads * kTileBytes;
    converted.page_stride = int64_t{num_heads} * kConvertedKeys * D;
    converted.head_stride = kConvertedKeys * D;
    converted.token_stride = D;
    converted.num_pages = pass.num_tiles;
    converted.page_size = kConvertedKeys;
    converted.num_kv_heads = num_heads;
    converted.head_dim = D;
    float* const scales = reinterpret_cast<float*>(memory + 2 * num_tiles * num_heads * kTileBytes);
    const ConvertArgs convert_args{
        .k = static_cast<const char*>(kv.k),
        .v = static_cast<const char*>(kv.v),
        .k_scales = args.k_scales,
        .v_scales = args.v_scales,
        .page_bytes = kv.page_stride,
        .head_bytes = kv.head_stride,
        .token_bytes = kv.token_stride,
        .scale_page_stride = kv.scale_page_stride,
        .page_size = kv.page_size,
        .head_dim = kv.head_dim,
        .first_kv_head = first,
        .page_table = args.page_table,
        .page_table_stride = args.page_table_stride,
        .sequences = static_cast<const PrefillSequence*>(plan.prefill_sequences.data()) + pass.first_sequence,
        .converted_k = static_cast<char*>(converted.k),
        .converted_v = static_cast<char*>(converted.v),
        .converted_scales = scales};
    const dim3 grid(static_cast<unsigned>(pass.most_tiles), static_cast<unsigned>(num_heads),
                    static_cast<unsigned>(pass.num_sequences));
    const auto kernel = kv.dtype == DType::kI8 ? convert_kernel<D, true> : convert_kernel<D, false>;
    kernel<<<grid, 256, 0, call.stream>>>(convert_args);
    CUDA_CHECK_LAUNCH();
    args.page_size = kConvertedKeys;
    args.first_head = first * args.group_size;
    args.num_unit_heads = num_heads * args.group_size;
    args.num_units = pass.num_items * args.num_unit_heads;
    args.box_keys = Shape<D, true>::kKeys;
    args.converted_scales = scales;
    launch_kernel<T, D, true>(call, converted, args);
  }
}

template <typename T, int D>
void launch_converting(const AttentionCall& call, const Args& args) {
  for (const PrefillPass& pass : call.plan.passes) launch_pass<T, D>(call, args, pass);
}

template <typename T>
void launch_for_dimension(const AttentionCall& call, const Args& args) {
  if (has_kv_scales(call.kv.dtype)) {
    if (args.head_dim <= 64) return launch_converting<T, 64>(call, args);
    if (args.head_dim <= 128) return launch_converting<T, 128>(call, args);
    return launch_converting<T, 256>(call, args);
  }
  if (args.head_dim <= 64) return launch<T, 64>(call, args);
  if (args.head_dim <= 128) return launch<T, 128>(call, args);
  launch<T, 256>(call, args);
}

}  // namespace prefill

bool accepts_prefill_wgmma(const AttentionCall& call) {
  const PagedKv& kv = call.kv;
  const auto is_wide = [&](int64_t stride) { return stride * dtype_bytes(kv.dtype) % 16 == 0; };
  const bool has_dimension =
      has_kv_scales(kv.dtype)
          ? kv.head_dim % 16 == 0 && kv.head_dim <= kMostConvertedDim && has_kv_scales(call.plan.geometry.kv_dtype)
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
  args.group_size = args.num_heads / args.num_kv_heads;
  args.first_head = 0;
  args.num_unit_heads = args.num_heads;
  args.num_units = call.plan.num_prefill_items * args.num_heads;
  args.box_keys = 0;
  args.converted_scales = nullptr;
  if (call.q.dtype() == DType::kBF16) {
    prefill::launch_for_dimension<bf16>(call, args);
  } else {
    prefill::launch_for_dimension<f16>(call, args);
  }
}

}  // namespace quire::cuda
