#include "weights/random_weights.h"

#include <algorithm>
#include <map>
#include <set>

namespace quire {

AnyTensorSource::AnyTensorSource(FormatId format) {
  tensor_.format = format;
  tensor_.type_name = quant_format(format).name;
}

OneFormatSource::OneFormatSource(const TensorSource& source, FormatId format)
    : tensors_(source.tensors().begin(), source.tensors().end()) {
  for (SourceTensor& tensor : tensors_) {
    tensor.data = {};
    if (tensor.sizes.size() < 2) continue;
    tensor.format = format;
    tensor.type_name = quant_format(format).name;
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const SourceTensor& a, const SourceTensor& b) { return a.name < b.name; });
}

const SourceTensor* OneFormatSource::find(std::string_view name) const {
  const auto found = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                      [](const SourceTensor& a, std::string_view b) { return a.name < b; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

class RandomWeightsJob {
 public:
  RandomWeightsJob(const TensorSource& source, FormatId format, Rank rank, const RandomWeightCallbacks& callbacks)
      : source_(source), format_(format), rank_(rank), callbacks_(callbacks) {}

  Result<LoadedWeights> run(const WeightMap& map) {
    std::set<WeightKey> keys;
    for (const WeightRow& row : map.rows) {
      ASSIGN_OR_RETURN(const Weight shape, shape_of(row));
      if (!may_be_shared(row) || keys.insert(key_of(row)).second) progress_.num_bytes_total += bytes_of(shape);
    }
    uint64_t seed = 0;
    for (const WeightRow& row : map.rows) {
      const Status status = make(row, ++seed);
      if (!status.is_ok()) return status.with_context("making random weights for " + row.name);
      progress_.row_name = row.name;
      if (callbacks_.progress) callbacks_.progress(progress_);
    }
    return std::move(result_);
  }

 private:
  static int64_t bytes_of(const Weight& shape) {
    return shape.num_experts * shape.n * shape.quant().row_bytes(shape.k);
  }

  // Tied embeddings: one tensor, two rows.
  using WeightKey = std::pair<std::string, int64_t>;
  static bool may_be_shared(const WeightRow& row) { return row.kind == RowKind::kMatrix && row.pieces.size() == 1; }
  static WeightKey key_of(const WeightRow& row) {
    return {row.pieces.front().tensors.front(), row.pieces.front().first_row};
  }

  FormatId format_of(const WeightRow& row) const {
    for (const std::string& name : row.pieces.front().tensors) {
      const SourceTensor* tensor = source_.find(name);
      if (tensor != nullptr && tensor->format.has_value()) return *tensor->format;
    }
    return format_;
  }

  // This rank's part of a row; of a vector the number of values is n, and k is 1.
  Result<Weight> shape_of(const WeightRow& row) const {
    const bool is_matrix = row.kind == RowKind::kMatrix;
    Weight shape;
    shape.format = is_matrix ? format_of(row) : FormatId::kF32;
    shape.k = is_matrix ? row.num_inputs : 1;
    shape.num_experts = row.num_experts;
    for (const WeightPiece& piece : row.pieces) {
      const bool cuts_inputs = piece.shard.kind == ShardKind::kRows && is_matrix;
      ASSIGN_OR_RETURN(const ShardRange range,
                       shard_range(cuts_inputs ? row.num_inputs : piece.num_rows, piece.shard, rank_));
      if (cuts_inputs) shape.k = range.count;
      shape.n += cuts_inputs ? piece.num_rows : range.count;
    }
    if (const int64_t block = shape.quant().values_per_block; is_matrix && shape.k % block != 0) {
      return invalid_argument(row.name + " has " + std::to_string(shape.k) + " inputs, and the blocks of " +
                              std::string(shape.quant().name) + " hold " + std::to_string(block) +
                              ": choose another --quantization");
    }
    return shape;
  }

  Status make(const WeightRow& row, uint64_t seed) {
    ASSIGN_OR_RETURN(const Weight shape, shape_of(row));
    if (row.kind == RowKind::kVector) {
      const bool is_bias = row.name.ends_with(".bias");
      result_.vectors_[row.name].assign(static_cast<size_t>(shape.n), is_bias ? 0.0f : 1.0f);
      result_.num_bytes_ += shape.n * static_cast<int64_t>(sizeof(float));
      progress_.num_bytes_done += bytes_of(shape);
      return ok_status();
    }
    Weight& target = result_.matrices_[row.name];
    if (const auto same = made_.find(key_of(row)); may_be_shared(row) && same != made_.end()) {
      target = same->second;
    } else {
      ASSIGN_OR_RETURN(target, callbacks_.make(shape, seed));
      result_.num_bytes_ += target.num_bytes();
      if (may_be_shared(row)) made_.emplace(key_of(row), target);
      progress_.num_bytes_done += bytes_of(shape);
    }
    return ok_status();
  }

  const TensorSource& source_;
  const FormatId format_;
  const Rank rank_;
  const RandomWeightCallbacks& callbacks_;
  std::map<WeightKey, Weight> made_;
  LoadProgress progress_;
  LoadedWeights result_;
};

Result<LoadedWeights> make_random_weights(const WeightMap& map, const TensorSource& source, FormatId format, Rank rank,
                                          const RandomWeightCallbacks& callbacks) {
  return RandomWeightsJob(source, format, rank, callbacks).run(map);
}

}  // namespace quire
