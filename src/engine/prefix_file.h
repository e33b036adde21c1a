// The prefix cache on disk: pages of KV with the tokens that they belong to. This is the format alone: writing to a
// temporary file that takes the place of the old one at the end, and reading bytes that may be damaged or hostile.
// Engine::save_prefix_cache and load_prefix_cache use it, before and after serving.
//
//   "QUIREKV1", then little-endian numbers and texts (a u32 of its length before each):
//   key            lines "name: value" of all that the pages' contents depend on; must be equal to ours
//   u32 page_size, u32 num_groups, u64 page_bytes, u64 num_entries, u64 checksum of all before it
//   entries        i32 parent (an entry before it; -1: the beginning of a prompt), i64 adapter, text salt,
//                  page_size times i32 token, num_groups times u8 "has a page", the bytes of these pages,
//                  u64 checksum of the entry
// Hashes of the cache are not stored: they are computed anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

struct PrefixFileHeader {
  std::string key;
  int page_size = 0;
  int num_groups = 0;
  int64_t page_bytes = 0;
  int64_t num_entries = 0;
};

struct PrefixFileEntry {
  int32_t parent = -1;
  int64_t adapter_id = 0;
  std::string_view salt;
  std::vector<int32_t> tokens;                    // page_size
  std::vector<std::span<const std::byte>> pages;  // a group each; empty: none
};

// The file that a writer to `path` would put in place: links are followed. Refuses what is there and is neither empty
// nor a file of cached prefixes: such a one is never replaced. Asked at start, and by the writer.
Result<std::string> find_replaceable_file(const std::string& path);

class PrefixFileWriter {
 public:
  static Result<std::unique_ptr<PrefixFileWriter>> create(const std::string& path, const PrefixFileHeader& header);
  ~PrefixFileWriter();  // without finish() nothing has happened to `path`
  PrefixFileWriter(const PrefixFileWriter&) = delete;
  PrefixFileWriter& operator=(const PrefixFileWriter&) = delete;

  Status add(const PrefixFileEntry& entry);
  Status finish();

  // What they take in the file.
  static int64_t num_bytes_of(const PrefixFileHeader& header);
  static int64_t num_bytes_of_entry(const PrefixFileHeader& header, std::string_view salt, int num_pages);

 private:
  PrefixFileWriter(std::string path, std::string temporary_path, std::FILE* file)
      : path_(std::move(path)), temporary_path_(std::move(temporary_path)), file_(file) {}
  Status write(std::span<const std::byte> bytes);
  Status fault(const char* what) const;

  std::string path_;
  std::string temporary_path_;
  std::FILE* file_;
  std::string buffer_;
};

class PrefixFileReader {
 public:
  // `bytes` outlive the reader and its entries, after which nothing may follow.
  static Result<PrefixFileReader> create(std::span<const std::byte> bytes);

  const PrefixFileHeader& header() const { return header_; }

  // The next of header().num_entries. An error: the file is damaged, and nothing of it is to be trusted.
  Result<PrefixFileEntry> next();

 private:
  explicit PrefixFileReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> take(uint64_t num_bytes);
  template <typename T>
  T take_number();
  std::string_view take_text(uint32_t most);
  bool take_checksum(size_t begin);

  std::span<const std::byte> bytes_;
  size_t position_ = 0;
  bool is_damaged_ = false;
  PrefixFileHeader header_;
  int64_t num_read_ = 0;
};

// "name" of the first line in which the keys differ, for the message.
std::string first_difference(std::string_view key, std::string_view other_key);

}  // namespace quire
