// The two files of a batch, in OpenAI's format: lines of requests in, lines of answers out. The output can be gone on
// with: it knows which requests it has answered, and a last line that was cut off is taken away.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>

#include "app/run_batch_exchange.h"
#include "base/status.h"

namespace quire::app {

// What is wrong with a line that cannot be sent at all.
struct BatchLineError {
  std::string custom_id;  // empty: unknown
  std::string code;
  std::string message;
};

// {"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": {…}}. False: `error` says why.
bool read_batch_line(std::string_view line, int64_t line_number, BatchCall* call, BatchLineError* error);

class BatchOutput {
 public:
  // "-": standard output, from the beginning. A file that is there is gone on with, or with is_fresh emptied.
  // One process at a time writes to it.
  static Result<std::unique_ptr<BatchOutput>> open(const std::string& path, bool is_fresh);
  ~BatchOutput();
  BatchOutput(const BatchOutput&) = delete;
  BatchOutput& operator=(const BatchOutput&) = delete;

  int64_t num_kept() const { return num_kept_; }         // answers that were there already
  bool was_repaired() const { return was_repaired_; }    // a line that was cut off has been taken away
  bool has_answer(const std::string& custom_id) const;   // there
  bool has_failure(const std::string& custom_id) const;  // there, and no success
  bool has_line_error(int64_t line_number) const { return lines_in_error_.contains(line_number); }
  // False: this run has taken the id already.
  bool claim(const std::string& custom_id);

  // A line each, at once in the file.
  Status write(const BatchAnswer& answer);
  Status write_error(const BatchLineError& error, int64_t line_number);

 private:
  // 128 bits of a hash stand for an id, so that batches of any size fit.
  using Key = std::array<uint64_t, 2>;
  struct KeyHash {
    size_t operator()(const Key& key) const { return key[0]; }
  };
  static Key key_of(const std::string& custom_id);

  explicit BatchOutput(std::FILE* file) : file_(file) {}
  Status read_former(const std::string& path);
  Status write_line(const std::string& line);

  std::FILE* file_;
  std::unordered_set<Key, KeyHash> answered_;
  std::unordered_set<Key, KeyHash> failed_;  // of them
  std::unordered_set<Key, KeyHash> claimed_;
  std::unordered_set<int64_t> lines_in_error_;
  int64_t num_kept_ = 0;
  bool was_repaired_ = false;
};

}  // namespace quire::app
