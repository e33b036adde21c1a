// What comes into the engine and what goes out: a Request holds token ids and sampling parameters, a TokenEvent holds
// tokens that were generated. Token ids only: text, JSON and HTTP are the business of the callers (app, server), and so
// are stop strings: a caller that finds one in the text calls Engine::stop_choice.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "models/pooling_config.h"

namespace quire {

using RequestId = uint64_t;

// Which tokens may come next, for one choice of a request (a grammar, a schema). Called by the sampler, by one thread
// at a time: the engine's, or one that samples for it. Bit t % 32 of mask[t / 32] says that token t is allowed.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Clears the bits of the tokens that may not come next. The mask arrives with all bits set.
  virtual void fill_mask(std::span<uint32_t> mask) = 0;
  virtual void accept(int32_t token_id) = 0;
  virtual void rollback(int num_tokens) = 0;  // takes back the last accepted tokens
  // The same state for another choice of the same request.
  virtual std::unique_ptr<TokenConstraint> clone() const = 0;
};

enum class LogprobMode : uint8_t {
  kRaw,        // the model's own distribution
  kProcessed,  // after penalties, bias, masks and temperature: what was sampled from before top-k and its kin cut it
};

// Names and meanings are those of the API fields. Order of the sampler: repetition, then frequency and presence
// penalties, logit bias, masks (banned, allowed, min_tokens, constraint), temperature, min_p, top_k, typical_p, top_p.
struct SamplingParams {
  int n = 1;                          // choices; they share the prompt's pages
  float temperature = 1.0f;           // under 1e-5: greedy
  int top_k = 0;                      // <= 0 or more than the vocabulary: no filter
  float top_p = 1.0f;                 // 0: the best token alone
  float min_p = 0.0f;                 // keeps tokens with p >= min_p * (p of the best)
  float typical_p = 1.0f;             // keeps the most typical tokens up to this mass; 1: no filter
  float repetition_penalty = 1.0f;    // over prompt and output: positive logits are divided, negative ones multiplied
  float presence_penalty = 0.0f;      // over the output
  float frequency_penalty = 0.0f;     // over the output, times the count
  std::optional<uint64_t> seed = {};  // none: differs from run to run
  std::vector<std::pair<int32_t, float>> logit_bias = {};
  std::vector<int32_t> allowed_token_ids = {};  // empty: all
  std::vector<int32_t> banned_token_ids = {};

  int64_t max_tokens = 16;
  int64_t min_tokens = 0;   // stop tokens are suppressed before
  bool ignore_eos = false;  // the model's own stop tokens do not stop; stop_token_ids still do
  std::vector<int32_t> stop_token_ids = {};

  int num_logprobs = -1;         // -1: none; 0: of the chosen token; K: and of the K best
  int num_prompt_logprobs = -1;  // likewise, of the prompt's tokens
  LogprobMode logprob_mode = LogprobMode::kRaw;
};

// What bounds a request, known when the engine is made.
struct RequestLimits {
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;
  int max_n = 128;
  int max_logprobs = 20;
  int64_t max_logit_bias = 1024;
  int64_t max_stop_token_ids = 1024;
};

// A stretch of a prompt. Today token ids; rows of embeddings with a content hash will be the other kind.
struct PromptSegment {
  std::vector<int32_t> token_ids;
};

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0.0f;
};

// The log-probability of one token, and of the best ones in its place.
struct TokenLogprobs {
  int32_t token_id = 0;
  float logprob = 0.0f;
  int32_t rank = 0;               // 1: the best
  std::vector<TokenLogprob> top;  // best first, as many as were asked for
};

enum class FinishReason : uint8_t {
  kNone,     // goes on
  kStop,     // a stop token, or the caller found a stop string
  kLength,   // max_tokens, or the end of the context
  kAborted,  // the caller gave up
  kError,    // `error` says why
};

const char* finish_reason_name(FinishReason reason);
constexpr int kNumFinishReasons = 5;

// Why a request was given up; counted, and nothing else.
enum class AbortReason : uint8_t {
  kCaller,        // somebody asked for it
  kDisconnected,  // the client went away
  kTimeout,       // it took longer than it may
  kSlowReader,    // the client did not read what it was sent
  kShutdown,      // the server ends
};
const char* abort_reason_name(AbortReason reason);
constexpr int kNumAbortReasons = 5;

using Clock = std::chrono::steady_clock;

// When things happened to one choice; a time that has not come is Clock::time_point{}. The differences are vLLM's: each
// is 0 while one of its ends is missing.
struct RequestTimes {
  Clock::time_point arrived;          // was submitted
  Clock::time_point first_scheduled;  // its first step began
  Clock::time_point first_token;      // the step that made it ended; of a pooled request: the embedding
  Clock::time_point last_token;
  Clock::time_point finished;  // only in the last event
  int num_preemptions = 0;     // of the choice's sequence, so far

  double queue_seconds() const { return seconds(arrived, first_scheduled); }
  double prefill_seconds() const { return seconds(first_scheduled, first_token); }
  double decode_seconds() const { return seconds(first_token, last_token); }
  double inference_seconds() const { return seconds(first_scheduled, last_token); }
  double first_token_seconds() const { return seconds(arrived, first_token); }
  double end_to_end_seconds() const { return seconds(arrived, finished); }

  static double seconds(Clock::time_point from, Clock::time_point to) {
    const bool is_known = from != Clock::time_point{} && to > from;
    return is_known ? std::chrono::duration<double>(to - from).count() : 0.0;
  }
};

// Something happened to one choice of a request. Every choice gets exactly one event with a finish reason, its last.
struct TokenEvent {
  RequestId request_id = 0;
  int choice_index = 0;
  std::span<const int32_t> token_ids;       // new tokens, the stop token included; may be empty
  std::span<const TokenLogprobs> logprobs;  // one a token, where asked for
  FinishReason finish_reason = FinishReason::kNone;
  std::optional<int32_t> stop_token_id;  // the last token, where it was what stopped
  Status error;                          // with kError
  int num_prompt_tokens = 0;
  int num_cached_tokens = 0;  // of the prompt, whose KV was found in the prefix cache
  // With the first event of a request that asked for them: entry i is of prompt token i + 1 (the first has none).
  std::span<const TokenLogprobs> prompt_logprobs;
  // The only event of a request with pooling, unless it failed: [hidden_size].
  std::span<const float> embedding;
  RequestTimes times;  // up to now
};

// Where a request's events go. Called on the engine's thread, inside Engine::step, abort or stop_choice; the spans are
// valid during the call. It may call Engine::stop_choice and Engine::abort (of any request), but not step or
// add_request.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void on_event(const TokenEvent& event) = 0;
};

struct Request {
  std::vector<PromptSegment> prompt;
  SamplingParams sampling;
  int priority = 0;        // lower goes first
  int64_t adapter_id = 0;  // 0: none
  std::string cache_salt;  // prompts share pages only under equal salts
  uint64_t share_key = 0;  // whose it is: keys get equal shares of the tokens. 0: nobody's
  // With a pooling nothing is generated (max_tokens 0, n 1): the one event has the embedding and kStop.
  Pooling pooling = Pooling::kNone;
  bool is_normalized = true;  // the embedding: divided by its Euclidean length
  RequestId id = 0;           // 0: the engine gives one. Else its own: never used before in this engine
  Clock::time_point arrived;  // when it came; not given: when the engine gets it
  std::shared_ptr<EventSink> sink;
  std::unique_ptr<TokenConstraint> constraint;  // cloned for every choice

  static Request from_tokens(std::vector<int32_t> token_ids, SamplingParams sampling, std::shared_ptr<EventSink> sink);
  int64_t num_prompt_tokens() const;
};

// Says which field is wrong and what it may be.
Status validate_request(const Request& request, const RequestLimits& limits);

}  // namespace quire
