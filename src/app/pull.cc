#include "app/pull.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <fstream>
#include <sstream>

#include "app/command.h"
#include "app/hub_cache.h"
#include "app/hub_client.h"
#include "app/json_lines.h"
#include "base/format_bytes.h"

namespace quire::app {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kSpareDiskBytes = 64 << 20;

// The files of one pull: fetches those that the cache lacks, one after the other.
class Pull {
 public:
  Pull(const HubName& name, const Environment& environment, Console& console)
      : name_(name),
        console_(console),
        client_(environment, &console),
        cache_(environment.hub_cache_folder, name.repo) {}

  Result<fs::path> run() {
    ASSIGN_OR_RETURN(commit_, client_.resolve_revision(name_.repo, name_.revision));
    ASSIGN_OR_RETURN(const std::vector<HubFile> files, client_.list_files(name_.repo, commit_));
    ASSIGN_OR_RETURN(const HubChoice choice, choose_hub_files(name_, files));
    RETURN_IF_ERROR(cache_.create_folders());
    RETURN_IF_ERROR(fetch_all(choice.files));
    if (!choice.index_path.empty()) {
      ASSIGN_OR_RETURN(const std::vector<HubFile> shards, find_shards(choice.index_path, files));
      RETURN_IF_ERROR(fetch_all(shards));
    }
    // Last: a revision that the cache knows has the files of this choice.
    RETURN_IF_ERROR(cache_.write_ref(name_.revision, commit_));
    return choice.model_path.empty() ? cache_.snapshot(commit_) : cache_.snapshot(commit_) / choice.model_path;
  }

 private:
  Result<std::vector<HubFile>> find_shards(const std::string& index_path, const std::vector<HubFile>& files) const {
    std::ifstream file(cache_.snapshot(commit_) / index_path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    ASSIGN_OR_RETURN(const std::vector<std::string> names, read_shard_names(text.str()));
    std::vector<HubFile> shards;
    for (const std::string& name : names) {
      const auto found =
          std::find_if(files.begin(), files.end(), [&](const HubFile& candidate) { return candidate.path == name; });
      if (found == files.end()) return not_found(name_.repo + " lacks " + name + ", which its index names");
      shards.push_back(*found);
    }
    return shards;
  }

  bool has(const HubFile& file) const {
    std::error_code error;
    const uintmax_t size = fs::file_size(cache_.blob(file.hash), error);
    return !error && static_cast<int64_t>(size) == file.size;
  }

  Status check_disk(const std::vector<HubFile>& files) const {
    int64_t num_needed = 0;
    for (const HubFile& file : files) {
      if (has(file)) continue;
      std::error_code error;
      const uintmax_t partial = fs::file_size(cache_.partial(file.hash), error);
      num_needed += file.size - (error ? 0 : std::min(file.size, static_cast<int64_t>(partial)));
    }
    std::error_code error;
    const fs::path folder = cache_.blob("x").parent_path();
    const fs::space_info space = fs::space(folder, error);
    if (error || num_needed == 0 ||
        num_needed + kSpareDiskBytes <= static_cast<int64_t>(std::min<uintmax_t>(space.available, INT64_MAX)))
      return ok_status();
    return resource_exhausted(name_.repo + " needs " + format_bytes(num_needed) + " more, and the disk of " +
                              folder.string() + " has " + format_bytes(static_cast<int64_t>(space.available)) +
                              " left: make room, or let HF_HUB_CACHE name a folder on another disk");
  }

  Status fetch_all(const std::vector<HubFile>& files) {
    RETURN_IF_ERROR(check_disk(files));
    int64_t num_total = 0;
    for (const HubFile& file : files) num_total += file.size;
    int64_t num_done = 0;
    for (const HubFile& file : files) {
      const auto on_progress = [&](int64_t num_bytes) {
        console_.progress(file.path, num_done + num_bytes, num_total);
      };
      RETURN_IF_ERROR(fetch(file, on_progress));
      RETURN_IF_ERROR(cache_.link(commit_, file));
      num_done += file.size;
    }
    console_.end_progress();
    return ok_status();
  }

  Status fetch(const HubFile& file, const std::function<void(int64_t)>& on_progress) {
    if (has(file)) return ok_status();
    const auto on_wait = [&] { console_.info("another process fetches " + file.path + ": waiting for it"); };
    ASSIGN_OR_RETURN(const HubLock lock, HubLock::acquire(cache_.lock_path(file.hash), on_wait));
    if (has(file)) return ok_status();
    console_.info(fmt::format("fetching {} ({})", file.path, format_bytes(file.size)));
    return client_.fetch(name_.repo, commit_, file, cache_.partial(file.hash), cache_.blob(file.hash), on_progress);
  }

  HubName name_;
  Console& console_;
  HubClient client_;
  HubCache cache_;
  std::string commit_;
};

struct PullOptions {
  std::string model;
  bool is_json = false;
};

Result<HubName> read_name(const std::string& text) {
  if (const std::optional<HubName> name = parse_hub_name(text)) return *name;
  return invalid_argument("'" + text +
                          "' is no name on a hub: write ORG/NAME, ORG/NAME:QUANT or ORG/NAME@REVISION, such as "
                          "bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M");
}

Status run(const PullOptions& options) {
  ASSIGN_OR_RETURN(const HubName name, read_name(options.model));
  Console console(LogLevel::kInfo);
  ASSIGN_OR_RETURN(const fs::path path, pull_model(name, read_environment(), console));
  if (options.is_json) {
    print_json_line(boost::json::object{{"name", options.model}, {"path", path.string()}});
  } else {
    print_result(path.string() + "\n");
  }
  return ok_status();
}

}  // namespace

Result<fs::path> pull_model(const HubName& name, const Environment& environment, Console& console) {
  if (environment.is_hub_offline) {
    const HubCache cache(environment.hub_cache_folder, name.repo);
    if (std::optional<fs::path> path = cache.find_model(name)) return *path;
    return unavailable(name.repo + " is not in the cache (" + environment.hub_cache_folder.string() +
                       "), and HF_HUB_OFFLINE forbids to fetch it: unset it, or put the model there");
  }
  Result<fs::path> path = Pull(name, environment, console).run();
  if (!path.is_ok()) console.end_progress();
  return path;
}

std::function<Status()> declare_pull(CLI::App& parser) {
  auto options = std::make_shared<PullOptions>();
  parser.add_option("MODEL", options->model, "ORG/NAME, and :QUANT of GGUF files or @REVISION behind it")
      ->check([](const std::string& text) { return complaint(read_name(text).status()); })
      ->required();
  parser.add_flag("--json", options->is_json, "One JSON object on stdout; without it the path");
  parser.footer(
      "HF_TOKEN: for private and gated models. HF_HUB_CACHE or HF_HOME: where files are kept, shared with other tools. "
      "HF_ENDPOINT: another hub. HF_HUB_OFFLINE=1: only what is there.");
  return [options] { return run(*options); };
}

}  // namespace quire::app
