// Text for error messages about files: names that may hold anything, and what a file that is of the wrong kind seems to
// be. Used by the readers of this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// In single quotes, with control and non-ASCII-printable bytes escaped and the middle of a long text left out.
std::string quoted(std::string_view text, size_t max_length = 100);

// What a file that should have been a model seems to be, with advice ("a Git LFS pointer …: run git lfs pull"), judged
// by its first bytes; empty when they are not familiar.
std::string describe_foreign_file(std::span<const std::byte> bytes);

// "a, b, c and 14 more", for lists of names or of whole complaints.
std::string join_some(const std::vector<std::string>& items, std::string_view separator, size_t max_items);

}  // namespace quire
