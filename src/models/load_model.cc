#include "models/load_model.h"

#include <initializer_list>
#include <span>
#include <unordered_set>
#include <vector>

#include "models/config_parser.h"
#include "models/decoder.h"
#include "models/decoder_weights.h"
#include "weights/random_weights.h"

namespace quire {
namespace {

constexpr int64_t kAlignment = 256;  // of every small tensor: what Ops promises for its buffers

// Collects norms, biases and RoPE tables, then brings them to the device as one buffer.
class SmallTensors {
 public:
  // The view is complete after upload().
  void add(ConstTensorView* view, std::span<const float> values) {
    entries_.push_back({view, std::vector<float>(values.begin(), values.end()), num_bytes_});
    const int64_t num_bytes = static_cast<int64_t>(values.size_bytes());
    num_bytes_ += (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  Result<DeviceBuffer> upload(Ops& ops) {
    ASSIGN_OR_RETURN(DeviceBuffer buffer, ops.allocate(num_bytes_, "norms and biases"));
    Arena no_scratch{DeviceBuffer()};
    OpContext context{no_scratch};
    for (const Entry& entry : entries_) {
      char* data = static_cast<char*>(buffer.data()) + entry.offset;
      ops.copy_to_device(context, data, entry.values.data(), static_cast<int64_t>(entry.values.size() * sizeof(float)));
      *entry.view = ConstTensorView(data, DType::kF32, {static_cast<int64_t>(entry.values.size())});
    }
    ops.synchronize(context);
    return buffer;
  }

 private:
  struct Entry {
    ConstTensorView* view;
    std::vector<float> values;
    int64_t offset;
  };
  std::vector<Entry> entries_;
  int64_t num_bytes_ = 0;
};

// Puts loaded rows into the places of a decoder.
class Assembler {
 public:
  Assembler(const WeightMap& map, const LoadedWeights& weights, SmallTensors& small)
      : weights_(weights), small_(small) {
    for (const WeightRow& row : map.rows) rows_.insert(row.name);
  }

  void take_norm(ConstTensorView& view, const std::string& row) {
    if (rows_.contains(row)) small_.add(&view, weights_.vector(row));
  }

  // The joined row, or the rows of its members.
  Linear take_linear(int layer, const char* joined, std::initializer_list<const char*> members = {}) {
    Linear linear;
    const std::string row = weight_names::of_layer(layer, joined);
    if (rows_.contains(row)) {
      linear.parts.push_back({weights_.matrix(row), {}});
    } else {
      for (const char* member : members) {
        linear.parts.push_back({weights_.matrix(weight_names::of_layer(layer, member)), {}});
      }
    }
    return linear;
  }

  // After the linear has found its last place: views of biases are filled there.
  void take_biases(Linear& linear, int layer, const char* joined, std::initializer_list<const char*> members = {}) {
    if (linear.parts.size() == 1) {
      take_norm(linear.parts[0].bias, weight_names::of_layer(layer, joined) + ".bias");
      return;
    }
    size_t i = 0;
    for (const char* member : members) {
      take_norm(linear.parts[i++].bias, weight_names::of_layer(layer, member) + ".bias");
    }
  }

 private:
  const LoadedWeights& weights_;
  SmallTensors& small_;
  std::unordered_set<std::string> rows_;
};

void fill_layer(Assembler& assembler, const ArchitectureSpec& spec, const ModelConfig& config, CheckpointKind kind,
                const HeadShare& heads, int index, DecoderLayer& layer) {
  const auto name = [index](const char* part) { return weight_names::of_layer(index, part); };
  assembler.take_norm(layer.attention_norm, name("attention_norm"));
  assembler.take_norm(layer.attention_post_norm, name("attention_post_norm"));
  assembler.take_norm(layer.mlp_norm, name("mlp_norm"));
  assembler.take_norm(layer.mlp_post_norm, name("mlp_post_norm"));

  AttentionLayer& attention = layer.attention;
  attention.layer_index = index;
  attention.num_heads = heads.num_heads;
  attention.num_kv_heads = heads.num_kv_heads;
  attention.head_dim = config.head_dim;
  attention.norm_epsilon = config.norm_epsilon;
  attention.rope_style = kind == CheckpointKind::kGguf ? spec.attention.gguf_rope_style : RopeStyle::kHalves;
  attention.params = {
      .scale = config.attention_scale, .soft_cap = config.attention_soft_cap, .window = config.window_of_layer(index)};
  attention.qkv = assembler.take_linear(index, "qkv", {"q", "k", "v"});
  assembler.take_biases(attention.qkv, index, "qkv", {"q", "k", "v"});
  assembler.take_norm(attention.q_norm, name("q_norm"));
  assembler.take_norm(attention.k_norm, name("k_norm"));
  attention.output = assembler.take_linear(index, "output");
  assembler.take_biases(attention.output, index, "output");

  layer.mlp.activation = spec.mlp.activation;
  layer.mlp.gate_up = assembler.take_linear(index, "gate_up", {"gate", "up"});
  assembler.take_biases(layer.mlp.gate_up, index, "gate_up", {"gate", "up"});
  layer.mlp.down = assembler.take_linear(index, "down");
  assembler.take_biases(layer.mlp.down, index, "down");
}

// One table for all layers, or a second one for those with a window.
void fill_ropes(const ModelConfig& config, int64_t context_length, SmallTensors& small, DecoderParts& parts) {
  const bool has_two = config.sliding_window > 0 && !(config.sliding_rope == config.rope);
  parts.ropes.resize(has_two ? 2 : 1);
  for (size_t i = 0; i < parts.ropes.size(); ++i) {
    const RopeConfig& rope = i == 0 ? config.rope : config.sliding_rope;
    parts.ropes[i].attention_factor = static_cast<float>(rope.attention_factor);
    small.add(&parts.ropes[i].inverse_frequencies, inverse_frequencies(rope, context_length));
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    parts.layers[static_cast<size_t>(layer)].rope_index = has_two && config.window_of_layer(layer) > 0 ? 1 : 0;
  }
}

Result<LoadedWeights> load_weights(const WeightMap& map, const TensorSource& source, Ops& ops,
                                   const LoadModelOptions& options) {
  if (options.random_format.has_value()) {
    const RandomWeightCallbacks callbacks = {
        .make = [&ops](const Weight& shape, uint64_t seed) { return ops.make_random_weight(shape, seed); },
        .progress = options.progress};
    return make_random_weights(map, source, *options.random_format, options.rank, callbacks);
  }
  const LoadCallbacks callbacks = {.pack = [&ops](const Weight& weight) { return ops.pack(weight); },
                                   .progress = options.progress};
  ASSIGN_OR_RETURN(LoadedWeights weights, load(map, source, options.rank, callbacks));
  RETURN_IF_ERROR(source.check_unchanged());
  return weights;
}

// What a GPU computes in: f16 where most of the file's matrices are f16, else bf16.
DType float_dtype(const TensorSource& source) {
  int64_t num_f16 = 0;
  int64_t num_all = 0;
  for (const SourceTensor& tensor : source.tensors()) {
    const int64_t num_values = tensor.num_values();
    num_all += num_values;
    if (tensor.format == FormatId::kF16) num_f16 += num_values;
  }
  return 2 * num_f16 > num_all ? DType::kF16 : DType::kBF16;
}

}  // namespace

Result<std::unique_ptr<Model>> load_model(const Checkpoint& checkpoint, Ops& ops, const LoadModelOptions& options) {
  if (options.rank.count != 1) return unimplemented("a model cannot be shared by several ranks yet");
  ASSIGN_OR_RETURN(const ParsedConfig parsed, parse_config(checkpoint));
  const ArchitectureSpec& spec = *parsed.spec;
  const ModelConfig& config = parsed.config;
  const AnyTensorSource any_tensor(options.random_format.value_or(FormatId::kBF16));
  std::optional<OneFormatSource> forced;
  if (options.is_random_format_forced && options.random_format.has_value() && checkpoint.has_tensors()) {
    forced.emplace(checkpoint.tensors(), *options.random_format);
  }
  const TensorSource& source = forced.has_value()         ? *forced
                               : checkpoint.has_tensors() ? checkpoint.tensors()
                                                          : any_tensor;
  ASSIGN_OR_RETURN(const HeadShare heads, share_heads(config.num_heads, config.num_kv_heads, options.rank));
  ASSIGN_OR_RETURN(const WeightMap map, make_weight_map(spec, config, checkpoint.kind, source, options.rank));
  ASSIGN_OR_RETURN(const LoadedWeights weights, load_weights(map, source, ops, options));
  if (options.warn) {
    for (const std::string& tensor : weights.unused_tensors()) options.warn("tensor " + tensor + " is not used");
  }

  DecoderParts parts;
  parts.config = config;
  parts.activation_dtype =
      options.activation_dtype.value_or(ops.device().kind == DeviceKind::kCpu ? DType::kF32 : float_dtype(source));
  parts.num_kv_heads = heads.num_kv_heads;
  parts.embedding = weights.matrix(weight_names::kEmbedding);
  parts.layers.resize(static_cast<size_t>(config.num_layers));
  parts.head.norm.epsilon = config.norm_epsilon;
  parts.head.norm.stream_rounds_to = parts.activation_dtype;
  parts.head.soft_cap = config.logit_soft_cap;
  parts.head.output.parts.push_back({weights.matrix(weight_names::kHead), {}});

  SmallTensors small;
  Assembler assembler(map, weights, small);
  assembler.take_norm(parts.head.norm.weight, weight_names::kFinalNorm);
  for (int i = 0; i < config.num_layers; ++i) {
    fill_layer(assembler, spec, config, checkpoint.kind, heads, i, parts.layers[static_cast<size_t>(i)]);
  }
  fill_ropes(config, options.max_context > 0 ? options.max_context : config.max_context, small, parts);
  ASSIGN_OR_RETURN(parts.small_tensors, small.upload(ops));
  parts.weight_bytes = weights.num_bytes();
  return std::unique_ptr<Model>(std::make_unique<Decoder>(std::move(parts)));
}

}  // namespace quire
