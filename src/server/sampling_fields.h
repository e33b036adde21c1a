// The sampling fields of a request, each once: its name, what it means, and how a JSON value becomes a SamplingParams
// member. Request bodies, lines of `--prompts` files and the command line's flags all go through this table, so a field
// means the same everywhere. Values are checked here as far as one field goes; validate_request (engine/request.h)
// checks them against the model.
#pragma once

#include <boost/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/request.h"

namespace quire {

struct SamplingOptions {
  SamplingParams params;
  std::vector<std::string> stop;  // strings that end the text; they are cut off
  bool has_echo = false;          // the prompt is put before the text
};

// OpenAI stops at 2, most other servers do not: with min_p, higher ones are in use. Above this all tokens are as good
// as equally likely. openapi.json says the same.
inline constexpr double kMaxTemperature = 100;

enum class SamplingValueKind : uint8_t {
  kNumber,
  kInteger,
  kFlag,
  kStrings,   // a string or a list of strings
  kIntegers,  // a list of integers
  kBiases,    // an object: token id → number
};

struct SamplingField {
  std::string_view name;  // of the JSON field; the flag is the same with '-' for '_'
  SamplingValueKind kind;
  std::string_view meaning;
  // `value` is never null: an absent or null field keeps its default. The error says what the field takes.
  Status (*set)(SamplingOptions& options, const boost::json::value& value);
};

std::span<const SamplingField> sampling_fields();

// Sets every sampling field that the object has, but for those named in `without`; other keys are the caller's
// business. Where a field is wrong, its name goes to `wrong_field_name`.
Status apply_sampling_fields(SamplingOptions& options, const boost::json::object& object,
                             std::span<const std::string_view> without = {}, std::string* wrong_field_name = nullptr);

}  // namespace quire
