#include "weights/group_quantization.h"

#include <algorithm>
#include <boost/json.hpp>
#include <initializer_list>

#include "weights/messages.h"

namespace quire {

namespace {

namespace json = boost::json;

constexpr uint64_t kMaxJsonDepth = 32;

// The object quantization_config, where there is one. What is wrong with the text as a whole is said by who reads the
// model's configuration.
std::optional<json::object> find_config(std::string_view config_json) {
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  json::error_code error;
  const json::value value = json::parse(config_json, error, {}, options);
  if (error || !value.is_object()) return std::nullopt;
  const json::value* config = value.get_object().if_contains("quantization_config");
  if (config == nullptr || !config->is_object()) return std::nullopt;
  return config->get_object();
}

std::string text_of(const json::object& object, std::string_view key, std::string_view otherwise = {}) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || !value->is_string()) return std::string(otherwise);
  return std::string(value->get_string().data(), value->get_string().size());
}

int64_t count_of(const json::object& object, std::initializer_list<std::string_view> keys, int64_t otherwise) {
  for (const std::string_view key : keys) {
    const json::value* value = object.if_contains(key);
    if (value != nullptr && value->is_int64()) return value->get_int64();
  }
  return otherwise;
}

bool flag_of(const json::object& object, std::string_view key, bool otherwise) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_bool() ? value->get_bool() : otherwise;
}

bool has_entries(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr &&
         ((value->is_object() && !value->get_object().empty()) || (value->is_array() && !value->get_array().empty()));
}

Status unsupported(const std::string& what) {
  return unimplemented("the model's quantization_config asks for " + what + ", which is not supported" + kWhatToTake);
}

Status check(const std::string& method, int64_t bits, int64_t group_size) {
  if (bits != 4) return unsupported(method + " with " + std::to_string(bits) + " bits");
  if (group_size != -1 && (group_size <= 0 || group_size % 32 != 0 || group_size > kMaxGroupedSide)) {
    return unsupported(method + " with groups of " + std::to_string(group_size));
  }
  return ok_status();
}

// Fields of a type that they never have would be read as if they were not there.
Status check_types(const json::object& config) {
  const auto check_all = [&](std::initializer_list<std::string_view> keys, const char* type, auto has_type) -> Status {
    for (const std::string_view key : keys) {
      const json::value* value = config.if_contains(key);
      if (value == nullptr || value->is_null() || has_type(*value)) continue;
      return invalid_argument("config.json: " + quoted(std::string(key)) + " of quantization_config should be " + type);
    }
    return ok_status();
  };
  RETURN_IF_ERROR(check_all({"bits", "w_bit", "num_bits", "group_size", "q_group_size"}, "a whole number",
                            [](const json::value& value) { return value.is_int64(); }));
  RETURN_IF_ERROR(check_all({"desc_act", "sym", "zero_point", "symmetric"}, "true or false",
                            [](const json::value& value) { return value.is_bool(); }));
  return check_all({"checkpoint_format", "version", "format", "strategy", "type"}, "a text",
                   [](const json::value& value) { return value.is_string(); });
}

// Of compressed-tensors: whether inputs are in groups by another order than their own.
bool has_order_of_activations(const json::object& weights) {
  const json::value* order = weights.if_contains("actorder");
  if (order == nullptr || order->is_null()) return false;
  if (order->is_bool()) return order->get_bool();
  const std::string name = text_of(weights, "actorder");
  return name != "weight" && name != "static";
}

Result<GroupQuantization> read_gptq(const json::object& config) {
  GroupQuantization result{.method = GroupMethod::kGptq,
                           .group_size = count_of(config, {"group_size"}, 128),
                           .is_symmetric = flag_of(config, "sym", false),
                           .has_own_order = flag_of(config, "desc_act", false),
                           .stored_zero_shift = 1};
  RETURN_IF_ERROR(check("GPTQ", count_of(config, {"bits"}, 4), result.group_size));
  const std::string format = text_of(config, "checkpoint_format", "gptq");
  if (format == "gptq_v2") {
    result.stored_zero_shift = 0;
  } else if (format != "gptq") {
    return unsupported("GPTQ's checkpoint_format " + quoted(format));
  }
  if (has_entries(config, "dynamic")) return unsupported("GPTQ with rules for single modules (dynamic)");
  return result;
}

Result<GroupQuantization> read_awq(const json::object& config) {
  GroupQuantization result{.method = GroupMethod::kAwq,
                           .group_size = count_of(config, {"group_size", "q_group_size"}, 128)};
  RETURN_IF_ERROR(check("AWQ", count_of(config, {"bits", "w_bit"}, 4), result.group_size));
  std::string version = text_of(config, "version", "gemm");
  std::transform(version.begin(), version.end(), version.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (version != "gemm") return unsupported("AWQ's version " + quoted(version));
  if (!flag_of(config, "zero_point", true)) return unsupported("AWQ without zero points");
  return result;
}

Result<std::optional<GroupQuantization>> read_compressed_tensors(const json::object& config) {
  const std::string format = text_of(config, "format");
  if (format != "pack-quantized") return unsupported("compressed-tensors in the format " + quoted(format));
  const json::value* groups = config.if_contains("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->get_object().size() != 1) {
    return unsupported("pack-quantized weights of several kinds");
  }
  const json::value& group = groups->get_object().begin()->value();
  const json::value* weights = group.is_object() ? group.get_object().if_contains("weights") : nullptr;
  if (weights == nullptr || !weights->is_object()) return unsupported("pack-quantized weights of no known kind");
  const json::object& fields = weights->get_object();
  RETURN_IF_ERROR(check_types(fields));
  if (!flag_of(fields, "symmetric", true)) return unsupported("pack-quantized weights with zero points");
  if (text_of(fields, "type", "int") != "int") return unsupported("pack-quantized weights that are no integers");
  const std::string strategy = text_of(fields, "strategy", "group");
  if (strategy != "group" && strategy != "channel") return unsupported("pack-quantized weights scaled by " + strategy);
  GroupQuantization result{.method = GroupMethod::kCompressedTensors,
                           .group_size = strategy == "channel" ? -1 : count_of(fields, {"group_size"}, -1),
                           .is_symmetric = true,
                           .has_own_order = has_order_of_activations(fields)};
  RETURN_IF_ERROR(check("pack-quantized weights", count_of(fields, {"num_bits"}, 4), result.group_size));
  return std::optional(result);
}

}  // namespace

std::string quantization_method(std::string_view config_json) {
  const std::optional<json::object> config = find_config(config_json);
  return config.has_value() ? text_of(*config, "quant_method") : std::string();
}

Result<std::optional<GroupQuantization>> read_group_quantization(std::string_view config_json) {
  const std::optional<json::object> config = find_config(config_json);
  if (!config.has_value()) return std::optional<GroupQuantization>();
  const std::string method = text_of(*config, "quant_method");
  if (method == "gptq" || method == "awq") RETURN_IF_ERROR(check_types(*config));
  if (method == "compressed-tensors") return read_compressed_tensors(*config);
  if (method != "gptq" && method != "awq") return unsupported("the quant_method " + quoted(method));
  ASSIGN_OR_RETURN(const GroupQuantization result, method == "gptq" ? read_gptq(*config) : read_awq(*config));
  return std::optional(result);
}

}  // namespace quire
