// The engine on a thread of its own: steps while there is work, sleeps when there is none. This is what a server talks
// to; every method may be called from any thread. Requests and other wishes wait in a queue until the next step begins;
// events come back on the loop's thread through each request's sink, which must be quick and must not throw: it hands
// over to others. A sink may call anything here but wait_until_idle.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace quire {

struct EngineLoopOptions {
  // Requests that may wait beyond those for which there is a free seat; one more is refused.
  int max_num_queued = 1024;
};

// What a scrape of the metrics wants to know.
struct EngineSnapshot {
  EngineStats stats;   // after the last step
  int num_queued = 0;  // requests that have never been scheduled yet
  int num_active = 0;  // requests without their last event, those included
  bool is_draining = false;
  bool has_failed = false;  // a step was in error: nothing runs any more
  double seconds_since_progress = 0.0;
};

class EngineLoop {
 public:
  // The engine outlives the loop, and is nobody else's while there is one.
  static Result<std::unique_ptr<EngineLoop>> create(Engine& engine, const EngineLoopOptions& options);

  ~EngineLoop();  // stops

  // Gives up what is left: every choice gets its last event before this returns. From then on submit refuses, and
  // other wishes are for nothing: sinks hand over to threads that still have them, so these end before the loop goes.
  // On the thread that destroys.
  void stop();

  // Checks the request on the caller's thread and queues it. Refused requests get no events:
  //   kOverloaded                                              too many wait already
  //   kUnavailable                                             the loop drains, or has failed
  //   kInvalidArgument, kResourceExhausted, kUnimplemented     it can never run
  // The request's id is given here; its `arrived` is now, unless it says otherwise.
  Result<RequestId> submit(Request request);

  // Ends a request: its unfinished choices get a last event (kAborted). Unknown and finished ids are ignored.
  void abort(RequestId request_id, AbortReason reason = AbortReason::kCaller);

  // Ends one choice because a stop string was found in its text: last event kStop.
  void stop_choice(RequestId request_id, int choice_index);

  EngineSnapshot snapshot() const;

  // For how long there has been work and no step has ended; 0 while there is no work. Healthy is what stays under a
  // limit that no honest step reaches.
  double seconds_since_progress() const;

  // Not ok once a step was in error.
  Status failure() const;

  // From now on submit refuses; what runs goes on.
  void begin_drain();
  // True once there is no work left; false if the time was up first.
  bool wait_until_idle(std::chrono::milliseconds timeout);

  // Constant since the engine was made.
  const RequestLimits& limits() const { return engine_.limits(); }
  const MemoryPlan& memory_plan() const { return engine_.memory_plan(); }
  int max_num_seqs() const { return max_num_seqs_; }

 private:
  struct Wish;

  EngineLoop(Engine& engine, const EngineLoopOptions& options);
  void run();
  void grant(Wish& wish, const Status& failure);
  double seconds_since_progress_locked() const;
  void add_wish(Wish wish);

  Engine& engine_;
  const EngineLoopOptions options_;
  const int max_num_seqs_;

  mutable std::mutex mutex_;
  std::condition_variable work_came_;
  std::condition_variable became_idle_;
  // All of what follows is under the mutex.
  std::vector<Wish> wishes_;  // in the order in which they came
  int num_new_ = 0;           // requests among the wishes
  bool is_idle_ = true;       // the engine has no work, and nobody has asked for anything
  bool is_draining_ = false;
  bool is_ending_ = false;
  RequestId next_request_id_ = 1;
  Status failure_;
  EngineStats stats_;
  Clock::time_point last_progress_;

  std::vector<Wish> granted_;  // of the loop's thread: the wishes that it works on
  std::thread thread_;         // last: it uses all of the above
};

}  // namespace quire
