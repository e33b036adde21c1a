// What the values of tagged parameters (<parameter=key>value</parameter>) mean: text by itself says nothing of its
// type, the tool's schema does. Internal to answer_*; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::answer {

// A set of JSON types.
using TypeSet = uint8_t;
inline constexpr TypeSet kStringType = 1, kNumberType = 2, kBooleanType = 4, kNullType = 8, kObjectType = 16,
                         kArrayType = 32, kAnyType = 63;

// The types of the properties of one object schema. A schema that cannot be read, or says nothing, allows all.
class ParameterTypes {
 public:
  ParameterTypes() = default;
  explicit ParameterTypes(std::string_view schema_json);
  TypeSet of(std::string_view key) const;

 private:
  std::vector<std::pair<std::string, TypeSet>> types_;
};

// The JSON of a value that was written as plain text. Where the types leave a choice, what is JSON of an allowed type
// is taken as that, and all else as a string. Python's True, False and None are understood.
std::string parameter_to_json(std::string_view value, TypeSet types);

}  // namespace quire::answer
