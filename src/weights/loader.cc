// Two passes over the map: plan() finds every tensor, checks it and cuts out this rank's part, collecting all
// complaints; load_rows() reads. A matrix that is one contiguous piece of the file is handed to pack() in place; joined
// pieces and cut inputs are first copied together.
#include "weights/loader.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <set>
#include <tuple>
#include <unordered_set>

#include "quant/dequantize.h"
#include "weights/messages.h"

namespace quire {

namespace {

constexpr size_t kMaxComplaints = 12;  // of one kind, in an error message
constexpr size_t kCopyAlignment = 64;  // a cache line

// A rank's part of one tensor.
struct PlannedPiece {
  const SourceTensor* tensor = nullptr;
  int64_t num_tensor_rows = 0;  // outputs of the whole tensor, of one expert
  ShardRange rows;              // outputs taken, counted in the tensor
  ShardRange inputs;            // of a matrix
};

struct PlannedRow {
  const WeightRow* row = nullptr;
  FormatId format = FormatId::kF32;
  std::vector<PlannedPiece> pieces;  // empty: optional and missing
  int64_t num_file_bytes = 0;
  bool is_shared = false;  // the matrix of an earlier row, as of tied embeddings: nothing more is read

  int64_t num_bytes_to_read() const { return is_shared ? 0 : num_file_bytes; }
  int64_t num_outputs() const {
    int64_t count = 0;
    for (const PlannedPiece& piece : pieces) count += piece.rows.count;
    return count;
  }
};

std::string quoted_names(const std::vector<std::string>& names) {
  std::string text = quoted(names.front());
  if (names.size() == 1) return text;
  std::vector<std::string> others;
  for (size_t i = 1; i < names.size(); ++i) others.push_back(quoted(names[i]));
  return text + " (or " + join_some(others, ", ", names.size()) + ")";
}

Result<std::shared_ptr<std::byte>> allocate_copy(int64_t num_bytes) {
  void* data = ::operator new(static_cast<size_t>(num_bytes), std::align_val_t(kCopyAlignment), std::nothrow);
  if (data == nullptr) {
    return resource_exhausted("out of memory: " + std::to_string(num_bytes) + " bytes for a weight");
  }
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(data), [](std::byte* bytes) {
    ::operator delete(bytes, std::align_val_t(kCopyAlignment));
  });
}

bool is_aligned(const std::byte* data, FormatId format) {
  const uintptr_t alignment = format == FormatId::kF32 ? 4 : 2;  // of the widest field in a block
  return reinterpret_cast<uintptr_t>(data) % alignment == 0;
}

}  // namespace

class LoaderJob {
 public:
  LoaderJob(const WeightMap& map, const TensorSource& source, Rank rank, const LoadCallbacks& callbacks)
      : map_(map), source_(source), rank_(rank), callbacks_(callbacks) {}

  Result<LoadedWeights> run() {
    for (const WeightRow& row : map_.rows) plan(row);
    RETURN_IF_ERROR(complaints());
    find_unused();
    find_shared();
    for (const PlannedRow& plan : plans_) progress_.num_bytes_total += plan.num_bytes_to_read();
    if (!plans_.empty()) announce(plans_.front());
    for (size_t i = 0; i < plans_.size(); ++i) {
      const PlannedRow& plan = plans_[i];
      if (i + 1 < plans_.size()) announce(plans_[i + 1]);
      const Status status = plan.row->kind == RowKind::kMatrix ? load_matrix(plan) : load_vector(plan);
      if (!status.is_ok()) return status.with_context("loading weight " + plan.row->name);
      progress_.num_bytes_done += plan.num_bytes_to_read();
      progress_.row_name = plan.row->name;
      if (callbacks_.progress) callbacks_.progress(progress_);
    }
    return std::move(result_);
  }

 private:
  // ---- Planning ----------------------------------------------------------------------------------------------------

  // Which bytes a weight is made of; equal keys, equal weights.
  using WeightKey = std::tuple<const SourceTensor*, int64_t, int64_t, int64_t, int64_t>;
  static WeightKey key_of(const PlannedPiece& piece) {
    return {piece.tensor, piece.rows.first, piece.rows.count, piece.inputs.first, piece.inputs.count};
  }

  const SourceTensor* find_any(const std::vector<std::string>& names) const {
    for (const std::string& name : names) {
      if (const SourceTensor* tensor = source_.find(name)) return tensor;
    }
    return nullptr;
  }

  void plan(const WeightRow& row) {
    CHECK(!row.pieces.empty());
    CHECK(row.kind == RowKind::kMatrix || row.num_experts == 1);
    PlannedRow plan;
    plan.row = &row;
    const bool is_missing = std::all_of(row.pieces.begin(), row.pieces.end(),
                                        [&](const WeightPiece& piece) { return find_any(piece.tensors) == nullptr; });
    if (!is_missing || !row.is_optional) {
      for (const WeightPiece& piece : row.pieces) plan_piece(row, piece, plan);
    }
    plans_.push_back(std::move(plan));
  }

  void plan_piece(const WeightRow& row, const WeightPiece& piece, PlannedRow& plan) {
    const SourceTensor* tensor = find_any(piece.tensors);
    if (tensor == nullptr) {
      missing_.push_back(quoted_names(piece.tensors));
      return;
    }
    used_.insert(tensor);
    if (!tensor->format.has_value()) {
      unsupported_.push_back(quoted(tensor->name) + " is of type " + tensor->type_name);
      return;
    }
    const int64_t tensor_rows = piece.tensor_rows > 0 ? piece.tensor_rows : piece.num_rows;
    CHECK(piece.num_rows > 0 && piece.first_row >= 0 && piece.first_row + piece.num_rows <= tensor_rows);
    std::vector<int64_t> wanted;
    if (row.num_experts > 1) wanted.push_back(row.num_experts);
    wanted.push_back(tensor_rows);
    if (row.kind == RowKind::kMatrix) wanted.push_back(row.num_inputs);
    if (tensor->sizes != wanted) {
      misshapen_.push_back(quoted(tensor->name) + " is " + describe_sizes(tensor->sizes) + ", should be " +
                           describe_sizes(wanted));
      return;
    }
    if (plan.pieces.empty()) plan.format = *tensor->format;
    if (row.kind == RowKind::kMatrix && *tensor->format != plan.format) {
      uncut_.push_back(quoted(tensor->name) + " of type " + tensor->type_name + " cannot be joined with " +
                       quoted(plan.pieces.front().tensor->name) + " of type " + plan.pieces.front().tensor->type_name);
      return;
    }
    cut(row, piece, *tensor, plan);
  }

  // Adds this rank's part of a tensor that fits.
  void cut(const WeightRow& row, const WeightPiece& piece, const SourceTensor& tensor, PlannedRow& plan) {
    const bool cuts_inputs = piece.shard.kind == ShardKind::kRows && row.kind == RowKind::kMatrix;
    const Result<ShardRange> range = shard_range(cuts_inputs ? row.num_inputs : piece.num_rows, piece.shard, rank_);
    if (!range.is_ok()) {
      uncut_.push_back(quoted(tensor.name) + ": " + range.status().message());
      return;
    }
    PlannedPiece planned = {.tensor = &tensor,
                            .num_tensor_rows = piece.tensor_rows > 0 ? piece.tensor_rows : piece.num_rows,
                            .rows = {piece.first_row, piece.num_rows},
                            .inputs = {0, row.num_inputs}};
    if (cuts_inputs) {
      planned.inputs = range.value();
    } else {
      planned.rows = {piece.first_row + range.value().first, range.value().count};
    }
    const QuantFormat& format = quant_format(plan.format);
    const int64_t block = format.values_per_block;
    if (planned.inputs.first % block != 0 || planned.inputs.count % block != 0) {
      uncut_.push_back(quoted(tensor.name) + ": rank " + std::to_string(rank_.index) + " would get inputs " +
                       std::to_string(planned.inputs.first) + " to " +
                       std::to_string(planned.inputs.first + planned.inputs.count - 1) + ", but the blocks of " +
                       std::string(format.name) + " hold " + std::to_string(block));
      return;
    }
    plan.num_file_bytes += row.kind == RowKind::kMatrix
                               ? row.num_experts * planned.rows.count * format.row_bytes(planned.inputs.count)
                               : planned.rows.count * format.bytes_per_block;
    plan.pieces.push_back(planned);
  }

  Status complaints() const {
    std::vector<std::string> parts;
    const auto add = [&](const std::vector<std::string>& items, const char* what) {
      if (!items.empty()) {
        parts.push_back(std::to_string(items.size()) + " " + what + ": " + join_some(items, ", ", kMaxComplaints));
      }
    };
    add(missing_, "missing");
    add(misshapen_, "of the wrong shape");
    add(unsupported_, "of a type that is not supported");
    add(uncut_, "that cannot be split or joined");
    if (parts.empty()) return ok_status();
    const std::string text =
        "the file's tensors are not those that this model needs: " + join_some(parts, "; ", parts.size());
    const bool is_sound = missing_.empty() && misshapen_.empty();
    return is_sound ? unimplemented(text) : invalid_argument(text);
  }

  void find_unused() {
    for (const SourceTensor& tensor : source_.tensors()) {
      if (used_.contains(&tensor)) continue;
      const bool is_ignored = std::any_of(map_.ignored.begin(), map_.ignored.end(), [&](const std::string& pattern) {
        return matches_pattern(tensor.name, pattern);
      });
      if (!is_ignored) result_.unused_tensors_.push_back(tensor.name);
    }
  }

  void find_shared() {
    std::set<WeightKey> keys;
    for (PlannedRow& plan : plans_) {
      const bool is_single_matrix = plan.row->kind == RowKind::kMatrix && plan.pieces.size() == 1;
      if (is_single_matrix) plan.is_shared = !keys.insert(key_of(plan.pieces.front())).second;
    }
  }

  // ---- Reading -----------------------------------------------------------------------------------------------------

  // Lets the disk work on a row while the one before it is packed.
  void announce(const PlannedRow& plan) const {
    for (const PlannedPiece& piece : plan.pieces) {
      const SourceTensor& tensor = *piece.tensor;
      const auto row_bytes = static_cast<int64_t>(tensor.data.size()) / (piece.num_tensor_rows * plan.row->num_experts);
      const bool is_one_run = plan.row->num_experts == 1 && plan.row->kind == RowKind::kMatrix;
      source_.will_need(is_one_run ? tensor.data.subspan(static_cast<size_t>(piece.rows.first * row_bytes),
                                                         static_cast<size_t>(piece.rows.count * row_bytes))
                                   : tensor.data);
    }
  }

  Status load_matrix(const PlannedRow& plan) {
    const WeightRow& row = *plan.row;
    Weight& target = result_.matrices_[row.name];
    if (plan.pieces.empty()) return ok_status();
    if (plan.is_shared) {
      target = packed_.at(key_of(plan.pieces.front()));
      return ok_status();
    }
    for (const PlannedPiece& piece : plan.pieces) RETURN_IF_ERROR(source_.prepare(*piece.tensor));
    ASSIGN_OR_RETURN(const Weight weight, gather(plan));
    if (callbacks_.pack) {
      ASSIGN_OR_RETURN(target, callbacks_.pack(weight));
    } else {
      target = weight;
    }
    if (target.owner != source_.owner()) {
      for (const PlannedPiece& piece : plan.pieces) source_.done_with(piece.tensor->data);
    }
    if (plan.pieces.size() == 1) packed_.emplace(key_of(plan.pieces.front()), target);
    result_.num_bytes_ += target.num_bytes();
    return ok_status();
  }

  // The row-major weight: in place where it can be, else copied together.
  Result<Weight> gather(const PlannedRow& plan) {
    const WeightRow& row = *plan.row;
    const PlannedPiece& first = plan.pieces.front();
    const PieceShard& shard = row.pieces.front().shard;
    const bool cuts_inputs = shard.kind == ShardKind::kRows;
    Weight weight;
    weight.format = plan.format;
    weight.n = plan.num_outputs();
    weight.k = first.inputs.count;
    weight.num_experts = row.num_experts;
    weight.shard = {shard.kind, shard.unit,
                    cuts_inputs ? first.inputs.first : first.rows.first - row.pieces.front().first_row};

    const QuantFormat& format = quant_format(plan.format);
    const int64_t file_row_bytes = format.row_bytes(row.num_inputs);
    const bool is_contiguous = plan.pieces.size() == 1 && first.inputs.count == row.num_inputs &&
                               (row.num_experts == 1 || first.rows.count == first.num_tensor_rows);
    if (is_contiguous) {
      const auto bytes = first.tensor->data.subspan(static_cast<size_t>(first.rows.first * file_row_bytes),
                                                    static_cast<size_t>(plan.num_file_bytes));
      if (is_aligned(bytes.data(), plan.format)) {
        weight.parts[0] = bytes;
        weight.owner = source_.owner();
        return weight;
      }
    }
    RETURN_IF_ERROR(make_room_for_copy(plan.num_file_bytes));
    std::byte* out = copy_.get();
    for (int64_t expert = 0; expert < row.num_experts; ++expert) {
      for (const PlannedPiece& piece : plan.pieces) {
        const int64_t skipped_bytes = format.row_bytes(piece.inputs.first);
        const int64_t row_bytes = format.row_bytes(piece.inputs.count);
        const int64_t first_row = expert * piece.num_tensor_rows + piece.rows.first;
        const std::byte* in = piece.tensor->data.data() + first_row * file_row_bytes + skipped_bytes;
        const bool is_one_run = row_bytes == file_row_bytes;
        const int64_t num_runs = is_one_run ? 1 : piece.rows.count;
        const int64_t run_bytes = is_one_run ? piece.rows.count * row_bytes : row_bytes;
        for (int64_t i = 0; i < num_runs; ++i, in += file_row_bytes, out += run_bytes) {
          std::memcpy(out, in, static_cast<size_t>(run_bytes));
        }
      }
    }
    weight.parts[0] = {copy_.get(), static_cast<size_t>(plan.num_file_bytes)};
    weight.owner = copy_;
    return weight;
  }

  // The room of the copy before is taken again where nobody holds that one any more: its memory is there already.
  Status make_room_for_copy(int64_t num_bytes) {
    if (copy_.use_count() == 1 && num_bytes <= copy_bytes_) return ok_status();
    copy_.reset();
    copy_bytes_ = 0;
    ASSIGN_OR_RETURN(copy_, allocate_copy(num_bytes));
    copy_bytes_ = num_bytes;
    return ok_status();
  }

  Status load_vector(const PlannedRow& plan) {
    std::vector<float>& values = result_.vectors_[plan.row->name];
    for (const PlannedPiece& piece : plan.pieces) {
      RETURN_IF_ERROR(source_.prepare(*piece.tensor));
      // Whole blocks around the values, should somebody have quantized a vector.
      const QuantFormat& format = quant_format(*piece.tensor->format);
      std::vector<float> all(static_cast<size_t>(piece.num_tensor_rows));
      dequantize_row(format.id, piece.tensor->data.data(), all.data(), piece.num_tensor_rows);
      values.insert(values.end(), all.begin() + piece.rows.first, all.begin() + piece.rows.first + piece.rows.count);
    }
    for (float& value : values) value += plan.row->add;
    result_.num_bytes_ += static_cast<int64_t>(values.size() * sizeof(float));
    return ok_status();
  }

  const WeightMap& map_;
  const TensorSource& source_;
  const Rank rank_;
  const LoadCallbacks& callbacks_;
  std::vector<PlannedRow> plans_;
  std::unordered_set<const SourceTensor*> used_;
  std::vector<std::string> missing_;
  std::vector<std::string> misshapen_;
  std::vector<std::string> unsupported_;
  std::vector<std::string> uncut_;
  std::map<WeightKey, Weight> packed_;
  std::shared_ptr<std::byte> copy_;  // the last weight that had to be copied together
  int64_t copy_bytes_ = 0;
  LoadProgress progress_;
  LoadedWeights result_;
};

const Weight& LoadedWeights::matrix(std::string_view name) const {
  const auto found = matrices_.find(std::string(name));
  CHECK(found != matrices_.end());
  return found->second;
}

const std::vector<float>& LoadedWeights::vector(std::string_view name) const {
  const auto found = vectors_.find(std::string(name));
  CHECK(found != vectors_.end());
  return found->second;
}

Result<LoadedWeights> load(const WeightMap& map, const TensorSource& source, Rank rank,
                           const LoadCallbacks& callbacks) {
  return LoaderJob(map, source, rank, callbacks).run();
}

}  // namespace quire
