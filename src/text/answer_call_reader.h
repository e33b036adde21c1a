// CallReader: reads tool calls of one family by walking the elements of its row, from the marker that begins the first
// call to the end of the last. Nothing is lost: text that turns out to be no call is given back. Internal to answer_*;
// used by AnswerParser. One answer, one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/answer_call_parts.h"

namespace quire::answer {

struct TextPiece {
  std::string text;
  bool is_special = false;
};

class CallReader {
 public:
  // A text that may begin calls, and the element that it is (or, of a '{', begins).
  struct Trigger {
    std::string_view text;
    size_t position;
    bool is_special;
    bool is_only_at_start;
  };
  enum class Step : uint8_t {
    kMore,
    kRejected,     // no call: unread() is all that came since the trigger, with it
    kEnded,        // no more calls here
    kEndedBefore,  // the same; unread() is text that stands behind them
  };

  CallReader(const AnswerFormat& format, const std::vector<ToolSpec>* tools, AnswerWriter* writer,
             size_t max_held_bytes);

  const std::vector<Trigger>& triggers() const { return triggers_; }
  Step begin(const Trigger& trigger);
  Step add(char byte);
  Step add_special(std::string_view piece);
  // The answer ends here. is_call: what has been read can only be a call, however little it is.
  Step finish(bool is_call);
  // The answer ends in the middle of what would have begun the calls.
  void begin_cut_off();

  const std::vector<TextPiece>& unread() const { return unread_; }
  // A call of these is out: what stood around them belongs to them.
  bool has_begun() const { return has_begun_any_ || call_.has_begun; }

 private:
  enum class Mode : uint8_t { kElements, kRawArguments, kBetween, kClosing };
  using Elements = std::vector<const AnswerElement*>;

  Step add_to_element(char byte);
  Step add_text(char byte);
  Step add_name(char byte);
  Step add_word(char byte);
  Step add_part(char byte);
  Step add_raw(char byte);
  Step add_between(char byte);
  Step add_behind(char byte, Step advanced);
  Step advance();
  Step fault(std::string_view unread, bool is_special);
  Step end_call();
  void start(const Elements* elements, size_t position);
  void record(std::string_view text, bool is_special);
  void forget_raw() {
    raw_.clear();
    num_raw_bytes_ = 0;
  }
  bool is_name_whole() const;
  bool is_tail() const { return are_arguments_read_ || mode_ == Mode::kClosing; }
  bool is_parameter_marker(std::string_view piece) const;
  // The next text of the call behind the arguments; empty: there is none.
  std::string_view closer() const;

  const AnswerFormat* format_;
  CallState call_;
  CallObjectReader object_;
  ArgumentsReader arguments_;
  TaggedParametersReader parameters_;
  PythonCallReader python_;

  Elements first_, next_, closing_;            // opening and call; separator and call; closing
  std::string_view next_text_, closing_text_;  // what they begin with
  std::vector<Trigger> triggers_;

  Mode mode_ = Mode::kElements;
  const Elements* elements_ = nullptr;
  size_t position_ = 0;
  size_t num_matched_ = 0;  // bytes of a text element
  bool are_arguments_read_ = false;
  bool has_begun_any_ = false;
  std::string held_;            // between calls, or of the closer of broken arguments
  std::vector<TextPiece> raw_;  // since the beginning of a call that is not out yet
  size_t num_raw_bytes_ = 0;
  std::vector<TextPiece> unread_;
};

}  // namespace quire::answer
