// HarmonyReader: reads the answers of gpt-oss, which are messages in channels:
//   <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
//   <|message|>{…}<|call|>
// Thinking is the analysis channel, content the final one and commentary that calls nothing. A message to a function
// that is not among the tools, or whose body is no object, is content. Internal to answer_*; one answer, one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/answer_call_parts.h"

namespace quire::answer {

class HarmonyReader {
 public:
  HarmonyReader(const AnswerFormat& format, const std::vector<ToolSpec>* tools, bool reads_tools, bool reads_reasoning,
                AnswerWriter* writer);

  void add(std::string_view text);
  void add_special(std::string_view piece);
  // is_call: nothing but a call can have come last.
  void finish(bool is_call);
  bool is_reasoning() const { return mode_ == Mode::kBody && body_ == Body::kReasoning; }

 private:
  enum class Mode : uint8_t { kHeader, kBody };
  enum class Body : uint8_t { kContent, kReasoning, kCall, kRawCall };

  void add_byte(char byte);
  void add_to_header(char byte);
  void add_to_body(char byte);
  void begin_header(std::string_view text);
  void begin_body();
  void end_body();
  void finish_call();
  void write_text(std::string_view text);

  CallState call_;
  ArgumentsReader arguments_;
  bool reads_tools_, reads_reasoning_;
  bool has_special_markers_;

  Mode mode_ = Mode::kHeader;
  Body body_ = Body::kContent;
  std::string header_;
  bool has_channel_ = false;  // the header has a <|channel|>: it is one
  bool is_call_whole_ = false;
  bool has_text_ = false;  // in this body
  bool had_content_ = false, had_reasoning_ = false;
  std::string held_;  // perhaps the beginning of a marker, where markers are plain text
};

}  // namespace quire::answer
