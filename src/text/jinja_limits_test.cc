// Hostile templates and inputs end in an error, soon and without a crash.
#include <gtest/gtest.h>

#include "text/chat_template.h"

namespace quire {
namespace {

TemplateLimits small_limits() {
  TemplateLimits limits;
  limits.max_steps = 100'000;
  limits.max_memory_bytes = 8 << 20;
  limits.max_output_bytes = 1 << 20;
  return limits;
}

Status render(const std::string& source, const TemplateLimits& limits = small_limits(), TemplateInput input = {}) {
  const auto parsed = ChatTemplate::create(source, limits);
  if (!parsed.is_ok()) return parsed.status();
  return parsed.value()->render(input).status();
}

std::string repeated(const std::string& piece, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += piece;
  return out;
}

constexpr auto kExhausted = StatusCode::kResourceExhausted;

TEST(JinjaLimits, LoopsEnd) {
  EXPECT_EQ(render("{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}").code(), kExhausted);
  EXPECT_FALSE(render("{{ range(1000000000)|length }}").is_ok());
  EXPECT_FALSE(render("{{ range(-9223372036854775807, 9223372036854775807, 9) }}").is_ok());
  EXPECT_TRUE(render("{{ range(100000)|length }}").is_ok());
  EXPECT_EQ(render("{{ range(100000)|list|sort|length }}").code(), kExhausted);
}

TEST(JinjaLimits, RecursionEnds) {
  EXPECT_EQ(render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").code(), kExhausted);
  EXPECT_EQ(render("{% macro f(n) %}{% if n %}{{ f(n - 1) ~ '' }}{% endif %}{% endmacro %}{{ f(100000) }}").code(),
            kExhausted);
  EXPECT_EQ(render("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}").code(), kExhausted);
  TemplateLimits deep = small_limits();
  deep.max_depth = 1'000;
  EXPECT_EQ(render("{% macro f(x) %}{{ [[[[[[[[f(x)]]]]]]]] }}{% endmacro %}{{ f(1) }}", deep).code(), kExhausted);
}

TEST(JinjaLimits, TextsStayInBounds) {
  EXPECT_EQ(render("{{ 'a' * 1000000000 }}").code(), kExhausted);
  EXPECT_EQ(render("{{ 'ab' * 9223372036854775807 }}").code(), kExhausted);
  EXPECT_EQ(
      render("{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}").code(),
      kExhausted);
  EXPECT_EQ(render("{{ 'x'|center(1000000000) }}").code(), kExhausted);
  EXPECT_EQ(render("{{ '%1000000000d' % 1 }}").code(), kExhausted);
  EXPECT_EQ(render("{{ '{:1000000000}'.format(1) }}").code(), kExhausted);
  EXPECT_EQ(render("{{ '{:>99999999999999999999}'.format(1) }}").code(), kExhausted);
  EXPECT_FALSE(render("{{ '%.1000000000f' % 1 }}").is_ok());
  EXPECT_EQ(render("{{ 'x'|indent(1000000000) }}").code(), kExhausted);
  EXPECT_EQ(render("{{ ('a' * 1000).replace('', 'b' * 10000) }}").code(), kExhausted);
  EXPECT_EQ(render("{{ (['a' * 10000] * 1000)|join }}").code(), kExhausted);
  EXPECT_EQ(render("{{ (['a' * 10000] * 1000) }}").code(), kExhausted);
  EXPECT_EQ(render("{{ (['a' * 10000] * 1000)|tojson }}").code(), kExhausted);
  EXPECT_EQ(render("{% for i in range(1000) %}{{ 'a' * 10000 }}{% endfor %}").code(), kExhausted);
  EXPECT_EQ(render("{{ 'x'.ljust(9223372036854775807) }}").code(), kExhausted);
  EXPECT_FALSE(render("{{ 'a\tb'.expandtabs(1000000000) }}").is_ok());
}

TEST(JinjaLimits, LongConversationsFit) {
  // The work of a rendering grows with the text that it makes, not with every look at its size.
  std::vector<jinja::Value> messages;
  for (int i = 0; i < 20'000; ++i) {
    messages.push_back(jinja::Value::dict(
        {{"role", jinja::Value::string("user")}, {"content", jinja::Value::string(std::string(200, 'x'))}}));
  }
  TemplateInput input;
  input.variables.emplace_back("messages", jinja::Value::list(std::move(messages)));
  const Status status =
      render("{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content']|trim }}<|end|>\n{% endfor %}",
             TemplateLimits{}, input);
  EXPECT_TRUE(status.is_ok()) << status.message();
}

TEST(JinjaLimits, MemoryStaysInBounds) {
  EXPECT_EQ(render("{{ ([0] * 100000000)|length }}").code(), kExhausted);
  EXPECT_EQ(
      render(
          "{% set ns = namespace(l=[]) %}{% for i in range(100) %}{% set ns.l = ns.l + ['a' * 500000] %}{% endfor %}")
          .code(),
      kExhausted);
  EXPECT_EQ(
      render("{% set ns = namespace(l=[0]) %}{% for i in range(64) %}{% set ns.l = ns.l + ns.l %}{% endfor %}").code(),
      kExhausted);
  // What is dropped is given back: the same text made anew thirty times is fine.
  EXPECT_TRUE(render("{% for i in range(30) %}{% set x = 'a' * 500000 %}{% endfor %}").is_ok());
}

TEST(JinjaLimits, NestedValuesStayShallow) {
  EXPECT_EQ(
      render("{% set ns = namespace(x=[]) %}{% for i in range(10000) %}{% set ns.x = [ns.x] %}{% endfor %}").code(),
      kExhausted);
  EXPECT_EQ(render("{% set ns = namespace(x={}) %}{% for i in range(10000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}")
                .code(),
            kExhausted);
  EXPECT_EQ(render("{% set ns = namespace(x=1) %}{% for i in range(10000) %}{% set ns.x = cycler(ns.x) %}{% endfor %}")
                .code(),
            kExhausted);
  EXPECT_TRUE(render("{% set ns = namespace() %}{% set ns.x = ns %}{% set ns.y = [ns, ns] %}").is_ok());
  EXPECT_FALSE(render("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}").is_ok());
  // Chains of namespaces and of macros are as long as one likes; they are taken apart without recursion.
  EXPECT_TRUE(render("{% set ns = namespace(x=1) %}{% for i in range(5000) %}{% set n = namespace(x=ns.x) %}{% set "
                     "ns.x = n %}{% endfor %}")
                  .is_ok());
  EXPECT_TRUE(render("{% set ns = namespace(x=1) %}{% macro m(f) %}{% macro g() %}{{ f }}{% endmacro %}{% set ns.x = g "
                     "%}{% endmacro %}"
                     "{% for i in range(2000) %}{{ m(ns.x) }}{% endfor %}")
                  .is_ok());
  EXPECT_TRUE(render("{% set ns = namespace(l=1) %}{% for i in range(2000) %}{% for x in [ns.l] %}{% set ns.l = loop "
                     "%}{% set c = loop.changed(loop) %}"
                     "{% endfor %}{% endfor %}")
                  .is_ok());
}

TEST(JinjaLimits, SourcesNestInBounds) {
  EXPECT_FALSE(render("{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}").is_ok());
  EXPECT_FALSE(render("{{ " + repeated("[", 100000) + repeated("]", 100000) + " }}").is_ok());
  EXPECT_FALSE(render("{{ " + repeated("-", 100000) + "1 }}").is_ok());
  EXPECT_FALSE(render("{{ " + repeated("not ", 100000) + "1 }}").is_ok());
  EXPECT_FALSE(render("{{ 1" + repeated(" + 1", 100000) + " }}").is_ok());
  EXPECT_FALSE(render("{{ x" + repeated(".a", 100000) + " }}").is_ok());
  EXPECT_FALSE(render("{{ x" + repeated("|upper", 100000) + " }}").is_ok());
  EXPECT_FALSE(render("{{ 1" + repeated(" if 1 else 1", 50000) + " }}").is_ok());
  EXPECT_FALSE(render(repeated("{% if 1 %}", 50000)).is_ok());
  EXPECT_FALSE(render(repeated("{% for x in y %}", 50000)).is_ok());
  EXPECT_EQ(render(std::string(2 << 20, 'a')).code(), kExhausted);
  EXPECT_TRUE(render("{{ 1" + repeated(" + 1", 100) + " }}").is_ok());
  EXPECT_TRUE(render("{% if 0 %}" + repeated("{% elif 0 %}", 10000) + "{% endif %}").is_ok());
}

TEST(JinjaLimits, ManyNamesAndBranchesDoNotTakeForever) {
  std::string source;
  for (int i = 0; i < 5000; ++i) {
    const std::string name = "v" + std::to_string(i);
    source += "{% set " + name + " = 1 %}{% if x %}{% set " + name + " = 2 %}{% endif %}";
  }
  EXPECT_EQ(render(source).code(), kExhausted);
}

TEST(JinjaLimits, InputsAreBounded) {
  EXPECT_FALSE(jinja::from_json(repeated("[", 100000)).is_ok());
  EXPECT_FALSE(jinja::from_json(repeated("{\"a\":", 100000)).is_ok());
  jinja::Value deep = jinja::Value::none();
  for (int i = 0; i < 150; ++i) deep = jinja::Value::list({deep});
  TemplateInput input;
  input.variables.emplace_back("x", deep);
  EXPECT_EQ(render("{{ x }}", small_limits(), input).code(), kExhausted);
}

TEST(JinjaLimits, IntegersDoNotWrap) {
  EXPECT_FALSE(render("{{ 9223372036854775807 + 1 }}").is_ok());
  EXPECT_FALSE(render("{{ -9223372036854775807 - 2 }}").is_ok());
  EXPECT_FALSE(render("{{ 2 ** 64 }}").is_ok());
  EXPECT_FALSE(render("{{ (-9223372036854775807 - 1) // -1 }}").is_ok());
  EXPECT_TRUE(render("{{ (-9223372036854775807 - 1) % -1 }}").is_ok());
  EXPECT_FALSE(render("{{ -(-9223372036854775807 - 1) }}").is_ok());
  EXPECT_TRUE(render("{{ 'abc'[9223372036854775807:-9223372036854775807:-9223372036854775807] }}").is_ok());
  EXPECT_TRUE(render("{{ [1, 2, 3][-9223372036854775807:9223372036854775807:9223372036854775807] }}").is_ok());
  EXPECT_FALSE(render("{{ 1 // 0 }}").is_ok());
  EXPECT_FALSE(render("{{ 1 % 0 }}").is_ok());
}

}  // namespace
}  // namespace quire
