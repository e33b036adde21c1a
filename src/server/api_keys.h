// The API keys of a server: read from a file, a line a key, "NAME KEY" or KEY alone. Keys are kept as digests and
// compared in a time that does not tell how much of one was right. Any thread; may be read anew while in use.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

class ApiKeys {
 public:
  static Result<std::unique_ptr<ApiKeys>> read(const std::string& path);
  // The text of such a file; `path` is its name in messages.
  static Result<std::unique_ptr<ApiKeys>> parse(std::string_view text, const std::string& path);

  // Reads the file again. In error, the keys stay what they were.
  Status reload();

  // Who shows this key: 1, 2, …; 0: nobody. A name keeps its id when the file is read again.
  int64_t find(std::string_view key) const;
  // Of an id that find gave.
  std::string name(int64_t key_id) const;
  size_t num_keys() const;

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Entry {
    Digest digest;
    int64_t id;
  };

  explicit ApiKeys(std::string path) : path_(std::move(path)) {}
  Status set(std::string_view text);

  const std::string path_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  std::map<std::string, int64_t, std::less<>> ids_;  // of all names that there ever were
  std::vector<std::string> names_;                   // by id - 1
};

}  // namespace quire
