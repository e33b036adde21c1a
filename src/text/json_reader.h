// Reading JSON files that strangers wrote, with types checked and errors that name the place. Bounded in depth and
// size. A JsonValue is a view into its JsonDocument. For the tokenizer readers; requests have their own (server).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

class JsonValue {
 public:
  JsonValue() = default;  // null

  bool is_null() const;
  bool is_string() const;
  bool is_bool() const;
  std::string_view as_string() const;  // of a string only
  bool as_bool() const;                // of a boolean only
  size_t num_members() const;          // of an object; 0 for all else

  // A member of an object; a member that is null counts as absent. `what` names the object in errors.
  bool has(std::string_view key) const;
  JsonValue get_or_null(std::string_view key) const;
  Result<JsonValue> get(std::string_view key, const std::string& what) const;
  Result<std::string> get_string(std::string_view key, const std::string& what) const;
  Result<int64_t> get_integer(std::string_view key, const std::string& what) const;
  Result<bool> get_bool_or(std::string_view key, bool if_absent, const std::string& what) const;
  Result<double> get_number_or(std::string_view key, double if_absent, const std::string& what) const;
  Result<std::vector<JsonValue>> get_array(std::string_view key, const std::string& what) const;

  Result<int64_t> to_integer(const std::string& what) const;
  Result<double> to_number(const std::string& what) const;
  Result<std::vector<JsonValue>> to_array(const std::string& what) const;
  Status for_each_member(const std::string& what,
                         const std::function<Status(std::string_view key, const JsonValue& value)>& visit) const;

 private:
  friend class JsonDocument;
  explicit JsonValue(const void* value) : value_(value) {}
  const void* value_ = nullptr;
};

class JsonDocument {
 public:
  // `name` is the file's, for errors.
  static Result<JsonDocument> parse(std::string_view text, const std::string& name);
  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  ~JsonDocument();

  JsonValue root() const;

 private:
  struct Impl;
  explicit JsonDocument(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
