// The driver of products with 8-bit activations. One token: quantized by the caller, then panels are shared by the
// threads. More: tiles of tokens are quantized by all threads, then chunks of panels are shared; a thread unpacks its
// chunk once and multiplies it with every tile.
#include <algorithm>

#include "base/check.h"
#include "ops/cpu/linear_drivers.h"
#include "quant/packing.h"

namespace quire::cpu {

namespace {

// Unpacked codes and scales of a thread's chunk stay in its second-level cache.
constexpr int64_t kMaxChunkBytes = 256 << 10;
constexpr int64_t kMaxChunkPanels = 8;
// Pieces a thread: enough that one which lost its processor for a while leaves little to wait for.
constexpr int64_t kChunksPerThread = 8;
// Outputs that a vector kernel writes before they are stored: they stay in the first-level cache.
constexpr int64_t kMaxVectorPanels = 32;

int64_t chunk_panels(const LinearCall& call, int64_t panels, int64_t most) {
  return std::clamp<int64_t>(panels / (call.pool.num_threads() * kChunksPerThread), 1, most);
}

void multiply_vector(const LinearCall& call, const Int8Kernels::Format& kernel, const Int8Tile& x) {
  const int64_t n = call.weight.n;
  const int64_t panels = num_panels(n);
  const PackedPanels packed = panels_of(call.weight);
  const int64_t grain = chunk_panels(call, panels, kMaxVectorPanels);
  call.pool.parallel_for(panels, grain, [&](const WorkRange& range) {
    alignas(64) float sums[kMaxVectorPanels * kPanelLanes];
    kernel.multiply_vector(skip_panels(packed, range.begin), range.end - range.begin, x, sums);
    const int64_t first = range.begin * kPanelLanes;
    store_outputs(call, 0, first, std::min(range.end * kPanelLanes, n) - first, sums);
  });
}

struct Activations {
  Int8Tile base;  // of the first tile; a tile's arrays begin at its first token times their length for one token
  int64_t k;
  int64_t num_groups;

  Int8Tile tile(const TokenTile& tokens) const {
    const int64_t t = tokens.first_token;
    return {base.codes + t * k, base.scales + t * (k / kTileK), base.biases + t * num_groups,
            base.sums + t * num_groups};
  }
};

void multiply_tiles(const LinearCall& call, const Int8Kernels::Format& kernel, const TokenTiles& tiles,
                    const Activations& activations) {
  const PanelFormat format = panel_format(call.weight.format);
  const int64_t n = call.weight.n;
  const int64_t k = call.weight.k;
  const int64_t panels = num_panels(n);
  const PackedPanels packed = panels_of(call.weight);
  const int64_t codes_bytes = k * kPanelLanes;
  const int64_t scales_count = activations.num_groups * kPanelLanes;
  const int64_t unpacked_bytes = codes_bytes + 2 * scales_count * static_cast<int64_t>(sizeof(float));
  const int64_t most = std::clamp<int64_t>(kMaxChunkBytes / unpacked_bytes, 1, kMaxChunkPanels);
  const int64_t grain = chunk_panels(call, panels, most);
  uint8_t* buffers = static_cast<uint8_t*>(call.scratch.take_bytes(call.pool.num_threads() * grain * unpacked_bytes));
  call.pool.parallel_for(panels, grain, [&](const WorkRange& range) {
    uint8_t* buffer = buffers + range.worker_index * grain * unpacked_bytes;
    const auto unpacked = [&](int64_t p) {
      uint8_t* codes = buffer + (p - range.begin) * unpacked_bytes;
      float* scales = reinterpret_cast<float*>(codes + codes_bytes);
      return UnpackedPanel{codes, scales, format.has_min() ? scales + scales_count : nullptr};
    };
    for (int64_t p = range.begin; p < range.end; ++p) kernel.unpack(packed, p, unpacked(p));
    alignas(64) float sums[kMaxTileTokens * kMaxChunkPanels * kPanelLanes];
    constexpr int64_t kStride = kMaxChunkPanels * kPanelLanes;
    const int64_t first = range.begin * kPanelLanes;
    const int64_t count = std::min(range.end * kPanelLanes, n) - first;
    for (int64_t i = 0; i < tiles.count; ++i) {
      const TokenTile& tokens = tiles.tiles[i];
      const Int8Tile x = activations.tile(tokens);
      for (int64_t p = range.begin; p < range.end; ++p) {
        kernel.multiply_tile[tokens.num_tokens](unpacked(p), k, x, sums + (p - range.begin) * kPanelLanes, kStride);
      }
      for (int64_t t = 0; t < tokens.num_tokens; ++t) {
        store_outputs(call, tokens.first_token + t, first, count, sums + t * kStride);
      }
    }
  });
}

}  // namespace

void run_linear_int8(const LinearCall& call, const Int8Kernels& kernels) {
  const Weight& weight = call.weight;
  const Int8Kernels::Format& kernel = kernels.formats[static_cast<int>(weight.format)];
  const PanelFormat format = panel_format(weight.format);
  const int64_t num_tokens = call.x.size(0);
  const int64_t k = weight.k;
  ArenaScope scope(call.scratch);
  Activations activations{{}, k, k / format.group_size};
  activations.base.codes = static_cast<int8_t*>(call.scratch.take_bytes(num_tokens * k));
  const auto take_words = [&](int64_t count) { return call.scratch.take_bytes(num_tokens * count * 4); };
  activations.base.scales = static_cast<float*>(take_words(k / kTileK));
  activations.base.biases = static_cast<int32_t*>(take_words(activations.num_groups));
  activations.base.sums = static_cast<float*>(take_words(activations.num_groups));
  const float* x = call.x.data<float>();
  if (num_tokens == 1) {
    kernels.quantize(x, k, 1, k, format.group_size, format.offset, activations.base);
    multiply_vector(call, kernel, activations.base);
    return;
  }
  const TokenTiles tiles = make_token_tiles(call.scratch, num_tokens, kernel.multiply_tile);
  call.pool.parallel_for(tiles.count, 1, [&](const WorkRange& range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const TokenTile& tokens = tiles.tiles[i];
      kernels.quantize(x + tokens.first_token * call.x.stride(0), call.x.stride(0), tokens.num_tokens, k,
                       format.group_size, format.offset, activations.tile(tokens));
    }
  });
  multiply_tiles(call, kernel, tiles, activations);
}

}  // namespace quire::cpu
