// The mapped files behind one TensorSource. Weights keep it alive through TensorSource::owner().
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/mapped_file.h"

namespace quire {

struct MappedFiles {
  std::vector<std::unique_ptr<MappedFile>> files;

  // Hints, passed on to the file that holds the part.
  void will_need(std::span<const std::byte> part) const {
    if (const MappedFile* file = find(part)) file->will_need(part);
  }
  void done_with(std::span<const std::byte> part) const {
    if (const MappedFile* file = find(part)) file->done_with(part);
  }

  Status check_unchanged() const {
    for (const auto& file : files) RETURN_IF_ERROR(file->check_unchanged());
    return ok_status();
  }

 private:
  const MappedFile* find(std::span<const std::byte> part) const {
    const std::less_equal<const std::byte*> is_at_or_before;  // defined between unrelated pointers too
    for (const auto& file : files) {
      const std::span<const std::byte> all = file->bytes();
      if (is_at_or_before(all.data(), part.data()) &&
          is_at_or_before(part.data() + part.size(), all.data() + all.size())) {
        return file.get();
      }
    }
    return nullptr;
  }
};

}  // namespace quire
