#include "text/answer_format.h"

#include <algorithm>

namespace quire {
namespace {

template <typename Row>
bool has_name(const Row& row, std::string_view name) {
  return row.name == name || std::find(row.aliases.begin(), row.aliases.end(), name) != row.aliases.end();
}

template <typename Row>
bool fits(const Row& row, std::string_view chat_template) {
  return !row.evidence.empty() && std::all_of(row.evidence.begin(), row.evidence.end(), [&](std::string_view text) {
    return chat_template.find(text) != std::string_view::npos;
  });
}

// The row of that name that fits the template best; the last of that name if none does. Null: no such name.
template <typename Row>
const Row* find_named(std::span<const Row> rows, std::string_view name, std::string_view chat_template) {
  const Row* found = nullptr;
  for (const Row& row : rows) {
    if (!has_name(row, name)) continue;
    found = &row;
    if (fits(row, chat_template)) break;
  }
  return found;
}

template <typename Row>
std::string names_of(std::span<const Row> rows) {
  std::string names = "auto, none";
  std::string_view previous;
  for (const Row& row : rows) {
    if (row.name != previous) names += ", " + std::string(row.name);
    previous = row.name;
  }
  return names;
}

template <typename Row>
const Row* find_fitting(std::span<const Row> rows, std::string_view chat_template, const Row* otherwise) {
  for (const Row& row : rows)
    if (fits(row, chat_template)) return &row;
  return otherwise;
}

std::vector<std::string_view> markers_of(const ToolSyntax* tools, const ReasoningSyntax* reasoning) {
  std::vector<std::string_view> markers;
  const auto add = [&](std::string_view marker) {
    if (!marker.empty()) markers.push_back(marker);
  };
  if (tools != nullptr) {
    for (const auto part : {tools->opening, tools->call, tools->separator, tools->closing})
      for (const AnswerElement& element : part)
        if (element.kind == AnswerElement::Kind::kText) add(element.text);
    const ParameterSyntax& parameters = tools->parameters;
    for (const std::string_view marker : {parameters.key_open, parameters.key_close, parameters.value_open,
                                          parameters.value_close, parameters.key_close_text, parameters.key_close_json})
      add(marker);
  }
  if (reasoning != nullptr) {
    add(reasoning->open);
    add(reasoning->close);
  }
  if ((tools != nullptr && tools->is_harmony) || (reasoning != nullptr && reasoning->is_harmony)) {
    for (const std::string_view marker :
         {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"})
      add(marker);
  }
  return markers;
}

AnswerFormat with_vocabulary(const ToolSyntax* tools, const ReasoningSyntax* reasoning, const Tokenizer& tokenizer) {
  std::vector<std::string> special;
  for (const std::string_view marker : markers_of(tools, reasoning)) {
    const int32_t id = tokenizer.find_token(marker);
    if (id >= 0 && tokenizer.is_special(id)) special.emplace_back(marker);
  }
  return AnswerFormat(tools, reasoning, std::move(special));
}

const ToolSyntax* detect_tools(std::string_view chat_template) {
  return find_fitting(tool_syntaxes(), chat_template, &tool_syntaxes().back());
}

const ReasoningSyntax* detect_reasoning(std::string_view chat_template) {
  return find_fitting(reasoning_syntaxes(), chat_template, static_cast<const ReasoningSyntax*>(nullptr));
}

}  // namespace

AnswerFormat::AnswerFormat(const ToolSyntax* tools, const ReasoningSyntax* reasoning,
                           std::vector<std::string> special_markers)
    : tools_(tools), reasoning_(reasoning), special_markers_(std::move(special_markers)) {
  const auto markers = markers_of(tools_, reasoning_);
  std::erase_if(special_markers_, [&](const std::string& marker) {
    return std::find(markers.begin(), markers.end(), marker) == markers.end();
  });
}

AnswerFormat AnswerFormat::detect(std::string_view chat_template, const Tokenizer& tokenizer) {
  return with_vocabulary(detect_tools(chat_template), detect_reasoning(chat_template), tokenizer);
}

Result<AnswerFormat> AnswerFormat::create(std::string_view tool_parser, std::string_view reasoning_parser,
                                          std::string_view chat_template, const Tokenizer& tokenizer) {
  const ToolSyntax* tools = nullptr;
  if (tool_parser.empty() || tool_parser == "auto") {
    tools = detect_tools(chat_template);
  } else if (tool_parser != "none") {
    tools = find_named(tool_syntaxes(), tool_parser, chat_template);
    if (tools == nullptr) {
      return invalid_argument("no tool call format is called '" + std::string(tool_parser) +
                              "'; known: " + names_of(tool_syntaxes()));
    }
  }
  const ReasoningSyntax* reasoning = nullptr;
  if (reasoning_parser.empty() || reasoning_parser == "auto") {
    reasoning = detect_reasoning(chat_template);
  } else if (reasoning_parser != "none") {
    reasoning = find_named(reasoning_syntaxes(), reasoning_parser, chat_template);
    if (reasoning == nullptr) {
      return invalid_argument("no reasoning format is called '" + std::string(reasoning_parser) +
                              "'; known: " + names_of(reasoning_syntaxes()));
    }
  }
  return with_vocabulary(tools, reasoning, tokenizer);
}

bool AnswerFormat::is_special_marker(std::string_view marker) const {
  return std::find(special_markers_.begin(), special_markers_.end(), marker) != special_markers_.end();
}

bool AnswerFormat::is_marker(std::string_view piece) const {
  if (piece.empty()) return false;
  const auto markers = markers_of(tools_, reasoning_);
  return std::any_of(markers.begin(), markers.end(),
                     [&](std::string_view marker) { return marker.find(piece) != std::string_view::npos; });
}

AnswerStart AnswerFormat::start_of_answer(std::string_view prompt) const {
  if (reasoning_ == nullptr || reasoning_->is_harmony) return AnswerStart::kOpen;
  // Only what ends the prompt counts: the tags of earlier turns, and those that a user wrote, are followed by markers
  // of turns.
  while (!prompt.empty() && (prompt.back() == '\n' || prompt.back() == ' ')) prompt.remove_suffix(1);
  if (prompt.ends_with(reasoning_->open)) return AnswerStart::kInReasoning;
  if (prompt.ends_with(reasoning_->close)) return AnswerStart::kAfterReasoning;
  return AnswerStart::kOpen;
}

}  // namespace quire
