// Events between the moment when they happen and the moment when their sinks are told, which is when the next step has
// been launched: the device does not wait for those who listen. Keeps what an event points at. Used by engine/engine,
// on its thread.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace quire {

class HeldEvents {
 public:
  void add(std::shared_ptr<EventSink> sink, const TokenEvent& event);
  // Tells them in the order in which they came, but for those that nobody wants any more by then. Sinks do not add.
  template <typename IsWanted>
  void tell(IsWanted is_wanted) {
    for (size_t i = 0; i < num_held_; ++i) {
      const std::shared_ptr<EventSink> sink = std::move(events_[i].sink);
      if (is_wanted(events_[i].event)) sink->on_event(events_[i].event);
    }
    num_held_ = 0;
  }

 private:
  struct Held {
    std::shared_ptr<EventSink> sink;
    TokenEvent event;
    std::vector<int32_t> token_ids;
    std::vector<TokenLogprobs> logprobs;
    std::vector<TokenLogprobs> prompt_logprobs;
    std::vector<float> embedding;
  };
  std::vector<Held> events_;  // the first num_held_; the others keep their memory for later ones
  size_t num_held_ = 0;
};

}  // namespace quire
