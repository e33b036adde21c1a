// Reading values out of JSON bodies: numbers as clients write them, and messages that show what was sent. Used by the
// readers of requests; pure functions, any thread.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

// Bodies nest this deep at most.
constexpr size_t kMaxJsonDepth = 100;

// A JSON text from outside. The error says what is wrong and where.
Result<boost::json::value> parse_json(std::string_view text);

// The first bytes of a text, without a character of which only a part would be left.
std::string shorten_text(std::string_view text, size_t num_bytes);

// The value as JSON, cut where it is long.
std::string shown_json(const boost::json::value& value);

// "NAME must be WANTED, not VALUE".
Status wrong_field(std::string_view name, std::string_view wanted, const boost::json::value& value);

// A whole number, also when written as 3.0.
bool read_integer(const boost::json::value& value, int64_t& out);
// Finite numbers only.
bool read_number(const boost::json::value& value, double& out);

// Reads the members of one object. Members that are absent or null leave the target as it is; of several mistakes the
// first is kept, with the field that it is about.
class FieldReader {
 public:
  // `prefix` stands before the names in messages: "stream_options.".
  explicit FieldReader(const boost::json::object& object, std::string prefix = {})
      : object_(object), prefix_(std::move(prefix)) {}

  // The member, or nullptr where it is absent or null.
  const boost::json::value* find(std::string_view name) const;

  void read_bool(std::string_view name, bool& target);
  void read_string(std::string_view name, std::string& target, size_t most_bytes);
  // Whole numbers from low to high.
  template <typename Integer>
  void read_integer_in(std::string_view name, Integer& target, int64_t low, int64_t high) {
    int64_t number = 0;
    if (read_bounded(name, number, low, high)) target = static_cast<Integer>(number);
  }

  // A mistake that the caller found.
  void fail(std::string_view name, Status status);
  void fail_wanted(std::string_view name, std::string_view wanted);

  bool is_ok() const { return status_.is_ok(); }
  const Status& status() const { return status_; }
  const std::string& param() const { return param_; }  // the field of the mistake

 private:
  bool read_bounded(std::string_view name, int64_t& number, int64_t low, int64_t high);

  const boost::json::object& object_;
  std::string prefix_;
  Status status_;
  std::string param_;
};

}  // namespace quire
