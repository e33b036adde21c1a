// Who gives way when pages run out, where its pages go, and how they come back.
#include <algorithm>

#include "engine/scheduler.h"

namespace quire {

void Scheduler::preempt_newest() {
  CHECK(!running_.empty());
  std::unique_ptr<Sequence> sequence = std::move(running_.back());
  running_.pop_back();
  drop_ahead(*sequence);
  DCHECK(!is_scheduled(*sequence));
  release_waiters(*sequence);
  if (swap_out(*sequence)) {
    ++plan_.num_swapped_out;
  } else {
    drop_pages(*sequence);
  }
  ++plan_.num_preempted;
  ++sequence->num_preemptions;
  insert_in_order(std::move(sequence), /*is_running=*/false);
}

bool Scheduler::swap_out(Sequence& sequence) {
  release_behind(sequence);
  if (!is_swap_wanted(sequence)) return false;
  for (const PageTable& table : sequence.tables) CHECK(table.num_tokens() == sequence.num_computed_tokens);
  if (!swap_space_->swap_out(sequence.tables, &sequence.swapped, &plan_.swap_outs)) return false;
  for (PageTable& table : sequence.tables) table.clear();
  return true;
}

bool Scheduler::is_swap_wanted(const Sequence& sequence) const {
  if (swap_space_ == nullptr || sequence.num_computed_tokens == 0) return false;
  if (config_.preemption != PreemptionMode::kAuto) return config_.preemption == PreemptionMode::kSwap;
  // Kept pages that others use as well will be found again, so they cost nothing to compute.
  int64_t num_found_again = 0;
  if (prefix_cache_ != nullptr) {
    for (const int32_t page : sequence.tables[0].page_ids()) {
      if (page < 0 || !pool_->is_cached(page) || pool_->ref_count(page) < 2) break;
      num_found_again += config_.page_size;
    }
  }
  return config_.costs.is_swap_cheaper(std::max<int64_t>(sequence.num_computed_tokens - num_found_again, 0),
                                       swap_space_->pages_to_swap_out(sequence.tables));
}

bool Scheduler::swap_in(Sequence& sequence, int64_t num_spare) {
  // Pages that are still there are held from here on, so that they do not count as available.
  int64_t num_needed = swap_space_->find_on_device(sequence.swapped, &found_pages_);
  for (const SwappedTable& table : sequence.swapped) {
    const int64_t num_held = std::count_if(table.host_pages.begin(), table.host_pages.end(),
                                           [](const PageRef& page) { return page.is_given(); });
    const int64_t num_new = (sequence.num_tokens() + config_.page_size - 1) / config_.page_size -
                            static_cast<int64_t>(table.host_pages.size());
    const int64_t most =
        PageTable::max_pages(sequence.num_tokens(), config_.page_size, table.window, config_.max_num_batched_tokens);
    num_needed += std::min(num_new, std::max<int64_t>(most - num_held, 0));
  }
  if (num_needed + num_spare > pool_->num_available()) {
    found_pages_.clear();
    return false;
  }
  swap_space_->swap_in(sequence.swapped, std::move(found_pages_), sequence.tables, &plan_.swap_ins);
  found_pages_.clear();
  sequence.swapped.clear();
  ++plan_.num_swapped_in;
  // Its entries in the prefix cache may have gone; they are made anew when its next logits are known.
  sequence.cache_node = PrefixCache::Node{};
  sequence.num_kept_pages = 0;
  return true;
}

void Scheduler::drop_pages(Sequence& sequence) {
  for (PageTable& table : sequence.tables) table.clear();
  sequence.num_computed_tokens = 0;
  sequence.num_kept_pages = 0;
  sequence.cache_node = PrefixCache::Node{};
}

}  // namespace quire
