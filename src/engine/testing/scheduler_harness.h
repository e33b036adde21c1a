// For tests: a scheduler over pages that remember what was written to them. Each step is "computed" by writing (token,
// position) into the slots of its rows, after the plan's copies; then everything that a row can see is read back
// through its page tables and compared. A page that was shared, swapped, kept or reused wrongly shows at once.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "engine/scheduler.h"

namespace quire::testing {

class SchedulerHarness {
 public:
  SchedulerHarness(int num_pages, SchedulerConfig the_config, bool has_cache = false, int num_host_pages = 0)
      : config(std::move(the_config)), pool(num_pages) {
    if (has_cache) {
      std::vector<PrefixCache::GroupShape> shapes;
      for (const int window : config.group_windows) shapes.push_back({window});
      cache = std::make_unique<PrefixCache>(&pool, config.page_size, shapes);
    }
    if (num_host_pages > 0) space = std::make_unique<SwapSpace>(&pool, config.page_size, num_host_pages);
    scheduler = std::make_unique<Scheduler>(config, &pool, cache.get(), space.get());
    device_slots_.resize(static_cast<size_t>(num_pages * config.page_size));
    host_slots_.resize(static_cast<size_t>(num_host_pages * config.page_size));
  }

  struct Wish {
    int priority = 0;
    int32_t first_token = 0;
    uint64_t share_key = 0;
    int num_seats = 1;
    int64_t adapter_id = 0;
  };

  // A prompt of ascending tokens.
  Sequence* add(int num_prompt_tokens, const Wish& wish) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < num_prompt_tokens; ++i) tokens.push_back((wish.first_token + i) % 50);
    return add(std::move(tokens), wish);
  }
  Sequence* add(std::vector<int32_t> tokens, const Wish& wish) {
    auto sequence = std::make_unique<Sequence>();
    sequence->request_id = next_id++;
    sequence->priority = wish.priority;
    sequence->share_key = wish.share_key;
    sequence->num_seats = wish.num_seats;
    sequence->adapter_id = wish.adapter_id;
    sequence->num_prompt_tokens = static_cast<int64_t>(tokens.size());
    sequence->token_ids = std::move(tokens);
    return scheduler->add(std::move(sequence));
  }

  // Decides and computes a step; what it has computed still has to be kept and continued.
  const StepPlan& compute() {
    const StepPlan& plan = scheduler->schedule();
    check_plan(plan);
    if (is_planning_ahead) {
      // As the engine does: what the step computes is fixed, and pages that are given back wait for its end.
      const int64_t step = pool.begin_step();
      run(plan);
      scheduler->launch();
      for (const StepRow& row : plan.rows) {
        const bool is_sampled = row.num_logit_rows > 0 && row.end_position() == row.sequence->num_tokens();
        if (is_sampled && row.sequence->num_seats == 1) scheduler->plan_ahead(*row.sequence);
      }
      EXPECT_EQ(pool.num_retired(), 0);
      pool.end_step(step);
    } else {
      run(plan);
    }
    scheduler->complete();
    return plan;
  }

  // The whole step: every sequence whose last token was computed gets another one.
  const StepPlan& step() {
    const StepPlan& plan = compute();
    for (const StepRow& row : plan.rows) {
      if (row.num_logit_rows > 0) scheduler->keep_pages(*row.sequence);
      if (row.end_position() == row.sequence->num_tokens()) row.sequence->token_ids.push_back(7);
    }
    return plan;
  }

  SchedulerConfig config;
  PagePool pool;
  std::unique_ptr<PrefixCache> cache;
  std::unique_ptr<SwapSpace> space;
  std::unique_ptr<Scheduler> scheduler;
  bool is_planning_ahead = false;
  RequestId next_id = 1;
  int64_t num_computed_tokens = 0;
  int64_t num_copied_out = 0;  // pages
  int64_t num_copied_in = 0;

 private:
  using Slot = std::pair<int32_t, int64_t>;

  void check_plan(const StepPlan& plan) const {
    ASSERT_LE(plan.num_tokens, config.max_num_batched_tokens);
    ASSERT_LE(plan.num_logit_rows, config.max_logit_rows);
    ASSERT_LE(scheduler->num_seats_taken(), config.max_num_seqs);
    std::set<Sequence*> seen;
    std::set<int64_t> written;
    int num_tokens = 0;
    int num_logit_rows = 0;
    for (const StepRow& row : plan.rows) {
      ASSERT_TRUE(seen.insert(row.sequence).second);
      ASSERT_GT(row.num_tokens, 0);
      ASSERT_EQ(row.first_position, row.sequence->num_computed_tokens);
      ASSERT_LE(row.end_position(), row.sequence->num_tokens());
      ASSERT_EQ(row.first_logit_row, num_logit_rows);
      ASSERT_TRUE(row.end_position() < row.sequence->num_tokens() || row.num_logit_rows > 0);
      num_tokens += row.num_tokens;
      num_logit_rows += row.num_logit_rows;
      for (const PageTable& table : row.sequence->tables) {
        for (int64_t p = row.first_position; p < row.end_position(); ++p) {
          // A slot is written by one only, and by nobody else's reader: its page is its own and not kept.
          ASSERT_TRUE(written.insert(table.slot(p)).second);
          const int32_t page = static_cast<int32_t>(table.slot(p) / config.page_size);
          ASSERT_FALSE(pool.is_cached(page));
          ASSERT_EQ(pool.ref_count(page), 1);
        }
      }
    }
    ASSERT_EQ(num_tokens, plan.num_tokens);
    ASSERT_EQ(num_logit_rows, plan.num_logit_rows);
    for (const auto& waiting : scheduler->waiting()) {  // nobody who waits holds pages of the device
      for (const PageTable& table : waiting->tables) ASSERT_EQ(table.num_held_pages(), 0);
    }
  }

  void run(const StepPlan& plan) {
    const auto copy = [this](const std::vector<Slot>& from, int32_t from_page, std::vector<Slot>& to, int32_t to_page) {
      for (int i = 0; i < config.page_size; ++i) {
        to[static_cast<size_t>(to_page * config.page_size + i)] =
            from[static_cast<size_t>(from_page * config.page_size + i)];
      }
    };
    for (const SwapCopy& out : plan.swap_outs) copy(device_slots_, out.device_page, host_slots_, out.host_page.page());
    for (const SwapCopy& in : plan.swap_ins) copy(host_slots_, in.host_page.page(), device_slots_, in.device_page);
    for (const PageCopyRequest& request : plan.copies) {
      copy(device_slots_, request.from.page(), device_slots_, request.to);
    }
    num_copied_out += static_cast<int64_t>(plan.swap_outs.size());
    num_copied_in += static_cast<int64_t>(plan.swap_ins.size());
    num_computed_tokens += plan.num_tokens;
    for (const StepRow& row : plan.rows) {
      for (size_t g = 0; g < row.sequence->tables.size(); ++g) {
        for (int64_t p = row.first_position; p < row.end_position(); ++p) {
          slot_of(*row.sequence, g, p) = expected(*row.sequence, p);
        }
      }
    }
    for (const StepRow& row : plan.rows) {
      for (size_t g = 0; g < row.sequence->tables.size(); ++g) {
        const int window = row.sequence->tables[g].window();
        const int64_t first = window > 0 ? std::max<int64_t>(0, row.first_position - window + 1) : 0;
        for (int64_t p = first; p < row.end_position(); ++p) {
          ASSERT_EQ(slot_of(*row.sequence, g, p), expected(*row.sequence, p)) << "group " << g << " position " << p;
        }
      }
    }
  }

  Slot& slot_of(const Sequence& sequence, size_t group, int64_t position) {
    return device_slots_[static_cast<size_t>(sequence.tables[group].slot(position))];
  }
  // Adapters write other contents for the same tokens.
  static Slot expected(const Sequence& sequence, int64_t position) {
    return {sequence.token_ids[static_cast<size_t>(position)], position + 1 + 1000000 * sequence.adapter_id};
  }

  std::vector<Slot> device_slots_;
  std::vector<Slot> host_slots_;
};

inline SchedulerConfig small_config() {
  return {.max_num_seqs = 4,
          .max_num_batched_tokens = 32,
          .max_logit_rows = 8,
          .max_model_len = 400,
          .page_size = 8,
          .group_windows = {0}};
}

inline SchedulerConfig wide_config() {
  return {.max_num_seqs = 16,
          .max_num_batched_tokens = 256,
          .max_logit_rows = 16,
          .max_model_len = 4000,
          .page_size = 16,
          .group_windows = {0}};
}

// A common beginning, and a tail of one token over and over.
inline std::vector<int32_t> stem_and_tail(int num_stem, int num_tail, int32_t tail_token) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < num_stem; ++i) tokens.push_back(i % 47);
  for (int i = 0; i < num_tail; ++i) tokens.push_back(tail_token);
  return tokens;
}

// Runs until the sequences have so many outputs each, and finishes them.
inline void run_until_done(SchedulerHarness& h, std::vector<Sequence*> sequences, int64_t num_outputs) {
  for (int i = 0; !sequences.empty(); ++i) {
    ASSERT_LT(i, 2000) << "no end in sight";
    h.step();
    std::erase_if(sequences, [&](Sequence* sequence) {
      if (sequence->num_output_tokens() < num_outputs) return false;
      h.scheduler->finish(sequence);
      return true;
    });
  }
  h.pool.check_consistency();
  EXPECT_EQ(h.pool.num_used(), 0);
}

}  // namespace quire::testing
