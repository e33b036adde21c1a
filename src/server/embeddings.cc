#include "server/embeddings.h"

#include <bit>
#include <cmath>
#include <exception>
#include <mutex>
#include <utility>

#include "server/api_error.h"
#include "server/openai_types.h"

namespace quire {

namespace json = boost::json;

namespace {

class EmbeddingJob : public std::enable_shared_from_this<EmbeddingJob> {
 public:
  EmbeddingJob(std::shared_ptr<const ApiContext> context, std::shared_ptr<HttpExchange> exchange)
      : context_(std::move(context)), exchange_(std::move(exchange)), strand_(context_->pool.create_strand()) {}

  void start() {
    exchange_->on_closed([weak = weak_from_this()] {
      if (const auto job = weak.lock()) job->give_up();
    });
    const Status posted =
        strand_->post_long(exchange_->request().body.size(), [self = shared_from_this()] { self->prepare(); });
    if (!posted.is_ok()) exchange_->respond(error_response(posted));
  }

 private:
  struct Input {
    std::vector<float> embedding;
    Status error;
    bool has_ended = false;
    int64_t num_tokens = 0;
    std::unique_ptr<RequestMeter> meter;
  };

  // Of one input. On the engine's thread.
  class Sink final : public EventSink {
   public:
    Sink(std::shared_ptr<EmbeddingJob> job, size_t index) : job_(std::move(job)), index_(index) {}
    void on_event(const TokenEvent& event) override { job_->on_event(index_, event); }

   private:
    const std::shared_ptr<EmbeddingJob> job_;
    const size_t index_;
  };

  void prepare() {
    if (exchange_->is_closed()) return;
    try {
      if (std::optional<ApiError> error = submit_all()) fail(*error);
    } catch (const std::exception& exception) {
      fail({internal_error(std::string("reading the request failed: ") + exception.what()), {}, {}});
    }
  }

  std::optional<ApiError> submit_all() {
    if (!context_->pooling.unsupported.empty()) {
      return ApiError{
          unimplemented("this model's embeddings are not supported: " + context_->pooling.unsupported), {}, {}};
    }
    ApiResult<EmbeddingRequest> parsed = parse_embedding_request(exchange_->request().body, context_->limits);
    if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
    request_ = std::move(std::get<EmbeddingRequest>(parsed));
    ApiResult<std::string> model = served_model(*context_, request_.model);
    if (const ApiError* error = std::get_if<ApiError>(&model)) return *error;
    request_.model = std::get<std::string>(model);
    if (request_.num_dimensions > context_->embedding_size) {
      return ApiError{invalid_argument("dimensions: " + std::to_string(request_.num_dimensions) + " is more than the " +
                                       std::to_string(context_->embedding_size) + " that the model has"),
                      "dimensions",
                      {}};
    }
    std::vector<Request> requests;
    inputs_.resize(request_.inputs.size());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      std::vector<int32_t> ids;
      if (const std::string* text = std::get_if<std::string>(&request_.inputs[i])) {
        Result<std::vector<int32_t>> encoded = context_->text.encode_text(*text);
        if (!encoded.is_ok()) return to_api_error(encoded.status(), "input");
        ids = std::move(encoded).value();
      } else {
        ids = std::move(std::get<std::vector<int32_t>>(request_.inputs[i]));
      }
      inputs_[i].num_tokens = static_cast<int64_t>(ids.size());
      SamplingParams sampling;
      sampling.max_tokens = 0;
      Request request =
          Request::from_tokens(std::move(ids), std::move(sampling), std::make_shared<Sink>(shared_from_this(), i));
      request.pooling = context_->pooling.pooling;
      request.is_normalized = context_->pooling.is_normalized;
      request.priority = request_.priority;
      request.share_key = static_cast<uint64_t>(exchange_->key_id());
      if (const Status valid = validate_request(request, context_->engine.limits()); !valid.is_ok()) {
        ApiError error = refused_by_engine(valid, "input", false);
        if (error.param.empty()) error.param = "input";
        return error;
      }
      requests.push_back(std::move(request));
    }
    num_running_ = inputs_.size();
    for (size_t i = 0; i < requests.size(); ++i) {
      if (context_->metrics != nullptr) {
        inputs_[i].meter = std::make_unique<RequestMeter>(
            *context_->metrics,
            RequestMeter::Start{.arrived = Clock::now(), .num_prompt_tokens = inputs_[i].num_tokens});
      }
      const Result<RequestId> id = context_->engine.submit(std::move(requests[i]));
      if (!id.is_ok()) {
        if (inputs_[i].meter != nullptr) inputs_[i].meter->discard();
        return refused_by_engine(id.status(), "input", inputs_[i].num_tokens > context_->engine.limits().max_model_len);
      }
      bool is_closed = false;
      {
        const std::lock_guard lock(mutex_);
        request_ids_.push_back(id.value());
        is_closed = is_closed_;
      }
      if (is_closed) {
        abort_all();
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

  void on_event(size_t index, const TokenEvent& event) {
    if (event.finish_reason == FinishReason::kNone) return;
    Input& input = inputs_[index];
    bool is_last = false;
    {
      const std::lock_guard lock(mutex_);
      if (input.has_ended) return;
      input.has_ended = true;
      input.embedding.assign(event.embedding.begin(), event.embedding.end());
      if (event.finish_reason == FinishReason::kError) {
        input.error = event.error;
      } else if (event.finish_reason == FinishReason::kAborted) {
        input.error = is_closed_ ? cancelled("the client has gone")
                                 : unavailable("the server is shutting down and gave this request up: send it again");
      }
      is_last = --num_running_ == 0;
    }
    if (input.meter != nullptr) input.meter->finish(event.finish_reason, event.times.first_scheduled);
    if (is_last) strand_->post([self = shared_from_this()] { self->answer(); });
  }

  void answer() {
    if (has_answered_) return;
    try {
      for (const Input& input : inputs_) {
        if (!input.error.is_ok()) {
          fail(to_api_error(input.error));
          return;
        }
      }
      json::array data;
      int64_t num_tokens = 0;
      for (const Input& input : inputs_) {
        const std::vector<float> embedding =
            shorten_embedding(input.embedding, request_.num_dimensions, context_->pooling.is_normalized);
        num_tokens += input.num_tokens;
        data.push_back(json::object{{"object", "embedding"},
                                    {"index", data.size()},
                                    {"embedding", request_.is_base64 ? json::value(embedding_to_base64(embedding))
                                                                     : json::value_from(embedding)}});
      }
      const json::object body{{"object", "list"},
                              {"data", std::move(data)},
                              {"model", request_.model},
                              {"usage", json::object{{"prompt_tokens", num_tokens}, {"total_tokens", num_tokens}}}};
      AnswerFacts facts;
      facts.model = request_.model;
      facts.num_prompt_tokens = num_tokens;
      facts.finish_reason = "stop";
      exchange_->set_facts(std::move(facts));
      has_answered_ = true;
      exchange_->respond({.status = 200, .body = json::serialize(body)});
    } catch (const std::exception& exception) {
      fail({internal_error(std::string("writing the answer failed: ") + exception.what()), {}, {}});
    }
  }

  void fail(const ApiError& error) {
    if (has_answered_) return;
    has_answered_ = true;
    AnswerFacts facts;
    facts.model = request_.model;
    facts.finish_reason = "error";
    facts.error = error.status.message();
    exchange_->set_facts(std::move(facts));
    exchange_->respond(error_response(error.status, error.param, error.code));
    abort_all();
  }

  void give_up() {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    abort_all();
  }

  void abort_all() {
    std::vector<RequestId> ids;
    {
      const std::lock_guard lock(mutex_);
      ids = request_ids_;
    }
    for (const RequestId id : ids) context_->engine.abort(id, AbortReason::kDisconnected);
  }

  const std::shared_ptr<const ApiContext> context_;
  const std::shared_ptr<HttpExchange> exchange_;
  const std::shared_ptr<TextStrand> strand_;
  EmbeddingRequest request_;   // of the strand
  std::vector<Input> inputs_;  // made before the first is submitted; each then belongs to its events until all ended
  bool has_answered_ = false;

  std::mutex mutex_;
  size_t num_running_ = 0;
  std::vector<RequestId> request_ids_;
  bool is_closed_ = false;
};

}  // namespace

void start_embeddings(std::shared_ptr<const ApiContext> context, std::shared_ptr<HttpExchange> exchange) {
  std::make_shared<EmbeddingJob>(std::move(context), std::move(exchange))->start();
}

std::vector<float> shorten_embedding(std::span<const float> embedding, int64_t num_dimensions, bool is_normalized) {
  if (num_dimensions <= 0 || num_dimensions >= static_cast<int64_t>(embedding.size())) {
    return {embedding.begin(), embedding.end()};
  }
  std::vector<float> front(embedding.begin(), embedding.begin() + num_dimensions);
  if (!is_normalized) return front;
  double sum = 0.0;
  for (const float value : front) sum += static_cast<double>(value) * static_cast<double>(value);
  if (sum > 0.0) {
    for (float& value : front) value = static_cast<float>(static_cast<double>(value) / std::sqrt(sum));
  }
  return front;
}

std::string embedding_to_base64(std::span<const float> embedding) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  bytes.reserve(embedding.size() * sizeof(float));
  for (const float value : embedding) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>((bits >> shift) & 0xFF);
  }
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t num_bytes = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) {
      group = (group << 8) | (k < num_bytes ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    }
    for (size_t k = 0; k < 4; ++k) text += k <= num_bytes ? kDigits[(group >> (18 - 6 * k)) & 63] : '=';
  }
  return text;
}

}  // namespace quire
