// The grammar of answers against their parser: whatever a model that follows the masks writes is read back as calls of
// the tools with arguments that satisfy their schemas. Random walks, every family, over a vocabulary of bytes, common
// pieces and the family's markers.
#include "text/answer_grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "text/answer_parser.h"
#include "text/grammar.h"
#include "text/grammar_matcher.h"
#include "text/grammar_vocabulary.h"
#include "text/json_reader.h"

namespace quire {
namespace {

constexpr std::string_view kSchema = R"({
  "type": "object",
  "properties": {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    "exact": {"type": "boolean"},
    "near": {"type": "array", "items": {"type": "string"}},
    "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"], "additionalProperties": false}
  },
  "required": ["city", "unit"],
  "additionalProperties": false
})";

const std::vector<ToolSpec>& some_tools() {
  static const std::vector<ToolSpec> tools = {
      {"get_weather", std::string(kSchema), true},
      {"now", R"({"type": "object", "properties": {}, "additionalProperties": false})", false},
      {"now_in", R"({"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]})", false}};
  return tools;
}

// --- Does a value satisfy a schema? As much of JSON Schema as the tools above use. ---

bool has_type(const JsonValue& value, std::string_view type) {
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_bool();
  if (type == "null") return value.is_null();
  if (type == "integer") {  // of any size
    const auto number = value.to_number("");
    return number.is_ok() && std::floor(number.value()) == number.value();
  }
  if (type == "number") return value.to_number("").is_ok();
  if (type == "array") return value.to_array("").is_ok();
  return value.for_each_member("", [](std::string_view, const JsonValue&) { return ok_status(); }).is_ok();
}

bool satisfies(const JsonValue& value, const JsonValue& schema) {
  const JsonValue type = schema.get_or_null("type");
  if (type.is_string() && !has_type(value, type.as_string())) return false;
  if (const auto choices = schema.get_or_null("enum").to_array(""); choices.is_ok()) {
    if (std::none_of(choices.value().begin(), choices.value().end(), [&](const JsonValue& choice) {
          return value.is_string() && choice.as_string() == value.as_string();
        }))
      return false;
  }
  if (const auto items = value.to_array(""); items.is_ok()) {
    for (const JsonValue& item : items.value())
      if (!satisfies(item, schema.get_or_null("items"))) return false;
  }
  if (const auto required = schema.get_or_null("required").to_array(""); required.is_ok()) {
    for (const JsonValue& key : required.value())
      if (!value.has(key.as_string())) return false;
  }
  const JsonValue properties = schema.get_or_null("properties");
  const bool is_closed = schema.has("additionalProperties") && !schema.get_or_null("additionalProperties").as_bool();
  bool is_good = true;
  (void)value.for_each_member("", [&](std::string_view key, const JsonValue& member) {
    is_good = is_good && (properties.has(key) ? satisfies(member, properties.get_or_null(key)) : !is_closed);
    return ok_status();
  });
  return is_good;
}

testing::AssertionResult is_call_of(const std::vector<ToolSpec>& tools, const ParsedAnswer::ToolCall& call) {
  const auto tool =
      std::find_if(tools.begin(), tools.end(), [&](const ToolSpec& spec) { return spec.name == call.name; });
  if (tool == tools.end()) return testing::AssertionFailure() << "no tool " << call.name;
  const auto arguments = JsonDocument::parse(call.arguments, "arguments");
  if (!arguments.is_ok()) return testing::AssertionFailure() << "no JSON: " << call.arguments;
  const auto schema = JsonDocument::parse(tool->parameters_schema_json, "schema");
  if (!satisfies(arguments.value().root(), schema.value().root()))
    return testing::AssertionFailure() << call.name << " does not allow " << call.arguments;
  return testing::AssertionSuccess();
}

// --- Walks ---

std::vector<std::string> markers_of(const ToolSyntax& tools, const ReasoningSyntax* reasoning) {
  std::vector<std::string> markers;
  const auto add = [&](std::string_view marker) {
    if (marker.size() > 2 && std::find(markers.begin(), markers.end(), marker) == markers.end())
      markers.emplace_back(marker);
  };
  for (const auto part : {tools.opening, tools.call, tools.separator, tools.closing})
    for (const AnswerElement& element : part)
      if (element.kind == AnswerElement::Kind::kText) add(element.text);
  for (const std::string_view marker : {tools.parameters.key_open, tools.parameters.value_close}) add(marker);
  if (tools.is_harmony) {
    for (const char* marker :
         {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"})
      add(marker);
  }
  if (reasoning != nullptr) {
    add(reasoning->open);
    add(reasoning->close);
  }
  return markers;
}

struct Vocabulary {
  GrammarVocabulary::Ptr grammar;
  std::vector<GrammarVocabulary::Token> tokens;
  int32_t end_id = 0;
};

Vocabulary make_vocabulary(const std::vector<std::string>& markers, bool are_special) {
  Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.push_back({std::string(1, static_cast<char>(byte)), false});
  for (const char* text :
       {"{\"", "\": ", "\"}", "\", \"", "}}", " the", "city", "é", "\n\n", "\"]", "</", "><", "[\"", "}\n"})
    vocabulary.tokens.push_back({text, false});
  for (const std::string& marker : markers) vocabulary.tokens.push_back({marker, are_special});
  vocabulary.end_id = static_cast<int32_t>(vocabulary.tokens.size());
  vocabulary.tokens.push_back({"<end>", true});
  vocabulary.grammar = GrammarVocabulary::create(vocabulary.tokens).value();
  return vocabulary;
}

// The tokens of a walk; empty if it found no end in time. Prefers what leads to an end.
std::vector<int32_t> walk(const Vocabulary& vocabulary, const std::shared_ptr<const Grammar>& grammar,
                          std::mt19937& random) {
  const auto matcher = GrammarMatcher::create(grammar, vocabulary.grammar, {vocabulary.end_id});
  std::vector<uint32_t> mask(vocabulary.grammar->num_mask_words());
  std::vector<int32_t> path;
  while (path.size() < 2500) {
    matcher->fill_mask(mask);
    std::vector<int32_t> allowed, likely;
    const bool follows_digit = !path.empty() && path.back() >= '0' && path.back() <= '9';
    for (int32_t id = 0; id <= vocabulary.end_id; ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) continue;
      const std::string& bytes = vocabulary.tokens[static_cast<size_t>(id)].bytes;
      // No number of more than a double's size, which is JSON, but not for our reader.
      if (follows_digit && (bytes == "e" || bytes == "E")) continue;
      allowed.push_back(id);
      const bool is_closing =
          bytes.size() == 1 && std::string_view("\"}]').0,").find(bytes[0]) != std::string_view::npos;
      if (bytes.size() > 2 || is_closing) likely.push_back(id);
    }
    if (allowed.empty()) return {};
    const std::vector<int32_t>& from = !likely.empty() && random() % 4 != 0 ? likely : allowed;
    const int32_t id = from[random() % from.size()];
    if (!matcher->accept(id)) {
      ADD_FAILURE() << "the mask allows what is not accepted";
      return {};
    }
    if (id == vocabulary.end_id) return path;
    path.push_back(id);
  }
  return {};
}

ParsedAnswer parse(const Vocabulary& vocabulary, std::span<const int32_t> path, const AnswerFormat& format,
                   const std::vector<ToolSpec>& tools, AnswerStart start, bool must_call, std::string* text) {
  AnswerParserOptions options;
  options.start = start;
  options.must_call = must_call;
  AnswerParser parser(format, std::make_shared<const std::vector<ToolSpec>>(tools), options);
  std::vector<AnswerDelta> deltas;
  for (const int32_t id : path) {
    const GrammarVocabulary::Token& token = vocabulary.tokens[static_cast<size_t>(id)];
    *text += token.bytes;
    parser.add(token.bytes, token.is_special, &deltas);
  }
  parser.finish(&deltas);
  ParsedAnswer answer;
  add_to_answer(deltas, &answer);
  return answer;
}

const ReasoningSyntax* reasoning_for(const ToolSyntax& tools) {
  for (const ReasoningSyntax& reasoning : reasoning_syntaxes()) {
    if (tools.is_harmony != reasoning.is_harmony) continue;
    if (tools.is_harmony || reasoning.name == "qwen3") return &reasoning;
  }
  return nullptr;
}

struct WalkCounts {
  int walks = 0, ends = 0, calls = 0, thoughts = 0, early_calls = 0;
};

// Wherever an answer that must call is cut off, what there is of the call comes as a call, and nothing as content.
void cut_off_everywhere(const Vocabulary& vocabulary, std::span<const int32_t> path, const AnswerFormat& format,
                        const std::vector<ToolSpec>& tools, AnswerStart start, const ParsedAnswer& whole,
                        WalkCounts* counts) {
  size_t num_calls = 0;
  for (size_t size = 0; size <= path.size(); ++size) {
    std::string text;
    const ParsedAnswer cut = parse(vocabulary, path.first(size), format, tools, start, true, &text);
    ASSERT_EQ(cut.content, "") << text;
    ASSERT_LE(cut.tool_calls.size(), whole.tool_calls.size()) << text;
    ASSERT_GE(cut.tool_calls.size(), num_calls) << text;
    num_calls = cut.tool_calls.size();
    for (size_t i = 0; i < num_calls; ++i) {
      ASSERT_EQ(cut.tool_calls[i].name, whole.tool_calls[i].name) << text;
      if (cut.tool_calls[i].arguments.empty()) ++counts->early_calls;
    }
    // From its name on, it is a call.
    const std::string_view last =
        std::string_view(text).substr(text.rfind('>') == std::string::npos ? 0 : text.rfind('>'));
    if (tools.size() == 1 && last.find(tools[0].name) != std::string_view::npos) {
      ASSERT_GE(num_calls, 1u) << text;
    }
  }
  ASSERT_EQ(num_calls, whole.tool_calls.size());
}

void walk_family(const ToolSyntax& tools, const ReasoningSyntax* reasoning, bool are_special, AnswerStart start,
                 const ToolChoice& choice, int num_walks, WalkCounts* counts) {
  const std::vector<std::string> markers = markers_of(tools, reasoning);
  const AnswerFormat format(&tools, reasoning, are_special ? markers : std::vector<std::string>());
  AnswerGrammarInput input;
  input.tools = some_tools();
  input.choice = choice;
  input.start = start;
  const auto grammar = answer_grammar(format, input);
  ASSERT_TRUE(grammar.is_ok()) << tools.name << ": " << grammar.status().message();
  ASSERT_NE(grammar.value(), nullptr);
  const Vocabulary vocabulary = make_vocabulary(markers, are_special);
  std::mt19937 random(static_cast<uint32_t>(tools.name.size()) * 7 + static_cast<uint32_t>(choice.kind));
  const bool must_call = choice.kind != ToolChoice::Kind::kAuto;
  for (int i = 0; i < num_walks; ++i) {
    ++counts->walks;
    const std::vector<int32_t> path = walk(vocabulary, grammar.value(), random);
    if (path.empty()) continue;
    ++counts->ends;
    std::string text;
    std::vector<ToolSpec> tools_of_answer = some_tools();
    if (choice.kind == ToolChoice::Kind::kNamed) {
      std::erase_if(tools_of_answer, [&](const ToolSpec& tool) { return tool.name != choice.name; });
    }
    const ParsedAnswer answer = parse(vocabulary, path, format, tools_of_answer, start, must_call, &text);
    const std::string what = std::string(tools.name) + (are_special ? ", control tokens: " : ", plain text: ") + text;
    if (must_call) {
      EXPECT_FALSE(answer.tool_calls.empty()) << what;
      EXPECT_EQ(answer.content, "") << what;
      if (path.size() < 600) cut_off_everywhere(vocabulary, path, format, tools_of_answer, start, answer, counts);
    }
    EXPECT_TRUE(choice.is_parallel || answer.tool_calls.size() <= 1) << what;
    for (const ParsedAnswer::ToolCall& call : answer.tool_calls) {
      EXPECT_TRUE(is_call_of(some_tools(), call)) << what;
      EXPECT_TRUE(choice.kind != ToolChoice::Kind::kNamed || call.name == choice.name) << what;
    }
    // What begins a call for certain is nowhere in what is left over.
    if (!tools.is_harmony) {
      for (const AnswerElement& element : tools.opening.empty() ? tools.call : tools.opening) {
        const bool is_marker = element.kind == AnswerElement::Kind::kText && element.text.size() > 1;
        EXPECT_FALSE(is_marker && answer.content.find(element.text) != std::string::npos) << what;
        if (element.kind != AnswerElement::Kind::kSpace) break;
      }
    }
    counts->calls += static_cast<int>(answer.tool_calls.size());
    counts->thoughts += answer.reasoning.empty() ? 0 : 1;
    if (testing::Test::HasFailure()) return;
  }
}

TEST(AnswerGrammar, LetsOnlyThroughWhatIsReadBack) {
  WalkCounts counts;
  for (const ToolSyntax& tools : tool_syntaxes()) {
    for (const bool are_special : {true, false}) {
      for (const ToolChoice::Kind kind :
           {ToolChoice::Kind::kAuto, ToolChoice::Kind::kRequired, ToolChoice::Kind::kNamed}) {
        for (const bool is_parallel : {true, false}) {
          ToolChoice choice{kind, kind == ToolChoice::Kind::kNamed ? "get_weather" : "", is_parallel};
          const ReasoningSyntax* reasoning = is_parallel || tools.is_harmony ? reasoning_for(tools) : nullptr;
          walk_family(tools, reasoning, are_special, AnswerStart::kOpen, choice, 6, &counts);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
  // The walks are of use only if most of them come to an end, and with calls.
  EXPECT_GT(counts.ends * 2, counts.walks);
  EXPECT_GT(counts.calls, counts.walks / 2);
  EXPECT_GT(counts.thoughts, 50);
  EXPECT_GT(counts.early_calls, 500);
}

TEST(AnswerGrammar, KnowsWhereThinkingStands) {
  const ToolSyntax& hermes = *std::find_if(tool_syntaxes().begin(), tool_syntaxes().end(),
                                           [](const ToolSyntax& tools) { return tools.name == "hermes"; });
  WalkCounts counts;
  for (const AnswerStart start : {AnswerStart::kInReasoning, AnswerStart::kAfterReasoning})
    for (const ReasoningSyntax& reasoning : reasoning_syntaxes())
      if (!reasoning.is_harmony)
        walk_family(hermes, &reasoning, true, start, {ToolChoice::Kind::kRequired, "", true}, 4, &counts);
  EXPECT_GT(counts.ends * 2, counts.walks);
}

TEST(AnswerGrammar, LetsThinkingStandBeforeAnyForm) {
  const ReasoningSyntax& qwen = *std::find_if(reasoning_syntaxes().begin(), reasoning_syntaxes().end(),
                                              [](const ReasoningSyntax& row) { return row.name == "qwen3"; });
  const AnswerFormat format(&tool_syntaxes().back(), &qwen);
  const Vocabulary vocabulary = make_vocabulary({}, false);
  const auto accepts = [&](const AnswerGrammarInput& input, std::string_view text) {
    const auto grammar = answer_grammar(format, input);
    CHECK(grammar.is_ok());
    const auto matcher = GrammarMatcher::create(grammar.value(), vocabulary.grammar, {vocabulary.end_id});
    for (const char byte : text)
      if (!matcher->accept(static_cast<unsigned char>(byte))) return false;
    return matcher->may_end();
  };
  AnswerGrammarInput input;
  input.choice.kind = ToolChoice::Kind::kNone;
  input.content.kind = ContentRule::Kind::kRegex;
  input.content.text = "[0-9]+";
  EXPECT_TRUE(accepts(input, "42"));
  EXPECT_TRUE(accepts(input, "<think>\nSix by seven.\n</think>\n\n42"));
  EXPECT_FALSE(accepts(input, "<think>\nSix by seven.\n</think>\n\nforty-two"));
  EXPECT_FALSE(accepts(input, "<think>\nSix by seven."));
  input.start = AnswerStart::kInReasoning;
  EXPECT_TRUE(accepts(input, "Six by seven.</think>42"));
  EXPECT_FALSE(accepts(input, "42"));
  input.start = AnswerStart::kAfterReasoning;
  EXPECT_TRUE(accepts(input, "42"));
  EXPECT_FALSE(accepts(input, "<think></think>42"));
}

// Free text of families whose calls begin with a bracket: other JSON stays possible, a call's beginning commits.
TEST(AnswerGrammar, LeavesOtherJsonPossible) {
  const AnswerFormat format(&tool_syntaxes().back(), nullptr);
  AnswerGrammarInput input;
  input.tools = some_tools();
  const auto grammar = answer_grammar(format, input);
  ASSERT_TRUE(grammar.is_ok()) << grammar.status().message();
  const Vocabulary vocabulary = make_vocabulary({}, false);
  const auto accepts = [&](std::string_view text) {
    const auto matcher = GrammarMatcher::create(grammar.value(), vocabulary.grammar, {vocabulary.end_id});
    for (const char byte : text)
      if (!matcher->accept(static_cast<unsigned char>(byte))) return false;
    return matcher->may_end();
  };
  EXPECT_TRUE(accepts(""));
  EXPECT_TRUE(accepts("Hello {\"name\": \"x\"}"));
  EXPECT_TRUE(accepts("{"));
  EXPECT_TRUE(accepts("{\"na"));
  EXPECT_TRUE(accepts("{\"named\": \"x\"}"));
  EXPECT_TRUE(accepts("{\"answer\": 1}"));
  EXPECT_TRUE(accepts("{\"name\": \"now\", \"arguments\": {}}"));
  EXPECT_FALSE(accepts("{\"name\": \"never\""));
  EXPECT_FALSE(accepts("{\"name\": \"now\", \"arguments\": {}"));
}

TEST(AnswerGrammar, RefusesWhatCannotBe) {
  const AnswerFormat hermes(&tool_syntaxes().back(), nullptr);
  AnswerGrammarInput input;
  input.tools = some_tools();
  input.choice = {ToolChoice::Kind::kNamed, "never", true};
  EXPECT_EQ(answer_grammar(hermes, input).status().code(), StatusCode::kInvalidArgument);
  input.choice = {ToolChoice::Kind::kRequired, "", true};
  EXPECT_EQ(answer_grammar(AnswerFormat(nullptr, nullptr), input).status().code(), StatusCode::kUnimplemented);
  input.tools = {};
  EXPECT_EQ(answer_grammar(hermes, input).status().code(), StatusCode::kInvalidArgument);
  const std::vector<ToolSpec> bad[] = {
      {{"f", "[]", false}}, {{"f", "{", false}}, {{"f", R"({"type": "string"})", false}}};
  for (const auto& tools : bad) {
    input.tools = tools;
    const auto grammar = answer_grammar(hermes, input);
    ASSERT_FALSE(grammar.is_ok());
    EXPECT_NE(grammar.status().message().find("'f'"), std::string::npos) << grammar.status().message();
  }
  input.tools = {};
  input.choice = {ToolChoice::Kind::kAuto, "", true};
  ASSERT_TRUE(answer_grammar(hermes, input).is_ok());
  EXPECT_EQ(answer_grammar(hermes, input).value(), nullptr);
}

}  // namespace
}  // namespace quire
