#include "text/answer_parser.h"

#include <array>
#include <optional>

#include "base/check.h"
#include "text/answer_call_reader.h"
#include "text/answer_harmony.h"

namespace quire {

using answer::AnswerWriter;
using answer::CallReader;
using answer::HarmonyReader;
using answer::is_json_space;
using answer::TextPiece;

namespace {

// Whitespace that may turn out to stand before a call is held, but no more than this.
constexpr size_t kMaxHeldSpace = 256;
// Text that was no call is searched for calls again, if it is no longer than this; it keeps the work linear.
constexpr size_t kMaxRereadBytes = 4096;

}  // namespace

struct AnswerParser::Impl {
  enum class Mode : uint8_t { kContent, kReasoning, kCalls };

  Impl(const AnswerFormat& answer_format, std::shared_ptr<const std::vector<ToolSpec>> specs,
       const AnswerParserOptions& parser_options)
      : format(answer_format), tools(std::move(specs)), options(parser_options), writer(options.id_seed) {
    if (tools == nullptr) tools = std::make_shared<const std::vector<ToolSpec>>();
    reads_tools = options.reads_tools && format.tools() != nullptr && !tools->empty();
    reads_reasoning = options.reads_reasoning && format.reasoning() != nullptr;
    const bool is_harmony = (format.tools() != nullptr && format.tools()->is_harmony) ||
                            (format.reasoning() != nullptr && format.reasoning()->is_harmony);
    if (is_harmony) {
      harmony.emplace(format, tools.get(), reads_tools, reads_reasoning, &writer);
      return;
    }
    if (reads_tools) {
      calls.emplace(format, tools.get(), &writer, options.max_held_bytes);
      for (const CallReader::Trigger& trigger : calls->triggers()) note_first_byte(trigger.text);
    }
    if (!reads_reasoning) return;
    note_first_byte(format.reasoning()->open);
    note_first_byte(format.reasoning()->close);
    const bool is_thinking = options.start == AnswerStart::kInReasoning ||
                             (options.start == AnswerStart::kOpen && format.reasoning()->is_always_first);
    if (is_thinking) begin_reasoning();
    if (options.start == AnswerStart::kAfterReasoning) strips_space = true;
  }

  // The order of work is a stack: what a reader gives back comes before what has not been read.
  struct Work {
    std::string owned;
    std::string_view view;  // of the caller's text; unused where `owned` is
    bool is_special = false;
  };

  void add(std::string_view text, bool is_special) {
    if (is_special && !format.is_special_marker(text)) {
      if (!format.is_marker(text)) return;  // the end of a turn, say
      is_special = false;
    }
    if (harmony) {
      if (is_special) {
        harmony->add_special(text);
      } else {
        harmony->add(text);
      }
      return;
    }
    work.push_back({{}, text, is_special});
    while (!work.empty()) {
      Work next = std::move(work.back());
      work.pop_back();
      const std::string_view piece = next.owned.empty() ? next.view : std::string_view(next.owned);
      if (next.is_special) {
        add_special(piece);
        take_rereads();
        continue;
      }
      for (size_t i = 0; i < piece.size(); ++i) {
        add_byte(piece[i]);
        if (rereads.empty()) continue;
        // The rest waits until what was given back has been read.
        if (i + 1 < piece.size()) {
          Work rest;
          if (next.owned.empty()) {
            rest.view = next.view.substr(i + 1);
          } else {
            rest.owned = next.owned.substr(i + 1);
          }
          work.push_back(std::move(rest));
        }
        break;
      }
      take_rereads();
    }
  }

  void take_rereads() {
    while (!rereads.empty()) {
      if (!rereads.back().text.empty()) work.push_back({std::move(rereads.back().text), {}, rereads.back().is_special});
      rereads.pop_back();
    }
  }

  void note_first_byte(std::string_view marker) {
    if (!marker.empty()) may_begin_marker[static_cast<unsigned char>(marker[0])] = true;
  }

  // --- Content ---

  void write_content(char byte) {
    if (is_json_space(byte)) {
      if (strips_space) return;
      if (reads_tools || (reads_reasoning && is_at_start)) {
        held_space.push_back(byte);
        if (held_space.size() > kMaxHeldSpace) flush_space();
        return;
      }
    } else {
      is_at_start = false;
      strips_space = false;
    }
    flush_space();
    writer.add_content(std::string_view(&byte, 1));
  }

  void flush_space() {
    writer.add_content(held_space);
    held_space.clear();
  }

  void add_byte(char byte) {
    if (mode == Mode::kCalls) {
      after_calls(calls->add(byte));
      return;
    }
    if (held.empty() && !may_begin_marker[static_cast<unsigned char>(byte)]) {
      write_text(byte);
      return;
    }
    held.push_back(byte);
    while (!held.empty()) {
      const Match match = match_marker();
      if (match == Match::kPartly) return;
      if (match == Match::kWhole) {
        held.clear();
        return;
      }
      const char first = held.front();
      held.erase(0, 1);
      write_text(first);
    }
  }

  void write_text(char byte) {
    if (mode == Mode::kReasoning) {
      write_reasoning(byte);
    } else {
      write_content(byte);
    }
  }

  enum class Match : uint8_t { kNot, kPartly, kWhole };

  // Is `held` a marker that means something here? A whole one is acted upon.
  Match match_marker() {
    bool is_part = false;
    const auto check = [&](std::string_view marker) {
      if (format.is_special_marker(marker) || !marker.starts_with(held)) return false;
      is_part = true;
      return marker.size() == held.size();
    };
    if (mode == Mode::kReasoning) {
      if (check(format.reasoning()->close)) {
        end_reasoning();
        return Match::kWhole;
      }
      // The tag that the prompt, or the format, has taken for granted.
      if (is_at_start && check(format.reasoning()->open)) return Match::kWhole;
      return is_part ? Match::kPartly : Match::kNot;
    }
    if (reads_reasoning && is_at_start && writer.num_calls() == 0 && check(format.reasoning()->open)) {
      begin_reasoning();
      return Match::kWhole;
    }
    if (reads_tools) {
      for (const CallReader::Trigger& trigger : calls->triggers()) {
        if (trigger.is_special || (trigger.is_only_at_start && !is_at_start)) continue;
        if (!check(trigger.text)) continue;
        begin_calls(trigger);
        return Match::kWhole;
      }
    }
    return is_part ? Match::kPartly : Match::kNot;
  }

  void flush_held() {
    const std::string text = std::move(held);
    held.clear();
    for (const char byte : text) write_text(byte);
  }

  void add_special(std::string_view piece) {
    if (mode == Mode::kCalls) {
      after_calls(calls->add_special(piece));
      return;
    }
    flush_held();
    if (reads_reasoning && piece == format.reasoning()->close) {
      if (mode == Mode::kReasoning) end_reasoning();
      return;
    }
    if (reads_reasoning && piece == format.reasoning()->open) {
      if (mode != Mode::kReasoning) begin_reasoning();
      return;
    }
    if (reads_tools) {
      for (const CallReader::Trigger& trigger : calls->triggers()) {
        if (piece != trigger.text) continue;
        if (mode == Mode::kReasoning) end_reasoning();
        begin_calls(trigger);
        return;
      }
    }
    // A marker out of place. Of tool calls it says something went wrong, so it stays to be seen; tags of thinking that
    // nobody reads are part of the text too.
    for (const char byte : piece) write_text(byte);
  }

  // --- Thinking ---

  bool may_begin_reasoning() const {
    return reads_reasoning && is_at_start && writer.num_calls() == 0 && format.reasoning()->open.starts_with(held);
  }

  void begin_reasoning() {
    mode = Mode::kReasoning;
    held_space.clear();
    is_at_start = true;
  }

  void end_reasoning() {
    mode = Mode::kContent;
    held_space.clear();
    is_at_start = true;
    strips_space = true;
  }

  void write_reasoning(char byte) {
    if (is_json_space(byte)) {
      if (is_at_start) return;
      held_space.push_back(byte);
      if (held_space.size() <= kMaxHeldSpace) return;
      writer.add_reasoning(held_space);
      held_space.clear();
      return;
    }
    is_at_start = false;
    writer.add_reasoning(held_space);
    held_space.clear();
    writer.add_reasoning(std::string_view(&byte, 1));
  }

  // --- Calls ---

  void begin_calls(const CallReader::Trigger& trigger) {
    current_trigger = trigger;
    mode = Mode::kCalls;
    after_calls(calls->begin(trigger));
  }

  void after_calls(CallReader::Step step) {
    if (calls->has_begun()) held_space.clear();
    if (step == CallReader::Step::kMore) return;
    mode = Mode::kContent;
    if (calls->has_begun()) {
      strips_space = true;
      is_at_start = true;
    }
    if (step == CallReader::Step::kEndedBefore) {
      for (const TextPiece& piece : calls->unread()) rereads.push_back(piece);
    } else if (step == CallReader::Step::kRejected) {
      give_back();
    }
  }

  // The marker that began no call is content for certain; what stands behind it is read again.
  void give_back() {
    std::vector<TextPiece> pieces = calls->unread();
    size_t num_bytes = 0;
    for (const TextPiece& piece : pieces) num_bytes += piece.text.size();
    if (pieces.empty()) return;
    std::string_view certain = current_trigger.text;
    if (!pieces[0].text.starts_with(certain)) certain = std::string_view(pieces[0].text).substr(0, 1);
    if (num_bytes > kMaxRereadBytes) {
      for (const TextPiece& piece : pieces)
        for (const char byte : piece.text) write_content(byte);
      return;
    }
    const size_t num_certain = certain.size();
    for (size_t i = 0; i < num_certain; ++i) write_content(pieces[0].text[i]);
    pieces[0].text.erase(0, num_certain);
    for (TextPiece& piece : pieces) rereads.push_back(std::move(piece));
  }

  void finish() {
    const bool must_call = options.must_call && reads_tools;
    if (harmony) {
      harmony->finish(must_call);
      return;
    }
    if (must_call && mode != Mode::kReasoning) {
      if (mode == Mode::kCalls) {
        calls->finish(true);
      } else if (!held.empty() && !may_begin_reasoning()) {
        calls->begin_cut_off();
      }
      return;  // what is held was to be a call
    }
    if (mode == Mode::kCalls) {
      const CallReader::Step step = calls->finish(false);
      if (calls->has_begun()) held_space.clear();
      mode = Mode::kContent;
      if (step == CallReader::Step::kRejected) {
        for (const TextPiece& piece : calls->unread())
          for (const char byte : piece.text) write_content(byte);
      }
    }
    flush_held();
    if (mode == Mode::kContent) flush_space();
  }

  const AnswerFormat format;
  std::shared_ptr<const std::vector<ToolSpec>> tools;
  const AnswerParserOptions options;
  AnswerWriter writer;
  bool reads_tools = false, reads_reasoning = false;
  std::optional<HarmonyReader> harmony;
  std::optional<CallReader> calls;

  Mode mode = Mode::kContent;
  bool is_at_start = true;    // nothing but whitespace yet, of the content or the thinking
  bool strips_space = false;  // whitespace here belongs to what was before it
  std::array<bool, 256> may_begin_marker{};
  std::string held;        // perhaps the beginning of a marker
  std::string held_space;  // goes out with the next text, or not at all
  CallReader::Trigger current_trigger{};
  std::vector<TextPiece> rereads;  // given back by the reader of calls
  std::vector<Work> work;
};

AnswerParser::AnswerParser(const AnswerFormat& format, std::shared_ptr<const std::vector<ToolSpec>> tools,
                           const AnswerParserOptions& options)
    : impl_(std::make_unique<Impl>(format, std::move(tools), options)) {}
AnswerParser::~AnswerParser() = default;
AnswerParser::AnswerParser(AnswerParser&&) noexcept = default;
AnswerParser& AnswerParser::operator=(AnswerParser&&) noexcept = default;

void AnswerParser::add(std::string_view text, bool is_special, std::vector<AnswerDelta>* out) {
  impl_->writer.set_output(out);
  impl_->add(text, is_special);
}

void AnswerParser::finish(std::vector<AnswerDelta>* out) {
  impl_->writer.set_output(out);
  impl_->finish();
}

bool AnswerParser::is_reasoning() const {
  if (impl_->harmony) return impl_->harmony->is_reasoning();
  return impl_->mode == Impl::Mode::kReasoning;
}

int AnswerParser::num_tool_calls() const {
  return impl_->writer.num_calls();
}

void add_to_answer(const std::vector<AnswerDelta>& deltas, ParsedAnswer* answer) {
  for (const AnswerDelta& delta : deltas) {
    switch (delta.kind) {
      case AnswerDelta::Kind::kContent:
        answer->content += delta.text;
        break;
      case AnswerDelta::Kind::kReasoning:
        answer->reasoning += delta.text;
        break;
      case AnswerDelta::Kind::kToolCallBegin:
        CHECK(delta.index == static_cast<int>(answer->tool_calls.size()));
        answer->tool_calls.push_back({delta.id, delta.name, {}});
        break;
      case AnswerDelta::Kind::kToolCallArguments:
        CHECK(delta.index < static_cast<int>(answer->tool_calls.size()));
        answer->tool_calls[static_cast<size_t>(delta.index)].arguments += delta.text;
        break;
    }
  }
}

}  // namespace quire
