// Reads a model's config from GGUF metadata; what the keys do not say is asked of the tensors.
#include <algorithm>
#include <cmath>

#include "models/config_common.h"
#include "models/config_parser.h"
#include "models/registry.h"

namespace quire {
namespace {

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
  if (config.sliding_window == 0 && spec.sliding_pattern == 0) return;
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
  if (fields.integer("expert_count", {0, 1 << 20}, 0) > 0) {
    fields.fail(unimplemented(fields.where() + "expert_count: models with a mixture of experts are not supported"));
  }
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

}  // namespace quire
