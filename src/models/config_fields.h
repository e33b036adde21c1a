// Typed, range-checked reading of a model file's metadata: a JSON object, whether it came from config.json or was made
// from GGUF keys. The first fault is kept as a Status that names the key, what stands there and what is expected; after
// it, reads return harmless values, so that a parser reads straight on and asks once at the end. Used while loading.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

template <typename T>
struct ValueRange {
  T min;
  T max;
};

class ConfigFields {
 public:
  // `where` is put before keys in messages ("config.json: "). `status` collects the first fault. All three are
  // borrowed.
  ConfigFields(const boost::json::object& object, std::string where, Status& status)
      : object_(object), where_(std::move(where)), status_(status) {}

  // Whether the key is there and not null.
  bool has(std::string_view key) const { return find(key) != nullptr; }

  // Without a default the key must be there.
  int64_t integer(std::string_view key, ValueRange<int64_t> range, std::optional<int64_t> default_value = {}) const;
  double number(std::string_view key, ValueRange<double> range, std::optional<double> default_value = {}) const;
  bool boolean(std::string_view key, bool default_value) const;
  std::string text(std::string_view key, std::string_view default_value) const;

  // An integer or a list of them; nothing where the key is not there.
  std::vector<int64_t> integers(std::string_view key, ValueRange<int64_t> range) const;
  std::vector<float> numbers(std::string_view key, ValueRange<double> range) const;
  std::vector<std::string> texts(std::string_view key) const;

  // The object under a key; an empty one where there is none.
  ConfigFields child(std::string_view key) const;

  // Says that the value of a key will not do.
  void fail(std::string_view key, const std::string& expected) const;
  void fail(Status status) const;

  const boost::json::object& object() const { return object_; }
  const std::string& where() const { return where_; }

 private:
  const boost::json::value* find(std::string_view key) const;
  std::optional<int64_t> as_integer(const boost::json::value& value) const;

  const boost::json::object& object_;
  std::string where_;
  Status& status_;
};

// A JSON document whose top is an object. `what` names the file in messages.
Result<boost::json::object> parse_json_object(std::string_view text, std::string_view what);

}  // namespace quire
