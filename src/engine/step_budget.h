// How many tokens a step may have, so that it takes about `step_seconds`: running answers stall for that long while
// prompts are read. It follows the rate at which steps have read prompts lately, between a floor and the largest step
// that memory was planned for, so that a machine that was busy or idle at start is not taken to be so for ever. No
// clock of its own. Used by the engine, on its thread.
#pragma once

namespace quire {

class StepBudget {
 public:
  struct Bounds {
    double step_seconds = 0.25;
    int least = 1;
    int most = 1;
  };
  // `tokens_per_second`: of reading prompts, as measured at start.
  StepBudget(const Bounds& bounds, double tokens_per_second);

  // A step has ended that read `num_prompt_tokens` and computed `num_tokens` in all.
  void observe(int num_tokens, int num_prompt_tokens, double seconds);

  int num_tokens() const { return num_tokens_; }

  // For a rate: a multiple of what kernels work in, within the bounds.
  static int choose(const Bounds& bounds, double tokens_per_second);
  // With so many sequences, each of which gets a token: a prompt advances beside them.
  static int least_for(int max_num_seqs);
  // What to plan memory for, at most, if a machine begins with `first`: it may have been busy while it was measured.
  static int largest_for(int first);

 private:
  Bounds bounds_;
  double tokens_per_second_;
  int num_tokens_;
};

}  // namespace quire
