// The driver of products with 8-bit activations: pieces of some panels are shared by the threads, and each is
// multiplied with every tile of tokens while it lies in the cache. Kernels read packed weights, or, where unpacking is
// dear, a panel that the thread has unpacked once. Before either, tokens are normed where the call says so and
// quantized, a tile each by all threads.
#include <algorithm>
#include <iterator>
#include <type_traits>

#include "base/check.h"
#include "ops/cpu/linear_drivers.h"
#include "quant/format.h"
#include "quant/packing.h"

namespace quire::cpu {

namespace {

static_assert(std::size(kQuantFormats) <= std::extent_v<decltype(Int8Kernels::formats)>, "kernels are found by format");

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

// A thread's memory for the panels that it unpacks at once: `max_panels` neighbours of the gate and of up.
class UnpackedMemory {
 public:
  UnpackedMemory(const LinearCall& call, const Int8Kernels::Format& kernel, int64_t max_panels, int num_parts)
      : unpack_(kernel.unpack),
        reads_packed_codes_(kernel.reads_packed_codes),
        packed_(panels_of(call.weight)),
        has_min_(panel_format(call.weight.format).has_min()),
        codes_bytes_(reads_packed_codes_ ? 0 : call.weight.k * kPanelLanes),
        scales_count_(call.weight.k / panel_format(call.weight.format).group_size * kPanelLanes),
        part_bytes_(max_panels * (codes_bytes_ + 2 * scales_count_ * static_cast<int64_t>(sizeof(float)))),
        num_parts_(num_parts),
        max_panels_(max_panels),
        data_(static_cast<uint8_t*>(call.scratch.take_bytes(call.pool.num_threads() * num_parts * part_bytes_))) {}

  // Panels [first, first + count) of the weight.
  UnpackedPanels unpack(int64_t first, int64_t count, int part, int worker_index) const {
    const PackedPanels packed = skip_panels(packed_, first);
    uint8_t* codes = data_ + (worker_index * num_parts_ + part) * part_bytes_;
    float* scales = reinterpret_cast<float*>(codes + max_panels_ * codes_bytes_);
    float* mins = has_min_ ? scales + max_panels_ * scales_count_ : nullptr;
    for (int64_t i = 0; i < count; ++i) {
      unpack_(skip_panels(packed, i), codes + i * codes_bytes_, scales + i * scales_count_,
              has_min_ ? mins + i * scales_count_ : nullptr);
    }
    if (reads_packed_codes_) return {packed.codes, packed.codes_stride, scales, mins, scales_count_};
    return {codes, codes_bytes_, scales, mins, scales_count_};
  }

 private:
  void (*unpack_)(const PackedPanels& panel, uint8_t* codes, float* scales, float* mins);
  bool reads_packed_codes_;
  PackedPanels packed_;
  bool has_min_;
  int64_t codes_bytes_;   // of a panel
  int64_t scales_count_;  // of a panel
  int64_t part_bytes_;
  int num_parts_;
  int64_t max_panels_;
  uint8_t* data_;
};

// Panels, two at once where there are kernels for it, are unpacked and multiplied with every tile of tokens.
void multiply_unpacked(const LinearCall& call, const Int8Kernels::Format& kernel, const TokenTiles& tiles,
                       const Activations& activations, const Outputs& outputs) {
  const int64_t k = call.weight.k;
  const int64_t max_panels = kernel.multiply_tile[1][1] != nullptr ? 2 : 1;
  const int num_parts = outputs.num_parts();
  const UnpackedMemory memory(call, kernel, max_panels, num_parts);
  const int64_t chunk = chunk_panels(call, outputs.num_panels(), kMaxUnpackedPanels);
  const int64_t grain = (chunk + max_panels - 1) / max_panels * max_panels;
  call.pool.parallel_for(outputs.num_panels(), grain, [&](const WorkRange& range) {
    alignas(64) float sums[2][kMaxTilePanels * kMaxTileTokens * kPanelLanes];
    for (int64_t p = range.begin; p < range.end; p += max_panels) {
      const int64_t count = std::min(max_panels, range.end - p);
      const int64_t stride = count * kPanelLanes;
      UnpackedPanels unpacked[2];
      for (int part = 0; part < num_parts; ++part) {
        unpacked[part] = memory.unpack(outputs.weight_panel(p, part), count, part, range.worker_index);
      }
      for (int64_t i = 0; i < tiles.count; ++i) {
        const TokenTile& tokens = tiles.tiles[i];
        const Int8Tile x = activations.tile(tokens);
        const auto multiply = kernel.multiply_tile[count - 1][tokens.num_tokens];
        if (float* y = outputs.direct(tokens.first_token, p, p + count)) {
          multiply(unpacked[0], k, x, y, outputs.y_stride());
          continue;
        }
        for (int part = 0; part < num_parts; ++part) multiply(unpacked[part], k, x, sums[part], stride);
        outputs.finish(tokens.first_token, tokens.num_tokens, p, p + count, sums[0], sums[1], stride);
      }
    }
  });
}

}  // namespace

void run_linear_int8(const LinearCall& call, const Int8Kernels& kernels) {
  const Int8Kernels::Format& kernel = kernels.formats[static_cast<int>(call.weight.format)];
  const int64_t num_tokens = call.x.size(0);
  ArenaScope scope(call.scratch);
  const bool is_packed = kernel.multiply_few[1] != nullptr &&
                         (num_tokens < kernel.min_unpacked_tokens || call.weight.k < kernel.min_unpacked_k);
  const TokenTiles tiles = is_packed ? make_token_tiles(call.scratch, num_tokens, kernel.multiply_few)
                                     : make_token_tiles(call.scratch, num_tokens, kernel.multiply_tile[0]);
  const Activations activations = quantize(call, kernels, tiles);
  const Outputs outputs(call, kernels.finish);
  if (!is_packed) {
    multiply_unpacked(call, kernel, tiles, activations, outputs);
    return;
  }
  multiply_packed(call, tiles, outputs, 1,
                  [&](const PackedPanels& panel, int64_t, const TokenTile& tokens, float* out, int64_t out_stride) {
                    kernel.multiply_few[tokens.num_tokens](panel, activations.tile(tokens), out, out_stride);
                  });
}

}  // namespace quire::cpu
