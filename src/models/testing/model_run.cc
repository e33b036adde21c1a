#include "models/testing/model_run.h"

#include <algorithm>
#include <numeric>

namespace quire::testing {
namespace {

constexpr int64_t kScratchBytes = int64_t{256} << 20;

template <typename T>
T must(Result<T> result) {
  CHECK(result.is_ok());
  return std::move(result).value();
}

}  // namespace

ModelRun::ModelRun(Ops& ops, const Model& model, const ModelRunOptions& options)
    : ops_(ops), model_(model), options_(options), groups_(model.kv_groups(options.kv_dtype)) {
  const int num_groups = static_cast<int>(groups_.size());
  const int pages_per_group = (options.max_tokens + options.page_size - 1) / options.page_size;
  const int num_pages = pages_per_group * num_groups;
  const int64_t page_bytes = KvCache::page_bytes(groups_, options.page_size);
  DeviceBuffer memory = must(ops.allocate(page_bytes * num_pages, "KV pages"));
  // Slots that were never written must never be read: NaN would show.
  const std::vector<uint8_t> nans(static_cast<size_t>(memory.num_bytes()), 0xff);
  scratch_ = std::make_unique<Arena>(must(ops.allocate(kScratchBytes, "scratch")));
  OpContext context{*scratch_};
  ops.copy_to_device(context, memory.data(), nans.data(), memory.num_bytes());
  ops.synchronize(context);
  cache_ = std::make_unique<KvCache>(std::move(memory), groups_, options.page_size, num_pages);

  for (int g = 0; g < num_groups; ++g) {
    const KvGroup& group = groups_[static_cast<size_t>(g)];
    plans_.push_back(must(ops.create_attention_plan({.num_heads = model.config().num_heads,
                                                     .num_kv_heads = group.num_kv_heads,
                                                     .head_dim = group.head_dim,
                                                     .page_size = options.page_size,
                                                     .window = group.window,
                                                     .kv_dtype = group.dtype,
                                                     .max_num_tokens = options.max_tokens,
                                                     .max_num_sequences = 1,
                                                     .max_context = options.max_tokens})));
    // Page i of group g: descending and interleaved with the other groups.
    std::vector<int32_t> pages(static_cast<size_t>(pages_per_group));
    for (int i = 0; i < pages_per_group; ++i)
      pages[static_cast<size_t>(i)] = (pages_per_group - 1 - i) * num_groups + g;
    page_tables_.push_back(std::move(pages));
  }
}

template <typename T>
ConstTensorView ModelRun::to_device(OpContext& context, DType dtype, const std::vector<T>& values,
                                    std::initializer_list<int64_t> sizes) {
  const TensorView view = context.scratch.take(dtype, sizes);
  ops_.copy_to_device(context, view.raw_data(), values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
  return view;
}

std::vector<std::vector<float>> ModelRun::forward(std::span<const int32_t> token_ids) {
  std::vector<int32_t> rows(token_ids.size());
  std::iota(rows.begin(), rows.end(), 0);
  return forward(token_ids, rows);
}

std::vector<std::vector<float>> ModelRun::forward(std::span<const int32_t> token_ids,
                                                  const std::vector<int32_t>& rows) {
  scratch_->reset();
  OpContext op_context{*scratch_};
  const int count = static_cast<int>(token_ids.size());
  CHECK(num_tokens_ + count <= options_.max_tokens);

  StepBatch batch;
  batch.num_tokens = count;
  batch.token_ids =
      to_device(op_context, DType::kI32, std::vector<int32_t>(token_ids.begin(), token_ids.end()), {count});
  std::vector<int32_t> positions(token_ids.size());
  std::iota(positions.begin(), positions.end(), num_tokens_);
  batch.positions = to_device(op_context, DType::kI32, positions, {1, count});
  batch.output_rows = to_device(op_context, DType::kI32, rows, {static_cast<int64_t>(rows.size())});

  const std::vector<int32_t> starts = {0, count};
  const std::vector<int32_t> lengths = {num_tokens_ + count};
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::vector<int32_t> table = page_tables_[g];
    std::vector<int64_t> slots(token_ids.size());
    for (size_t i = 0; i < slots.size(); ++i) {
      const int position = positions[i];
      slots[i] = int64_t{table[static_cast<size_t>(position / options_.page_size)]} * options_.page_size +
                 position % options_.page_size;
    }
    // Pages that a window has left behind are gone.
    if (groups_[g].window > 0) {
      const int first_seen = std::max(0, num_tokens_ - groups_[g].window + 1);
      std::fill_n(table.begin(), first_seen / options_.page_size, -1);
    }
    StepKvGroup group;
    group.batch.num_sequences = 1;
    group.batch.num_tokens = count;
    group.batch.query_starts = to_device(op_context, DType::kI32, starts, {2});
    group.batch.context_lengths = to_device(op_context, DType::kI32, lengths, {1});
    group.batch.page_table = to_device(op_context, DType::kI32, table, {1, static_cast<int64_t>(table.size())});
    group.batch.slots = to_device(op_context, DType::kI64, slots, {count});
    group.batch.host_query_starts = starts;
    group.batch.host_context_lengths = lengths;
    group.plan = plans_[g].get();
    ops_.plan_attention(op_context, *group.plan, group.batch);
    batch.kv_groups.push_back(group);
  }

  StepContext context{
      .ops = ops_, .op_context = op_context, .layer_kv = cache_->layer_kv(), .layer_group = cache_->layer_group()};
  const TensorView logits = model_.forward(context, batch).value().logits;
  const size_t vocab_size = static_cast<size_t>(logits.size(1));
  std::vector<float> values(static_cast<size_t>(logits.num_elements()));
  ops_.copy_to_host(op_context, values.data(), logits.raw_data(), static_cast<int64_t>(values.size() * sizeof(float)));
  ops_.synchronize(op_context);
  num_tokens_ += count;

  std::vector<std::vector<float>> result;
  for (size_t row = 0; row < rows.size(); ++row) {
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(row * vocab_size);
    result.emplace_back(first, first + static_cast<std::ptrdiff_t>(vocab_size));
  }
  return result;
}

std::vector<std::vector<float>> ModelRun::forward_in_chunks(std::span<const int32_t> token_ids, int chunk) {
  std::vector<std::vector<float>> all;
  for (size_t first = 0; first < token_ids.size(); first += static_cast<size_t>(chunk)) {
    const size_t count = std::min(static_cast<size_t>(chunk), token_ids.size() - first);
    for (auto& row : forward(token_ids.subspan(first, count))) all.push_back(std::move(row));
  }
  return all;
}

}  // namespace quire::testing
