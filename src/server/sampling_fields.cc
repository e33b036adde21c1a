#include "server/sampling_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "server/json_fields.h"
#include "text/utf8.h"

namespace quire {

namespace json = boost::json;

namespace {

constexpr int64_t kMaxStopStrings = 64;
constexpr size_t kMaxStopBytes = 4096;

struct NumberRange {
  double low;
  double high;
  const char* wanted;
};

Status set_number(float& target, std::string_view name, const json::value& value, const NumberRange& range) {
  double number = 0;
  if (!read_number(value, number) || number < range.low || number > range.high)
    return wrong_field(name, range.wanted, value);
  target = static_cast<float>(number);
  return ok_status();
}

template <typename Integer>
Status set_integer(Integer& target, std::string_view name, const json::value& value, int64_t low, int64_t high) {
  int64_t number = 0;
  if (!read_integer(value, number) || number < low || number > high) {
    return wrong_field(name, "a whole number from " + std::to_string(low) + " to " + std::to_string(high), value);
  }
  target = static_cast<Integer>(number);
  return ok_status();
}

Status set_flag(bool& target, std::string_view name, const json::value& value) {
  if (!value.is_bool()) return wrong_field(name, "true or false", value);
  target = value.get_bool();
  return ok_status();
}

Status set_token_ids(std::vector<int32_t>& target, std::string_view name, const json::value& value) {
  if (!value.is_array()) return wrong_field(name, "a list of token ids", value);
  target.clear();
  for (const json::value& item : value.get_array()) {
    int64_t id = 0;
    if (!read_integer(item, id) || id < 0 || id > std::numeric_limits<int32_t>::max()) {
      return wrong_field(name, "a list of token ids", value);
    }
    target.push_back(static_cast<int32_t>(id));
  }
  return ok_status();
}

Status set_stop(SamplingOptions& options, const json::value& value) {
  const auto add = [&](const json::value& item) {
    if (!item.is_string() || item.get_string().empty() || item.get_string().size() > kMaxStopBytes ||
        !is_valid_utf8(item.get_string())) {
      return wrong_field(
          "stop",
          "a string or a list of strings, none empty, not UTF-8 or over " + std::to_string(kMaxStopBytes) + " bytes",
          value);
    }
    options.stop.emplace_back(item.get_string());
    return ok_status();
  };
  options.stop.clear();
  if (!value.is_array()) return add(value);
  if (value.get_array().size() > kMaxStopStrings) {
    return invalid_argument("stop may have " + std::to_string(kMaxStopStrings) + " strings, not " +
                            std::to_string(value.get_array().size()));
  }
  for (const json::value& item : value.get_array()) RETURN_IF_ERROR(add(item));
  return ok_status();
}

Status set_logit_bias(SamplingOptions& options, const json::value& value) {
  if (!value.is_object())
    return wrong_field("logit_bias", "an object of token ids and numbers, such as {\"42\": -1.5}", value);
  options.params.logit_bias.clear();
  for (const auto& [key, bias] : value.get_object()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    double number = 0;
    if (error != std::errc() || end != key.data() + key.size() || id < 0) {
      return invalid_argument("logit_bias has the key '" + shorten_text(key, 40) + "', which is not a token id");
    }
    if (!read_number(bias, number) || std::abs(number) > 100) {
      return wrong_field("logit_bias of token " + std::to_string(id), "a number from -100 to 100", bias);
    }
    options.params.logit_bias.emplace_back(id, static_cast<float>(number));
  }
  return ok_status();
}

Status set_seed(SamplingOptions& options, const json::value& value) {
  int64_t number = 0;
  if (value.is_uint64()) {
    options.params.seed = value.get_uint64();
  } else if (read_integer(value, number)) {
    options.params.seed = static_cast<uint64_t>(number);  // negative seeds are seeds too: their two's complement
  } else {
    return wrong_field("seed", "a whole number of 64 bits", value);
  }
  return ok_status();
}

using Options = SamplingOptions;
using Value = json::value;
constexpr int64_t kLargeCount = std::numeric_limits<int32_t>::max();

constexpr NumberRange kProbability{0, 1, "a number from 0 to 1"};
constexpr NumberRange kPenalty{-2, 2, "a number from -2 to 2"};
constexpr NumberRange kTemperature{0, kMaxTemperature, "a number from 0 to 100"};
constexpr NumberRange kRepetition{0.01, 100, "a number from 0.01 to 100"};

constexpr SamplingField kFields[] = {
    {"max_tokens", SamplingValueKind::kInteger, "Most tokens to generate",
     [](Options& o, const Value& v) { return set_integer(o.params.max_tokens, "max_tokens", v, 0, kLargeCount); }},
    {"min_tokens", SamplingValueKind::kInteger, "Tokens to generate before the model's stop tokens may come",
     [](Options& o, const Value& v) { return set_integer(o.params.min_tokens, "min_tokens", v, 0, kLargeCount); }},
    {"temperature", SamplingValueKind::kNumber, "Randomness: 0 always takes the best token",
     [](Options& o, const Value& v) { return set_number(o.params.temperature, "temperature", v, kTemperature); }},
    {"top_p", SamplingValueKind::kNumber, "Sample from the best tokens that together have this probability",
     [](Options& o, const Value& v) { return set_number(o.params.top_p, "top_p", v, kProbability); }},
    {"top_k", SamplingValueKind::kInteger, "Sample from the K best tokens; 0 or -1: from all",
     [](Options& o, const Value& v) { return set_integer(o.params.top_k, "top_k", v, -1, kLargeCount); }},
    {"min_p", SamplingValueKind::kNumber, "Drop tokens less likely than this times the best one",
     [](Options& o, const Value& v) { return set_number(o.params.min_p, "min_p", v, kProbability); }},
    {"typical_p", SamplingValueKind::kNumber, "Sample from the most typical tokens that together have this probability",
     [](Options& o, const Value& v) { return set_number(o.params.typical_p, "typical_p", v, kProbability); }},
    {"n", SamplingValueKind::kInteger, "Answers to generate",
     [](Options& o, const Value& v) { return set_integer(o.params.n, "n", v, 1, kLargeCount); }},
    {"seed", SamplingValueKind::kInteger, "Makes random choices repeatable", set_seed},
    {"stop", SamplingValueKind::kStrings, "Text that ends the answer; it is cut off",
     [](Options& o, const Value& v) { return set_stop(o, v); }},
    {"stop_token_ids", SamplingValueKind::kIntegers, "Tokens that end the answer",
     [](Options& o, const Value& v) { return set_token_ids(o.params.stop_token_ids, "stop_token_ids", v); }},
    {"allowed_token_ids", SamplingValueKind::kIntegers, "The only tokens that may come",
     [](Options& o, const Value& v) {
       if (v.is_array() && v.get_array().empty()) {
         return invalid_argument(
             "allowed_token_ids is empty, so that nothing may come: leave it out to allow all tokens");
       }
       return set_token_ids(o.params.allowed_token_ids, "allowed_token_ids", v);
     }},
    {"ignore_eos", SamplingValueKind::kFlag, "Go on past the model's own stop tokens",
     [](Options& o, const Value& v) { return set_flag(o.params.ignore_eos, "ignore_eos", v); }},
    {"repetition_penalty", SamplingValueKind::kNumber, "Over 1 makes tokens of prompt and answer less likely to return",
     [](Options& o, const Value& v) {
       return set_number(o.params.repetition_penalty, "repetition_penalty", v, kRepetition);
     }},
    {"presence_penalty", SamplingValueKind::kNumber, "Taken from the logit of every token of the answer",
     [](Options& o, const Value& v) { return set_number(o.params.presence_penalty, "presence_penalty", v, kPenalty); }},
    {"frequency_penalty", SamplingValueKind::kNumber, "Taken from the logit of a token each time that it came",
     [](Options& o, const Value& v) {
       return set_number(o.params.frequency_penalty, "frequency_penalty", v, kPenalty);
     }},
    {"logit_bias", SamplingValueKind::kBiases, "Added to the logits of single tokens", set_logit_bias},
    {"logprobs", SamplingValueKind::kInteger,
     "Give log-probabilities: of the tokens chosen and of the K best in each place",
     [](Options& o, const Value& v) { return set_integer(o.params.num_logprobs, "logprobs", v, 0, kLargeCount); }},
    {"prompt_logprobs", SamplingValueKind::kInteger, "The same for the tokens of the prompt",
     [](Options& o, const Value& v) {
       return set_integer(o.params.num_prompt_logprobs, "prompt_logprobs", v, 0, kLargeCount);
     }},
    {"echo", SamplingValueKind::kFlag, "Put the prompt before the answer",
     [](Options& o, const Value& v) { return set_flag(o.has_echo, "echo", v); }},
};

}  // namespace

std::span<const SamplingField> sampling_fields() {
  return kFields;
}

Status apply_sampling_fields(SamplingOptions& options, const json::object& object,
                             std::span<const std::string_view> without, std::string* wrong_field_name) {
  for (const SamplingField& field : kFields) {
    if (std::find(without.begin(), without.end(), field.name) != without.end()) continue;
    const json::value* value = object.if_contains({field.name.data(), field.name.size()});
    if (value == nullptr || value->is_null()) continue;
    const Status status = field.set(options, *value);
    if (status.is_ok()) continue;
    if (wrong_field_name != nullptr) *wrong_field_name = std::string(field.name);
    return status;
  }
  return ok_status();
}

}  // namespace quire
