// Python's notation of a call, as JSON: keywords become keys, quotes and escapes those of JSON, True true.
#include "text/answer_call_parts.h"

namespace quire::answer {
namespace {

constexpr size_t kMaxWordBytes = 512;

bool is_word(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') || byte == '_' ||
         byte == '.' || byte == '+' || byte == '-' || static_cast<unsigned char>(byte) >= 0x80;
}

int hex_digit(char byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
  if (byte >= 'A' && byte <= 'F') return byte - 'A' + 10;
  return -1;
}

}  // namespace

void PythonCallReader::reset() {
  *this = PythonCallReader(call_);
}

void PythonCallReader::begin_if_needed() {
  if (!call_->has_begun) call_->begin();
}

PartStep PythonCallReader::write(std::string_view json) {
  for (const char byte : json)
    if (scanner_.add(byte) == JsonScanner::Step::kError) return PartStep::kFault;
  call_->writer->add_arguments(json);
  return PartStep::kMore;
}

PartStep PythonCallReader::add(char byte) {
  switch (state_) {
    case State::kName:
      if (call_->name.empty() && is_json_space(byte)) return PartStep::kMore;
      if (byte == '(') {
        if (call_->find_tool(call_->name) == nullptr) return PartStep::kFault;
        state_ = State::kKeyOrClose;
        return PartStep::kMore;
      }
      call_->name.push_back(byte);
      return call_->is_beginning_of_name(call_->name) ? PartStep::kMore : PartStep::kFault;
    case State::kKeyOrClose:
      if (is_json_space(byte)) return PartStep::kMore;
      if (byte == ')') {
        begin_if_needed();
        call_->writer->add_arguments(has_parameters_ ? "}" : "{}");
        return PartStep::kDone;
      }
      word_.clear();
      state_ = State::kKey;
      [[fallthrough]];
    case State::kKey:
      if (is_word(byte)) {
        word_.push_back(byte);
        return word_.size() <= kMaxWordBytes ? PartStep::kMore : PartStep::kFault;
      }
      state_ = State::kEquals;
      [[fallthrough]];
    case State::kEquals: {
      if (is_json_space(byte)) return PartStep::kMore;
      if (byte != '=' || word_.empty()) return PartStep::kFault;
      begin_if_needed();
      std::string json = has_parameters_ ? ", \"" : "{\"";
      append_json_escaped(word_, &json);
      has_parameters_ = true;
      state_ = State::kValue;
      return write(json + "\": ");
    }
    case State::kValue:
      return is_json_space(byte) ? PartStep::kMore : begin_value(byte);
    case State::kString:
      return add_to_string(byte);
    case State::kEscape:
      return add_escape(byte);
    case State::kWord:
      if (!is_word(byte)) return end_word(byte);
      word_.push_back(byte);
      return word_.size() <= kMaxWordBytes ? PartStep::kMore : PartStep::kFault;
    case State::kAfterValue:
      return is_json_space(byte) ? PartStep::kMore : after_value(byte);
  }
  return PartStep::kFault;
}

PartStep PythonCallReader::begin_value(char byte) {
  const bool is_closing = byte == ']' || byte == '}' || byte == ')';
  if (is_closing) return close(byte);  // after a trailing comma, or of an empty list
  if (has_comma_) {
    has_comma_ = false;
    if (write(", ") == PartStep::kFault) return PartStep::kFault;
  }
  if (byte == '"' || byte == '\'') {
    quote_ = byte;
    state_ = State::kString;
    return write("\"");
  }
  if (byte == '[' || byte == '(' || byte == '{') {
    closers_.push_back(byte == '[' ? ']' : byte == '(' ? ')' : '}');
    return write(byte == '{' ? "{" : "[");
  }
  if (!is_word(byte)) return PartStep::kFault;
  word_.assign(1, byte);
  state_ = State::kWord;
  return PartStep::kMore;
}

PartStep PythonCallReader::close(char byte) {
  if (closers_.empty() || closers_.back() != byte) return PartStep::kFault;
  closers_.pop_back();
  has_comma_ = false;
  state_ = State::kAfterValue;
  return write(byte == '}' ? "}" : "]");
}

PartStep PythonCallReader::after_value(char byte) {
  if (closers_.empty()) {
    if (byte == ',') {
      state_ = State::kKeyOrClose;
      return PartStep::kMore;
    }
    if (byte != ')') return PartStep::kFault;
    call_->writer->add_arguments("}");
    return PartStep::kDone;
  }
  if (byte == ',' || byte == ':') {
    state_ = State::kValue;
    has_comma_ = byte == ',';
    return byte == ',' ? PartStep::kMore : write(": ");
  }
  return close(byte);
}

PartStep PythonCallReader::end_word(char byte) {
  std::string_view json = word_;
  if (word_ == "True") json = "true";
  if (word_ == "False") json = "false";
  if (word_ == "None") json = "null";
  if (!is_whole_json(json) || write(json) == PartStep::kFault) return PartStep::kFault;
  state_ = State::kAfterValue;
  return add(byte);
}

PartStep PythonCallReader::add_to_string(char byte) {
  if (byte == '\\') {
    state_ = State::kEscape;
    num_digits_ = 0;
    word_.clear();
    return PartStep::kMore;
  }
  if (high_surrogate_ != 0) {
    high_surrogate_ = 0;
    if (write("\xEF\xBF\xBD") == PartStep::kFault) return PartStep::kFault;
  }
  if (byte == quote_) {
    state_ = State::kAfterValue;
    return write("\"");
  }
  std::string json;
  append_json_escaped(std::string_view(&byte, 1), &json);
  return write(json);
}

PartStep PythonCallReader::add_escape(char byte) {
  std::string text;
  if (num_digits_ > 0) {
    const int digit = hex_digit(byte);
    if (digit < 0) return PartStep::kFault;
    code_ = code_ * 16 + static_cast<uint32_t>(digit);
    if (--num_digits_ > 0) return PartStep::kMore;
    state_ = State::kString;
    if (code_ >= 0xDC00 && code_ < 0xE000 && high_surrogate_ != 0) {
      code_ = 0x10000 + ((high_surrogate_ - 0xD800) << 10) + (code_ - 0xDC00);
      high_surrogate_ = 0;
    }
    if (high_surrogate_ != 0) append_code_point(0xFFFD, &text);
    const bool is_high = code_ >= 0xD800 && code_ < 0xDC00;
    high_surrogate_ = is_high ? code_ : 0;
    if (!is_high) append_code_point(code_, &text);
  } else if (byte == 'x' || byte == 'u' || byte == 'U') {
    num_digits_ = byte == 'x' ? 2 : byte == 'u' ? 4 : 8;
    code_ = 0;
    return PartStep::kMore;
  } else {
    state_ = State::kString;
    if (high_surrogate_ != 0) append_code_point(0xFFFD, &text);
    high_surrogate_ = 0;
    constexpr std::string_view kNames = "\\'\"abfnrtv/";
    constexpr std::string_view kBytes = "\\'\"\a\b\f\n\r\t\v/";
    const size_t at = kNames.find(byte);
    if (at != std::string_view::npos) {
      text += kBytes[at];
    } else if (byte != '\n') {  // what Python does not know stays as it is; a line may be continued
      text += '\\';
      text += byte;
    }
  }
  std::string json;
  append_json_escaped(text, &json);
  return write(json);
}

}  // namespace quire::answer
