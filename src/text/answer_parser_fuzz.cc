// libFuzzer: the first byte chooses a row of tool calls, the second one of thinking and how the text is cut, the rest
// is the answer; '\x01' in it stands for the markers of the row in turn, as control tokens. Whatever comes, the parts
// are the same as those of the text in one piece, and arguments belong to calls.
#include <cstdlib>

#include "text/answer_parser.h"

namespace {

struct Piece {
  std::string text;
  bool is_special;
};

quire::ParsedAnswer parse(const quire::AnswerFormat& format, const std::vector<Piece>& pieces, size_t cut,
                          quire::AnswerStart start, bool must_call) {
  static const auto tools = std::make_shared<const std::vector<quire::ToolSpec>>(std::vector<quire::ToolSpec>{
      {"f", R"({"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}})"}, {"fg", "{}"}, {"g", ""}});
  quire::AnswerParserOptions options;
  options.start = start;
  options.max_held_bytes = 512;
  options.must_call = must_call;
  quire::AnswerParser parser(format, tools, options);
  quire::ParsedAnswer answer;
  std::vector<quire::AnswerDelta> deltas;
  const auto take = [&] {
    quire::add_to_answer(deltas, &answer);
    deltas.clear();
  };
  for (const Piece& piece : pieces) {
    const size_t step = piece.is_special ? piece.text.size() : cut;
    for (size_t i = 0; i < piece.text.size(); i += step) {
      parser.add(std::string_view(piece.text).substr(i, step), piece.is_special, &deltas);
      take();
    }
  }
  parser.finish(&deltas);
  take();
  return answer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto tools = quire::tool_syntaxes();
  const auto thinking = quire::reasoning_syntaxes();
  const quire::ToolSyntax& syntax = tools[data[0] % tools.size()];
  const quire::ReasoningSyntax& reasoning = thinking[data[1] % thinking.size()];
  const size_t cut = 1 + (data[1] >> 5);
  std::vector<std::string> markers;
  for (const auto part : {syntax.opening, syntax.call, syntax.separator, syntax.closing})
    for (const quire::AnswerElement& element : part)
      if (element.kind == quire::AnswerElement::Kind::kText && element.text.size() > 2)
        markers.emplace_back(element.text);
  if (syntax.is_harmony) markers = {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>"};
  if (!reasoning.open.empty()) {
    markers.emplace_back(reasoning.open);
    markers.emplace_back(reasoning.close);
  }
  const bool has_special = data[0] >= 128 && !markers.empty();
  std::vector<Piece> pieces;
  for (size_t i = 2; i < size; ++i) {
    if (data[i] < 32 && data[i] != '\n' && !markers.empty()) {
      pieces.push_back({markers[data[i] % markers.size()], has_special});
    } else if (pieces.empty() || pieces.back().is_special) {
      pieces.push_back({std::string(1, static_cast<char>(data[i])), false});
    } else {
      pieces.back().text.push_back(static_cast<char>(data[i]));
    }
  }
  const quire::AnswerFormat format(&syntax, &reasoning, has_special ? markers : std::vector<std::string>());
  const auto start = static_cast<quire::AnswerStart>(size % 3);
  const bool must_call = size / 3 % 2 == 1;
  const quire::ParsedAnswer whole = parse(format, pieces, SIZE_MAX / 2, start, must_call);
  const quire::ParsedAnswer in_parts = parse(format, pieces, cut, start, must_call);
  if (whole.content != in_parts.content || whole.reasoning != in_parts.reasoning ||
      whole.tool_calls.size() != in_parts.tool_calls.size())
    std::abort();
  for (size_t i = 0; i < whole.tool_calls.size(); ++i) {
    if (whole.tool_calls[i].name != in_parts.tool_calls[i].name ||
        whole.tool_calls[i].arguments != in_parts.tool_calls[i].arguments)
      std::abort();
  }
  return 0;
}
