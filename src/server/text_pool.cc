#include "server/text_pool.h"

#include <cstring>
#include <utility>

namespace quire {

Status TextStrand::post_long(Task task) {
  return pool_.post(*this, {std::move(task), true});
}

void TextStrand::post(Task task) {
  const Status status = pool_.post(*this, {std::move(task), false});
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
    if (item.is_long) {
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
  auto& ready = strand->items_.front().is_long ? long_ready_ : short_ready_;
  ready.push_back(std::move(strand));
}

bool TextPool::has_work_for_me() const {
  const bool may_take_long = num_running_long_ < options_.num_threads - 1;
  return !short_ready_.empty() || (may_take_long && !long_ready_.empty());
}

void TextPool::work_until_stopped() {
  std::unique_lock lock(mutex_);
  while (true) {
    // A thread that cannot take the long work that is left may go: whoever runs some comes back for it.
    work_arrived_.wait(lock, [&] { return has_work_for_me() || is_stopping_; });
    if (!has_work_for_me()) return;
    auto& ready = short_ready_.empty() ? long_ready_ : short_ready_;
    const std::shared_ptr<TextStrand> strand = std::move(ready.front());
    ready.pop_front();
    TextStrand::Item item = std::move(strand->items_.front());
    strand->items_.pop_front();
    if (item.is_long) {
      --num_waiting_long_;
      ++num_running_long_;
    }
    lock.unlock();
    item.task();
    item.task = nullptr;  // what it held is released before the strand goes on
    lock.lock();
    if (item.is_long) {
      --num_running_long_;
      // Long work that no thread was allowed to take.
      if (!long_ready_.empty()) work_arrived_.notify_one();
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
