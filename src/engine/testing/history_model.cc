#include "engine/testing/history_model.h"

#include <gtest/gtest.h>

#include <limits>

namespace quire::testing {

namespace {

// Two floats a token: exact for ids and positions.
constexpr int kHeadDim = 8;

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 31);
}

float* k_of(const PagedKv& kv, int64_t slot) {
  const int64_t page = slot / kv.page_size;
  return static_cast<float*>(kv.k) + page * kv.page_stride + (slot % kv.page_size) * kv.token_stride;
}

// The hash of what a position sees: (token, position) pairs, oldest first.
void fill_logits(uint64_t hash, bool is_poisoned, float* logits) {
  for (int t = 0; t < kHistoryVocab; ++t) {
    const uint64_t bits = mix(mix(hash, static_cast<uint64_t>(t)), 77);
    logits[t] = static_cast<float>(bits >> 40) * 0x1p-22f;  // 0 to 4
    if (t == kPoisonToken) logits[t] = -50.0f;              // only prompts bring it
    if (is_poisoned) logits[t] = std::numeric_limits<float>::quiet_NaN();
  }
}

void fill_hidden(uint64_t hash, bool is_poisoned, std::span<float> hidden) {
  for (size_t i = 0; i < hidden.size(); ++i) {
    hidden[i] = static_cast<float>(mix(mix(hash, i), 99) >> 40) * 0x1p-23f - 1.0f;
    if (is_poisoned) hidden[i] = std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace

// All that a position sees, as a number.
struct HistoryModel::Sight {
  uint64_t hash = 0;
  bool is_poisoned = false;
};

HistoryModel::HistoryModel(bool has_window, int64_t max_context) : has_window_(has_window) {
  config_.architecture = "history";
  config_.num_layers = has_window ? 2 : 1;
  config_.hidden_size = 8;
  config_.intermediate_size = 8;
  config_.vocab_size = kHistoryVocab;
  config_.num_heads = 1;
  config_.num_kv_heads = 1;
  config_.head_dim = kHeadDim;
  config_.max_context = max_context;
  config_.stop_token_ids = {3};
}

std::vector<KvGroup> HistoryModel::kv_groups(DType dtype) const {
  EXPECT_EQ(dtype, DType::kF32);
  std::vector<KvGroup> groups;
  groups.push_back(
      {.kind = KvKind::kFull, .layers = {0}, .num_kv_heads = 1, .head_dim = kHeadDim, .dtype = DType::kF32});
  if (has_window_) {
    groups.push_back({.kind = KvKind::kSlidingWindow,
                      .window = kHistoryWindow,
                      .layers = {1},
                      .num_kv_heads = 1,
                      .head_dim = kHeadDim,
                      .dtype = DType::kF32});
  }
  return groups;
}

Result<StepOutput> HistoryModel::forward(StepContext& context, const StepBatch& batch) const {
  if (steps_left_-- <= 0) return unavailable("the model is lost");
  if (in_step) in_step();
  const int64_t num_logit_rows = batch.output_rows.size(0) - batch.num_hidden_rows;
  StepOutput output;
  output.logits = context.op_context.scratch.take(DType::kF32, {num_logit_rows, kHistoryVocab});
  output.hidden = context.op_context.scratch.take(DType::kF32, {batch.num_hidden_rows, config_.hidden_size});
  const int32_t* ids = batch.token_ids.data<int32_t>();
  const int32_t* positions = batch.positions.data<int32_t>();
  std::vector<uint64_t> hashes(static_cast<size_t>(batch.num_tokens), 0);
  std::vector<bool> is_poisoned(static_cast<size_t>(batch.num_tokens), false);
  // Rows that nobody asks for are not looked at: a long prompt would take the square of its length.
  const int32_t* rows = batch.output_rows.data<int32_t>();
  std::vector<bool> is_wanted(static_cast<size_t>(batch.num_tokens), false);
  for (int64_t r = 0; r < batch.output_rows.size(0); ++r) is_wanted[static_cast<size_t>(rows[r])] = true;
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const PagedKv& kv = context.layer_kv[static_cast<size_t>(layer)];
    const AttentionBatch& attention =
        batch.kv_groups[static_cast<size_t>(context.layer_group[static_cast<size_t>(layer)])].batch;
    const int window = layer == 1 ? kHistoryWindow : 0;
    const int64_t* slots = attention.slots.data<int64_t>();
    for (int t = 0; t < batch.num_tokens; ++t) {
      if (slots[t] < 0) continue;
      EXPECT_LT(slots[t], int64_t{kv.num_pages} * kv.page_size);
      float* k = k_of(kv, slots[t]);
      k[0] = static_cast<float>(ids[t]);
      k[1] = static_cast<float>(positions[t]);
    }
    const int32_t* starts = attention.query_starts.data<int32_t>();
    const int32_t* lengths = attention.context_lengths.data<int32_t>();
    const int32_t* table = attention.page_table.data<int32_t>();
    for (int s = 0; s < attention.num_sequences; ++s) {
      const int32_t* pages = table + s * attention.page_table.stride(0);
      for (int32_t t = starts[s]; t < starts[s + 1]; ++t) {
        const int position = lengths[s] - (starts[s + 1] - t);
        EXPECT_EQ(position, positions[t]);
        const size_t row = static_cast<size_t>(t);
        if (!is_wanted[row]) continue;
        for (int j = window > 0 ? std::max(0, position - window + 1) : 0; j <= position; ++j) {
          const int32_t page = pages[j / kv.page_size];
          EXPECT_GE(page, 0);
          const float* k = k_of(kv, int64_t{page} * kv.page_size + j % kv.page_size);
          is_poisoned[row] = is_poisoned[row] || k[0] == static_cast<float>(kPoisonToken) || !(k[0] == k[0]);
          hashes[row] = mix(hashes[row], static_cast<uint64_t>(static_cast<int64_t>(k[0])));
          hashes[row] = mix(hashes[row], static_cast<uint64_t>(static_cast<int64_t>(k[1])));
        }
      }
    }
  }
  for (int64_t r = 0; r < num_logit_rows; ++r) {
    const size_t row = static_cast<size_t>(rows[r]);
    fill_logits(hashes[row], is_poisoned[row], output.logits.data<float>() + r * kHistoryVocab);
  }
  for (int r = 0; r < batch.num_hidden_rows; ++r) {
    const size_t row = static_cast<size_t>(rows[num_logit_rows + r]);
    const size_t hidden_size = static_cast<size_t>(config_.hidden_size);
    fill_hidden(hashes[row], is_poisoned[row],
                {output.hidden.data<float>() + static_cast<size_t>(r) * hidden_size, hidden_size});
  }
  return output;
}

HistoryModel::Sight HistoryModel::sight_of(std::span<const int32_t> token_ids) const {
  uint64_t hash = 0;
  bool is_poisoned = false;
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const size_t first = layer == 1 && token_ids.size() > kHistoryWindow ? token_ids.size() - kHistoryWindow : 0;
    for (size_t j = first; j < token_ids.size(); ++j) {
      is_poisoned = is_poisoned || token_ids[j] == kPoisonToken;
      hash = mix(hash, static_cast<uint64_t>(token_ids[j]));
      hash = mix(hash, j);
    }
  }
  return {hash, is_poisoned};
}

std::vector<float> HistoryModel::logits(std::span<const int32_t> token_ids) const {
  const Sight sight = sight_of(token_ids);
  std::vector<float> values(kHistoryVocab);
  fill_logits(sight.hash, sight.is_poisoned, values.data());
  return values;
}

std::vector<float> HistoryModel::hidden(std::span<const int32_t> token_ids) const {
  const Sight sight = sight_of(token_ids);
  std::vector<float> values(static_cast<size_t>(config_.hidden_size));
  fill_hidden(sight.hash, sight.is_poisoned, values);
  return values;
}

std::vector<int32_t> HistoryModel::expected_greedy(std::vector<int32_t> token_ids, int num_tokens) const {
  std::vector<int32_t> generated;
  for (int i = 0; i < num_tokens; ++i) {
    const std::vector<float> row = logits(token_ids);
    generated.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
    token_ids.push_back(generated.back());
  }
  return generated;
}

void RecordingSink::on_event(const TokenEvent& event) {
  if (choices.size() <= static_cast<size_t>(event.choice_index)) {
    choices.resize(static_cast<size_t>(event.choice_index) + 1);
  }
  Choice& choice = choices[static_cast<size_t>(event.choice_index)];
  EXPECT_EQ(choice.finish_reason, FinishReason::kNone) << "an event after the last one";
  choice.token_ids.insert(choice.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
  choice.logprobs.insert(choice.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
  choice.finish_reason = event.finish_reason;
  choice.error = event.error;
  prompt_logprobs.insert(prompt_logprobs.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
  num_cached_tokens = event.num_cached_tokens;
  if (then) then(event);
}

}  // namespace quire::testing
