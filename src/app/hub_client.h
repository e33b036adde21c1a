// What a hub of models says and sends: Hugging Face's HTTP API, or a stand-in of it. Fetches files into the cache,
// resuming, checking and trying again; the layout of the cache is hub_cache's. On the main thread.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "app/console.h"
#include "app/hub_repo.h"
#include "app/options.h"
#include "base/status.h"
#include "server/http_client.h"

namespace quire::app {

class HubClient {
 public:
  HubClient(const Environment& environment, Console* console);

  // The commit that a branch, a tag or a commit stands for now.
  Result<std::string> resolve_revision(const std::string& repo, const std::string& revision);
  Result<std::vector<HubFile>> list_files(const std::string& repo, const std::string& commit);

  // Fetches a file into `partial`, goes on where a former try stopped, checks its size and hash, and renames it to
  // `blob`. on_progress is told how many bytes of the file are there.
  Status fetch(const std::string& repo, const std::string& commit, const HubFile& file,
               const std::filesystem::path& partial, const std::filesystem::path& blob,
               const std::function<void(int64_t num_bytes)>& on_progress);

 private:
  struct Download;

  Result<HttpReply> get(const std::string& url, const std::string& what);
  // Waits before the next try; the error, if there have been enough of them.
  Status wait_to_retry(const Status& failure, double asked_seconds, int* num_failures);
  Status refusal(const HttpReply& reply, const std::string& repo) const;

  HttpClient http_;
  std::string endpoint_;
  HttpFields credentials_;
  Console* console_;
};

}  // namespace quire::app
