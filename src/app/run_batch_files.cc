#include "app/run_batch_files.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "app/json_lines.h"
#include "text/utf8.h"

namespace quire::app {

namespace json = boost::json;

namespace {

constexpr const char* kUrls[] = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings"};
constexpr size_t kMaxIdBytes = 512;
constexpr size_t kMaxJsonDepth = 256;

json::value parse_json(std::string_view text, boost::system::error_code& wrong) {
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  return json::parse(json::string_view(text.data(), text.size()), wrong, {}, options);
}

const json::string* text_member(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr ? value->if_string() : nullptr;
}

// Of a line of the output.
bool is_success(const json::object& line) {
  const json::value* response = line.if_contains("response");
  const json::value* status =
      response != nullptr && response->is_object() ? response->get_object().if_contains("status_code") : nullptr;
  return status != nullptr && status->is_int64() && status->get_int64() / 100 == 2;
}

std::string serialize(const json::object& line) {
  const std::string text = json::serialize(line);
  return is_valid_utf8(text) ? text : replace_invalid_utf8(text);
}

}  // namespace

bool read_batch_line(std::string_view line, int64_t line_number, BatchCall* call, BatchLineError* error) {
  *error = BatchLineError();
  const auto wrong_line = [&](const char* code, std::string message) {
    error->code = code;
    error->message = "line " + std::to_string(line_number) + ": " + std::move(message);
    return false;
  };
  boost::system::error_code wrong;
  const json::value value = parse_json(line, wrong);
  if (wrong || !value.is_object())
    return wrong_line("invalid_json_line", wrong ? "not JSON: " + wrong.message() : "not a JSON object");
  const json::object& object = value.get_object();
  const json::string* id = text_member(object, "custom_id");
  if (id == nullptr || id->empty() || id->size() > kMaxIdBytes)
    return wrong_line("missing_custom_id", "custom_id must be a string of 1 to 512 bytes");
  error->custom_id = std::string(*id);
  const json::string* method = text_member(object, "method");
  if (method == nullptr || *method != "POST") return wrong_line("invalid_method", "method must be \"POST\"");
  const json::string* url = text_member(object, "url");
  const bool is_known = url != nullptr && std::any_of(std::begin(kUrls), std::end(kUrls),
                                                      [&](const char* known) { return *url == known; });
  if (!is_known)
    return wrong_line("invalid_url", "url must be /v1/chat/completions, /v1/completions or /v1/embeddings");
  const json::value* body = object.if_contains("body");
  if (body == nullptr || !body->is_object()) return wrong_line("missing_body", "body must be an object");
  if (const json::value* stream = body->get_object().if_contains("stream");
      stream != nullptr && stream->is_bool() && stream->get_bool())
    return wrong_line("streaming_unsupported", "answers of a batch are not streamed: leave \"stream\" out");
  *call = {line_number, error->custom_id, std::string(*url), json::serialize(*body)};
  return true;
}

BatchOutput::Key BatchOutput::key_of(const std::string& custom_id) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  EVP_Digest(custom_id.data(), custom_id.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  Key key;
  std::memcpy(key.data(), digest.data(), sizeof key);
  return key;
}

Result<std::unique_ptr<BatchOutput>> BatchOutput::open(const std::string& path, bool is_fresh) {
  if (path == "-") return std::unique_ptr<BatchOutput>(new BatchOutput(stdout));
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_APPEND, 0644);
  if (file < 0) return invalid_argument("cannot write to " + path + ": " + std::strerror(errno));
  std::unique_ptr<BatchOutput> output(new BatchOutput(::fdopen(file, "a")));
  if (::flock(file, LOCK_EX | LOCK_NB) != 0)
    return unavailable("another process writes to " + path + ": wait for it, or write to another file");
  if (is_fresh) {
    if (::ftruncate(file, 0) != 0) return internal_error("cannot empty " + path + ": " + std::strerror(errno));
    return output;
  }
  RETURN_IF_ERROR(output->read_former(path));
  return output;
}

BatchOutput::~BatchOutput() {
  if (file_ != nullptr && file_ != stdout) std::fclose(file_);
}

Status BatchOutput::read_former(const std::string& path) {
  std::ifstream input(path, std::ios::binary);
  std::string line;
  int64_t num_bytes = 0;  // of whole lines
  bool is_too_long = false;
  for (int64_t number = 1; read_line(input, line, is_too_long); ++number) {
    // At the end of the file a line that no newline ends was cut off, whatever it holds.
    if (input.eof()) {
      was_repaired_ = true;
      break;
    }
    boost::system::error_code wrong;
    const json::value value = is_too_long ? json::value() : parse_json(line, wrong);
    const json::object* object = wrong ? nullptr : value.if_object();
    const json::string* id = object != nullptr ? text_member(*object, "custom_id") : nullptr;
    const json::value* error = object != nullptr ? object->if_contains("error") : nullptr;
    const json::value* error_line =
        error != nullptr && error->is_object() ? error->get_object().if_contains("line") : nullptr;
    if (object == nullptr || !object->contains("custom_id") || !object->contains("response")) {
      return invalid_argument("line " + std::to_string(number) + " of " + path +
                              " is no answer of a batch: give another file with -o, or --overwrite to begin anew");
    }
    num_bytes += static_cast<int64_t>(line.size()) + 1;
    ++num_kept_;
    if (error_line != nullptr && error_line->is_int64()) {
      lines_in_error_.insert(error_line->get_int64());
    } else if (id != nullptr) {
      answered_.insert(key_of(std::string(*id)));
      if (!is_success(*object)) failed_.insert(key_of(std::string(*id)));
    }
  }
  if (was_repaired_ && ::ftruncate(::fileno(file_), num_bytes) != 0)
    return internal_error("cannot repair " + path + ": " + std::strerror(errno));
  return ok_status();
}

bool BatchOutput::has_answer(const std::string& custom_id) const {
  return answered_.contains(key_of(custom_id));
}

bool BatchOutput::has_failure(const std::string& custom_id) const {
  return failed_.contains(key_of(custom_id));
}

bool BatchOutput::claim(const std::string& custom_id) {
  return claimed_.insert(key_of(custom_id)).second;
}

Status BatchOutput::write_line(const std::string& line) {
  const bool is_written =
      std::fwrite(line.data(), 1, line.size(), file_) == line.size() && std::fputc('\n', file_) != EOF;
  // At once, so that a run that is killed has lost nothing that was answered.
  if (is_written && std::fflush(file_) == 0) return ok_status();
  return internal_error(std::string("an answer could not be written: ") + std::strerror(errno) +
                        ". Run the same command again when there is room: it goes on where this run stopped");
}

Status BatchOutput::write(const BatchAnswer& answer) {
  boost::system::error_code wrong;
  json::value body = parse_json(answer.body, wrong);
  if (wrong) body = json::string(answer.body);
  return write_line(serialize(
      {{"id", answer.request_id},
       {"custom_id", answer.custom_id},
       {"response",
        json::object{{"status_code", answer.status}, {"request_id", answer.request_id}, {"body", std::move(body)}}},
       {"error", nullptr}}));
}

Status BatchOutput::write_error(const BatchLineError& error, int64_t line_number) {
  return write_line(
      serialize({{"id", "batch_req_" + std::to_string(line_number)},
                 {"custom_id", error.custom_id.empty() ? json::value() : json::value(error.custom_id)},
                 {"response", nullptr},
                 {"error", json::object{{"code", error.code}, {"message", error.message}, {"line", line_number}}}}));
}

}  // namespace quire::app
