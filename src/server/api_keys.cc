#include "server/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <fstream>
#include <iterator>

#include "base/check.h"
#include "server/http_text.h"

namespace quire {

namespace {

constexpr size_t kMaxFileBytes = 16 << 20;
constexpr size_t kMaxKeyBytes = 1024;

bool is_visible(std::string_view text) {
  for (const char c : text) {
    if (c <= ' ' || c > '~') return false;
  }
  return !text.empty();
}

std::array<unsigned char, 32> digest_of(std::string_view key) {
  std::array<unsigned char, 32> digest{};
  unsigned length = 0;
  CHECK(EVP_Digest(key.data(), key.size(), digest.data(), &length, EVP_sha256(), nullptr) == 1);
  return digest;
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found("cannot open the file of API keys " + path);
  std::string text;
  for (auto byte = std::istreambuf_iterator<char>(file); byte != std::istreambuf_iterator<char>(); ++byte) {
    if (text.size() == kMaxFileBytes) return invalid_argument("the file of API keys " + path + " is over 16 MiB");
    text.push_back(*byte);
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<ApiKeys>> ApiKeys::read(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_file(path));
  return parse(text, path);
}

Result<std::unique_ptr<ApiKeys>> ApiKeys::parse(std::string_view text, const std::string& path) {
  std::unique_ptr<ApiKeys> keys(new ApiKeys(path));
  RETURN_IF_ERROR(keys->set(text));
  return keys;
}

Status ApiKeys::reload() {
  ASSIGN_OR_RETURN(const std::string text, read_file(path_));
  return set(text);
}

Status ApiKeys::set(std::string_view text) {
  std::vector<std::pair<std::string, Digest>> found;  // name, key
  size_t line_number = 0;
  while (!text.empty()) {
    ++line_number;
    const size_t end = text.find('\n');
    const std::string_view line = trim_spaces(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() || line.front() == '#') continue;
    // Messages never show a key.
    const std::string place = path_ + ", line " + std::to_string(line_number);
    const size_t space = line.find_first_of(" \t");
    const std::string_view key = space == std::string_view::npos ? line : trim_spaces(line.substr(space));
    const std::string name = space == std::string_view::npos ? "key-" + std::to_string(found.size() + 1)
                                                             : std::string(line.substr(0, space));
    if (!is_visible(key) || !is_visible(name) || key.size() > kMaxKeyBytes) {
      return invalid_argument(place + ": write NAME KEY, or KEY alone, in visible ASCII, at most 1024 bytes a key");
    }
    const Digest digest = digest_of(key);
    for (const auto& [other_name, other_digest] : found) {
      if (other_name == name) return invalid_argument(place + ": the name " + name + " is there already");
      if (other_digest == digest) return invalid_argument(place + ": the key of " + other_name + " again");
    }
    found.emplace_back(name, digest);
  }
  if (found.empty()) {
    return invalid_argument(path_ + " has no keys: write a line NAME KEY for each, or leave out --api-key-file");
  }
  const std::lock_guard lock(mutex_);
  entries_.clear();
  for (const auto& [name, digest] : found) {
    const auto [entry, is_new] = ids_.emplace(name, static_cast<int64_t>(names_.size()) + 1);
    if (is_new) names_.push_back(name);
    entries_.push_back({digest, entry->second});
  }
  return ok_status();
}

int64_t ApiKeys::find(std::string_view key) const {
  if (key.empty() || key.size() > kMaxKeyBytes) return 0;
  const Digest digest = digest_of(key);
  const std::lock_guard lock(mutex_);
  int64_t id = 0;
  for (const Entry& entry : entries_) {  // all of them, whichever fits
    if (CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) id = entry.id;
  }
  return id;
}

std::string ApiKeys::name(int64_t key_id) const {
  const std::lock_guard lock(mutex_);
  if (key_id < 1 || static_cast<size_t>(key_id) > names_.size()) return {};
  return names_[static_cast<size_t>(key_id) - 1];
}

size_t ApiKeys::num_keys() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace quire
