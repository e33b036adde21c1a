// Several JSON schemas that must hold at once (allOf, $ref with siblings, the branches of anyOf), merged into one list
// of constraints. Internal to the grammar files; pure.
#pragma once

#include <boost/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/grammar_decimal.h"
#include "text/grammar_schema_document.h"
#include "text/grammar_work.h"

namespace quire::grammar_internal {

// A schema and which of its keywords the others of the conjunction already stand for.
struct SchemaPart {
  enum Done : uint8_t { kReference = 1, kAllOf = 2, kAnyOf = 4, kOneOf = 8 };
  const boost::json::value* schema = nullptr;
  uint8_t done = 0;
  auto operator<=>(const SchemaPart&) const = default;
};
using Conjunction = std::vector<SchemaPart>;  // empty: anything goes

enum JsonType : uint8_t {
  kNullType = 1,
  kBooleanType = 2,
  kIntegerType = 4,   // whole numbers
  kFractionType = 8,  // the other numbers
  kStringType = 16,
  kArrayType = 32,
  kObjectType = 64,
  kNumberTypes = kIntegerType | kFractionType,
  kAllTypes = 127,
};

struct MergedSchema {
  bool is_never = false;
  uint8_t types = kAllTypes;
  Conjunction parts;  // references and allOf followed

  std::optional<std::vector<const boost::json::value*>> constants;  // enum and const
  NumberLimits number;
  int64_t min_length = 0, max_length = -1;  // -1: no bound, here and below
  std::vector<std::string> patterns, formats;
  int64_t min_items = 0, max_items = -1;
  bool has_unique_items = false;
  int64_t min_properties = 0, max_properties = -1;
  std::vector<std::string> required;

  // anyOf or oneOf that is still to be chosen from: of parts[choice_part].
  const boost::json::array* choice = nullptr;
  size_t choice_part = 0;
  bool is_exclusive_choice = false;  // oneOf

  bool limits_length() const { return min_length > 0 || max_length != -1; }
};

Result<MergedSchema> merge_schemas(const SchemaDocument& document, const Conjunction& conjunction,
                                   const JsonSchemaOptions& options, CompileWork& work);

// The same with one of the choices taken.
Conjunction with_choice(const MergedSchema& merged, const boost::json::value& choice);

// Whether no value satisfies both, as far as is easily seen: by types, constants, and constants of required properties.
Result<bool> are_disjoint(const SchemaDocument& document, const MergedSchema& a, const MergedSchema& b,
                          const JsonSchemaOptions& options, CompileWork& work, int depth = 0);

// What the parts say of a property by its name in "properties". Nothing: no part names it.
std::optional<Conjunction> named_property(const MergedSchema& merged, std::string_view name);

uint8_t types_of_value(const boost::json::value& value);

}  // namespace quire::grammar_internal
