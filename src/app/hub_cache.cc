#include "app/hub_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace quire::app {

namespace fs = std::filesystem;

namespace {

constexpr size_t kCommitLength = 40;
constexpr size_t kMaxSnapshotFiles = 10000;

bool is_commit(const std::string& text) {
  return text.size() == kCommitLength && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Status cannot_write(const fs::path& path, const std::string& reason) {
  return internal_error("cannot write " + path.string() + ": " + reason +
                        ". The hub's cache folder is that of HF_HUB_CACHE or HF_HOME");
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A name of its own in the same folder, renamed into place: nobody sees half of it.
fs::path beside(const fs::path& path) {
  return path.parent_path() / ("." + path.filename().string() + "." + std::to_string(::getpid()));
}

}  // namespace

Result<HubLock> HubLock::acquire(const fs::path& path, const std::function<void()>& on_wait) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0664);
  if (file < 0) return cannot_write(path, std::strerror(errno));
  if (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) on_wait();
    while (::flock(file, LOCK_EX) != 0) {
      if (errno == EINTR) continue;
      const std::string reason = std::strerror(errno);
      ::close(file);
      return cannot_write(path, reason);
    }
  }
  return HubLock(file);
}

HubLock::~HubLock() {
  if (file_ >= 0) ::close(file_);
}

HubCache::HubCache(fs::path folder, const std::string& repo)
    : folder_(std::move(folder)), repo_name_("models--" + repo) {
  repo_name_.replace(repo_name_.find('/'), 1, "--");
  repo_folder_ = folder_ / repo_name_;
}

fs::path HubCache::lock_path(const std::string& hash) const {
  return folder_ / ".locks" / repo_name_ / (hash + ".lock");
}

Status HubCache::create_folders() const {
  for (const fs::path& path :
       {repo_folder_ / "blobs", repo_folder_ / "snapshots", repo_folder_ / "refs", folder_ / ".locks" / repo_name_}) {
    std::error_code error;
    fs::create_directories(path, error);
    if (error) return cannot_write(path, error.message());
  }
  return ok_status();
}

Status HubCache::link(const std::string& commit, const HubFile& file) const {
  const fs::path path = snapshot(commit) / file.path;
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) return cannot_write(path.parent_path(), error.message());
  const fs::path target = fs::path(blob(file.hash)).lexically_relative(path.parent_path());
  if (fs::read_symlink(path, error) == target && !error) return ok_status();
  const fs::path fresh = beside(path);
  fs::remove(fresh, error);
  fs::create_symlink(target, fresh, error);
  if (!error) fs::rename(fresh, path, error);
  return error ? cannot_write(path, error.message()) : ok_status();
}

Status HubCache::write_ref(const std::string& revision, const std::string& commit) const {
  if (revision == commit) return ok_status();
  const fs::path path = repo_folder_ / "refs" / revision;
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  const fs::path fresh = beside(path);
  std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
  file << commit;
  file.close();
  if (!file) return cannot_write(path, std::strerror(errno));
  fs::rename(fresh, path, error);
  return error ? cannot_write(path, error.message()) : ok_status();
}

std::optional<std::string> HubCache::read_ref(const std::string& revision) const {
  if (is_commit(revision)) return revision;
  std::string commit = read_text(repo_folder_ / "refs" / revision);
  while (!commit.empty() && (commit.back() == '\n' || commit.back() == ' ')) commit.pop_back();
  if (!is_commit(commit)) return std::nullopt;
  return commit;
}

std::vector<HubFile> HubCache::list_snapshot(const std::string& commit) const {
  std::vector<HubFile> files;
  const fs::path folder = snapshot(commit);
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (files.size() >= kMaxSnapshotFiles) break;
    std::error_code broken;  // a link to a blob that was removed
    if (!entry->is_regular_file(broken) || broken) continue;
    const std::string path = entry->path().lexically_relative(folder).generic_string();
    if (is_safe_hub_path(path) && entry->path().filename().string().front() != '.')
      files.push_back({path, static_cast<int64_t>(entry->file_size(broken)), "", false});
  }
  std::sort(files.begin(), files.end(), [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
  return files;
}

std::optional<fs::path> HubCache::find_model(const HubName& name) const {
  const std::optional<std::string> commit = read_ref(name.revision);
  if (!commit) return std::nullopt;
  const std::vector<HubFile> files = list_snapshot(*commit);
  const Result<HubChoice> choice = choose_hub_files(name, files);
  if (!choice.is_ok()) return std::nullopt;
  if (!choice.value().index_path.empty()) {
    const Result<std::vector<std::string>> shards =
        read_shard_names(read_text(snapshot(*commit) / choice.value().index_path));
    if (!shards.is_ok()) return std::nullopt;
    for (const std::string& shard : shards.value()) {
      if (std::none_of(files.begin(), files.end(), [&](const HubFile& file) { return file.path == shard; }))
        return std::nullopt;
    }
  }
  const std::string& model_path = choice.value().model_path;
  return model_path.empty() ? snapshot(*commit) : snapshot(*commit) / model_path;
}

std::vector<CachedHubModel> list_hub_models(const fs::path& folder) {
  std::vector<CachedHubModel> models;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string folder_name = entry.path().filename().string();
    if (folder_name.rfind("models--", 0) != 0) continue;
    std::string repo = folder_name.substr(8);
    const size_t dashes = repo.find("--");
    if (dashes == std::string::npos) continue;
    repo.replace(dashes, 2, "/");
    if (!parse_hub_name(repo)) continue;
    const HubCache cache(folder, repo);
    const std::optional<std::string> commit = cache.read_ref("main");
    if (!commit) continue;
    const std::vector<HubFile> files = cache.list_snapshot(*commit);
    const auto add = [&](const HubName& name, const std::string& shown) {
      const std::optional<fs::path> path = cache.find_model(name);
      const Result<HubChoice> choice = choose_hub_files(name, files);
      if (!path || !choice.is_ok()) return;
      const bool is_known =
          std::any_of(models.begin(), models.end(), [&](const CachedHubModel& model) { return model.path == *path; });
      if (is_known) return;
      int64_t num_bytes = 0;
      for (const HubFile& file : choice.value().model_path.empty() ? files : choice.value().files)
        num_bytes += file.size;
      models.push_back({shown, *path, num_bytes});
    };
    for (const HubFile& file : files) {
      if (!file.path.ends_with(".gguf")) continue;
      add({repo, file.path, "main"}, repo + ":" + file.path.substr(0, file.path.size() - 5));
    }
    add({repo, "", "main"}, repo);
  }
  std::sort(models.begin(), models.end(),
            [](const CachedHubModel& a, const CachedHubModel& b) { return a.name < b.name; });
  return models;
}

}  // namespace quire::app
