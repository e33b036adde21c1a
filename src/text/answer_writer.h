// Where the readers of answers put what they have found: the list of deltas of one call of AnswerParser, neighbours of
// one kind joined, calls counted, and their ids made. Internal to answer_*.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/answer_parser.h"

namespace quire::answer {

class AnswerWriter {
 public:
  explicit AnswerWriter(uint64_t id_seed) : random_state_(id_seed) {}

  // Where deltas go until the next call.
  void set_output(std::vector<AnswerDelta>* out) { out_ = out; }

  void add_content(std::string_view text) { add(AnswerDelta::Kind::kContent, 0, text); }
  void add_reasoning(std::string_view text) { add(AnswerDelta::Kind::kReasoning, 0, text); }
  // `id` empty: one is made, in the family's manner.
  void begin_call(ToolSyntax::CallId kind, std::string_view name, std::string_view id, std::string_view number) {
    const int index = num_calls_++;
    AnswerDelta& delta = out_->emplace_back();
    delta.kind = AnswerDelta::Kind::kToolCallBegin;
    delta.index = index;
    delta.name = name;
    if (kind == ToolSyntax::CallId::kFunctionIndex) {
      delta.id =
          "functions." + std::string(name) + ":" + (number.empty() ? std::to_string(index) : std::string(number));
    } else if (!id.empty()) {
      delta.id = id;
    } else {
      delta.id = kind == ToolSyntax::CallId::kNineLetters ? random_letters(9) : "call_" + random_letters(24);
    }
  }
  void add_arguments(std::string_view text) { add(AnswerDelta::Kind::kToolCallArguments, num_calls_ - 1, text); }

  int num_calls() const { return num_calls_; }

 private:
  void add(AnswerDelta::Kind kind, int index, std::string_view text) {
    if (text.empty()) return;
    if (out_->empty() || out_->back().kind != kind || out_->back().index != index) {
      AnswerDelta& delta = out_->emplace_back();
      delta.kind = kind;
      delta.index = index;
    }
    out_->back().text += text;
  }

  std::string random_letters(int count) {
    constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    std::string text;
    for (int i = 0; i < count; ++i) {
      // SplitMix64: each step of the counter is mixed.
      uint64_t mixed = random_state_ += 0x9E3779B97F4A7C15u;
      mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
      mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
      text.push_back(kLetters[(mixed ^ (mixed >> 31)) % 62]);
    }
    return text;
  }

  std::vector<AnswerDelta>* out_ = nullptr;
  int num_calls_ = 0;
  uint64_t random_state_;
};

}  // namespace quire::answer
