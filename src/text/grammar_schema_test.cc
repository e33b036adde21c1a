#include "text/grammar_test_helpers.h"

namespace quire {
namespace {

struct SchemaCase {
  std::string schema;
  std::vector<std::string> yes, no;
};

class GrammarSchemaTest : public ::testing::TestWithParam<SchemaCase> {};

TEST_P(GrammarSchemaTest, AcceptsExactlyItsTexts) {
  const auto grammar = Grammar::from_json_schema(GetParam().schema);
  ASSERT_TRUE(grammar.is_ok()) << GetParam().schema << ": " << grammar.status().message();
  for (const std::string& text : GetParam().yes) EXPECT_TRUE(accepts(grammar.value(), text)) << text;
  for (const std::string& text : GetParam().no) EXPECT_FALSE(accepts(grammar.value(), text)) << text;
}

const SchemaCase kCases[] = {
    // Types.
    {"true", {"1", "null", "{\"a\":[]}", "\"x\""}, {"", "x"}},
    {"{}", {"1", "[true, false]"}, {"[,]"}},
    {R"({"type":"null"})", {"null"}, {"0", "nul"}},
    {R"({"type":"boolean"})", {"true", "false"}, {"True", "1"}},
    {R"({"type":"integer"})", {"0", "-12", "345"}, {"01", "1.0", "1e3", "+1", ""}},
    {R"({"type":"number"})", {"0", "-1.50", "2e10", "0.1E-5"}, {".5", "1.", "01", "NaN", "--1"}},
    {R"({"type":"string"})",
     {"\"\"", "\"a\\n\\u00e9\\\"\"", "\"\xC3\xA9\"", "\"\\ud83d\\ude00\"", "\"\\/\""},
     {"\"", "\"\n\"", "\"\\x\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\xC3\"", "\"\t\""}},
    {R"({"type":["string","null"]})", {"null", "\"a\""}, {"1"}},
    {R"({"type":"string","nullable":true})", {"null", "\"a\""}, {"1"}},
    // Strings.
    {R"({"type":"string","minLength":2,"maxLength":3})",
     {"\"ab\"", "\"abc\"", "\"\xC3\xA9\\n\"", "\"\\u0041\\ud83d\\ude00\""},
     {"\"a\"", "\"abcd\""}},
    {R"({"type":"string","pattern":"^[a-z]+$"})", {"\"abc\""}, {"\"\"", "\"aB\"", "\"\\u0061\""}},
    {R"({"type":"string","pattern":"b"})", {"\"b\"", "\"abc\"", "\"\\\"b\xC3\xA9\""}, {"\"ac\"", "\"\""}},
    {R"({"type":"string","pattern":"^a|z$"})", {"\"a\"", "\"abc\"", "\"xyz\""}, {"\"ba\"", "\"zb\""}},
    {R"({"type":"string","pattern":"^\"\\\\\\n$"})", {R"("\"\\\n")"}, {"\"\"\""}},
    {R"({"type":"string","pattern":"^(ab)*$","minLength":3,"maxLength":6})",
     {"\"abab\"", "\"ababab\""},
     {"\"ab\"", "\"abababab\"", "\"\""}},
    {R"({"allOf":[{"pattern":"^a"},{"pattern":"z$"}],"type":"string"})", {"\"az\"", "\"abz\""}, {"\"a\"", "\"z\""}},
    {R"({"type":"string","format":"date"})",
     {"\"2024-02-29\"", "\"2023-12-31\"", "\"2000-02-29\""},
     {"\"2023-02-29\"", "\"2024-04-31\"", "\"1900-02-29\"", "\"24-01-01\"", "\"2024-13-01\""}},
    {R"({"type":"string","format":"date-time"})",
     {"\"2024-01-31T23:59:59Z\"", "\"2024-01-31T00:00:00.123+02:00\""},
     {"\"2024-01-31 00:00:00Z\"", "\"2024-01-31T24:00:00Z\"", "\"2024-01-31T00:00:00\""}},
    {R"({"type":"string","format":"uuid"})",
     {"\"123e4567-e89b-12d3-a456-426614174000\""},
     {"\"123e4567e89b12d3a456426614174000\""}},
    {R"({"type":"string","format":"ipv4"})", {"\"192.168.0.255\""}, {"\"256.1.1.1\"", "\"1.2.3\"", "\"01.2.3.4\""}},
    {R"({"type":"string","format":"ipv6"})",
     {"\"::\"", "\"::1\"", "\"1:2:3:4:5:6:7:8\"", "\"fe80::1:2\"", "\"::ffff:1.2.3.4\"", "\"1::8\"",
      "\"1:2:3:4:5:6:7::\"", "\"1:2:3:4:5:6::8\""},
     {"\":\"", "\"1:2:3:4:5:6:7\"", "\"1::2::3\"", "\"12345::\"", "\"1:2:3:4:5:6:7:8:9\""}},
    {R"({"type":"string","format":"email"})", {"\"a.b+c@example.co\""}, {"\"a@\"", "\"@b\"", "\"a b@c\""}},
    {R"({"type":"string","format":"hostname"})", {"\"a-b.example\""}, {"\"-a\"", "\"a..b\""}},
    {R"({"type":"string","format":"uri"})",
     {"\"https://user@example.com:80/a/b?q=1#f\"", "\"mailto:a@b.c\"", "\"urn:isbn:1\""},
     {"\"example.com\"", "\"http://a b\""}},
    {R"({"type":"string","format":"duration"})",
     {"\"P1Y2M3DT4H5M6S\"", "\"PT1H\"", "\"P2W\""},
     {"\"P\"", "\"PT\"", "\"1D\""}},
    // Numbers.
    {R"({"type":"integer","minimum":-5,"maximum":120})",
     {"-5", "-1", "0", "7", "99", "120"},
     {"-6", "121", "130", "1000", "-0", "00"}},
    {R"({"type":"integer","exclusiveMinimum":10})", {"11", "20", "100"}, {"10", "9", "-11"}},
    {R"({"type":"integer","maximum":-10})", {"-10", "-11", "-100"}, {"-9", "0", "10"}},
    {R"({"type":"integer","minimum":0.5,"maximum":2.5})", {"1", "2"}, {"0", "3"}},
    {R"({"type":"number","minimum":0,"maximum":1})", {"0", "0.0", "0.999", "1", "1.000"}, {"1.01", "-0.1", "2", "1e0"}},
    {R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1})",
     {"0.1", "0.001", "0.99"},
     {"0", "0.0", "1", "1.0"}},
    {R"({"type":"number","minimum":-2.25,"maximum":-1.5})",
     {"-2.25", "-2", "-1.5", "-1.50", "-1.75"},
     {"-2.26", "-1.49", "-1", "2"}},
    {R"({"minimum":5,"exclusiveMinimum":true,"type":"integer"})", {"6"}, {"5"}},
    {R"({"type":"integer","multipleOf":7,"minimum":1,"maximum":30})", {"7", "14", "21", "28"}, {"0", "8", "35"}},
    {R"({"type":"number","multipleOf":0.25})", {"0", "1", "0.25", "-12.5", "3.75"}, {"0.2", "0.125", "1.3"}},
    {R"({"type":"integer","multipleOf":0.5})", {"3"}, {"3.5"}},
    // Constants.
    {R"({"enum":["a",1,null,{"x":[1,true]}]})",
     {"\"a\"", "1", "null", "{\"x\":[1,true]}", "{ \"x\": [1, true] }"},
     {"2"}},
    {R"({"const":"a\"\\\n\u00e9"})", {"\"a\\\"\\\\\\n\xC3\xA9\""}, {"\"a\""}},
    {R"({"enum":["a","bb",3],"type":"string","maxLength":1})", {"\"a\""}, {"\"bb\"", "3"}},
    {R"({"enum":[1,5,9],"minimum":3,"type":"integer"})", {"5", "9"}, {"1"}},
    {R"({"enum":[{"a":1},{"a":"x"}],"properties":{"a":{"type":"string"}}})", {"{\"a\":\"x\"}"}, {"{\"a\":1}"}},
    {R"({"allOf":[{"enum":[1,2,3]},{"enum":[2,3,4]}]})", {"2", "3"}, {"1", "4"}},
    // Objects.
    {R"({"type":"object"})", {"{}", "{\"a\":1}", "{ \"a\": {\"b\": []}, \"c\": 2 }"}, {"{a:1}", "{\"a\"}", "[]"}},
    {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{"type":"null"}},"required":["b"]})",
     {"{\"b\":\"\"}", "{\"a\":1,\"b\":\"x\"}", "{\"a\": 1, \"b\": \"x\", \"c\": null}", "{\"b\":\"\",\"c\":null}"},
     {"{}", "{\"a\":1}", "{\"b\":\"\",\"a\":1}", "{\"b\":1}", "{,\"b\":\"\"}", "{\"b\":\"\",}",
      "{\"b\":\"\",\"d\":1}"}},
    {R"({"properties":{"a":{},"b":{}}})",
     {"{}", "{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"b\":2}"},
     {"{\"b\":1,\"a\":2}", "1"}},
    {R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})",
     {"{}", "{\"a\":1}", "{\"a\":1,\"b\":true}", "{\"ab\":true,\"\":false}"},
     {"{\"a\":true}", "{\"b\":1}", "{\"\\u0061\":true}"}},
    {R"({"type":"object","additionalProperties":false})", {"{}", "{ }"}, {"{\"a\":1}"}},
    {R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":2})",
     {"{\"a\":1}", "{\"a\":1, \"b\":2}"},
     {"{}", "{\"a\":1,\"b\":2,\"c\":3}"}},
    {R"({"type":"object","properties":{"a":{"const":1},"b":{"const":2},"c":{"const":3}},"minProperties":2,"maxProperties":2})",
     {"{\"a\":1,\"b\":2}", "{\"a\":1,\"c\":3}", "{\"b\":2,\"c\":3}"},
     {"{}", "{\"a\":1}", "{\"a\":1,\"b\":2,\"c\":3}"}},
    {R"({"type":"object","patternProperties":{"^s_":{"type":"string"},"_n$":{"type":"number"}},"additionalProperties":false})",
     {"{}", "{\"s_a\":\"x\"}", "{\"a_n\":1}", "{\"a_n\":1,\"s_b\":\"\"}"},
     {"{\"s_a\":1}", "{\"b\":1}", "{\"s_n\":1}", "{\"s__n\":\"\"}"}},
    {R"({"type":"object","propertyNames":{"pattern":"^[a-z]+$"},"additionalProperties":{"type":"integer"}})",
     {"{\"abc\":1}"},
     {"{\"A\":1}"}},
    {R"({"type":"object","required":["x"],"additionalProperties":{"type":"integer"}})",
     {"{\"x\":1}", "{\"x\":1,\"y\":2}"},
     {"{}"}},
    // Arrays.
    {R"({"type":"array"})", {"[]", "[1, \"a\", []]", "[ 1 ]"}, {"[1,]", "{}"}},
    {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
     {"[1]", "[1,2,3]", "[1, 2]"},
     {"[]", "[1,2,3,4]", "[\"a\"]"}},
    {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false})",
     {"[]", "[1]", "[1,\"a\"]"},
     {"[\"a\"]", "[1,\"a\",2]"}},
    {R"({"type":"array","prefixItems":[{"const":1},{"const":2}],"items":{"const":3},"minItems":2})",
     {"[1,2]", "[1,2,3,3]"},
     {"[1]", "[]", "[1,2,1]"}},
    {R"({"type":"array","items":[{"const":1}],"additionalItems":{"const":2}})", {"[]", "[1]", "[1,2,2]"}, {"[2]"}},
    {R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}},
    // Joins.
    {R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]})", {"1", "\"a\""}, {"\"ab\"", "null"}},
    {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"anyOf":[{"required":["a"]},{"required":["b"]}]})",
     {"{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"b\":2}"},
     {"{}"}},
    {R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"v":{"type":"integer"}},"required":["k"]},
                  {"type":"object","properties":{"k":{"const":"b"},"v":{"type":"string"}},"required":["k"]}]})",
     {"{\"k\":\"a\",\"v\":1}", "{\"k\":\"b\",\"v\":\"\"}"},
     {"{\"k\":\"a\",\"v\":\"\"}", "{\"k\":\"c\"}"}},
    {R"({"allOf":[{"type":"object","properties":{"a":{"type":"number"}},"required":["a"]},
                  {"properties":{"b":{"type":"string"},"a":{"minimum":3,"type":"integer"}}}]})",
     {"{\"a\":3}", "{\"a\":4,\"b\":\"\"}"},
     {"{\"a\":2}", "{\"a\":3.5}", "{\"b\":\"\"}"}},
    {R"({"allOf":[{"minimum":3},{"maximum":5}],"type":"integer"})", {"3", "5"}, {"2", "6"}},
    {R"({"anyOf":[{"type":"integer"},false]})", {"1"}, {"\"\""}},
    // References.
    {R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},
         "next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"]}}})",
     {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"},
     {"{\"v\":1}", "{\"v\":1,\"next\":{}}"}},
    {R"({"type":"array","items":{"$ref":"#"}})", {"[]", "[[],[[]]]"}, {"[1]"}},
    {R"({"properties":{"a/b":{"type":"integer"},"c":{"$ref":"#/properties/a~1b"}},"required":["c"]})",
     {"{\"c\":1}"},
     {"{\"c\":\"\"}"}},
    {R"({"$ref":"#item","$defs":{"x":{"$anchor":"item","type":"integer"}}})", {"5"}, {"\"5\""}},
    {R"({"$ref":"#/definitions/a","definitions":{"a":{"$ref":"#/definitions/b"},"b":{"type":"null"}}})",
     {"null"},
     {"1"}},
    {R"({"$ref":"#"})", {"1"}, {"x"}},
};

INSTANTIATE_TEST_SUITE_P(All, GrammarSchemaTest, ::testing::ValuesIn(kCases));

TEST(GrammarSchemaOptionsTest, CompactWritesNoSpace) {
  const JsonSchemaOptions options{.whitespace = JsonWhitespace::kCompact};
  const auto grammar =
      Grammar::from_json_schema(R"({"properties":{"a":{"type":"array"}},"required":["a"]})", options).value();
  EXPECT_TRUE(accepts(grammar, "{\"a\":[1,2]}"));
  EXPECT_FALSE(accepts_prefix(grammar, "{ "));
  EXPECT_FALSE(accepts_prefix(grammar, "{\"a\": "));
  EXPECT_FALSE(accepts_prefix(grammar, "{\"a\":[1, "));
}

TEST(GrammarSchemaOptionsTest, SpaceIsBounded) {
  const auto grammar = Grammar::from_json_schema(R"({"type":"array"})").value();
  EXPECT_TRUE(accepts(grammar, "[\n" + std::string(40, ' ') + "1]"));
  EXPECT_FALSE(accepts_prefix(grammar, "[\n" + std::string(41, ' ')));
  EXPECT_FALSE(accepts_prefix(grammar, "[  "));
  EXPECT_FALSE(accepts_prefix(grammar, "[\n\n"));
}

TEST(GrammarSchemaOptionsTest, UnlistedPropertiesOnRequest) {
  const JsonSchemaOptions options{.writes_unlisted_properties = true};
  const auto grammar = Grammar::from_json_schema(R"({"properties":{"a":{"type":"integer"}}})", options).value();
  EXPECT_TRUE(accepts(grammar, "{\"a\":1,\"b\":2}"));
  EXPECT_FALSE(accepts(grammar, "{\"a\":\"\"}"));
}

TEST(GrammarSchemaOptionsTest, LenientIgnoresWhatItCannotHonour) {
  const std::string schema =
      R"({"type":"array","uniqueItems":true,"items":{"type":"string","format":"colour","not":{"const":"x"}}})";
  EXPECT_FALSE(Grammar::from_json_schema(schema).is_ok());
  const auto grammar = Grammar::from_json_schema(schema, {.is_lenient = true});
  ASSERT_TRUE(grammar.is_ok()) << grammar.status().message();
  EXPECT_TRUE(accepts(grammar.value(), "[\"a\",\"a\"]"));
}

// F084, F086.
TEST(GrammarSchemaErrorTest, SaysWhatIsWrong) {
  std::string deep;
  for (int i = 0; i < 10'000; ++i) deep += R"({"type":"array","items":)";
  deep += "true" + std::string(10'000, '}');
  const std::pair<std::string, std::string> cases[] = {
      {"{", "not valid JSON"},
      {"5", "must be a JSON object"},
      {"\xFF", "UTF-8"},
      {R"({"type":"something"})", "\"something\""},
      {R"({"type":5})", "\"type\" is 5"},
      {R"({"type":"array","uniqueItems":true})", "uniqueItems"},
      {R"({"not":{"type":"string"}})", "\"not\""},
      {R"({"type":"string","format":"colour"})", "\"colour\""},
      {R"({"type":"string","pattern":"foo**"})", "repetition of a repetition"},
      {R"({"type":"string","pattern":"(?=a)b"})", "lookaround"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "oneOf"},
      {R"({"$ref":"#/$defs/none"})", "leads nowhere"},
      {R"({"$ref":"http://example.com/x"})", "does not lead into this schema"},
      {R"({"type":"object","properties":{"a":{"if":{}, "contains":{"type":"null"}}}})", "\"contains\""},
      {R"({"minLength":-1,"type":"string"})", "whole number"},
      {R"({"maxLength":1000000000,"type":"string"})", "maxLength"},
      {R"({"type":"integer","minimum":5,"maximum":4})", "no text at all"},
      {R"({"allOf":[{"type":"integer"},{"type":"string"}]})", "no text at all"},
      {R"({"type":"object","properties":{"a":false},"required":["a"]})", "no text at all"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"array","items":{"$ref":"#/$defs/a"},"minItems":1}}})",
       "no text at all"},
      {R"({"type":"number","multipleOf":0})", "greater than zero"},
      {R"({"type":"number","multipleOf":0.000123457})", "multipleOf"},
      {deep, "too deep"},
      {R"({"type":"string","pattern":")" + std::string(50'000, '(') + "\"}", "too deep"},
  };
  for (const auto& [schema, message] : cases) {
    const auto grammar = Grammar::from_json_schema(schema);
    ASSERT_FALSE(grammar.is_ok()) << schema.substr(0, 200);
    EXPECT_NE(grammar.status().message().find(message), std::string::npos)
        << schema.substr(0, 200) << ": " << grammar.status().message();
  }
}

}  // namespace
}  // namespace quire
