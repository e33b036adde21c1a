// The global functions of chat templates, as transformers provides them. See jinja_attributes.h.
#include <algorithm>
#include <array>

#include "text/jinja_attributes.h"
#include "text/jinja_format.h"
#include "text/jinja_strftime.h"

namespace quire::jinja {
namespace {

Result<Value> make_range(Runtime& runtime, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("range", arguments, {"/start", "/stop", "/step"}, 1));
  for (const Value& value : bound) {
    if (!value.is_missing() && !value.is_int_like()) {
      if (value.is_undefined()) return undefined_error(value);
      return invalid_argument(std::string("'") + type_name(value) + "' object cannot be interpreted as an integer");
    }
  }
  auto range = runtime.make_object<RangeObject>();
  range->start = bound[1].is_missing() ? 0 : bound[0].int_value();
  range->stop = bound[1].is_missing() ? bound[0].int_value() : bound[1].int_value();
  range->step = bound[2].is_missing() ? 1 : bound[2].int_value();
  if (range->step == 0) return invalid_argument("range() arg 3 must not be zero");
  // In unsigned arithmetic, which holds the distance of any two int64.
  const bool is_up = range->step > 0;
  const uint64_t low = static_cast<uint64_t>(is_up ? range->start : range->stop);
  const uint64_t high = static_cast<uint64_t>(is_up ? range->stop : range->start);
  const uint64_t step = is_up ? static_cast<uint64_t>(range->step) : uint64_t{0} - static_cast<uint64_t>(range->step);
  const bool is_empty = is_up ? range->start >= range->stop : range->start <= range->stop;
  const uint64_t length = is_empty ? 0 : (high - low - 1) / step + 1;
  if (length > static_cast<uint64_t>(runtime.limits().max_range_items)) {
    return invalid_argument("Range too big. The sandbox blocks ranges larger than MAX_RANGE (" +
                            std::to_string(runtime.limits().max_range_items) + ").");
  }
  range->length = static_cast<int64_t>(length);
  return Value::from_object(Kind::kRange, std::move(range));
}

// dict(mapping or pairs, name=value ...)
Result<std::vector<std::pair<Value, Value>>> dict_entries(Runtime& runtime, std::string_view name,
                                                          const Arguments& arguments) {
  if (arguments.positional.size() > 1) {
    return invalid_argument(std::string(name) + " expected at most 1 argument, got " +
                            std::to_string(arguments.positional.size()));
  }
  std::vector<std::pair<Value, Value>> entries;
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is_dict()) {
      entries = source.dict_object().entries;
      RETURN_IF_ERROR(runtime.touch_items(entries.size()));
    } else {
      ASSIGN_OR_RETURN(const std::vector<Value> pairs, collect_items(runtime, source));
      for (const Value& pair : pairs) {
        ASSIGN_OR_RETURN(const std::vector<Value> items, collect_items(runtime, pair));
        if (items.size() != 2) return invalid_argument("dictionary update sequence elements must be pairs");
        entries.emplace_back(items[0], items[1]);
      }
    }
  }
  for (const auto& [key, value] : arguments.named) entries.emplace_back(runtime.make_string(key), value);
  return entries;
}

Result<Value> make_dict(Runtime& runtime, const Arguments& arguments) {
  ASSIGN_OR_RETURN(auto entries, dict_entries(runtime, "dict", arguments));
  return runtime.make_dict(std::move(entries));
}

Result<Value> make_namespace(Runtime& runtime, const Arguments& arguments) {
  ASSIGN_OR_RETURN(auto entries, dict_entries(runtime, "namespace", arguments));
  std::vector<std::pair<std::string, Value>> attributes;
  for (auto& [key, value] : entries) {
    if (!is_hashable(key)) return invalid_argument(std::string("unhashable type: '") + type_name(key) + "'");
    if (!key.is_string()) return invalid_argument("the attributes of a namespace are named by strings");
    const std::string name(key.bytes());
    if (name.starts_with('_')) {
      return invalid_argument("a namespace cannot store the underscore-prefixed attribute '" + name + "'");
    }
    const auto it =
        std::find_if(attributes.begin(), attributes.end(), [&](const auto& entry) { return entry.first == name; });
    RETURN_IF_ERROR(runtime.touch_items(attributes.size()));
    if (it != attributes.end()) {
      it->second = std::move(value);
    } else {
      attributes.emplace_back(name, std::move(value));
    }
  }
  return runtime.make_namespace(std::move(attributes));
}

Result<Value> make_cycler(Runtime& runtime, const Arguments& arguments) {
  if (!arguments.named.empty()) return invalid_argument("cycler() takes no keyword arguments");
  if (arguments.positional.empty()) return invalid_argument("at least one item has to be provided");
  ASSIGN_OR_RETURN(const Value items, runtime.make_list(arguments.positional, Kind::kTuple));  // checks the depth
  auto cycler = runtime.make_object<CyclerObject>(arguments.positional.size() * sizeof(Value));
  cycler->depth = items.depth();
  cycler->items = arguments.positional;
  return Value::from_object(Kind::kCycler, std::move(cycler));
}

Result<Value> make_joiner(Runtime& runtime, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("joiner", arguments, {"sep"}, 0));
  ASSIGN_OR_RETURN(const Value holder, runtime.make_list({bound[0]}));  // checks the depth
  auto joiner = runtime.make_object<JoinerObject>();
  joiner->depth = holder.depth();
  joiner->separator = bound[0].is_missing() ? runtime.make_string(", ", true) : bound[0];
  return Value::from_object(Kind::kJoiner, std::move(joiner));
}

Result<Value> raise_exception(Runtime& runtime, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("raise_exception", arguments, {"message"}, 1));
  ASSIGN_OR_RETURN(Text message, to_text(runtime, bound[0]));
  constexpr size_t kMaxMessageBytes = 4096;
  return invalid_argument(std::string(message.bytes().substr(0, kMaxMessageBytes)));
}

Result<Value> strftime_now(Runtime& runtime, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("strftime_now", arguments, {"format"}, 1));
  if (!bound[0].is_string()) return invalid_argument("strftime_now() takes a format string");
  RETURN_IF_ERROR(runtime.check_string_size(bound[0].bytes().size() * 8));
  return runtime.make_string(format_time(bound[0].bytes(), runtime.now_seconds()));
}

Result<Value> lipsum(Runtime&, const Arguments&) {
  return unimplemented("lipsum() is not supported in chat templates");
}

struct GlobalRow {
  std::string_view name;
  Result<Value> (*call)(Runtime& runtime, const Arguments& arguments);
};

constexpr GlobalRow kGlobals[] = {
    {"range", make_range},   {"dict", make_dict}, {"namespace", make_namespace},        {"cycler", make_cycler},
    {"joiner", make_joiner}, {"lipsum", lipsum},  {"raise_exception", raise_exception}, {"strftime_now", strftime_now},
};

}  // namespace

bool is_global(std::string_view name) {
  return std::any_of(std::begin(kGlobals), std::end(kGlobals), [&](const GlobalRow& row) { return row.name == name; });
}

Result<Value> call_global(Runtime& runtime, std::string_view name, const Arguments& arguments) {
  for (const GlobalRow& row : kGlobals) {
    if (row.name == name) return row.call(runtime, arguments);
  }
  return invalid_argument("'" + std::string(name) + "' is not callable");
}

}  // namespace quire::jinja
