// The drivers of linear layers: how one product is cut into pieces for threads, caches and kernels. Each takes the
// kernels of one instruction set. Called by the rows of linear.cc. Shared pieces of the drivers are here too.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu/linear.h"
#include "ops/cpu/linear_kernels.h"
#include "quant/packing.h"

namespace quire::cpu {

void run_linear_int8(const LinearCall& call, const Int8Kernels& kernels);
void run_linear_f32(const LinearCall& call, const F32Kernels& kernels);
void run_linear_bf16(const LinearCall& call, const BF16Kernels& kernels);
// The same bits by float multiplications.
void run_linear_bf16_emulated(const LinearCall& call, const F32Kernels& kernels);

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

// With so few tokens a product does nothing but read, in as long streams as there are.
constexpr int64_t kReadingTokens = 2;

// Panels for the tiles of a few tokens: while a panel is multiplied with one tile after another, each of them calls its
// share of the next panel into the cache, so that reading and computing overlap.
class PanelsForTiles {
 public:
  PanelsForTiles(const PackedPanels& packed, int64_t total_panels, int64_t num_tokens)
      : packed_(packed),
        last_panel_(total_panels - 1),
        num_tokens_(num_tokens),
        lines_(packed.codes_stride / std::max<int64_t>(1, packed.k / kTileK) / 64) {}

  // Panel `panel` for a tile.
  PackedPanels panel(int64_t panel, const TokenTile& tokens) const {
    PackedPanels result = skip_panels(packed_, panel);
    if (num_tokens_ <= kReadingTokens || panel == last_panel_) return result;
    const int64_t num_steps = packed_.k / kTileK;
    const int64_t first = lines_ * tokens.first_token / num_tokens_;
    const int64_t end = lines_ * (tokens.first_token + tokens.num_tokens) / num_tokens_;
    result.ahead = result.codes + packed_.codes_stride + first * num_steps * 64;
    result.ahead_step = (end - first) * 64;
    return result;
  }

 private:
  PackedPanels packed_;
  int64_t last_panel_;
  int64_t num_tokens_;
  int64_t lines_;  // of a panel's codes for 32 k
};

// Multiplies packed panels with tiles of tokens: pieces of panels are shared by the threads, and finished in place.
// multiply(panel, count, tokens, out, out_stride) computes the sums of `count` neighbouring panels and a tile, 1 of
// them or, where there are many tiles, up to `max_panels`, which with the largest tile make kMaxFewTokens at most.
template <typename Multiply>
void multiply_packed(const LinearCall& call, const TokenTiles& tiles, const Outputs& outputs, int64_t max_panels,
                     Multiply multiply) {
  // A piece of the weights stays in a thread's second-level cache.
  constexpr int64_t kPieceBytes = 512 << 10;
  constexpr int64_t kMaxPiecePanels = 16;
  // Few tiles are taken one after another for each panel: weights come from memory, in an even stream. With more of
  // them a tile takes all panels of the piece, and stores whole stretches of a row.
  constexpr int64_t kFewTiles = 8;
  const PackedPanels packed = panels_of(call.weight);
  const bool is_few = tiles.count <= kFewTiles;
  const bool is_reading = tiles.count == 1 && call.x.size(0) <= kReadingTokens;
  const PanelsForTiles panels(packed, num_panels(call.weight.n), is_few ? call.x.size(0) : 1);
  const int64_t panel_bytes = outputs.num_parts() * (packed.codes_stride + packed.scales_stride);
  const int64_t most = std::clamp<int64_t>(kPieceBytes / panel_bytes, 1, kMaxPiecePanels);
  const int64_t grain = chunk_panels(call, outputs.num_panels(), most);
  call.pool.parallel_for(outputs.num_panels(), grain, [&](const WorkRange& range) {
    alignas(64) float sums[2][std::max<int64_t>(kMaxFewTokens, kReadingTokens * kMaxPiecePanels) * kPanelLanes];
    if (is_reading) {
      const TokenTile& tokens = tiles.tiles[0];
      float* y = outputs.direct(tokens.first_token, range.begin, range.end);
      const int64_t stride = y != nullptr ? outputs.y_stride() : kMaxPiecePanels * kPanelLanes;
      for (int part = 0; part < outputs.num_parts(); ++part) {
        float* out = y != nullptr ? y : sums[part];
        for (int64_t p = range.begin; p < range.end; ++p) {
          multiply(panels.panel(outputs.weight_panel(p, part), tokens), 1, tokens, out, stride);
          out += kPanelLanes;
        }
      }
      if (y == nullptr) {
        outputs.finish(tokens.first_token, tokens.num_tokens, range.begin, range.end, sums[0], sums[1], stride);
      }
      return;
    }
    const auto multiply_panels = [&](const TokenTile& tokens, int64_t p, int64_t count) {
      if (float* y = outputs.direct(tokens.first_token, p, p + count)) {
        multiply(panels.panel(p, tokens), count, tokens, y, outputs.y_stride());
        return;
      }
      const int64_t stride = count * kPanelLanes;
      for (int part = 0; part < outputs.num_parts(); ++part) {
        multiply(panels.panel(outputs.weight_panel(p, part), tokens), count, tokens, sums[part], stride);
      }
      outputs.finish(tokens.first_token, tokens.num_tokens, p, p + count, sums[0], sums[1], stride);
    };
    if (is_few) {
      for (int64_t p = range.begin; p < range.end; ++p) {
        for (int64_t i = 0; i < tiles.count; ++i) multiply_panels(tiles.tiles[i], p, 1);
      }
    } else {
      for (int64_t i = 0; i < tiles.count; ++i) {
        for (int64_t p = range.begin; p < range.end; p += max_panels) {
          multiply_panels(tiles.tiles[i], p, std::min(max_panels, range.end - p));
        }
      }
    }
  });
}

}  // namespace quire::cpu
