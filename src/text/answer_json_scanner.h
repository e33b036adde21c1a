// Small machines that read JSON byte by byte, for AnswerParser: one that follows a value to its end, and one that takes
// the text out of a JSON string. They build nothing; memory is a few bytes and the nesting. One answer, one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::answer {

// Follows one JSON value. Strict, but for control characters inside strings (a raw line break), which models write.
class JsonScanner {
 public:
  enum class Step : uint8_t {
    kMore,
    kDone,        // the byte ended the value
    kDoneBefore,  // a number ended before the byte, which is not part of it
    kError,
  };
  static constexpr size_t kMaxDepth = 200;

  Step add(char byte);
  void reset();
  bool is_in_string() const { return state_ == State::kString; }
  bool has_begun() const { return state_ != State::kValue || !closers_.empty(); }
  // At the end of the text: is what came so far a whole value? (Only a number can be without its end being seen.)
  bool may_end() const;

 private:
  enum class State : uint8_t {
    kValue,
    kValueOrClose,  // after '['
    kKeyOrClose,    // after '{'
    kKey,
    kColon,
    kAfterValue,
    kString,
    kEscape,
    kUnicode,  // the four digits of \uXXXX
    kLiteral,  // true, false, null
    kMinus,
    kZero,
    kInteger,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kExponentDigits,
    kEnded,
  };
  Step begin_value(char byte);
  Step end_value();
  Step add_to_number(char byte);
  Step close(char byte);

  State state_ = State::kValue;
  bool is_key_ = false;
  uint8_t num_digits_ = 0;
  std::string_view literal_;  // what is left of it
  std::string closers_;       // '}' and ']' that are due
};

// The text of a JSON string, from the byte after the opening quote on.
class JsonStringReader {
 public:
  enum class Step : uint8_t { kMore, kDone, kError };
  Step add(char byte, std::string* out);
  void reset() { *this = JsonStringReader(); }

 private:
  uint8_t num_digits_ = 0;  // of \uXXXX still to come
  bool is_escape_ = false;
  uint32_t code_ = 0;
  uint32_t high_surrogate_ = 0;
};

bool is_json_space(char byte);
void append_code_point(uint32_t code_point, std::string* out);  // ill-formed ones as U+FFFD
// As the inside of a JSON string; UTF-8 is kept.
void append_json_escaped(std::string_view text, std::string* out);
// Is the whole text one JSON value, blanks around it allowed? Then its first byte tells the kind.
bool is_whole_json(std::string_view text);

}  // namespace quire::answer
