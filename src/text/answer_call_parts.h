// The readers of the parts of a tool call that carry its name and arguments, whatever stands around them: the object
// {"name": …, "arguments": …}, tagged parameters, a Python call. Byte by byte; what is certain is written to the
// AnswerWriter at once. Internal to answer_*; used by CallReader. One answer, one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/answer_json_scanner.h"
#include "text/answer_parameters.h"
#include "text/answer_writer.h"

namespace quire::answer {

// What is known of the call that is being read.
struct CallState {
  const ToolSyntax* syntax = nullptr;
  const std::vector<ToolSpec>* tools = nullptr;
  AnswerWriter* writer = nullptr;
  size_t max_held_bytes = 0;

  std::string name, id, number;
  bool has_begun = false;  // its deltas are out: it cannot be taken back

  void reset() {
    name.clear();
    id.clear();
    number.clear();
    has_begun = false;
  }
  void begin() {
    has_begun = true;
    writer->begin_call(syntax->call_id, name, id, number);
  }
  // Of a call that was cut off: begins it if it can only be one of one tool.
  void begin_likely(bool is_name_whole) {
    const ToolSpec* likely = nullptr;
    for (const ToolSpec& tool : *tools) {
      if (is_name_whole ? tool.name != name : !tool.name.starts_with(name)) continue;
      if (likely != nullptr) return;
      likely = &tool;
    }
    if (likely == nullptr) return;
    name = likely->name;
    id.clear();  // it may be cut off too
    number.clear();
    begin();
  }
  const ToolSpec* find_tool(std::string_view tool_name) const {
    for (const ToolSpec& tool : *tools)
      if (tool.name == tool_name) return &tool;
    return nullptr;
  }
  bool is_beginning_of_name(std::string_view text) const {
    for (const ToolSpec& tool : *tools)
      if (tool.name.starts_with(text)) return true;
    return false;
  }
};

enum class PartStep : uint8_t {
  kMore,
  kDone,            // the byte ended the part
  kDoneBefore,      // the part had ended before the byte
  kFault,           // this is no call, or no more of one
  kArgumentsFault,  // the arguments have begun and break at this byte
};

// A JSON object whose bytes are the arguments.
class ArgumentsReader {
 public:
  explicit ArgumentsReader(CallState* call) : call_(call) {}
  void reset();
  PartStep add(char byte);

 private:
  CallState* call_;
  JsonScanner scanner_;
};

// Writes a byte of JSON arguments out; control characters inside strings are escaped.
void write_argument_byte(bool is_in_string, char byte, AnswerWriter* writer);

class CallObjectReader {
 public:
  explicit CallObjectReader(CallState* call) : call_(call) {}
  void reset();
  bool is_name_whole() const { return !call_->name.empty() && state_ != State::kName; }
  PartStep add(char byte);

 private:
  enum class State : uint8_t {
    kOpen,
    kKeyOrClose,
    kKeyOpen,
    kKey,
    kColon,
    kValueOpen,
    kName,
    kArguments,        // an object, written as it comes
    kHeldArguments,    // an object, before the name is known
    kArgumentsString,  // an object inside a JSON string
    kOther,            // a value that means nothing here
    kAfterValue,
  };
  PartStep begin_value(char byte);
  PartStep end_object();
  PartStep add_held(char byte);
  PartStep add_name(char byte);
  bool is_arguments_key() const { return key_ == "arguments" || key_ == "parameters"; }
  bool is_name_key() const { return key_ == "name" || key_ == "tool_name" || key_ == "function"; }

  CallState* call_;
  State state_ = State::kOpen;
  JsonScanner scanner_;
  JsonStringReader string_;
  std::string key_;
  std::string held_arguments_;
  bool has_arguments_ = false;
  bool has_held_arguments_ = false;
  bool is_inner_ = false;  // inside {"type": "function", "function": {…}}
};

// Ends before the text that is no parameter; CallReader knows what may follow.
class TaggedParametersReader {
 public:
  explicit TaggedParametersReader(CallState* call) : call_(call) {}
  void reset();
  // `next` is what follows the parameters ("</function>"): kDone when it is complete.
  PartStep add(char byte, std::string_view next);
  bool is_between() const { return state_ == State::kBetween; }
  // At kDoneBefore: text that belongs to nobody, the byte included.
  const std::string& held() const { return held_; }
  void cut_off();  // the answer ends here: what is held of a text goes out
  void end();      // the arguments' last brace; begins the call if nothing has

 private:
  enum class State : uint8_t { kBetween, kKey, kValueOpen, kValue };
  PartStep add_between(char byte, std::string_view next);
  PartStep add_key(char byte);
  PartStep add_value(char byte);
  void begin_parameter(std::string_view key, TypeSet types);
  void write_text(std::string_view text);
  void follow_json(char byte);
  void end_value();

  CallState* call_;
  const ToolSpec* tool_ = nullptr;
  ParameterTypes types_;
  State state_ = State::kBetween;
  std::string held_;        // part of a marker, perhaps; or the key
  std::string value_;       // of a value that is not written as it comes
  std::string line_break_;  // held: it may be the last before the closing tag
  TypeSet value_types_ = kAnyType;
  bool is_streamed_ = false;   // the value is text and goes out as it comes
  bool follows_json_ = false;  // the value can only be JSON, and is until now
  JsonScanner json_;
  bool is_at_start_ = false;  // of the value
  bool has_parameters_ = false;
};

// name(key=value, …) to {"key": value, …}.
class PythonCallReader {
 public:
  explicit PythonCallReader(CallState* call) : call_(call) {}
  void reset();
  bool is_name_whole() const { return state_ != State::kName; }
  PartStep add(char byte);

 private:
  enum class State : uint8_t { kName, kKeyOrClose, kKey, kEquals, kValue, kString, kEscape, kWord, kAfterValue };
  PartStep add_to_string(char byte);
  PartStep add_escape(char byte);
  PartStep begin_value(char byte);
  PartStep end_word(char byte);
  PartStep after_value(char byte);
  PartStep close(char byte);
  PartStep write(std::string_view json);  // checked on its way out
  void begin_if_needed();

  CallState* call_;
  State state_ = State::kName;
  JsonScanner scanner_;
  std::string word_;     // a name, a number, True
  std::string closers_;  // ')' ']' '}' that are due inside the value
  char quote_ = 0;
  uint8_t num_digits_ = 0;
  uint32_t code_ = 0, high_surrogate_ = 0;
  bool has_comma_ = false;  // seen, not written yet
  bool has_parameters_ = false;
};

}  // namespace quire::answer
