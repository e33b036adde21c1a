// The driver of products with float activations. One token: panels are shared by the threads, weights become floats in
// registers. More: activations are laid out in tiles, then chunks of panels are shared; for a block of tokens a thread
// makes a slice of its chunk's weights floats once and multiplies it with every tile.
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
constexpr int64_t kMaxVectorPanels = 32;

int64_t chunk_panels(const LinearCall& call, int64_t panels, int64_t most) {
  return std::clamp<int64_t>(panels / (call.pool.num_threads() * kChunksPerThread), 1, most);
}

void multiply_vector(const LinearCall& call, const F32Kernels::Format& kernel) {
  const int64_t n = call.weight.n;
  const int64_t panels = num_panels(n);
  const PackedPanels packed = panels_of(call.weight);
  const float* x = call.x.data<float>();
  call.pool.parallel_for(panels, chunk_panels(call, panels, kMaxVectorPanels), [&](const WorkRange& range) {
    alignas(64) float sums[kMaxVectorPanels * kPanelLanes];
    kernel.multiply_vector(skip_panels(packed, range.begin), range.end - range.begin, x, sums);
    const int64_t first = range.begin * kPanelLanes;
    store_outputs(call, 0, first, std::min(range.end * kPanelLanes, n) - first, sums);
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
  const int64_t grain = chunk_panels(call, panels, kMaxChunkPanels);
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
          for (int64_t p = 0; p < range.end - range.begin; ++p) {
            kernels.multiply_tile[tokens.num_tokens](
                slice + p * kSliceK * kPanelLanes, k_end - k_begin, tile_x,
                sums + (tokens.first_token - first_token) * stride + p * kPanelLanes, stride);
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
  if (num_tokens == 1) {
    multiply_vector(call, kernels.formats[static_cast<int>(call.weight.format)]);
    return;
  }
  ArenaScope scope(call.scratch);
  const TokenTiles tiles = make_token_tiles(call.scratch, num_tokens, kernels.multiply_tile);
  float* x =
      static_cast<float*>(call.scratch.take_bytes(num_tokens * call.weight.k * static_cast<int64_t>(sizeof(float))));
  call.pool.parallel_for(tiles.count, 1, [&](const WorkRange& range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      interleave(call, tiles.tiles[i], x + tiles.tiles[i].first_token * call.weight.k);
    }
  });
  multiply_tiles(call, kernels, tiles, x);
}

}  // namespace quire::cpu
