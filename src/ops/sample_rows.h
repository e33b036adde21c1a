// The arithmetic of the op `sample`, which every backend follows bit for bit: keys and weights of tokens are integers,
// so that sums are exact in any order and a draw is the same on every device. Private to ops/.
#pragma once

#include <cstdint>

#include "base/exp_nonpositive.h"
#include "ops/ops.h"

namespace quire {

// A token's x = (logit - best) / temperature, at most 0. Its key orders tokens: the highest for x = 0, one less for
// every 2^-26; x below `lowest` (never below kLowestX) has key 0 and no chance.
constexpr float kLowestX = -27.5f;
constexpr float kTokenKeyScale = 0x1p26f;
constexpr uint32_t kHighestTokenKey = 0x80000000u;  // > 27.5 * 2^26

// Its weight is e^x in steps of 2^-40: 2^20 tokens come to 2^60 at most.
constexpr float kTokenWeightScale = 0x1p40f;
constexpr uint64_t scaled_token_weight(float x, float lowest) {
  return x >= lowest ? static_cast<uint64_t>(exp_nonpositive(x) * kTokenWeightScale) : 0;
}

// The part of a sum of weights that top_p asks for, at least 1; the share in steps of 2^-24, as a float has it.
constexpr uint64_t mass_of_share(uint64_t total, float share) {
  const uint64_t steps = static_cast<uint64_t>(share * 0x1p24f);
  const uint64_t mass = (total >> 24) * steps + (((total & 0xffffffu) * steps) >> 24);
  return mass > 0 ? mass : 1;
}

// The op in plain loops over host memory: the definition.
void sample_rows(TensorView ids, ConstTensorView logits, const SamplingRow* rows);

}  // namespace quire
