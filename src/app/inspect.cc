// `quire inspect`: what a model file holds and what it would need here, without loading its weights.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <map>

#include "app/command.h"
#include "app/console.h"
#include "app/json_lines.h"
#include "app/model_path.h"
#include "app/model_session.h"
#include "app/options.h"
#include "engine/memory_plan.h"
#include "models/config_parser.h"
#include "models/kv_groups.h"
#include "ops/host_memory.h"

namespace quire::app {

namespace json = boost::json;

namespace {

struct InspectOptions {
  std::string model;
  std::string kv_cache_dtype = "f16";
  bool is_json = false;
};

DType parse_dtype(const std::string& name) {
  if (name == "f32") return DType::kF32;
  if (name == "fp8") return DType::kF8E4M3;
  if (name == "int8") return DType::kI8;
  return name == "bf16" ? DType::kBF16 : DType::kF16;
}

// Weights by format: "q4_1" → {tensors, values, bytes}.
json::object describe_formats(const TensorSource& tensors, int64_t& num_values, int64_t& num_bytes) {
  struct Total {
    int64_t num_tensors = 0;
    int64_t num_values = 0;
    int64_t num_bytes = 0;
  };
  std::map<std::string, Total> totals;
  for (const SourceTensor& tensor : tensors.tensors()) {
    Total& total = totals[tensor.type_name];
    total.num_tensors += 1;
    total.num_values += tensor.num_values();
    total.num_bytes += static_cast<int64_t>(tensor.data.size());
  }
  json::object formats;
  for (const auto& [name, total] : totals) {
    num_values += total.num_values;
    num_bytes += total.num_bytes;
    formats[name] = {{"tensors", total.num_tensors}, {"values", total.num_values}, {"bytes", total.num_bytes}};
  }
  return formats;
}

json::object describe_memory(const ModelConfig& config, DType kv_dtype, int64_t weight_bytes) {
  int64_t bytes_per_token = 0;  // of tokens that every layer keeps
  int64_t window_bytes_per_token = 0;
  for (const KvGroup& group : make_kv_groups(config, config.num_kv_heads, kv_dtype)) {
    (group.kind == KvKind::kFull ? bytes_per_token : window_bytes_per_token) += group.bytes_per_token();
  }
  const int64_t window_bytes = window_bytes_per_token * config.sliding_window;
  const int64_t available = available_host_bytes();
  const int64_t room = available - weight_bytes - window_bytes;
  // A model whose every layer has a window keeps a bounded number of bytes for any number of tokens.
  const int64_t tokens_that_fit = room <= 0 ? 0 : bytes_per_token == 0 ? config.max_context : room / bytes_per_token;
  return {{"kv_dtype", std::string(dtype_name(kv_dtype))},
          {"kv_bytes_per_token", bytes_per_token + window_bytes_per_token},
          {"kv_bytes_per_token_beyond_window", bytes_per_token},
          {"available_bytes", available},
          {"weights_fit", available >= weight_bytes},
          {"tokens_that_fit", tokens_that_fit}};
}

json::object describe_config(const ModelConfig& config) {
  return {{"name", config.name},
          {"architecture", config.architecture},
          {"layers", config.num_layers},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"heads", config.num_heads},
          {"kv_heads", config.num_kv_heads},
          {"head_dim", config.head_dim},
          {"vocab_size", config.vocab_size},
          {"max_context", config.max_context},
          {"sliding_window", config.sliding_window},
          {"tied_embeddings", config.has_tied_embeddings},
          {"stop_token_ids", json::value_from(config.stop_token_ids)}};
}

json::value describe_text(const Checkpoint& checkpoint) {
  const auto tokenizer = open_tokenizer(checkpoint);
  if (!tokenizer.is_ok()) return json::object{{"error", tokenizer.status().message()}};
  const Tokenizer& t = *tokenizer.value();
  return json::object{{"kind", t.kind()},         {"vocab_size", t.vocab_size()},
                      {"bos_id", t.bos_id()},     {"eos_id", t.eos_id()},
                      {"adds_bos", t.adds_bos()}, {"end_of_turn_ids", json::value_from(t.end_of_turn_ids())}};
}

json::value describe_template(const Checkpoint& checkpoint) {
  const auto source = find_chat_template(checkpoint);
  if (!source.is_ok()) return json::object{{"error", source.status().message()}};
  if (!source.value().has_value()) return nullptr;
  const auto parsed = ChatTemplate::create(*source.value());
  if (!parsed.is_ok()) return json::object{{"error", parsed.status().message()}};
  return json::object{{"bytes", source.value()->size()}};
}

// "hidden_size" and 576 as "hidden size  576", nested objects indented.
void print_lines(const json::object& object, int indent) {
  for (const auto& [key, value] : object) {
    std::string name(key);
    if (indent == 0) std::replace(name.begin(), name.end(), '_', ' ');
    if (value.is_object()) {
      print_result(fmt::format("{:{}}{}\n", "", indent, name));
      print_lines(value.get_object(), indent + 2);
    } else {
      const bool is_bytes = key.find("bytes") != std::string_view::npos && value.is_int64();
      std::string text = json::serialize(value);  // control bytes of a model's names stay escaped
      if (value.is_string()) text = text.substr(1, text.size() - 2);
      if (is_bytes && value.get_int64() >= 1 << 20) text += " (" + format_bytes(value.get_int64()) + ")";
      print_result(fmt::format("{:{}}{:<36}{}\n", "", indent, name, text));
    }
  }
}

Status run(const InspectOptions& options) {
  Console console(LogLevel::kInfo);
  ASSIGN_OR_RETURN(const std::filesystem::path path, resolve_model(options.model, read_environment(), console));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_checkpoint(path.string()));
  ASSIGN_OR_RETURN(const ParsedConfig parsed, parse_config(checkpoint));
  int64_t num_values = 0;
  int64_t num_bytes = 0;
  json::object formats = describe_formats(checkpoint.tensors(), num_values, num_bytes);
  const json::object description{
      {"path", path.string()},
      {"kind", checkpoint.kind == CheckpointKind::kGguf ? "gguf" : "hugging_face"},
      {"parameters", num_values},
      {"weight_bytes", num_bytes},
      {"config", describe_config(parsed.config)},
      {"formats", std::move(formats)},
      {"tokenizer", describe_text(checkpoint)},
      {"chat_template", describe_template(checkpoint)},
      {"memory", describe_memory(parsed.config, parse_dtype(options.kv_cache_dtype), num_bytes)}};
  if (options.is_json) {
    print_json_line(description);
  } else {
    print_lines(description, 0);
  }
  return ok_status();
}

}  // namespace

std::function<Status()> declare_inspect(CLI::App& parser) {
  auto options = std::make_shared<InspectOptions>();
  add_model_argument(parser, options->model);
  parser
      .add_option("--kv-cache-dtype", options->kv_cache_dtype,
                  "KV cache dtype for the memory figures: f16, f32, bf16, fp8 or int8")
      ->check(CLI::IsMember({"f16", "f32", "bf16", "fp8", "int8"}))
      ->capture_default_str();
  parser.add_flag("--json", options->is_json, "One JSON object instead of lines");
  return [options] { return run(*options); };
}

}  // namespace quire::app
