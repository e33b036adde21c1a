#include "server/openai_types.h"

#include <algorithm>
#include <limits>

#include "server/openai_parsing.h"

namespace quire {

namespace json = boost::json;

namespace {

constexpr size_t kMaxStringBytes = size_t{64} << 20;

bool is_empty_or_false(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return true;
    case json::kind::bool_:
      return !value.get_bool();
    case json::kind::int64:
      return value.get_int64() == 0;
    case json::kind::uint64:
      return value.get_uint64() == 0;
    case json::kind::double_:
      return value.get_double() == 0.0;
    case json::kind::string:
      return value.get_string().empty();
    case json::kind::array:
      return value.get_array().empty();
    case json::kind::object:
      return value.get_object().empty();
  }
  return false;
}

void read_stream_options(FieldReader& reader, StreamOptions& stream) {
  reader.read_bool("stream", stream.is_on);
  const json::value* options = reader.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    reader.fail_wanted("stream_options", "an object such as {\"include_usage\": true}");
    return;
  }
  if (!stream.is_on) {
    reader.fail("stream_options",
                invalid_argument("stream_options is only for streams: send \"stream\": true as well"));
    return;
  }
  FieldReader inner(options->get_object(), "stream_options.");
  inner.read_bool("include_usage", stream.includes_usage);
  inner.read_bool("continuous_usage_stats", stream.has_usage_in_every_chunk);
  reader.fail("stream_options", inner.status());
}

bool read_token_list(const json::array& items, std::vector<int32_t>& ids) {
  ids.reserve(items.size());
  for (const json::value& item : items) {
    int64_t id = 0;
    if (!read_integer(item, id) || id < std::numeric_limits<int32_t>::min() ||
        id > std::numeric_limits<int32_t>::max()) {
      return false;
    }
    ids.push_back(static_cast<int32_t>(id));  // whether the vocabulary has it is checked with the model
  }
  return true;
}

}  // namespace

Result<json::object> parse_body(std::string_view body) {
  ASSIGN_OR_RETURN(json::value value, parse_json(body));
  if (!value.is_object()) return invalid_argument("the body must be a JSON object, not " + shown_json(value));
  return std::move(value.get_object());
}

void refuse_fields(FieldReader& reader, std::span<const UnsupportedField> fields) {
  for (const UnsupportedField& field : fields) {
    const json::value* value = reader.find(field.name);
    if (value == nullptr || (field.is_fine_if_false && is_empty_or_false(*value))) continue;
    reader.fail(field.name, unimplemented(std::string(field.name) + " is not supported: " + std::string(field.advice)));
  }
}

void read_generation_fields(FieldReader& reader, const json::object& body, const ApiLimits& limits,
                            std::span<const std::string_view> without_sampling, GenerationFields& fields) {
  constexpr UnsupportedField kUnsupported[] = {
      {"truncate_prompt_tokens", "a prompt is never cut; send one that fits the model's context"},
      {"use_beam_search", "sample with best_of or n instead"},
      {"bad_words", "use logit_bias or a grammar"},
      {"prompt_embeds", "send text or token ids"},
      {"logits_processors", "use logit_bias or a grammar"},
  };
  reader.read_string("model", fields.model, limits.max_name_bytes);
  read_stream_options(reader, fields.stream);
  reader.read_integer_in("priority", fields.priority, -1'000'000'000, 1'000'000'000);
  reader.read_string("cache_salt", fields.cache_salt, limits.max_name_bytes);
  reader.read_string("user", fields.user, 4096);
  reader.read_bool("include_stop_str_in_output", fields.includes_stop_string);
  reader.read_bool("return_token_ids", fields.returns_token_ids);
  reader.read_bool("skip_special_tokens", fields.skips_special_tokens);
  refuse_fields(reader, kUnsupported);
  fields.has_max_tokens = reader.find("max_tokens") != nullptr;

  // Bounds of this interface, narrower than those of the field: they hold before anything is made for each choice.
  int64_t bounded = 0;
  reader.read_integer_in("n", bounded, 1, limits.max_n);
  reader.read_integer_in("prompt_logprobs", bounded, 0, limits.max_logprobs);
  std::string wrong_name;
  const Status sampling = apply_sampling_fields(fields.sampling, body, without_sampling, &wrong_name);
  reader.fail(wrong_name, sampling);
  read_structure(reader, fields.structure);
}

void read_prompts(FieldReader& reader, std::string_view name, const ApiLimits& limits,
                  std::vector<PromptInput>& prompts) {
  const json::value* value = reader.find(name);
  const std::string wanted = "a text, a list of token ids, or a list of these";
  if (value == nullptr) {
    reader.fail(name, invalid_argument(std::string(name) + " is missing: send " + wanted));
    return;
  }
  if (value->is_string()) {
    prompts.emplace_back(std::string(value->get_string()));
    return;
  }
  if (!value->is_array()) {
    reader.fail_wanted(name, wanted);
    return;
  }
  const json::array& items = value->get_array();
  if (items.empty()) {
    reader.fail(name, invalid_argument(std::string(name) + " is an empty list: send " + wanted));
    return;
  }
  if (items[0].is_number()) {
    std::vector<int32_t> ids;
    if (!read_token_list(items, ids)) {
      reader.fail_wanted(name, wanted);
      return;
    }
    prompts.emplace_back(std::move(ids));
    return;
  }
  if (items.size() > limits.max_prompts) {
    const char* reason =
        limits.is_max_prompts_of_queue ? ": as many as may run and wait (--max-num-seqs, --max-queued-requests)" : "";
    reader.fail(name, invalid_argument(std::string(name) + " may have " + std::to_string(limits.max_prompts) +
                                       " parts in one request, not " + std::to_string(items.size()) + reason));
    return;
  }
  for (const json::value& item : items) {
    std::vector<int32_t> ids;
    if (item.is_string() && items[0].is_string()) {
      prompts.emplace_back(std::string(item.get_string()));
    } else if (item.is_array() && items[0].is_array() && read_token_list(item.get_array(), ids)) {
      prompts.emplace_back(std::move(ids));
    } else {
      reader.fail_wanted(name, wanted + ", all of one kind");
      return;
    }
  }
}

ApiResult<CompletionRequest> parse_completion_request(std::string_view text, const ApiLimits& limits,
                                                      const SamplingParams& defaults) {
  const Result<json::object> body = parse_body(text);
  if (!body.is_ok()) return ApiError{body.status(), {}, {}};
  FieldReader reader(body.value());
  CompletionRequest request;
  request.sampling.params = defaults;
  constexpr UnsupportedField kUnsupported[] = {
      {"suffix", "no model here fills in the middle of a text; put the prompt together yourself"},
  };
  read_prompts(reader, "prompt", limits, request.prompts);
  refuse_fields(reader, kUnsupported);
  int64_t num_logprobs = 0;
  reader.read_integer_in("logprobs", num_logprobs, 0, limits.max_logprobs);
  read_generation_fields(reader, body.value(), limits, {}, request);
  const SamplingParams& params = request.sampling.params;
  request.best_of = params.n;
  reader.read_integer_in("best_of", request.best_of, 1, limits.max_n);
  if (request.best_of < params.n) {
    reader.fail("best_of", invalid_argument("best_of is " + std::to_string(request.best_of) +
                                            ", less than n, which is " + std::to_string(params.n)));
  }
  if (request.best_of > params.n && request.stream.is_on) {
    reader.fail("best_of",
                invalid_argument("best_of above n cannot be streamed: which answers are best is known at the "
                                 "end; leave out one of the two"));
  }
  const size_t num_choices = request.prompts.size() * static_cast<size_t>(request.best_of);
  if (num_choices > limits.max_choices) {
    reader.fail("n", invalid_argument("the prompts times n or best_of are " + std::to_string(num_choices) +
                                      " answers; one request may ask for " + std::to_string(limits.max_choices)));
  }
  if (!reader.is_ok()) return error_of(reader);
  return request;
}

ApiResult<EmbeddingRequest> parse_embedding_request(std::string_view text, const ApiLimits& limits) {
  const Result<json::object> body = parse_body(text);
  if (!body.is_ok()) return ApiError{body.status(), {}, {}};
  FieldReader reader(body.value());
  EmbeddingRequest request;
  reader.read_string("model", request.model, limits.max_name_bytes);
  read_prompts(reader, "input", limits, request.inputs);
  reader.read_integer_in("dimensions", request.num_dimensions, 1, 1 << 20);
  std::string encoding = "float";
  reader.read_string("encoding_format", encoding, kMaxStringBytes);
  if (encoding != "float" && encoding != "base64") reader.fail_wanted("encoding_format", "\"float\" or \"base64\"");
  request.is_base64 = encoding == "base64";
  reader.read_integer_in("priority", request.priority, -1'000'000'000, 1'000'000'000);
  reader.read_string("user", request.user, 4096);
  if (!reader.is_ok()) return error_of(reader);
  return request;
}

ApiResult<ChatRequest> parse_chat_request(std::string_view text, const ApiLimits& limits,
                                          const SamplingParams& defaults) {
  const Result<json::object> parsed = parse_body(text);
  if (!parsed.is_ok()) return ApiError{parsed.status(), {}, {}};
  const json::object& body = parsed.value();
  FieldReader reader(body);
  ChatRequest request;
  request.sampling.params = defaults;
  constexpr UnsupportedField kUnsupported[] = {
      {"functions", "it is the old form; send tools"},
      {"function_call", "it is the old form; send tool_choice"},
      {"audio", "this server writes text only"},
      {"web_search_options", "this server looks nothing up"},
      {"echo", "it would repeat the whole conversation; use /v1/completions"},
      {"best_of", "it belongs to /v1/completions; use n"},
      {"suffix", "no model here fills in the middle of a text; put the messages together yourself"},
  };
  constexpr std::string_view kOwnMeaning[] = {"logprobs", "echo"};
  refuse_fields(reader, kUnsupported);
  read_conversation(reader, limits, request);
  read_generation_fields(reader, body, limits, kOwnMeaning, request);
  read_tools(reader, limits, request);

  SamplingParams& params = request.sampling.params;
  if (reader.find("max_completion_tokens") != nullptr) {
    reader.read_integer_in("max_completion_tokens", params.max_tokens, 0, std::numeric_limits<int32_t>::max());
    request.has_max_tokens = true;
  }
  bool has_logprobs = false;
  int num_top = 0;
  reader.read_bool("logprobs", has_logprobs);
  reader.read_integer_in("top_logprobs", num_top, 0, limits.max_logprobs);
  if (num_top > 0 && !has_logprobs) {
    reader.fail("top_logprobs", invalid_argument("top_logprobs needs \"logprobs\": true"));
  }
  if (has_logprobs) params.num_logprobs = num_top;
  reader.read_bool("separate_reasoning", request.separates_reasoning);
  if (request.structure.kind != StructureRequest::Kind::kNone &&
      (request.tool_choice.kind == ToolChoiceRequest::Kind::kRequired ||
       request.tool_choice.kind == ToolChoiceRequest::Kind::kNamed)) {
    reader.fail(
        request.structure.field,
        invalid_argument(request.structure.field + " and a tool_choice that asks for a call exclude each other"));
  }
  if (!reader.is_ok()) return error_of(reader);
  return request;
}

std::string field_of_message(std::string_view message) {
  const size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_");
  if (end == std::string_view::npos || end == 0) return {};
  // "logit_bias: ..." and "logit_bias entries: ...", but not "there is ...".
  if (message[end] != ':' && message.substr(end, 9) != " entries:") return {};
  return std::string(message.substr(0, end));
}

}  // namespace quire
