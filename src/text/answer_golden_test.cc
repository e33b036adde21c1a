// Answers as models of each family write them (tests/goldens/answers, format in tests/goldens/README.md), cut at every
// byte, in two at every place, and at random: the parts are always the same, and those that were expected.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>

#include "text/answer_parser.h"
#include "text/json_reader.h"

namespace quire {
namespace {

struct Piece {
  std::string text;
  bool is_special;
};

struct Golden {
  std::string name;
  std::string text;
  AnswerParserOptions options;
  bool needs_special = false;  // means something else where markers are plain text
  ParsedAnswer expected;       // ids are empty where they do not matter
};

struct Family {
  std::string name;
  const ToolSyntax* tools = nullptr;
  const ReasoningSyntax* reasoning = nullptr;
  std::vector<std::string> special;
  std::shared_ptr<std::vector<ToolSpec>> specs = std::make_shared<std::vector<ToolSpec>>();
  std::vector<Golden> goldens;
};

std::string get_text(const JsonValue& object, std::string_view key) {
  return object.has(key) ? object.get_string(key, "golden").value() : std::string();
}

std::vector<JsonValue> get_items(const JsonValue& object, std::string_view key) {
  return object.get_array(key, "golden").value();
}

// json_reader has no writer: the types are what parsing needs of a schema, so they are written back by hand.
std::string to_json(const JsonValue& value) {
  if (value.is_null()) return "null";
  if (value.is_bool()) return value.as_bool() ? "true" : "false";
  if (value.is_string()) return "\"" + std::string(value.as_string()) + "\"";
  std::string json;
  if (const auto items = value.to_array(""); items.is_ok()) {
    for (const JsonValue& item : items.value()) json += (json.empty() ? "" : ", ") + to_json(item);
    return "[" + json + "]";
  }
  const Status status = value.for_each_member("", [&](std::string_view key, const JsonValue& member) {
    json += (json.empty() ? "\"" : ", \"") + std::string(key) + "\": " + to_json(member);
    return ok_status();
  });
  CHECK(status.is_ok());
  return "{" + json + "}";
}

Golden read_golden(const JsonValue& line) {
  Golden golden;
  golden.name = get_text(line, "name");
  golden.text = get_text(line, "text");
  golden.expected.content = get_text(line, "content");
  golden.expected.reasoning = get_text(line, "reasoning");
  for (const JsonValue& call : get_items(line, "calls"))
    golden.expected.tool_calls.push_back({get_text(call, "id"), get_text(call, "name"), get_text(call, "arguments")});
  const std::string start = get_text(line, "start");
  golden.options.start = start == "in_reasoning"      ? AnswerStart::kInReasoning
                         : start == "after_reasoning" ? AnswerStart::kAfterReasoning
                                                      : AnswerStart::kOpen;
  golden.options.reads_tools = line.get_bool_or("reads_tools", true, "golden").value();
  golden.options.reads_reasoning = line.get_bool_or("reads_reasoning", true, "golden").value();
  golden.needs_special = line.get_bool_or("needs_special", false, "golden").value();
  return golden;
}

Family read_family(const std::filesystem::path& path) {
  Family family;
  family.name = path.stem().string();
  std::ifstream file(path);
  std::string line;
  bool is_first = true;
  while (std::getline(file, line)) {
    const auto document = JsonDocument::parse(line, path.string());
    CHECK(document.is_ok());
    const JsonValue root = document.value().root();
    if (!is_first) {
      family.goldens.push_back(read_golden(root));
      continue;
    }
    is_first = false;
    int64_t row = root.get_integer("row", "family").value();
    for (const ToolSyntax& syntax : tool_syntaxes())
      if (syntax.name == get_text(root, "tool_format") && row-- == 0) family.tools = &syntax;
    CHECK(family.tools != nullptr);
    for (const ReasoningSyntax& syntax : reasoning_syntaxes())
      if (syntax.name == get_text(root, "reasoning_format")) family.reasoning = &syntax;
    CHECK((family.reasoning != nullptr) == root.has("reasoning_format"));
    for (const JsonValue& marker : get_items(root, "special")) family.special.emplace_back(marker.as_string());
    for (const JsonValue& tool : get_items(root, "tools"))
      family.specs->push_back({get_text(tool, "name"), to_json(tool.get_or_null("parameters")), false});
  }
  return family;
}

std::vector<Family> read_families() {
  std::vector<Family> families;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(QUIRE_SOURCE_DIR) + "/tests/goldens/answers"))
    if (entry.path().extension() == ".jsonl") families.push_back(read_family(entry.path()));
  std::sort(families.begin(), families.end(), [](const Family& a, const Family& b) { return a.name < b.name; });
  return families;
}

// The text with each control token a piece of its own.
std::vector<Piece> split(std::string_view text, const std::vector<std::string>& special) {
  std::vector<Piece> pieces;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const auto marker = std::find_if(special.begin(), special.end(),
                                     [&](const std::string& token) { return text.substr(i).starts_with(token); });
    if (marker == special.end()) {
      ++i;
      continue;
    }
    if (i > begin) pieces.push_back({std::string(text.substr(begin, i - begin)), false});
    pieces.push_back({*marker, true});
    begin = i += marker->size();
  }
  if (begin < text.size()) pieces.push_back({std::string(text.substr(begin)), false});
  return pieces;
}

// `cut` says after how many further bytes the next cut comes.
template <typename Cut>
ParsedAnswer parse(const Family& family, const AnswerFormat& format, const Golden& golden,
                   const std::vector<Piece>& pieces, Cut cut) {
  AnswerParser parser(format, family.specs, golden.options);
  ParsedAnswer answer;
  std::vector<AnswerDelta> deltas;
  const auto take = [&] {
    for (size_t i = 1; i < deltas.size(); ++i) {
      EXPECT_TRUE(deltas[i].kind != deltas[i - 1].kind || deltas[i].index != deltas[i - 1].index ||
                  deltas[i].kind == AnswerDelta::Kind::kToolCallBegin);
    }
    add_to_answer(deltas, &answer);
    deltas.clear();
  };
  for (const Piece& piece : pieces) {
    if (piece.is_special) {
      parser.add(piece.text, true, &deltas);
      take();
      continue;
    }
    for (size_t begin = 0; begin < piece.text.size();) {
      const size_t size = std::min(cut(), piece.text.size() - begin);
      parser.add(std::string_view(piece.text).substr(begin, size), false, &deltas);
      take();
      begin += size;
    }
  }
  parser.finish(&deltas);
  take();
  EXPECT_EQ(parser.num_tool_calls(), static_cast<int>(answer.tool_calls.size()));
  return answer;
}

void expect_equal(const ParsedAnswer& got, const ParsedAnswer& expected, const std::string& what) {
  EXPECT_EQ(got.content, expected.content) << what;
  EXPECT_EQ(got.reasoning, expected.reasoning) << what;
  ASSERT_EQ(got.tool_calls.size(), expected.tool_calls.size()) << what << "\ncontent: " << got.content;
  for (size_t i = 0; i < got.tool_calls.size(); ++i) {
    EXPECT_EQ(got.tool_calls[i].name, expected.tool_calls[i].name) << what;
    EXPECT_EQ(got.tool_calls[i].arguments, expected.tool_calls[i].arguments) << what;
    if (!expected.tool_calls[i].id.empty()) {
      EXPECT_EQ(got.tool_calls[i].id, expected.tool_calls[i].id) << what;
    }
  }
}

void expect_golden(const Family& family, const Golden& golden, const AnswerFormat& format,
                   const std::vector<Piece>& pieces, const std::string& what) {
  const ParsedAnswer whole = parse(family, format, golden, pieces, [] { return SIZE_MAX; });
  expect_equal(whole, golden.expected, what + ", whole");
  const ParsedAnswer bytes = parse(family, format, golden, pieces, [] { return size_t{1}; });
  expect_equal(bytes, whole, what + ", byte by byte");
  for (size_t at = 1; at < golden.text.size(); ++at) {
    bool is_cut = false;
    const ParsedAnswer two = parse(family, format, golden, pieces, [&] {
      const size_t size = is_cut ? SIZE_MAX : at;
      is_cut = true;
      return size;
    });
    expect_equal(two, whole, what + ", cut at " + std::to_string(at));
    if (testing::Test::HasFailure()) return;
  }
  std::mt19937 random(7);
  for (int i = 0; i < 20; ++i) {
    const ParsedAnswer cut = parse(family, format, golden, pieces, [&] { return 1 + random() % 9; });
    expect_equal(cut, whole, what + ", cut at random");
  }
}

TEST(AnswerGoldens, AreReadHoweverTheyAreCut) {
  const std::vector<Family> families = read_families();
  ASSERT_GE(families.size(), 20u);
  for (const Family& family : families) {
    for (const Golden& golden : family.goldens) {
      const std::string what = family.name + ": " + golden.name;
      const AnswerFormat with_special(family.tools, family.reasoning, family.special);
      expect_golden(family, golden, with_special, split(golden.text, family.special), what + " (control tokens)");
      if (family.special.empty() || golden.needs_special) continue;
      const AnswerFormat as_text(family.tools, family.reasoning);
      expect_golden(family, golden, as_text, {{golden.text, false}}, what + " (plain text)");
    }
  }
}

// Every row is looked at by some file.
TEST(AnswerGoldens, CoverEveryToolSyntax) {
  const std::vector<Family> families = read_families();
  for (const ToolSyntax& syntax : tool_syntaxes()) {
    EXPECT_TRUE(std::any_of(families.begin(), families.end(), [&](const Family& family) {
      return family.tools->name == syntax.name;
    })) << syntax.name;
  }
}

}  // namespace
}  // namespace quire
