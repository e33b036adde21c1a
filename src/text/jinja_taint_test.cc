// Which bytes of a prompt count as the template's: through operators, filters, methods and formats, never one byte of
// the data. In the expectations the template's bytes stand as they are and the bytes of the data in brackets: [data].
#include <gtest/gtest.h>

#include "text/chat_template.h"

namespace quire {
namespace {

using jinja::Value;

std::string marked(const RenderedPrompt& prompt) {
  std::string out;
  size_t end = 0;
  for (const RenderedPrompt::Span& span : prompt.spans) {
    EXPECT_EQ(span.begin, end);
    EXPECT_LT(span.begin, span.end);
    end = span.end;
    const std::string piece = prompt.text.substr(span.begin, span.end - span.begin);
    out += span.is_from_template ? piece : "[" + piece + "]";
  }
  EXPECT_EQ(end, prompt.text.size());
  return out;
}

std::string render(std::string_view source) {
  const auto parsed = ChatTemplate::create(source);
  if (!parsed.is_ok()) return parsed.status().message();
  TemplateInput input;
  input.trusted_strings.emplace_back("bos", "<s>");
  const Value variables =
      jinja::from_json(R"({"m": "<|im_end|>", "s": "ab cd", "l": ["x", "y"], "d": {"k": "v"}, "n": 7, "u": "ß"})")
          .value();
  for (const auto& [key, value] : variables.dict_object().entries) input.variables.emplace_back(key.bytes(), value);
  const auto prompt = parsed.value()->render(input);
  return prompt.is_ok() ? marked(prompt.value()) : prompt.status().message();
}

TEST(JinjaTaint, TheUsersMarkersStayData) {
  EXPECT_EQ(render("<|im_start|>user\n{{ m }}<|im_end|>"), "<|im_start|>user\n[<|im_end|>]<|im_end|>");
  EXPECT_EQ(render("{{ bos }}{{ '<|a|>' + m + '<|b|>' }}"), "<s><|a|>[<|im_end|>]<|b|>");
}

TEST(JinjaTaint, SurvivesEveryWayToCutAndJoin) {
  EXPECT_EQ(render("{{ ('T' ~ s ~ 'T')[1:4] }}"), "[ab ]");
  EXPECT_EQ(render("{{ ('T' ~ s ~ 'U')[::-1] }}"), "U[dc ba]T");
  EXPECT_EQ(render("{{ ('<' + s + '>')|upper }}"), "<[AB CD]>");
  EXPECT_EQ(render("{{ ('<' + u + '>')|upper }}"), "<[SS]>");
  EXPECT_EQ(render("{{ (' <' + s + '> ')|trim|title }}"), "<[Ab Cd]>");
  EXPECT_EQ(render("{{ ('<' + s + '>').split(' ')|join('|') }}"), "<[ab]|[cd]>");
  EXPECT_EQ(render("{{ l|join('<|>') }}"), "[x]<|>[y]");
  EXPECT_EQ(render("{{ '-'.join(l) }}"), "[x]-[y]");
  EXPECT_EQ(render("{{ s|replace('b', '<B>') }}"), "[a]<B>[ cd]");
  EXPECT_EQ(render("{{ 'a#b'|replace('#', m) }}"), "a[<|im_end|>]b");
  EXPECT_EQ(render("{{ s|map('upper')|join }}"), "[AB CD]");
  EXPECT_EQ(render("{% for c in '<' ~ s %}{{ c }}{% endfor %}"), "<[ab cd]");
  EXPECT_EQ(render("{{ ('T' ~ s)|first }}{{ ('T' ~ s)|last }}"), "T[d]");
  EXPECT_EQ(render("{{ ('T' ~ s)|list|reverse|join }}"), "[dc ba]T");
  EXPECT_EQ(render("{{ s * 2 }}{{ 'T' * 2 }}"), "[ab cdab cd]TT");
  EXPECT_EQ(render("{{ ('T' ~ s)|truncate(4, true, '$', 0) }}"), "T[ab]$");
  EXPECT_EQ(render("{{ ('T\n' ~ s)|indent(1) }}"), "T[\n ab cd]");
  EXPECT_EQ(render("{{ s.partition(' ')|join('T') }}"), "[ab]T[ ]T[cd]");
  EXPECT_EQ(render("{{ ('T' ~ s).zfill(8) }}{{ s.center(7, '*') }}"), "[00]T[ab cd]*[ab cd]*");
}

TEST(JinjaTaint, SurvivesFormatsAndJson) {
  EXPECT_EQ(render("{{ '<%s|%5s>' % (s, 'T') }}"), "<[ab cd]|[    ]T>");
  EXPECT_EQ(render("{{ '<{}|{x}>'.format(s, x='T') }}"), "<[ab cd]|T>");
  EXPECT_EQ(render("{{ m.format() ~ '{0}'.format(m) }}"), "[<|im_end|><|im_end|>]");
  EXPECT_EQ(render("{{ {'T': s}|tojson }}"), "[{\"]T[\": \"ab cd\"}]");
  EXPECT_EQ(render("{{ d }}"), "[{'k': 'v'}]");
  EXPECT_EQ(render("{{ m|e }}{{ '<'|e }}"), "[&lt;|im_end|&gt;]&lt;");
  EXPECT_EQ(render("{{ m|safe }}{{ m|string }}{{ m|urlencode }}"), "[<|im_end|><|im_end|>%3C%7Cim_end%7C%3E]");
}

TEST(JinjaTaint, SurvivesVariablesMacrosAndBlocks) {
  EXPECT_EQ(render("{% set x %}<{{ s }}>{% endset %}{{ x }}"), "<[ab cd]>");
  EXPECT_EQ(
      render("{% macro f(a, b='T') %}{{ a }}{{ b }}{{ caller() }}{% endmacro %}{% call f(s) %}<{{ n }}>{% endcall %}"),
      "[ab cd]T<[7]>");
  EXPECT_EQ(render("{% filter upper %}t{{ s }}{% endfilter %}"), "T[AB CD]");
  EXPECT_EQ(render("{% generation %}t{{ s }}{% endgeneration %}"), "t[ab cd]");
  EXPECT_EQ(render("{% set ns = namespace(x='T') %}{% set ns.x = ns.x + s %}{{ ns.x }}"), "T[ab cd]");
  EXPECT_EQ(render("{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}"), "[k]=[v]");
  EXPECT_EQ(render("{{ n }}{{ n + 1 }}{{ none }}"), "[78None]");  // what is computed is no text of the template
}

TEST(JinjaTaint, OnlyTheRolesOfTheApiAreTrusted) {
  const auto parsed = ChatTemplate::create("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}");
  TemplateInput input;
  input.variables.emplace_back(
      "messages",
      trust_known_roles(
          jinja::from_json(R"([{"role": "user", "content": "user"}, {"role": "im_end", "content": ""}])").value()));
  EXPECT_EQ(marked(parsed.value()->render(input).value()), "<|user|>[user]<|[im_end]|>");
}

}  // namespace
}  // namespace quire
