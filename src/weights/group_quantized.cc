#include "weights/group_quantized.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/cpu_info.h"
#include "base/thread_pool.h"
#include "quant/dequantize.h"
#include "quant/regroup.h"
#include "tensor/dtype.h"
#include "weights/messages.h"

namespace quire {

namespace {

constexpr int kCodesOfWord = 8;
constexpr int kSymmetricZero = 8;
constexpr int kChunk = 128;       // inputs that are turned at once
constexpr int kTileOutputs = 32;  // a multiple of 8
// Which output of eight each nibble of AWQ's words belongs to.
constexpr int kAwqOrder[kCodesOfWord] = {0, 2, 4, 6, 1, 3, 5, 7};

// ---- One matrix -----------------------------------------------------------------------------------------------------

// The tensors of a matrix, checked.
struct Matrix {
  std::string name;
  const SourceTensor* codes = nullptr;
  const SourceTensor* zeros = nullptr;  // null: 8 everywhere
  const SourceTensor* scales = nullptr;
  const SourceTensor* groups = nullptr;  // of each input, where they are not in order
  int64_t n = 0;
  int64_t k = 0;
  int64_t group_size = 0;
  int64_t num_groups = 0;
  FormatId format = FormatId::kInt4G128;
};

uint32_t word_at(const SourceTensor& tensor, int64_t index) {
  uint32_t word;
  std::memcpy(&word, tensor.data.data() + index * 4, sizeof(word));
  return word;
}

float float_at(const SourceTensor& tensor, int64_t index) {
  const int64_t bytes = quant_format(*tensor.format).bytes_per_block;
  float value;
  dequantize_row(*tensor.format, tensor.data.data() + index * bytes, &value, 1);
  return value;
}

class MatrixReader {
 public:
  MatrixReader(const Matrix& matrix, const GroupQuantization& quantization)
      : matrix_(matrix), quantization_(quantization) {}

  // codes[i][j]: output first_output + i, input first_input + j. Outputs are whole words.
  void read_codes(int64_t first_output, int num_outputs, int64_t first_input, int num_inputs,
                  uint8_t (*codes)[kChunk]) const {
    const SourceTensor& tensor = *matrix_.codes;
    switch (quantization_.method) {
      case GroupMethod::kGptq:  // [k / 8, n]
        for (int word_row = 0; word_row < num_inputs / kCodesOfWord; ++word_row) {
          const int64_t row = (first_input / kCodesOfWord + word_row) * matrix_.n + first_output;
          for (int i = 0; i < num_outputs; ++i) spread(word_at(tensor, row + i), &codes[i][word_row * kCodesOfWord]);
        }
        return;
      case GroupMethod::kAwq:  // [k, n / 8]
        for (int j = 0; j < num_inputs; ++j) {
          const int64_t row = ((first_input + j) * matrix_.n + first_output) / kCodesOfWord;
          for (int i = 0; i < num_outputs; i += kCodesOfWord) {
            const uint32_t word = word_at(tensor, row + i / kCodesOfWord);
            for (int p = 0; p < kCodesOfWord; ++p) {
              codes[i + kAwqOrder[p]][j] = static_cast<uint8_t>(word >> (4 * p) & 15);
            }
          }
        }
        return;
      case GroupMethod::kCompressedTensors:  // [n, k / 8]
        for (int i = 0; i < num_outputs; ++i) {
          const int64_t row = ((first_output + i) * matrix_.k + first_input) / kCodesOfWord;
          for (int w = 0; w < num_inputs / kCodesOfWord; ++w) {
            spread(word_at(tensor, row + w), &codes[i][w * kCodesOfWord]);
          }
        }
        return;
    }
  }

  int zero(int64_t output, int64_t group) const {
    if (matrix_.zeros == nullptr) return kSymmetricZero;
    const uint32_t word = word_at(*matrix_.zeros, (group * matrix_.n + output) / kCodesOfWord);
    int nibble = static_cast<int>(output % kCodesOfWord);
    if (quantization_.method == GroupMethod::kAwq) {
      nibble = static_cast<int>(std::find(kAwqOrder, kAwqOrder + kCodesOfWord, nibble) - kAwqOrder);
    }
    // Zero points have 4 bits: a 0 that was stored as one less is 15 there.
    return (static_cast<int>(word >> (4 * nibble) & 15) + quantization_.stored_zero_shift) & 15;
  }

  float scale(int64_t output, int64_t group) const {
    const bool is_by_output = quantization_.method == GroupMethod::kCompressedTensors;  // [n, groups], else [groups, n]
    return float_at(*matrix_.scales, is_by_output ? output * matrix_.num_groups + group : group * matrix_.n + output);
  }

 private:
  static void spread(uint32_t word, uint8_t* codes) {
    for (int p = 0; p < kCodesOfWord; ++p) codes[p] = static_cast<uint8_t>(word >> (4 * p) & 15);
  }

  const Matrix& matrix_;
  const GroupQuantization& quantization_;
};

// Blocks of the format from codes, a scale and a zero point that they share.
void write_blocks(FormatId format, const uint8_t* codes, int num_inputs, uint16_t scale, int zero, std::byte* out) {
  const QuantFormat& quant = quant_format(format);
  const int half = quant.values_per_block / 2;
  for (int first = 0; first < num_inputs; first += quant.values_per_block, out += quant.bytes_per_block) {
    const uint8_t* block = codes + first;
    if (format != FormatId::kInt4G128) {
      write_int4_group(format, block, scale, zero, out);
      continue;
    }
    std::memcpy(out, &scale, sizeof(scale));
    out[2] = static_cast<std::byte>(zero);
    for (int i = 0; i < half; ++i) out[3 + i] = static_cast<std::byte>(block[i] | block[half + i] << 4);
  }
}

// ---- All of them ----------------------------------------------------------------------------------------------------

// Bytes that take memory only once they are written, until they are dropped.
class LazyBytes {
 public:
  // Empty where there is not even room for addresses.
  explicit LazyBytes(size_t num_bytes) : num_bytes_(num_bytes) {
    data_ = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) num_bytes_ = 0;
  }
  ~LazyBytes() {
    if (num_bytes_ > 0) ::munmap(data_, num_bytes_);
  }
  LazyBytes(LazyBytes&& other) noexcept : data_(other.data_), num_bytes_(std::exchange(other.num_bytes_, 0)) {}
  LazyBytes(const LazyBytes&) = delete;
  LazyBytes& operator=(const LazyBytes&) = delete;

  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), num_bytes_}; }
  void drop() const { ::madvise(data_, num_bytes_, MADV_DONTNEED); }

 private:
  void* data_ = nullptr;
  size_t num_bytes_;
};

// What weights that were not packed keep alive.
struct Storage {
  std::shared_ptr<const void> files;
  std::vector<LazyBytes> matrices;
};

class GroupQuantizedTensors final : public TensorSource {
 public:
  GroupQuantizedTensors(std::unique_ptr<TensorSource> files, const GroupQuantization& quantization)
      : files_(std::move(files)), quantization_(quantization), storage_(std::make_shared<Storage>()) {
    storage_->files = files_->owner();
  }

  Status open() {
    const bool is_compressed = quantization_.method == GroupMethod::kCompressedTensors;
    const std::string_view codes_ending = is_compressed ? ".weight_packed" : ".qweight";
    const std::vector<std::string_view> parts =
        is_compressed ? std::vector<std::string_view>{".weight_scale", ".weight_shape", ".weight_g_idx"}
                      : std::vector<std::string_view>{".qzeros", ".scales", ".g_idx"};
    for (const SourceTensor& tensor : files_->tensors()) {
      if (tensor.name.ends_with(codes_ending)) {
        const std::string name = tensor.name.substr(0, tensor.name.size() - codes_ending.size());
        ASSIGN_OR_RETURN(Matrix matrix, check_matrix(name, tensor));
        matrices_.push_back(std::move(matrix));
        continue;
      }
      const bool is_part = std::any_of(parts.begin(), parts.end(), [&](std::string_view ending) {
        return tensor.name.ends_with(ending) && files_->find(tensor.name.substr(0, tensor.name.size() - ending.size()) +
                                                             std::string(codes_ending)) != nullptr;
      });
      if (!is_part) tensors_.push_back(tensor);
    }
    // Blocks hold neighbouring inputs; of others each number stands for itself. All alike, so that they can be joined.
    const bool is_in_order =
        std::all_of(matrices_.begin(), matrices_.end(), [](const Matrix& matrix) { return matrix.groups == nullptr; });
    for (size_t i = 0; i < matrices_.size(); ++i) {
      if (!is_in_order) matrices_[i].format = FormatId::kF16;
      RETURN_IF_ERROR(add_tensor(i));
    }
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!index_.emplace(tensors_[i].name, i).second) {
        return invalid_argument("the model has " + quoted(tensors_[i].name) + " both quantized and not" + kWhatToTake);
      }
    }
    return ok_status();
  }

  std::span<const SourceTensor> tensors() const override { return tensors_; }
  const SourceTensor* find(std::string_view name) const override {
    const auto found = index_.find(std::string(name));
    return found == index_.end() ? nullptr : &tensors_[found->second];
  }
  std::shared_ptr<const void> owner() const override { return storage_; }
  Status prepare(const SourceTensor& tensor) const override {
    const std::optional<size_t> index = matrix_of(tensor.data);
    if (!index.has_value() || is_turned_[*index]) return ok_status();
    RETURN_IF_ERROR(turn_matrix(matrices_[*index], storage_->matrices[*index].bytes()));
    is_turned_[*index] = true;
    return ok_status();
  }
  Status check_unchanged() const override { return files_->check_unchanged(); }

  void will_need(std::span<const std::byte> part) const override {
    const std::optional<size_t> index = matrix_of(part);
    files_->will_need(index.has_value() ? matrices_[*index].codes->data : part);
  }
  // The whole of a matrix, whichever part has been copied.
  void done_with(std::span<const std::byte> part) const override {
    const std::optional<size_t> index = matrix_of(part);
    if (!index.has_value()) return files_->done_with(part);
    storage_->matrices[*index].drop();
    is_turned_[*index] = false;
  }

 private:
  // The matrix of ours that holds these bytes.
  std::optional<size_t> matrix_of(std::span<const std::byte> part) const {
    const auto behind = by_address_.upper_bound(part.data());
    if (behind == by_address_.begin()) return std::nullopt;
    const size_t index = std::prev(behind)->second;
    const std::span<const std::byte> bytes = storage_->matrices[index].bytes();
    if (part.data() >= bytes.data() + bytes.size()) return std::nullopt;
    return index;
  }

  // A tensor that must be there, of this shape; of 32-bit words where it holds packed codes.
  Result<const SourceTensor*> find_part(const std::string& name, const std::vector<int64_t>& sizes,
                                        bool is_packed) const {
    const SourceTensor* tensor = files_->find(name);
    if (tensor == nullptr) return invalid_argument("the model lacks the tensor " + quoted(name));
    if (tensor->sizes != sizes) {
      return invalid_argument(quoted(name) + " is " + describe_sizes(tensor->sizes) + ", should be " +
                              describe_sizes(sizes));
    }
    const bool is_float = tensor->format.has_value() && quant_format(*tensor->format).is_float;
    if (is_packed ? tensor->type_name != "I32" : !is_float) {
      return unimplemented(quoted(name) + " is of type " + tensor->type_name + ", which is not expected there" +
                           kWhatToTake);
    }
    return tensor;
  }

  Result<Matrix> check_matrix(const std::string& name, const SourceTensor& codes) const {
    Matrix matrix{.name = name + ".weight", .codes = &codes};
    const std::vector<int64_t>& sizes = codes.sizes;
    if (codes.type_name != "I32" || sizes.size() != 2 || sizes[0] <= 0 || sizes[1] <= 0 || sizes[0] > kMaxGroupedSide ||
        sizes[1] > kMaxGroupedSide) {
      return invalid_argument(quoted(codes.name) + " of type " + codes.type_name + describe_sizes(sizes) +
                              " is no matrix of packed codes");
    }
    switch (quantization_.method) {
      case GroupMethod::kGptq:
        matrix.k = kCodesOfWord * sizes[0];
        matrix.n = sizes[1];
        break;
      case GroupMethod::kAwq:
        matrix.k = sizes[0];
        matrix.n = kCodesOfWord * sizes[1];
        break;
      case GroupMethod::kCompressedTensors:
        matrix.n = sizes[0];
        matrix.k = kCodesOfWord * sizes[1];
        break;
    }
    matrix.group_size = quantization_.group_size == -1 ? matrix.k : quantization_.group_size;
    if (matrix.k % matrix.group_size != 0 || matrix.group_size % 32 != 0 || matrix.n % kCodesOfWord != 0) {
      return unimplemented(quoted(codes.name) + " has " + std::to_string(matrix.n) + " outputs and " +
                           std::to_string(matrix.k) + " inputs, which are not whole groups of " +
                           std::to_string(matrix.group_size) + kWhatToTake);
    }
    matrix.num_groups = matrix.k / matrix.group_size;
    if (quantization_.method == GroupMethod::kCompressedTensors) {
      if (files_->find(name + ".weight_zero_point") != nullptr) {
        return unimplemented("the model has zero points, such as " + quoted(name + ".weight_zero_point") +
                             ", which are not supported in pack-quantized weights" + kWhatToTake);
      }
      ASSIGN_OR_RETURN(matrix.scales, find_part(name + ".weight_scale", {matrix.n, matrix.num_groups}, false));
    } else {
      ASSIGN_OR_RETURN(matrix.scales, find_part(name + ".scales", {matrix.num_groups, matrix.n}, false));
      ASSIGN_OR_RETURN(matrix.zeros, find_part(name + ".qzeros", {matrix.num_groups, matrix.n / kCodesOfWord}, true));
    }
    // One choice for all matrices with as many inputs, so that they can be joined.
    matrix.format = matrix.group_size % kChunk == 0 ? FormatId::kInt4G128
                    : quantization_.is_symmetric    ? FormatId::kQ4_0
                                                    : FormatId::kQ5_0;
    RETURN_IF_ERROR(find_order(name, matrix));
    return matrix;
  }

  // Inputs belong to groups in order, unless GPTQ took them in another (desc_act): then a tensor lists their groups.
  Status find_order(const std::string& name, Matrix& matrix) const {
    bool is_listed = false;
    for (const char* ending : {".g_idx", ".weight_g_idx"}) {
      const SourceTensor* groups = files_->find(name + ending);
      if (groups == nullptr) continue;
      is_listed = true;
      if (groups->type_name != "I32" || groups->sizes != std::vector<int64_t>{matrix.k}) {
        return invalid_argument(quoted(groups->name) + " is not a group for each input");
      }
      for (int64_t i = 0; i < matrix.k; ++i) {
        const int64_t group = word_at(*groups, i);
        if (group >= matrix.num_groups) {
          return invalid_argument(quoted(groups->name) + " names a group that is not there");
        }
        if (group != i / matrix.group_size) matrix.groups = groups;
      }
    }
    if (quantization_.has_own_order && !is_listed && matrix.num_groups > 1) {
      return invalid_argument("the model's config says that inputs are in another order, but which one is missing: " +
                              quoted(name + ".g_idx") + kWhatToTake);
    }
    return ok_status();
  }

  // What a matrix becomes.
  Status add_tensor(size_t index) {
    const Matrix& matrix = matrices_[index];
    const QuantFormat& format = quant_format(matrix.format);
    const auto num_bytes = static_cast<size_t>(matrix.n * format.row_bytes(matrix.k));
    const std::span<std::byte> bytes = storage_->matrices.emplace_back(num_bytes).bytes();
    if (bytes.empty())
      return resource_exhausted("no room for the " + std::to_string(num_bytes) + " bytes of " + matrix.name);
    by_address_.emplace(bytes.data(), index);
    is_turned_.push_back(false);
    tensors_.push_back({.name = matrix.name,
                        .format = matrix.format,
                        .type_name = std::string(format.name),
                        .sizes = {matrix.n, matrix.k},
                        .data = bytes});
    return ok_status();
  }

  // scale * (code - zero) in f16, as GPTQ's own code multiplies.
  Status turn_to_floats(const Matrix& matrix, std::span<std::byte> bytes) const {
    std::vector<int64_t> group_of(static_cast<size_t>(matrix.k));
    for (int64_t i = 0; i < matrix.k; ++i) {
      group_of[static_cast<size_t>(i)] = matrix.groups != nullptr ? word_at(*matrix.groups, i) : i / matrix.group_size;
    }
    const MatrixReader reader(matrix, quantization_);
    std::atomic<bool> is_sound = true;
    pool_->parallel_for((matrix.n + kTileOutputs - 1) / kTileOutputs, 1, [&](const WorkRange& range) {
      constexpr int kInputs = 32;
      uint8_t codes[kTileOutputs][kChunk];
      std::vector<float> scales(static_cast<size_t>(matrix.num_groups * kTileOutputs));
      std::vector<float> zeros(scales.size());
      for (int64_t tile = range.begin; tile < range.end; ++tile) {
        const int64_t first = tile * kTileOutputs;
        const int count = static_cast<int>(std::min<int64_t>(kTileOutputs, matrix.n - first));
        for (int64_t group = 0; group < matrix.num_groups; ++group) {
          for (int i = 0; i < count; ++i) {
            const size_t at = static_cast<size_t>(group * kTileOutputs + i);
            scales[at] = f16_to_f32(f32_to_f16(reader.scale(first + i, group)));
            zeros[at] = static_cast<float>(reader.zero(first + i, group));
          }
        }
        for (int64_t input = 0; input < matrix.k; input += kInputs) {
          reader.read_codes(first, count, input, kInputs, codes);
          for (int i = 0; i < count; ++i) {
            uint16_t values[kInputs];
            for (int j = 0; j < kInputs; ++j) {
              const size_t at = static_cast<size_t>(group_of[static_cast<size_t>(input + j)] * kTileOutputs + i);
              const float value = scales[at] * (static_cast<float>(codes[i][j]) - zeros[at]);
              values[j] = f32_to_f16(value);
              if (!std::isfinite(f16_to_f32(values[j]))) is_sound = false;
            }
            std::memcpy(bytes.data() + ((first + i) * matrix.k + input) * 2, values, sizeof(values));
          }
        }
      }
    });
    if (!is_sound) {
      return invalid_argument(quoted(matrix.name) + " has values that f16 does not hold" + kWhatToTake);
    }
    return ok_status();
  }

  Status turn_matrix(const Matrix& matrix, std::span<std::byte> bytes) const {
    const QuantFormat& format = quant_format(matrix.format);
    const int64_t row_bytes = format.row_bytes(matrix.k);
    if (pool_ == nullptr) pool_ = std::make_unique<ThreadPool>(default_num_threads(read_cpu_info()));
    if (matrix.format == FormatId::kF16) return turn_to_floats(matrix, bytes);
    const MatrixReader reader(matrix, quantization_);
    std::atomic<bool> is_sound = true;
    std::atomic<bool> is_symmetric = true;
    pool_->parallel_for((matrix.n + kTileOutputs - 1) / kTileOutputs, 1, [&](const WorkRange& range) {
      uint8_t codes[kTileOutputs][kChunk];
      for (int64_t tile = range.begin; tile < range.end; ++tile) {
        const int64_t first = tile * kTileOutputs;
        const int count = static_cast<int>(std::min<int64_t>(kTileOutputs, matrix.n - first));
        const int step = static_cast<int>(std::min<int64_t>(kChunk, matrix.group_size % kChunk == 0 ? kChunk : 32));
        for (int64_t input = 0; input < matrix.k; input += step) {
          reader.read_codes(first, count, input, step, codes);
          const int64_t group = input / matrix.group_size;
          for (int i = 0; i < count; ++i) {
            const float file_scale = reader.scale(first + i, group);
            const uint16_t scale = f32_to_f16(file_scale);
            const int zero = reader.zero(first + i, group);
            const float value = f16_to_f32(scale);
            if (!std::isfinite(value) || (value == 0.0f && file_scale != 0.0f)) is_sound = false;
            if (zero != kSymmetricZero) is_symmetric = false;
            write_blocks(matrix.format, codes[i], step, scale, zero,
                         bytes.data() + (first + i) * row_bytes + format.row_bytes(input));
          }
        }
      }
    });
    if (!is_sound)
      return invalid_argument(quoted(matrix.scales->name) + " has scales that f16 does not hold" + kWhatToTake);
    if (matrix.format == FormatId::kQ4_0 && !is_symmetric) {
      return invalid_argument(quoted(matrix.name) + " has zero points, although the model's config says sym");
    }
    files_->done_with(matrix.codes->data);
    return ok_status();
  }

  std::unique_ptr<TensorSource> files_;
  const GroupQuantization quantization_;
  std::shared_ptr<Storage> storage_;
  std::vector<SourceTensor> tensors_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<Matrix> matrices_;  // as storage_ has their bytes
  std::map<const std::byte*, size_t> by_address_;
  mutable std::vector<bool> is_turned_;
  mutable std::unique_ptr<ThreadPool> pool_;
};

}  // namespace

Result<std::unique_ptr<TensorSource>> open_group_quantized(std::unique_ptr<TensorSource> files,
                                                           const GroupQuantization& quantization) {
  auto tensors = std::make_unique<GroupQuantizedTensors>(std::move(files), quantization);
  RETURN_IF_ERROR(tensors->open());
  return std::unique_ptr<TensorSource>(std::move(tensors));
}

}  // namespace quire
