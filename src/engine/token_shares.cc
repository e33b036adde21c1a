// The books of who has been served how much.
#include "engine/token_shares.h"

#include <algorithm>

#include "base/check.h"

namespace quire {

int64_t TokenShares::least_served() const {
  if (num_active_keys_ == 0) return last_served_;
  int64_t least = INT64_MAX;
  for (const auto& [key, share] : shares_) {
    if (share.num_sequences > 0) least = std::min(least, share.num_served);
  }
  return least;
}

TokenShare* TokenShares::join(uint64_t key) {
  const auto it = shares_.find(key);
  if (it == shares_.end() && shares_.size() >= kMostKeys) {
    std::erase_if(shares_, [](const auto& entry) { return entry.second.num_sequences == 0; });
  }
  TokenShare& share = it != shares_.end() ? it->second : shares_[key];
  share.key = key;
  if (share.num_sequences == 0) {
    share.num_served = std::max(share.num_served, least_served());
    ++num_active_keys_;
  }
  ++share.num_sequences;
  return &share;
}

void TokenShares::leave(TokenShare* share) {
  CHECK(share->num_sequences > 0);
  if (--share->num_sequences > 0) return;
  --num_active_keys_;
  last_served_ = share->num_served;
}

}  // namespace quire
