// What the API's handlers need of an engine: somebody to submit requests to. The server gives them the loop; tests give
// them a scripted one. Every method may be called from any thread.
#pragma once

#include "base/status.h"
#include "engine/engine_loop.h"
#include "engine/request.h"

namespace quire {

class EngineClient {
 public:
  virtual ~EngineClient() = default;
  // As EngineLoop::submit: events come through request.sink, perhaps before this returns.
  virtual Result<RequestId> submit(Request request) = 0;
  virtual void abort(RequestId request_id, AbortReason reason) = 0;
  virtual void stop_choice(RequestId request_id, int choice_index) = 0;
  virtual const RequestLimits& limits() const = 0;
};

class LoopClient final : public EngineClient {
 public:
  explicit LoopClient(EngineLoop& loop) : loop_(loop) {}
  Result<RequestId> submit(Request request) override { return loop_.submit(std::move(request)); }
  void abort(RequestId request_id, AbortReason reason) override { loop_.abort(request_id, reason); }
  void stop_choice(RequestId request_id, int choice_index) override { loop_.stop_choice(request_id, choice_index); }
  const RequestLimits& limits() const override { return loop_.limits(); }

 private:
  EngineLoop& loop_;
};

}  // namespace quire
