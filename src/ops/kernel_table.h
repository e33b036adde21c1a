// Choosing a kernel is a table, best row first: the first row that accepts a call runs it. Tests and benchmarks walk
// the same rows, so that a new row is tested and timed by being there. `Call` is the op's own argument struct.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/check.h"

namespace quire {

template <typename Call>
struct KernelRow {
  std::string_view name;              // as --kernel op=name says it
  bool (*accepts)(const Call& call);  // states all that the row needs; nothing else knows
  void (*launch)(const Call& call);
  // Rows with equal ids give equal bits for equal calls; a test compares them pairwise.
  std::string_view reduction_order;
};

// The row to run: the forced one where it accepts the call, else the first that does. The last row of a table accepts
// all.
template <typename Call>
const KernelRow<Call>& choose_row(std::span<const KernelRow<Call>> rows, const Call& call,
                                  std::string_view forced_name = {}) {
  if (!forced_name.empty()) {
    for (const KernelRow<Call>& row : rows) {
      if (row.name == forced_name && row.accepts(call)) return row;
    }
  }
  for (const KernelRow<Call>& row : rows) {
    if (row.accepts(call)) return row;
  }
  CHECK(!"no kernel row accepts the call");
  return rows.back();
}

}  // namespace quire
