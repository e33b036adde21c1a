#include "models/config_parser.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/config_fields.h"
#include "models/registry.h"

namespace quire {
namespace {

// Far past any model that exists; small enough that products of any two fit 64 bits.
constexpr ValueRange<int64_t> kLayerRange = {1, 4096};
constexpr ValueRange<int64_t> kHeadRange = {1, 4096};
constexpr ValueRange<int64_t> kHeadDimRange = {2, 4096};
constexpr ValueRange<int64_t> kWidthRange = {1, int64_t{1} << 20};
constexpr ValueRange<int64_t> kIntermediateRange = {1, int64_t{1} << 22};
constexpr ValueRange<int64_t> kVocabRange = {1, int64_t{1} << 24};
constexpr ValueRange<int64_t> kContextRange = {1, int64_t{1} << 30};
constexpr ValueRange<int64_t> kWindowRange = {0, int64_t{1} << 30};
constexpr ValueRange<int64_t> kIdRange = {-1, (int64_t{1} << 24) - 1};
constexpr ValueRange<double> kThetaRange = {1e-3, 1e15};
constexpr ValueRange<double> kFactorRange = {1e-3, 1e6};
constexpr ValueRange<double> kEpsilonRange = {0.0, 1.0};
constexpr ValueRange<double> kCapRange = {0.0, 1e6};

void add_stop_ids(ModelConfig& config, const std::vector<int64_t>& ids) {
  for (const int64_t id : ids) {
    if (id >= 0) config.stop_token_ids.push_back(static_cast<int32_t>(id));
  }
  std::sort(config.stop_token_ids.begin(), config.stop_token_ids.end());
  config.stop_token_ids.erase(std::unique(config.stop_token_ids.begin(), config.stop_token_ids.end()),
                              config.stop_token_ids.end());
}

// What both kinds of file leave to be worked out from the rest.
void fill_derived(const ArchitectureSpec& spec, ModelConfig& config) {
  config.architecture = std::string(spec.name);
  config.has_qkv_bias = config.has_qkv_bias || spec.attention.has_qkv_bias;
  if (spec.scales_embedding) {
    config.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(config.hidden_size)));
  }
  // Some files pad with an id past their vocabulary; nobody computes with it.
  if (config.pad_token_id >= config.vocab_size) config.pad_token_id = -1;
  // A window that no context reaches is none.
  if (config.sliding_window >= config.max_context) config.sliding_window = 0;
  if (config.sliding_window == 0) std::fill(config.layer_is_sliding.begin(), config.layer_is_sliding.end(), uint8_t{0});
}

// Every `pattern`-th layer sees everything; pattern 0: none does.
std::vector<uint8_t> sliding_layers(int num_layers, int64_t pattern) {
  std::vector<uint8_t> layers(static_cast<size_t>(num_layers), uint8_t{1});
  for (int i = 0; i < num_layers; ++i) {
    if (pattern > 0 && (i + 1) % pattern == 0) layers[static_cast<size_t>(i)] = 0;
  }
  return layers;
}

// ---- Hugging Face --------------------------------------------------------------------------------------------------

// One set of RoPE parameters. `fields` is rope_parameters or rope_scaling (or an entry of it for one kind of layer),
// `top` the config around it, which holds what older files do not put inside.
RopeConfig parse_hf_rope(const ConfigFields& fields, const ConfigFields& top, const ArchitectureSpec& spec,
                         double default_theta, const ModelConfig& config) {
  RopeConfig rope;
  rope.theta = fields.number("rope_theta", kThetaRange, default_theta);
  const double partial =
      fields.number("partial_rotary_factor", {0.0, 1.0}, top.number("partial_rotary_factor", {0.0, 1.0}, 1.0));
  rope.rotary_dim = static_cast<int>(config.head_dim * partial);

  std::string type = fields.text("rope_type", fields.text("type", "default"));
  // Early Phi-3 files used these words for what became longrope.
  if (type == "su" || (type == "yarn" && spec.name == kPhi3.name)) type = "longrope";
  if (type == "default") return rope;
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    rope.factor = fields.number("factor", kFactorRange);
    return rope;
  }

  rope.original_context = fields.integer("original_max_position_embeddings", kContextRange,
                                         spec.original_context > 0 ? spec.original_context : config.max_context);
  rope.original_context = top.integer("original_max_position_embeddings", kContextRange, rope.original_context);
  if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    rope.factor = fields.number("factor", kFactorRange);
    rope.low_frequency_factor = fields.number("low_freq_factor", kFactorRange);
    rope.high_frequency_factor = fields.number("high_freq_factor", kFactorRange);
    return rope;
  }
  const double context_ratio = static_cast<double>(config.max_context) / static_cast<double>(rope.original_context);
  if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    rope.factor = fields.number("factor", kFactorRange, context_ratio);
    rope.beta_fast = fields.number("beta_fast", kFactorRange, 32.0);
    rope.beta_slow = fields.number("beta_slow", kFactorRange, 1.0);
    rope.truncates_correction_range = fields.boolean("truncate", true);
    const double mscale = fields.number("mscale", {0.0, 1e3}, 0.0);
    const double mscale_all_dim = fields.number("mscale_all_dim", {0.0, 1e3}, 0.0);
    rope.attention_factor = fields.number("attention_factor", {1e-3, 1e3},
                                          default_yarn_attention_factor(rope.factor, mscale, mscale_all_dim));
  } else if (type == "longrope") {
    rope.scaling = RopeScaling::kLongRope;
    rope.factor = fields.number("factor", kFactorRange, context_ratio);
    rope.short_factors = fields.numbers("short_factor", kFactorRange);
    rope.long_factors = fields.numbers("long_factor", kFactorRange);
    rope.attention_factor = fields.number("attention_factor", {1e-3, 1e3},
                                          default_longrope_attention_factor(rope.factor, rope.original_context));
  } else {
    fields.fail(unimplemented(fields.where() + "rope_type is \"" + type +
                              "\", which is not supported; supported are: default, linear, llama3, yarn, longrope"));
  }
  return rope;
}

void parse_hf_ropes(const ConfigFields& fields, const ArchitectureSpec& spec, ModelConfig& config) {
  const bool has_sliding_rope = spec.sliding_rope_theta > 0.0;
  const double theta = fields.number("rope_theta", kThetaRange, spec.rope_theta);
  const ConfigFields scaling = fields.child(fields.has("rope_scaling") ? "rope_scaling" : "rope_parameters");
  // Newer files have one entry for each kind of layer.
  const bool is_nested = scaling.has("full_attention") || scaling.has("sliding_attention");
  if (is_nested) {
    config.rope = parse_hf_rope(scaling.child("full_attention"), fields, spec, theta, config);
  } else {
    config.rope = parse_hf_rope(scaling, fields, spec, theta, config);
  }
  config.sliding_rope = config.rope;
  if (has_sliding_rope || (is_nested && scaling.has("sliding_attention"))) {
    const double sliding_theta =
        fields.number("rope_local_base_freq", kThetaRange, has_sliding_rope ? spec.sliding_rope_theta : theta);
    config.sliding_rope = parse_hf_rope(scaling.child("sliding_attention"), fields, spec, sliding_theta, config);
  }

  // Linear scaling and yarn reach past max_position_embeddings, which names the context before them, except where the
  // file's layers with a window show that it was trained with them.
  if (config.rope.scaling == RopeScaling::kLinear && !has_sliding_rope) {
    config.max_context = static_cast<int64_t>(static_cast<double>(config.max_context) * config.rope.factor);
  } else if (config.rope.scaling == RopeScaling::kYarn) {
    const double extended = static_cast<double>(config.rope.original_context) * config.rope.factor;
    config.max_context = std::max(config.max_context, static_cast<int64_t>(extended));
  }
  config.max_context = std::clamp(config.max_context, kContextRange.min, kContextRange.max);
}

void parse_hf_windows(const ConfigFields& fields, const ArchitectureSpec& spec, ModelConfig& config) {
  config.layer_is_sliding.assign(static_cast<size_t>(config.num_layers), uint8_t{0});
  // Only Qwen has the key, and there its default is false; max_window_layers tells Qwen's files.
  if (!fields.boolean("use_sliding_window", !fields.has("max_window_layers"))) return;
  const int64_t default_window = fields.object().contains("sliding_window") ? 0 : spec.sliding_window;  // null: none
  config.sliding_window = static_cast<int>(fields.integer("sliding_window", kWindowRange, default_window));
  if (fields.has("layer_types")) {
    const std::vector<std::string> types = fields.texts("layer_types");
    if (types.size() != static_cast<size_t>(config.num_layers)) {
      fields.fail("layer_types", "one entry a layer, " + std::to_string(config.num_layers));
      return;
    }
    for (size_t i = 0; i < types.size(); ++i) {
      if (types[i] == "sliding_attention") {
        config.layer_is_sliding[i] = 1;
      } else if (types[i] != "full_attention") {
        fields.fail("layer_types", "\"full_attention\" and \"sliding_attention\" only");
      }
    }
    return;
  }
  if (config.sliding_window == 0) return;
  if (fields.has("max_window_layers") && spec.sliding_pattern == 0) {
    // Qwen: the first layers see everything.
    const int64_t first = fields.integer("max_window_layers", {0, int64_t{1} << 30});
    for (int64_t i = first; i < config.num_layers; ++i) config.layer_is_sliding[static_cast<size_t>(i)] = 1;
    return;
  }
  const int64_t pattern = fields.integer("sliding_window_pattern", kLayerRange,
                                         fields.integer("_sliding_window_pattern", kLayerRange, spec.sliding_pattern));
  config.layer_is_sliding = sliding_layers(config.num_layers, pattern);
}

DType parse_hf_dtype(const ConfigFields& fields) {
  const std::string name = fields.text("torch_dtype", fields.text("dtype", "float32"));
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  return DType::kF32;
}

void parse_hf_fields(const ConfigFields& fields, const ArchitectureSpec& spec, ModelConfig& config) {
  config.num_layers = static_cast<int>(fields.integer("num_hidden_layers", kLayerRange));
  config.hidden_size = fields.integer("hidden_size", kWidthRange);
  config.intermediate_size = fields.integer("intermediate_size", kIntermediateRange);
  config.vocab_size = fields.integer("vocab_size", kVocabRange);
  config.num_heads = static_cast<int>(fields.integer("num_attention_heads", kHeadRange));
  config.num_kv_heads = static_cast<int>(fields.integer("num_key_value_heads", kHeadRange, config.num_heads));
  if (!fields.has("head_dim") && config.hidden_size % config.num_heads != 0) {
    fields.fail("num_attention_heads",
                "a divisor of hidden_size (" + std::to_string(config.hidden_size) + "), or head_dim to be given");
  }
  config.head_dim = static_cast<int>(fields.integer("head_dim", kHeadDimRange, config.hidden_size / config.num_heads));
  config.max_context = fields.integer("max_position_embeddings", kContextRange);
  config.norm_epsilon = static_cast<float>(fields.number("rms_norm_eps", kEpsilonRange));

  const double scalar = fields.number("query_pre_attn_scalar", {1e-6, 1e9}, static_cast<double>(config.head_dim));
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(std::max(scalar, 1e-6)));
  config.attention_soft_cap = static_cast<float>(fields.number("attn_logit_softcapping", kCapRange, 0.0));
  config.logit_soft_cap = static_cast<float>(fields.number("final_logit_softcapping", kCapRange, 0.0));

  const char* activation_key = fields.has("hidden_activation") ? "hidden_activation" : "hidden_act";
  const char* activation = spec.mlp.activation == Activation::kSilu ? "silu" : "gelu_pytorch_tanh";
  if (fields.text(activation_key, activation) != activation) {
    fields.fail(activation_key,
                "\"" + std::string(activation) + "\" (others are not supported for " + std::string(spec.name) + ")");
  }
  config.has_qkv_bias = fields.boolean("attention_bias", false);
  config.has_output_bias = config.has_qkv_bias;
  config.has_mlp_bias = fields.boolean("mlp_bias", false);
  config.has_tied_embeddings = fields.boolean("tie_word_embeddings", spec.ties_embeddings_by_default);
  config.dtype = parse_hf_dtype(fields);

  parse_hf_ropes(fields, spec, config);
  parse_hf_windows(fields, spec, config);
}

void parse_hf_ids(const ConfigFields& fields, ModelConfig& config) {
  add_stop_ids(config, fields.integers("eos_token_id", kIdRange));
  const std::vector<int64_t> bos = fields.integers("bos_token_id", kIdRange);
  const std::vector<int64_t> pad = fields.integers("pad_token_id", kIdRange);
  if (!bos.empty()) config.bos_token_id = static_cast<int32_t>(bos[0]);
  if (!pad.empty()) config.pad_token_id = static_cast<int32_t>(pad[0]);
}

// ---- GGUF ----------------------------------------------------------------------------------------------------------

std::vector<float> read_f32_tensor(const TensorSource& tensors, std::string_view name, Status& status) {
  const SourceTensor* tensor = tensors.find(name);
  if (tensor == nullptr) return {};
  if (tensor->format != FormatId::kF32 || tensor->sizes.size() != 1 || tensor->data.size() % sizeof(float) != 0) {
    if (status.is_ok()) status = invalid_argument("tensor " + std::string(name) + " must be a list of f32 numbers");
    return {};
  }
  std::vector<float> values(tensor->data.size() / sizeof(float));
  if (!values.empty())
    std::copy_n(tensor->data.data(), tensor->data.size(), reinterpret_cast<std::byte*>(values.data()));
  return values;
}

// Some files give a list with one value a layer; we take it where all are equal.
int64_t same_for_all_layers(const ConfigFields& fields, std::string_view key, ValueRange<int64_t> range,
                            std::optional<int64_t> default_value) {
  if (!fields.has(key)) return fields.integer(key, range, default_value);
  const std::vector<int64_t> values = fields.integers(key, range);
  if (values.empty()) {
    fields.fail(key, "an integer, or one for every layer");
    return range.min;
  }
  if (std::any_of(values.begin(), values.end(), [&](int64_t value) { return value != values[0]; })) {
    fields.fail(key, "the same number for all layers (models whose layers differ in it are not supported)");
  }
  return values[0];
}

void parse_gguf_ropes(const ConfigFields& fields, const ArchitectureSpec& spec, const TensorSource& tensors,
                      Status& status, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  rope.theta = fields.number("rope.freq_base", kThetaRange, spec.rope_theta);
  rope.rotary_dim = static_cast<int>(fields.integer("rope.dimension_count", kHeadDimRange, config.head_dim));
  config.sliding_rope = rope;

  // Files from before rope.scaling.type existed have a factor alone.
  const double old_factor = fields.number("rope.scale_linear", {0.0, 1e6}, 0.0);
  std::string type = fields.text("rope.scaling.type", old_factor > 0.0 ? "linear" : "none");
  double factor = fields.number("rope.scaling.factor", {0.0, 1e6}, old_factor);
  if (factor == 0.0) factor = 1.0;
  const double attention_factor = fields.number("rope.scaling.attn_factor", {1e-3, 1e3}, 1.0);
  rope.original_context = fields.integer("rope.scaling.original_context_length", kContextRange,
                                         spec.original_context > 0 ? spec.original_context : config.max_context);
  rope.short_factors = read_f32_tensor(tensors, "rope_factors_short.weight", status);
  rope.long_factors = read_f32_tensor(tensors, "rope_factors_long.weight", status);
  rope.divisors = read_f32_tensor(tensors, "rope_freqs.weight", status);
  if (!rope.long_factors.empty()) type = "longrope";

  rope.factor = factor;
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    rope.beta_fast = fields.number("rope.scaling.yarn_beta_fast", kFactorRange, 32.0);
    rope.beta_slow = fields.number("rope.scaling.yarn_beta_slow", kFactorRange, 1.0);
    rope.attention_factor = attention_factor * default_yarn_attention_factor(factor, 0.0, 0.0);
  } else if (type == "longrope") {
    rope.scaling = RopeScaling::kLongRope;
    rope.attention_factor = attention_factor;
    if (!fields.has("rope.scaling.attn_factor")) {
      const double ratio = static_cast<double>(config.max_context) / static_cast<double>(rope.original_context);
      rope.attention_factor = default_longrope_attention_factor(ratio, rope.original_context);
    }
  } else if (type != "none") {
    fields.fail("rope.scaling.type", "\"none\", \"linear\", \"yarn\" or \"longrope\" (others are not supported)");
  }

  if (spec.sliding_rope_theta > 0.0) {
    config.sliding_rope.theta = fields.number("rope.freq_base_swa", kThetaRange, spec.sliding_rope_theta);
  } else {
    config.sliding_rope = rope;
  }
}

void parse_gguf_windows(const ConfigFields& fields, const ArchitectureSpec& spec, ModelConfig& config) {
  config.layer_is_sliding.assign(static_cast<size_t>(config.num_layers), uint8_t{0});
  config.sliding_window = static_cast<int>(fields.integer("attention.sliding_window", kWindowRange, 0));
  if (config.sliding_window == 0) return;
  constexpr std::string_view kPatternKey = "attention.sliding_window_pattern";
  if (const boost::json::value* value = fields.object().if_contains("attention.sliding_window_pattern");
      value != nullptr && value->is_array()) {
    // One entry a layer: whether it has the window.
    const boost::json::array& entries = value->get_array();
    if (entries.size() != static_cast<size_t>(config.num_layers)) {
      fields.fail(kPatternKey, "one entry a layer, " + std::to_string(config.num_layers));
      return;
    }
    for (size_t i = 0; i < entries.size(); ++i) {
      const bool is_sliding = entries[i].is_bool() ? entries[i].get_bool() : entries[i] == boost::json::value(1);
      config.layer_is_sliding[i] = is_sliding ? 1 : 0;
    }
    return;
  }
  config.layer_is_sliding =
      sliding_layers(config.num_layers, fields.integer(kPatternKey, kLayerRange, spec.sliding_pattern));
}

void parse_gguf_fields(const ConfigFields& fields, const ArchitectureSpec& spec, const TensorSource& tensors,
                       Status& status, ModelConfig& config) {
  config.num_layers = static_cast<int>(fields.integer("block_count", kLayerRange));
  config.hidden_size = fields.integer("embedding_length", kWidthRange);
  config.intermediate_size = same_for_all_layers(fields, "feed_forward_length", kIntermediateRange, {});
  config.num_heads = static_cast<int>(same_for_all_layers(fields, "attention.head_count", kHeadRange, {}));
  config.num_kv_heads =
      static_cast<int>(same_for_all_layers(fields, "attention.head_count_kv", kHeadRange, config.num_heads));
  if (!fields.has("attention.key_length") && config.hidden_size % config.num_heads != 0) {
    fields.fail("attention.head_count", "a divisor of embedding_length (" + std::to_string(config.hidden_size) +
                                            "), or attention.key_length to be given");
  }
  config.head_dim =
      static_cast<int>(fields.integer("attention.key_length", kHeadDimRange, config.hidden_size / config.num_heads));
  if (fields.integer("attention.value_length", kHeadDimRange, config.head_dim) != config.head_dim) {
    fields.fail("attention.value_length", "the same as attention.key_length (other models are not supported)");
  }
  config.max_context = fields.integer("context_length", kContextRange);
  config.norm_epsilon = static_cast<float>(fields.number("attention.layer_norm_rms_epsilon", kEpsilonRange));

  // GGUF does not carry Gemma's query_pre_attn_scalar. It is head_dim in all sizes but the one of 62 layers (27B),
  // where it is hidden_size / num_heads.
  const bool is_gemma3_27b = spec.name == kGemma3.name && config.num_layers == 62;
  const double scalar = is_gemma3_27b ? static_cast<double>(config.hidden_size) / config.num_heads : config.head_dim;
  config.attention_scale =
      static_cast<float>(fields.number("attention.scale", {0.0, 1e6}, 1.0 / std::sqrt(std::max(scalar, 1e-6))));
  config.attention_soft_cap = static_cast<float>(fields.number("attn_logit_softcapping", kCapRange, 0.0));
  config.logit_soft_cap = static_cast<float>(fields.number("final_logit_softcapping", kCapRange, 0.0));

  const SourceTensor* embedding = tensors.find(std::string(spec.names.embedding.gguf) + ".weight");
  if (embedding == nullptr || embedding->sizes.size() != 2) {
    fields.fail(
        invalid_argument("tensor token_embd.weight is missing or is no matrix: this file has no model weights "
                         "(a vocabulary-only file?)"));
  } else if (embedding->sizes[0] < kVocabRange.min || embedding->sizes[0] > kVocabRange.max) {
    fields.fail(invalid_argument("tensor token_embd.weight has " + std::to_string(embedding->sizes[0]) +
                                 " rows, expected between 1 and " + std::to_string(kVocabRange.max)));
  } else {
    config.vocab_size = embedding->sizes[0];
  }
  config.has_tied_embeddings = tensors.find(std::string(spec.names.head.gguf) + ".weight") == nullptr;
  config.has_qkv_bias = tensors.find("blk.0.attn_q.bias") != nullptr || tensors.find("blk.0.attn_qkv.bias") != nullptr;
  config.has_output_bias = tensors.find("blk.0.attn_output.bias") != nullptr;
  config.has_mlp_bias = tensors.find("blk.0.ffn_down.bias") != nullptr;

  parse_gguf_ropes(fields, spec, tensors, status, config);
  parse_gguf_windows(fields, spec, config);
}

// A value of GGUF metadata as JSON. A number that 64 signed bits do not hold becomes the text of the error, so that
// whoever needs it says what is wrong, and nobody else does.
template <typename T>
boost::json::value json_or_error(const Result<std::optional<T>>& result) {
  if (!result.is_ok()) return boost::json::value(result.status().message());
  if constexpr (std::is_same_v<T, std::string_view>) {
    return boost::json::string(boost::json::string_view(result.value()->data(), result.value()->size()));
  } else if constexpr (std::is_arithmetic_v<T>) {
    return boost::json::value(*result.value());
  } else {
    boost::json::array items;
    for (const auto item : *result.value()) {
      if constexpr (std::is_same_v<T, std::vector<float>>) {
        items.emplace_back(static_cast<double>(item));
      } else {
        items.emplace_back(static_cast<typename T::value_type>(item));
      }
    }
    return items;
  }
}

// Nothing for vocabularies and lists of lists.
std::optional<boost::json::value> gguf_json(const GgufFile& file, const GgufEntry& entry) {
  constexpr int64_t kMaxArrayLength = 8192;  // one value a layer; vocabularies are longer
  const bool is_array = entry.value.is_array();
  if (is_array && entry.value.count > kMaxArrayLength) return std::nullopt;
  switch (is_array ? entry.value.element_type : entry.value.type) {
    case GgufType::kArray:
      return std::nullopt;
    case GgufType::kString:
      if (is_array) return std::nullopt;
      return json_or_error(file.find_string(entry.key));
    case GgufType::kBool:
      return is_array ? json_or_error(file.find_bools(entry.key)) : json_or_error(file.find_bool(entry.key));
    case GgufType::kF32:
    case GgufType::kF64:
      return is_array ? json_or_error(file.find_floats(entry.key)) : json_or_error(file.find_number(entry.key));
    default:
      return is_array ? json_or_error(file.find_integers(entry.key)) : json_or_error(file.find_integer(entry.key));
  }
}

void parse_gguf_ids(const ConfigFields& fields, ModelConfig& config) {
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id",
                          "tokenizer.ggml.eos_token_ids"}) {
    add_stop_ids(config, fields.integers(key, kIdRange));
  }
  config.bos_token_id = static_cast<int32_t>(fields.integer("tokenizer.ggml.bos_token_id", kIdRange, -1));
  config.pad_token_id = static_cast<int32_t>(fields.integer("tokenizer.ggml.padding_token_id", kIdRange, -1));
}

}  // namespace

Result<ParsedConfig> parse_hf_config(std::string_view config_json, std::string_view generation_config_json) {
  ASSIGN_OR_RETURN(const boost::json::object top, parse_json_object(config_json, "config.json"));
  Status status;
  const ConfigFields top_fields(top, "config.json: ", status);
  const std::vector<std::string> class_names = top_fields.texts("architectures");
  const std::string model_type = top_fields.text("model_type", "");
  RETURN_IF_ERROR(status);

  ParsedConfig parsed;
  ASSIGN_OR_RETURN(parsed.spec, find_architecture_by_hf_name(class_names.empty() ? "" : class_names[0], model_type));
  ModelConfig& config = parsed.config;
  // Models that also see images keep the decoder's fields in text_config.
  const bool is_nested = top_fields.has("text_config");
  const ConfigFields fields = is_nested ? top_fields.child("text_config") : top_fields;
  parse_hf_fields(fields, *parsed.spec, config);
  parse_hf_ids(fields, config);
  if (is_nested) {
    parse_hf_ids(top_fields, config);
    config.has_tied_embeddings = top_fields.boolean("tie_word_embeddings", config.has_tied_embeddings);
  }
  if (!generation_config_json.empty()) {
    ASSIGN_OR_RETURN(const boost::json::object generation,
                     parse_json_object(generation_config_json, "generation_config.json"));
    parse_hf_ids(ConfigFields(generation, "generation_config.json: ", status), config);
    RETURN_IF_ERROR(status);
  }
  RETURN_IF_ERROR(status);
  fill_derived(*parsed.spec, config);
  if (Status checked = check_model_config(config); !checked.is_ok()) return checked.with_context("config.json");
  return parsed;
}

Result<ParsedConfig> parse_gguf_config(const boost::json::object& metadata, const TensorSource& tensors) {
  Status status;
  const ConfigFields all_fields(metadata, "GGUF metadata: ", status);
  if (!all_fields.has("general.architecture")) {
    return invalid_argument("GGUF metadata: general.architecture is missing: this is not a language model's file");
  }
  const std::string architecture = all_fields.text("general.architecture", "");
  RETURN_IF_ERROR(status);
  ParsedConfig parsed;
  ASSIGN_OR_RETURN(parsed.spec, find_architecture_by_gguf_name(architecture));

  // The architecture's own keys, without its prefix.
  const std::string prefix = architecture + ".";
  boost::json::object own;
  for (const auto& [key, value] : metadata) {
    const std::string_view name(key.data(), key.size());
    if (name.starts_with(prefix))
      own[boost::json::string_view(name.data() + prefix.size(), name.size() - prefix.size())] = value;
  }
  ModelConfig& config = parsed.config;
  config.name = all_fields.text("general.name", "");
  parse_gguf_fields(ConfigFields(own, "GGUF metadata: " + prefix, status), *parsed.spec, tensors, status, config);
  parse_gguf_ids(all_fields, config);
  RETURN_IF_ERROR(status);
  fill_derived(*parsed.spec, config);
  if (Status checked = check_model_config(config); !checked.is_ok()) return checked.with_context("GGUF metadata");
  return parsed;
}

boost::json::object gguf_metadata(const GgufFile& file) {
  boost::json::object metadata;
  for (const GgufEntry& entry : file.entries()) {
    if (std::optional<boost::json::value> value = gguf_json(file, entry)) {
      metadata[boost::json::string_view(entry.key.data(), entry.key.size())] = std::move(*value);
    }
  }
  return metadata;
}

Result<ParsedConfig> parse_config(const Checkpoint& checkpoint) {
  if (checkpoint.kind == CheckpointKind::kGguf) {
    return parse_gguf_config(gguf_metadata(*checkpoint.gguf), checkpoint.tensors());
  }
  if (!checkpoint.config_json.has_value()) {
    return invalid_argument(checkpoint.path + " has no config.json, so the model's sizes are unknown");
  }
  return parse_hf_config(*checkpoint.config_json, checkpoint.generation_config_json.value_or(""));
}

}  // namespace quire
