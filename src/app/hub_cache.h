// The folder in which Hugging Face's tools keep what they fetched, in their layout, so that a file fetched by one is
// found by all: models--ORG--NAME/{blobs/HASH, snapshots/COMMIT/path → blob, refs/REVISION}, and .locks beside. Knows
// nothing of the network.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/hub_repo.h"
#include "base/status.h"

namespace quire::app {

struct CachedHubModel {
  std::string name;  // what MODEL may be: "ORG/NAME" or "ORG/NAME:file without .gguf"
  std::filesystem::path path;
  int64_t num_bytes = 0;
};

// Holds a lock file as long as it lives. Other processes of ours and of Hugging Face's wait for it.
class HubLock {
 public:
  // on_wait is called once, if another holds the lock.
  static Result<HubLock> acquire(const std::filesystem::path& path, const std::function<void()>& on_wait);
  ~HubLock();
  HubLock(HubLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  HubLock& operator=(HubLock&&) = delete;

 private:
  explicit HubLock(int file) : file_(file) {}
  int file_;
};

class HubCache {
 public:
  HubCache(std::filesystem::path folder, const std::string& repo);

  std::filesystem::path blob(const std::string& hash) const { return repo_folder_ / "blobs" / hash; }
  std::filesystem::path partial(const std::string& hash) const {
    return repo_folder_ / "blobs" / (hash + ".incomplete");
  }
  std::filesystem::path snapshot(const std::string& commit) const { return repo_folder_ / "snapshots" / commit; }
  std::filesystem::path lock_path(const std::string& hash) const;

  Status create_folders() const;
  // Makes the file visible in the snapshot: a relative link to its blob.
  Status link(const std::string& commit, const HubFile& file) const;
  Status write_ref(const std::string& revision, const std::string& commit) const;
  // None: the revision was never fetched. A commit is its own.
  std::optional<std::string> read_ref(const std::string& revision) const;

  // The files of a snapshot whose blobs are whole.
  std::vector<HubFile> list_snapshot(const std::string& commit) const;
  // The model in the cache, if all of its files are there.
  std::optional<std::filesystem::path> find_model(const HubName& name) const;

 private:
  std::filesystem::path folder_;
  std::string repo_name_;  // "models--ORG--NAME"
  std::filesystem::path repo_folder_;
};

// Every loadable model of the cache's current revisions, by name.
std::vector<CachedHubModel> list_hub_models(const std::filesystem::path& folder);

}  // namespace quire::app
