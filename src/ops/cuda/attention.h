// Attention over pages on the GPU: the plan, the call and the table of kernel rows. A step is taken in two parts that
// choose their rows apart: sequences with one query (decode) and sequences with more (prefill).
#pragma once

#include <cuda_runtime.h>

#include <span>
#include <vector>

#include "ops/kernel_table.h"
#include "ops/ops.h"

namespace quire::cuda {

// A decode block's work: chunk `chunk` of a sequence, one of `num_chunks` that hold keys it sees. The chunk size
// depends on the sequence's own length alone, so a query's bits do not depend on its neighbours.
struct alignas(16) DecodeItem {
  int32_t sequence;
  int32_t chunk;
  int32_t num_chunks;
  int32_t chunk_size;
  int32_t token;   // row of q
  int32_t length;  // keys in the KV memory
  int32_t unused[2];
};

// A prefill block's work: a tile of a sequence's queries.
struct alignas(16) PrefillItem {
  int32_t sequence;
  int32_t first_token;  // row of q
  int32_t num_rows;
  int32_t first_position;   // of the first query
  int32_t first_converted;  // over an e4m3 cache: the place of the sequence's tile 0 of 128 keys, if it had one
  int32_t unused[3];
};

// Over an e4m3 cache the keys and values that a sequence's queries see are converted first, in tiles of 128.
struct alignas(16) PrefillSequence {
  int32_t sequence;
  int32_t first_tile;  // of its keys
  int32_t num_tiles;
  int32_t first_converted;  // place of the first tile
  int32_t first_key;        // that is seen
  int32_t end_key;
  int32_t unused[2];
};

constexpr int kDecodeChunk = 512;       // keys: the least
constexpr int kUsualDecodeChunks = 16;  // a sequence of more keys has larger chunks
constexpr int kMaxDecodeChunks = 32;    // room for as many
constexpr int kPrefillTileRows = 128;
constexpr int kConvertedKeys = 128;

class CudaAttentionPlan final : public AttentionPlan {
 public:
  // Prefill's lists are not made to be repeated.
  uint64_t shape() const override {
    return static_cast<uint64_t>(num_decode_items) << 32 | static_cast<uint64_t>(has_several_chunks) << 31 |
           static_cast<uint64_t>(num_prefill_items);
  }

  AttentionGeometry geometry;
  DeviceBuffer decode_items;       // DecodeItem[num_decode_items]
  DeviceBuffer prefill_items;      // PrefillItem[num_prefill_items], longest first
  DeviceBuffer prefill_sequences;  // PrefillSequence[num_prefill_sequences]
  mutable DeviceBuffer converted;  // of an e4m3 cache; allocated when it is first wanted
  DeviceBuffer partials;     // [sequence][chunk][head][head_dim + 2] f32: unscaled sums, then largest score and weight
  DeviceBuffer counters;     // [sequence][part of the heads] i32: chunks done; zero between launches
  DeviceBuffer host_items;   // pinned: where both lists are made
  int num_decode_items = 0;  // blocks that do nothing included: the number rises in steps
  int num_prefill_items = 0;
  int num_decode_sequences = 0;
  bool has_several_chunks = false;  // some sequence that decodes
  int num_prefill_sequences = 0;
  int num_converted_tiles = 0;   // of all prefill sequences
  int most_converted_tiles = 0;  // of one
};

enum class StepPart : uint8_t { kDecode, kPrefill };

struct AttentionCall {
  cudaStream_t stream;
  StepPart part;
  TensorView out;
  ConstTensorView q;
  PagedKv kv;
  const AttentionBatch& batch;
  const CudaAttentionPlan& plan;
  AttentionParams params;
};

std::span<const KernelRow<AttentionCall>> attention_rows();

Result<std::unique_ptr<AttentionPlan>> create_attention_plan(const AttentionGeometry& geometry);
// Memory for so many bytes of converted keys and values; false if the GPU has no more.
bool reserve_converted(const CudaAttentionPlan& plan, int64_t num_bytes);
void plan_attention(cudaStream_t stream, CudaAttentionPlan& plan, const AttentionBatch& batch);

// Both parts of a step; checks the shapes.
void attention(AttentionCall call, std::string_view forced_row = {});

// The launchers of the rows, each in its own file.
void attention_any_shape(const AttentionCall& call);
bool accepts_decode_split_kv(const AttentionCall& call);
void attention_decode_split_kv(const AttentionCall& call);
bool accepts_prefill_wgmma(const AttentionCall& call);
void attention_prefill_wgmma(const AttentionCall& call);

}  // namespace quire::cuda
