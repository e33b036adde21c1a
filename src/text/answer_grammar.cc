#include "text/answer_grammar.h"

#include <algorithm>

#include "text/answer_grammar_parts.h"

namespace quire {

using answer::GrammarParts;
using Node = GrammarBuilder::Node;

namespace {

using Kind = AnswerElement::Kind;

// What stands in a row, for one tool or (opening, closing) for none.
Result<Node> write_elements(GrammarParts& parts, const ToolSyntax& syntax, std::span<const AnswerElement> elements,
                            const ToolSpec* tool) {
  GrammarBuilder& builder = parts.builder();
  std::vector<Node> nodes;
  for (const AnswerElement& element : elements) {
    if (element.is_not_written) continue;
    switch (element.kind) {
      case Kind::kText:
        nodes.push_back(builder.special_token(element.text));
        break;
      case Kind::kSpace:
        if (!element.text.empty()) nodes.push_back(builder.literal(element.text));
        break;
      case Kind::kName:
        nodes.push_back(builder.literal(tool->name));
        break;
      case Kind::kNumber: {
        const GrammarBuilder::CodePointRange digits{U'0', U'9'};
        nodes.push_back(builder.repeat(builder.character({&digits, 1}), 1, 3));
        break;
      }
      case Kind::kCallId: {
        const GrammarBuilder::CodePointRange letters[] = {{U'0', U'9'}, {U'A', U'Z'}, {U'a', U'z'}};
        nodes.push_back(builder.repeat(builder.character(letters), 9, 9));
        break;
      }
      case Kind::kCallObject: {
        ASSIGN_OR_RETURN(const Node object, parts.call_object(element, *tool));
        nodes.push_back(object);
        break;
      }
      case Kind::kArguments: {
        ASSIGN_OR_RETURN(const Node arguments, parts.arguments(*tool));
        nodes.push_back(arguments);
        break;
      }
      case Kind::kParameters: {
        ASSIGN_OR_RETURN(const Node parameters, parts.tagged_parameters(syntax.parameters, *tool));
        nodes.push_back(parameters);
        break;
      }
      case Kind::kPythonCall: {
        ASSIGN_OR_RETURN(const Node call, parts.python_call(*tool));
        nodes.push_back(call);
        break;
      }
    }
  }
  return builder.sequence(nodes);
}

Result<Node> write_calls(GrammarParts& parts, const ToolSyntax& syntax, std::span<const ToolSpec> tools,
                         bool is_parallel) {
  GrammarBuilder& builder = parts.builder();
  std::vector<Node> calls;
  for (const ToolSpec& tool : tools) {
    auto call = write_elements(parts, syntax, syntax.call, &tool);
    if (!call.is_ok()) return call.status().with_context("the tool '" + tool.name + "'");
    calls.push_back(call.value());
  }
  ASSIGN_OR_RETURN(const Node opening, write_elements(parts, syntax, syntax.opening, nullptr));
  ASSIGN_OR_RETURN(Node separator, write_elements(parts, syntax, syntax.separator, nullptr));
  ASSIGN_OR_RETURN(const Node closing, write_elements(parts, syntax, syntax.closing, nullptr));
  // Families without a list around their calls may put each on a line of its own.
  if (syntax.opening.empty() && syntax.separator.empty()) separator = builder.optional(builder.literal("\n"));
  const int max_calls = is_parallel ? GrammarBuilder::kNoMaximum : 1;
  const Node list = builder.separated(builder.alternatives(calls), separator, 1, max_calls);
  return builder.sequence({opening, list, closing});
}

// The markers that may begin calls anywhere in the content; a text without them is content for certain.
std::vector<std::string> call_markers(const ToolSyntax& syntax) {
  std::vector<std::string> markers;
  for (const auto part : {syntax.opening, syntax.call}) {
    for (const AnswerElement& element : part) {
      if (element.kind == Kind::kText && element.text.size() > 1) markers.emplace_back(element.text);
      if (element.kind != Kind::kSpace && !element.is_optional) return markers;
    }
  }
  return markers;
}

// Families whose calls begin with a bracket: which beginnings of an answer are a call for certain.
std::vector<std::string> call_beginnings(const ToolSyntax& syntax, std::span<const ToolSpec> tools) {
  std::vector<std::string> beginnings;
  for (const AnswerElement& element : syntax.opening.empty() ? syntax.call : syntax.opening) {
    if (element.kind == Kind::kCallObject) beginnings.push_back("{\"" + std::string(element.name_key) + "\": \"");
    if (element.kind == Kind::kText && element.text == "[") {
      for (const ToolSpec& tool : tools) beginnings.push_back("[" + tool.name + "(");
    }
    if (element.kind != Kind::kSpace && !element.is_optional) break;
  }
  return beginnings;
}

// Text in which no marker occurs, as parts that tell its first character.
struct FreeText {
  Node any;                                              // none at all, or any such text
  std::vector<std::pair<char32_t, Node>> from_first_of;  // such a text that begins with the first character of a marker
};

// Such a text that begins with none of the characters.
Node text_from_other_character(GrammarBuilder& builder, std::vector<GrammarBuilder::CodePointRange> characters,
                               const FreeText& free) {
  const size_t num_characters = characters.size();
  const auto is_excluded = [&](char32_t character) {
    return std::any_of(characters.begin(), characters.begin() + static_cast<std::ptrdiff_t>(num_characters),
                       [&](const auto& range) { return range.first == character; });
  };
  std::vector<Node> ways;
  for (const auto& [character, text] : free.from_first_of) {
    if (is_excluded(character)) continue;
    ways.push_back(text);
  }
  for (const auto& [character, text] : free.from_first_of) characters.push_back({character, character});
  ways.push_back(builder.sequence({builder.character(characters, true), free.any}));
  return builder.alternatives(ways);
}

// Text that begins with none of these (all ASCII), of which `taken` bytes stand already.
Node text_beginning_otherwise(GrammarBuilder& builder, const std::vector<std::string>& beginnings, size_t taken,
                              const FreeText& free) {
  std::vector<GrammarBuilder::CodePointRange> next;
  std::vector<Node> ways = {builder.empty()};
  for (const std::string& beginning : beginnings) {
    const char32_t character = static_cast<unsigned char>(beginning[taken]);
    if (std::any_of(next.begin(), next.end(), [&](const auto& range) { return range.first == character; })) continue;
    next.push_back({character, character});
    std::vector<std::string> same;
    for (const std::string& other : beginnings)
      if (other[taken] == beginning[taken]) same.push_back(other);
    // Where one of them is complete, the text has begun so.
    const bool is_complete =
        std::any_of(same.begin(), same.end(), [&](const std::string& other) { return other.size() == taken + 1; });
    if (is_complete) continue;
    ways.push_back(builder.sequence(
        {builder.literal(std::string(1, beginning[taken])), text_beginning_otherwise(builder, same, taken + 1, free)}));
  }
  ways.push_back(text_from_other_character(builder, next, free));
  return builder.alternatives(ways);
}

// Markers whose first character stands in them only once, as in all there are.
FreeText make_free_text(GrammarBuilder& builder, const std::vector<std::string>& markers) {
  FreeText free;
  free.any = builder.text_without(markers);
  for (const std::string& marker : markers) {
    const char32_t first = static_cast<unsigned char>(marker[0]);
    const bool is_new = std::none_of(free.from_first_of.begin(), free.from_first_of.end(),
                                     [&](const auto& entry) { return entry.first == first; });
    if (is_new) free.from_first_of.emplace_back(first, builder.declare_rule("text from a marker's first character"));
  }
  for (const auto& [first, rule] : free.from_first_of) {
    std::vector<std::string> same;
    for (const std::string& marker : markers)
      if (static_cast<unsigned char>(marker[0]) == first) same.push_back(marker);
    builder.define_rule(rule, builder.sequence({builder.literal(same[0].substr(0, 1)),
                                                text_beginning_otherwise(builder, same, 1, free)}));
  }
  return free;
}

bool is_ascii(const std::vector<std::string>& texts) {
  for (const std::string& text : texts)
    if (std::any_of(text.begin(), text.end(), [](char byte) { return static_cast<unsigned char>(byte) >= 0x80; }))
      return false;
  return true;
}

// Text without calls, and after it calls or the end.
Node write_free_answer(GrammarBuilder& builder, const ToolSyntax& syntax, std::span<const ToolSpec> tools, Node calls,
                       const std::vector<std::string>& other_markers) {
  std::vector<std::string> markers = call_markers(syntax);
  markers.insert(markers.end(), other_markers.begin(), other_markers.end());
  const std::vector<std::string> beginnings = call_beginnings(syntax, tools);
  if (beginnings.empty()) return builder.sequence({builder.text_without(markers), builder.optional(calls)});
  if (!is_ascii(beginnings) || !is_ascii(markers)) {
    return builder.alternatives({calls, builder.text_without(markers)});
  }
  return builder.alternatives(
      {calls, text_beginning_otherwise(builder, beginnings, 0, make_free_text(builder, markers))});
}

// What may come before the answer proper.
Node write_reasoning(GrammarBuilder& builder, const ReasoningSyntax& reasoning, AnswerStart start, bool has_space) {
  const Node close = builder.special_token(reasoning.close);
  const Node open = builder.special_token(reasoning.open);
  const GrammarBuilder::CodePointRange line_break{U'\n', U'\n'};
  const Node space = has_space ? builder.repeat(builder.character({&line_break, 1}), 0, 2) : builder.empty();
  const Node thoughts = builder.sequence({builder.text_without({std::string(reasoning.close)}), close, space});
  if (start == AnswerStart::kInReasoning) return thoughts;
  if (start == AnswerStart::kAfterReasoning) return space;
  if (reasoning.is_always_first) return builder.sequence({builder.optional(open), thoughts});
  return builder.optional(builder.sequence({open, thoughts}));
}

// Messages in channels: thoughts and remarks, then a call or the final message.
Result<Node> write_harmony(GrammarParts& parts, const AnswerGrammarInput& input, std::span<const ToolSpec> tools,
                           Node content) {
  GrammarBuilder& builder = parts.builder();
  const auto token = [&](std::string_view text) { return builder.special_token(text); };
  const Node text =
      builder.text_without({"<|end|>", "<|start|>", "<|channel|>", "<|message|>", "<|call|>", "<|return|>"});
  const auto remark = [&](std::string_view channel) {
    return builder.sequence({token("<|channel|>"), builder.literal(channel), token("<|message|>"), text,
                             token("<|end|>"), token("<|start|>"), builder.literal("assistant")});
  };
  std::vector<Node> calls;
  for (const ToolSpec& tool : tools) {
    auto arguments = parts.arguments(tool);
    if (!arguments.is_ok()) return arguments.status().with_context("the tool '" + tool.name + "'");
    const Node to = builder.literal(" to=functions." + tool.name);
    const Node commentary = builder.literal("commentary");
    const Node json = builder.sequence({builder.literal(" "), token("<|constrain|>"), builder.literal("json")});
    const Node header = builder.alternatives({builder.sequence({token("<|channel|>"), commentary, to, json}),
                                              builder.sequence({to, token("<|channel|>"), commentary, json})});
    calls.push_back(
        builder.sequence({header, token("<|message|>"), arguments.value(), builder.optional(token("<|call|>"))}));
  }
  const Node final = builder.sequence({token("<|channel|>"), builder.literal("final"), token("<|message|>"), content,
                                       builder.optional(token("<|return|>"))});
  const bool must_call =
      input.choice.kind == ToolChoice::Kind::kRequired || input.choice.kind == ToolChoice::Kind::kNamed;
  std::vector<Node> before = {remark("analysis")};
  if (!must_call && !calls.empty()) before.push_back(remark("commentary"));
  std::vector<Node> ends = calls;
  if (!must_call) ends.push_back(final);
  return builder.sequence({builder.repeat(builder.alternatives(before), 0), builder.alternatives(ends)});
}

}  // namespace

Result<std::shared_ptr<const Grammar>> answer_grammar(const AnswerFormat& format, const AnswerGrammarInput& input) {
  const bool has_content_rule = input.content.kind != ContentRule::Kind::kAny;
  std::span<const ToolSpec> tools = input.tools;
  if (input.choice.kind == ToolChoice::Kind::kNone) tools = {};
  if (input.choice.kind == ToolChoice::Kind::kNamed) {
    const auto named =
        std::find_if(tools.begin(), tools.end(), [&](const ToolSpec& tool) { return tool.name == input.choice.name; });
    if (named == tools.end()) {
      return invalid_argument("tool_choice names the function '" + input.choice.name +
                              "', which is not among the tools");
    }
    tools = tools.subspan(static_cast<size_t>(named - tools.begin()), 1);
  }
  const bool must_call =
      input.choice.kind == ToolChoice::Kind::kRequired || input.choice.kind == ToolChoice::Kind::kNamed;
  if (must_call && tools.empty()) return invalid_argument("tool_choice asks for a call, but there are no tools");
  if (!tools.empty() && format.tools() == nullptr) {
    if (must_call) return unimplemented("tool calls are switched off for this model (--tool-call-parser none)");
    tools = {};
  }
  if (tools.empty() && !has_content_rule) return std::shared_ptr<const Grammar>();

  GrammarBuilder builder;
  GrammarParts parts(&builder);
  ASSIGN_OR_RETURN(const Node content, parts.content(input.content));
  const ReasoningSyntax* reasoning = format.reasoning();
  if ((format.tools() != nullptr && format.tools()->is_harmony) || (reasoning != nullptr && reasoning->is_harmony)) {
    ASSIGN_OR_RETURN(const Node root, write_harmony(parts, input, tools, content));
    return builder.build(root);
  }

  Node answer = content;
  if (!tools.empty()) {
    ASSIGN_OR_RETURN(const Node calls, write_calls(parts, *format.tools(), tools, input.choice.is_parallel));
    std::vector<std::string> tags;  // that would be read as thinking where they are no tokens of their own
    if (reasoning != nullptr) tags.emplace_back(reasoning->open);
    answer = must_call          ? calls
             : has_content_rule ? builder.alternatives({content, calls})
                                : write_free_answer(builder, *format.tools(), tools, calls, tags);
  }
  const bool is_free_text = !must_call && !has_content_rule;
  const Node before =
      reasoning == nullptr ? builder.empty() : write_reasoning(builder, *reasoning, input.start, !is_free_text);
  return builder.build(builder.sequence({before, answer}));
}

}  // namespace quire
