// What a model file offers, whatever its kind: named tensors as bytes. GGUF files and safetensors folders implement it
// (weights/gguf.h, weights/safetensors.h); the loader and model registry read it. Constant once opened: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "quant/format.h"

namespace quire {

struct SourceTensor {
  std::string name;
  std::optional<FormatId> format;  // nothing when we cannot compute with this type
  std::string type_name;           // as the file calls it: "q4_k", "BF16", "iq2_xxs"
  std::vector<int64_t> sizes;      // outermost first: a matrix is {n outputs, k inputs}, whatever the file's order
  std::span<const std::byte> data;

  int64_t num_values() const;
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // In the order of the file.
  virtual std::span<const SourceTensor> tensors() const = 0;
  // Null when there is none of that name.
  virtual const SourceTensor* find(std::string_view name) const = 0;

  // Before the bytes of a tensor are read: does what was put off when the file was opened. Sizes are known without it.
  // From one thread at a time.
  virtual Status prepare(const SourceTensor&) const { return ok_status(); }
  // Keeps all bytes alive: it may outlive this object.
  virtual std::shared_ptr<const void> owner() const = 0;
  // After the bytes were read: an error if somebody has written to them meanwhile.
  virtual Status check_unchanged() const { return ok_status(); }
  // Hints: these bytes will be read soon; these have been copied elsewhere (who reads them again, prepares them again).
  virtual void will_need(std::span<const std::byte>) const {}
  virtual void done_with(std::span<const std::byte>) const {}
};

// "[49152, 576]", for messages.
std::string describe_sizes(std::span<const int64_t> sizes);

}  // namespace quire
