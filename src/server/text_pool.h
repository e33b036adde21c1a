// Threads for the text side of requests: templates, tokenizing, detokenizing, stop strings, grammars, JSON bodies. Work
// is posted to a strand, one a request, whose tasks run one after another in the order in which they were posted.
//
// Three kinds of work: short (a few new tokens), long (a prompt to template and tokenize, a grammar to compile), and
// large: long work on a text of 256 KiB and more. Short work goes first, and one thread never takes long work, so that
// prompts cannot hold up running answers; of three threads and more another takes none that is large, so that a few
// huge prompts, which take seconds each, cannot hold up all others. Long work waits in a bounded queue; of short work
// the poster bounds itself (a request has one task under way at most). No inference here, and no waiting: a task that
// waits for another would hold a thread.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"

namespace quire {

class TextPool;

// The tasks of one request, in order. Any thread may post.
class TextStrand : public std::enable_shared_from_this<TextStrand> {
 public:
  using Task = std::function<void()>;

  // Work on a text of so many bytes. Refused with kOverloaded while as much long work waits as the pool takes.
  Status post_long(size_t num_bytes, Task task);
  void post(Task task);

 private:
  friend class TextPool;
  enum class Kind : uint8_t { kShort, kLong, kLarge };
  struct Item {
    Task task;
    Kind kind = Kind::kShort;
  };

  explicit TextStrand(TextPool& pool) : pool_(pool) {}

  TextPool& pool_;
  std::deque<Item> items_;  // guarded by the pool's mutex, as is what follows
  bool is_scheduled_ = false;
};

struct TextPoolOptions {
  int num_threads = 3;             // at least 2: one for short work alone
  size_t max_waiting_long = 1024;  // tasks
  size_t stack_bytes = 16u << 20;  // of each thread: template and grammar readers recurse to their limits in a quarter
};

class TextPool {
 public:
  static Result<std::unique_ptr<TextPool>> create(const TextPoolOptions& options);
  // Runs what has been posted, then ends. Whoever posts must have ended, or may still hold strands and post in vain.
  ~TextPool();
  TextPool(const TextPool&) = delete;
  TextPool& operator=(const TextPool&) = delete;

  // The pool must outlive its strands.
  std::shared_ptr<TextStrand> create_strand();

  size_t num_waiting_long() const;

 private:
  friend class TextStrand;

  explicit TextPool(const TextPoolOptions& options) : options_(options) {}
  Status post(TextStrand& strand, TextStrand::Item item);
  // With the mutex held, as are the two below.
  void schedule(std::shared_ptr<TextStrand> strand);
  using Ready = std::deque<std::shared_ptr<TextStrand>>;
  Ready* ready_for_me();  // null: nothing that one more thread may take
  void count_running(TextStrand::Kind kind, int change);
  void work_until_stopped();

  const TextPoolOptions options_;
  std::vector<pthread_t> threads_;  // not std::thread: the stack of its threads is what the shell happens to allow

  mutable std::mutex mutex_;
  std::condition_variable work_arrived_;
  // Strands that wait for a thread, by the kind of their next task.
  Ready short_ready_;
  Ready long_ready_;
  Ready large_ready_;
  size_t num_waiting_long_ = 0;  // large ones included, as below
  int num_running_long_ = 0;
  int num_running_large_ = 0;
  bool is_stopping_ = false;
};

}  // namespace quire
