// The JSON text of a schema, and the references inside it. Internal to the grammar files.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/status.h"
#include "text/grammar.h"

namespace quire::grammar_internal {

class SchemaDocument {
 public:
  static Result<SchemaDocument> parse(std::string_view text, const GrammarLimits& limits);

  const boost::json::value& root() const { return *root_; }
  // "#", "#/$defs/name", "#anchor", or an $id of the document. Anything else is an error.
  Result<const boost::json::value*> resolve(std::string_view reference) const;

 private:
  void index_names();

  std::unique_ptr<boost::json::value> root_;  // behind a pointer, so that those into it stay valid
  std::unordered_map<std::string, const boost::json::value*> by_name_;  // "#anchor" and $id
};

}  // namespace quire::grammar_internal
