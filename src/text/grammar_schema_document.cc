#include "text/grammar_schema_document.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

namespace quire::grammar_internal {
namespace {

namespace json = boost::json;

// %41 → A, as in the fragment of a URI.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16).ptr == text.data() + i + 3) {
      decoded += static_cast<char>(value);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

const json::value* step(const json::value& from, std::string_view raw_key) {
  std::string key;
  for (size_t i = 0; i < raw_key.size(); ++i) {
    if (raw_key[i] == '~' && i + 1 < raw_key.size() && (raw_key[i + 1] == '0' || raw_key[i + 1] == '1')) {
      key += raw_key[++i] == '0' ? '~' : '/';
    } else {
      key += raw_key[i];
    }
  }
  if (from.is_object()) return from.get_object().if_contains(key);
  size_t index = 0;
  const auto parsed = std::from_chars(key.data(), key.data() + key.size(), index);
  if (!from.is_array() || parsed.ec != std::errc() || parsed.ptr != key.data() + key.size()) return nullptr;
  return index < from.get_array().size() ? &from.get_array()[index] : nullptr;
}

}  // namespace

Result<SchemaDocument> SchemaDocument::parse(std::string_view text, const GrammarLimits& limits) {
  if (text.size() > limits.max_source_bytes) {
    return invalid_argument("the schema has " + std::to_string(text.size()) + " bytes, more than the " +
                            std::to_string(limits.max_source_bytes) + " that are allowed");
  }
  json::parse_options options;
  // A schema inside a schema takes two levels of JSON: {"properties": {"a": {...}}}.
  options.max_depth = static_cast<size_t>(limits.max_depth) * 2;
  boost::system::error_code error;
  SchemaDocument document;
  document.root_ = std::make_unique<json::value>(
      json::parse(json::string_view(text.data(), text.size()), error, json::storage_ptr(), options));
  if (error == json::error::too_deep) {
    return invalid_argument("the schema is nested too deep, more than " + std::to_string(limits.max_depth * 2) +
                            " levels of JSON");
  }
  if (error) return invalid_argument("the schema is not valid JSON: " + error.message());
  if (!document.root_->is_object() && !document.root_->is_bool()) {
    return invalid_argument("the schema must be a JSON object (or true or false)");
  }
  document.index_names();
  return document;
}

void SchemaDocument::index_names() {
  std::vector<const json::value*> work{root_.get()};
  while (!work.empty()) {
    const json::value* value = work.back();
    work.pop_back();
    if (value->is_array()) {
      for (const json::value& element : value->get_array()) work.push_back(&element);
    }
    if (!value->is_object()) continue;
    for (const auto& member : value->get_object()) {
      work.push_back(&member.value());
      if (!member.value().is_string()) continue;
      const std::string text(member.value().get_string());
      if (member.key() == "$anchor") by_name_.try_emplace("#" + text, value);
      if (member.key() == "$id" || member.key() == "id") by_name_.try_emplace(text, value);
    }
  }
}

Result<const json::value*> SchemaDocument::resolve(std::string_view reference) const {
  if (reference.empty() || reference == "#") return root_.get();
  const auto named = by_name_.find(std::string(reference));
  if (named != by_name_.end()) return named->second;
  const json::value* from = root_.get();
  const size_t hash = reference.find('#');
  std::string_view path = reference;
  if (hash != std::string_view::npos) {
    if (hash > 0) {
      const auto base = by_name_.find(std::string(reference.substr(0, hash)));
      from = base == by_name_.end() ? nullptr : base->second;
    }
    path = reference.substr(hash + 1);
  } else {
    from = nullptr;
  }
  if (from == nullptr || (!path.empty() && path[0] != '/')) {
    return invalid_argument("schema: the reference \"" + std::string(reference) +
                            "\" does not lead into this schema; put what it refers to under \"$defs\"");
  }
  const std::string decoded = percent_decoded(path);
  for (size_t begin = 1; begin <= decoded.size() && from != nullptr;) {
    const size_t end = std::min(decoded.size(), decoded.find('/', begin));
    from = step(*from, std::string_view(decoded).substr(begin, end - begin));
    begin = end + 1;
  }
  if (from == nullptr) {
    return invalid_argument("schema: the reference \"" + std::string(reference) + "\" leads nowhere");
  }
  return from;
}

}  // namespace quire::grammar_internal
