// `quire render`: conversations on stdin become the prompts that a chat template makes of them, on stdout. Takes a
// model or a template alone.
#include <ctime>
#include <fstream>
#include <iostream>
#include <sstream>

#include "app/command.h"
#include "app/console.h"
#include "app/json_lines.h"
#include "app/model_path.h"
#include "app/model_session.h"
#include "app/options.h"

namespace quire::app {

namespace {

struct RenderOptions {
  std::string source;
  std::string now;
  bool is_json = false;
};

bool is_template_file(const std::string& path) {
  const std::string suffixes[] = {".jinja", ".jinja2", ".j2"};
  for (const std::string& suffix : suffixes) {
    if (path.size() > suffix.size() && path.ends_with(suffix)) return true;
  }
  return false;
}

// The template's text; a model also says its special tokens.
Result<std::string> read_template(const std::string& source, TemplateInput& defaults) {
  if (is_template_file(source)) {
    std::ifstream file(source, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file) return not_found("cannot read the template " + source);
    return std::move(text).str();
  }
  Console console(LogLevel::kInfo);
  ASSIGN_OR_RETURN(const std::filesystem::path path, resolve_model(source, read_environment(), console));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_checkpoint(path.string(), {.needs_tensors = false}));
  ASSIGN_OR_RETURN(const std::optional<std::string> found, find_chat_template(checkpoint));
  if (!found.has_value()) return not_found(path.string() + " has no chat template: give a FILE.jinja instead");
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, open_tokenizer(checkpoint));
  defaults.trusted_strings = special_token_strings(*tokenizer);
  return *found;
}

Status run(const RenderOptions& options) {
  TemplateInput defaults;
  if (options.now.empty()) {
    defaults.now_seconds = local_now_seconds();
  } else {
    ASSIGN_OR_RETURN(defaults.now_seconds, parse_local_time(options.now));
  }
  ASSIGN_OR_RETURN(const std::string source, read_template(options.source, defaults));
  ASSIGN_OR_RETURN(const std::unique_ptr<ChatTemplate> chat_template, ChatTemplate::create(source));

  int64_t num_failed = 0;
  std::string line;
  bool is_too_long = false;
  while (std::ferror(stdout) == 0 && read_line(std::cin, line, is_too_long)) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string output = is_too_long ? R"({"error": "the line is longer than 64 MiB"})"
                                           : render_json_line(*chat_template, line, defaults);
    if (output.starts_with('{')) ++num_failed;
    std::cout << output << '\n';
    if (std::cin.rdbuf()->in_avail() <= 0) std::cout.flush();
  }
  std::cout.flush();
  if (num_failed == 0) return ok_status();
  return invalid_argument(std::to_string(num_failed) + " lines could not be rendered; each says why in its place");
}

}  // namespace

std::function<Status()> declare_render(CLI::App& parser) {
  auto options = std::make_shared<RenderOptions>();
  parser.add_option("MODEL|FILE", options->source, "A model, or a template file that ends in .jinja")->required();
  parser.add_option("--now", options->now, "What strftime_now tells, such as 2026-11-29T12:00:00");
  parser.add_flag("--json", options->is_json, "Accepted for uniformity: the output is JSON in any case");
  parser.footer(
      "stdin: a line is {\"messages\": [...], \"tools\": [...], \"add_generation_prompt\": true, ...}; further keys "
      "are "
      "template variables. stdout: the prompt as a JSON string, or {\"error\": ...}.");
  return [options] { return run(*options); };
}

}  // namespace quire::app
