// The driver of products with pairs of bf16: activations, normed where the call says so, are rounded and laid out in
// tiles of tokens, and packed panels are multiplied as they are, for any number of tokens: one at a time where reading
// them is what takes time, two where multiplying is.
#include "ops/cpu/linear_drivers.h"

namespace quire::cpu {

namespace {

// From here on tiles are many enough to be taken with all panels of a piece in turn.
constexpr int64_t kManyTokens = 200;

int64_t row_pairs(int64_t k) {
  return (k + 2 * kPairsPerBlock - 1) / (2 * kPairsPerBlock) * kPairsPerBlock;
}

// x as tiles, a tile at its first token times the pairs of a row.
uint32_t* lay_out(const LinearCall& call, const BF16Kernels& kernels, const TokenTiles& tiles) {
  const int64_t k = call.weight.k;
  uint32_t* tiled = static_cast<uint32_t*>(
      call.scratch.take_bytes(call.x.size(0) * row_pairs(k) * static_cast<int64_t>(sizeof(uint32_t))));
  const InputRows rows(call, tiles.largest());
  call.pool.parallel_for(tiles.count, 1, [&](const WorkRange& range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const TokenTile& tokens = tiles.tiles[i];
      const InputRows::Rows x = rows.read(tokens.first_token, tokens.num_tokens, range.worker_index);
      uint32_t* out = tiled + tokens.first_token * row_pairs(k);
      for (int64_t t = 0; t < tokens.num_tokens; ++t) {
        kernels.round_row(x.data + t * x.stride, k, out + t * kPairsPerBlock, tokens.num_tokens * kPairsPerBlock);
      }
    }
  });
  return tiled;
}

}  // namespace

void run_linear_bf16(const LinearCall& call, const BF16Kernels& kernels) {
  ArenaScope scope(call.scratch);
  const int64_t num_tokens = call.x.size(0);
  const bool is_many = num_tokens >= kManyTokens;
  const TokenTiles tiles = is_many ? make_token_tiles(call.scratch, num_tokens, kernels.multiply_two)
                                   : make_token_tiles(call.scratch, num_tokens, kernels.multiply);
  const uint32_t* x = lay_out(call, kernels, tiles);
  const Outputs outputs(call, kernels.finish);
  multiply_packed(
      call, tiles, outputs, is_many ? 2 : 1,
      [&](const PackedPanels& panel, int64_t count, const TokenTile& tokens, float* out, int64_t out_stride) {
        const auto multiply =
            count == 2 ? kernels.multiply_two[tokens.num_tokens] : kernels.multiply[tokens.num_tokens];
        multiply(panel, x + tokens.first_token * row_pairs(call.weight.k), out, out_stride);
      });
}

}  // namespace quire::cpu
