#include "app/prompt_batch.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <set>

#include "app/json_lines.h"

namespace quire::app {

namespace json = boost::json;

namespace {

// A line of a batch is one request, and shallow.
constexpr size_t kMaxJsonDepth = 64;
// Of keys that mean nothing, told once each.
constexpr size_t kMostUnknownKeys = 20;
constexpr size_t kLongestShownKey = 60;

json::object user_turn(const std::string& prompt) {
  return {{"messages", json::array{json::object{{"role", "user"}, {"content", prompt}}}}};
}

Result<std::vector<int32_t>> read_token_ids(const json::value& value) {
  const Status wrong = invalid_argument("prompt_token_ids must be a list of token ids");
  if (!value.is_array()) return wrong;
  std::vector<int32_t> ids;
  for (const json::value& item : value.get_array()) {
    if (!item.is_int64() || item.get_int64() < std::numeric_limits<int32_t>::min() ||
        item.get_int64() > std::numeric_limits<int32_t>::max()) {
      return wrong;
    }
    ids.push_back(static_cast<int32_t>(item.get_int64()));  // validate_request knows the vocabulary
  }
  return ids;
}

Result<std::vector<int32_t>> encode_line(const TextFrontend& text, const json::object& line, bool is_chat) {
  const json::value* prompt = line.if_contains("prompt");
  const json::value* ids = line.if_contains("prompt_token_ids");
  const json::value* messages = line.if_contains("messages");
  if ((prompt != nullptr) + (ids != nullptr) + (messages != nullptr) != 1) {
    return invalid_argument("a line must have exactly one of \"prompt\", \"prompt_token_ids\" and \"messages\"");
  }
  if (ids != nullptr) return read_token_ids(*ids);
  if (messages != nullptr) return text.encode_chat(line);
  if (!prompt->is_string()) return invalid_argument("prompt must be a string");
  const std::string content(prompt->get_string());
  return is_chat ? text.encode_chat(user_turn(content)) : text.encode_text(content);
}

bool is_known_key(std::string_view key) {
  constexpr std::string_view kOtherKeys[] = {
      "prompt", "prompt_token_ids", "messages", "tools", "documents", "add_generation_prompt", "chat_template_kwargs"};
  const auto fields = sampling_fields();
  return std::find(std::begin(kOtherKeys), std::end(kOtherKeys), key) != std::end(kOtherKeys) ||
         std::any_of(fields.begin(), fields.end(), [&](const SamplingField& field) { return field.name == key; });
}

BatchPrompt parse_line(const TextFrontend& text, const std::string& line, bool is_chat, const SamplingOptions& defaults,
                       std::set<std::string>& unknown_keys) {
  BatchPrompt result;
  result.sampling = defaults;
  boost::system::error_code error;
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  const json::value value = json::parse(line, error, {}, options);
  if (error || !value.is_object()) {
    result.status = invalid_argument(error ? "not JSON: " + error.message() : "the line must be a JSON object");
    return result;
  }
  for (const auto& [key, unused] : value.get_object()) {
    if (!is_known_key(key) && unknown_keys.size() < kMostUnknownKeys) unknown_keys.emplace(key);
  }
  result.status = apply_sampling_fields(result.sampling, value.get_object());
  if (!result.status.is_ok()) return result;
  Result<std::vector<int32_t>> ids = encode_line(text, value.get_object(), is_chat);
  if (!ids.is_ok()) {
    result.status = ids.status();
  } else {
    result.token_ids = std::move(ids).value();
  }
  return result;
}

}  // namespace

BatchPrompt make_prompt(const TextFrontend& text, const std::string& prompt, bool is_chat,
                        const SamplingOptions& sampling) {
  BatchPrompt result;
  result.sampling = sampling;
  Result<std::vector<int32_t>> ids = is_chat ? text.encode_chat(user_turn(prompt)) : text.encode_text(prompt);
  if (!ids.is_ok()) {
    result.status = ids.status();
  } else {
    result.token_ids = std::move(ids).value();
  }
  return result;
}

Result<std::vector<BatchPrompt>> read_prompts(const TextFrontend& text, const std::string& path, bool is_chat,
                                              const SamplingOptions& defaults,
                                              const std::function<void(const std::string&)>& warn) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found("cannot open the prompts file " + path);
  std::vector<BatchPrompt> prompts;
  std::set<std::string> unknown_keys;
  std::string line;
  bool is_too_long = false;
  for (int64_t number = 1; read_line(file, line, is_too_long); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    BatchPrompt prompt;
    if (is_too_long) {
      prompt.status = invalid_argument("the line is longer than 64 MiB");
    } else {
      prompt = parse_line(text, line, is_chat, defaults, unknown_keys);
    }
    prompt.status = prompt.status.with_context(path + ":" + std::to_string(number));
    prompts.push_back(std::move(prompt));
  }
  if (file.bad()) return internal_error("reading " + path + " failed");
  for (const std::string& key : unknown_keys) {
    warn("the key '" + key.substr(0, kLongestShownKey) + "' in " + path + " means nothing here and is ignored");
  }
  if (prompts.empty()) return invalid_argument(path + " holds no prompts: write one JSON object a line");
  return prompts;
}

}  // namespace quire::app
