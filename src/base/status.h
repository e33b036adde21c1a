// Status and Result<T>: how a function says that the world is wrong (a bad file, a bad request, no memory).
// The message is for the person who caused it and says what to do. A broken invariant of our own is a CHECK
// (base/check.h) instead. Used by every layer; no dependencies.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace quire {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the input is wrong: a file's contents, a flag, a request field
  kNotFound,           // a file, a model or a name does not exist
  kResourceExhausted,  // it can never fit
  kUnimplemented,      // well formed, but of a kind that is not supported
  kUnavailable,        // right now it cannot be done; the same call may succeed later
  kOverloaded,         // too much waits already: try again in a while
  kCancelled,          // the caller asked to stop
  kInternal,           // the operating system or a library failed
};

const char* status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {
    CHECK(code != StatusCode::kOk);
  }

  bool is_ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same error, told from further out: "loading model.gguf: <message>".
  Status with_context(const std::string& context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status ok_status() {
  return Status();
}
Status invalid_argument(std::string message);
Status not_found(std::string message);
Status resource_exhausted(std::string message);
Status unimplemented(std::string message);
Status unavailable(std::string message);
Status overloaded(std::string message);
Status cancelled(std::string message);
Status internal_error(std::string message);

// Either a value or an error. Reading the value of an error is our own bug and CHECK-fails.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) { CHECK(!status_.is_ok()); }

  bool is_ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & {
    CHECK(is_ok());
    return *value_;
  }
  const T& value() const& {
    CHECK(is_ok());
    return *value_;
  }
  T&& value() && {
    CHECK(is_ok());
    return std::move(*value_);
  }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace quire

#define QUIRE_CONCAT_INNER(a, b) a##b
#define QUIRE_CONCAT(a, b) QUIRE_CONCAT_INNER(a, b)

// Leaves the function with the error, if there is one.
#define RETURN_IF_ERROR(expression)                                                              \
  do {                                                                                           \
    if (::quire::Status quire_status = (expression); !quire_status.is_ok()) return quire_status; \
  } while (false)

// ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_INNER(QUIRE_CONCAT(quire_result_, __LINE__), declaration, expression)
#define ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                   \
  if (!result.is_ok()) return result.status();                  \
  declaration = std::move(result).value()
