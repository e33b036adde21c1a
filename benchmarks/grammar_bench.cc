// Times structured output over a real vocabulary: compiling, the first mask at each step of a sample answer, and masks
// once the token sets are there. Run by hand:
//   grammar_bench TOKENIZER_JSON CASES_JSONL [MASKS_FILE | --walks]
// A case is a line {"name", "kind": schema|regex|ebnf|object, "source", "text"}; the text is the sample answer, which
// is cut into tokens. MASKS_FILE gets every mask, for comparing with other engines (tools/goldens/compare_grammar.py).
// --walks prints random answers that the masks allow, as lines {"name", "text"}, for other validators.
//   grammar_bench --compile
// times compiling sources that grow: what a request may ask of a thread that others wait for.
#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "text/grammar.h"
#include "text/grammar_matcher.h"
#include "text/grammar_vocabulary.h"
#include "text/tokenizer.h"

namespace quire {
namespace {

namespace json = boost::json;
using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

std::string read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

Result<Grammar::Ptr> compile(const std::string& kind, const std::string& source, bool is_compact) {
  JsonSchemaOptions options;
  if (is_compact) options.whitespace = JsonWhitespace::kCompact;
  if (kind == "schema") return Grammar::from_json_schema(source, options);
  if (kind == "regex") return Grammar::from_regex(source);
  if (kind == "ebnf") return Grammar::from_ebnf(source);
  if (kind == "object") return Grammar::from_any_json_object();
  return invalid_argument("unknown kind of case: " + kind);
}

struct Times {
  std::vector<double> masks, accepts;
};

// One walk along the sample. False where the sample is not of the grammar.
bool walk(const Grammar::Ptr& grammar, const GrammarVocabulary::Ptr& vocabulary, const std::vector<int32_t>& tokens,
          int32_t end_id, Times& times, std::ofstream* masks) {
  const auto matcher = GrammarMatcher::create(grammar, vocabulary, {end_id});
  std::vector<uint32_t> mask(vocabulary->num_mask_words());
  for (size_t i = 0; i <= tokens.size(); ++i) {
    Clock::time_point begin = Clock::now();
    matcher->fill_mask(mask);
    times.masks.push_back(microseconds_since(begin));
    if (masks != nullptr) {
      masks->write(reinterpret_cast<const char*>(mask.data()), static_cast<std::streamsize>(mask.size() * 4));
    }
    begin = Clock::now();
    if (i < tokens.size() && !matcher->accept(tokens[i])) return false;
    times.accepts.push_back(microseconds_since(begin));
  }
  return matcher->may_end();
}

// Tokens chosen at random under the mask; short ones and the end more often, so that answers come to one.
void print_random_answers(const std::string& name, const Grammar::Ptr& grammar,
                          const GrammarVocabulary::Ptr& vocabulary, int32_t end_id) {
  std::mt19937 random(1);
  for (int answer = 0; answer < 40; ++answer) {
    const auto matcher = GrammarMatcher::create(grammar, vocabulary, {end_id});
    std::vector<uint32_t> mask(vocabulary->num_mask_words());
    std::string text;
    for (int i = 0; i < 400 && !matcher->has_ended(); ++i) {
      matcher->fill_mask(mask);
      std::vector<int32_t> allowed, short_ones;
      for (int32_t id = 0; id < vocabulary->num_tokens(); ++id) {
        if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) continue;
        allowed.push_back(id);
        if (vocabulary->token_bytes(id).size() <= 2) short_ones.push_back(id);
      }
      const std::vector<int32_t>& choices = !short_ones.empty() && random() % 4 != 0 ? short_ones : allowed;
      int32_t token = choices.empty() ? end_id : choices[random() % choices.size()];
      if (matcher->may_end() && random() % 2 == 0) token = end_id;
      if (random() % 3 == 0) {
        for (int32_t id : allowed) {
          if (vocabulary->token_bytes(id) == "\"") token = id;
        }
      }
      if (!matcher->accept(token)) {
        std::fprintf(stderr, "%s: stuck after %s\n", name.c_str(), text.c_str());
        break;
      }
      text += vocabulary->token_bytes(token);
    }
    if (matcher->has_ended()) std::printf("%s\n", json::serialize(json::value{{"name", name}, {"text", text}}).c_str());
  }
}

std::string joined(int count, const char* separator, const std::function<std::string(int)>& part) {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i > 0 ? separator : "") + part(i);
  return text;
}

std::string object_schema(int num_properties, const std::string& value) {
  return R"({"type":"object","properties":{)" +
         joined(num_properties, ",", [&](int i) { return "\"property_" + std::to_string(i) + "\":" + value; }) + "}}";
}

int time_compiling() {
  const std::string string = R"({"type":"string"})";
  const std::string values =
      joined(10'000, ",", [](int i) { return "\"value " + std::to_string(i * 7919 % 100'000) + "\""; });
  struct Source {
    std::string name, kind, text;
  };
  std::vector<Source> sources;
  for (const int n : {10, 100, 500, 3000}) {
    sources.push_back({std::to_string(n) + " optional properties", "schema", object_schema(n, string)});
  }
  sources.push_back({"15 of 15 of 15", "schema", object_schema(15, object_schema(15, object_schema(15, string)))});
  sources.push_back({"enum of 10,000", "schema", "{\"enum\":[" + values + "]}"});
  sources.push_back({"the same, with a length", "schema", "{\"maxLength\":50,\"enum\":[" + values + "]}"});
  sources.push_back({"300 patterns", "schema", R"({"type":"object","properties":{)" + joined(300, ",", [](int i) {
                                                 const std::string number = std::to_string(i + 1);
                                                 return "\"k" + number + R"(":{"type":"string","pattern":"^[a-z]{)" +
                                                        number + R"(}$"})";
                                               }) + "}}"});
  sources.push_back({"(a?){2000}a{2000}", "regex", "(a?){2000}a{2000}"});
  sources.push_back({"5000 different options", "regex", joined(5000, "", [](int) { return "[a-z]?\\d*"; })});
  sources.push_back({"item{1,5000}", "ebnf", "root ::= item{1,5000}\nitem ::= [a-z]+ \"=\" [0-9]+ \"\\n\"\n"});
  std::printf("%-24s %9s %10s %8s %8s\n", "source", "ms", "steps", "states", "MB");
  for (const Source& source : sources) {
    const Clock::time_point begin = Clock::now();
    const auto grammar = compile(source.kind, source.text, false);
    const double ms = microseconds_since(begin) / 1000;
    if (grammar.is_ok()) {
      std::printf("%-24s %9.2f %10lld %8d %8.2f\n", source.name.c_str(), ms,
                  static_cast<long long>(grammar.value()->num_compile_steps()), grammar.value()->num_states(),
                  static_cast<double>(grammar.value()->num_bytes()) / 1e6);
    } else {
      std::printf("%-24s %9.2f refused: %.60s...\n", source.name.c_str(), ms, grammar.status().message().c_str());
    }
  }
  return 0;
}

int run(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--compile") return time_compiling();
  if (argc < 3) {
    std::fprintf(stderr, "usage: grammar_bench TOKENIZER_JSON CASES_JSONL [MASKS_FILE | --walks], or --compile\n");
    return 2;
  }
  auto tokenizer = Tokenizer::create_from_json(read_file(argv[1]), "");
  if (!tokenizer.is_ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str());
    return 1;
  }
  Clock::time_point begin = Clock::now();
  const GrammarVocabulary::Ptr vocabulary = GrammarVocabulary::create(*tokenizer.value()).value();
  const bool prints_walks = argc > 3 && std::string(argv[3]) == "--walks";
  if (!prints_walks)
    std::printf("vocabulary: %d tokens, %zu tree nodes, %.1f ms, %.1f MB\n", vocabulary->num_tokens(),
                vocabulary->num_nodes(), microseconds_since(begin) / 1000,
                static_cast<double>(vocabulary->num_bytes()) / 1e6);
  std::ofstream masks_file;
  if (argc > 3 && !prints_walks) masks_file.open(argv[3], std::ios::binary);
  // tokenizer.json alone does not always say which token ends an answer; for timing any control token will do.
  int32_t end_id = tokenizer.value()->eos_id();
  for (int32_t id = 0; end_id < 0 && id < vocabulary->num_tokens(); ++id) {
    if (tokenizer.value()->is_special(id)) end_id = id;
  }
  if (!prints_walks)
    std::printf("%-22s %9s %7s | first walk, us: %8s %8s %8s | again, us: %8s %8s %8s %8s | %7s\n", "case",
                "compile ms", "states", "median", "p99", "max", "median", "mean", "p99", "max", "MB");
  std::istringstream lines(read_file(argv[2]));
  std::vector<double> all;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const json::value fields = json::parse(line);
    const std::string name(fields.at("name").as_string()), kind(fields.at("kind").as_string());
    const std::string source(fields.at("source").as_string()), text(fields.at("text").as_string());
    begin = Clock::now();
    const auto* compact = fields.as_object().if_contains("compact");
    const auto grammar = compile(kind, source, compact != nullptr && compact->as_bool());
    const double compile_us = microseconds_since(begin);
    if (!grammar.is_ok()) {
      std::printf("%-22s refused: %s\n", name.c_str(), grammar.status().message().c_str());
      continue;
    }
    if (prints_walks) {
      print_random_answers(name, grammar.value(), vocabulary, end_id);
      continue;
    }
    const std::vector<int32_t> tokens =
        tokenizer.value()->encode(text, {.adds_bos_eos = false, .recognizes_special = false}).value();
    Times first, again;
    if (masks_file.is_open()) {
      std::string header = json::serialize(
          json::value{{"name", name}, {"tokens", json::value_from(tokens)}, {"words", vocabulary->num_mask_words()}});
      masks_file << header << "\n";
    }
    if (!walk(grammar.value(), vocabulary, tokens, end_id, first, masks_file.is_open() ? &masks_file : nullptr)) {
      std::printf("%-22s the sample is not of the grammar (after %zu of %zu tokens)\n", name.c_str(),
                  first.accepts.size(), tokens.size());
    }
    for (int i = 0; i < 20; ++i) walk(grammar.value(), vocabulary, tokens, end_id, again, nullptr);
    double sum = 0;
    for (double us : again.masks) sum += us;
    all.insert(all.end(), again.masks.begin(), again.masks.end());
    std::printf("%-22s %9.2f %7d | %23.1f %8.1f %8.1f | %20.1f %8.1f %8.1f %8.1f | %7.2f\n", name.c_str(),
                compile_us / 1000, grammar.value()->num_states(), quantile(first.masks, 0.5),
                quantile(first.masks, 0.99), quantile(first.masks, 1), quantile(again.masks, 0.5),
                sum / static_cast<double>(again.masks.size()), quantile(again.masks, 0.99), quantile(again.masks, 1),
                static_cast<double>(grammar.value()->num_bytes()) / 1e6);
  }
  if (!prints_walks)
    std::printf("all again: median %.1f us, p99 %.1f us, max %.1f us\n", quantile(all, 0.5), quantile(all, 0.99),
                quantile(all, 1));
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::run(argc, argv);
}
