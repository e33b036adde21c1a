#include "models/pooling_config.h"

namespace quire {

namespace json = boost::json;

namespace {

constexpr const char* kPoolingFile = "1_Pooling/config.json";

struct PoolingName {
  const char* flag;  // older files: one of these is true
  const char* mode;  // newer files: "pooling_mode"
  Pooling pooling;   // kNone: not supported
};
constexpr PoolingName kPoolingNames[] = {
    {"pooling_mode_cls_token", "cls", Pooling::kCls},
    {"pooling_mode_mean_tokens", "mean", Pooling::kMean},
    {"pooling_mode_lasttoken", "lasttoken", Pooling::kLast},
    {"pooling_mode_max_tokens", "max", Pooling::kNone},
    {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Pooling::kNone},
    {"pooling_mode_weightedmean_tokens", "weightedmean", Pooling::kNone},
};

PoolingConfig unsupported(const std::string& source, const std::string& what) {
  return {.source = source,
          .unsupported = source + " " + what + "; only mean, cls and last-token pooling are supported"};
}

// "sentence_transformers.models.Pooling", or a longer path in newer files, is Pooling.
std::string_view last_part(std::string_view type) {
  const size_t dot = type.rfind('.');
  return dot == std::string_view::npos ? type : type.substr(dot + 1);
}

// What modules.json says besides pooling. An error text, or empty.
std::string read_modules(std::string_view text, bool* is_normalized) {
  boost::system::error_code error;
  const json::value modules = json::parse(text, error);
  if (error || !modules.is_array()) return "is not a JSON list";
  *is_normalized = false;
  for (const json::value& module : modules.get_array()) {
    const json::value* type = module.is_object() ? module.get_object().if_contains("type") : nullptr;
    if (type == nullptr || !type->is_string()) return "has a module without a type";
    const std::string_view name = last_part(std::string_view(type->get_string()));
    if (name == "Normalize") {
      *is_normalized = true;
    } else if (name != "Transformer" && name != "Pooling") {
      return "asks for a module of type " + std::string(name.substr(0, 40)) + " after the model";
    }
  }
  return {};
}

bool is_true(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_bool() && value->get_bool();
}

}  // namespace

const char* pooling_name(Pooling pooling) {
  switch (pooling) {
    case Pooling::kNone:
      return "none";
    case Pooling::kLast:
      return "last";
    case Pooling::kMean:
      return "mean";
    case Pooling::kCls:
      return "cls";
  }
  return "none";
}

PoolingConfig parse_sentence_transformers(std::string_view modules_json, std::string_view pooling_json) {
  PoolingConfig config;
  if (!modules_json.empty()) {
    config.source = "modules.json";
    const std::string fault = read_modules(modules_json, &config.is_normalized);
    if (!fault.empty()) return unsupported("modules.json", fault);
  }
  if (pooling_json.empty()) return config;
  config.source = kPoolingFile;
  boost::system::error_code error;
  const json::value parsed = json::parse(pooling_json, error);
  if (error || !parsed.is_object()) return unsupported(kPoolingFile, "is not a JSON object");
  const json::object& object = parsed.get_object();
  const json::value* mode = object.if_contains("pooling_mode");
  int num_found = 0;
  for (const PoolingName& name : kPoolingNames) {
    const bool is_named = mode != nullptr && mode->is_string() && mode->get_string() == name.mode;
    if (!is_named && !is_true(object, name.flag)) continue;
    ++num_found;
    config.pooling = name.pooling;
    if (name.pooling == Pooling::kNone)
      return unsupported(kPoolingFile, std::string("asks for ") + name.mode + " pooling");
  }
  if (num_found == 0) return unsupported(kPoolingFile, "names no pooling that is known");
  if (num_found > 1) return unsupported(kPoolingFile, "asks for several poolings, one after the other");
  return config;
}

PoolingConfig parse_gguf_pooling(const json::object& metadata) {
  const json::value* architecture = metadata.if_contains("general.architecture");
  if (architecture == nullptr || !architecture->is_string()) return {};
  const std::string key = std::string(architecture->get_string()) + ".pooling_type";
  const json::value* value = metadata.if_contains(key);
  if (value == nullptr) return {};
  boost::system::error_code error;
  int64_t type = value->is_number() ? value->to_number<int64_t>(error) : -1;
  if (error) type = -1;
  switch (type) {
    case 0:  // "none": the file leaves it to us
      return {};
    case 1:
      return {.pooling = Pooling::kMean, .source = key, .unsupported = {}};
    case 2:
      return {.pooling = Pooling::kCls, .source = key, .unsupported = {}};
    case 3:
      return {.pooling = Pooling::kLast, .source = key, .unsupported = {}};
    case 4:
      return unsupported(key, "is 4: the model ranks pairs of texts and makes no embeddings");
    default:
      return unsupported(key, "is not a number from 0 to 4");
  }
}

}  // namespace quire
