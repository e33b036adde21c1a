#include "app/bench_serve_prompts.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <random>

#include "app/json_lines.h"

namespace quire::app {

namespace json = boost::json;

namespace {

// Short common words, each a token with the blank before it in nearly every vocabulary.
constexpr const char* kWords[] = {
    "the",    "of",    "and",    "to",    "in",    "is",    "was",   "for",   "on",     "that",    "by",   "this",
    "with",   "you",   "it",     "not",   "or",    "be",    "are",   "from",  "at",     "as",      "your", "all",
    "have",   "new",   "more",   "an",    "will",  "home",  "can",   "us",    "about",  "if",      "page", "my",
    "has",    "free",  "but",    "our",   "one",   "other", "do",    "no",    "time",   "they",    "he",   "up",
    "may",    "what",  "which",  "their", "out",   "use",   "any",   "there", "see",    "only",    "so",   "his",
    "when",   "here",  "who",    "also",  "now",   "help",  "get",   "view",  "first",  "am",      "been", "would",
    "how",    "were",  "me",     "some",  "these", "its",   "like",  "than",  "find",   "date",    "back", "top",
    "people", "had",   "list",   "name",  "just",  "over",  "state", "year",  "day",    "into",    "two",  "world",
    "next",   "used",  "go",     "work",  "last",  "most",  "make",  "them",  "should", "product", "city", "post",
    "add",    "such",  "please", "after", "best",  "then",  "good",  "well",  "where",  "info",    "high", "school",
    "each",   "she",   "very",   "book",  "read",  "group", "need",  "many",  "user",   "said",    "does", "set",
    "under",  "water", "full",   "map",   "life",  "know",  "way",   "part",  "great",  "real",    "item"};
constexpr size_t kNumWords = sizeof kWords / sizeof kWords[0];
constexpr uintmax_t kMaxDatasetBytes = uintmax_t{4} << 30;
constexpr int64_t kMaxOutputLen = 1 << 20;

using Random = std::mt19937_64;

int64_t draw(Random& random, int64_t first, int64_t last) {
  return first + static_cast<int64_t>(random() % static_cast<uint64_t>(last - first + 1));
}

int64_t draw_output_len(Random& random, const BenchPromptOptions& options) {
  const auto mean = static_cast<double>(options.output_len);
  const double u = static_cast<double>(random() >> 11) * 0x1p-53;
  switch (options.output_spread) {
    case LengthSpread::kFixed:
      return options.output_len;
    case LengthSpread::kUniform:
      return 1 + static_cast<int64_t>(u * (2.0 * mean - 1.0));
    case LengthSpread::kExponential:
      return std::clamp<int64_t>(std::llround(-mean * std::log1p(-u)), 1, kMaxOutputLen);
  }
  return options.output_len;
}

json::value user_message(std::string text) {
  return json::array{json::object{{"role", "user"}, {"content", std::move(text)}}};
}

std::vector<BenchPrompt> random_prompts(const BenchPromptOptions& options) {
  Random random(options.seed);
  std::vector<int64_t> ids;
  const auto append = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      ids.push_back(options.are_ids ? draw(random, options.first_id, options.last_id)
                                    : draw(random, 0, static_cast<int64_t>(kNumWords) - 1));
    }
  };
  append(options.shared_prefix_len);
  std::vector<BenchPrompt> prompts;
  for (int64_t i = 0; i < options.num_prompts; ++i) {
    ids.resize(static_cast<size_t>(options.shared_prefix_len));
    append(options.input_len);
    BenchPrompt prompt;
    if (options.are_ids) {
      prompt.json = json::serialize(json::value_from(ids));
    } else {
      std::string text;
      for (const int64_t id : ids) text.append(text.empty() ? "" : " ").append(kWords[id]);
      prompt.json = json::serialize(options.api == BenchApi::kChat ? user_message(std::move(text)) : json::value(text));
    }
    prompt.output_len = draw_output_len(random, options);
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// The text that a chat's messages come to for the completions API: their contents, a paragraph each.
std::string joined_contents(const json::array& messages) {
  std::string text;
  for (const json::value& message : messages) {
    const json::object* object = message.if_object();
    const json::value* content = object != nullptr ? object->if_contains("content") : nullptr;
    if (content == nullptr || !content->is_string()) continue;
    text.append(text.empty() ? "" : "\n\n").append(content->get_string());
  }
  return text;
}

int64_t own_output_len(const json::object& record) {
  for (const char* key : {"output_len", "max_tokens", "max_completion_tokens", "output_tokens"}) {
    const json::value* value = record.if_contains(key);
    if (value != nullptr && value->is_int64() && value->get_int64() > 0 && value->get_int64() <= kMaxOutputLen)
      return value->get_int64();
  }
  return 0;
}

// False: a record without a prompt, such as a conversation that the assistant opens.
bool to_prompt(const json::value& value, const BenchPromptOptions& options, BenchPrompt* prompt) {
  json::object record = value.is_object() ? value.get_object() : json::object();
  if (value.is_string()) record["prompt"] = value;
  // OpenAI's batch format holds the request inside.
  if (const json::value* body = record.if_contains("body"); body != nullptr && body->is_object())
    record = json::object(body->get_object());
  prompt->output_len = own_output_len(record);
  const bool is_chat = options.api == BenchApi::kChat;
  if (const json::value* messages = record.if_contains("messages"); messages != nullptr && messages->is_array()) {
    if (is_chat) {
      prompt->json = json::serialize(*messages);
      return !messages->get_array().empty();
    }
    const std::string text = joined_contents(messages->get_array());
    prompt->json = json::serialize(json::value(text));
    return !text.empty();
  }
  const json::value* text = record.if_contains("prompt");
  if (text == nullptr) text = record.if_contains("text");
  if (text == nullptr) text = record.if_contains("question");
  if (const json::value* turns = record.if_contains("conversations");
      text == nullptr && turns != nullptr && turns->is_array() && !turns->get_array().empty()) {
    const json::object* first = turns->get_array()[0].if_object();
    const json::value* from = first != nullptr ? first->if_contains("from") : nullptr;
    if (from != nullptr && from->is_string() && (from->get_string() == "human" || from->get_string() == "user"))
      text = first->if_contains("value");
  }
  if (text == nullptr) return false;
  if (text->is_string() && !text->get_string().empty()) {
    prompt->json = json::serialize(is_chat ? user_message(std::string(text->get_string())) : *text);
    return true;
  }
  if (is_chat || !text->is_array() || text->get_array().empty()) return false;
  const bool are_ids = std::all_of(text->get_array().begin(), text->get_array().end(),
                                   [](const json::value& id) { return id.is_int64() && id.get_int64() >= 0; });
  if (are_ids) prompt->json = json::serialize(*text);
  return are_ids;
}

Result<std::vector<BenchPrompt>> read_dataset(const BenchPromptOptions& options) {
  const std::string name = options.dataset.string();
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(options.dataset, error);
  if (error) return not_found("the data set " + name + " cannot be read: " + error.message());
  if (size > kMaxDatasetBytes) return resource_exhausted("the data set " + name + " is larger than 4 GiB: cut it");
  std::ifstream file(options.dataset, std::ios::binary);
  std::vector<BenchPrompt> prompts;
  int64_t num_records = 0;
  const auto add = [&](const json::value& value) {
    ++num_records;
    BenchPrompt prompt;
    if (to_prompt(value, options, &prompt)) prompts.push_back(std::move(prompt));
  };

  char first = 0;
  file >> std::ws;
  file.get(first);
  file.seekg(0);
  boost::system::error_code wrong;
  if (first == '[') {
    const json::value all = json::parse(file, wrong);
    if (wrong) return invalid_argument("the data set " + name + " is not JSON: " + wrong.message());
    for (const json::value& value : all.as_array()) add(value);
  } else {
    std::string line;
    bool is_too_long = false;
    for (int64_t number = 1; read_line(file, line, is_too_long); ++number) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const json::value value = is_too_long ? json::value() : json::parse(line, wrong);
      if (is_too_long || wrong)
        return invalid_argument("line " + std::to_string(number) + " of the data set " + name + " is not JSON");
      add(value);
    }
  }
  if (prompts.empty()) {
    return invalid_argument("none of the " + std::to_string(num_records) + " records of the data set " + name +
                            " has a prompt: expected are \"prompt\", \"messages\" or \"conversations\"" +
                            (options.api == BenchApi::kChat ? "; prompts of token ids need --api completions" : ""));
  }

  Random random(options.seed);
  for (size_t i = prompts.size() - 1; i > 0; --i) std::swap(prompts[i], prompts[random() % (i + 1)]);
  std::vector<BenchPrompt> chosen;
  for (int64_t i = 0; i < options.num_prompts; ++i) {
    BenchPrompt prompt = prompts[static_cast<size_t>(i) % prompts.size()];
    if (prompt.output_len == 0 || options.has_output_len) prompt.output_len = draw_output_len(random, options);
    chosen.push_back(std::move(prompt));
  }
  return chosen;
}

}  // namespace

Result<std::vector<BenchPrompt>> make_bench_prompts(const BenchPromptOptions& options) {
  if (!options.dataset.empty()) return read_dataset(options);
  if (options.are_ids && options.api == BenchApi::kChat)
    return invalid_argument("token ids are no chat messages: use --prompts words or --api completions");
  if (options.input_len + options.shared_prefix_len < 1)
    return invalid_argument("prompts of no length: --input-len and --shared-prefix-len are both 0");
  if (options.last_id < options.first_id) return invalid_argument("--id-range is empty: give it as FIRST,LAST");
  return random_prompts(options);
}

}  // namespace quire::app
