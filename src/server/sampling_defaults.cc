#include "server/sampling_defaults.h"

#include <utility>

#include "server/sampling_fields.h"

namespace quire {

namespace json = boost::json;

namespace {

constexpr std::pair<const char*, const char*> kKeys[] = {
    // {of generation_config.json and of requests, of GGUF}
    {"temperature", "general.sampling.temp"},
    {"top_p", "general.sampling.top_p"},
    {"top_k", "general.sampling.top_k"},
    {"min_p", "general.sampling.min_p"},
    {"repetition_penalty", "general.sampling.penalty_repeat"},
};

// 0.95 is a float in GGUF: as a double it would read 0.949999988079071.
std::string shown(const json::value& value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value.to_number<double>());
  return text;
}

}  // namespace

SamplingDefaults read_sampling_defaults(const json::object& generation_config) {
  SamplingDefaults defaults;
  for (const auto& [name, gguf_key] : kKeys) {
    const json::value* value = generation_config.if_contains(name);
    if (value == nullptr || value->is_null()) continue;
    SamplingOptions options;
    options.params = defaults.params;
    if (const Status set = apply_sampling_fields(options, {{name, *value}}); !set.is_ok()) {
      defaults.faults.push_back(set.message());
      continue;
    }
    defaults.params = options.params;
    defaults.told += (defaults.told.empty() ? "" : ", ") + std::string(name) + ' ' + shown(*value);
  }
  return defaults;
}

SamplingDefaults parse_generation_config(std::string_view text) {
  boost::system::error_code error;
  const json::value config = json::parse(text, error);
  if (!error && config.is_object()) return read_sampling_defaults(config.get_object());
  SamplingDefaults nothing;
  nothing.faults.emplace_back("it is not a JSON object");
  return nothing;
}

SamplingDefaults read_gguf_sampling_defaults(const GgufFile& file) {
  json::object config;
  std::vector<std::string> faults;
  for (const auto& [name, key] : kKeys) {
    // As an integer where it is one: top_k takes nothing else.
    if (const auto integer = file.find_integer(key); integer.is_ok() && integer.value().has_value()) {
      config[name] = *integer.value();
      continue;
    }
    const auto number = file.find_number(key);
    if (!number.is_ok()) {
      faults.push_back(number.status().message());
    } else if (number.value().has_value()) {
      config[name] = *number.value();
    }
  }
  SamplingDefaults defaults = read_sampling_defaults(config);
  defaults.faults.insert(defaults.faults.begin(), faults.begin(), faults.end());
  return defaults;
}

}  // namespace quire
