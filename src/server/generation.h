// One HTTP request that generates, from its body to the last byte of its answer: read and tokenize (in the text pool),
// submit a request per prompt to the engine, turn events into text (in the pool again), answer whole or as a stream.
// What completions and chat do differently is in their GenerationPlan and ResponseWriter.
//
// Threads: `start` on a server thread; events on the engine's; all else on the request's strand, one task at a time.
// A client that goes away ends the work wherever it stands. Kept alive by its tasks and by the engine's sinks.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/answer_text.h"
#include "server/api_context.h"
#include "server/http_exchange.h"
#include "server/server_metrics.h"

namespace quire {

struct Usage {
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;
  int64_t num_completion_tokens = 0;
  std::optional<int64_t> num_reasoning_tokens = {};  // of them; only where thinking is told apart
};

// One choice of one prompt, as writers see it.
struct ChoiceProgress {
  int index = 0;  // in the answer: those of prompt 0 first
  int prompt_index = 0;
  bool is_finished = false;
  FinishReason finish_reason = FinishReason::kNone;
  const std::string* stop_string = nullptr;   // that was found
  std::optional<int32_t> stop_token_id = {};  // that was not the model's own end
  int64_t num_tokens = 0;                     // generated, the one that stopped the answer included
  std::vector<int32_t> new_token_ids;         // since the last call; only where asked for
  // With the first call for a prompt that asked for them.
  const std::vector<TokenLogprobs>* prompt_logprobs = nullptr;
};

// Makes the JSON of one API's answers. Called on the strand.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  // A stream: appends the events for what is new. `usage` is null unless every chunk is to have it.
  virtual void write_chunks(const ChoiceProgress& choice, AnswerPiece& piece, const Usage* usage,
                            std::vector<std::string>& events) = 0;
  virtual std::string write_usage_chunk(const Usage& usage) = 0;
  // No stream: keeps what is new, and writes all of it at the end.
  virtual void collect(const ChoiceProgress& choice, AnswerPiece& piece) = 0;
  virtual std::string write_whole(const Usage& usage) = 0;
};

// What a body asks for, ready to run.
struct GenerationPlan {
  std::string model;
  std::vector<std::vector<int32_t>> prompts;
  SamplingParams sampling;  // for the engine: n is what it generates for each prompt
  AnswerText::Options text;
  std::string prompt_field = "prompt";  // of the body: what errors about the prompt are about
  StreamOptions stream;
  int priority = 0;
  std::string cache_salt;
  bool returns_token_ids = false;
  std::unique_ptr<TokenConstraint> constraint;  // cloned for each prompt
  std::unique_ptr<ResponseWriter> writer;
};

using GenerationReader = ApiResult<GenerationPlan> (*)(const ApiContext& context, const HttpExchange& exchange);

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Answers the exchange, sooner or later. `read` is called on the strand.
  static void start(std::shared_ptr<const ApiContext> context, std::shared_ptr<HttpExchange> exchange,
                    GenerationReader read);

 private:
  class PromptSink;
  struct Choice;
  struct Prompt;
  struct EventRecord {
    int prompt_index = 0;
    int choice_index = 0;
    size_t num_tokens = 0;
    size_t num_logprobs = 0;
    RequestId request_id = 0;
    FinishReason finish_reason = FinishReason::kNone;
    std::optional<int32_t> stop_token_id;
    Status error;
    int num_prompt_tokens = 0;
    int num_cached_tokens = 0;
    RequestTimes times;
    std::vector<TokenLogprobs> prompt_logprobs;
  };
  // Events on their way from the engine's thread.
  struct Inbox {
    std::vector<EventRecord> events;
    std::vector<int32_t> token_ids;
    std::vector<TokenLogprobs> logprobs;
    void clear();
  };

  Generation(std::shared_ptr<const ApiContext> context, std::shared_ptr<HttpExchange> exchange, GenerationReader read);

  void prepare();
  Status make_choices();
  void submit_prompts();
  void on_event(int prompt_index, const TokenEvent& event);  // the engine's thread
  void on_client_closed();                                   // a server thread
  void drain_inbox();
  void take_event(EventRecord& event, std::span<const int32_t> token_ids, std::span<TokenLogprobs> logprobs);
  void publish(Prompt& prompt, Choice& choice, AnswerPiece& piece);
  void finish_answer();
  void fail(const ApiError& error);
  void end_aborted();  // the engine gave the request up
  void abort_all(AbortReason reason);
  void tell_facts(const char* finish_reason, const std::string& error);
  Usage usage() const;
  bool is_whole() const { return num_unfinished_ == 0; }

  const std::shared_ptr<const ApiContext> context_;
  const std::shared_ptr<HttpExchange> exchange_;
  const std::shared_ptr<TextStrand> strand_;
  const GenerationReader read_;

  // Of the strand.
  GenerationPlan plan_;
  std::vector<Prompt> prompts_;
  int num_unfinished_ = 0;  // choices
  bool has_begun_ = false;  // bytes of a stream were sent
  bool has_ended_ = false;  // the answer is complete
  Inbox taken_;

  std::mutex inbox_mutex_;
  Inbox inbox_;
  bool is_drain_posted_ = false;

  std::mutex ids_mutex_;
  std::vector<RequestId> request_ids_;
  bool is_closed_ = false;  // the client has gone: what is submitted from now on is aborted at once
};

}  // namespace quire
