// The host's part of attention on the GPU: which chunks and tiles a step has, and the choice of a row for each part.
#include <algorithm>

#include "ops/attention_parts.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/cuda_support.h"
#include "ops/host_memory.h"

namespace quire::cuda {

namespace {

// Of converted keys and values, unless one sequence needs more: steps with more of them take several passes.
constexpr int64_t kConvertedBytes = int64_t{128} << 20;

Result<DeviceBuffer> allocate_filled(int64_t num_bytes, int byte) {
  void* data = nullptr;
  const size_t size = static_cast<size_t>(std::max<int64_t>(num_bytes, 256));
  if (const cudaError_t error = cudaMalloc(&data, size); error != cudaSuccess) {
    (void)cudaGetLastError();
    return resource_exhausted("the GPU has no " + format_bytes(num_bytes) + " left for attention (" +
                              cudaGetErrorString(error) + "): allow fewer sequences or a smaller share of its memory");
  }
  CUDA_CHECK(cudaMemset(data, byte, size));
  return DeviceBuffer(data, num_bytes, Device{DeviceKind::kCuda, 0}, [](void* block) { (void)cudaFree(block); });
}

Result<DeviceBuffer> allocate_zeros(int64_t num_bytes) {
  return allocate_filled(num_bytes, 0);
}

Result<DeviceBuffer> allocate_pinned(int64_t num_bytes) {
  void* data = nullptr;
  if (const cudaError_t error = cudaMallocHost(&data, static_cast<size_t>(num_bytes)); error != cudaSuccess) {
    (void)cudaGetLastError();
    return resource_exhausted("the system pins no " + format_bytes(num_bytes) + " of memory for attention (" +
                              cudaGetErrorString(error) + ")");
  }
  return DeviceBuffer(data, num_bytes, Device{}, [](void* block) { (void)cudaFreeHost(block); });
}

template <typename T>
void copy_items(cudaStream_t stream, const DeviceBuffer& buffer, std::span<const T> items) {
  if (items.empty()) return;
  CHECK(items.size_bytes() <= static_cast<size_t>(buffer.num_bytes()));
  CUDA_CHECK(cudaMemcpyAsync(buffer.data(), items.data(), items.size_bytes(), cudaMemcpyHostToDevice, stream));
}

// Steps with nearly as many items launch the same number of blocks: up to an eighth more than there is work.
int padded_count(int count) {
  int step = 8;
  while (step * 16 <= count) step *= 2;
  return (count + step - 1) / step * step;
}

}  // namespace

Result<std::unique_ptr<AttentionPlan>> create_attention_plan(const AttentionGeometry& geometry, bool is_strict) {
  auto plan = std::make_unique<CudaAttentionPlan>();
  plan->geometry = geometry;
  plan->is_strict = is_strict;
  const int64_t num_sequences = std::max(1, geometry.max_num_sequences);
  const int64_t max_items = padded_count(static_cast<int>(num_sequences) * kMaxDecodeChunks);
  const int64_t max_tiles = num_sequences + geometry.max_num_tokens / kPrefillTileRows + 1;
  ASSIGN_OR_RETURN(plan->decode_items, allocate_zeros(max_items * int64_t{sizeof(DecodeItem)}));
  ASSIGN_OR_RETURN(plan->prefill_items, allocate_zeros(max_tiles * int64_t{sizeof(PrefillItem)}));
  ASSIGN_OR_RETURN(plan->prefill_sequences, allocate_zeros(num_sequences * int64_t{sizeof(PrefillSequence)}));
  const int64_t host_bytes = max_items * int64_t{sizeof(DecodeItem)} + max_tiles * int64_t{sizeof(PrefillItem)} +
                             num_sequences * int64_t{sizeof(PrefillSequence)} + num_sequences;
  ASSIGN_OR_RETURN(plan->host_items, allocate_pinned(2 * ceil_div<int64_t>(host_bytes, 256) * 256));
  if (is_strict) {
    ASSIGN_OR_RETURN(plan->takes_prefill, allocate_zeros(num_sequences));
  }
  ASSIGN_OR_RETURN(plan->partials, allocate_zeros(max_items * geometry.num_heads * (geometry.head_dim + 2) * 4));
  ASSIGN_OR_RETURN(plan->messages, allocate_filled(int64_t{kMostMessages} * kMessageBytes, 0xff));
  ASSIGN_OR_RETURN(plan->counters, allocate_zeros(num_sequences * geometry.num_heads * 4));
  if (has_kv_scales(geometry.kv_dtype) && geometry.head_dim <= kMostConvertedDim) {
    const int64_t tile_bytes = converted_tile_bytes(geometry.head_dim);
    const int64_t longest = ceil_div<int64_t>(geometry.max_context, kConvertedKeys) * tile_bytes;
    ASSIGN_OR_RETURN(plan->converted, allocate_zeros(std::max(kConvertedBytes, longest)));
  }
  plan->passes.reserve(static_cast<size_t>(num_sequences));
  return std::unique_ptr<AttentionPlan>(std::move(plan));
}

void plan_attention(cudaStream_t stream, CudaAttentionPlan& plan, const AttentionBatch& batch) {
  CHECK(batch.num_sequences <= std::max(1, plan.geometry.max_num_sequences));
  // What lay in this half has been copied: the step before the last one has ended.
  plan.host_half ^= 1;
  char* const host_items =
      static_cast<char*>(plan.host_items.data()) + plan.host_half * (plan.host_items.num_bytes() / 2);
  DecodeItem* const decode_items = reinterpret_cast<DecodeItem*>(host_items);
  PrefillItem* const prefill_items = reinterpret_cast<PrefillItem*>(host_items + plan.decode_items.num_bytes());
  PrefillSequence* const prefill_sequences =
      reinterpret_cast<PrefillSequence*>(reinterpret_cast<char*>(prefill_items) + plan.prefill_items.num_bytes());
  uint8_t* const takes_prefill = reinterpret_cast<uint8_t*>(prefill_sequences) + plan.prefill_sequences.num_bytes();
  if (plan.is_strict) {
    CHECK(batch.host_is_prompt.size() == static_cast<size_t>(batch.num_sequences));
    std::transform(batch.host_is_prompt.begin(), batch.host_is_prompt.end(), takes_prefill,
                   [](uint8_t is_prompt) { return static_cast<uint8_t>(is_prompt == kPrompt); });
  }
  plan.shares_new_keys = plan.is_strict && std::find(batch.host_is_prompt.begin(), batch.host_is_prompt.end(),
                                                     kDrawnBesideOthers) != batch.host_is_prompt.end();
  const auto num_queries_of = [&](size_t i) { return batch.host_query_starts[i + 1] - batch.host_query_starts[i]; };
  const auto is_decode = [&](size_t i) { return num_queries_of(i) == 1 && !(plan.is_strict && takes_prefill[i] != 0); };
  int num_decode = 0;
  int num_prefill = 0;
  plan.num_decode_sequences = 0;
  plan.has_several_chunks = false;
  plan.num_prefill_sequences = 0;
  plan.passes.clear();
  // Tiles of one KV head that there is room for. What no kernel converts has no passes.
  const int64_t most_tiles = plan.converted.num_bytes() > 0
                                 ? plan.converted.num_bytes() / converted_tile_bytes(plan.geometry.head_dim)
                                 : INT64_MAX;
  for (int s = 0; s < batch.num_sequences; ++s) {
    const size_t i = static_cast<size_t>(s);
    const int num_queries = num_queries_of(i);
    if (is_decode(i)) {
      ++plan.num_decode_sequences;
    } else if (num_queries > 0) {
      CHECK(!plan.is_strict || takes_prefill[i] != 0);
      const int length = batch.host_context_lengths[i];
      const int window = plan.geometry.window;
      const int first_key = window > 0 ? std::max(0, length - num_queries - window + 1) : 0;
      const int first_tile = first_key / kConvertedKeys;
      const int num_tiles = ceil_div(length, kConvertedKeys) - first_tile;
      CHECK(num_tiles <= most_tiles);
      if (plan.passes.empty() || plan.passes.back().num_tiles + int64_t{num_tiles} > most_tiles) {
        plan.passes.push_back({.first_sequence = plan.num_prefill_sequences,
                               .num_sequences = 0,
                               .first_item = num_prefill,
                               .num_items = 0,
                               .num_tiles = 0,
                               .most_tiles = 0});
      }
      PrefillPass& pass = plan.passes.back();
      const int first_converted = pass.num_tiles;
      prefill_sequences[plan.num_prefill_sequences++] = {.sequence = s,
                                                         .first_tile = first_tile,
                                                         .num_tiles = num_tiles,
                                                         .first_converted = first_converted,
                                                         .first_key = first_key,
                                                         .end_key = length,
                                                         .unused = {}};
      ++pass.num_sequences;
      pass.num_tiles += num_tiles;
      pass.most_tiles = std::max(pass.most_tiles, num_tiles);
      for (int query = 0; query < num_queries; query += kPrefillTileRows) {
        prefill_items[num_prefill++] = {.sequence = s,
                                        .first_token = batch.host_query_starts[i] + query,
                                        .num_rows = std::min(kPrefillTileRows, num_queries - query),
                                        .first_position = length - num_queries + query,
                                        .first_converted = first_converted - first_tile,
                                        .length = length,
                                        .unused = {}};
        ++pass.num_items;
      }
    }
  }
  // Whole chunks first, then what is left over and the last ones: warps take them in turn, and each gets its share of
  // both.
  for (const bool takes_whole : {true, false}) {
    int place = 0;
    for (int s = 0; s < batch.num_sequences; ++s) {
      const size_t i = static_cast<size_t>(s);
      if (!is_decode(i)) continue;
      const int length = batch.host_context_lengths[i];
      int chunk_size = kDecodeChunk;
      while (ceil_div(length, chunk_size) > kUsualDecodeChunks) chunk_size *= 2;
      const int first_key = plan.geometry.window > 0 ? std::max(0, length - plan.geometry.window) : 0;
      const int first_chunk = first_key / chunk_size;
      const int num_chunks = ceil_div(length, chunk_size) - first_chunk;
      plan.has_several_chunks |= num_chunks > 1;
      for (int chunk = first_chunk; chunk < first_chunk + num_chunks; ++chunk) {
        const bool is_whole = chunk * chunk_size >= first_key && (chunk + 1) * chunk_size <= length;
        // The last of several may wait for the others' sums (attention_decode_messages.cuh): it never goes before them.
        const bool may_wait = num_chunks > 1 && chunk + 1 == first_chunk + num_chunks;
        if ((is_whole && !may_wait) != takes_whole) continue;
        decode_items[num_decode++] = {.sequence = s,
                                      .chunk = chunk,
                                      .num_chunks = num_chunks,
                                      .chunk_size = chunk_size,
                                      .token = batch.host_query_starts[i],
                                      .length = length,
                                      .place = place,
                                      .unused = 0};
      }
      place += num_chunks;
    }
  }
  // Tiles that see most keys first: the short ones fill the gaps at the end.
  const std::span<PrefillItem> prefill(prefill_items, static_cast<size_t>(num_prefill));
  for (const PrefillPass& pass : plan.passes) {
    const auto begin = prefill.begin() + pass.first_item;
    std::stable_sort(begin, begin + pass.num_items,
                     [](const PrefillItem& a, const PrefillItem& b) { return a.first_position > b.first_position; });
  }
  const int num_padded = num_decode > 0 ? padded_count(num_decode) : 0;
  std::fill(decode_items + num_decode, decode_items + num_padded, DecodeItem{});
  plan.num_decode_items = num_padded;
  plan.num_prefill_items = num_prefill;
  copy_items<DecodeItem>(stream, plan.decode_items, {decode_items, static_cast<size_t>(num_padded)});
  copy_items<PrefillItem>(stream, plan.prefill_items, prefill);
  copy_items<PrefillSequence>(stream, plan.prefill_sequences,
                              {prefill_sequences, static_cast<size_t>(plan.num_prefill_sequences)});
  if (plan.is_strict) {
    copy_items<uint8_t>(stream, plan.takes_prefill, {takes_prefill, static_cast<size_t>(batch.num_sequences)});
  }
}

void attention(AttentionCall call, std::string_view forced_row) {
  const ConstTensorView& q = call.q;
  CHECK(q.rank() == 3);
  CHECK(call.out.rank() == 3);
  CHECK(call.out.dtype() == q.dtype());
  CHECK(is_activation_dtype(q.dtype()));
  CHECK(q.is_last_dimension_contiguous());
  CHECK(call.out.is_last_dimension_contiguous());
  CHECK(q.size(0) == call.batch.num_tokens);
  CHECK(call.out.size(0) == call.batch.num_tokens);
  CHECK(call.out.size(1) == q.size(1));
  CHECK(q.size(2) == call.kv.head_dim);
  CHECK(call.out.size(2) == call.kv.head_dim);
  CHECK(q.size(1) % call.kv.num_kv_heads == 0);
  CHECK(q.size(1) == call.plan.geometry.num_heads);
  CHECK(call.params.window == call.plan.geometry.window);
  CHECK(call.params.is_causal || call.params.window == 0);
  if (call.plan.num_decode_sequences > 0) {
    call.part = StepPart::kDecode;
    // The row asks for all keys but the last ones while the kernel ahead, which writes the step's, still runs. What is
    // no kernel waits for its end, and the row for that: a counter is zero between launches.
    if (call.plan.shares_new_keys) CUDA_CHECK(cudaMemsetAsync(call.plan.counters.data(), 0, 4, call.stream));
    choose_row(attention_rows(), call, forced_row).launch(call);
  }
  if (call.plan.num_prefill_sequences > 0) {
    call.part = StepPart::kPrefill;
    choose_row(attention_rows(), call, forced_row).launch(call);
  }
}

}  // namespace quire::cuda
