#include "text/answer_harmony.h"

#include <algorithm>
#include <array>

namespace quire::answer {
namespace {

constexpr size_t kMaxHeaderBytes = 1024;
constexpr std::array<std::string_view, 7> kMarkers = {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>",
                                                      "<|end|>",   "<|call|>",    "<|return|>"};
constexpr std::string_view kFunctions = "functions.";

std::string_view first_word(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  size_t end = 0;
  while (end < text.size() && !is_json_space(text[end]) && text[end] != '<') ++end;
  return text.substr(0, end);
}

// May a header without a channel begin so: "assistant", " to=functions.f", "assistant to=functions.f json"?
bool may_be_header(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  constexpr std::string_view kRole = "assistant", kTo = "to=";
  if (kRole.starts_with(text)) return true;
  if (text.starts_with(kRole)) text.remove_prefix(kRole.size());
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  return kTo.starts_with(text) || text.starts_with(kTo);
}

}  // namespace

HarmonyReader::HarmonyReader(const AnswerFormat& format, const std::vector<ToolSpec>* tools, bool reads_tools,
                             bool reads_reasoning, AnswerWriter* writer)
    : arguments_(&call_),
      reads_tools_(reads_tools),
      reads_reasoning_(reads_reasoning),
      has_special_markers_(format.is_special_marker("<|message|>")) {
  call_.syntax = format.tools();
  call_.tools = tools;
  call_.writer = writer;
}

void HarmonyReader::add(std::string_view text) {
  for (const char byte : text) {
    // Inside an object, what spells a marker is part of a string.
    const bool is_in_object = mode_ == Mode::kBody && body_ == Body::kCall && call_.has_begun && !is_call_whole_;
    if (has_special_markers_ || is_in_object) {
      add_byte(byte);
      continue;
    }
    held_.push_back(byte);
    while (!held_.empty()) {
      if (std::find(kMarkers.begin(), kMarkers.end(), held_) != kMarkers.end()) {
        const std::string marker = std::move(held_);
        held_.clear();
        add_special(marker);
        break;
      }
      if (std::any_of(kMarkers.begin(), kMarkers.end(), [&](auto marker) { return marker.starts_with(held_); })) break;
      add_byte(held_.front());
      held_.erase(0, 1);
    }
  }
}

void HarmonyReader::add_special(std::string_view piece) {
  if (piece == "<|start|>") {
    end_body();
    begin_header({});
  } else if (piece == "<|channel|>") {
    if (mode_ == Mode::kBody) {
      end_body();
      begin_header({});
    }
    has_channel_ = true;
    header_ += "<|channel|>";
  } else if (piece == "<|constrain|>") {
    if (mode_ == Mode::kHeader) header_ += " <|constrain|>";
  } else if (piece == "<|message|>") {
    if (mode_ == Mode::kHeader) begin_body();
  } else if (piece == "<|end|>" || piece == "<|call|>" || piece == "<|return|>") {
    end_body();
    begin_header({});
  }
}

void HarmonyReader::add_byte(char byte) {
  if (mode_ == Mode::kHeader) {
    add_to_header(byte);
  } else {
    add_to_body(byte);
  }
}

void HarmonyReader::begin_header(std::string_view text) {
  mode_ = Mode::kHeader;
  header_ = text;
  has_channel_ = false;
}

void HarmonyReader::add_to_header(char byte) {
  header_.push_back(byte);
  if (has_channel_ ? header_.size() <= kMaxHeaderBytes : header_.size() <= kMaxHeaderBytes && may_be_header(header_))
    return;
  // No header at all: a model that writes plain text.
  const std::string text = std::move(header_);
  header_.clear();
  mode_ = Mode::kBody;
  body_ = Body::kContent;
  has_text_ = false;
  write_text(text);
}

void HarmonyReader::begin_body() {
  mode_ = Mode::kBody;
  has_text_ = false;
  is_call_whole_ = false;
  const std::string header = std::move(header_);
  header_.clear();
  const size_t channel_at = header.find("<|channel|>");
  const std::string_view channel = channel_at == std::string::npos
                                       ? std::string_view()
                                       : first_word(std::string_view(header).substr(channel_at + 11));
  const size_t to_at = header.find("to=");
  std::string_view recipient =
      to_at == std::string::npos ? std::string_view() : first_word(std::string_view(header).substr(to_at + 3));
  body_ = channel == "analysis" && reads_reasoning_ ? Body::kReasoning : Body::kContent;
  if (!reads_tools_ || !recipient.starts_with(kFunctions)) return;
  recipient.remove_prefix(kFunctions.size());
  if (call_.find_tool(recipient) == nullptr) return;
  body_ = Body::kCall;
  call_.reset();
  call_.name = recipient;
  arguments_.reset();
}

void HarmonyReader::write_text(std::string_view text) {
  bool& had = body_ == Body::kReasoning ? had_reasoning_ : had_content_;
  const bool is_next_message = had && !has_text_;
  has_text_ = had = true;
  // Messages of one kind are lines of it.
  if (body_ == Body::kReasoning) {
    if (is_next_message) call_.writer->add_reasoning("\n");
    call_.writer->add_reasoning(text);
  } else {
    if (is_next_message) call_.writer->add_content("\n");
    call_.writer->add_content(text);
  }
}

void HarmonyReader::add_to_body(char byte) {
  if (body_ == Body::kRawCall) {
    call_.writer->add_arguments(std::string_view(&byte, 1));
    return;
  }
  if (body_ != Body::kCall) {
    write_text(std::string_view(&byte, 1));
    return;
  }
  if (is_call_whole_) {
    if (is_json_space(byte)) return;
    body_ = Body::kContent;
    write_text(std::string_view(&byte, 1));
    return;
  }
  switch (arguments_.add(byte)) {
    case PartStep::kMore:
      break;
    case PartStep::kDone:
      is_call_whole_ = true;
      break;
    case PartStep::kArgumentsFault:
      body_ = Body::kRawCall;
      call_.writer->add_arguments(std::string_view(&byte, 1));
      break;
    default:
      body_ = Body::kContent;
      write_text(std::string_view(&byte, 1));
  }
}

void HarmonyReader::end_body() {
  if (mode_ == Mode::kBody && body_ == Body::kCall && !call_.has_begun) {
    call_.begin();
    call_.writer->add_arguments("{}");
  }
}

// The call that is cut off before its arguments, in its header perhaps.
void HarmonyReader::finish_call() {
  if (mode_ == Mode::kBody) {
    if (body_ == Body::kCall && !call_.has_begun) call_.begin_likely(true);
    return;
  }
  const size_t to_at = header_.find("to=");
  if (to_at == std::string::npos) return;
  const std::string_view behind = std::string_view(header_).substr(to_at + 3);
  const std::string_view recipient = first_word(behind);
  if (!recipient.starts_with(kFunctions) && !kFunctions.starts_with(recipient)) return;
  call_.reset();
  call_.name = recipient.substr(std::min(recipient.size(), kFunctions.size()));
  call_.begin_likely(recipient.data() + recipient.size() != behind.data() + behind.size());
}

void HarmonyReader::finish(bool is_call) {
  const bool is_content = mode_ == Mode::kBody && (body_ == Body::kContent || is_call_whole_);
  for (const char byte : held_) {
    if (!is_call || !is_content) add_byte(byte);
  }
  held_.clear();
  if (is_call) {
    finish_call();
    return;
  }
  // What <|call|> would have ended is often cut off before it; a call without arguments is not yet one.
  if (mode_ == Mode::kHeader && !has_channel_ && !header_.empty()) {
    body_ = Body::kContent;
    has_text_ = false;
    const std::string text = std::move(header_);
    header_.clear();
    if (text.find_first_not_of(" \n\r\t") != std::string::npos && text != "assistant") write_text(text);
  }
}

}  // namespace quire::answer
