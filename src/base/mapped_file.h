// A file mapped read-only into memory: how weights are read, so that only the pages in use are resident and ranks of
// one host share them. Not for files that change while open: what is read is then a mixture (check_unchanged), and
// reading past a cut-off end is a fatal signal (base/mapping_fault). Constant after open(): any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace quire {

// Which file it is, and when its bytes were last written.
struct FileVersion {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t num_bytes = 0;
  int64_t written_at_ns = 0;

  friend bool operator==(const FileVersion&, const FileVersion&) = default;
};

class MappedFile {
 public:
  // The error says whether the path is missing, a folder, empty, or not readable.
  static Result<std::unique_ptr<MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  int64_t num_bytes() const { return static_cast<int64_t>(size_); }

  // An error if somebody has written to the file since it was opened. One whose name another file has taken is not
  // changed by that.
  Status check_unchanged() const;

  // Hints for the operating system; a part is any span inside bytes(). They never fail in a way that matters.
  void will_need(std::span<const std::byte> part) const;  // start reading it from the disk
  void done_with(std::span<const std::byte> part) const;  // its whole pages may leave memory; reading again is allowed

 private:
  MappedFile(std::string path, const std::byte* data, const FileVersion& version)
      : path_(std::move(path)), data_(data), size_(static_cast<size_t>(version.num_bytes)), version_(version) {}
  void advise(std::span<const std::byte> part, int advice, bool whole_pages_only) const;

  std::string path_;
  const std::byte* data_;
  size_t size_;
  FileVersion version_;  // when it was opened
};

// The whole text of a small file (a configuration, a template); an error if it is larger than max_bytes.
Result<std::string> read_text_file(const std::string& path, int64_t max_bytes);

}  // namespace quire
