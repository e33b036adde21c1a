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
#include "kv/swap_space.h"

namespace quire {

struct TokenShare;

struct Sequence {
  // Who it is.
  RequestId request_id = 0;
  int choice_index = 0;
  int priority = 0;        // lower goes first
  uint64_t arrival = 0;    // order among equals
  int num_seats = 1;       // places among the running: until it is forked, those of all its choices
  int64_t adapter_id = 0;  // with the salt: the scope of its prefix
  std::string cache_salt;
  uint64_t share_key = 0;       // whose share of the tokens it uses
  TokenShare* share = nullptr;  // that key's, in the scheduler's books

  // Prompt and output. All but the last one or more have their K and V in the pages: the first num_computed_tokens.
  std::vector<int32_t> token_ids;
  int64_t num_prompt_tokens = 0;
  int64_t num_computed_tokens = 0;

  // The logits of prompt positions from this one on, but for the last, are wanted too; num_prompt_tokens - 1 or more:
  // none (any more).
  int64_t next_prompt_logit = INT64_MAX;

  // Not kNone: no logits are wanted, but hidden states: of the last position, of all, or of the first.
  Pooling pooling = Pooling::kNone;

  std::vector<PageTable> tables;  // one a KV group
  PrefixCache::Node cache_node;   // of the last page that the prefix cache has been told of
  int64_t num_kept_pages = 0;     // full pages that it has been told of, or were found there
  int64_t num_cached_tokens = 0;  // of the prompt, found when it was first admitted
  bool was_admitted = false;

  bool is_planned_ahead = false;  // it has a row in the next step while the last one runs

  // Waiting for pages that another sequence is computing: it is not admitted before that one has kept so many tokens,
  // or has gone.
  Sequence* awaited = nullptr;
  int64_t num_awaited_tokens = 0;
  int num_waiters = 0;  // sequences that await this one

  // Where its pages are kept while it waits after giving way; empty: nowhere, or it runs. One a KV group.
  std::vector<SwappedTable> swapped;
  int num_preemptions = 0;

  // For justice: later arrivals that were admitted before it, steps in a row in which it had something to read and read
  // nothing, and whether that was so many that it now goes before all others. Tokens that its key has paid for.
  int num_passed_over = 0;
  int num_stalled_steps = 0;
  bool is_due = false;
  int64_t num_charged_tokens = 0;

  SamplingState sampling;

  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()); }
  // Every position has to be computed for it: nothing may be taken from the prefix cache.
  bool needs_every_position() const {
    return next_prompt_logit < num_prompt_tokens - 1 || pooling == Pooling::kMean || pooling == Pooling::kCls;
  }
  int64_t num_output_tokens() const { return num_tokens() - num_prompt_tokens; }
  bool wants_prompt_logits() const { return next_prompt_logit < num_prompt_tokens - 1; }
  bool is_swapped_out() const { return !swapped.empty(); }
  PrefixCache::Scope scope() const { return {adapter_id, cache_salt}; }
};

}  // namespace quire
