// Threads for the text side of requests: templates, tokenizing, detokenizing, stop strings, grammars, JSON bodies. Work
// is posted to a strand, one a request, whose tasks run one after another in the order in which they were posted.
//
// Two kinds of work: long (a prompt of any length to template and tokenize, a grammar to compile) and short (a few new
// tokens). Short work goes first, and one thread never takes long work, so that prompts cannot hold up running answers.
// Long work waits in a bounded queue; of short work the poster bounds itself (a request has one task under way at
// most). No inference here, and no waiting: a task that waits for another would hold a thread.
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

  // Refused with kOverloaded while as much long work waits as the pool takes.
  Status post_long(Task task);
  void post(Task task);

 private:
  friend class TextPool;
  struct Item {
    Task task;
    bool is_long = false;
  };

  explicit TextStrand(TextPool& pool) : pool_(pool) {}

  TextPool& pool_;
  std::deque<Item> items_;  // guarded by the pool's mutex, as is what follows
  bool is_scheduled_ = false;
};

struct TextPoolOptions {
  int num_threads = 2;             // at least 2: one for short work alone
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
  void schedule(std::shared_ptr<TextStrand> strand);  // with the mutex held
  bool has_work_for_me() const;
  void work_until_stopped();

  const TextPoolOptions options_;
  std::vector<pthread_t> threads_;  // not std::thread: the stack of its threads is what the shell happens to allow

  mutable std::mutex mutex_;
  std::condition_variable work_arrived_;
  // Strands that wait for a thread, by the kind of their next task.
  std::deque<std::shared_ptr<TextStrand>> short_ready_;
  std::deque<std::shared_ptr<TextStrand>> long_ready_;
  size_t num_waiting_long_ = 0;
  int num_running_long_ = 0;
  bool is_stopping_ = false;
};

}  // namespace quire
