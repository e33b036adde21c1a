// Filling the step's arrays from the plan.
#include "engine/batch_builder.h"

#include <algorithm>
#include <numeric>

#include "ops/attention_parts.h"

namespace quire {

namespace {

constexpr int64_t kSectionAlignment = 64;

int64_t aligned(int64_t num_bytes) {
  return (num_bytes + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
}

int64_t block_bytes(const BatchLimits& limits) {
  const int64_t tokens = limits.max_num_tokens;
  const int64_t rows = limits.max_num_rows;
  int64_t total = 2 * aligned(tokens * 4) + aligned(int64_t{limits.max_output_rows} * 4) + aligned((rows + 1) * 4) +
                  aligned(rows * 4);
  total += limits.num_kv_groups * (aligned(rows * limits.max_pages_per_sequence * 4) + aligned(tokens * 8));
  return total;
}

}  // namespace

Result<std::unique_ptr<BatchBuilder>> BatchBuilder::create(Ops& ops, const BatchLimits& limits) {
  std::array<DeviceBuffer, 2> host;
  for (DeviceBuffer& block : host) {
    ASSIGN_OR_RETURN(block, ops.allocate_for_host(block_bytes(limits), "the step's inputs"));
  }
  ASSIGN_OR_RETURN(DeviceBuffer device, ops.allocate(block_bytes(limits), "the step's inputs"));
  return std::unique_ptr<BatchBuilder>(new BatchBuilder(ops, limits, std::move(host), std::move(device)));
}

BatchBuilder::BatchBuilder(Ops& ops, const BatchLimits& limits, std::array<DeviceBuffer, 2> host_blocks,
                           DeviceBuffer device_block)
    : ops_(ops), limits_(limits), host_blocks_(std::move(host_blocks)), device_block_(std::move(device_block)) {
  page_tables_.resize(static_cast<size_t>(limits.num_kv_groups));
  slots_.resize(static_cast<size_t>(limits.num_kv_groups));
  batch_.kv_groups.resize(static_cast<size_t>(limits.num_kv_groups));
  is_prompt_.resize(static_cast<size_t>(limits.max_num_rows));
}

template <typename T>
BatchBuilder::Section<T> BatchBuilder::take(int64_t rows, int64_t columns, bool is_matrix) {
  char* host = static_cast<char*>(host_blocks_[static_cast<size_t>(host_block_)].data());
  Section<T> section;
  section.host = reinterpret_cast<T*>(host + used_bytes_);
  const void* device = static_cast<const char*>(device_block_.data()) + used_bytes_;
  section.device = is_matrix ? ConstTensorView(device, DTypeOf<T>::value, {rows, columns})
                             : ConstTensorView(device, DTypeOf<T>::value, {columns});
  used_bytes_ += aligned(rows * columns * static_cast<int64_t>(sizeof(T)));
  CHECK(used_bytes_ <= device_block_.num_bytes());
  return section;
}

void BatchBuilder::shape(int num_rows, int num_tokens, int num_output_rows, int64_t num_pages) {
  used_bytes_ = 0;
  host_block_ ^= 1;
  token_ids_ = take<int32_t>(1, num_tokens, false);
  positions_ = take<int32_t>(1, num_tokens, true);
  output_rows_ = take<int32_t>(1, num_output_rows, false);
  query_starts_ = take<int32_t>(1, num_rows + 1, false);
  context_lengths_ = take<int32_t>(1, num_rows, false);
  for (auto& table : page_tables_) table = take<int32_t>(num_rows, num_pages, true);
  for (auto& slots : slots_) slots = take<int64_t>(1, num_tokens, false);
}

void BatchBuilder::finish(OpContext& context, int num_rows, int num_tokens, int num_drawn_ids) {
  // Token ids come first. Those of padded rows are never there.
  const char* host = reinterpret_cast<const char*>(token_ids_.host);
  const int64_t begin = int64_t{num_drawn_ids} * 4;
  ops_.copy_to_device(context, static_cast<char*>(device_block_.data()) + begin, host + begin, used_bytes_ - begin);
  batch_.num_tokens = num_tokens;
  batch_.token_ids = token_ids_.device;
  batch_.positions = positions_.device;
  batch_.output_rows = output_rows_.device;
  for (size_t g = 0; g < batch_.kv_groups.size(); ++g) {
    AttentionBatch& attention = batch_.kv_groups[g].batch;
    attention.num_sequences = num_rows;
    attention.num_tokens = num_tokens;
    attention.query_starts = query_starts_.device;
    attention.context_lengths = context_lengths_.device;
    attention.page_table = page_tables_[g].device;
    attention.slots = slots_[g].device;
    attention.host_query_starts = std::span(query_starts_.host, static_cast<size_t>(num_rows) + 1);
    attention.host_context_lengths = std::span(context_lengths_.host, static_cast<size_t>(num_rows));
    attention.host_is_prompt = std::span(is_prompt_).first(static_cast<size_t>(num_rows));
  }
}

int64_t BatchBuilder::num_pages_of(const StepPlan& plan) {
  size_t num_pages = 1;
  for (const StepRow& row : plan.rows) {
    for (const PageTable& table : row.sequence->tables) num_pages = std::max(num_pages, table.page_ids().size());
  }
  return static_cast<int64_t>(num_pages);
}

StepBatch& BatchBuilder::build(OpContext& context, const StepPlan& plan, const Padding& padding, bool has_drawn_ids) {
  int num_parts = 0;
  for (const StepRow& row : plan.rows) num_parts += num_parts_of(row);
  const int num_rows = std::max(padding.num_rows, num_parts);
  const int num_padded = num_rows - num_parts;
  const size_t num_pages = static_cast<size_t>(std::max(num_pages_of(plan), padding.num_pages));
  const int num_tokens = plan.num_tokens + num_padded;
  shape(num_rows, num_tokens, plan.num_logit_rows + num_padded + plan.num_hidden_rows, static_cast<int64_t>(num_pages));
  batch_.num_hidden_rows = plan.num_hidden_rows;

  int32_t token = 0;
  size_t r = 0;  // of attention
  int32_t* logit_row = output_rows_.host;
  int32_t* hidden_row = output_rows_.host + plan.num_logit_rows + num_padded;
  query_starts_.host[0] = 0;
  for (const StepRow& row : plan.rows) {
    const Sequence& sequence = *row.sequence;
    if (!has_drawn_ids) {
      const auto ids = std::span(sequence.token_ids)
                           .subspan(static_cast<size_t>(row.first_position), static_cast<size_t>(row.num_tokens));
      std::copy(ids.begin(), ids.end(), token_ids_.host + token);
    }
    std::iota(positions_.host + token, positions_.host + token + row.num_tokens,
              static_cast<int32_t>(row.first_position));
    const int32_t end = token + row.num_tokens;
    for (int32_t t = end - row.num_logit_rows; t < end; ++t) *logit_row++ = t;
    for (int h = 0; h < row.num_hidden_rows; ++h) *hidden_row++ = token + row.first_hidden_token + h;
    for (int done = 0; done < row.num_tokens; ++r) {
      const bool is_prompt = done < row.num_prompt_tokens();
      const int count = !limits_.is_strict ? row.num_tokens : is_prompt ? row.num_prompt_tokens() : 1;
      done += count;
      query_starts_.host[r + 1] = token + done;
      context_lengths_.host[r] = static_cast<int32_t>(row.first_position + done);
      const bool has_others = row.num_tokens > 1;
      is_prompt_[r] = is_prompt ? kPrompt : limits_.is_strict && has_others ? kDrawnBesideOthers : kDrawn;
      for (size_t g = 0; g < page_tables_.size(); ++g) {
        const PageTable& table = sequence.tables[g];
        int32_t* pages = page_tables_[g].host + r * num_pages;
        int32_t* pages_end = std::copy(table.page_ids().begin(), table.page_ids().end(), pages);
        std::fill(pages_end, pages + num_pages, -1);
      }
    }
    for (size_t g = 0; g < page_tables_.size(); ++g) {
      const PageTable& table = sequence.tables[g];
      int64_t* slots = slots_[g].host + token;
      for (int i = 0; i < row.num_tokens; ++i) slots[i] = table.slot(row.first_position + i);
    }
    token = end;
  }
  CHECK(token == plan.num_tokens);
  CHECK(logit_row - output_rows_.host == plan.num_logit_rows);
  for (; r < static_cast<size_t>(num_rows); ++r, ++token) {
    token_ids_.host[token] = 0;
    positions_.host[token] = 0;
    *logit_row++ = token;
    query_starts_.host[r + 1] = token + 1;
    context_lengths_.host[r] = 0;
    is_prompt_[r] = kDrawn;
    for (auto& table : page_tables_) std::fill_n(table.host + r * num_pages, num_pages, -1);
    for (auto& slots : slots_) slots.host[token] = -1;
  }
  CHECK(hidden_row - logit_row == plan.num_hidden_rows);
  finish(context, num_rows, num_tokens, has_drawn_ids ? plan.num_tokens : 0);
  return batch_;
}

StepBatch& BatchBuilder::build_profile(OpContext& context, const ProfileShape& profile, int page_size) {
  const auto [num_rows, tokens_per_row, context_length, is_pooled] = profile;
  const int num_tokens = num_rows * tokens_per_row;
  const int64_t num_pages = (context_length + page_size - 1) / page_size;
  batch_.num_hidden_rows = is_pooled ? num_tokens : 0;
  shape(num_rows, num_tokens, num_rows + batch_.num_hidden_rows, num_pages);
  std::fill_n(token_ids_.host, num_tokens, 0);
  query_starts_.host[0] = 0;
  for (int r = 0; r < num_rows; ++r) {
    std::iota(positions_.host + r * tokens_per_row, positions_.host + (r + 1) * tokens_per_row,
              static_cast<int32_t>(context_length - tokens_per_row));
    output_rows_.host[r] = (r + 1) * tokens_per_row - 1;
    query_starts_.host[r + 1] = (r + 1) * tokens_per_row;
    context_lengths_.host[r] = static_cast<int32_t>(context_length);
    is_prompt_[static_cast<size_t>(r)] = tokens_per_row > 1 ? kPrompt : kDrawn;
  }
  if (is_pooled) std::iota(output_rows_.host + num_rows, output_rows_.host + num_rows + num_tokens, 0);
  for (auto& table : page_tables_) std::fill_n(table.host, num_rows * num_pages, 0);
  for (auto& slots : slots_) std::fill_n(slots.host, num_tokens, int64_t{-1});
  finish(context, num_rows, num_tokens, /*num_drawn_ids=*/0);
  return batch_;
}

}  // namespace quire
