// Decides, step by step, which sequences compute which tokens:
//   1. every running sequence that has one token to compute gets it;
//   2. what is left of the token budget goes to those that still read their prompt, in chunks, and to waiting ones,
//   3. which are admitted while there are seats and pages for their whole prompt (and a few to spare);
//   4. when one that decodes cannot have a page, the newest running sequence gives up all of its pages and waits at the
//      head of the queue; its pages are kept in the swap space, or its tokens are computed again later.
// Lower priorities go first; among equals the client that has been served least (token_shares), then the first come. A
// request whose beginning another one is computing waits for those pages instead of computing them too. Whoever has
// been passed over too often goes before all others.
// While a step runs, what decodes may be given its row in the next step (plan_ahead); everything else is decided once
// the step has ended. Where those rows are all that the next step can have, it may be launched too. Pure logic over
// page numbers: no tensors, no clock. It owns the sequences. Runs on the engine's thread. Four files: the step, what is
// planned ahead of it (scheduler_ahead.cc), who is admitted (scheduler_admission.cc), who gives way
// (scheduler_preemption.cc).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/preemption.h"
#include "engine/step_plan.h"
#include "engine/token_shares.h"

namespace quire {

struct SchedulerConfig {
  int max_num_seqs = 32;
  int max_num_batched_tokens = 512;  // of the largest step; at least max_num_seqs
  int max_logit_rows = 64;           // of a step; at least max_num_seqs
  int64_t max_model_len = 0;
  int page_size = 16;
  std::vector<int> group_windows;  // a KV group each: its window, or 0
  PreemptionMode preemption = PreemptionMode::kAuto;
  PreemptionCosts costs = {};
  // A waiting sequence before which so many later ones were admitted, or a running one that in so many steps in a row
  // was given nothing to read, goes before all others from then on.
  int max_passed_over = 256;
  int max_stalled_steps = 256;
  // Attention has one order of sums for tokens of prompts and one for drawn tokens, and what it gives must not depend
  // on which of them are computed together: few drawn tokens are computed again in one step.
  bool is_strict = false;
  // Whether pages that drawn tokens are in are kept: a later prompt that goes on from them finds them as they were
  // drawn, not as it would compute them.
  bool shares_drawn_pages = true;
};

class Scheduler {
 public:
  // `prefix_cache` and `swap_space` may be null. Pool, cache and space outlive the scheduler.
  Scheduler(SchedulerConfig config, PagePool* pool, PrefixCache* prefix_cache, SwapSpace* swap_space = nullptr);
  ~Scheduler();

  // Refuses a sequence that the pool could not hold even alone.
  Status check_fits(int64_t num_prompt_tokens, int64_t max_tokens) const;

  // A new sequence, with its tokens; the pages are the scheduler's business. Returns it.
  Sequence* add(std::unique_ptr<Sequence> sequence);

  // The next step, what was planned ahead of it included. No rows: there is nothing to run, but the plan may have
  // copies. Valid until the next call.
  const StepPlan& schedule();

  // How many tokens the next steps may have: max_num_seqs to max_num_batched_tokens, which it is at first.
  void set_step_tokens(int num_tokens);

  // The step has been launched, with its inputs fixed: its rows count as computed from here on.
  void launch();
  // Plans the row that a sequence of the launched step will have in the next one. Its row in this one ends in a sample,
  // and it has one seat; it will get a token before schedule() is called, or be finished. It gets no row yet where a
  // page must be copied or taken from another for it. No page is given back while the step runs.
  void plan_ahead(Sequence& sequence);

  // Whether what is planned ahead may be launched behind the launched step, before that has ended: it has the same rows
  // in the same order, and nobody else could be given anything. Rows whose sequence ends meanwhile are dropped from the
  // plan; what is computed for them is nobody's.
  bool can_launch_ahead() const;
  // The plan to launch; valid until take_launched, which is called once the step ahead of it has been read, in place of
  // schedule() for this one. It may have lost all of its rows.
  const StepPlan& launch_ahead();
  const StepPlan& take_launched();

  // The step has been computed: moves the rows on, unless it was launched, and drops the copies.
  void complete();

  // Another choice of a computed sequence, which shares its pages and takes one of its seats. The child's tokens are
  // copied; the caller sets what differs.
  Sequence* fork(Sequence& parent, int choice_index);

  // Lets later prompts use the full pages that the sequence has computed. Only where its logits were finite. A row that
  // ends inside the prompt but has logits is one whose pages others wait for: this is to be called after it too.
  void keep_pages(Sequence& sequence);
  // Its contents are wrong: nobody may use its pages after it.
  void forget_pages(Sequence& sequence);

  // Removes a sequence, running or waiting, and frees its pages.
  void finish(Sequence* sequence);

  // Pages that a sequence of so many tokens holds at most, over all groups.
  int64_t max_pages_of(int64_t num_tokens) const;

  int num_running() const { return static_cast<int>(running_.size()); }
  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  int num_seats_taken() const;
  const std::vector<std::unique_ptr<Sequence>>& running() const { return running_; }
  const std::deque<std::unique_ptr<Sequence>>& waiting() const { return waiting_; }

 private:
  void take_ahead();
  void drop_ahead(Sequence& sequence);
  void schedule_decodes();
  void schedule_prefills();
  void read_chunk(Sequence& sequence);
  void add_row(Sequence& sequence, int64_t num_tokens);
  void want_hidden_rows(const Sequence& sequence, StepRow& row);
  void charge(Sequence& sequence, int64_t first_position, int64_t end_position);
  void number_logit_rows();
  int64_t largest_chunk(const Sequence& sequence) const;
  int64_t pages_to_grow(const Sequence& sequence, int64_t num_tokens) const;
  int64_t pages_still_to_come(const Sequence& sequence) const;
  void release_behind(Sequence& sequence);
  bool grow(Sequence& sequence, int64_t num_tokens);
  void insert_in_order(std::unique_ptr<Sequence> sequence, bool is_running);
  void put_due_first();
  bool is_scheduled(const Sequence& sequence) const;
  // Of a sequence's tokens, those whose pages others may use, or which it may take from others.
  int64_t num_shareable_tokens(const Sequence& sequence) const {
    return config_.shares_drawn_pages ? sequence.num_tokens() : sequence.num_prompt_tokens;
  }

  bool reads_before(const Sequence& a, const Sequence& b) const;
  bool can_admit_before(const Sequence* reader);
  bool admit_next();
  size_t next_to_admit();
  bool admit(Sequence& sequence);
  bool find_prefix(Sequence& sequence);
  bool await_pages(Sequence& sequence, int64_t num_found);
  bool must_wait(Sequence& sequence);
  void stop_waiting(Sequence& sequence);
  void release_waiters(Sequence& sequence);
  void count_passed_over(const Sequence& admitted);

  void preempt_newest();
  bool swap_out(Sequence& sequence);
  bool is_swap_wanted(const Sequence& sequence) const;
  bool swap_in(Sequence& sequence, int64_t num_spare);
  void drop_pages(Sequence& sequence);

  SchedulerConfig config_;
  int step_tokens_;
  PagePool* pool_;
  PrefixCache* prefix_cache_;
  SwapSpace* swap_space_;
  TokenShares shares_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in order of priority and arrival
  std::deque<std::unique_ptr<Sequence>> waiting_;   // likewise, but those that gave way before the new ones
  StepPlan plan_;                                   // in the making
  StepPlan given_;                                  // the last one that schedule() gave
  bool is_launched_ = false;
  size_t num_given_rows_ = 0;      // with those that have been dropped since it was launched
  bool is_next_launched_ = false;  // plan_
  size_t num_next_rows_ = 0;
  std::vector<std::vector<PageRef>> found_pages_;  // scratch
  std::vector<Sequence*> readers_;                 // of this step: those that still read their prompt
  bool has_new_due_ = false;
  uint64_t next_arrival_ = 0;
};

}  // namespace quire
