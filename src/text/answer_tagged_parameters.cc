// Parameters as tags: texts stream into JSON strings as they come, all other values are held until they are whole.
#include "text/answer_call_parts.h"

namespace quire::answer {
namespace {

constexpr size_t kMaxKeyBytes = 512;

}  // namespace

void TaggedParametersReader::reset() {
  *this = TaggedParametersReader(call_);
}

void TaggedParametersReader::end() {
  if (!call_->has_begun) call_->begin();
  if (state_ == State::kValue) end_value();
  call_->writer->add_arguments(has_parameters_ ? "}" : "{}");
}

void TaggedParametersReader::cut_off() {
  if (state_ != State::kValue) return;
  if (!is_streamed_) {
    if (follows_json_) call_->writer->add_arguments(value_);
    return;
  }
  write_text(line_break_);
  write_text(held_);
}

PartStep TaggedParametersReader::add(char byte, std::string_view next) {
  switch (state_) {
    case State::kBetween:
      return add_between(byte, next);
    case State::kKey:
      return add_key(byte);
    case State::kValueOpen: {
      if (held_.empty() && is_json_space(byte)) return PartStep::kMore;
      held_.push_back(byte);
      const std::string_view open = call_->syntax->parameters.value_open;
      if (!open.starts_with(held_)) {
        held_ = std::string(call_->syntax->parameters.key_open) + value_ +
                std::string(call_->syntax->parameters.key_close) + held_;
        state_ = State::kBetween;
        return PartStep::kDoneBefore;
      }
      if (held_.size() < open.size()) return PartStep::kMore;
      begin_parameter(value_, value_types_);
      return PartStep::kMore;
    }
    case State::kValue:
      return add_value(byte);
  }
  return PartStep::kFault;
}

PartStep TaggedParametersReader::add_between(char byte, std::string_view next) {
  if (held_.empty() && is_json_space(byte)) return PartStep::kMore;
  held_.push_back(byte);
  const std::string_view open = call_->syntax->parameters.key_open;
  if (held_ == open) {
    held_.clear();
    state_ = State::kKey;
    return PartStep::kMore;
  }
  if (!next.empty() && held_ == next) return PartStep::kDone;
  return open.starts_with(held_) || next.starts_with(held_) ? PartStep::kMore : PartStep::kDoneBefore;
}

PartStep TaggedParametersReader::add_key(char byte) {
  const ParameterSyntax& syntax = call_->syntax->parameters;
  held_.push_back(byte);
  if (held_.size() > kMaxKeyBytes) {
    held_ = std::string(syntax.key_open) + held_;
    state_ = State::kBetween;
    return PartStep::kDoneBefore;
  }
  const bool has_kinds = !syntax.key_close_text.empty();
  std::string_view close;
  TypeSet kind = kAnyType;
  if (has_kinds && held_.ends_with(syntax.key_close_text)) {
    close = syntax.key_close_text;
    kind = kStringType;
  } else if (has_kinds && held_.ends_with(syntax.key_close_json)) {
    close = syntax.key_close_json;
    kind = static_cast<TypeSet>(kAnyType & ~kStringType);
  } else if (held_.ends_with(syntax.key_close)) {
    close = syntax.key_close;
  } else {
    return PartStep::kMore;
  }
  std::string key = held_.substr(0, held_.size() - close.size());
  held_.clear();
  if (tool_ == nullptr) {
    tool_ = call_->find_tool(call_->name);
    if (tool_ != nullptr) types_ = ParameterTypes(tool_->parameters_schema_json);
  }
  const TypeSet types = kind != kAnyType ? kind : types_.of(key);
  if (syntax.value_open.empty()) {
    begin_parameter(key, types);
  } else {
    value_ = std::move(key);
    value_types_ = types;
    state_ = State::kValueOpen;
  }
  return PartStep::kMore;
}

void TaggedParametersReader::begin_parameter(std::string_view key, TypeSet types) {
  if (!call_->has_begun) call_->begin();
  std::string json = has_parameters_ ? ", \"" : "{\"";
  append_json_escaped(key, &json);
  json += "\": ";
  has_parameters_ = true;
  value_types_ = types;
  is_streamed_ = types == kStringType;
  follows_json_ = (types & kStringType) == 0;
  json_.reset();
  if (is_streamed_) json += '"';
  call_->writer->add_arguments(json);
  held_.clear();
  value_.clear();
  line_break_.clear();
  is_at_start_ = true;
  state_ = State::kValue;
}

void TaggedParametersReader::write_text(std::string_view text) {
  if (text.empty()) return;
  if (is_streamed_) {
    std::string json;
    append_json_escaped(text, &json);
    call_->writer->add_arguments(json);
    return;
  }
  value_ += text;
  if (value_.size() <= call_->max_held_bytes) return;
  // Too long to be held: from here on it is a text like others.
  std::string json = "\"";
  append_json_escaped(value_, &json);
  call_->writer->add_arguments(json);
  value_.clear();
  is_streamed_ = true;
}

// One line break behind the opening tag and one before the closing tag belong to the tags, where the family writes
// them.
PartStep TaggedParametersReader::add_value(char byte) {
  const ParameterSyntax& syntax = call_->syntax->parameters;
  const bool strips_breaks = !syntax.space_around_value.empty();
  if (follows_json_ && json_.is_in_string()) {
    // What spells the closing tag here is part of a string.
    follow_json(byte);
    write_text(std::string_view(&byte, 1));
    return PartStep::kMore;
  }
  held_.push_back(byte);
  if (held_ == syntax.value_close) {
    end_value();
    held_.clear();
    state_ = State::kBetween;
    return PartStep::kMore;
  }
  while (!held_.empty() && !syntax.value_close.starts_with(held_)) {
    const char first = held_.front();
    held_.erase(0, 1);
    if (strips_breaks && is_at_start_ && first == '\n') {
      is_at_start_ = false;
      continue;
    }
    is_at_start_ = false;
    follow_json(first);
    write_text(line_break_);
    line_break_.clear();
    if (strips_breaks && first == '\n') {
      line_break_ = "\n";
    } else {
      write_text(std::string_view(&first, 1));
    }
  }
  return PartStep::kMore;
}

void TaggedParametersReader::follow_json(char byte) {
  const JsonScanner::Step step = follows_json_ ? json_.add(byte) : JsonScanner::Step::kMore;
  if (step != JsonScanner::Step::kMore) follows_json_ = false;
}

void TaggedParametersReader::end_value() {
  if (is_streamed_) {
    call_->writer->add_arguments("\"");
  } else {
    call_->writer->add_arguments(parameter_to_json(value_, value_types_));
  }
  value_.clear();
  line_break_.clear();
}

}  // namespace quire::answer
