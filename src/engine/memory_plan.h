// How the machine's memory is divided before anything runs: weights, step scratch, KV pages. Pure arithmetic over
// numbers that others measured. Used by the engine at start and by the app, which prints the plan as a table.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace quire {

struct MemoryPlan {
  int64_t available_bytes = 0;  // of the device, before the KV pages and the scratch were taken
  int64_t weight_bytes = 0;     // loaded already
  int64_t scratch_bytes = 0;    // the step arena
  int64_t kv_bytes = 0;         // num_pages * page_bytes
  int64_t page_bytes = 0;
  int page_size = 0;  // tokens
  int num_pages = 0;
  int num_kv_groups = 0;
  int64_t kv_bytes_per_token = 0;  // over all layers
  int64_t max_model_len = 0;       // what was asked for, or what the model and the pages allow
  bool is_max_model_len_reduced = false;

  // A table for people, a line an item.
  std::string to_string() const;
};

struct MemoryPlanInput {
  int64_t available_bytes = 0;
  int64_t weight_bytes = 0;
  int64_t scratch_bytes = 0;
  int64_t page_bytes = 0;
  int page_size = 16;
  int num_kv_groups = 1;
  int64_t kv_bytes_per_token = 0;
  int64_t kv_cache_memory_bytes = 0;    // 0: from the share
  double memory_share = 0.0;            // of what is available
  int64_t kv_bytes_bound = 0;           // 0: none; more than this is not taken by a share
  int64_t requested_max_model_len = 0;  // 0: not said
  int64_t model_max_context = 0;
  int max_num_seqs = 1;
  // Pages that one sequence of so many tokens holds at most, over all groups. Rising.
  int64_t (*pages_of_sequence)(const void* self, int64_t num_tokens) = nullptr;
  const void* pages_of_sequence_self = nullptr;
};

Result<MemoryPlan> plan_memory(const MemoryPlanInput& input);

// Refuses a model whose weights alone cannot be held, with the numbers. Called before loading.
Status check_weights_fit(int64_t weight_bytes, int64_t available_bytes);

// "1.50 GiB".
std::string format_bytes(int64_t num_bytes);

// Memory that a new allocation can count on: what the system says is available, bounded by the cgroup's limit. 0 where
// neither can be read.
int64_t available_host_memory_bytes();

}  // namespace quire
