#include "text/answer_call_reader.h"

namespace quire::answer {
namespace {

using Kind = AnswerElement::Kind;

constexpr size_t kMaxWordBytes = 64;

std::string_view first_text(const std::vector<const AnswerElement*>& elements) {
  for (const AnswerElement* element : elements) {
    if (element->kind == Kind::kText) return element->text;
    if (element->kind != Kind::kSpace) break;
  }
  return {};
}

bool is_letter_or_digit(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9');
}

}  // namespace

CallReader::CallReader(const AnswerFormat& format, const std::vector<ToolSpec>* tools, AnswerWriter* writer,
                       size_t max_held_bytes)
    : format_(&format), object_(&call_), arguments_(&call_), parameters_(&call_), python_(&call_) {
  const ToolSyntax& syntax = *format.tools();
  call_.syntax = &syntax;
  call_.tools = tools;
  call_.writer = writer;
  call_.max_held_bytes = max_held_bytes;
  const auto append = [](std::span<const AnswerElement> part, Elements* to) {
    for (const AnswerElement& element : part) to->push_back(&element);
  };
  append(syntax.opening, &first_);
  append(syntax.call, &first_);
  append(syntax.separator, &next_);
  append(syntax.call, &next_);
  append(syntax.closing, &closing_);
  if (!syntax.opening.empty() || !syntax.separator.empty()) next_text_ = first_text(next_);
  closing_text_ = first_text(closing_);

  const auto add_trigger = [&](std::string_view text, size_t position) {
    triggers_.push_back({text, position, format.is_special_marker(text), text.size() == 1});
  };
  for (size_t i = 0; i < first_.size(); ++i) {
    const AnswerElement& element = *first_[i];
    if (element.kind == Kind::kText) add_trigger(element.text, i);
    if (element.kind == Kind::kCallObject) add_trigger("{", i);
    if (element.kind != Kind::kSpace && !element.is_optional) break;
  }
  // Models leave the marker of the whole list out. A control token that begins a call cannot be meant otherwise.
  if (!syntax.opening.empty()) {
    const std::string_view text = syntax.call[0].text;
    if (syntax.call[0].kind == Kind::kText && format.is_special_marker(text)) add_trigger(text, syntax.opening.size());
  }
}

void CallReader::start(const Elements* elements, size_t position) {
  mode_ = elements == &closing_ ? Mode::kClosing : Mode::kElements;
  elements_ = elements;
  position_ = position;
  num_matched_ = 0;
}

CallReader::Step CallReader::begin(const Trigger& trigger) {
  call_.reset();
  are_arguments_read_ = false;
  has_begun_any_ = false;
  held_.clear();
  forget_raw();
  unread_.clear();
  object_.reset();
  arguments_.reset();
  parameters_.reset();
  python_.reset();
  start(&first_, trigger.position);
  if (first_[position_]->kind == Kind::kCallObject) return add('{');
  record(trigger.text, trigger.is_special);
  return advance();
}

void CallReader::record(std::string_view text, bool is_special) {
  if (call_.has_begun || mode_ == Mode::kClosing) return;
  num_raw_bytes_ += text.size();
  if (is_special || raw_.empty() || raw_.back().is_special) {
    raw_.push_back({std::string(text), is_special});
  } else {
    raw_.back().text += text;
  }
}

CallReader::Step CallReader::fault(std::string_view unread, bool is_special) {
  if (!call_.has_begun && mode_ != Mode::kClosing) {
    unread_ = std::move(raw_);
    forget_raw();
    return Step::kRejected;
  }
  if (!unread.empty()) unread_.assign(1, {std::string(unread), is_special});
  return Step::kEndedBefore;
}

// On to the next element, and from the last one to what may stand between calls.
CallReader::Step CallReader::advance() {
  const Kind kind = (*elements_)[position_]->kind;
  if (kind == Kind::kCallObject || kind == Kind::kArguments || kind == Kind::kParameters || kind == Kind::kPythonCall)
    are_arguments_read_ = true;
  ++position_;
  num_matched_ = 0;
  if (position_ < elements_->size()) {
    switch ((*elements_)[position_]->kind) {
      case Kind::kCallObject:
        object_.reset();
        break;
      case Kind::kArguments:
        arguments_.reset();
        break;
      case Kind::kParameters:
        parameters_.reset();
        break;
      case Kind::kPythonCall:
        python_.reset();
        break;
      default:
        break;
    }
    return Step::kMore;
  }
  return mode_ == Mode::kClosing ? Step::kEnded : end_call();
}

CallReader::Step CallReader::end_call() {
  has_begun_any_ = true;
  call_.reset();
  are_arguments_read_ = false;
  forget_raw();
  held_.clear();
  object_.reset();
  arguments_.reset();
  parameters_.reset();
  python_.reset();
  mode_ = Mode::kBetween;
  return next_text_.empty() && closing_text_.empty() ? Step::kEnded : Step::kMore;
}

CallReader::Step CallReader::add(char byte) {
  if (mode_ == Mode::kBetween) return add_between(byte);
  record(std::string_view(&byte, 1), false);
  if (num_raw_bytes_ > 2 * call_.max_held_bytes) return fault({}, false);
  return mode_ == Mode::kRawArguments ? add_raw(byte) : add_to_element(byte);
}

CallReader::Step CallReader::add_to_element(char byte) {
  switch ((*elements_)[position_]->kind) {
    case Kind::kText:
      return add_text(byte);
    case Kind::kSpace:
      return is_json_space(byte) ? Step::kMore : add_behind(byte, advance());
    case Kind::kName:
      return add_name(byte);
    case Kind::kNumber:
    case Kind::kCallId:
      return add_word(byte);
    default:
      return add_part(byte);
  }
}

// A byte that was not the element's, for what comes next: `advanced` is what advance() gave.
CallReader::Step CallReader::add_behind(char byte, Step advanced) {
  if (advanced == Step::kMore) return mode_ == Mode::kBetween ? add_between(byte) : add_to_element(byte);
  unread_.assign(1, {std::string(1, byte), false});
  return Step::kEndedBefore;
}

CallReader::Step CallReader::add_text(char byte) {
  const AnswerElement& element = *(*elements_)[position_];
  const bool is_special = format_->is_special_marker(element.text);
  if (!is_special && byte == element.text[num_matched_]) {
    ++num_matched_;
    return num_matched_ == element.text.size() ? advance() : Step::kMore;
  }
  const std::string matched(element.text.substr(0, num_matched_));
  if (is_tail()) {
    // Whatever is missing of the end, the call is whole.
    if (matched.empty() && position_ + 1 < elements_->size()) {
      ++position_;
      return add_to_element(byte);
    }
    if (mode_ != Mode::kClosing && matched.empty()) {
      const Step step = end_call();
      if (step == Step::kMore) return add_between(byte);
    }
    unread_.assign(1, {matched + byte, false});
    return Step::kEndedBefore;
  }
  if (!element.is_optional) return fault(matched + byte, false);
  advance();
  for (const char earlier : matched) {
    const Step step = add_to_element(earlier);
    if (step != Step::kMore) return step;
  }
  return add_to_element(byte);
}

CallReader::Step CallReader::add_name(char byte) {
  if (call_.name.empty() && is_json_space(byte)) return Step::kMore;
  call_.name.push_back(byte);
  if (call_.is_beginning_of_name(call_.name)) return Step::kMore;
  call_.name.pop_back();
  if (call_.find_tool(call_.name) == nullptr) return fault({}, false);
  advance();
  return add_to_element(byte);
}

CallReader::Step CallReader::add_word(char byte) {
  const AnswerElement& element = *(*elements_)[position_];
  std::string& word = element.kind == Kind::kNumber ? call_.number : call_.id;
  const bool fits = element.kind == Kind::kNumber ? byte >= '0' && byte <= '9' : is_letter_or_digit(byte);
  if (fits) {
    word.push_back(byte);
    return word.size() <= kMaxWordBytes ? Step::kMore : fault({}, false);
  }
  if (word.empty() && !element.is_optional) return fault({}, false);
  advance();
  return add_to_element(byte);
}

CallReader::Step CallReader::add_part(char byte) {
  const AnswerElement& element = *(*elements_)[position_];
  PartStep step = PartStep::kFault;
  if (element.kind == Kind::kCallObject) step = object_.add(byte);
  if (element.kind == Kind::kArguments) step = arguments_.add(byte);
  if (element.kind == Kind::kPythonCall) step = python_.add(byte);
  if (element.kind == Kind::kParameters) {
    step = parameters_.add(byte, closer());
    if (step == PartStep::kDoneBefore) {
      if (!call_.has_begun) return fault({}, false);
      const std::string behind = parameters_.held();
      parameters_.end();
      return fault(behind, false);
    }
    if (step == PartStep::kDone) {
      parameters_.end();
      // Past the closer, which the parameters have read.
      do advance();
      while ((*elements_)[position_]->kind != Kind::kText);
      return advance();
    }
  }
  if (call_.has_begun) forget_raw();
  switch (step) {
    case PartStep::kMore:
      return Step::kMore;
    case PartStep::kDone:
      return advance();
    case PartStep::kArgumentsFault:
      mode_ = Mode::kRawArguments;
      held_.clear();
      return add_raw(byte);
    default:
      if (!call_.has_begun || element.kind != Kind::kCallObject) return fault(std::string_view(&byte, 1), false);
      // Behind the arguments of an object: the call is whole but for its brace.
      return add_behind(byte, advance());
  }
}

std::string_view CallReader::closer() const {
  for (size_t i = position_ + 1; i < elements_->size(); ++i)
    if ((*elements_)[i]->kind == Kind::kText) return (*elements_)[i]->text;
  return {};
}

bool CallReader::is_parameter_marker(std::string_view piece) const {
  const ParameterSyntax& syntax = call_.syntax->parameters;
  return piece == syntax.key_open || piece == syntax.key_close || piece == syntax.value_open ||
         piece == syntax.value_close || piece == syntax.key_close_text || piece == syntax.key_close_json;
}

// Broken arguments go out as they are, up to what ends the call.
CallReader::Step CallReader::add_raw(char byte) {
  const std::string_view end = closer();
  if (end.empty() || format_->is_special_marker(end)) {
    call_.writer->add_arguments(std::string_view(&byte, 1));
    return Step::kMore;
  }
  held_.push_back(byte);
  if (held_ == end) {
    held_.clear();
    mode_ = Mode::kElements;
    while ((*elements_)[position_]->kind != Kind::kText) advance();
    return advance();
  }
  size_t num_out = 0;
  while (!end.starts_with(std::string_view(held_).substr(num_out))) ++num_out;
  call_.writer->add_arguments(std::string_view(held_).substr(0, num_out));
  held_.erase(0, num_out);
  return Step::kMore;
}

CallReader::Step CallReader::add_between(char byte) {
  if (held_.empty() && is_json_space(byte)) return Step::kMore;
  held_.push_back(byte);
  const auto begins = [&](std::string_view text) {
    return text.starts_with(held_) && !format_->is_special_marker(text);
  };
  const bool is_next = begins(next_text_), is_closing = begins(closing_text_);
  if (is_next && held_.size() == next_text_.size()) {
    size_t position = 0;
    while (next_[position]->kind != Kind::kText) ++position;
    start(&next_, position);
    record(held_, false);
    held_.clear();
    return advance();
  }
  if (is_closing && held_.size() == closing_text_.size()) {
    size_t position = 0;
    while (closing_[position]->kind != Kind::kText) ++position;
    start(&closing_, position);
    held_.clear();
    return advance();
  }
  if (is_next || is_closing) return Step::kMore;
  unread_.assign(1, {held_, false});
  held_.clear();
  return Step::kEndedBefore;
}

CallReader::Step CallReader::add_special(std::string_view piece) {
  if (mode_ == Mode::kBetween) {
    const Elements* elements = piece == next_text_ ? &next_ : piece == closing_text_ ? &closing_ : nullptr;
    if (elements == nullptr || !held_.empty()) {
      unread_.clear();
      if (!held_.empty()) unread_.push_back({held_, false});
      unread_.push_back({std::string(piece), true});
      held_.clear();
      return Step::kEndedBefore;
    }
    size_t position = 0;
    while ((*elements)[position]->kind != Kind::kText) ++position;
    start(elements, position);
    record(piece, true);
    return advance();
  }
  record(piece, true);
  if (mode_ == Mode::kRawArguments) {
    call_.writer->add_arguments(held_);
    held_.clear();
    mode_ = Mode::kElements;
    are_arguments_read_ = true;
    ++position_;
  }
  while (position_ < elements_->size()) {
    const AnswerElement& element = *(*elements_)[position_];
    if (element.kind == Kind::kText) {
      if (num_matched_ == 0 && element.text == piece) return advance();
      if (num_matched_ > 0 || !(element.is_optional || is_tail())) return fault(piece, true);
    } else if (element.kind == Kind::kName) {
      if (call_.find_tool(call_.name) == nullptr) return fault(piece, true);
    } else if (element.kind == Kind::kNumber || element.kind == Kind::kCallId) {
      const std::string& word = element.kind == Kind::kNumber ? call_.number : call_.id;
      if (word.empty() && !element.is_optional) return fault(piece, true);
    } else if (element.kind == Kind::kParameters && is_parameter_marker(piece)) {
      for (const char byte : piece)
        if (const Step step = add_part(byte); step != Step::kMore) return step;
      return Step::kMore;
    } else if (element.kind != Kind::kSpace) {
      // In the middle of the arguments: they end here.
      const bool are_parameters = element.kind == Kind::kParameters;
      if (!call_.has_begun && !(are_parameters && closer() == piece)) return fault(piece, true);
      if (are_parameters) parameters_.end();
      are_arguments_read_ = true;
    }
    advance();
    if (mode_ == Mode::kBetween) break;
  }
  // Nothing of the call was this piece; the call is over.
  if (mode_ == Mode::kBetween && (piece == next_text_ || piece == closing_text_)) return add_special(piece);
  unread_.assign(1, {std::string(piece), true});
  return Step::kEndedBefore;
}

bool CallReader::is_name_whole() const {
  for (size_t i = 0; i < elements_->size(); ++i) {
    const Kind kind = (*elements_)[i]->kind;
    if (kind == Kind::kName) return position_ > i;
    if (kind == Kind::kCallObject && position_ == i) return object_.is_name_whole();
    if (kind == Kind::kPythonCall && position_ == i) return python_.is_name_whole();
  }
  return false;
}

void CallReader::begin_cut_off() {
  call_.reset();
  if (call_.writer->num_calls() == 0) call_.begin_likely(false);
}

CallReader::Step CallReader::finish(bool is_call) {
  unread_.clear();
  if (mode_ == Mode::kBetween || mode_ == Mode::kClosing || are_arguments_read_) return Step::kEnded;
  if (!call_.has_begun && is_call) {
    // Behind another call, a marker alone says too little.
    if (call_.writer->num_calls() == 0 || !call_.name.empty()) call_.begin_likely(is_name_whole());
    return Step::kEnded;
  }
  if (!call_.has_begun) return fault({}, false);
  if (mode_ == Mode::kRawArguments) call_.writer->add_arguments(held_);
  if ((*elements_)[position_]->kind == Kind::kParameters) parameters_.cut_off();
  return Step::kEnded;
}

}  // namespace quire::answer
