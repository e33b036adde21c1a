// The filters of lists, dicts and other iterables. See jinja_filters.h. What is a generator in Python is an iterator
// here: computed at once, walked once.
#include <algorithm>

#include "text/jinja_attributes.h"
#include "text/jinja_filters.h"
#include "text/jinja_format.h"
#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace quire::jinja {

namespace {

Result<Value> path_step(Runtime& runtime, const Value& item, std::string_view part) {
  const bool is_index = !part.empty() && part.size() < 18 &&
                        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!is_index) return get_item(runtime, item, runtime.make_string(part));
  int64_t index = 0;
  for (const char c : part) index = index * 10 + (c - '0');
  return get_item(runtime, item, Value::integer(index));
}

}  // namespace

Result<Value> attribute_path(Runtime& runtime, const Value& item, const Value& path, const Value* fallback) {
  Value current = item;
  const auto settle = [&] {
    if (fallback != nullptr && current.is_undefined()) current = *fallback;
  };
  if (path.is_missing() || path.is_none()) return current;
  if (!path.is_string()) {
    ASSIGN_OR_RETURN(current, get_item(runtime, item, path));
    settle();
    return current;
  }
  const std::string_view bytes = path.bytes();
  for (size_t begin = 0;;) {
    const size_t end = std::min(bytes.find('.', begin), bytes.size());
    ASSIGN_OR_RETURN(current, path_step(runtime, current, bytes.substr(begin, end - begin)));
    settle();
    if (end == bytes.size()) return current;
    begin = end + 1;
  }
}

namespace {

Value ignore_case(Runtime& runtime, const Value& value) {
  if (!value.is_string()) return value;
  return runtime.make_string(map_case(value.text(), CaseMapping::kLower));
}

bool flag(const Value& value) {
  return !value.is_missing() && is_true(value);
}

Result<Value> length_filter(Runtime&, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(bind_arguments("length", arguments, {}, 0).status());
  const std::optional<size_t> length = length_of(input);
  if (!length) return invalid_argument(std::string("object of type '") + type_name(input) + "' has no len()");
  return Value::integer(static_cast<int64_t>(*length));
}

Result<Value> list_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(bind_arguments("list", arguments, {}, 0).status());
  ASSIGN_OR_RETURN(std::vector<Value> items, collect_items(runtime, input));
  return runtime.make_list(std::move(items));
}

Result<Value> first_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(bind_arguments("first", arguments, {}, 0).status());
  ASSIGN_OR_RETURN(ValueIterator iterator, ValueIterator::over(input));
  Value item;
  ASSIGN_OR_RETURN(const bool has_item, iterator.next(runtime, &item));
  return has_item ? item : Value::undefined("No first item, sequence was empty.");
}

Result<Value> last_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(bind_arguments("last", arguments, {}, 0).status());
  if (input.kind() == Kind::kIterator || !is_iterable(input)) {
    return invalid_argument(std::string("'") + type_name(input) + "' object is not reversible");
  }
  if (input.kind() == Kind::kString || input.kind() == Kind::kRange || input.kind() == Kind::kUndefined) {
    ASSIGN_OR_RETURN(std::optional<Value> item, input.is_undefined() ? Result<std::optional<Value>>(std::nullopt)
                                                                     : subscript(runtime, input, Value::integer(-1)));
    if (!item) return Value::undefined("No last item, sequence was empty.");
    if (!item->is_string()) return *item;
    return runtime.make_string(item->text());
  }
  ASSIGN_OR_RETURN(const std::vector<Value> items, collect_items(runtime, input));
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Result<Value> reverse_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(bind_arguments("reverse", arguments, {}, 0).status());
  if (input.is_string()) return slice(runtime, input, Value::missing(), Value::missing(), Value::integer(-1));
  ASSIGN_OR_RETURN(std::vector<Value> items, collect_items(runtime, input));
  std::reverse(items.begin(), items.end());
  if (input.kind() == Kind::kIterator) return runtime.make_list(std::move(items));
  return runtime.make_iterator(std::move(items));
}

Result<Value> items_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(bind_arguments("items", arguments, {}, 0).status());
  if (input.is_undefined()) return runtime.make_iterator({});
  if (!input.is_dict()) return runtime.make_iterator({}, invalid_argument("Can only get item pairs from a mapping."));
  std::vector<Value> pairs;
  for (const auto& [key, value] : input.dict_object().entries) {
    ASSIGN_OR_RETURN(Value pair, runtime.make_list({key, value}, Kind::kTuple));
    pairs.push_back(std::move(pair));
  }
  return runtime.make_iterator(std::move(pairs));
}

Result<Value> dictsort_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound,
                   bind_arguments("dictsort", arguments, {"case_sensitive", "by", "reverse"}, 0));
  bool by_value = false;
  if (!bound[1].is_missing()) {
    by_value = bound[1].is_string() && bound[1].bytes() == "value";
    if (!by_value && !(bound[1].is_string() && bound[1].bytes() == "key")) {
      return invalid_argument("You can only sort by either \"key\" or \"value\"");
    }
  }
  if (input.is_undefined()) return undefined_error(input);
  if (!input.is_dict())
    return invalid_argument(std::string("'") + type_name(input) + "' object has no attribute 'items'");
  const auto& entries = input.dict_object().entries;
  std::vector<Value> keys;
  for (const auto& [key, value] : entries) {
    const Value& sorted_by = by_value ? value : key;
    keys.push_back(flag(bound[0]) ? sorted_by : ignore_case(runtime, sorted_by));
  }
  ASSIGN_OR_RETURN(const std::vector<size_t> order, sorted_order(runtime, keys, flag(bound[2])));
  std::vector<Value> pairs;
  for (const size_t i : order) {
    ASSIGN_OR_RETURN(Value pair, runtime.make_list({entries[i].first, entries[i].second}, Kind::kTuple));
    pairs.push_back(std::move(pair));
  }
  return runtime.make_list(std::move(pairs));
}

// The key of an item under one attribute or several with commas: a list, as Python compares it.
Result<Value> sort_key(Runtime& runtime, const Value& item, const Value& attribute, bool is_case_sensitive) {
  std::vector<Value> parts;
  const auto add = [&](const Value& path) -> Status {
    ASSIGN_OR_RETURN(Value value, attribute_path(runtime, item, path, nullptr));
    parts.push_back(is_case_sensitive ? value : ignore_case(runtime, value));
    return ok_status();
  };
  if (!attribute.is_string()) {
    RETURN_IF_ERROR(add(attribute));
  } else {
    const std::string_view bytes = attribute.bytes();
    for (size_t begin = 0; begin <= bytes.size();) {
      const size_t end = std::min(bytes.find(',', begin), bytes.size());
      RETURN_IF_ERROR(add(runtime.make_string(bytes.substr(begin, end - begin))));
      begin = end + 1;
    }
  }
  return runtime.make_list(std::move(parts));
}

Result<Value> sort_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound,
                   bind_arguments("sort", arguments, {"reverse", "case_sensitive", "attribute"}, 0));
  ASSIGN_OR_RETURN(const std::vector<Value> items, collect_items(runtime, input));
  std::vector<Value> keys;
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value key, sort_key(runtime, item, bound[2], flag(bound[1])));
    keys.push_back(std::move(key));
  }
  ASSIGN_OR_RETURN(const std::vector<size_t> order, sorted_order(runtime, keys, flag(bound[0])));
  std::vector<Value> sorted;
  for (const size_t i : order) sorted.push_back(items[i]);
  return runtime.make_list(std::move(sorted));
}

Result<Value> unique_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound,
                   bind_arguments("unique", arguments, {"case_sensitive", "attribute"}, 0));
  std::vector<Value> unique;
  DictObject seen;
  const auto run = [&]() -> Status {
    ASSIGN_OR_RETURN(const std::vector<Value> items, collect_items(runtime, input));
    for (const Value& item : items) {
      ASSIGN_OR_RETURN(Value key, attribute_path(runtime, item, bound[1], nullptr));
      if (!flag(bound[0])) key = ignore_case(runtime, key);
      if (!is_hashable(key)) return invalid_argument(std::string("unhashable type: '") + type_name(key) + "'");
      RETURN_IF_ERROR(runtime.touch_items(key.is_string() ? 0 : seen.entries.size()));
      if (seen.find(key) != nullptr) continue;
      seen.set(key, Value::none());
      unique.push_back(item);
    }
    return ok_status();
  };
  Status status = run();
  return runtime.make_iterator(std::move(unique), std::move(status));
}

Result<Value> min_or_max(Runtime& runtime, const Value& input, const Arguments& arguments, bool is_max) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound,
                   bind_arguments(is_max ? "max" : "min", arguments, {"case_sensitive", "attribute"}, 0));
  ASSIGN_OR_RETURN(const std::vector<Value> items, collect_items(runtime, input));
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  Value best, best_key;
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value key, attribute_path(runtime, item, bound[1], nullptr));
    if (!flag(bound[0])) key = ignore_case(runtime, key);
    bool is_better = best.is_missing();
    if (!is_better) {
      ASSIGN_OR_RETURN(is_better,
                       compare(runtime, is_max ? CompareOperator::kGt : CompareOperator::kLt, key, best_key));
    }
    if (is_better) {
      best = item;
      best_key = key;
    }
  }
  return best;
}

Result<Value> min_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return min_or_max(runtime, input, arguments, false);
}
Result<Value> max_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return min_or_max(runtime, input, arguments, true);
}

Result<Value> sum_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("sum", arguments, {"attribute", "start"}, 0));
  Value total = bound[1].is_missing() ? Value::integer(0) : bound[1];
  if (total.is_string()) return invalid_argument("sum() can't sum strings [use ''.join(seq) instead]");
  ASSIGN_OR_RETURN(const std::vector<Value> items, collect_items(runtime, input));
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(const Value value, attribute_path(runtime, item, bound[0], nullptr));
    ASSIGN_OR_RETURN(total, apply_binary(runtime, BinaryOperator::kAdd, total, value));
  }
  return total;
}

Result<Value> batch_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("batch", arguments, {"linecount", "fill_with"}, 1));
  std::vector<Value> rows;
  const auto run = [&]() -> Status {
    ASSIGN_OR_RETURN(const std::vector<Value> items, collect_items(runtime, input));
    if (items.empty()) return ok_status();
    std::vector<Value> row;
    for (const Value& item : items) {
      if (are_equal(Value::integer(static_cast<int64_t>(row.size())), bound[0])) {
        ASSIGN_OR_RETURN(Value list, runtime.make_list(std::exchange(row, {})));
        rows.push_back(std::move(list));
      }
      row.push_back(item);
    }
    if (!bound[1].is_missing() && !bound[1].is_none()) {
      if (!bound[0].is_int_like()) return invalid_argument("batch: the line count is a whole number");
      const int64_t missing = bound[0].int_value() - static_cast<int64_t>(row.size());
      if (missing > 0) RETURN_IF_ERROR(runtime.step(missing));
      for (int64_t i = 0; i < missing; ++i) row.push_back(bound[1]);
    }
    ASSIGN_OR_RETURN(Value list, runtime.make_list(std::move(row)));
    rows.push_back(std::move(list));
    return ok_status();
  };
  Status status = run();
  return runtime.make_iterator(std::move(rows), std::move(status));
}

Result<Value> slice_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("slice", arguments, {"slices", "fill_with"}, 1));
  std::vector<Value> columns;
  const auto run = [&]() -> Status {
    ASSIGN_OR_RETURN(const std::vector<Value> items, collect_items(runtime, input));
    if (!bound[0].is_int_like()) return invalid_argument("slice: the number of slices is a whole number");
    const int64_t num_slices = bound[0].int_value();
    if (num_slices == 0) return invalid_argument("integer division or modulo by zero");
    if (num_slices < 0) return ok_status();
    RETURN_IF_ERROR(runtime.step(num_slices));
    const size_t slices = static_cast<size_t>(num_slices);
    const size_t per_slice = items.size() / slices, num_longer = items.size() % slices;
    size_t begin = 0;
    for (size_t i = 0; i < slices; ++i) {
      const size_t end = begin + per_slice + (i < num_longer ? 1 : 0);
      std::vector<Value> column(items.begin() + static_cast<ptrdiff_t>(begin),
                                items.begin() + static_cast<ptrdiff_t>(end));
      if (!bound[1].is_missing() && !bound[1].is_none() && i >= num_longer) column.push_back(bound[1]);
      ASSIGN_OR_RETURN(Value list, runtime.make_list(std::move(column)));
      columns.push_back(std::move(list));
      begin = end;
    }
    return ok_status();
  };
  Status status = run();
  return runtime.make_iterator(std::move(columns), std::move(status));
}

Result<Value> groupby_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound,
                   bind_arguments("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1));
  const Value* fallback = bound[1].is_missing() || bound[1].is_none() ? nullptr : &bound[1];
  ASSIGN_OR_RETURN(const std::vector<Value> items, collect_items(runtime, input));
  std::vector<Value> groupers, keys;
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value grouper, attribute_path(runtime, item, bound[0], fallback));
    keys.push_back(flag(bound[2]) ? grouper : ignore_case(runtime, grouper));
    groupers.push_back(std::move(grouper));
  }
  ASSIGN_OR_RETURN(const std::vector<size_t> order, sorted_order(runtime, keys, false));
  std::vector<Value> groups;
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    std::vector<Value> members;
    while (end < order.size() && are_equal(keys[order[end]], keys[order[begin]]))
      members.push_back(items[order[end++]]);
    ASSIGN_OR_RETURN(Value list, runtime.make_list(std::move(members)));
    ASSIGN_OR_RETURN(Value group, runtime.make_list({groupers[order[begin]], list}, Kind::kTuple));
    group.as<ListObject>().is_group = true;
    groups.push_back(std::move(group));
    begin = end;
  }
  return runtime.make_list(std::move(groups));
}

Arguments without_first(const Arguments& arguments, size_t count) {
  Arguments rest;
  rest.positional.assign(arguments.positional.begin() + static_cast<ptrdiff_t>(count), arguments.positional.end());
  rest.named = arguments.named;
  return rest;
}

Result<Value> map_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  std::vector<Value> mapped;
  const auto run = [&]() -> Status {
    if (!is_true(input)) return ok_status();
    if (arguments.positional.empty() && std::any_of(arguments.named.begin(), arguments.named.end(),
                                                    [](const auto& entry) { return entry.first == "attribute"; })) {
      ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("map", arguments, {"attribute", "default"}, 1));
      const Value* fallback = bound[1].is_missing() || bound[1].is_none() ? nullptr : &bound[1];
      ASSIGN_OR_RETURN(const std::vector<Value> items, collect_items(runtime, input));
      for (const Value& item : items) {
        ASSIGN_OR_RETURN(Value value, attribute_path(runtime, item, bound[0], fallback));
        mapped.push_back(std::move(value));
      }
      return ok_status();
    }
    if (arguments.positional.empty()) return invalid_argument("map requires a filter argument");
    const Value& name = arguments.positional[0];
    const Arguments rest = without_first(arguments, 1);
    ASSIGN_OR_RETURN(const std::vector<Value> items, collect_items(runtime, input));
    for (const Value& item : items) {
      const FilterRow* filter = name.is_string() ? find_filter(name.bytes()) : nullptr;
      if (filter == nullptr) {
        return invalid_argument("No filter named '" + std::string(name.is_string() ? name.bytes() : "?") + "'.");
      }
      ASSIGN_OR_RETURN(Value value, filter->apply(runtime, item, rest));
      mapped.push_back(std::move(value));
    }
    return ok_status();
  };
  Status status = run();
  return runtime.make_iterator(std::move(mapped), std::move(status));
}

Result<Value> select_items(Runtime& runtime, const Value& input, const Arguments& arguments, bool by_attribute,
                           bool keeps_true) {
  std::vector<Value> selected;
  const auto run = [&]() -> Status {
    if (!is_true(input)) return ok_status();
    const size_t first = by_attribute ? 1 : 0;
    if (arguments.positional.size() < first) return invalid_argument("Missing parameter for attribute name");
    const TestRow* test = nullptr;
    Arguments rest;
    const bool has_test = arguments.positional.size() > first;
    if (has_test) {
      const Value& name = arguments.positional[first];
      test = name.is_string() ? find_test(name.bytes()) : nullptr;
      rest = without_first(arguments, first + 1);
    }
    ASSIGN_OR_RETURN(const std::vector<Value> items, collect_items(runtime, input));
    for (const Value& item : items) {
      Value tested = item;
      if (by_attribute) {
        ASSIGN_OR_RETURN(tested, attribute_path(runtime, item, arguments.positional[0], nullptr));
      }
      bool holds = false;
      if (has_test) {
        if (test == nullptr) return invalid_argument("No such test for select or reject");
        ASSIGN_OR_RETURN(holds, test->holds(runtime, tested, rest));
      } else {
        holds = is_true(tested);
      }
      if (holds == keeps_true) selected.push_back(item);
    }
    return ok_status();
  };
  Status status = run();
  return runtime.make_iterator(std::move(selected), std::move(status));
}

constexpr FilterRow kSequenceFilters[] = {
    {"batch", batch_filter},
    {"count", length_filter},
    {"dictsort", dictsort_filter},
    {"first", first_filter},
    {"groupby", groupby_filter},
    {"items", items_filter},
    {"last", last_filter},
    {"length", length_filter},
    {"list", list_filter},
    {"map", map_filter},
    {"max", max_filter},
    {"min", min_filter},
    {"reject", [](Runtime& r, const Value& i, const Arguments& a) { return select_items(r, i, a, false, false); }},
    {"rejectattr", [](Runtime& r, const Value& i, const Arguments& a) { return select_items(r, i, a, true, false); }},
    {"reverse", reverse_filter},
    {"select", [](Runtime& r, const Value& i, const Arguments& a) { return select_items(r, i, a, false, true); }},
    {"selectattr", [](Runtime& r, const Value& i, const Arguments& a) { return select_items(r, i, a, true, true); }},
    {"slice", slice_filter},
    {"sort", sort_filter},
    {"sum", sum_filter},
    {"unique", unique_filter},
};

}  // namespace

std::span<const FilterRow> sequence_filters() {
  return kSequenceFilters;
}

}  // namespace quire::jinja
