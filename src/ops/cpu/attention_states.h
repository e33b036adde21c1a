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

  // Keys that a row sees, counted from the chunk's start.
  struct Seen {
    int begin;
    int end;
    bool is_whole() const { return begin == 0 && end == kChunk; }
  };
  static Seen seen_by(const Unit& unit, const Chunk& chunk, int row) {
    return {static_cast<int>(larger(chunk.key_begin, unit.row_first_key(row) - chunk.first_position)),
            static_cast<int>(smaller(chunk.key_end, unit.row_end_key(row) - chunk.first_position))};
  }

  // Lane by lane, the largest score that a row sees; what it does not see becomes -infinity, as far as it stands among
  // sixteen that it sees. Scores come in units of log2(e), except under a soft-cap.
  static Vec largest_scores(const Unit& unit, const Seen& seen, float* scores) {
    constexpr float kLog2E = LaneMath<Lanes>::kLog2E;
    const float cap = unit.inputs.soft_cap;
    Vec largest = Lanes::set(kMinusInfinity);
    if (seen.is_whole() && !(cap > 0)) {
#pragma GCC unroll 8
      for (int i = 0; i < kChunk; i += 16) largest = Lanes::max(largest, Lanes::load(scores + i));
      return largest;
    }
    for (int i = seen.begin / 16 * 16; i < seen.end; i += 16) {
      Vec score = Lanes::load(scores + i);
      if (cap > 0) score = Lanes::mul(Lanes::set(cap * kLog2E), Math::tanh(score));
      const bool is_part = i < seen.begin || i + 16 > seen.end;
      if (is_part) score = Lanes::keep_lanes(score, seen.begin - i, seen.end - i, kMinusInfinity);
      if (is_part || cap > 0) Lanes::store(scores + i, score);
      largest = Lanes::max(largest, score);
    }
    return largest;
  }

  // Scores of a row become probabilities, 0 where it sees nothing; returns their sums, lane by lane.
  static Vec exponentiate(const Chunk& chunk, const Seen& seen, float row_largest, float* scores) {
    const Vec base = Lanes::set(row_largest);
    Vec sum = Lanes::set(0.0f);
    if (seen.is_whole()) {
#pragma GCC unroll 8
      for (int i = 0; i < kChunk; i += 16) {
        const Vec p = Products::exp2(Lanes::sub(Lanes::load(scores + i), base));
        sum = Lanes::add(sum, Products::keep_probabilities(scores, i, p));
      }
      return sum;
    }
    const int begin = seen.begin / 16 * 16;
    for (int i = begin; i < seen.end; i += 16) {
      Vec p = Products::exp2(Lanes::sub(Lanes::load(scores + i), base));
      if (i < seen.begin || i + 16 > seen.end) p = Lanes::keep_lanes(p, seen.begin - i, seen.end - i, 0.0f);
      sum = Lanes::add(sum, Products::keep_probabilities(scores, i, p));
    }
    const Vec zero = Lanes::set(0.0f);
    for (int i = chunk.key_begin / 16 * 16; i < begin; i += 16) Products::keep_probabilities(scores, i, zero);
    for (int i = (seen.end + 15) / 16 * 16; i < chunk.key_end; i += 16) Products::keep_probabilities(scores, i, zero);
    return sum;
  }

  // Scores become probabilities relative to the row's largest score in this chunk. Sixteen rows at a time, whose lanes
  // are put together at once.
  static void soften_rows(const Unit& unit, const Chunk& chunk) {
    for (int first = chunk.row_begin; first < chunk.row_end; first += 16) {
      const int count = chunk.row_end - first < 16 ? chunk.row_end - first : 16;
      float* scores = unit.scores + int64_t{first} * kChunk;
      Seen seen[16];
      Vec lanes[16];
      for (int r = 0; r < count; ++r) {
        seen[r] = seen_by(unit, chunk, first + r);
        lanes[r] = largest_scores(unit, seen[r], scores + r * kChunk);
      }
      for (int r = count; r < 16; ++r) lanes[r] = Lanes::set(0.0f);
      Lanes::store(unit.chunk_largest + first, Lanes::largest_of_each(lanes), count);
      for (int r = 0; r < count; ++r) {
        lanes[r] = exponentiate(chunk, seen[r], unit.chunk_largest[first + r], scores + r * kChunk);
      }
      Lanes::store(unit.chunk_sum + first, Lanes::sum_of_each(lanes), count);
    }
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
