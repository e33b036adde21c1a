// The loop's thread and the queue in front of it. The mutex is never held while the engine works or a sink is told.
#include "engine/engine_loop.h"

#include <utility>

namespace quire {

// Something that somebody wants of the engine.
struct EngineLoop::Wish {
  enum class Kind : uint8_t { kAdd, kAbort, kStopChoice };
  Kind kind = Kind::kAdd;
  RequestId request_id = 0;
  int choice_index = 0;
  AbortReason reason = AbortReason::kCaller;
  Request request;  // to add
};

namespace {

// The last events of a request that the engine never had.
void tell_refused(EventSink& sink, RequestId request_id, int num_choices, const Status& error) {
  for (int c = 0; c < num_choices; ++c) {
    TokenEvent event;
    event.request_id = request_id;
    event.choice_index = c;
    event.finish_reason = FinishReason::kError;
    event.error = error;
    event.times.finished = Clock::now();
    sink.on_event(event);
  }
}

}  // namespace

Result<std::unique_ptr<EngineLoop>> EngineLoop::create(Engine& engine, const EngineLoopOptions& options) {
  if (options.max_num_queued < 0) return invalid_argument("--max-queued-requests is negative");
  std::unique_ptr<EngineLoop> loop(new EngineLoop(engine, options));
  loop->thread_ = std::thread([raw = loop.get()] { raw->run(); });
  return loop;
}

EngineLoop::EngineLoop(Engine& engine, const EngineLoopOptions& options)
    : engine_(engine), options_(options), max_num_seqs_(engine.max_num_seqs()), stats_(engine.stats()) {}

EngineLoop::~EngineLoop() {
  stop();
}

void EngineLoop::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  work_came_.notify_one();
  thread_.join();
}

Result<RequestId> EngineLoop::submit(Request request) {
  CHECK(request.sink != nullptr);
  RETURN_IF_ERROR(engine_.check_request(request));
  if (request.arrived == Clock::time_point{}) request.arrived = Clock::now();

  const std::lock_guard lock(mutex_);
  if (!failure_.is_ok()) return unavailable("the engine has failed: " + failure_.message());
  if (is_draining_ || is_ending_) return unavailable("the server is shutting down and takes no new requests");
  const int num_queued = num_new_ + stats_.num_requests_queued;
  // Seats are free for the next ones only where nobody waits for something else, such as pages.
  const int num_free_seats = stats_.num_waiting == 0 ? max_num_seqs_ - stats_.num_running : 0;
  if (num_queued - num_free_seats >= options_.max_num_queued) {
    return overloaded(std::to_string(num_queued) +
                      " requests wait already, as many as may (--max-queued-requests): try again later");
  }
  const RequestId id = next_request_id_++;
  request.id = id;
  ++num_new_;
  add_wish({.kind = Wish::Kind::kAdd, .request_id = id, .request = std::move(request)});
  return id;
}

void EngineLoop::abort(RequestId request_id, AbortReason reason) {
  const std::lock_guard lock(mutex_);
  add_wish({.kind = Wish::Kind::kAbort, .request_id = request_id, .reason = reason, .request = {}});
}

void EngineLoop::stop_choice(RequestId request_id, int choice_index) {
  const std::lock_guard lock(mutex_);
  add_wish({.kind = Wish::Kind::kStopChoice, .request_id = request_id, .choice_index = choice_index, .request = {}});
}

// Under the mutex.
void EngineLoop::add_wish(Wish wish) {
  if (is_idle_) {
    is_idle_ = false;
    last_progress_ = Clock::now();
  }
  wishes_.push_back(std::move(wish));
  work_came_.notify_one();
}

EngineSnapshot EngineLoop::snapshot() const {
  const std::lock_guard lock(mutex_);
  return {.stats = stats_,
          .num_queued = num_new_ + stats_.num_requests_queued,
          .num_active = num_new_ + stats_.num_requests_active,
          .is_draining = is_draining_,
          .has_failed = !failure_.is_ok(),
          .seconds_since_progress = seconds_since_progress_locked()};
}

double EngineLoop::seconds_since_progress() const {
  const std::lock_guard lock(mutex_);
  return seconds_since_progress_locked();
}

double EngineLoop::seconds_since_progress_locked() const {
  return is_idle_ ? 0.0 : std::chrono::duration<double>(Clock::now() - last_progress_).count();
}

Status EngineLoop::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void EngineLoop::begin_drain() {
  const std::lock_guard lock(mutex_);
  is_draining_ = true;
}

bool EngineLoop::wait_until_idle(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return became_idle_.wait_for(lock, timeout, [this] { return is_idle_; });
}

void EngineLoop::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_came_.wait(lock, [this] { return !is_idle_ || is_ending_; });
    const bool is_last = is_ending_;
    granted_.swap(wishes_);
    stats_.num_requests_queued += num_new_;
    stats_.num_requests_active += std::exchange(num_new_, 0);
    Status failure = failure_;
    lock.unlock();

    for (Wish& wish : granted_) grant(wish, failure);
    granted_.clear();
    if (is_last) engine_.abort_all(AbortReason::kShutdown);
    if (engine_.has_work()) {
      failure = engine_.step();
      if (!failure.is_ok()) engine_.fail_all(failure);
    }
    const EngineStats stats = engine_.stats();

    lock.lock();
    // An empty step is no progress.
    if (stats.num_steps > stats_.num_steps) last_progress_ = Clock::now();
    stats_ = stats;
    failure_ = failure;
    if (is_last) return;
    if (stats.num_requests_active == 0 && wishes_.empty()) {
      is_idle_ = true;
      became_idle_.notify_all();
    }
  }
}

void EngineLoop::grant(Wish& wish, const Status& failure) {
  switch (wish.kind) {
    case Wish::Kind::kAdd: {
      const std::shared_ptr<EventSink> sink = wish.request.sink;
      const int num_choices = wish.request.sampling.n;
      // It came before anybody knew of the failure.
      const Status status = failure.is_ok() ? engine_.add_request(std::move(wish.request)).status() : failure;
      if (!status.is_ok()) tell_refused(*sink, wish.request_id, num_choices, status);
      return;
    }
    case Wish::Kind::kAbort:
      engine_.abort(wish.request_id, wish.reason);
      return;
    case Wish::Kind::kStopChoice:
      engine_.stop_choice(wish.request_id, wish.choice_index);
      return;
  }
}

}  // namespace quire
