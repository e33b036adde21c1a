// Fair shares: which key (a client of the server) has been served how many tokens. Among equal priorities the scheduler
// serves the key that has had least. A key that comes (back) to work starts at no less than the least served of those
// that have work, so that nobody saves up claims while away. Used by the scheduler, on the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace quire {

struct TokenShare {
  uint64_t key = 0;
  int64_t num_served = 0;  // weighed: a generated token costs more than a read one
  int num_sequences = 0;   // that it has here; with none, it claims nothing
};

class TokenShares {
 public:
  static constexpr int64_t kPromptWeight = 1;
  static constexpr int64_t kOutputWeight = 2;
  // Keys without work are remembered up to this number.
  static constexpr size_t kMostKeys = 4096;

  // Another sequence of the key. The share stays where it is until the matching leave.
  TokenShare* join(uint64_t key);
  void leave(TokenShare* share);

  int num_active_keys() const { return num_active_keys_; }

 private:
  int64_t least_served() const;  // of the keys that have work

  std::unordered_map<uint64_t, TokenShare> shares_;
  int64_t last_served_ = 0;  // of the key that left last
  int num_active_keys_ = 0;
};

}  // namespace quire
