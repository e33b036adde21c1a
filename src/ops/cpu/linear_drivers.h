// The drivers of linear layers: how one product is cut into pieces for threads, caches and kernels. Each takes the
// kernels of one instruction set. Called by the rows of linear.cc. Shared pieces of the two drivers are here too.
#pragma once

#include <cstdint>

#include "ops/cpu/linear.h"
#include "ops/cpu/linear_kernels.h"

namespace quire::cpu {

void run_linear_int8(const LinearCall& call, const Int8Kernels& kernels);
void run_linear_f32(const LinearCall& call, const F32Kernels& kernels);

// Up to so many tokens are multiplied with packed weights, several times where they are more than a kernel takes: the
// panels of a chunk stay in the cache, and unpacking them into memory pays only later (EPYC Zen 4, one thread, q4_1,
// 1536 x 576, 16 tokens: 126 us against 171).
constexpr int64_t kFewTokens = 32;

// A weight as kernels see it.
PackedPanels panels_of(const Weight& weight);
// The same without the first `num_panels` panels.
PackedPanels skip_panels(const PackedPanels& panels, int64_t num_panels);

// Outputs [first_output, first_output + count) of token `token`: sums plus bias plus residual, stored in y.
void store_outputs(const LinearCall& call, int64_t token, int64_t first_output, int64_t count, const float* sums);

// Tokens as tiles: as many of the largest size that a kernel has as fit, then the next size, and so on.
struct TokenTile {
  int32_t first_token;
  int32_t num_tokens;
};
struct TokenTiles {
  TokenTile* tiles;
  int64_t count;
};
// `kernels` is indexed by number of tokens; null where there is none; 1 is there. Taken from the arena.
template <typename Kernel, size_t kCount>
TokenTiles make_token_tiles(Arena& scratch, int64_t num_tokens, Kernel* const (&kernels)[kCount]) {
  int64_t largest = static_cast<int64_t>(kCount) - 1;
  while (kernels[largest] == nullptr) --largest;
  // Tiles of other sizes together hold fewer tokens than the largest.
  const int64_t most = num_tokens / largest + largest;
  TokenTiles result{static_cast<TokenTile*>(scratch.take_bytes(most * static_cast<int64_t>(sizeof(TokenTile)))), 0};
  int64_t first = 0;
  for (int64_t size = largest; size >= 1; --size) {
    if (kernels[size] == nullptr) continue;
    for (; num_tokens - first >= size; first += size) {
      result.tiles[result.count++] = {static_cast<int32_t>(first), static_cast<int32_t>(size)};
    }
  }
  return result;
}

}  // namespace quire::cpu
