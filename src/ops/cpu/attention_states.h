// The softmax of attention: scores of a chunk become probabilities, running states (m, l, O) take up later ones, and
// the last state becomes the output. Included where kernels are instantiated.
#pragma once

#include "ops/cpu/attention_unit.h"
#include "ops/cpu/lane_math.h"

namespace quire::cpu {
namespace {

template <typename Products>
struct AttentionStates {
  using Lanes = typename Products::Lanes;
  using Vec = typename Lanes::Vec;
  using Math = LaneMath<Lanes>;
  using Unit = AttentionUnit;
  using Chunk = AttentionChunk;
  using State = AttentionState;
  static constexpr float kMinusInfinity = -__builtin_inff();

  static State state_at(float* memory, int num_rows) {
    const int64_t padded = padded_to_lanes(num_rows);
    return {memory, memory + padded, memory + 2 * padded};
  }

  static void reset(const State& state, int num_rows, int padded_dim) {
    for (int r = 0; r < num_rows; ++r) {
      state.largest[r] = kMinusInfinity;
      state.sum[r] = 0;
    }
    for (int64_t i = 0; i < int64_t{num_rows} * padded_dim; i += 16) Lanes::store(state.out + i, Lanes::set(0.0f));
  }

  // Scores of one row become probabilities relative to the row's largest score in this chunk; what the row does not see
  // becomes 0. Scores come in units of log2(e), except under a soft-cap.
  static void soften_row(const Unit& unit, const Chunk& chunk, int row) {
    constexpr float kLog2E = LaneMath<Lanes>::kLog2E;
    const float cap = unit.inputs.soft_cap;
    float* scores = unit.scores + int64_t{row} * kChunk;
    const int begin = static_cast<int>(larger(chunk.key_begin, unit.row_first_key(row) - chunk.first_position));
    const int end = static_cast<int>(smaller(chunk.key_end, unit.row_end_key(row) - chunk.first_position));
    Vec largest = Lanes::set(kMinusInfinity);
    for (int i = begin / 16 * 16; i < end; i += 16) {
      Vec score = Lanes::load(scores + i);
      if (cap > 0) score = Lanes::mul(Lanes::set(cap * kLog2E), Math::tanh(score));
      const bool is_part = i < begin || i + 16 > end;
      if (is_part) score = Lanes::keep_lanes(score, begin - i, end - i, kMinusInfinity);
      if (is_part || cap > 0) Lanes::store(scores + i, score);
      largest = Lanes::max(largest, score);
    }
    const float row_largest = Lanes::largest(largest);
    const Vec base = Lanes::set(row_largest);
    Vec sum = Lanes::set(0.0f);
    for (int i = begin / 16 * 16; i < end; i += 16) {
      Vec p = Products::exp2(Lanes::sub(Lanes::load(scores + i), base));
      if (i < begin || i + 16 > end) p = Lanes::keep_lanes(p, begin - i, end - i, 0.0f);
      sum = Lanes::add(sum, Products::keep_probabilities(scores, i, p));
    }
    const Vec zero = Lanes::set(0.0f);
    for (int i = chunk.key_begin / 16 * 16; i < begin / 16 * 16; i += 16) Products::keep_probabilities(scores, i, zero);
    for (int i = (end + 15) / 16 * 16; i < chunk.key_end; i += 16) Products::keep_probabilities(scores, i, zero);
    unit.chunk_largest[row] = row_largest;
    unit.chunk_sum[row] = Lanes::sum(sum);
  }

  // Merges a later (m, l) of sixteen rows into an earlier one; alpha and beta are what the earlier and the later O are
  // multiplied by.
  struct Merged {
    Vec largest;
    Vec sum;
    Vec alpha;
    Vec beta;
  };
  static Merged merge(const Vec& largest, const Vec& sum, const Vec& later_largest, const Vec& later_sum) {
    Merged merged;
    merged.largest = Lanes::max(largest, later_largest);
    merged.alpha = Math::exp2(Lanes::sub(largest, merged.largest));
    merged.beta = Math::exp2(Lanes::sub(later_largest, merged.largest));
    merged.sum = Lanes::fma(sum, merged.alpha, Lanes::mul(later_sum, merged.beta));
    return merged;
  }

  static void merge_sums(const Unit& unit, const Chunk& chunk) {
    for (int row = chunk.row_begin; row < chunk.row_end; row += 16) {
      const int count = chunk.row_end - row < 16 ? chunk.row_end - row : 16;
      const Merged merged =
          merge(Lanes::load(unit.state.largest + row, count), Lanes::load(unit.state.sum + row, count),
                Lanes::load(unit.chunk_largest + row, count), Lanes::load(unit.chunk_sum + row, count));
      Lanes::store(unit.state.largest + row, merged.largest, count);
      Lanes::store(unit.state.sum + row, merged.sum, count);
      Lanes::store(unit.alpha + row, merged.alpha, count);
      Lanes::store(unit.beta + row, merged.beta, count);
    }
  }

  // out = O / l; 0 where no key was seen.
  static void store_output(const AttentionInputs& inputs, const AttentionItem& item, const State& state) {
    const int head_dim = inputs.kv.head_dim;
    const int64_t padded_dim = padded_to_lanes(head_dim);
    const int num_rows = (item.token_end - item.token_begin) * inputs.group_size;
    for (int row = 0; row < num_rows; ++row) {
      const int64_t token = item.token_begin + row / inputs.group_size;
      const int64_t head = int64_t{item.kv_head} * inputs.group_size + row % inputs.group_size;
      float* out = inputs.out + token * inputs.out_token_stride + head * inputs.out_head_stride;
      const Vec sum = Lanes::set(state.sum[row] == 0.0f ? 1.0f : state.sum[row]);
      for (int d = 0; d < head_dim; d += 16) {
        const Vec quotient = Lanes::div(Lanes::load(state.out + row * padded_dim + d), sum);
        Lanes::store(out + d, quotient, head_dim - d < 16 ? head_dim - d : 16);
      }
    }
  }

  static void merge_state(const State& state, const State& later, int num_rows, int64_t padded_dim) {
    for (int row = 0; row < num_rows; row += 16) {
      const int count = num_rows - row < 16 ? num_rows - row : 16;
      float largest[16];
      float sum[16];
      float alpha[16];
      float beta[16];
      const Merged merged = merge(Lanes::load(state.largest + row, count), Lanes::load(state.sum + row, count),
                                  Lanes::load(later.largest + row, count), Lanes::load(later.sum + row, count));
      Lanes::store(largest, merged.largest);
      Lanes::store(sum, merged.sum);
      Lanes::store(alpha, merged.alpha);
      Lanes::store(beta, merged.beta);
      for (int r = 0; r < count; ++r) {
        if (later.sum[row + r] == 0.0f) continue;  // this row saw nothing of the later chunk
        state.largest[row + r] = largest[r];
        state.sum[row + r] = sum[r];
        float* out = state.out + (row + r) * padded_dim;
        const float* added = later.out + (row + r) * padded_dim;
        for (int64_t d = 0; d < padded_dim; d += 16) {
          const Vec scaled = Lanes::mul(Lanes::load(added + d), Lanes::set(beta[r]));
          Lanes::store(out + d, Lanes::fma(Lanes::load(out + d), Lanes::set(alpha[r]), scaled));
        }
      }
    }
  }

  static void merge_split(const AttentionMergeCall& call) {
    const AttentionInputs& inputs = call.inputs;
    const AttentionItem& first = call.items[0];
    const int num_rows = (first.token_end - first.token_begin) * inputs.group_size;
    const int64_t padded_dim = padded_to_lanes(inputs.kv.head_dim);
    const int64_t state_floats = attention_state_floats(num_rows, inputs.kv.head_dim);
    const State state = state_at(inputs.partials + first.partial_offset, num_rows);
    for (int i = 1; i < call.num_items; ++i) {
      float* later = inputs.partials + call.items[i].partial_offset;
      for (int chunk = call.items[i].chunk_begin; chunk < call.items[i].chunk_end; ++chunk) {
        merge_state(state, state_at(later, num_rows), num_rows, padded_dim);
        later += state_floats;
      }
    }
    store_output(inputs, first, state);
  }
};

}  // namespace
}  // namespace quire::cpu
