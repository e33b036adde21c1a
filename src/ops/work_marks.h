// Places in the order of a backend's enqueued work that the host can wait for while later work goes on. For callers
// that enqueue a step before the one ahead of it has ended.
#pragma once

#include <memory>

#include "ops/ops.h"

namespace quire {

class WorkMarks {
 public:
  virtual ~WorkMarks() = default;

  // Mark number `mark` stands behind everything that has been enqueued so far.
  virtual void record(int mark) = 0;
  // Returns once all work in front of the mark has ended; at once where it was never recorded.
  virtual void wait(int mark) = 0;
};

// In the order of ops whose context names no stream. Null where ops compute at once. `ops` outlives the marks.
std::unique_ptr<WorkMarks> create_work_marks(const Ops& ops, int num_marks);

}  // namespace quire
