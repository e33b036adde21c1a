// The driver of products with float activations. A few tokens: panels are shared by the threads, weights become floats
// in registers. More: chunks of panels are shared; for a block of tokens a thread makes a slice of its chunk's weights
// floats once and multiplies it with every tile of tokens. Before either, activations are laid out in tiles.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/cpu/linear_drivers.h"
#include "quant/packing.h"

namespace quire::cpu {

namespace {

// 32 KiB of floats a panel; a multiple of every format's block.
constexpr int64_t kSliceK = 512;
constexpr int64_t kMaxChunkPanels = 4;
// Tokens whose sums a thread keeps while it walks k; a multiple of every tile.
constexpr int64_t kBlockTokens = 240;
constexpr int64_t kChunksPerThread = 8;
constexpr int64_t kMaxFewPanels = 16;

int64_t chunk_panels(const LinearCall& call, int64_t panels, int64_t most) {
  return std::clamp<int64_t>(panels / (call.pool.num_threads() * kChunksPerThread), 1, most);
}

void multiply_few(const LinearCall& call, const F32Kernels::Format& kernel, const TokenTiles& tiles, const float* x) {
  const int64_t n = call.weight.n;
  const int64_t panels = num_panels(n);
  const PackedPanels packed = panels_of(call.weight);
  call.pool.parallel_for(panels, chunk_panels(call, panels, kMaxFewPanels), [&](const WorkRange& range) {
    constexpr int64_t kStride = kMaxFewPanels * kPanelLanes;
    alignas(64) float sums[kMaxFewTokens * kStride];
    const int64_t first = range.begin * kPanelLanes;
    const int64_t count = std::min(range.end * kPanelLanes, n) - first;
    for (int64_t i = 0; i < tiles.count; ++i) {
      const TokenTile& tokens = tiles.tiles[i];
      kernel.multiply_few[tokens.num_tokens](skip_panels(packed, range.begin), range.end - range.begin,
                                             x + tokens.first_token * call.weight.k, sums, kStride);
      for (int64_t t = 0; t < tokens.num_tokens; ++t) {
        store_outputs(call, tokens.first_token + t, first, count, sums + t * kStride);
      }
    }
  });
}

// x of a tile as [k][T]: out begins at the tile's first token times k.
void interleave(const LinearCall& call, const TokenTile& tokens, float* out) {
  const int64_t k = call.weight.k;
  for (int64_t t = 0; t < tokens.num_tokens; ++t) {
    const float* row = call.x.data<float>() + (tokens.first_token + t) * call.x.stride(0);
    for (int64_t i = 0; i < k; ++i) out[i * tokens.num_tokens + t] = row[i];
  }
}

void multiply_tiles(const LinearCall& call, const F32Kernels& kernels, const TokenTiles& tiles, const float* x) {
  const F32Kernels::Format& kernel = kernels.formats[static_cast<int>(call.weight.format)];
  const int64_t n = call.weight.n;
  const int64_t k = call.weight.k;
  const int64_t panels = num_panels(n);
  const PackedPanels packed = panels_of(call.weight);
  // Kernels like pairs.
  const int64_t grain = (chunk_panels(call, panels, kMaxChunkPanels) + 1) / 2 * 2;
  const int64_t stride = grain * kPanelLanes;
  const int64_t slice_floats = grain * kSliceK * kPanelLanes;
  const int64_t block_tokens = std::min<int64_t>(call.x.size(0), kBlockTokens);
  const int64_t floats_per_thread = slice_floats + block_tokens * stride;
  float* buffers = static_cast<float*>(
      call.scratch.take_bytes(call.pool.num_threads() * floats_per_thread * static_cast<int64_t>(sizeof(float))));
  call.pool.parallel_for(panels, grain, [&](const WorkRange& range) {
    float* slice = buffers + range.worker_index * floats_per_thread;
    float* sums = slice + slice_floats;
    const int64_t first_output = range.begin * kPanelLanes;
    const int64_t count = std::min(range.end * kPanelLanes, n) - first_output;
    for (int64_t tile_begin = 0; tile_begin < tiles.count;) {
      const int64_t first_token = tiles.tiles[tile_begin].first_token;
      int64_t tile_end = tile_begin;
      int64_t num_tokens = 0;
      while (tile_end < tiles.count && num_tokens + tiles.tiles[tile_end].num_tokens <= kBlockTokens) {
        num_tokens += tiles.tiles[tile_end++].num_tokens;
      }
      std::memset(sums, 0, static_cast<size_t>(num_tokens * stride) * sizeof(float));
      for (int64_t k_begin = 0; k_begin < k; k_begin += kSliceK) {
        const int64_t k_end = std::min(k_begin + kSliceK, k);
        for (int64_t p = range.begin; p < range.end; ++p) {
          kernel.dequantize(packed, p, k_begin, k_end, slice + (p - range.begin) * kSliceK * kPanelLanes);
        }
        for (int64_t i = tile_begin; i < tile_end; ++i) {
          const TokenTile& tokens = tiles.tiles[i];
          const float* tile_x = x + tokens.first_token * k + k_begin * tokens.num_tokens;
          float* tile_sums = sums + (tokens.first_token - first_token) * stride;
          constexpr int64_t kPanelStride = kSliceK * kPanelLanes;
          const auto multiply_pair = kernels.multiply_tile[1][tokens.num_tokens];
          int64_t p = 0;
          if (multiply_pair != nullptr) {
            for (; p + 2 <= range.end - range.begin; p += 2) {
              multiply_pair(slice + p * kPanelStride, kPanelStride, k_end - k_begin, tile_x,
                            tile_sums + p * kPanelLanes, stride);
            }
          }
          for (; p < range.end - range.begin; ++p) {
            kernels.multiply_tile[0][tokens.num_tokens](slice + p * kPanelStride, kPanelStride, k_end - k_begin, tile_x,
                                                        tile_sums + p * kPanelLanes, stride);
          }
        }
      }
      for (int64_t t = 0; t < num_tokens; ++t) {
        store_outputs(call, first_token + t, first_output, count, sums + t * stride);
      }
      tile_begin = tile_end;
    }
  });
}

}  // namespace

void run_linear_f32(const LinearCall& call, const F32Kernels& kernels) {
  const int64_t num_tokens = call.x.size(0);
  const F32Kernels::Format& kernel = kernels.formats[static_cast<int>(call.weight.format)];
  const bool is_few = num_tokens <= kFewTokens && kernel.multiply_few[1] != nullptr;
  ArenaScope scope(call.scratch);
  const TokenTiles tiles = is_few ? make_token_tiles(call.scratch, num_tokens, kernel.multiply_few)
                                  : make_token_tiles(call.scratch, num_tokens, kernels.multiply_tile[0]);
  const float* x = call.x.data<float>();
  if (num_tokens > 1) {
    float* tiled =
        static_cast<float*>(call.scratch.take_bytes(num_tokens * call.weight.k * static_cast<int64_t>(sizeof(float))));
    call.pool.parallel_for(tiles.count, 1, [&](const WorkRange& range) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        interleave(call, tiles.tiles[i], tiled + tiles.tiles[i].first_token * call.weight.k);
      }
    });
    x = tiled;
  }
  if (is_few) {
    multiply_few(call, kernel, tiles, x);
  } else {
    multiply_tiles(call, kernels, tiles, x);
  }
}

}  // namespace quire::cpu
