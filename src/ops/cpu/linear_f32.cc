// The driver of products with float activations, and of those in the order "bf16_pairs" where no instruction multiplies
// pairs: there x is rounded, and of each pair the second k comes first. Where that is quick weights become floats in
// registers. Otherwise pieces of several panels are shared; for a block of tokens a thread makes a slice of its piece's
// weights floats once and multiplies it with every tile of tokens. Before either, activations are normed where the call
// says so and laid out in tiles.
#include <algorithm>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "ops/cpu/flush_subnormals.h"
#include "ops/cpu/linear_drivers.h"
#include "quant/packing.h"

namespace quire::cpu {

namespace {

// 32 KiB of floats a panel; a multiple of every format's block.
constexpr int64_t kSliceK = 512;
constexpr int64_t kPanelSlice = kSliceK * kPanelLanes;
// Panels of a slice, of all parts of the outputs: even, since kernels like pairs.
constexpr int64_t kMaxSlicePanels = 4;
// Tokens whose sums a thread keeps while it walks k; a multiple of every tile.
constexpr int64_t kBlockTokens = 240;
// Up to so many tokens are multiplied with packed weights, where a format has kernels for that; any number of them with
// kernels that take so many at once, for which becoming a float costs a weight little.
constexpr int64_t kFewTokens = 32;
constexpr int64_t kManyTileTokens = 24;

enum class Order : uint8_t { kAscending, kBF16Pairs };

// How floats are multiplied while one lives. Finishing, which follows, knows subnormals in either order.
class ProductMode {
 public:
  explicit ProductMode(Order order) {
    if (order == Order::kBF16Pairs) flush_.emplace();
  }

 private:
  std::optional<FlushSubnormals> flush_;
};

// x as tiles of [k][T], a tile at its first token times k.
float* lay_out(const LinearCall& call, const F32Kernels& kernels, Order order, const TokenTiles& tiles) {
  const int64_t k = call.weight.k;
  const auto take_floats = [&](int64_t count) {
    return static_cast<float*>(call.scratch.take_bytes(count * static_cast<int64_t>(sizeof(float))));
  };
  float* tiled = take_floats(call.x.size(0) * k);
  float* rounded = order == Order::kBF16Pairs ? take_floats(call.pool.num_threads() * k) : nullptr;
  const InputRows rows(call, tiles.largest());
  call.pool.parallel_for(tiles.count, 1, [&](const WorkRange& range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const TokenTile& tokens = tiles.tiles[i];
      const InputRows::Rows x = rows.read(tokens.first_token, tokens.num_tokens, range.worker_index);
      float* out = tiled + tokens.first_token * k;
      for (int64_t t = 0; t < tokens.num_tokens; ++t) {
        const float* row = x.data + t * x.stride;
        if (order == Order::kAscending) {
          for (int64_t j = 0; j < k; ++j) out[j * tokens.num_tokens + t] = row[j];
          continue;
        }
        float* pairs = rounded + range.worker_index * k;
        kernels.round_to_bf16(row, k, pairs);
        for (int64_t j = 0; j < k; ++j) {
          const int64_t source = (j ^ 1) < k ? j ^ 1 : j;
          out[j * tokens.num_tokens + t] = pairs[source];
        }
      }
    }
  });
  return tiled;
}

void multiply_tiles(const LinearCall& call, const F32Kernels& kernels, const F32Kernels::Format& kernel, Order order,
                    const TokenTiles& tiles, const float* x, const Outputs& outputs) {
  const int64_t k = call.weight.k;
  const PackedPanels packed = panels_of(call.weight);
  const int num_parts = outputs.num_parts();
  const int64_t most = kMaxSlicePanels / num_parts;
  const int64_t grain = std::min(most, (chunk_panels(call, outputs.num_panels(), most) + 1) / 2 * 2);
  // Of all parts, one beside the other.
  const int64_t stride = num_parts * grain * kPanelLanes;
  const int64_t slice_floats = num_parts * grain * kPanelSlice;
  const int64_t block_tokens = std::min<int64_t>(call.x.size(0), kBlockTokens);
  const int64_t floats_per_thread = slice_floats + block_tokens * stride;
  float* buffers = static_cast<float*>(
      call.scratch.take_bytes(call.pool.num_threads() * floats_per_thread * static_cast<int64_t>(sizeof(float))));
  call.pool.parallel_for(outputs.num_panels(), grain, [&](const WorkRange& range) {
    float* slice = buffers + range.worker_index * floats_per_thread;
    float* sums = slice + slice_floats;
    const int64_t panels_per_part = range.end - range.begin;
    const int64_t num_panels = num_parts * panels_per_part;
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
        for (int64_t p = 0; p < num_panels; ++p) {
          const int part = static_cast<int>(p / panels_per_part);
          kernel.dequantize(packed, outputs.weight_panel(range.begin + p % panels_per_part, part), k_begin, k_end,
                            slice + p * kPanelSlice);
        }
        const ProductMode mode(order);
        for (int64_t i = tile_begin; i < tile_end; ++i) {
          const TokenTile& tokens = tiles.tiles[i];
          const float* tile_x = x + tokens.first_token * k + k_begin * tokens.num_tokens;
          float* tile_sums = sums + (tokens.first_token - first_token) * stride;
          const auto multiply_pair = kernels.multiply_tile[1][tokens.num_tokens];
          int64_t p = 0;
          if (multiply_pair != nullptr) {
            for (; p + 2 <= num_panels; p += 2) {
              multiply_pair(slice + p * kPanelSlice, kPanelSlice, k_end - k_begin, tile_x, tile_sums + p * kPanelLanes,
                            stride);
            }
          }
          for (; p < num_panels; ++p) {
            kernels.multiply_tile[0][tokens.num_tokens](slice + p * kPanelSlice, kPanelSlice, k_end - k_begin, tile_x,
                                                        tile_sums + p * kPanelLanes, stride);
          }
        }
      }
      outputs.finish(first_token, num_tokens, range.begin, range.end, sums, sums + panels_per_part * kPanelLanes,
                     stride);
      tile_begin = tile_end;
    }
  });
}

void run(const LinearCall& call, const F32Kernels& kernels, Order order) {
  const int64_t num_tokens = call.x.size(0);
  const F32Kernels::Format& kernel =
      order == Order::kBF16Pairs ? kernels.bf16_pairs : kernels.formats[static_cast<int>(call.weight.format)];
  const bool is_few = kernel.multiply_few[1] != nullptr &&
                      (num_tokens <= kFewTokens || kernel.multiply_few[kManyTileTokens] != nullptr);
  ArenaScope scope(call.scratch);
  const TokenTiles tiles = is_few ? make_token_tiles(call.scratch, num_tokens, kernel.multiply_few)
                                  : make_token_tiles(call.scratch, num_tokens, kernels.multiply_tile[0]);
  const bool is_as_it_is = order == Order::kAscending && num_tokens == 1 && !call.norm.weight.is_given();
  const float* x = is_as_it_is ? call.x.data<float>() : lay_out(call, kernels, order, tiles);
  const Outputs outputs(call, kernels.finish);
  if (is_few) {
    multiply_packed(call, tiles, outputs, 1,
                    [&](const PackedPanels& panel, int64_t, const TokenTile& tokens, float* out, int64_t out_stride) {
                      const ProductMode mode(order);
                      kernel.multiply_few[tokens.num_tokens](panel, x + tokens.first_token * call.weight.k, out,
                                                             out_stride);
                    });
  } else {
    multiply_tiles(call, kernels, kernel, order, tiles, x, outputs);
  }
}

}  // namespace

void run_linear_f32(const LinearCall& call, const F32Kernels& kernels) {
  run(call, kernels, Order::kAscending);
}

void run_linear_bf16_emulated(const LinearCall& call, const F32Kernels& kernels) {
  run(call, kernels, Order::kBF16Pairs);
}

}  // namespace quire::cpu
