#include "server/text_pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace quire {

Status TextStrand::post_long(size_t num_bytes, Task task) {
  constexpr size_t kLargeBytes = 256 << 10;  // at worst some 0.2 s, if it is one word
  // Of two threads there is one for both.
  const bool is_large = num_bytes >= kLargeBytes && pool_.options_.num_threads > 2;
  return pool_.post(*this, {std::move(task), is_large ? Kind::kLarge : Kind::kLong});
}

void TextStrand::post(Task task) {
  const Status status = pool_.post(*this, {std::move(task), Kind::kShort});
  CHECK(status.is_ok());
}

Result<std::unique_ptr<TextPool>> TextPool::create(const TextPoolOptions& options) {
  if (options.num_threads < 2 || options.num_threads > 256) {
    return invalid_argument("the text pool takes 2 to 256 threads, not " + std::to_string(options.num_threads));
  }
  std::unique_ptr<TextPool> pool(new TextPool(options));
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0 || pthread_attr_setstacksize(&attributes, options.stack_bytes) != 0) {
    return internal_error("threads with a stack of " + std::to_string(options.stack_bytes) + " bytes are not possible");
  }
  for (int i = 0; i < options.num_threads; ++i) {
    pthread_t thread = {};
    const int error = pthread_create(
        &thread, &attributes,
        [](void* self) -> void* {
          static_cast<TextPool*>(self)->work_until_stopped();
          return nullptr;
        },
        pool.get());
    if (error != 0) {
      pthread_attr_destroy(&attributes);
      return internal_error(std::string("starting a thread failed: ") + std::strerror(error));
    }
    pool->threads_.push_back(thread);
  }
  pthread_attr_destroy(&attributes);
  return pool;
}

TextPool::~TextPool() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  work_arrived_.notify_all();
  for (const pthread_t thread : threads_) pthread_join(thread, nullptr);
}

std::shared_ptr<TextStrand> TextPool::create_strand() {
  return std::shared_ptr<TextStrand>(new TextStrand(*this));
}

size_t TextPool::num_waiting_long() const {
  const std::lock_guard lock(mutex_);
  return num_waiting_long_;
}

Status TextPool::post(TextStrand& strand, TextStrand::Item item) {
  {
    const std::lock_guard lock(mutex_);
    if (item.kind != TextStrand::Kind::kShort) {
      if (num_waiting_long_ >= options_.max_waiting_long) {
        return overloaded("too many requests wait for their prompts to be read: try again later");
      }
      ++num_waiting_long_;
    }
    strand.items_.push_back(std::move(item));
    if (strand.is_scheduled_) return ok_status();
    schedule(strand.shared_from_this());
  }
  work_arrived_.notify_one();
  return ok_status();
}

void TextPool::schedule(std::shared_ptr<TextStrand> strand) {
  strand->is_scheduled_ = true;
  switch (strand->items_.front().kind) {
    case TextStrand::Kind::kShort:
      return short_ready_.push_back(std::move(strand));
    case TextStrand::Kind::kLong:
      return long_ready_.push_back(std::move(strand));
    case TextStrand::Kind::kLarge:
      return large_ready_.push_back(std::move(strand));
  }
}

TextPool::Ready* TextPool::ready_for_me() {
  if (!short_ready_.empty()) return &short_ready_;
  if (num_running_long_ >= options_.num_threads - 1) return nullptr;
  // Large work first, as far as it may: it always leaves a thread to the others, and they end soon.
  if (!large_ready_.empty() && num_running_large_ < options_.num_threads - 2) return &large_ready_;
  return long_ready_.empty() ? nullptr : &long_ready_;
}

void TextPool::count_running(TextStrand::Kind kind, int change) {
  if (kind != TextStrand::Kind::kShort) num_running_long_ += change;
  if (kind == TextStrand::Kind::kLarge) num_running_large_ += change;
}

void TextPool::work_until_stopped() {
  std::unique_lock lock(mutex_);
  while (true) {
    // A thread that cannot take the long work that is left may go: whoever runs some comes back for it.
    work_arrived_.wait(lock, [&] { return ready_for_me() != nullptr || is_stopping_; });
    Ready* const ready = ready_for_me();
    if (ready == nullptr) return;
    const std::shared_ptr<TextStrand> strand = std::move(ready->front());
    ready->pop_front();
    TextStrand::Item item = std::move(strand->items_.front());
    strand->items_.pop_front();
    if (item.kind != TextStrand::Kind::kShort) --num_waiting_long_;
    count_running(item.kind, 1);
    lock.unlock();
    item.task();
    item.task = nullptr;  // what it held is released before the strand goes on
    lock.lock();
    count_running(item.kind, -1);
    // Long work that no thread was allowed to take.
    if (item.kind != TextStrand::Kind::kShort && (!long_ready_.empty() || !large_ready_.empty())) {
      work_arrived_.notify_one();
    }
    if (strand->items_.empty()) {
      strand->is_scheduled_ = false;
    } else {
      schedule(strand);
      work_arrived_.notify_one();
    }
  }
}

}  // namespace quire
