#include "models/decoder_weights.h"

#include <algorithm>

namespace quire {
namespace {

constexpr const char* kMatrixSuffix = ".weight";
constexpr const char* kBiasSuffix = ".bias";

// All outputs of a tensor whose name comes later.
WeightPiece piece(int64_t num_rows, PieceShard shard) {
  WeightPiece result;
  result.num_rows = num_rows;
  result.shard = shard;
  return result;
}

// Makes the rows of one model.
class MapMaker {
 public:
  MapMaker(const ArchitectureSpec& spec, const ModelConfig& config, CheckpointKind kind, const TensorSource& source,
           const HeadShare& heads)
      : spec_(spec), config_(config), is_gguf_(kind == CheckpointKind::kGguf), source_(source), heads_(heads) {}

  WeightMap make() {
    const TensorNames& names = spec_.names;
    const PieceShard vocab = {.kind = ShardKind::kVocab};
    add_matrix(weight_names::kEmbedding, names.embedding, 0, config_.vocab_size, config_.hidden_size, vocab);
    const TensorName& head = config_.has_tied_embeddings ? names.embedding : names.head;
    add_matrix(weight_names::kHead, head, 0, config_.vocab_size, config_.hidden_size, vocab);
    add_norm(weight_names::kFinalNorm, names.final_norm, 0, config_.hidden_size);
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      add_attention(layer);
      add_mlp(layer);
    }
    // Angles are computed, not read. The rest belongs to models that see images too.
    map_.ignored = {"*rotary_emb.inv_freq",      "rope_freqs.weight", "rope_factors_long.weight",
                    "rope_factors_short.weight", "*vision_tower.*",   "*multi_modal_projector.*"};
    if (config_.has_tied_embeddings) map_.ignored.push_back("*lm_head.weight");
    return std::move(map_);
  }

 private:
  // One of the matrices that may be joined into one.
  struct Member {
    const char* part;  // "q"
    TensorName name;
    WeightPiece piece;  // without its tensors
  };

  // Every name that the tensor may have in this kind of file.
  std::vector<std::string> candidates(const TensorName& name, int layer, const char* suffix) const {
    std::string filled(is_gguf_ ? name.gguf : name.hf);
    CHECK(!filled.empty());
    if (const size_t hole = filled.find("{}"); hole != std::string::npos) {
      filled.replace(hole, 2, std::to_string(layer));
    }
    filled += suffix;
    if (is_gguf_) return {filled};
    // Models that also see images hold the decoder under a further name.
    std::vector<std::string> all = {filled, "language_model." + filled};
    if (filled.starts_with("model.")) all.push_back("model.language_model." + filled.substr(6));
    return all;
  }

  // The name that the file has, or the first.
  std::string actual_name(const TensorName& name, int layer, const char* suffix) const {
    const std::vector<std::string> all = candidates(name, layer, suffix);
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const std::string& n) { return source_.find(n) != nullptr; });
    return found == all.end() ? all[0] : *found;
  }

  void add_matrix(std::string row, const TensorName& name, int layer, int64_t num_outputs, int64_t num_inputs,
                  PieceShard shard) {
    map_.rows.push_back(
        matrix_row(std::move(row), candidates(name, layer, kMatrixSuffix), num_outputs, num_inputs, shard));
  }

  void add_norm(std::string row_name, const TensorName& name, int layer, int64_t num_values) {
    WeightRow row = vector_row(std::move(row_name), candidates(name, layer, kMatrixSuffix), num_values);
    row.add = spec_.norms.adds_one_in_hf && !is_gguf_ ? 1.0f : 0.0f;
    map_.rows.push_back(std::move(row));
  }

  WeightRow joined_row(std::string row_name, RowKind kind, int layer, const char* suffix,
                       std::span<const Member> members) const {
    WeightRow row;
    row.name = std::move(row_name);
    row.kind = kind;
    row.num_inputs = kind == RowKind::kMatrix ? config_.hidden_size : 0;
    for (const Member& member : members) {
      row.pieces.push_back(member.piece);
      row.pieces.back().tensors = candidates(member.name, layer, suffix);
    }
    return row;
  }

  // One row under the name `joined`, or one under each member's own.
  void add_members(int layer, const char* joined, std::span<const Member> members, bool has_bias) {
    std::vector<std::string> files;
    for (const Member& member : members) files.push_back(actual_name(member.name, layer, kMatrixSuffix));
    const auto add_row = [&](const char* part, std::span<const Member> row_members) {
      const std::string name = weight_names::of_layer(layer, part);
      map_.rows.push_back(joined_row(name, RowKind::kMatrix, layer, kMatrixSuffix, row_members));
      if (has_bias) {
        map_.rows.push_back(joined_row(name + kBiasSuffix, RowKind::kVector, layer, kBiasSuffix, row_members));
      }
    };
    // A missing tensor is told by the loader either way.
    if (have_same_format(source_, files)) {
      add_row(joined, members);
    } else {
      for (const Member& member : members) add_row(member.part, std::span(&member, 1));
    }
  }

  void add_attention(int layer) {
    const TensorNames& names = spec_.names;
    const int64_t query_size = config_.query_size();
    const int64_t kv_size = config_.kv_size();
    const PieceShard query_shard = {ShardKind::kHeads, int64_t{heads_.heads_per_unit} * config_.head_dim, true};
    const PieceShard kv_shard = {ShardKind::kHeads, config_.head_dim, true};
    add_norm(weight_names::of_layer(layer, "attention_norm"), names.attention_norm, layer, config_.hidden_size);
    Member members[] = {
        {"q", names.q, piece(query_size, query_shard)},
        {"k", names.k, piece(kv_size, kv_shard)},
        {"v", names.v, piece(kv_size, kv_shard)},
    };
    if (spec_.attention.is_qkv_fused) {
      int64_t first_row = 0;
      for (Member& member : members) {
        member.name = names.fused_qkv;
        member.piece.first_row = first_row;
        member.piece.tensor_rows = query_size + 2 * kv_size;
        first_row += member.piece.num_rows;
      }
    }
    add_members(layer, "qkv", members, config_.has_qkv_bias);
    if (spec_.attention.has_qk_norm) {
      add_norm(weight_names::of_layer(layer, "q_norm"), names.q_norm, layer, config_.head_dim);
      add_norm(weight_names::of_layer(layer, "k_norm"), names.k_norm, layer, config_.head_dim);
    }
    add_output(layer, "output", names.attention_output, query_size,
               {ShardKind::kRows, int64_t{heads_.heads_per_unit} * config_.head_dim, true}, config_.has_output_bias);
    if (spec_.norms.placement == NormPlacement::kSandwich) {
      add_norm(weight_names::of_layer(layer, "attention_post_norm"), names.attention_post_norm, layer,
               config_.hidden_size);
    }
  }

  void add_mlp(int layer) {
    const TensorNames& names = spec_.names;
    const int64_t size = config_.intermediate_size;
    // Gate, up and the inputs of down are cut at the same places, so between down's quantization blocks.
    const std::string down_name = actual_name(names.down, layer, kMatrixSuffix);
    const int64_t unit = common_block(source_, std::span(&down_name, 1));
    const PieceShard columns = {ShardKind::kColumns, unit};
    add_norm(weight_names::of_layer(layer, "mlp_norm"), names.mlp_norm, layer, config_.hidden_size);
    Member members[] = {
        {"gate", names.gate, piece(size, columns)},
        {"up", names.up, piece(size, columns)},
    };
    if (spec_.mlp.is_gate_up_fused) {
      for (int i = 0; i < 2; ++i) {
        members[i].name = names.fused_gate_up;
        members[i].piece.first_row = i * size;
        members[i].piece.tensor_rows = 2 * size;
      }
    }
    add_members(layer, "gate_up", members, config_.has_mlp_bias);
    add_output(layer, "down", names.down, size, {ShardKind::kRows, unit}, config_.has_mlp_bias);
    if (spec_.norms.placement == NormPlacement::kSandwich) {
      add_norm(weight_names::of_layer(layer, "mlp_post_norm"), names.mlp_post_norm, layer, config_.hidden_size);
    }
  }

  // A matrix whose outputs are the residual stream. Its bias is whole on every rank.
  void add_output(int layer, const char* part, const TensorName& name, int64_t num_inputs, PieceShard shard,
                  bool has_bias) {
    const std::string row = weight_names::of_layer(layer, part);
    add_matrix(row, name, layer, config_.hidden_size, num_inputs, shard);
    if (has_bias) {
      map_.rows.push_back(vector_row(row + kBiasSuffix, candidates(name, layer, kBiasSuffix), config_.hidden_size));
    }
  }

  const ArchitectureSpec& spec_;
  const ModelConfig& config_;
  const bool is_gguf_;
  const TensorSource& source_;
  const HeadShare& heads_;
  WeightMap map_;
};

}  // namespace

std::string weight_names::of_layer(int layer, std::string_view part) {
  return "layers." + std::to_string(layer) + "." + std::string(part);
}

Result<WeightMap> make_weight_map(const ArchitectureSpec& spec, const ModelConfig& config, CheckpointKind kind,
                                  const TensorSource& source, Rank rank) {
  ASSIGN_OR_RETURN(const HeadShare heads, share_heads(config.num_heads, config.num_kv_heads, rank));
  return MapMaker(spec, config, kind, source, heads).make();
}

}  // namespace quire
