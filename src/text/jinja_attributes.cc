// Attribute lookup, and the methods of everything but strings and loops. See jinja_attributes.h.
#include "text/jinja_attributes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "text/jinja_operators.h"

namespace quire::jinja {
namespace {

constexpr std::array<std::string_view, 4> kDictMethods = {"get", "items", "keys", "values"};
constexpr std::array<std::string_view, 7> kDictBlocked = {"clear",  "pop",  "popitem", "setdefault",
                                                          "update", "copy", "fromkeys"};
constexpr std::array<std::string_view, 8> kListBlocked = {"append", "clear",  "extend",  "insert",
                                                          "pop",    "remove", "reverse", "sort"};

template <size_t N>
bool is_one_of(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value unsafe(const Value& value, std::string_view name) {
  return Value::undefined("access to attribute '" + std::string(name) + "' of '" + type_name(value) +
                          "' object is unsafe.");
}

Value no_attribute(const Value& value, std::string_view name) {
  const std::string object = value.is_none() ? "None" : std::string("'") + type_name(value) + " object'";
  return Value::undefined(object + " has no attribute '" + std::string(name) + "'");
}

Result<Value> call_dict_method(Runtime& runtime, const Value& self, std::string_view name, const Arguments& arguments) {
  const DictObject& dict = self.dict_object();
  if (name == "get") {
    ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("get", arguments, {"/key", "/default"}, 1));
    if (!is_hashable(bound[0])) {
      return invalid_argument(std::string("unhashable type: '") + type_name(bound[0]) + "'");
    }
    RETURN_IF_ERROR(runtime.touch_items(dict.entries.size()));
    const Value* found = dict.find(bound[0]);
    if (found != nullptr) return *found;
    return bound[1].is_missing() ? Value::none() : bound[1];
  }
  RETURN_IF_ERROR(bind_arguments(name, arguments, {}, 0).status());
  RETURN_IF_ERROR(runtime.touch_items(dict.entries.size()));
  if (name == "copy") return self;
  std::vector<Value> items;
  items.reserve(dict.entries.size());
  for (const auto& [key, value] : dict.entries) {
    if (name == "items") {
      ASSIGN_OR_RETURN(Value pair, runtime.make_list({key, value}, Kind::kTuple));
      items.push_back(std::move(pair));
    } else {
      items.push_back(name == "keys" ? key : value);
    }
  }
  return runtime.make_list(std::move(items), name == "items"  ? Kind::kDictItems
                                             : name == "keys" ? Kind::kDictKeys
                                                              : Kind::kDictValues);
}

Result<Value> call_list_method(Runtime& runtime, const Value& self, std::string_view name, const Arguments& arguments) {
  if (name == "copy") {
    RETURN_IF_ERROR(bind_arguments(name, arguments, {}, 0).status());
    return self;
  }
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments(name, arguments, {"/value", "/start", "/stop"}, 1));
  ASSIGN_OR_RETURN(const std::vector<Value> items, collect_items(runtime, self));
  if (name == "count") {
    const auto matches = [&](const Value& item) { return are_equal(item, bound[0]); };
    return Value::integer(std::count_if(items.begin(), items.end(), matches));
  }
  ASSIGN_OR_RETURN(const SliceIndices range,
                   resolve_slice(bound[1], bound[2], Value::missing(), static_cast<int64_t>(items.size())));
  for (int64_t i = range.start; i < range.start + range.count; ++i) {
    if (are_equal(items[static_cast<size_t>(i)], bound[0])) return Value::integer(i);
  }
  return invalid_argument("the value is not in the list");
}

Result<Value> call_cycler_method(CyclerObject& cycler, std::string_view name, const Arguments& arguments) {
  RETURN_IF_ERROR(bind_arguments(name, arguments, {}, 0).status());
  if (name == "reset") {
    cycler.position = 0;
    return Value::none();
  }
  const Value current = cycler.items[cycler.position];
  cycler.position = (cycler.position + 1) % cycler.items.size();
  return current;
}

Result<Value> call_number_method(const Value& self, std::string_view name, const Arguments& arguments) {
  RETURN_IF_ERROR(bind_arguments(name, arguments, {}, 0).status());
  if (name == "is_integer")
    return Value::boolean(std::isfinite(self.float_value()) && std::trunc(self.float_value()) == self.float_value());
  const int64_t value = self.int_value();
  const uint64_t magnitude = value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  return Value::integer(std::bit_width(magnitude));
}

}  // namespace

Result<std::optional<Value>> find_attribute(Runtime& runtime, const Value& value, std::string_view name) {
  if (value.kind() == Kind::kNamespace) {
    for (const auto& [key, attribute] : value.as<NamespaceObject>().attributes) {
      if (key == name) return std::optional<Value>(attribute);
    }
    return std::optional<Value>();
  }
  const bool is_dunder = name.size() > 4 && name.starts_with("__") && name.ends_with("__");
  // An undefined value has these as any object has; all else of it is an error.
  if (value.is_undefined() && name != "__class__" && name != "__doc__" && name != "__init__" && name != "__module__") {
    return undefined_error(value);
  }
  if (is_dunder) return std::optional<Value>(unsafe(value, name));
  bool has_method = false;
  bool is_blocked = false;
  switch (value.kind()) {
    case Kind::kString:
      has_method = has_string_method(name);
      break;
    case Kind::kDict:
      is_blocked = is_one_of(kDictBlocked, name) && name != "copy";
      has_method = is_one_of(kDictMethods, name) || name == "copy";
      break;
    case Kind::kList:
      is_blocked = is_one_of(kListBlocked, name);
      has_method = name == "count" || name == "index" || name == "copy";
      break;
    case Kind::kBool:
    case Kind::kInt:
      if (name == "real" || name == "numerator") return std::optional<Value>(Value::integer(value.int_value()));
      if (name == "imag") return std::optional<Value>(Value::integer(0));
      if (name == "denominator") return std::optional<Value>(Value::integer(1));
      has_method = name == "bit_length";
      break;
    case Kind::kFloat:
      if (name == "real") return std::optional<Value>(value);
      if (name == "imag") return std::optional<Value>(Value::number(0));
      has_method = name == "is_integer";
      break;
    case Kind::kTuple:
      if (value.as<ListObject>().is_group && (name == "grouper" || name == "list")) {
        return std::optional<Value>(value.items()[name == "list" ? 1 : 0]);
      }
      has_method = name == "count" || name == "index";
      break;
    case Kind::kRange: {
      const RangeObject& range = value.as<RangeObject>();
      if (name == "start") return std::optional<Value>(Value::integer(range.start));
      if (name == "stop") return std::optional<Value>(Value::integer(range.stop));
      if (name == "step") return std::optional<Value>(Value::integer(range.step));
      has_method = name == "count" || name == "index";
      break;
    }
    case Kind::kCycler: {
      const CyclerObject& cycler = value.as<CyclerObject>();
      if (name == "current") return std::optional<Value>(cycler.items[cycler.position]);
      has_method = name == "next" || name == "reset";
      break;
    }
    default:
      break;
  }
  if (is_blocked) return std::optional<Value>(unsafe(value, name));
  if (has_method) return std::optional<Value>(runtime.make_method(value, name));
  return std::optional<Value>();
}

Result<Value> get_attribute(Runtime& runtime, const Value& value, std::string_view name) {
  ASSIGN_OR_RETURN(std::optional<Value> attribute, find_attribute(runtime, value, name));
  if (attribute) return *std::move(attribute);
  if (value.is_dict()) {
    RETURN_IF_ERROR(runtime.touch_items(value.dict_object().entries.size()));
    if (const Value* found = value.dict_object().find(name)) return *found;
  }
  return no_attribute(value, name);
}

Result<Value> get_item(Runtime& runtime, const Value& value, const Value& index) {
  ASSIGN_OR_RETURN(std::optional<Value> item, subscript(runtime, value, index));
  if (item) return *std::move(item);
  if (index.is_string()) {
    ASSIGN_OR_RETURN(std::optional<Value> attribute, find_attribute(runtime, value, index.bytes()));
    if (attribute) return *std::move(attribute);
    return no_attribute(value, index.bytes());
  }
  const std::string element = index.is_int_like() ? std::to_string(index.int_value()) : std::string(type_name(index));
  return Value::undefined(std::string(type_name(value)) + " object has no element " + element);
}

Result<Value> call_method(Runtime& runtime, const MethodObject& method, const Arguments& arguments) {
  switch (method.self.kind()) {
    case Kind::kString:
      return call_string_method(runtime, method.self, method.name, arguments);
    case Kind::kDict:
      return call_dict_method(runtime, method.self, method.name, arguments);
    case Kind::kCycler:
      return call_cycler_method(method.self.as<CyclerObject>(), method.name, arguments);
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return call_number_method(method.self, method.name, arguments);
    default:
      return call_list_method(runtime, method.self, method.name, arguments);
  }
}

}  // namespace quire::jinja
