// Bodies of the OpenAI API as structs: what a client asked for, checked field by field, with messages that name the
// field. Fields of other servers that mean something here (vLLM's) are read too. Fields that nobody knows are ignored,
// as clients send what other services understand; fields that are known, would change the answer and are not supported
// are refused. null is the same as absent. Knows nothing of tokens or templates. Pure functions, any thread.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "server/sampling_fields.h"

namespace quire {

// What bounds a body, before anything is set aside for its parts.
struct ApiLimits {
  int max_n = 128;  // and best_of
  int max_logprobs = 20;
  size_t max_prompts = 2048;             // of one body
  bool is_max_prompts_of_queue = false;  // more would never find room to wait
  size_t max_choices = 4096;             // prompts times choices
  size_t max_messages = 65536;
  size_t max_tools = 1024;
  size_t max_name_bytes = 256;  // of models, tools, users, salts
};

// A mistake in a body: an empty param names no field.
struct ApiError {
  Status status;
  std::string param;
  std::string code;  // "context_length_exceeded"
};

// Either a request or what is wrong with it.
template <typename T>
using ApiResult = std::variant<T, ApiError>;

struct StreamOptions {
  bool is_on = false;
  bool includes_usage = false;  // a last chunk with usage
  bool has_usage_in_every_chunk = false;
};

// What an answer must be like.
struct StructureRequest {
  enum class Kind : uint8_t { kNone, kJsonObject, kJsonSchema, kRegex, kChoice, kGrammar };
  Kind kind = Kind::kNone;
  std::string text;                  // the schema as JSON, the regex or the grammar
  std::vector<std::string> choices;  // of kChoice
  std::string field;                 // that asked for it
};

// What completions and chat have in common.
struct GenerationFields {
  std::string model;
  SamplingOptions sampling;  // logprobs is already what the engine takes
  bool has_max_tokens = false;
  StreamOptions stream;
  int priority = 0;
  std::string cache_salt;
  std::string user;
  bool includes_stop_string = false;  // in the text
  bool returns_token_ids = false;
  bool skips_special_tokens = true;
  StructureRequest structure;
};

using PromptInput = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest : GenerationFields {
  std::vector<PromptInput> prompts;
  int best_of = 1;  // choices that are generated for each prompt; sampling.n of them are returned
};

struct ToolDefinition {
  std::string name;
  std::string parameters_json;  // a JSON schema; "{}" where the client gave none
  bool is_strict = false;
};

struct ToolChoiceRequest {
  enum class Kind : uint8_t { kNone, kAuto, kRequired, kNamed };
  Kind kind = Kind::kNone;
  std::string name;  // of kNamed
};

struct ChatRequest : GenerationFields {
  // Input of the chat template: messages (contents are strings, arguments of earlier tool calls are objects), tools,
  // documents, add_generation_prompt, continue_final_message, chat_template_kwargs.
  boost::json::object conversation;
  std::vector<ToolDefinition> tools;
  ToolChoiceRequest tool_choice;
  bool has_parallel_tool_calls = true;
  bool separates_reasoning = true;
};

struct EmbeddingRequest {
  std::string model;
  std::vector<PromptInput> inputs;
  int64_t num_dimensions = 0;  // 0: all
  bool is_base64 = false;
  int priority = 0;
  std::string user;
};

// `defaults`: of the sampling fields that the body leaves out.
ApiResult<CompletionRequest> parse_completion_request(std::string_view body, const ApiLimits& limits,
                                                      const SamplingParams& defaults);
ApiResult<ChatRequest> parse_chat_request(std::string_view body, const ApiLimits& limits,
                                          const SamplingParams& defaults);
ApiResult<EmbeddingRequest> parse_embedding_request(std::string_view body, const ApiLimits& limits);

// The field that a message such as "logit_bias: token id 7 is not in the vocabulary" is about, else empty: messages of
// validate_request begin so.
std::string field_of_message(std::string_view message);

}  // namespace quire
