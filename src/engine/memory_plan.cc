// The arithmetic of the memory plan.
#include "engine/memory_plan.h"

#include <algorithm>
#include <cstdio>

namespace quire {

namespace {

// Page ids are 32-bit numbers.
constexpr int64_t kMostPages = int64_t{1} << 30;

// The longest sequence that the pages hold, at most `most`.
int64_t longest_sequence(const MemoryPlanInput& input, int64_t num_pages, int64_t most) {
  int64_t fits = 0;
  int64_t too_long = most + 1;
  while (fits + 1 < too_long) {
    const int64_t middle = fits + (too_long - fits) / 2;
    (input.pages_of_sequence(middle) <= num_pages ? fits : too_long) = middle;
  }
  return fits;
}

// "a is less than what, b", to the byte where rounded numbers would look the same.
std::string less_than(int64_t a, const std::string& what, int64_t b) {
  const bool is_rounded = format_bytes(a) != format_bytes(b);
  const auto told = [&](int64_t bytes) { return is_rounded ? format_bytes(bytes) : std::to_string(bytes) + " B"; };
  return told(a) + " is less than " + what + ", " + told(b);
}

}  // namespace

Status check_weights_fit(int64_t weight_bytes, int64_t available_bytes) {
  if (weight_bytes <= available_bytes) return ok_status();
  return resource_exhausted(
      "the weights take " + format_bytes(weight_bytes) + ", but only " + format_bytes(available_bytes) +
      " of memory are available: free some, or choose a smaller or more strongly quantized model");
}

Result<MemoryPlan> plan_memory(const MemoryPlanInput& input) {
  CHECK(input.page_bytes > 0);
  MemoryPlan plan;
  plan.available_bytes = input.available_bytes;
  plan.weight_bytes = input.weight_bytes;
  plan.scratch_bytes = input.scratch_bytes;
  plan.page_bytes = input.page_bytes;
  plan.page_size = input.page_size;
  plan.num_kv_groups = input.num_kv_groups;
  plan.kv_bytes_per_token = input.kv_bytes_per_token;

  if (input.requested_max_model_len > input.model_max_context) {
    return invalid_argument("--max-model-len " + std::to_string(input.requested_max_model_len) +
                            " is more than the context that the model was made for, " +
                            std::to_string(input.model_max_context) + " tokens");
  }
  const int64_t wanted_len =
      input.requested_max_model_len > 0 ? input.requested_max_model_len : input.model_max_context;
  const int64_t pages_of_wanted = input.pages_of_sequence(wanted_len);
  const std::string available = format_bytes(input.available_bytes);

  int64_t budget = input.kv_cache_memory_bytes;
  if (budget > 0) {
    if (budget < input.page_bytes) {
      const std::string page = "a KV page of " + std::to_string(input.page_size) + " tokens";
      return invalid_argument("--kv-cache-memory " + less_than(budget, page, input.page_bytes) + ": ask for more");
    }
    if (budget > input.available_bytes - input.scratch_bytes) {
      return resource_exhausted("--kv-cache-memory asks for " + format_bytes(budget) + ", but only " + available +
                                " of memory are available, of which a step needs " + format_bytes(input.scratch_bytes) +
                                ": ask for less, or lower --max-num-batched-tokens");
    }
  } else {
    budget =
        static_cast<int64_t>(static_cast<double>(input.available_bytes) * input.memory_share) - input.scratch_bytes;
    budget = std::min(budget, input.most_kv_bytes);
    // More than all seats at full length is of no use.
    const int64_t most_pages = std::min(kMostPages, pages_of_wanted * input.max_num_seqs + pages_of_wanted / 8 + 8);
    budget = std::min(budget, most_pages * input.page_bytes);
  }
  const int64_t num_pages = std::min(std::max<int64_t>(budget, 0) / input.page_bytes, kMostPages);
  plan.num_pages = static_cast<int>(num_pages);
  plan.kv_bytes = num_pages * input.page_bytes;

  if (input.requested_max_model_len > 0 && pages_of_wanted > num_pages) {
    return resource_exhausted("a sequence of --max-model-len " + std::to_string(wanted_len) + " tokens takes " +
                              format_bytes(pages_of_wanted * input.page_bytes) + " of KV memory, but the pages have " +
                              format_bytes(plan.kv_bytes) + " (of " + available +
                              " available): lower --max-model-len or --max-num-batched-tokens, or raise "
                              "--kv-cache-memory");
  }
  plan.max_model_len = longest_sequence(input, num_pages, wanted_len);
  plan.is_max_model_len_reduced = plan.max_model_len < wanted_len;
  if (plan.max_model_len < std::min<int64_t>(wanted_len, input.page_size)) {
    return resource_exhausted("there is no room for KV memory: " + available + " are available, a step needs " +
                              format_bytes(input.scratch_bytes) + " and one page of " +
                              std::to_string(input.page_size) + " tokens " + format_bytes(input.page_bytes) +
                              " in each of " + std::to_string(input.num_kv_groups) +
                              " groups: lower --max-num-batched-tokens or --max-num-seqs, or " +
                              (input.kv_cache_memory_bytes > 0 ? "raise" : "set") + " --kv-cache-memory");
  }

  const int64_t taken = input.is_on_host ? plan.kv_bytes + plan.scratch_bytes : 0;
  if (input.swap_space_bytes > input.available_host_bytes - taken) {
    return resource_exhausted("--swap-space asks for " + format_bytes(input.swap_space_bytes) + ", but only " +
                              format_bytes(input.available_host_bytes) + " of host memory are available" +
                              (taken > 0 ? ", of which KV pages and a step take " + format_bytes(taken) : "") +
                              ": ask for less");
  }
  const int64_t num_swap_pages = std::min(input.swap_space_bytes / input.page_bytes, kMostPages);
  if (input.swap_space_bytes > 0 && num_swap_pages == 0) {
    return invalid_argument("--swap-space " + less_than(input.swap_space_bytes, "a KV page", input.page_bytes) +
                            ": ask for more, or for 0");
  }
  plan.num_swap_pages = static_cast<int>(num_swap_pages);
  plan.swap_bytes = num_swap_pages * input.page_bytes;
  return plan;
}

std::string MemoryPlan::to_string() const {
  char swap_line[128] = "";
  if (num_swap_pages > 0) {
    std::snprintf(swap_line, sizeof(swap_line), "swap space  %12s  of host memory, %d pages\n",
                  format_bytes(swap_bytes).c_str(), num_swap_pages);
  }
  char step_line[160];
  int length = std::snprintf(step_line, sizeof(step_line), "a step      %12d  tokens at most, %d sequences",
                             max_num_batched_tokens, max_num_seqs);
  if (first_step_tokens > 0) {
    std::snprintf(step_line + length, sizeof(step_line) - static_cast<size_t>(length),
                  "; %d at first, %.0f ms at %.0f prompt tokens/s", first_step_tokens,
                  1e3 * first_step_tokens / std::max(prefill_tokens_per_second, 1e-3), prefill_tokens_per_second);
  }
  char text[1024];
  std::snprintf(text, sizeof(text),
                "memory      %12s  available after loading\n"
                "weights     %12s\n"
                "scratch     %12s  of the largest step\n"
                "KV pages    %12s  %d pages of %d tokens, %s a page, %d group%s\n"
                "%s"
                "KV a token  %12s\n"
                "context     %12lld  tokens%s\n"
                "%s\n",
                format_bytes(available_bytes).c_str(), format_bytes(weight_bytes).c_str(),
                format_bytes(scratch_bytes).c_str(), format_bytes(kv_bytes).c_str(), num_pages, page_size,
                format_bytes(page_bytes).c_str(), num_kv_groups, num_kv_groups == 1 ? "" : "s", swap_line,
                format_bytes(kv_bytes_per_token).c_str(), static_cast<long long>(max_model_len),
                is_max_model_len_reduced ? " (the model allows more, the pages do not)" : "", step_line);
  return text;
}

}  // namespace quire
