// Which tensors of a file make up which weights of a model: data that models write and weights/loader reads. A row
// gives one weight; its pieces are joined along the outputs, so separate q, k and v may become one matrix, and a fused
// one may be taken apart (three rows, or three pieces with a shard each). See the functions at the end for the usual
// rows.
//
// Example, a fused QKV of 9 query and 3 KV heads of 64 from three tensors:
//   map.rows.push_back({.name = "layers.0.qkv", .num_inputs = 576, .pieces = {
//       {.tensors = {"blk.0.attn_q.weight"}, .num_rows = 576, .shard = {ShardKind::kHeads, 192}},
//       {.tensors = {"blk.0.attn_k.weight"}, .num_rows = 192, .shard = {ShardKind::kHeads, 64, .is_replicable = true}},
//       {.tensors = {"blk.0.attn_v.weight"}, .num_rows = 192, .shard = {ShardKind::kHeads, 64, .is_replicable =
//       true}}}});
// Pieces of one matrix must share a format; whether they do, the map's maker asks the source (have_same_format).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "quant/weight.h"
#include "weights/tensor_source.h"

namespace quire {

// Which of the ranks that share a model this one is.
struct Rank {
  int index = 0;
  int count = 1;
};

// How a piece is cut among ranks. Cuts fall on multiples of `unit`; units are dealt out in order, as evenly as they go
// (rank r has units [r * units / ranks, (r + 1) * units / ranks)). For kRows the unit counts inputs, else outputs. A
// unit that does not suit the tensor's quantization blocks, and fewer units than ranks, are errors, unless
// is_replicable: then rank r has unit r * units / ranks and several ranks hold the same (KV heads).
struct PieceShard {
  ShardKind kind = ShardKind::kNone;
  int64_t unit = 1;
  bool is_replicable = false;
};

// Some outputs of one tensor of the file.
struct WeightPiece {
  std::vector<std::string> tensors;  // the first of these names that the file has; later ones are fallbacks
  int64_t num_rows = 0;              // outputs taken (values, of a vector)
  int64_t first_row = 0;             // where they begin in the tensor
  int64_t tensor_rows = 0;           // outputs that the tensor must have; 0: num_rows
  PieceShard shard;
};

enum class RowKind : uint8_t {
  kMatrix,  // becomes a Weight, through the pack callback
  kVector,  // becomes floats: norms, biases, frequency factors
};

struct WeightRow {
  std::string name;  // what the model calls it: "layers.3.attention.q"
  RowKind kind = RowKind::kMatrix;
  int64_t num_inputs = 0;    // k of a matrix
  int64_t num_experts = 1;   // > 1: tensors are [num_experts, n, k]
  float add = 0.0f;          // added to every value of a vector: 1 for norms that are stored as w - 1
  bool is_optional = false;  // may be missing: then the weight is not given
  std::vector<WeightPiece> pieces;
};

struct WeightMap {
  std::vector<WeightRow> rows;
  // Tensors that a file may have and we need not read; '*' stands for any characters: "*.rotary_emb.inv_freq".
  std::vector<std::string> ignored;
};

// ---- Usual rows
// ------------------------------------------------------------------------------------------------------

// A matrix [num_outputs, num_inputs] of one tensor.
WeightRow matrix_row(std::string name, std::vector<std::string> tensors, int64_t num_outputs, int64_t num_inputs,
                     PieceShard shard);
// A vector [num_values] of one tensor, as floats.
WeightRow vector_row(std::string name, std::vector<std::string> tensors, int64_t num_values, PieceShard shard = {});

// ---- What a map's maker asks ----------------------------------------------------------------------------------------

// The attention heads of one rank. Query heads stay with their KV heads; where ranks outnumber KV heads, a KV head is
// replicated over ranks / num_kv_heads ranks. An error where that cannot be done with whole heads.
struct HeadShare {
  int first_head = 0;
  int num_heads = 0;
  int first_kv_head = 0;
  int num_kv_heads = 0;
  int heads_per_unit = 0;  // shard of q outputs and of the output projection's inputs: unit = heads_per_unit * head_dim
};
Result<HeadShare> share_heads(int num_heads, int num_kv_heads, Rank rank);

// [first, first + count): the part of `total` that a rank has, by the rule of PieceShard.
struct ShardRange {
  int64_t first = 0;
  int64_t count = 0;
};
Result<ShardRange> shard_range(int64_t total, const PieceShard& shard, Rank rank);

// True when the source has all these tensors and they are of one format: their rows can be joined into one matrix.
bool have_same_format(const TensorSource& source, std::span<const std::string> names);

// The least common multiple of the quantization blocks of these tensors (those that the source has), for a unit that
// cuts between the outputs of one matrix and the inputs of the next.
int64_t common_block(const TensorSource& source, std::span<const std::string> names);

// Whether name fits a pattern in which '*' stands for any characters, also none.
bool matches_pattern(std::string_view name, std::string_view pattern);

}  // namespace quire
