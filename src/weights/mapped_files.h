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

  // Passes the hint on to the file that holds the part.
  void done_with(std::span<const std::byte> part) const {
    const std::less_equal<const std::byte*> is_at_or_before;  // defined between unrelated pointers too
    for (const auto& file : files) {
      const std::span<const std::byte> all = file->bytes();
      if (is_at_or_before(all.data(), part.data()) &&
          is_at_or_before(part.data() + part.size(), all.data() + all.size())) {
        file->done_with(part);
      }
    }
  }
};

}  // namespace quire
