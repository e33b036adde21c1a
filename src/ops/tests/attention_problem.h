// A made-up attention step for tests and benchmarks: sequences whose queries, keys and values are functions of (seed,
// sequence, position, head), so that the same sequence can be laid out in other page sizes, cut into other chunks and
// put among other neighbours. Every slot that is not part of a context holds NaN, as do the guards around the output;
// page ids are shuffled; pages left behind by a window are -1.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numbers>
#include <random>
#include <tuple>
#include <vector>

#include "ops/host_memory.h"
#include "ops/ops.h"

namespace quire {

struct AttentionSequence {
  uint64_t id;         // two problems with equal ids and seeds hold equal numbers
  int num_queries;     // the last tokens of the context
  int context_length;  // these included
};

struct AttentionCase {
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 64;
  int page_size = 16;
  DType dtype = DType::kF32;
  DType query_dtype = DType::kF32;  // queries hold numbers that this dtype can hold
  AttentionParams params = {.scale = 0.125f};
  std::vector<AttentionSequence> sequences;
  uint64_t seed = 1;
  float key_factor = 1.0f;  // K and V are numbers of this size
  float value_factor = 1.0f;
};

class AttentionProblem {
 public:
  explicit AttentionProblem(AttentionCase attention_case) : case_(std::move(attention_case)) {
    lay_out_pages();
    fill_pages();
    make_queries();
  }

  const AttentionCase& attention_case() const { return case_; }
  int num_tokens() const { return query_starts_.back(); }
  int64_t row_size() const { return int64_t{case_.num_heads} * case_.head_dim; }

  // A number in [-2, 2) that depends on nothing but its arguments.
  float value(int kind, uint64_t sequence, int position, int head, int d) const {
    uint64_t x = case_.seed * 0x9e3779b97f4a7c15u;
    for (const uint64_t part : {static_cast<uint64_t>(kind), sequence, static_cast<uint64_t>(position),
                                static_cast<uint64_t>(head), static_cast<uint64_t>(d)}) {
      x = (x ^ part) * 0xbf58476d1ce4e5b9u;
      x ^= x >> 29;
    }
    x *= 0x94d049bb133111ebu;
    return static_cast<float>(x >> 40) * 0x1p-22f - 2.0f;
  }

  // What is stored in the cache, before it is rounded: K is kind 1, V kind 2.
  float kv_value(int kind, uint64_t sequence, int position, int head, int d) const {
    return value(kind, sequence, position, head, d) * (kind == 1 ? case_.key_factor : case_.value_factor);
  }

  // The numbers as the queries' dtype keeps them.
  float query_value(uint64_t sequence, int position, int head, int d) const {
    return rounded(case_.query_dtype, value(0, sequence, position, head, d));
  }

  PagedKv kv() {
    PagedKv kv;
    // [page][K or V][head][token][head_dim], with a stretch of another layer in front of each page.
    kv.page_stride = page_elements_;
    kv.head_stride = int64_t{case_.page_size} * case_.head_dim;
    kv.token_stride = case_.head_dim;
    char* base = static_cast<char*>(pool_.data());
    kv.k = base + kOtherLayerElements * dtype_bytes(case_.dtype);
    kv.v = base + (kOtherLayerElements + case_.num_kv_heads * kv.head_stride) * dtype_bytes(case_.dtype);
    kv.dtype = case_.dtype;
    kv.num_pages = num_pages_;
    kv.page_size = case_.page_size;
    kv.num_kv_heads = case_.num_kv_heads;
    kv.head_dim = case_.head_dim;
    if (has_kv_scales(case_.dtype)) {
      // Behind V, in bf16; elements are bytes here.
      const int64_t scale_bytes = int64_t{case_.num_kv_heads} * case_.page_size * 2;
      kv.k_scales = static_cast<char*>(kv.v) + case_.num_kv_heads * kv.head_stride;
      kv.v_scales = static_cast<char*>(kv.k_scales) + scale_bytes;
      kv.scale_page_stride = page_elements_ / 2;
    }
    return kv;
  }

  AttentionBatch batch() const {
    AttentionBatch batch;
    batch.num_sequences = static_cast<int>(case_.sequences.size());
    batch.num_tokens = num_tokens();
    batch.query_starts = ConstTensorView(query_starts_.data(), DType::kI32, {batch.num_sequences + 1});
    batch.context_lengths = ConstTensorView(context_lengths_.data(), DType::kI32, {batch.num_sequences});
    batch.page_table = ConstTensorView(page_table_.data(), DType::kI32, {batch.num_sequences, pages_per_sequence_});
    batch.slots = ConstTensorView(slots_.data(), DType::kI64, {batch.num_tokens});
    batch.host_query_starts = query_starts_;
    batch.host_context_lengths = context_lengths_;
    return batch;
  }

  AttentionGeometry geometry() const {
    return {.num_heads = case_.num_heads,
            .num_kv_heads = case_.num_kv_heads,
            .head_dim = case_.head_dim,
            .page_size = case_.page_size,
            .window = case_.params.window,
            .kv_dtype = case_.dtype,
            .max_num_tokens = std::max(1, num_tokens()),
            .max_num_sequences = std::max(1, static_cast<int>(case_.sequences.size())),
            .max_context = int64_t{pages_per_sequence_} * case_.page_size};
  }

  // q and out are parts of wider rows, as a fused QKV projection leaves them.
  ConstTensorView q() const {
    return ConstTensorView(queries_.data(), DType::kF32, {num_tokens(), row_size() + kRowGap})
        .slice(1, 0, row_size())
        .split_last_dimension(case_.head_dim);
  }

  // The rows that a backend computes: [num_tokens, num_heads * head_dim]. Dies if the backend wrote anywhere else.
  std::vector<float> run(Ops& ops) {
    const int64_t stride = row_size() + kRowGap;
    std::vector<float> buffer(static_cast<size_t>(kGuard + num_tokens() * stride + kGuard),
                              std::numeric_limits<float>::quiet_NaN());
    const TensorView out = TensorView(buffer.data() + kGuard, DType::kF32, {num_tokens(), stride})
                               .slice(1, 0, row_size())
                               .split_last_dimension(case_.head_dim);
    Arena arena(ops.allocate(1 << 20, "test").value());
    OpContext context{arena};
    const std::unique_ptr<AttentionPlan> plan = ops.create_attention_plan(geometry()).value();
    ops.plan_attention(context, *plan, batch());
    ops.attention(context, out, q(), kv(), batch(), *plan, case_.params);
    CHECK(arena.used_bytes() == 0);
    std::vector<float> rows;
    for (int64_t i = 0; i < static_cast<int64_t>(buffer.size()); ++i) {
      const int64_t in_rows = i - kGuard;
      if (in_rows >= 0 && in_rows < num_tokens() * stride && in_rows % stride < row_size()) {
        rows.push_back(buffer[static_cast<size_t>(i)]);
      } else {
        CHECK(std::isnan(buffer[static_cast<size_t>(i)]));
      }
    }
    return rows;
  }

  // The definition, in double. Also with what it multiplies rounded to bfloat16 and nothing else: what an order of
  // such products is compared with.
  std::vector<double> expected(bool rounds_to_bf16 = false) const {
    std::vector<double> rows;
    for (const AttentionSequence& sequence : case_.sequences) {
      for (int i = 0; i < sequence.num_queries; ++i) {
        const int position = sequence.context_length - sequence.num_queries + i;
        const int last_key = case_.params.is_causal ? position : sequence.context_length - 1;
        for (int head = 0; head < case_.num_heads; ++head) {
          append_expected(sequence.id, {position, last_key}, head, rounds_to_bf16, rows);
        }
      }
    }
    return rows;
  }

  // Overwrites one position's K and V with NaN.
  void poison(int sequence_index, int position) {
    const PagedKv cache = kv();
    for (int head = 0; head < case_.num_kv_heads; ++head) {
      for (int d = 0; d < case_.head_dim; ++d) {
        const int64_t index = element(sequence_index, position, head, d);
        store(cache.k, index, std::numeric_limits<float>::quiet_NaN());
        store(cache.v, index, std::numeric_limits<float>::quiet_NaN());
      }
    }
  }

  // Overwrites all V that queries see: element d of a position becomes make(position, d).
  template <typename Make>
  void set_values(Make&& make) {
    const PagedKv cache = kv();
    for (int s = 0; s < static_cast<int>(case_.sequences.size()); ++s) {
      const AttentionSequence& sequence = case_.sequences[static_cast<size_t>(s)];
      for (int position = first_key(sequence); position < sequence.context_length; ++position) {
        for (int head = 0; head < case_.num_kv_heads; ++head) {
          for (int d = 0; d < case_.head_dim; ++d) store(cache.v, element(s, position, head, d), make(position, d));
        }
      }
    }
  }

  int first_query_row(int sequence_index) const { return query_starts_[static_cast<size_t>(sequence_index)]; }

 private:
  static float rounded(DType dtype, float x) {
    if (dtype == DType::kF16) return f16_to_f32(f32_to_f16(x));
    if (dtype == DType::kBF16) return bf16_to_f32(f32_to_bf16(x));
    return x;
  }

  static float int8_code(float x) { return std::clamp(std::nearbyint(x), -127.0f, 127.0f); }

  static constexpr int64_t kOtherLayerElements = 32;
  static constexpr int64_t kRowGap = 7;
  static constexpr int64_t kGuard = 64;

  int first_key(const AttentionSequence& sequence) const {
    const int first_position = sequence.context_length - sequence.num_queries;
    return case_.params.window > 0 ? std::max(0, first_position - case_.params.window + 1) : 0;
  }

  void lay_out_pages() {
    query_starts_ = {0};
    pages_per_sequence_ = 1;
    num_pages_ = 3;  // some that nobody owns
    for (const AttentionSequence& sequence : case_.sequences) {
      CHECK(sequence.num_queries <= sequence.context_length);
      query_starts_.push_back(query_starts_.back() + sequence.num_queries);
      context_lengths_.push_back(sequence.context_length);
      const int pages = (sequence.context_length + case_.page_size - 1) / case_.page_size;
      pages_per_sequence_ = std::max(pages_per_sequence_, pages);
      num_pages_ += pages;
    }
    std::vector<int32_t> free_pages(static_cast<size_t>(num_pages_));
    for (int i = 0; i < num_pages_; ++i) free_pages[static_cast<size_t>(i)] = i;
    std::shuffle(free_pages.begin(), free_pages.end(), std::mt19937(static_cast<uint32_t>(case_.seed)));
    for (const AttentionSequence& sequence : case_.sequences) {
      const int pages = (sequence.context_length + case_.page_size - 1) / case_.page_size;
      const int first_page = sequence.num_queries == 0 ? pages : first_key(sequence) / case_.page_size;
      for (int i = 0; i < pages_per_sequence_; ++i) {
        if (i < first_page || i >= pages) {
          page_table_.push_back(-1);
        } else {
          page_table_.push_back(free_pages.back());
          free_pages.pop_back();
        }
      }
    }
    page_elements_ = kOtherLayerElements + 2 * int64_t{case_.num_kv_heads} * case_.page_size * case_.head_dim;
    if (has_kv_scales(case_.dtype)) page_elements_ += 2 * 2 * int64_t{case_.num_kv_heads} * case_.page_size;
    slots_.resize(static_cast<size_t>(num_tokens()));
    for (int s = 0; s < static_cast<int>(case_.sequences.size()); ++s) {
      const AttentionSequence& sequence = case_.sequences[static_cast<size_t>(s)];
      for (int i = 0; i < sequence.num_queries; ++i) {
        const int position = sequence.context_length - sequence.num_queries + i;
        slots_[static_cast<size_t>(query_starts_[static_cast<size_t>(s)] + i)] =
            int64_t{page_of(s, position)} * case_.page_size + position % case_.page_size;
      }
    }
  }

  int32_t page_of(int sequence_index, int position) const {
    return page_table_[static_cast<size_t>(sequence_index * pages_per_sequence_ + position / case_.page_size)];
  }

  int64_t element(int sequence_index, int position, int head, int d) const {
    return page_of(sequence_index, position) * page_elements_ +
           (int64_t{head} * case_.page_size + position % case_.page_size) * case_.head_dim + d;
  }

  int64_t scale_element(int sequence_index, int position, int head) const {
    return page_of(sequence_index, position) * (page_elements_ / 2) + int64_t{head} * case_.page_size +
           position % case_.page_size;
  }

  // bf16: makes the largest of a head's row 448, or 127.
  uint16_t scale_of(int kind, uint64_t sequence, int position, int head) const {
    float largest = 0;
    for (int d = 0; d < case_.head_dim; ++d) {
      largest = std::fmax(largest, std::fabs(kv_value(kind, sequence, position, head, d)));
    }
    return f32_to_bf16(largest / largest_kv_code(case_.dtype));
  }

  void store(void* data, int64_t index, float x) const {
    switch (case_.dtype) {
      case DType::kF32:
        static_cast<float*>(data)[index] = x;
        break;
      case DType::kF16:
        static_cast<uint16_t*>(data)[index] = f32_to_f16(x);
        break;
      case DType::kF8E4M3:
        static_cast<uint8_t*>(data)[index] = f32_to_f8e4m3(x);
        break;
      case DType::kI8:
        static_cast<int8_t*>(data)[index] = static_cast<int8_t>(int8_code(x));
        break;
      default:
        static_cast<uint16_t*>(data)[index] = f32_to_bf16(x);
    }
  }

  void fill_pages() {
    // Where a KV cache would be: on huge pages, if it is large.
    pool_ = allocate_host(num_pages_ * page_elements_ * dtype_bytes(case_.dtype), "test").value();
    std::memset(pool_.data(), 0xff, static_cast<size_t>(pool_.num_bytes()));  // a NaN in every dtype
    const PagedKv cache = kv();
    for (int s = 0; s < static_cast<int>(case_.sequences.size()); ++s) {
      const AttentionSequence& sequence = case_.sequences[static_cast<size_t>(s)];
      if (sequence.num_queries == 0) continue;
      for (int position = first_key(sequence); position < sequence.context_length; ++position) {
        for (int head = 0; head < case_.num_kv_heads; ++head) {
          float inverse[2] = {1.0f, 1.0f};
          if (has_kv_scales(case_.dtype)) {
            for (const int kind : {1, 2}) {
              const uint16_t scale = scale_of(kind, sequence.id, position, head);
              inverse[kind - 1] = 1.0f / bf16_to_f32(scale);
              static_cast<uint16_t*>(kind == 1 ? cache.k_scales : cache.v_scales)[scale_element(s, position, head)] =
                  scale;
            }
          }
          for (int d = 0; d < case_.head_dim; ++d) {
            const int64_t index = element(s, position, head, d);
            store(cache.k, index, kv_value(1, sequence.id, position, head, d) * inverse[0]);
            store(cache.v, index, kv_value(2, sequence.id, position, head, d) * inverse[1]);
          }
        }
      }
    }
  }

  void make_queries() {
    queries_.assign(static_cast<size_t>(num_tokens() * (row_size() + kRowGap)),
                    std::numeric_limits<float>::quiet_NaN());
    int64_t row = 0;
    for (const AttentionSequence& sequence : case_.sequences) {
      for (int i = 0; i < sequence.num_queries; ++i, ++row) {
        const int position = sequence.context_length - sequence.num_queries + i;
        for (int64_t j = 0; j < row_size(); ++j) {
          queries_[static_cast<size_t>(row * (row_size() + kRowGap) + j)] = query_value(
              sequence.id, position, static_cast<int>(j) / case_.head_dim, static_cast<int>(j) % case_.head_dim);
        }
      }
    }
  }

  // K or V of a sequence's KV head as stored, a row a position.
  const std::vector<float>& stored_rows(int kind, uint64_t sequence, int head) const {
    std::vector<float>& rows = stored_rows_[{kind, sequence, head}];
    if (rows.empty()) {
      int length = 0;
      for (const AttentionSequence& s : case_.sequences) {
        if (s.id == sequence) length = std::max(length, s.context_length);
      }
      rows.resize(static_cast<size_t>(length) * static_cast<size_t>(case_.head_dim));
      float* row = rows.data();
      for (int position = 0; position < length; ++position, row += case_.head_dim) {
        float scale = 1.0f;
        if (has_kv_scales(case_.dtype)) scale = bf16_to_f32(scale_of(kind, sequence, position, head));
        for (int d = 0; d < case_.head_dim; ++d) {
          const float x = kv_value(kind, sequence, position, head, d);
          row[d] = case_.dtype == DType::kI8       ? int8_code(x * (1.0f / scale)) * scale
                   : case_.dtype == DType::kF8E4M3 ? f8e4m3_to_f32(f32_to_f8e4m3(x * (1.0f / scale))) * scale
                                                   : rounded(case_.dtype, x);
        }
      }
    }
    return rows;
  }

  struct Seen {
    int position;  // of the query
    int last_key;
  };
  void append_expected(uint64_t sequence, const Seen& seen, int head, bool rounds, std::vector<double>& rows) const {
    const auto& [position, last_key] = seen;
    const auto operand = [&](double x) { return rounds ? double{rounded(DType::kBF16, static_cast<float>(x))} : x; };
    // Scale is part of the query.
    const double cap = case_.params.soft_cap;
    const double factor = case_.params.scale / (cap > 0 ? cap : 1.0) * (cap > 0 ? 1.0 : std::numbers::log2e);
    const int kv_head = head * case_.num_kv_heads / case_.num_heads;
    const int first = case_.params.window > 0 ? std::max(0, position - case_.params.window + 1) : 0;
    const size_t head_dim = static_cast<size_t>(case_.head_dim);
    const float* const keys = stored_rows(1, sequence, kv_head).data();
    const float* const values = stored_rows(2, sequence, kv_head).data();
    std::vector<double> query(head_dim);
    for (size_t d = 0; d < head_dim; ++d) {
      query[d] = operand(factor * double{query_value(sequence, position, head, static_cast<int>(d))});
    }
    std::vector<double> scores;
    for (int key = first; key <= last_key; ++key) {
      const float* const row = keys + static_cast<size_t>(key) * head_dim;
      double sum = 0;
      for (size_t d = 0; d < head_dim; ++d) sum += query[d] * operand(double{row[d]});
      scores.push_back(cap > 0 ? cap * std::numbers::log2e * std::tanh(sum) : sum);
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double& score : scores) {
      score = operand(std::exp2(score - largest));
      total += score;
    }
    std::vector<double> sums(head_dim, 0.0);
    for (int key = first; key <= last_key; ++key) {
      const double weight = scores[static_cast<size_t>(key - first)];
      const float* const row = values + static_cast<size_t>(key) * head_dim;
      for (size_t d = 0; d < head_dim; ++d) sums[d] += weight * operand(double{row[d]});
    }
    for (const double sum : sums) rows.push_back(sum / total);
  }

  AttentionCase case_;
  std::vector<int32_t> query_starts_;
  std::vector<int32_t> context_lengths_;
  std::vector<int32_t> page_table_;
  std::vector<int64_t> slots_;
  int pages_per_sequence_ = 1;
  int num_pages_ = 0;
  int64_t page_elements_ = 0;
  DeviceBuffer pool_;
  std::vector<float> queries_;
  mutable std::map<std::tuple<int, uint64_t, int>, std::vector<float>> stored_rows_;
};

}  // namespace quire
