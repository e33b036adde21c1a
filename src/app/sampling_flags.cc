#include "app/sampling_flags.h"

#include <algorithm>

namespace quire::app {

namespace json = boost::json;

namespace {

// What a person types for one field, as the JSON value that the field's setter takes.
json::value to_json(const SamplingField& field, const std::vector<std::string>& texts) {
  const auto parsed = [&](const std::string& text) -> json::value {
    boost::system::error_code error;
    json::value value = json::parse(text, error);
    return error ? json::value(text) : value;  // the setter says what it wants instead
  };
  switch (field.kind) {
    case SamplingValueKind::kNumber:
    case SamplingValueKind::kInteger:
    case SamplingValueKind::kFlag:
      return parsed(texts.back());
    case SamplingValueKind::kStrings:
      return json::value_from(texts);
    case SamplingValueKind::kIntegers: {
      json::array ids;
      for (const std::string& text : texts) ids.push_back(parsed(text));
      return ids;
    }
    case SamplingValueKind::kBiases: {
      json::object biases;
      for (const std::string& text : texts) {
        const json::value whole = parsed(text);
        if (whole.is_object()) {
          for (const auto& [id, bias] : whole.get_object()) biases[id] = bias;
          continue;
        }
        const size_t colon = text.find(':');
        biases[text.substr(0, colon)] =
            colon == std::string::npos ? json::value(nullptr) : parsed(text.substr(colon + 1));
      }
      return biases;
    }
  }
  return nullptr;
}

const char* type_name(SamplingValueKind kind) {
  switch (kind) {
    case SamplingValueKind::kNumber:
      return "NUMBER";
    case SamplingValueKind::kInteger:
      return "N";
    case SamplingValueKind::kStrings:
      return "TEXT";
    case SamplingValueKind::kIntegers:
      return "ID[,ID...]";
    case SamplingValueKind::kBiases:
      return "ID:BIAS";
    case SamplingValueKind::kFlag:
      return "";
  }
  return "";
}

}  // namespace

void add_sampling_flags(CLI::App& parser, SamplingOptions& options) {
  for (const SamplingField& field : sampling_fields()) {
    std::string flag = "--" + std::string(field.name);
    std::replace(flag.begin(), flag.end(), '_', '-');
    const std::string meaning(field.meaning);
    CLI::Option* option = nullptr;
    const auto set = [&options, &field](const json::value& value) {
      const Status status = field.set(options, value);
      if (!status.is_ok()) throw CLI::ValidationError(status.message());
    };
    if (field.kind == SamplingValueKind::kFlag) {
      option = parser.add_flag_callback(
          flag, [set] { set(true); }, meaning);
    } else if (field.kind == SamplingValueKind::kNumber || field.kind == SamplingValueKind::kInteger) {
      option = parser.add_option_function<std::string>(
          flag, [set, &field](const std::string& text) { set(to_json(field, {text})); }, meaning);
      option->type_name(type_name(field.kind))->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    } else {
      option = parser.add_option_function<std::vector<std::string>>(
          flag, [set, &field](const std::vector<std::string>& texts) { set(to_json(field, texts)); },
          meaning + "; may be given again");
      option->type_name(type_name(field.kind))->allow_extra_args(false);
      if (field.kind == SamplingValueKind::kIntegers) option->delimiter(',');
    }
    option->group("Sampling");
  }
}

}  // namespace quire::app
