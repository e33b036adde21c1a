// Finds stop strings in streaming text, across the borders of tokens. Text goes in as it comes; what can no longer be
// part of a match comes out, and nothing else is held back. Cuts exactly where the match begins. Linear in the text
// (Aho-Corasick). One per choice of a request; one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

class StopStringMatcher {
 public:
  static constexpr size_t kMaxStrings = 256;
  static constexpr size_t kMaxTotalBytes = 64 * 1024;

  // Refuses empty strings and lists above the bounds. No strings: all text passes straight through.
  static Result<StopStringMatcher> create(const std::vector<std::string>& stop_strings,
                                          bool includes_match_in_output = false);

  // Appends text that is certain not to be cut to `out`. True: a stop string is complete. Then `out` has all text
  // before it (and the string itself, if that was asked for); what follows in `text` is dropped, and so is every later
  // call's. Of several matches the one that is complete first counts; of those that end together, the longest.
  bool add(std::string_view text, std::string& out);
  // The text has ended without a match: gives back what was held.
  void finish(std::string& out);

  bool is_stopped() const { return matched_index_ >= 0; }
  // Which string matched, by its index in the list; -1: none yet.
  int matched_index() const { return matched_index_; }

 private:
  struct Node {
    uint32_t failure = 0;  // the longest proper suffix that is a prefix of some string
    uint32_t depth = 0;
    int32_t match = -1;  // the longest string that ends here
    std::vector<std::pair<char, uint32_t>> children;
  };
  // Immutable once built. Copies of a matcher share it: a request's choices have one.
  struct Automaton {
    std::vector<Node> nodes;
    std::vector<size_t> lengths;  // of the strings
    bool includes_match = false;

    uint32_t find_child(uint32_t node, char byte) const;
    uint32_t step(uint32_t node, char byte) const;
  };

  std::shared_ptr<const Automaton> automaton_;
  uint32_t state_ = 0;
  std::string held_;
  int matched_index_ = -1;
};

}  // namespace quire
