// The API's handlers without a socket: a request of a batch goes in, its whole answer comes out through a queue.
// Answers come on the engine's and the text pool's threads; the main thread takes them.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "server/http_exchange.h"

namespace quire::app {

struct BatchAnswer {
  int64_t line_number = 0;
  std::string custom_id;
  std::string request_id;
  int status = 0;
  std::string body;
  size_t num_request_bytes = 0;
  int64_t num_prompt_tokens = 0;
  int64_t num_generated_tokens = 0;
};

// Unbounded: who posts requests bounds how many are under way.
class BatchAnswers {
 public:
  void add(BatchAnswer answer);
  BatchAnswer take();  // waits
  bool try_take(BatchAnswer* answer);

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<BatchAnswer> answers_;
};

struct BatchCall {
  int64_t line_number = 0;
  std::string custom_id;
  std::string url;
  std::string body;
};

// `answers` outlives the exchange. An exchange that is let go of without an answer gives a 500.
std::shared_ptr<HttpExchange> make_batch_exchange(BatchCall call, BatchAnswers* answers);

}  // namespace quire::app
