#include "engine/held_events.h"

#include <span>
#include <utility>

namespace quire {

namespace {

template <typename T>
void keep(std::span<const T>* values, std::vector<T>* owned) {
  owned->assign(values->begin(), values->end());
  *values = *owned;
}

}  // namespace

void HeldEvents::add(std::shared_ptr<EventSink> sink, const TokenEvent& event) {
  if (num_held_ == events_.size()) events_.emplace_back();
  Held& held = events_[num_held_++];
  held.sink = std::move(sink);
  held.event = event;
  keep(&held.event.token_ids, &held.token_ids);
  keep(&held.event.logprobs, &held.logprobs);
  keep(&held.event.prompt_logprobs, &held.prompt_logprobs);
  keep(&held.event.embedding, &held.embedding);
}

}  // namespace quire
