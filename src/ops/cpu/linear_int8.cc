// The driver of products with 8-bit activations: pieces of some panels are shared by the threads, and each is
// multiplied with every tile of tokens while it lies in the cache. Kernels read packed weights, or, where unpacking is
// dear, a panel that the thread has unpacked once. Before either, tokens are normed where the call says so and
// quantized, a tile each by all threads.
#include <algorithm>

#include "base/check.h"
#include "ops/cpu/linear_drivers.h"
#include "quant/packing.h"

namespace quire::cpu {

namespace {

// Where a format has kernels of both kinds: up to so many tokens are multiplied with packed weights.
constexpr int64_t kFewTokens = 32;
// From here on two packed panels are taken at once, where there are kernels for it.
constexpr int64_t kManyTokens = 100;
// Of a piece of work, where they are unpacked.
constexpr int64_t kMaxUnpackedPanels = 16;

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

Activations quantize(const LinearCall& call, const Int8Kernels& kernels, const TokenTiles& tiles) {
  const PanelFormat format = panel_format(call.weight.format);
  const int64_t num_tokens = call.x.size(0);
  const int64_t k = call.weight.k;
  Activations activations{{}, k, k / format.group_size};
  activations.base.codes = static_cast<int8_t*>(call.scratch.take_bytes(num_tokens * k));
  const auto take_words = [&](int64_t count) { return call.scratch.take_bytes(num_tokens * count * 4); };
  activations.base.scales = static_cast<float*>(take_words(k / kTileK));
  activations.base.biases = static_cast<int32_t*>(take_words(activations.num_groups));
  activations.base.sums = static_cast<float*>(take_words(activations.num_groups));
  const InputRows rows(call, tiles.largest());
  call.pool.parallel_for(tiles.count, 1, [&](const WorkRange& range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const TokenTile& tokens = tiles.tiles[i];
      const InputRows::Rows x = rows.read(tokens.first_token, tokens.num_tokens, range.worker_index);
      kernels.quantize(x.data, x.stride, tokens.num_tokens, k, format.group_size, format.offset,
                       activations.tile(tokens));
    }
  });
  return activations;
}

void multiply_unpacked(const LinearCall& call, const Int8Kernels::Format& kernel, const TokenTiles& tiles,
                       const Activations& activations, const Outputs& outputs) {
  const PanelFormat format = panel_format(call.weight.format);
  const int64_t k = call.weight.k;
  const PackedPanels packed = panels_of(call.weight);
  const int64_t codes_bytes = k * kPanelLanes;
  const int64_t scales_count = activations.num_groups * kPanelLanes;
  const int64_t panel_bytes = codes_bytes + 2 * scales_count * static_cast<int64_t>(sizeof(float));
  const int num_parts = outputs.num_parts();
  uint8_t* buffers = static_cast<uint8_t*>(call.scratch.take_bytes(call.pool.num_threads() * num_parts * panel_bytes));
  const int64_t grain = chunk_panels(call, outputs.num_panels(), kMaxUnpackedPanels);
  call.pool.parallel_for(outputs.num_panels(), grain, [&](const WorkRange& range) {
    alignas(64) float sums[2][kMaxTileTokens * kPanelLanes];
    for (int64_t p = range.begin; p < range.end; ++p) {
      UnpackedPanel unpacked[2];
      for (int part = 0; part < num_parts; ++part) {
        uint8_t* codes = buffers + (range.worker_index * num_parts + part) * panel_bytes;
        float* scales = reinterpret_cast<float*>(codes + codes_bytes);
        unpacked[part] = {codes, scales, format.has_min() ? scales + scales_count : nullptr};
        kernel.unpack(skip_panels(packed, outputs.weight_panel(p, part)), unpacked[part]);
      }
      for (int64_t i = 0; i < tiles.count; ++i) {
        const TokenTile& tokens = tiles.tiles[i];
        const Int8Tile x = activations.tile(tokens);
        const auto multiply = kernel.multiply_tile[tokens.num_tokens];
        if (float* y = outputs.direct(tokens.first_token, p, p + 1)) {
          multiply(unpacked[0], k, x, y, outputs.y_stride());
          continue;
        }
        for (int part = 0; part < num_parts; ++part) multiply(unpacked[part], k, x, sums[part], kPanelLanes);
        outputs.finish(tokens.first_token, tokens.num_tokens, p, p + 1, sums[0], sums[1], kPanelLanes);
      }
    }
  });
}

}  // namespace

void run_linear_int8(const LinearCall& call, const Int8Kernels& kernels) {
  const Int8Kernels::Format& kernel = kernels.formats[static_cast<int>(call.weight.format)];
  const int64_t num_tokens = call.x.size(0);
  ArenaScope scope(call.scratch);
  // Half bytes are unpacked so quickly that multiplying them packed is best for any number of tokens.
  const bool is_packed_best = num_tokens <= kFewTokens || panel_format(call.weight.format).code_bits == 4;
  const bool is_packed = kernel.multiply_tile[1] == nullptr || (is_packed_best && kernel.multiply_few[1] != nullptr);
  const bool takes_two = is_packed && kernel.multiply_two[1] != nullptr && num_tokens >= kManyTokens;
  const TokenTiles tiles = takes_two   ? make_token_tiles(call.scratch, num_tokens, kernel.multiply_two)
                           : is_packed ? make_token_tiles(call.scratch, num_tokens, kernel.multiply_few)
                                       : make_token_tiles(call.scratch, num_tokens, kernel.multiply_tile);
  const Activations activations = quantize(call, kernels, tiles);
  const Outputs outputs(call, kernels.finish);
  if (is_packed) {
    multiply_packed(
        call, tiles, outputs, takes_two ? 2 : 1,
        [&](const PackedPanels& panel, int64_t count, const TokenTile& tokens, float* out, int64_t out_stride) {
          const auto multiply =
              count == 2 ? kernel.multiply_two[tokens.num_tokens] : kernel.multiply_few[tokens.num_tokens];
          multiply(panel, activations.tile(tokens), out, out_stride);
        });
  } else {
    multiply_unpacked(call, kernel, tiles, activations, outputs);
  }
}

}  // namespace quire::cpu
