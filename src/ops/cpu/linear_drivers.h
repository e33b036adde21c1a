// The drivers of linear layers: how one product is cut into pieces for threads, caches and kernels. Each takes the
// kernels of one instruction set. Called by the rows of linear.cc. Shared pieces of the two drivers are here too.
#pragma once

#include <cstdint>

#include "ops/cpu/linear.h"
#include "ops/cpu/linear_kernels.h"
#include "quant/packing.h"

namespace quire::cpu {

void run_linear_int8(const LinearCall& call, const Int8Kernels& kernels);
void run_linear_f32(const LinearCall& call, const F32Kernels& kernels);

// Pieces of work a thread: enough that one which lost its processor for a while leaves little to wait for.
constexpr int64_t kChunksPerThread = 8;
// Panels of a piece, at most `most`.
int64_t chunk_panels(const LinearCall& call, int64_t panels, int64_t most);

// A weight as kernels see it.
PackedPanels panels_of(const Weight& weight);
// The same without the first `num_panels` panels.
PackedPanels skip_panels(const PackedPanels& panels, int64_t num_panels);

// The outputs of a call by panels. Those of a gated product are its gate's: of each, the weight has a panel of the gate
// and one of up.
class Outputs {
 public:
  Outputs(const LinearCall& call, void (*finish_block)(const OutputBlock& block));

  int64_t num_panels() const { return num_panels_; }
  int num_parts() const { return is_gated_ ? 2 : 1; }
  int64_t weight_panel(int64_t panel, int part) const { return panel + part * num_panels_; }

  // Where kernels may store the sums of these panels, y_stride() apart; null where they have to be finished first.
  float* direct(int64_t first_token, int64_t panel, int64_t end_panel) const {
    return is_plain_ && end_panel * kPanelLanes <= n_ ? y_ + first_token * y_stride_ + panel * kPanelLanes : nullptr;
  }
  int64_t y_stride() const { return y_stride_; }

  // Adds, activates and stores the sums of these panels. `up_sums` are read for gated products only.
  void finish(int64_t first_token, int64_t num_tokens, int64_t panel, int64_t end_panel, const float* sums,
              const float* up_sums, int64_t sums_stride) const;

 private:
  void (*finish_block_)(const OutputBlock& block);
  bool is_gated_;
  bool is_plain_;
  Activation activation_;
  int64_t n_;
  int64_t num_panels_;
  float* y_;
  int64_t y_stride_;
  const float* bias_;
  const float* residual_;
  int64_t residual_stride_;
};

// The rows that a call multiplies: those of x, or their norms, made when they are read.
class InputRows {
 public:
  // Takes scratch for every thread to read `max_rows` at once.
  InputRows(const LinearCall& call, int64_t max_rows);

  struct Rows {
    const float* data;
    int64_t stride;
  };
  // Valid until the same thread reads again.
  Rows read(int64_t first, int64_t count, int worker_index) const;

 private:
  const CpuFeatures& features_;
  Rows x_;
  int64_t k_;
  const float* norm_weight_;  // null: none
  float epsilon_;
  int64_t max_rows_;
  float* normed_ = nullptr;
};

// Tokens as tiles: as many of the largest size that a kernel has as fit, then the next size, and so on.
struct TokenTile {
  int32_t first_token;
  int32_t num_tokens;
};
struct TokenTiles {
  TokenTile* tiles;
  int64_t count;

  int64_t largest() const { return count == 0 ? 0 : tiles[0].num_tokens; }
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
