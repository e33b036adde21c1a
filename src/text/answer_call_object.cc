// The object that names a tool and its arguments, and bare arguments.
#include "text/answer_call_parts.h"

namespace quire::answer {
namespace {

constexpr size_t kMaxKeyBytes = 64;
constexpr size_t kMaxNameBytes = 512;

}  // namespace

void write_argument_byte(bool is_in_string, char byte, AnswerWriter* writer) {
  if (is_in_string && static_cast<unsigned char>(byte) < 0x20) {
    std::string escaped;
    append_json_escaped(std::string_view(&byte, 1), &escaped);
    writer->add_arguments(escaped);
  } else {
    writer->add_arguments(std::string_view(&byte, 1));
  }
}

void ArgumentsReader::reset() {
  scanner_.reset();
}

PartStep ArgumentsReader::add(char byte) {
  if (!call_->has_begun) {
    if (is_json_space(byte)) return PartStep::kMore;
    if (byte != '{') return PartStep::kFault;
    call_->begin();
  }
  const bool is_in_string = scanner_.is_in_string();
  const JsonScanner::Step step = scanner_.add(byte);
  if (step == JsonScanner::Step::kError) return PartStep::kArgumentsFault;
  write_argument_byte(is_in_string, byte, call_->writer);
  return step == JsonScanner::Step::kMore ? PartStep::kMore : PartStep::kDone;
}

void CallObjectReader::reset() {
  *this = CallObjectReader(call_);
}

PartStep CallObjectReader::add_held(char byte) {
  if (held_arguments_.size() >= call_->max_held_bytes) return PartStep::kFault;
  const bool is_in_string = scanner_.is_in_string();
  const JsonScanner::Step step = scanner_.add(byte);
  if (step == JsonScanner::Step::kError) return PartStep::kFault;
  if (is_in_string && static_cast<unsigned char>(byte) < 0x20) {
    append_json_escaped(std::string_view(&byte, 1), &held_arguments_);
  } else {
    held_arguments_.push_back(byte);
  }
  if (step == JsonScanner::Step::kDone) {
    has_held_arguments_ = true;
    state_ = State::kAfterValue;
  }
  return PartStep::kMore;
}

PartStep CallObjectReader::add_name(char byte) {
  const JsonStringReader::Step step = string_.add(byte, &call_->name);
  if (step == JsonStringReader::Step::kError || call_->name.size() > kMaxNameBytes) return PartStep::kFault;
  if (step == JsonStringReader::Step::kMore) return PartStep::kMore;
  if (call_->find_tool(call_->name) == nullptr) return PartStep::kFault;
  if (has_held_arguments_) {
    call_->begin();
    call_->writer->add_arguments(held_arguments_);
    has_arguments_ = true;
  }
  state_ = State::kAfterValue;
  return PartStep::kMore;
}

PartStep CallObjectReader::begin_value(char byte) {
  const bool may_be_arguments = is_arguments_key() && !has_arguments_ && !has_held_arguments_;
  if (is_name_key() && !call_->has_begun && byte == '"') {
    // A second name would leave open which one is meant.
    if (!call_->name.empty()) return PartStep::kFault;
    string_.reset();
    state_ = State::kName;
    return PartStep::kMore;
  }
  if (key_ == "function" && byte == '{' && !is_inner_ && call_->name.empty()) {
    is_inner_ = true;
    state_ = State::kKeyOrClose;
    return PartStep::kMore;
  }
  if (may_be_arguments && byte == '{') {
    scanner_.reset();
    if (call_->name.empty()) {
      state_ = State::kHeldArguments;
      return add_held(byte);
    }
    has_arguments_ = true;
    call_->begin();
    state_ = State::kArguments;
    scanner_.add(byte);
    write_argument_byte(false, byte, call_->writer);
    return PartStep::kMore;
  }
  if (may_be_arguments && byte == '"' && !call_->name.empty()) {
    has_arguments_ = true;
    call_->begin();
    string_.reset();
    state_ = State::kArgumentsString;
    return PartStep::kMore;
  }
  // Arguments that are a number or a list are no arguments; null counts as none.
  if (may_be_arguments && byte != 'n') return PartStep::kFault;
  scanner_.reset();
  if (scanner_.add(byte) == JsonScanner::Step::kError) return PartStep::kFault;
  state_ = State::kOther;
  return PartStep::kMore;
}

PartStep CallObjectReader::end_object() {
  if (is_inner_) {
    is_inner_ = false;
    key_.clear();
    state_ = State::kAfterValue;
    return PartStep::kMore;
  }
  if (call_->name.empty()) return PartStep::kFault;
  if (!has_arguments_) {
    if (!call_->has_begun) call_->begin();
    call_->writer->add_arguments("{}");
  }
  return PartStep::kDone;
}

PartStep CallObjectReader::add(char byte) {
  switch (state_) {
    case State::kOpen:
      if (is_json_space(byte)) return PartStep::kMore;
      if (byte != '{') return PartStep::kFault;
      state_ = State::kKeyOrClose;
      return PartStep::kMore;
    case State::kKeyOrClose:
      if (byte == '}') return end_object();
      [[fallthrough]];
    case State::kKeyOpen:
      if (is_json_space(byte)) return PartStep::kMore;
      if (byte != '"') return PartStep::kFault;
      key_.clear();
      string_.reset();
      state_ = State::kKey;
      return PartStep::kMore;
    case State::kKey: {
      const JsonStringReader::Step step = string_.add(byte, &key_);
      if (step == JsonStringReader::Step::kError || key_.size() > kMaxKeyBytes) return PartStep::kFault;
      if (step == JsonStringReader::Step::kDone) state_ = State::kColon;
      return PartStep::kMore;
    }
    case State::kColon:
      if (is_json_space(byte)) return PartStep::kMore;
      if (byte != ':') return PartStep::kFault;
      state_ = State::kValueOpen;
      return PartStep::kMore;
    case State::kValueOpen:
      return is_json_space(byte) ? PartStep::kMore : begin_value(byte);
    case State::kName:
      return add_name(byte);
    case State::kHeldArguments:
      return add_held(byte);
    case State::kArguments: {
      const bool is_in_string = scanner_.is_in_string();
      const JsonScanner::Step step = scanner_.add(byte);
      if (step == JsonScanner::Step::kError) return PartStep::kArgumentsFault;
      write_argument_byte(is_in_string, byte, call_->writer);
      if (step == JsonScanner::Step::kDone) state_ = State::kAfterValue;
      return PartStep::kMore;
    }
    case State::kArgumentsString: {
      std::string text;
      const JsonStringReader::Step step = string_.add(byte, &text);
      if (step == JsonStringReader::Step::kError) return PartStep::kArgumentsFault;
      call_->writer->add_arguments(text);
      if (step == JsonStringReader::Step::kDone) state_ = State::kAfterValue;
      return PartStep::kMore;
    }
    case State::kOther: {
      const JsonScanner::Step step = scanner_.add(byte);
      if (step == JsonScanner::Step::kMore) return PartStep::kMore;
      if (step == JsonScanner::Step::kError) return PartStep::kFault;
      state_ = State::kAfterValue;
      return step == JsonScanner::Step::kDoneBefore ? add(byte) : PartStep::kMore;
    }
    case State::kAfterValue:
      if (is_json_space(byte)) return PartStep::kMore;
      if (byte == '}') return end_object();
      if (byte != ',') return PartStep::kFault;
      state_ = State::kKeyOpen;
      return PartStep::kMore;
  }
  return PartStep::kFault;
}

}  // namespace quire::answer
