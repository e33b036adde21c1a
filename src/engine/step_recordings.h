// Steps that only decode are launched whole, as recordings of the device (CUDA graphs): one for each shape of a step.
// What shapes there are, which recordings exist, and when one is made: the first step of a shape runs call by call (the
// backend measures what it must), the second is recorded, and is then repeated. Used by engine/model_runner.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "layers/step_context.h"
#include "ops/ops.h"

namespace quire {

class StepRecordings {
 public:
  // Sizes that steps are padded to, so that many share a recording: up to a quarter more rows than there is work, and
  // page tables of a power of two.
  static int padded_rows(int num_rows, int max_num_rows);
  static int64_t padded_pages(int64_t num_pages, int64_t max_num_pages);

  struct Shape {
    int num_rows = 0;
    int64_t num_pages = 0;
    std::vector<uint64_t> plans;  // AttentionPlan::shape of each KV group
    auto operator<=>(const Shape&) const = default;
  };
  struct Entry {
    std::unique_ptr<Ops::Recording> recording;  // null until the second step
    StepOutput output;                          // where it leaves what it computes
    bool was_refused = false;                   // the device has no room for it
  };
  // The entry of a shape; null the first time it is asked for.
  Entry* find(const Shape& shape);

 private:
  // Shapes come and go with the load; a recording takes about a megabyte.
  static constexpr size_t kMostEntries = 256;
  std::map<Shape, Entry> entries_;
};

}  // namespace quire
