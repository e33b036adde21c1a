// Reads safetensors: one file, or the shards that a model.safetensors.index.json names. Tensors are views of the mapped
// bytes. Headers are held to what Hugging Face's own reader demands: tensors cover the data exactly, without holes or
// overlaps, and each has the bytes that its shape asks for. Constant after opening: any thread may read.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "weights/tensor_source.h"

namespace quire {

struct MappedFiles;

class SafetensorsFiles final : public TensorSource {
 public:
  // A folder with model.safetensors, or with model.safetensors.index.json and its shards.
  static Result<std::unique_ptr<SafetensorsFiles>> open_folder(const std::string& folder);

  // From memory: a single file without an index.
  static Result<std::unique_ptr<SafetensorsFiles>> parse(const std::string& name, std::span<const std::byte> bytes,
                                                         std::shared_ptr<const void> owner);

  std::span<const SourceTensor> tensors() const override { return tensors_; }
  const SourceTensor* find(std::string_view name) const override;
  std::shared_ptr<const void> owner() const override { return owner_; }
  Status check_unchanged() const override;
  void will_need(std::span<const std::byte> part) const override;
  void done_with(std::span<const std::byte> part) const override;

 private:
  SafetensorsFiles() = default;
  Status index_tensors();

  std::shared_ptr<const void> owner_;
  std::shared_ptr<const MappedFiles> mappings_;  // null when parsed from memory
  std::vector<SourceTensor> tensors_;
  std::unordered_map<std::string_view, size_t> tensor_index_;
};

}  // namespace quire
