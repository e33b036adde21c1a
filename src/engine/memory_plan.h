// How the machine's memory is divided before anything runs: weights, step scratch, KV pages. Pure arithmetic over
// numbers that others measured. Used by the engine at start and by the app, which prints the plan as a table.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/format_bytes.h"
#include "base/status.h"

namespace quire {

struct MemoryPlan {
  int64_t available_bytes = 0;  // after the weights were loaded, before scratch and KV pages were taken
  int64_t weight_bytes = 0;
  int64_t scratch_bytes = 0;  // what the largest step uses of the arena, the step's inputs; on a GPU attention's plans
  int64_t kv_bytes = 0;       // num_pages * page_bytes
  int64_t page_bytes = 0;
  int page_size = 0;  // tokens
  int num_pages = 0;
  int64_t swap_bytes = 0;  // host memory; num_swap_pages * page_bytes
  int num_swap_pages = 0;
  int num_kv_groups = 0;
  int64_t kv_bytes_per_token = 0;         // over all layers
  int64_t max_model_len = 0;              // what was asked for, or what the model and the pages allow
  bool is_max_model_len_reduced = false;  // nobody asked, and the pages allow less than the model does

  int max_num_seqs = 0;
  int max_num_batched_tokens = 0;          // of the largest step
  int first_step_tokens = 0;               // how many it may have at first, where that follows the rate; 0: it does not
  double prefill_tokens_per_second = 0.0;  // 0: not measured

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
  int64_t kv_cache_memory_bytes = 0;  // 0: by the share
  double memory_share = 0.0;          // of what is available, for scratch and pages
  int64_t most_kv_bytes = INT64_MAX;  // that the share may come to
  int64_t swap_space_bytes = 0;       // of host memory
  int64_t available_host_bytes = INT64_MAX;
  bool is_on_host = false;              // the device's memory is the host's too
  int64_t requested_max_model_len = 0;  // 0: not said
  int64_t model_max_context = 0;
  int max_num_seqs = 1;
  std::function<int64_t(int64_t num_tokens)> pages_of_sequence;  // at most, over all groups; does not fall
};

// Every error says which number to change.
Result<MemoryPlan> plan_memory(const MemoryPlanInput& input);

// Refuses a model whose weights alone cannot be held, with the numbers. Called before loading.
Status check_weights_fit(int64_t weight_bytes, int64_t available_bytes);

}  // namespace quire
