// The driver of products with 8-bit activations. A few tokens: panels are shared by the threads, which multiply packed
// weights. More: chunks of panels are shared; a thread unpacks its chunk once and multiplies it with every tile of
// tokens. Before either, tokens are quantized, a tile each by all threads.
#include <algorithm>

#include "base/check.h"
#include "ops/cpu/linear_drivers.h"
#include "quant/packing.h"

namespace quire::cpu {

namespace {

// Unpacked codes and scales of a thread's chunk stay in its second-level cache.
constexpr int64_t kMaxChunkBytes = 512 << 10;
constexpr int64_t kMaxChunkPanels = 8;
// Pieces a thread: enough that one which lost its processor for a while leaves little to wait for.
constexpr int64_t kChunksPerThread = 8;
// Outputs that a kernel of packed weights writes before they are stored: they stay in the first-level cache, and the
// panels in the second, for the next tile.
constexpr int64_t kMaxFewPanels = 16;

int64_t chunk_panels(const LinearCall& call, int64_t panels, int64_t most) {
  return std::clamp<int64_t>(panels / (call.pool.num_threads() * kChunksPerThread), 1, most);
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

void multiply_few(const LinearCall& call, const Int8Kernels::Format& kernel, const TokenTiles& tiles,
                  const Activations& activations) {
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
                                             activations.tile(tokens), sums, kStride);
      for (int64_t t = 0; t < tokens.num_tokens; ++t) {
        store_outputs(call, tokens.first_token + t, first, count, sums + t * kStride);
      }
    }
  });
}

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
  const int64_t most = std::clamp<int64_t>(kMaxChunkBytes / unpacked_bytes / 2 * 2, 2, kMaxChunkPanels);
  // Kernels like pairs.
  const int64_t grain = std::min(most, (chunk_panels(call, panels, most) + 1) / 2 * 2);
  uint8_t* buffers = static_cast<uint8_t*>(call.scratch.take_bytes(call.pool.num_threads() * grain * unpacked_bytes));
  call.pool.parallel_for(panels, grain, [&](const WorkRange& range) {
    uint8_t* buffer = buffers + range.worker_index * grain * unpacked_bytes;
    const int64_t num_chunk_panels = range.end - range.begin;
    UnpackedPanel unpacked[kMaxChunkPanels];
    for (int64_t p = 0; p < num_chunk_panels; ++p) {
      uint8_t* codes = buffer + p * unpacked_bytes;
      float* scales = reinterpret_cast<float*>(codes + codes_bytes);
      unpacked[p] = {codes, scales, format.has_min() ? scales + scales_count : nullptr};
      kernel.unpack(packed, range.begin + p, unpacked[p]);
    }
    alignas(64) float sums[kMaxTileTokens * kMaxChunkPanels * kPanelLanes];
    constexpr int64_t kStride = kMaxChunkPanels * kPanelLanes;
    const int64_t first = range.begin * kPanelLanes;
    const int64_t count = std::min(range.end * kPanelLanes, n) - first;
    for (int64_t i = 0; i < tiles.count; ++i) {
      const TokenTile& tokens = tiles.tiles[i];
      const Int8Tile x = activations.tile(tokens);
      const auto multiply_pair = kernel.multiply_tile[1][tokens.num_tokens];
      int64_t p = 0;
      if (multiply_pair != nullptr) {
        for (; p + 2 <= num_chunk_panels; p += 2) multiply_pair(unpacked + p, k, x, sums + p * kPanelLanes, kStride);
      }
      for (; p < num_chunk_panels; ++p) {
        kernel.multiply_tile[0][tokens.num_tokens](unpacked + p, k, x, sums + p * kPanelLanes, kStride);
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
  // Half bytes are unpacked so quickly that multiplying them packed is best for any number of tokens (EPYC Zen 4, q4_1,
  // 1536 x 576: 16 tokens 284 GOP/s packed, 512 tokens 252 unpacked).
  const bool is_few = (num_tokens <= kFewTokens || format.code_bits == 4) && kernel.multiply_few[1] != nullptr;
  const TokenTiles tiles = is_few ? make_token_tiles(call.scratch, num_tokens, kernel.multiply_few)
                                  : make_token_tiles(call.scratch, num_tokens, kernel.multiply_tile[0]);
  call.pool.parallel_for(tiles.count, 1, [&](const WorkRange& range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const TokenTile& tokens = tiles.tiles[i];
      kernels.quantize(x + tokens.first_token * call.x.stride(0), call.x.stride(0), tokens.num_tokens, k,
                       format.group_size, format.offset, activations.tile(tokens));
    }
  });
  if (is_few) {
    multiply_few(call, kernel, tiles, activations);
  } else {
    multiply_tiles(call, kernel, tiles, activations);
  }
}

}  // namespace quire::cpu
