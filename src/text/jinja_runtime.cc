// Budgets, makers, argument binding and iteration. See jinja_runtime.h.
#include "text/jinja_runtime.h"

namespace quire::jinja {

Status Runtime::budget_error() const {
  if (num_steps_ > limits_.max_steps) {
    return resource_exhausted("the chat template did more than " + std::to_string(limits_.max_steps) +
                              " steps; it loops too long for this input");
  }
  return resource_exhausted("the chat template holds more than " + std::to_string(limits_.max_memory_bytes) +
                            " bytes of values");
}

Status Runtime::check_string_size(size_t num_bytes) {
  if (num_bytes > limits_.max_output_bytes) {
    return resource_exhausted("the chat template makes a text of more than " +
                              std::to_string(limits_.max_output_bytes) + " bytes");
  }
  return ok_status();
}

Value Runtime::make_string(Text text, bool is_markup) {
  num_steps_ += static_cast<int64_t>(text.size() / 256);  // the next step tells when it was too much
  auto object = std::make_shared<StringObject>();
  object->charge_to(&meter_, sizeof(StringObject) + text.size());
  object->num_chars = count_code_points(text.bytes());
  object->text = std::move(text);
  object->is_markup = is_markup;
  return Value::from_object(Kind::kString, std::move(object));
}

namespace {

Status depth_error() {
  return resource_exhausted("the chat template nests values more than " + std::to_string(kMaxValueDepth) + " deep");
}

}  // namespace

Result<Value> Runtime::make_list(std::vector<Value> items, Kind kind) {
  auto object = make_object<ListObject>(items.size() * sizeof(Value));
  for (const Value& item : items) object->depth = std::max(object->depth, item.depth() + 1);
  if (object->depth > kMaxValueDepth) return depth_error();
  object->items = std::move(items);
  return Value::from_object(kind, std::move(object));
}

Result<Value> Runtime::make_dict(std::vector<std::pair<Value, Value>> entries) {
  auto object = make_object<DictObject>(entries.size() * (2 * sizeof(Value) + 32));
  for (auto& [key, value] : entries) {
    if (!is_hashable(key)) return invalid_argument(std::string("unhashable type: '") + type_name(key) + "'");
    object->set(key, std::move(value));
  }
  if (object->depth > kMaxValueDepth) return depth_error();
  return Value::from_object(Kind::kDict, std::move(object));
}

Value Runtime::make_iterator(std::vector<Value> items, Status error) {
  auto object = make_object<IteratorObject>(items.size() * sizeof(Value));
  for (const Value& item : items) object->depth = std::max(object->depth, item.depth() + 1);
  if (object->depth > kMaxValueDepth) {
    items.clear();
    object->depth = 1;
    error = depth_error();
  }
  object->items = std::move(items);
  object->error = std::move(error);
  return Value::from_object(Kind::kIterator, std::move(object));
}

Value Runtime::make_method(const Value& self, std::string_view name) {
  auto object = make_object<MethodObject>();
  object->self = self;
  object->depth = self.depth() + 1;  // a method of a method does not exist, so the depth stays bounded
  object->name = name;
  return Value::from_object(Kind::kMethod, std::move(object));
}

Value Runtime::make_namespace(std::vector<std::pair<std::string, Value>> attributes) {
  auto object = make_object<NamespaceObject>(attributes.size() * (sizeof(Value) + sizeof(std::string)));
  object->attributes = std::move(attributes);
  namespaces_.push_back(object);
  return Value::from_object(Kind::kNamespace, std::move(object));
}

void Runtime::release_namespaces() {
  for (const auto& object : namespaces_) object->attributes.clear();
  namespaces_.clear();
}

Result<std::vector<Value>> bind_arguments(std::string_view function, const Arguments& arguments,
                                          std::initializer_list<std::string_view> names, size_t num_required) {
  const std::string name(function);
  if (arguments.positional.size() > names.size()) {
    return invalid_argument(name + "() takes at most " + std::to_string(names.size()) + " arguments (" +
                            std::to_string(arguments.positional.size()) + " given)");
  }
  std::vector<Value> bound(names.size());
  std::copy(arguments.positional.begin(), arguments.positional.end(), bound.begin());
  for (const auto& [key, value] : arguments.named) {
    const auto it = std::find(names.begin(), names.end(), key);
    if (it == names.end()) return invalid_argument(name + "() got an unexpected keyword argument '" + key + "'");
    Value& slot = bound[static_cast<size_t>(it - names.begin())];
    if (!slot.is_missing()) return invalid_argument(name + "() got multiple values for argument '" + key + "'");
    slot = value;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (bound[i].is_missing()) {
      return invalid_argument(name + "() missing the argument '" + std::string(names.begin()[i]) + "'");
    }
  }
  return bound;
}

bool is_iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kDictKeys:
    case Kind::kDictValues:
    case Kind::kDictItems:
    case Kind::kRange:
    case Kind::kIterator:
    case Kind::kLoop:
      return true;
    default:
      return false;
  }
}

Result<ValueIterator> ValueIterator::over(const Value& value) {
  if (!is_iterable(value) || value.kind() == Kind::kLoop) {
    return invalid_argument(std::string("'") + type_name(value) + "' object is not iterable");
  }
  ValueIterator iterator;
  iterator.source_ = value;
  return iterator;
}

Result<bool> ValueIterator::next(Runtime& runtime, Value* item) {
  RETURN_IF_ERROR(runtime.step());
  switch (source_.kind()) {
    case Kind::kString: {
      const Text& text = source_.text();
      if (position_ >= text.size()) return false;
      const size_t end = position_ + code_point_at(text.bytes(), position_).num_bytes;
      *item = runtime.make_string(text.substr(position_, end));
      position_ = end;
      return true;
    }
    case Kind::kDict: {
      const auto& entries = source_.dict_object().entries;
      if (position_ >= entries.size()) return false;
      *item = entries[position_++].first;
      return true;
    }
    case Kind::kRange: {
      const RangeObject& range = source_.as<RangeObject>();
      if (position_ >= static_cast<size_t>(range.length)) return false;
      *item = Value::integer(range.start + static_cast<int64_t>(position_++) * range.step);
      return true;
    }
    case Kind::kIterator: {
      IteratorObject& iterator = source_.as<IteratorObject>();
      if (iterator.next < iterator.items.size()) {
        *item = iterator.items[iterator.next++];
        return true;
      }
      if (!iterator.error.is_ok()) return std::exchange(iterator.error, ok_status());
      return false;
    }
    case Kind::kUndefined:
      return false;
    default: {
      const std::vector<Value>& items = source_.items();
      if (position_ >= items.size()) return false;
      *item = items[position_++];
      return true;
    }
  }
}

Result<std::vector<Value>> collect_items(Runtime& runtime, const Value& value) {
  ASSIGN_OR_RETURN(ValueIterator iterator, ValueIterator::over(value));
  std::vector<Value> items;
  // The vector itself is not metered until it becomes a list; every item costs a step, which bounds it.
  for (;;) {
    Value item;
    ASSIGN_OR_RETURN(const bool has_item, iterator.next(runtime, &item));
    if (!has_item) return items;
    items.push_back(std::move(item));
  }
}

std::optional<size_t> length_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return value.str().num_chars;
    case Kind::kDict:
      return value.dict_object().entries.size();
    case Kind::kRange:
      return static_cast<size_t>(value.as<RangeObject>().length);
    default:
      if (value.is_items()) return value.items().size();
      return std::nullopt;
  }
}

}  // namespace quire::jinja
