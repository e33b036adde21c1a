// A running request as the scheduler sees it: tokens, how many of them have been computed, and the pages that hold
// their K and V. A request with n > 1 has n of them, the first alone until the prompt has been computed. What the
// sampler needs besides is in engine/sampler.h. Lives on the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/sampler.h"
#include "kv/page_table.h"
#include "kv/prefix_cache.h"

namespace quire {

struct Sequence {
  // Who it is.
  RequestId request_id = 0;
  int choice_index = 0;
  int priority = 0;        // lower goes first
  uint64_t arrival = 0;    // order among equals
  int num_seats = 1;       // places among the running: until it is forked, those of all its choices
  int64_t adapter_id = 0;  // with the salt: the scope of its prefix
  std::string cache_salt;

  // Prompt and output. All but the last one or more have their K and V in the pages: the first num_computed_tokens.
  std::vector<int32_t> token_ids;
  int64_t num_prompt_tokens = 0;
  int64_t num_computed_tokens = 0;

  // The logits of prompt positions from this one on, but for the last, are wanted too; num_prompt_tokens - 1 or more:
  // none (any more).
  int64_t next_prompt_logit = INT64_MAX;

  std::vector<PageTable> tables;  // one a KV group
  PrefixCache::Node cache_node;   // of the last page that the prefix cache has been told of
  int64_t num_kept_pages = 0;     // full pages that it has been told of, or were found there
  int64_t num_cached_tokens = 0;  // of the prompt, found when it was first admitted
  bool was_admitted = false;

  SamplingState sampling;

  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t num_output_tokens() const { return num_tokens() - num_prompt_tokens; }
  PrefixCache::Scope scope() const { return {adapter_id, cache_salt}; }
};

}  // namespace quire
