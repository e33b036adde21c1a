#include "engine/device_sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace quire {

namespace {

// Of one request. With more its rows are sampled by the host: room for every token of the vocabulary in every row would
// be as large as the logits, and more than a few thousand different tokens stand in the longest of texts only.
constexpr int64_t kMostPenalized = 8192;
constexpr int64_t kMostBiases = 1024;
constexpr int64_t kAlignment = 256;

// Where `num_bytes` more begin.
int64_t take(int64_t& used, int64_t num_bytes) {
  const int64_t begin = (used + kAlignment - 1) / kAlignment * kAlignment;
  used = begin + num_bytes;
  return begin;
}

template <typename T>
int64_t bytes_of(int64_t count) {
  return count * static_cast<int64_t>(sizeof(T));
}

}  // namespace

int64_t DeviceSampler::most_penalized(const Limits& limits) {
  return std::min(limits.vocab_size, kMostPenalized);
}

DeviceSampler::Amounts DeviceSampler::most(const Limits& limits) {
  const int64_t max_rows = limits.max_rows;
  return {.num_rows = max_rows,
          .num_adjustments = max_rows,
          .num_penalized = max_rows * most_penalized(limits),
          .num_biases = max_rows * kMostBiases,
          .num_masks = max_rows,
          .num_logprobs = max_rows};
}

DeviceSampler::Upload DeviceSampler::divide_upload(const Limits& limits, const Amounts& amounts) {
  Upload parts;
  parts.rows = take(parts.num_bytes, bytes_of<SamplingRow>(amounts.num_rows));
  parts.adjustments = take(parts.num_bytes, bytes_of<LogitsAdjustment>(amounts.num_adjustments));
  parts.logprobs = take(parts.num_bytes, bytes_of<LogprobsRow>(amounts.num_logprobs));
  parts.penalized = take(parts.num_bytes, bytes_of<PenalizedToken>(amounts.num_penalized));
  parts.biases = take(parts.num_bytes, bytes_of<TokenBias>(amounts.num_biases));
  parts.masks = take(parts.num_bytes, bytes_of<uint32_t>(amounts.num_masks * num_mask_words(limits)));
  return parts;
}

DeviceSampler::Answer DeviceSampler::divide_answer(const Limits& limits, const Amounts& amounts) {
  Answer parts;
  parts.ids = take(parts.num_bytes, bytes_of<int32_t>(amounts.num_rows));
  if (amounts.num_logprobs == 0) return parts;
  parts.results = take(parts.num_bytes, bytes_of<LogprobsResult>(amounts.num_logprobs));
  parts.top = take(parts.num_bytes, bytes_of<TopToken>(amounts.num_logprobs * limits.max_logprobs));
  return parts;
}

int64_t DeviceSampler::device_bytes(const Limits& limits) {
  return divide_upload(limits, most(limits)).num_bytes + divide_answer(limits, most(limits)).num_bytes +
         bytes_of<float>(limits.max_rows * limits.vocab_size);
}

Result<std::array<std::unique_ptr<DeviceSampler>, 2>> DeviceSampler::create(Ops& ops, const Limits& limits) {
  Limits own = limits;
  own.num_token_ids = std::min(limits.num_token_ids, limits.vocab_size);
  own.max_logprobs = std::min(limits.max_logprobs, kMostTopTokens);
  const auto memory = std::make_shared<DeviceMemory>();
  ASSIGN_OR_RETURN(memory->upload, ops.allocate(divide_upload(own, most(own)).num_bytes, "sampling"));
  ASSIGN_OR_RETURN(memory->answer, ops.allocate(divide_answer(own, most(own)).num_bytes, "sampling"));
  ASSIGN_OR_RETURN(memory->kept, ops.allocate(bytes_of<float>(own.max_rows * own.vocab_size), "log-probabilities"));
  std::array<std::unique_ptr<DeviceSampler>, 2> samplers;
  for (std::unique_ptr<DeviceSampler>& sampler : samplers) {
    sampler.reset(new DeviceSampler(ops, own, memory));
    RETURN_IF_ERROR(sampler->init());
  }
  return samplers;
}

Status DeviceSampler::init() {
  ASSIGN_OR_RETURN(host_upload_, ops_.allocate_for_host(divide_upload(limits_, most(limits_)).num_bytes, "sampling"));
  ASSIGN_OR_RETURN(host_answer_, ops_.allocate_for_host(divide_answer(limits_, most(limits_)).num_bytes, "sampling"));
  seen_row_.resize(static_cast<size_t>(limits_.vocab_size));
  return ok_status();
}

void DeviceSampler::begin(int num_rows) {
  CHECK(num_rows <= limits_.max_rows);
  amounts_ = {.num_rows = num_rows};
  num_kept_ = 0;
  rows_.assign(static_cast<size_t>(num_rows), Row{});
  host_rows_.clear();
  sampling_rows_.assign(static_cast<size_t>(num_rows), SamplingRow{});
  adjustments_.clear();
  adjusted_calls_.clear();
  logprobs_rows_.clear();
}

void DeviceSampler::add_check(int row) {
  rows_[static_cast<size_t>(row)].is_drawn = true;
  sampling_rows_[static_cast<size_t>(row)] = {.num_token_ids = static_cast<int32_t>(limits_.num_token_ids)};
}

bool DeviceSampler::add(int row, const SampleCall& call) {
  const SamplingParams& params = call.params;
  const bool has_logprobs = params.num_logprobs >= 0;
  if (params.typical_p < 1.0f || params.num_logprobs > limits_.max_logprobs ||
      static_cast<int64_t>(params.logit_bias.size()) > kMostBiases) {
    return false;
  }
  const bool has_penalties = Sampler::needs_counts(params) && !call.state.counts.entries().empty();
  if (has_penalties && static_cast<int64_t>(call.state.counts.entries().size()) > most_penalized(limits_)) return false;

  Row& own = rows_[static_cast<size_t>(row)];
  own.is_drawn = true;
  sampling_rows_[static_cast<size_t>(row)] = Sampler::device_row(call, limits_.num_token_ids);
  own.is_adjusted = has_penalties || !params.logit_bias.empty() || Sampler::needs_mask(call);
  const bool is_raw = params.logprob_mode == LogprobMode::kRaw;
  int32_t kept_row = -1;
  if (own.is_adjusted) {
    if (has_logprobs && is_raw) kept_row = num_kept_++;
    LogitsAdjustment adjustment = {.row = row, .kept_row = kept_row, .penalties = {}};
    if (has_penalties) {
      adjustment.penalties = Sampler::penalties_of(params);
      adjustment.first_penalized = static_cast<int32_t>(amounts_.num_penalized);
      adjustment.num_penalized = static_cast<int32_t>(call.state.counts.entries().size());
      amounts_.num_penalized += adjustment.num_penalized;
    }
    adjustment.first_bias = static_cast<int32_t>(amounts_.num_biases);
    adjustment.num_biases = static_cast<int32_t>(params.logit_bias.size());
    amounts_.num_biases += adjustment.num_biases;
    if (Sampler::needs_mask(call)) {
      adjustment.first_mask_word = static_cast<int32_t>(amounts_.num_masks++ * num_mask_words(limits_));
    }
    adjustments_.push_back(adjustment);
    adjusted_calls_.push_back(call);
  }
  if (has_logprobs) {
    own.logprobs = static_cast<int>(logprobs_rows_.size());
    logprobs_rows_.push_back(
        {.row = row,
         .kept_row = kept_row,
         .num_token_ids = static_cast<int32_t>(is_raw ? limits_.vocab_size : limits_.num_token_ids),
         .num_top = params.num_logprobs,
         .scale = is_raw ? 1.0f : Sampler::scale_of(params)});
  }
  return true;
}

bool DeviceSampler::add_given(int row, int32_t token_id, int num_top) {
  if (num_top > limits_.max_logprobs) return false;
  add_check(row);
  Row& own = rows_[static_cast<size_t>(row)];
  own.given_id = token_id;
  own.logprobs = static_cast<int>(logprobs_rows_.size());
  logprobs_rows_.push_back({.row = row,
                            .num_token_ids = static_cast<int32_t>(limits_.vocab_size),
                            .num_top = num_top,
                            .given_id = token_id});
  return true;
}

void DeviceSampler::prepare(ThreadPool* pool) {
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (!rows_[r].is_drawn) host_rows_.push_back(static_cast<int>(r));
  }
  amounts_.num_adjustments = static_cast<int64_t>(adjustments_.size());
  amounts_.num_logprobs = static_cast<int64_t>(logprobs_rows_.size());
  upload_parts_ = divide_upload(limits_, amounts_);
  answer_parts_ = divide_answer(limits_, amounts_);
  std::copy(sampling_rows_.begin(), sampling_rows_.end(), to_upload<SamplingRow>(upload_parts_.rows));
  std::copy(adjustments_.begin(), adjustments_.end(), to_upload<LogitsAdjustment>(upload_parts_.adjustments));
  std::copy(logprobs_rows_.begin(), logprobs_rows_.end(), to_upload<LogprobsRow>(upload_parts_.logprobs));
  const auto write = [this](const WorkRange& range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      write_lists(adjusted_calls_[static_cast<size_t>(i)], adjustments_[static_cast<size_t>(i)]);
    }
  };
  // Waking a thread takes longer than a few lists do.
  constexpr size_t kFewestSideBySide = 8;
  const int64_t count = static_cast<int64_t>(adjustments_.size());
  if (pool != nullptr && adjustments_.size() >= kFewestSideBySide) {
    pool->parallel_for(count, 1, write);
  } else {
    write({.begin = 0, .end = count, .worker_index = 0});
  }
}

void DeviceSampler::write_lists(const SampleCall& call, const LogitsAdjustment& adjustment) {
  if (adjustment.num_penalized > 0) {
    const std::span<const PenalizedToken> entries = call.state.counts.entries();
    std::copy(entries.begin(), entries.end(),
              to_upload<PenalizedToken>(upload_parts_.penalized) + adjustment.first_penalized);
  }
  TokenBias* bias = to_upload<TokenBias>(upload_parts_.biases) + adjustment.first_bias;
  for (const auto& [token, value] : call.params.logit_bias) *bias++ = {token, value};
  if (adjustment.first_mask_word >= 0) {
    uint32_t* const words = to_upload<uint32_t>(upload_parts_.masks) + adjustment.first_mask_word;
    Sampler::fill_mask(call, std::span(words, static_cast<size_t>(num_mask_words(limits_))));
  }
}

void DeviceSampler::enqueue(OpContext& context, const TensorView& logits, const TensorView& ids) {
  CHECK(logits.size(0) == amounts_.num_rows && logits.size(1) == limits_.vocab_size);
  CHECK(ids.num_elements() == amounts_.num_rows);
  logits_ = logits;
  ops_.copy_to_device(context, memory_->upload.data(), host_upload_.data(), upload_parts_.num_bytes);
  const TensorView kept(memory_->kept.data(), DType::kF32, {num_kept_, limits_.vocab_size});
  if (!adjustments_.empty()) {
    ops_.adjust_logits(context, logits,
                       {.num_rows = static_cast<int>(adjustments_.size()),
                        .rows = uploaded<LogitsAdjustment>(upload_parts_.adjustments),
                        .penalized = uploaded<PenalizedToken>(upload_parts_.penalized),
                        .biases = uploaded<TokenBias>(upload_parts_.biases),
                        .mask_words = uploaded<uint32_t>(upload_parts_.masks),
                        .kept = kept});
  }
  ops_.sample(context, ids, logits, uploaded<SamplingRow>(upload_parts_.rows));
  char* const host_answer = static_cast<char*>(host_answer_.data());
  ops_.copy_to_host(context, host_answer + answer_parts_.ids, ids.raw_data(), bytes_of<int32_t>(amounts_.num_rows));
  if (logprobs_rows_.empty()) return;
  char* const answer = static_cast<char*>(memory_->answer.data());
  ops_.logprobs(context, logits,
                {.num_rows = static_cast<int>(logprobs_rows_.size()),
                 .rows = uploaded<LogprobsRow>(upload_parts_.logprobs),
                 .ids = ids.data<int32_t>(),
                 .kept = kept,
                 .results = reinterpret_cast<LogprobsResult*>(answer + answer_parts_.results),
                 .top = reinterpret_cast<TopToken*>(answer + answer_parts_.top),
                 .most_top = limits_.max_logprobs});
  ops_.copy_to_host(context, host_answer + answer_parts_.results, answer + answer_parts_.results,
                    answer_parts_.num_bytes - answer_parts_.results);
}

// A changed row from which nothing was drawn is looked at once more, to tell why.
void DeviceSampler::finish(OpContext& context) {
  const int32_t* const ids = reinterpret_cast<const int32_t*>(static_cast<const char*>(host_answer_.data()));
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (ids[r] >= 0 || !rows_[r].is_adjusted) continue;
    const float* const data = logits_.data<float>() + static_cast<int64_t>(r) * logits_.stride(0);
    ops_.copy_to_host(context, seen_row_.data(), data, bytes_of<float>(limits_.num_token_ids));
    ops_.synchronize(context);
    rows_[r].is_excluded = std::all_of(seen_row_.begin(), seen_row_.begin() + limits_.num_token_ids,
                                       [](float logit) { return logit < std::numeric_limits<float>::infinity(); });
  }
}

Result<Sample> DeviceSampler::sample_of(int row) const {
  const Row& own = rows_[static_cast<size_t>(row)];
  CHECK(own.is_drawn);
  const char* const answer = static_cast<const char*>(host_answer_.data());
  const int32_t token = reinterpret_cast<const int32_t*>(answer + answer_parts_.ids)[row];
  if (token < 0) return own.is_excluded ? Sampler::all_excluded() : Sampler::not_numbers();
  Sample sample = {.token_id = own.given_id >= 0 ? own.given_id : token, .logprobs = {}};
  if (own.logprobs >= 0) {
    const LogprobsResult& result =
        reinterpret_cast<const LogprobsResult*>(answer + answer_parts_.results)[own.logprobs];
    // Infinity in a column that no token has: it is not drawn from, yet counts among a row's logits.
    if (result.total == 0) return Sampler::not_numbers();
    const TopToken* const top =
        reinterpret_cast<const TopToken*>(answer + answer_parts_.top) + int64_t{own.logprobs} * limits_.max_logprobs;
    const LogprobsRow& wanted = logprobs_rows_[static_cast<size_t>(own.logprobs)];
    sample.logprobs =
        Sampler::logprobs_from(result, {top, static_cast<size_t>(result.num_top)}, sample.token_id, wanted.scale);
  }
  return sample;
}

}  // namespace quire
