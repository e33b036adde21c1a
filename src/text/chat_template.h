// ChatTemplate: a model's Jinja chat template, parsed once, that turns a conversation into the prompt. It renders as
// Python's jinja2 does under the settings of Hugging Face transformers, within limits; it is not a general template
// engine (no include, import, extends, block) and it does not choose among a model's templates. Called by the server's
// text pool and the commands; create and render are pure, and render is safe from any number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/jinja_json.h"
#include "text/jinja_value.h"

namespace quire {

struct TemplateLimits {
  size_t max_source_bytes = size_t{1} << 20;
  int64_t max_steps = 10'000'000;  // about two seconds at the worst
  int max_depth = 1000;            // of the interpreter; keeps its stack under 2 MiB
  size_t max_memory_bytes = size_t{512} << 20;
  size_t max_output_bytes = size_t{64} << 20;
  int64_t max_range_items = 100'000;  // jinja2's own limit
};

struct TemplateInput {
  // The variables by name: messages, tools, documents, add_generation_prompt, enable_thinking and so on. A name that is
  // not given is undefined; transformers always gives tools and documents (none where there are none).
  std::vector<std::pair<std::string, jinja::Value>> variables;
  // bos_token, eos_token and other texts of the model's own: their bytes count as the template's.
  std::vector<std::pair<std::string, std::string>> trusted_strings;
  // What strftime_now tells: seconds since 1970 of the local wall clock.
  int64_t now_seconds = 0;
};

struct RenderedPrompt {
  // Bytes [begin, end) of the text. Only those from the template may become special tokens.
  struct Span {
    size_t begin, end;
    bool is_from_template;
  };
  std::string text;
  std::vector<Span> spans;  // cover the text, in order, neighbours differ
};

class ChatTemplate {
 public:
  static Result<std::unique_ptr<ChatTemplate>> create(std::string_view source, const TemplateLimits& limits = {});
  ~ChatTemplate();

  Result<RenderedPrompt> render(const TemplateInput& input) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The roles that every API has ("user", "assistant", ...) are not content: a template may build a marker around one, as
// in '<|' + message['role'] + '|>'. Returns messages with the "role" of such a kind trusted, all else unchanged.
jinja::Value trust_known_roles(const jinja::Value& messages);

// One line of `render`: a JSON object of variables → the prompt as a JSON string, or {"error": "..."} as JSON. The
// object's keys are the variables; tools and documents are none, and add_generation_prompt is false, where they are not
// given.
std::string render_json_line(const ChatTemplate& chat_template, std::string_view line, const TemplateInput& defaults);

// "2026-11-29T12:00:00" (or only the date) → seconds for TemplateInput.
Result<int64_t> parse_local_time(std::string_view text);

}  // namespace quire
