// Reads Hugging Face's config.json and generation_config.json: the names and the defaults are those of transformers.
#include <algorithm>
#include <cmath>

#include "models/config_common.h"
#include "models/config_parser.h"
#include "models/registry.h"

namespace quire {
namespace {

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
  if (config.sliding_window == 0 && spec.sliding_pattern == 0) return;
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

}  // namespace quire
