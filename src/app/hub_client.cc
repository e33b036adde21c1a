#include "app/hub_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

namespace quire::app {

namespace fs = std::filesystem;
namespace json = boost::json;

namespace {

constexpr int kMaxFailures = 6;            // in a row, without a byte in between
constexpr double kFirstWaitSeconds = 0.5;  // doubled by every failure
constexpr double kMaxWaitSeconds = 60.0;
constexpr size_t kMaxListedFiles = 50'000;
constexpr int kMaxPages = 500;

class Hash {
 public:
  // Git's hash of a small file is that of "blob SIZE\0" and its bytes.
  explicit Hash(const HubFile& file) : context_(EVP_MD_CTX_new()) {
    EVP_DigestInit_ex(context_.get(), file.is_lfs ? EVP_sha256() : EVP_sha1(), nullptr);
    if (file.is_lfs) return;
    const std::string head = "blob " + std::to_string(file.size);
    EVP_DigestUpdate(context_.get(), head.c_str(), head.size() + 1);
  }
  void add(std::string_view bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }
  std::string finish() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned size = 0;
    EVP_DigestFinal_ex(context_.get(), digest.data(), &size);
    std::string text;
    for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
    return text;
  }

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

class File {
 public:
  explicit File(const fs::path& path) : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)), path_(path) {}
  ~File() {
    if (file_ >= 0) ::close(file_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return file_ >= 0; }
  int64_t size() const {
    struct stat facts {};
    return ::fstat(file_, &facts) == 0 ? static_cast<int64_t>(facts.st_size) : 0;
  }
  Status fault(const char* what) const {
    return internal_error(std::string(what) + " " + path_.string() + ": " + std::strerror(errno));
  }
  Status truncate(int64_t size) {
    if (::ftruncate(file_, size) != 0 || ::lseek(file_, size, SEEK_SET) < 0) return fault("cannot write");
    return ok_status();
  }
  Status write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t num_written = ::write(file_, bytes.data(), bytes.size());
      if (num_written < 0 && errno == EINTR) continue;
      if (num_written <= 0) return fault("cannot write");
      bytes.remove_prefix(static_cast<size_t>(num_written));
    }
    return ok_status();
  }
  Status hash_up_to(int64_t size, Hash* hash) {
    std::vector<char> buffer(1 << 20);
    if (::lseek(file_, 0, SEEK_SET) < 0) return fault("cannot read");
    for (int64_t done = 0; done < size;) {
      const ssize_t num_bytes =
          ::read(file_, buffer.data(), std::min<size_t>(buffer.size(), static_cast<size_t>(size - done)));
      if (num_bytes <= 0) return fault("cannot read");
      hash->add({buffer.data(), static_cast<size_t>(num_bytes)});
      done += num_bytes;
    }
    return ok_status();
  }
  Status flush() { return ::fsync(file_) == 0 ? ok_status() : fault("cannot write"); }

 private:
  int file_;
  fs::path path_;
};

bool is_hex(std::string_view text, size_t size) {
  return text.size() == size && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

const json::string* text_member(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr ? value->if_string() : nullptr;
}

int64_t size_member(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_int64() ? value->get_int64() : -1;
}

// A row of the hub's list of files. False: it is none that can be fetched.
bool read_file_row(const json::value& row, HubFile* file) {
  const json::object* object = row.if_object();
  if (object == nullptr) return false;
  const json::string* type = text_member(*object, "type");
  const json::string* path = text_member(*object, "path");
  const json::string* oid = text_member(*object, "oid");
  if (type == nullptr || *type != "file" || path == nullptr || oid == nullptr || !is_safe_hub_path(*path)) return false;
  *file = {std::string(*path), size_member(*object, "size"), std::string(*oid), false};
  if (const json::value* lfs = object->if_contains("lfs"); lfs != nullptr && lfs->is_object()) {
    const json::string* hash = text_member(lfs->get_object(), "oid");
    if (hash == nullptr) hash = text_member(lfs->get_object(), "sha256");
    if (hash == nullptr) return false;
    file->hash = std::string(*hash);
    file->is_lfs = true;
    if (const int64_t size = size_member(lfs->get_object(), "size"); size >= 0) file->size = size;
  }
  return file->size >= 0 && is_hex(file->hash, file->is_lfs ? 64 : 40);
}

// Link: <https://…>; rel="next"
std::string next_page(std::string_view link) {
  while (!link.empty()) {
    const size_t begin = link.find('<');
    const size_t end = link.find('>', begin);
    if (begin == std::string_view::npos || end == std::string_view::npos) return {};
    const size_t comma = std::min(link.find(',', end), link.size());
    if (link.substr(end, comma - end).find("rel=\"next\"") != std::string_view::npos)
      return std::string(link.substr(begin + 1, end - begin - 1));
    link = link.substr(std::min(comma + 1, link.size()));
  }
  return {};
}

std::string read_token(const Environment& environment) {
  if (!environment.hub_token.empty()) return environment.hub_token;
  std::string token;
  std::ifstream file(environment.hub_token_file);
  file >> token;
  return token;
}

bool may_pass(int status) {
  return status == 408 || status == 429 || status >= 500;
}

double asked_wait(const HttpReply& reply) {
  const std::string text(reply.header("Retry-After"));
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  return end != text.c_str() && *end == '\0' && seconds >= 0 ? std::min(seconds, 3600.0) : -1.0;
}

HttpClientOptions hub_http_options(const Environment& environment) {
  HttpClientOptions options = client_options(environment);
  options.user_agent = "quire/" QUIRE_VERSION "; hub-pull";
  options.idle_timeout = std::chrono::milliseconds(30'000);
  return options;
}

}  // namespace

HubClient::HubClient(const Environment& environment, Console* console)
    : http_(hub_http_options(environment)), endpoint_(environment.hub_endpoint), console_(console) {
  const std::string token = read_token(environment);
  if (!token.empty()) credentials_.emplace_back("Authorization", "Bearer " + token);
}

Status HubClient::refusal(const HttpReply& reply, const std::string& repo) const {
  const std::string_view code = reply.header("X-Error-Code");
  std::string said(reply.header("X-Error-Message"));
  if (!said.empty()) said = " (" + said.substr(0, 300) + ")";
  const std::string page = endpoint_ + "/" + repo;
  const std::string token = credentials_.empty()
                                ? "set HF_TOKEN to a token of yours (" + endpoint_ + "/settings/tokens)"
                                : "check that the token (HF_TOKEN, or the token file) is right and may read it";
  if (code == "GatedRepo") {
    return unavailable(repo + " is gated" + said + ": accept its conditions at " + page + ", and then " + token);
  }
  if (code == "RevisionNotFound")
    return not_found(repo + " has no such revision" + said + ": see " + page + " for its branches and tags");
  if (code == "EntryNotFound") return not_found("the file is no longer in " + repo + said);
  if (reply.status == 401 || code == "RepoNotFound") {
    return not_found("there is no repository " + repo + " at " + endpoint_ + ", or it is private" + said +
                     ": check the name, or " + token);
  }
  if (reply.status == 403) return unavailable("no access to " + repo + said + ": see " + page + ", and " + token);
  if (reply.status == 404)
    return not_found(endpoint_ + " knows no " + repo + said + ": check the name and the revision");
  return unavailable(reply.url.substr(0, 200) + " answers " + std::to_string(reply.status) + said);
}

Status HubClient::wait_to_retry(const Status& failure, double asked_seconds, int* num_failures) {
  if (++*num_failures >= kMaxFailures) return failure;
  double seconds =
      std::min(kMaxWaitSeconds, kFirstWaitSeconds * static_cast<double>(1 << std::min(*num_failures - 1, 10)));
  if (asked_seconds > kMaxWaitSeconds) {
    return unavailable(failure.message() + "; the hub asks to wait " + fmt::format("{:.0f}", asked_seconds) +
                       " s: try again then");
  }
  if (asked_seconds >= 0) seconds = asked_seconds;
  console_->warn(failure.message() + fmt::format("; trying again in {:.1f} s", seconds));
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  return ok_status();
}

Result<HttpReply> HubClient::get(const std::string& url, const std::string& repo) {
  for (int num_failures = 0;;) {
    Result<HttpReply> reply = http_.send({.url = url, .credentials = credentials_});
    if (reply.is_ok() && reply.value().status == 200) return reply;
    if (reply.is_ok() && !may_pass(reply.value().status)) return refusal(reply.value(), repo);
    const HttpFailure failure = http_.failure();
    if (failure == HttpFailure::kBadUrl || failure == HttpFailure::kTls || failure == HttpFailure::kResolve)
      return reply.status();
    const Status status = reply.is_ok() ? refusal(reply.value(), repo) : reply.status();
    RETURN_IF_ERROR(wait_to_retry(status, reply.is_ok() ? asked_wait(reply.value()) : -1.0, &num_failures));
  }
}

Result<std::string> HubClient::resolve_revision(const std::string& repo, const std::string& revision) {
  std::string encoded = encode_url_path(revision);
  for (size_t slash = encoded.find('/'); slash != std::string::npos; slash = encoded.find('/', slash))
    encoded.replace(slash, 1, "%2F");
  ASSIGN_OR_RETURN(const HttpReply reply, get(endpoint_ + "/api/models/" + repo + "/revision/" + encoded, repo));
  boost::system::error_code wrong;
  const json::value facts = json::parse(reply.body, wrong);
  const json::string* commit = wrong || !facts.is_object() ? nullptr : text_member(facts.get_object(), "sha");
  if (commit == nullptr || !is_hex(*commit, 40))
    return unavailable(endpoint_ + " does not answer as a hub does: no commit of " + repo + ". Check HF_ENDPOINT");
  return std::string(*commit);
}

Result<std::vector<HubFile>> HubClient::list_files(const std::string& repo, const std::string& commit) {
  std::vector<HubFile> files;
  std::string url = endpoint_ + "/api/models/" + repo + "/tree/" + commit + "?recursive=true";
  ASSIGN_OR_RETURN(const HttpUrl home, parse_url(url));
  for (int page = 0; !url.empty() && page < kMaxPages; ++page) {
    ASSIGN_OR_RETURN(const HttpReply reply, get(url, repo));
    boost::system::error_code wrong;
    const json::value rows = json::parse(reply.body, wrong);
    if (wrong || !rows.is_array())
      return unavailable(endpoint_ + " does not answer as a hub does: no list of the files of " + repo);
    for (const json::value& row : rows.get_array()) {
      HubFile file;
      if (read_file_row(row, &file)) files.push_back(std::move(file));
      if (files.size() > kMaxListedFiles) return resource_exhausted(repo + " has more files than can be listed");
    }
    const std::string next = next_page(reply.header("Link"));
    url.clear();
    if (!next.empty()) {
      ASSIGN_OR_RETURN(const HttpUrl resolved, resolve_location(home, next));
      // The token goes with it, so it must be the same place.
      if (resolved.origin() != home.origin())
        return unavailable("the list of files of " + repo + " goes on at another server: not followed");
      url = next.rfind("http", 0) == 0 ? next : home.scheme + "://" + home.host_and_port() + resolved.target;
    }
  }
  return files;
}

// One file on its way: what is on the disk, and its hash so far.
struct HubClient::Download {
  Download(const HubFile& wanted, const fs::path& path) : file(wanted), disk(path), hash(wanted) {}

  // Takes what a former try has left; more than the whole file is no part of it.
  Status begin() {
    num_bytes = disk.size();
    if (num_bytes > file.size) num_bytes = 0;
    return disk.hash_up_to(num_bytes, &hash).is_ok() ? disk.truncate(num_bytes) : restart();
  }
  Status restart() {
    hash = Hash(file);
    num_bytes = 0;
    return disk.truncate(0);
  }
  Status add(std::string_view bytes) {
    if (num_bytes + static_cast<int64_t>(bytes.size()) > file.size)
      return unavailable(file.path + ": the server sends more than the " + std::to_string(file.size) +
                         " bytes that the hub lists");
    RETURN_IF_ERROR(disk.write(bytes));
    hash.add(bytes);
    num_bytes += static_cast<int64_t>(bytes.size());
    return ok_status();
  }

  const HubFile& file;
  File disk;
  Hash hash;
  int64_t num_bytes = 0;
};

Status HubClient::fetch(const std::string& repo, const std::string& commit, const HubFile& file,
                        const fs::path& partial, const fs::path& blob,
                        const std::function<void(int64_t)>& on_progress) {
  Download download(file, partial);
  if (!download.disk.is_open()) return download.disk.fault("cannot write");
  RETURN_IF_ERROR(download.begin());
  const std::string url = endpoint_ + "/" + repo + "/resolve/" + commit + "/" + encode_url_path(file.path);
  int num_failures = 0;
  int num_wrong_hashes = 0;
  while (true) {
    on_progress(download.num_bytes);
    Status local = ok_status();  // the disk's fault: no use in trying again
    Status failure = ok_status();
    double asked_seconds = -1.0;
    if (download.num_bytes < file.size || file.size == 0) {
      const int64_t begin = download.num_bytes;
      HttpCall call{.url = url, .credentials = credentials_};
      if (begin > 0) call.headers.emplace_back("Range", "bytes=" + std::to_string(begin) + "-");
      const auto on_head = [&](const HttpReply& head) -> Status {
        if (head.status == 206) {
          const std::string expected = "bytes " + std::to_string(begin) + "-";
          if (head.header("Content-Range").substr(0, expected.size()) != expected)
            return unavailable(file.path + ": the server sends another part of the file than was asked for");
          return ok_status();
        }
        return head.status == 200 && begin > 0 ? download.restart() : ok_status();  // the server sends it whole
      };
      const auto on_body = [&](std::string_view bytes) -> Status {
        if (download.num_bytes + static_cast<int64_t>(bytes.size()) <= file.size) {
          local = download.add(bytes);
          if (local.is_ok()) on_progress(download.num_bytes);
          return local;
        }
        return download.add(bytes);
      };
      const Result<HttpReply> reply = http_.send(call, {.on_head = on_head, .on_body = on_body});
      RETURN_IF_ERROR(local);
      if (!reply.is_ok()) {
        failure = reply.status();
        if (http_.failure() == HttpFailure::kHandler) RETURN_IF_ERROR(download.restart());
      } else if (reply.value().status == 416) {
        failure = unavailable(file.path + ": the server does not know the part that was asked for");
        RETURN_IF_ERROR(download.restart());
      } else if (reply.value().status / 100 != 2) {
        if (!may_pass(reply.value().status)) return refusal(reply.value(), repo).with_context(file.path);
        failure = refusal(reply.value(), repo);
        asked_seconds = asked_wait(reply.value());
      } else if (download.num_bytes < file.size) {
        failure = unavailable(file.path + ": the server sent " + std::to_string(download.num_bytes) + " of " +
                              std::to_string(file.size) + " bytes");
      }
      if (download.num_bytes > begin) num_failures = 0;
    }
    if (failure.is_ok()) {
      const std::string found = download.hash.finish();
      if (found == file.hash) break;
      const Status wrong = unavailable(file.path + " arrived with the hash " + found + " instead of " + file.hash);
      RETURN_IF_ERROR(download.restart());
      if (++num_wrong_hashes >= 2) {
        std::error_code ignored;
        fs::remove(partial, ignored);
        return wrong.with_context("not kept");
      }
      failure = wrong;
    }
    RETURN_IF_ERROR(wait_to_retry(failure, asked_seconds, &num_failures));
  }
  RETURN_IF_ERROR(download.disk.flush());
  std::error_code error;
  fs::rename(partial, blob, error);
  if (error) return internal_error("cannot write " + blob.string() + ": " + error.message());
  return ok_status();
}

}  // namespace quire::app
