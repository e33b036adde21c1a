// What compiling one source may cost, counted in steps of its loops: an edge looked at, a member of a set, a node made.
// Counted, not timed, so that the same source is refused on every machine. Whoever loops spends; when nothing is left,
// loops end early with whatever they have, and the compilation ends with status(). Internal to the grammar files; one
// thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace quire::grammar_internal {

class CompileWork {
 public:
  explicit CompileWork(int64_t max_steps) : max_steps_(max_steps) {}

  // False: nothing is left.
  bool spend(size_t num_steps) {
    num_steps_ += static_cast<int64_t>(num_steps);
    return num_steps_ <= max_steps_;
  }
  bool is_spent() const { return num_steps_ > max_steps_; }
  int64_t num_steps() const { return num_steps_; }

  Status status() const {
    if (!is_spent()) return ok_status();
    return resource_exhausted("the grammar takes more than " + std::to_string(max_steps_) +
                              " steps to compile; make it smaller: fewer optional parts in a row, fewer or simpler "
                              "patterns, lower repetition counts and length limits");
  }

 private:
  const int64_t max_steps_;
  int64_t num_steps_ = 0;
};

}  // namespace quire::grammar_internal
