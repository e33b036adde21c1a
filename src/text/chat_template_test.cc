// ChatTemplate as its callers see it: texts that jinja2 gives (tests/goldens/jinja_snippets.jsonl), whitespace, errors,
// the lines of `render`, several threads. Marks are in jinja_taint_test.cc, limits in jinja_limits_test.cc.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace quire {
namespace {

using jinja::Value;

std::string render(std::string_view source, std::string_view variables = "{}") {
  const auto parsed = ChatTemplate::create(source);
  if (!parsed.is_ok()) return "create: " + parsed.status().message();
  TemplateInput input;
  input.now_seconds = parse_local_time("2026-11-29T12:00:00").value();
  const Value object = jinja::from_json(variables).value();
  for (const auto& [key, value] : object.dict_object().entries) input.variables.emplace_back(key.bytes(), value);
  const auto prompt = parsed.value()->render(input);
  return prompt.is_ok() ? prompt.value().text : "render: " + prompt.status().message();
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Where we differ on purpose: what is refused by name ({% autoescape %}), blocks called by name (self.title()), and
// computed integers, which have 64 bits.
bool is_known_difference(std::string_view source, const Result<RenderedPrompt>& prompt) {
  if (source == "{{ self }}") return true;
  return !prompt.is_ok() && (prompt.status().code() == StatusCode::kUnimplemented ||
                             prompt.status().message().find("exceeds 64 bits") != std::string::npos);
}

TEST(ChatTemplate, RendersTheSnippetsAsJinja2) {
  std::istringstream lines(read_file(std::string(QUIRE_SOURCE_DIR) + "/tests/goldens/jinja_snippets.jsonl"));
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const Value variables = jinja::from_json(line).value();
  TemplateInput input;
  input.now_seconds = parse_local_time("2026-11-29T12:00:00").value();
  for (const auto& [key, value] : variables.dict_object().find("variables")->dict_object().entries) {
    input.variables.emplace_back(key.bytes(), value);
  }
  int num_texts = 0, num_errors = 0, num_different = 0;
  while (std::getline(lines, line)) {
    const Value golden = jinja::from_json(line).value();
    const std::string source(golden.dict_object().find("template")->bytes());
    const Value* expected = golden.dict_object().find("result");
    const auto parsed = ChatTemplate::create(source);
    const Result<RenderedPrompt> prompt =
        parsed.is_ok() ? parsed.value()->render(input) : Result<RenderedPrompt>(parsed.status());
    if (is_known_difference(source, prompt)) {
      ++num_different;
      continue;
    }
    if (expected != nullptr) {
      ++num_texts;
      EXPECT_TRUE(prompt.is_ok()) << source << "\n" << prompt.status().message();
      if (!prompt.is_ok()) continue;
      EXPECT_EQ(prompt.value().text, expected->bytes()) << source;
    } else {
      ++num_errors;
      EXPECT_FALSE(prompt.is_ok()) << source << "\n" << prompt.value().text;
    }
  }
  EXPECT_GT(num_texts, 300);
  EXPECT_GT(num_errors, 20);
  EXPECT_LE(num_different, 16);
}

TEST(ChatTemplate, BlockTagsTakeTheirLineWithThem) {
  constexpr std::string_view kSource =
      "{% set who = 'you' %}\n"
      "{% if messages %}\n"
      "    {% for message in messages %}\n"
      "<|{{ message.role }}|>\n"
      "        {# a note #}\n"
      "{{ message.content }}<|end|>\n"
      "    {% endfor %}\n"
      "{% endif %}\n"
      "  {{ who }}\n";
  EXPECT_EQ(render(kSource, R"({"messages": [{"role": "user", "content": "Hi"}]})"), "<|user|>\nHi<|end|>\n  you");
}

TEST(ChatTemplate, SignsRuleTheWhitespace) {
  EXPECT_EQ(render("a \n {%- if true -%} \n b \n {%- endif %}\n c"), "ab c");
  EXPECT_EQ(render("  {%+ if true +%}\n x{% endif %}"), "  \n x");
  EXPECT_EQ(render("a {{- ' b ' -}} c"), "a b c");
  EXPECT_EQ(render("\xE3\x80\x80{%- if true %}x{% endif %}"), "x");  // an ideographic space is whitespace
  EXPECT_EQ(render("x\n\n"), "x\n");
  EXPECT_EQ(render("a\r\nb\rc\r\n"), "a\nb\nc");
  EXPECT_EQ(render("{% raw %}\n{{ x }}{% endraw %}\n|"), "\n{{ x }}|");
}

TEST(ChatTemplate, VariablesFollowTheScopesOfJinja2) {
  EXPECT_EQ(render("{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}"),
            "12 13 1");
  EXPECT_EQ(render("{% if a %}{% set a = 2 %}{% endif %}{{ a }}", R"({"a": 1})"), "2");
  EXPECT_EQ(render("{% if not a %}{% set a = 2 %}{% endif %}{{ a }}", R"({"a": 1})"), "1");
  EXPECT_EQ(
      render("{% set ns = namespace(n=0) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}"),
      "6");
  EXPECT_EQ(render("{% macro m() %}{{ x }}{% endmacro %}{% set x = 5 %}{{ m() }}"), "5");
  // A variable that the template sets is not looked up in the input before it is set.
  EXPECT_EQ(render("{% macro m() %}[{{ x }}]{% endmacro %}{{ m() }}{% set x = 5 %}{{ m() }}", R"({"x": 1})"), "[][5]");
  EXPECT_EQ(render("{% for i in [1] %}{% else %}none{% endfor %}{% for i in [] %}{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(
      render("{% for n in t recursive %}{{ n.v }}{% if n.c %}({{ loop(n.c) }}){% endif %}{{ loop.depth }}{% endfor %}",
             R"({"t": [{"v": "a", "c": [{"v": "b"}]}, {"v": "c"}]})"),
      "a(b2)1c1");
}

TEST(ChatTemplate, BlocksSeeTheTopLevelAndTheInput) {
  EXPECT_EQ(render("{% set x = 1 %}{% for i in [1] %}{% block b %}{{ x }}{{ i }}{{ y }}{% endblock b %}{% endfor %}",
                   R"({"y": 3})"),
            "13");
  EXPECT_TRUE(render("{% block b %}{% endblock %}{% block b %}{% endblock %}").starts_with("create:"));
}

TEST(ChatTemplate, ErrorsTellTheLineAndTheReason) {
  EXPECT_EQ(render("a\n{{ b.c }}"), "render: chat template: line 2: 'b' is undefined");
  EXPECT_EQ(render("a\n\n{{ raise_exception('No system role') }}"), "render: chat template: line 3: No system role");
  EXPECT_EQ(render("{% if x %}\n{{ y }}"),
            "create: chat template: line 2: unexpected end of template; 'endif' is missing");
  EXPECT_EQ(render("{{ x|frobnicate }}"), "create: chat template: line 1: No filter named 'frobnicate'.");
  EXPECT_EQ(render("\n{% include 'x' %}"),
            "create: chat template: line 2: {% include %} is not supported in chat templates, which are one file and "
            "not HTML");
  EXPECT_EQ(render("{{ 1 + 'a' }}"),
            "render: chat template: line 1: unsupported operand type(s) for +: 'int' and 'str'");
  EXPECT_EQ(render("{% break %}"), "create: chat template: line 1: break outside of a loop");
  EXPECT_EQ(render("\xFF"), "create: the chat template is not UTF-8 text");
  // Inside an if, an unknown filter matters only when it is reached.
  EXPECT_EQ(render("{% if false %}{{ x|frobnicate }}{% endif %}ok"), "ok");
}

TEST(ChatTemplate, ReachesNothingBeyondTheValues) {
  EXPECT_EQ(render("{{ ''.__class__ }}{{ [].__class__.__mro__ is defined }}"),
            "render: chat template: line 1: access to attribute '__class__' of 'list' object is unsafe.");
  EXPECT_EQ(render("{{ l.append(1) }}", R"({"l": []})"),
            "render: chat template: line 1: access to attribute 'append' of 'list' object is unsafe.");
  EXPECT_EQ(render("{{ d.pop('a') }}", R"({"d": {"a": 1}})"),
            "render: chat template: line 1: access to attribute 'pop' of 'dict' object is unsafe.");
  EXPECT_EQ(render("{{ cycler.__init__.__globals__.os.popen('id').read() }}"),
            "render: chat template: line 1: access to attribute '__init__' of 'function' object is unsafe.");
  EXPECT_EQ(render("{{ '{0.__class__}'.format(1) }}"), "");
  EXPECT_TRUE(render("{{ namespace(_x=1) }}").starts_with("render:"));
}

TEST(ChatTemplate, JsonKeepsOrderAndNumbers) {
  constexpr std::string_view kJson =
      R"({"z": 1, "a": 1.0, "big": 123456789012345678901234567890, "e": 1e22, "s": "é\u2028</x>"})";
  EXPECT_EQ(
      render("{{ v|tojson }}", "{\"v\": " + std::string(kJson) + "}"),
      "{\"z\": 1, \"a\": 1.0, \"big\": 123456789012345678901234567890, \"e\": 1e+22, \"s\": \"é\xE2\x80\xA8</x>\"}");
}

TEST(ChatTemplate, RendersALineAsTransformersWould) {
  const auto parsed = ChatTemplate::create(
      "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{{ tools is none }}{{ "
      "add_generation_prompt }}{{ extra }}");
  ASSERT_TRUE(parsed.is_ok());
  TemplateInput defaults;
  defaults.trusted_strings.emplace_back("bos_token", "<s>");
  EXPECT_EQ(render_json_line(*parsed.value(), R"({"messages": [{"role": "user", "content": "a\n\"b\""}], "extra": 7})",
                             defaults),
            R"("<s><|user|>a\n\"b\"TrueFalse7")");
  EXPECT_EQ(render_json_line(*parsed.value(), "[1]", defaults),
            R"({"error": "a line is a JSON object with \"messages\""})");
  EXPECT_EQ(render_json_line(*parsed.value(), "{", defaults), R"({"error": "JSON, byte 1: a key is missing"})");
}

TEST(ChatTemplate, TellsTheTimeItIsGiven) {
  EXPECT_EQ(render("{{ strftime_now('%d %b %Y, %A %H:%M:%S %j %-d') }}"), "29 Nov 2026, Sunday 12:00:00 333 29");
  EXPECT_FALSE(parse_local_time("2026-02-30").is_ok());
  EXPECT_FALSE(parse_local_time("soon").is_ok());
  EXPECT_EQ(parse_local_time("1970-01-02 00:00:01").value(), 86401);
}

TEST(ChatTemplate, IsSharedByThreads) {
  const auto parsed = ChatTemplate::create(
      "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ m.content|upper ~ ['a', "
      "'b'][loop.index0 % 2] %}{% endfor %}{{ ns.t }}");
  ASSERT_TRUE(parsed.is_ok());
  TemplateInput input;
  input.variables.emplace_back("messages", jinja::from_json(R"([{"content": "x"}, {"content": "y"}])").value());
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  for (std::string& text : texts) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) text = parsed.value()->render(input).value().text;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQ(text, "XaYb");
}

// The templates of models are other people's text and are not kept here: point QUIRE_CHAT_TEMPLATES to a folder of
// .jinja files to parse and render them. tools/goldens/compare_templates.py compares their texts with jinja2's.
TEST(ChatTemplate, ReadsTheTemplatesOfModels) {
  const char* folder = std::getenv("QUIRE_CHAT_TEMPLATES");
  if (folder == nullptr) GTEST_SKIP() << "QUIRE_CHAT_TEMPLATES names no folder of .jinja files";
  int num_templates = 0, num_texts = 0;
  TemplateInput defaults;
  for (const char* name : {"bos_token", "eos_token"}) defaults.trusted_strings.emplace_back(name, "<token>");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    ++num_templates;
    const auto parsed = ChatTemplate::create(read_file(entry.path()));
    ASSERT_TRUE(parsed.is_ok()) << entry.path() << ": " << parsed.status().message();
    const std::string line = render_json_line(
        *parsed.value(), R"({"messages": [{"role": "user", "content": "Hello there"}], "add_generation_prompt": true})",
        defaults);
    if (line.find("Hello there") != std::string::npos) ++num_texts;
  }
  EXPECT_GT(num_templates, 0);
  EXPECT_GE(num_texts * 10, num_templates * 9);  // some insist on tools or on variables of their own
}

}  // namespace
}  // namespace quire
