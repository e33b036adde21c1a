// Attention over pages on the GPU: the plan, the call and the table of kernel rows. A step is taken in two parts that
// choose their rows apart: sequences with one query (decode) and sequences with more (prefill); where the number of
// queries shall change no bits, those with a drawn token and those with tokens of their prompt.
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
  int32_t place;   // of the sequence's first chunk, were all chunks in the order of sequences
  int32_t unused;
};

// A prefill block's work: a tile of a sequence's queries.
struct alignas(16) PrefillItem {
  int32_t sequence;
  int32_t first_token;  // row of q
  int32_t num_rows;
  int32_t first_position;   // of the first query
  int32_t first_converted;  // over a cache of codes: the place of the sequence's tile 0 of 128 keys, if it had one
  int32_t length;           // keys in the KV memory
  int32_t unused[2];
};

// Over a cache of codes (e4m3, int8) the keys and values that a sequence's queries see are converted first, in tiles of
// 128.
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
// Where each block has one unit of decode, the last chunk's gets the others' sums as messages in memory.
constexpr int kMostMessages = 160;  // units of a step
constexpr int kMessageBytes = 10240;
constexpr int kConvertedKeys = 128;
constexpr int kMostConvertedDim = 256;

// Prefill's sequences whose converted keys and values have room beside one another; other caches have one pass.
struct PrefillPass {
  int first_sequence;  // of the plan's list; likewise:
  int num_sequences;
  int first_item;
  int num_items;
  int num_tiles;   // of all its sequences
  int most_tiles;  // of one
};

// Of one KV head's tile: K and V as f16 (head_dim filled up to what kernels take), and scales as floats.
constexpr int kConvertedScales = 160;  // of 128 keys: one tile's, or two's, with gaps
constexpr int64_t converted_tile_bytes(int head_dim) {
  const int64_t filled = head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
  return 2 * (kConvertedKeys * filled * 2 + kConvertedScales * 4);
}

class CudaAttentionPlan final : public AttentionPlan {
 public:
  // Prefill's lists are not made to be repeated.
  uint64_t shape() const override {
    return static_cast<uint64_t>(num_decode_items) << 32 | static_cast<uint64_t>(has_several_chunks) << 31 |
           static_cast<uint64_t>(num_prefill_items);
  }
  int64_t device_bytes() const override {
    return takes_prefill.num_bytes() + decode_items.num_bytes() + prefill_items.num_bytes() +
           prefill_sequences.num_bytes() + converted.num_bytes() + partials.num_bytes() + counters.num_bytes() +
           messages.num_bytes();
  }

  AttentionGeometry geometry;
  // The part of a sequence goes by AttentionBatch::host_is_prompt, not by its number of queries.
  bool is_strict = false;
  DeviceBuffer takes_prefill;      // [num_sequences] bytes; only where strict
  DeviceBuffer decode_items;       // DecodeItem[num_decode_items]
  DeviceBuffer prefill_items;      // PrefillItem[num_prefill_items], of each pass longest first
  DeviceBuffer prefill_sequences;  // PrefillSequence[num_prefill_sequences]
  DeviceBuffer converted;          // of a cache of codes: a tile of one KV head after the other
  DeviceBuffer partials;     // [sequence][chunk][head][head_dim + 2] f32: unscaled sums, then largest score and weight
  DeviceBuffer counters;     // [sequence][part of the heads] i32: chunks done; zero between launches
  DeviceBuffer messages;     // [unit] kMessageBytes each; all bits are ones between launches
  DeviceBuffer host_items;   // pinned: where the lists are made, in two halves that take turns
  int host_half = 0;         // the one that the last call has used: its copies may still be under way
  int num_decode_items = 0;  // blocks that do nothing included: the number rises in steps
  int num_prefill_items = 0;
  int num_decode_sequences = 0;
  bool has_several_chunks = false;  // some sequence that decodes
  // Rows of one query may be tokens of one sequence: some see keys that others of them write in the same step.
  bool shares_new_keys = false;
  int num_prefill_sequences = 0;
  std::vector<PrefillPass> passes;
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

Result<std::unique_ptr<AttentionPlan>> create_attention_plan(const AttentionGeometry& geometry, bool is_strict = false);
void plan_attention(cudaStream_t stream, CudaAttentionPlan& plan, const AttentionBatch& batch);

// Both parts of a step; checks the shapes.
void attention(AttentionCall call, std::string_view forced_row = {});

// The launchers of the rows, each in its own file.
void attention_any_shape(const AttentionCall& call);
bool accepts_decode_split_kv(const AttentionCall& call);
void attention_decode_split_kv(const AttentionCall& call);

// rope_and_write and then decode_split_kv, in one kernel: a step whose sequences all have one query. `call.q` has not
// been rotated.
struct RopeInputs {
  ConstTensorView k;
  ConstTensorView v;
  ConstTensorView table;
  bool is_interleaved;
};
bool accepts_decode_fused(const AttentionCall& call, const RopeInputs& inputs);
void attention_decode_fused(const AttentionCall& call, const RopeInputs& inputs);

bool accepts_prefill_wgmma(const AttentionCall& call);
void attention_prefill_wgmma(const AttentionCall& call);

}  // namespace quire::cuda
