// `quire generate`: completes one prompt, streaming to the terminal, or a batch of them as the scheduler sees fit.
// Every prompt is a request to the engine, the same that a server will make.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include "app/answer.h"
#include "app/command.h"
#include "app/console.h"
#include "app/json_lines.h"
#include "app/model_session.h"
#include "app/options.h"
#include "app/prompt_batch.h"
#include "app/sampling_flags.h"

namespace quire::app {

namespace json = boost::json;

namespace {

// An answer in a terminal should end by itself rather than after the API's 16 tokens.
constexpr int64_t kDefaultMaxTokens = 256;

struct GenerateOptions {
  EngineFlags engine;
  SamplingOptions sampling;
  std::string prompt;
  std::string prompt_file;
  std::string prompts_file;
  bool has_prompt = false;
  bool is_chat = false;
  bool is_json = false;
};

Result<std::string> read_all(std::istream& stream, const std::string& name) {
  std::string text;
  for (auto byte = std::istreambuf_iterator<char>(stream); byte != std::istreambuf_iterator<char>(); ++byte) {
    if (text.size() == kMaxInputBytes) return invalid_argument(name + " has more than 64 MiB: no context takes that");
    text.push_back(*byte);
  }
  if (stream.bad()) return internal_error("reading " + name + " failed");
  return text;
}

Result<std::string> read_prompt(const GenerateOptions& options) {
  if (options.has_prompt) return options.prompt;
  if (!options.prompt_file.empty()) {
    std::ifstream file(options.prompt_file, std::ios::binary);
    if (!file) return not_found("cannot open the prompt file " + options.prompt_file);
    return read_all(file, options.prompt_file);
  }
  if (isatty(STDIN_FILENO) == 1) {
    return invalid_argument(
        "there is no prompt: give --prompt TEXT, --prompt-file FILE or --prompts FILE.jsonl, or pipe one in");
  }
  return read_all(std::cin, "standard input");
}

// Where results go: JSON lines in input order, text that streams (one choice), or whole texts one after another.
class Printer {
 public:
  Printer(bool is_json, bool is_streaming) : is_json_(is_json), is_streaming_(is_streaming) {}

  Answer::OnText stream() const {
    if (!is_streaming_) return nullptr;
    return [](int, const std::string& piece) {
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
    };
  }

  void print_answer(int64_t index, const Answer& answer) const {
    if (is_json_) {
      print_json_line(answer.to_json(index));
    } else if (is_streaming_) {
      std::fputc('\n', stdout);
    } else {
      for (const AnswerChoice& choice : answer.choices()) {
        print_result(
            fmt::format("--- prompt {}, choice {}\n{}\n", index, &choice - answer.choices().data(), choice.text));
      }
    }
    std::fflush(stdout);
  }

  void print_error(int64_t index, const Status& status) const {
    if (is_json_) print_json_line(json::object{{"index", index}, {"error", status.message()}});
  }

  void print_summary(const EngineStats& stats, double load_seconds) const {
    const auto rate = [](int64_t tokens, double seconds) {
      return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
    };
    const double prefill = rate(stats.num_prefill_tokens, stats.prefill_seconds);
    const double decode = rate(stats.num_decode_tokens, stats.decode_seconds);
    if (is_json_) {
      print_json_line(json::object{{"summary", json::object{{"prefill_tok_s", prefill},
                                                            {"decode_tok_s", decode},
                                                            {"kv_pages_used_peak", stats.num_pages_used_peak},
                                                            {"kv_pages_total", stats.num_pages},
                                                            {"load_s", load_seconds}}}});
      return;
    }
    tell(fmt::format(
        "{} prompt tokens ({} cached), {} generated; prefill {:.1f} tok/s, decode {:.1f} tok/s; {} of {} KV "
        "pages used\n",
        stats.num_prefill_tokens + stats.num_cached_tokens, stats.num_cached_tokens, stats.num_generated_tokens,
        prefill, decode, stats.num_pages_used_peak, stats.num_pages));
  }

 private:
  bool is_json_;
  bool is_streaming_;
};

struct Job {
  Status status;  // why it did not run
  std::shared_ptr<Answer> answer;
};

Job submit(Engine& engine, const TextFrontend& text, BatchPrompt prompt, const Printer& printer) {
  if (!prompt.status.is_ok()) return {prompt.status, nullptr};
  Request request = Request::from_tokens(prompt.token_ids, prompt.sampling.params, nullptr);
  const Status valid = validate_request(request, engine.limits());
  if (!valid.is_ok()) return {valid, nullptr};
  auto answer =
      Answer::create(engine, text.tokenizer(), std::move(prompt.token_ids), prompt.sampling, printer.stream());
  if (!answer.is_ok()) return {answer.status(), nullptr};
  request.sink = answer.value();
  const Result<RequestId> id = engine.add_request(std::move(request));
  if (!id.is_ok()) return {id.status(), nullptr};
  return {ok_status(), answer.value()};
}

Status run(const GenerateOptions& options) {
  const bool is_batch = !options.prompts_file.empty();
  std::string prompt;
  if (!is_batch) {
    ASSIGN_OR_RETURN(prompt, read_prompt(options));  // before the model: a wrong file name should not take seconds
  }
  Console console(parse_log_level(options.engine.log_level));
  ASSIGN_OR_RETURN(ModelSession session,
                   open_model_session(options.engine, console, {.is_first_token_urgent = !is_batch}));

  std::vector<BatchPrompt> prompts;
  if (is_batch) {
    ASSIGN_OR_RETURN(prompts, read_prompts(*session.text, options.prompts_file, options.is_chat, options.sampling,
                                           [&](const std::string& message) { console.warn(message); }));
  } else {
    prompts.push_back(make_prompt(*session.text, prompt, options.is_chat, options.sampling));
  }

  const Printer printer(options.is_json, !options.is_json && !is_batch && options.sampling.params.n == 1);
  std::vector<Job> jobs;
  for (BatchPrompt& item : prompts) jobs.push_back(submit(*session.engine, *session.text, std::move(item), printer));
  if (!is_batch && !jobs[0].status.is_ok()) return jobs[0].status;

  int64_t num_failed = 0;
  size_t next_to_print = 0;
  const auto print_finished = [&] {
    for (; next_to_print < jobs.size(); ++next_to_print) {
      Job& job = jobs[next_to_print];
      if (job.answer != nullptr && !job.answer->is_finished()) return;
      if (job.answer != nullptr && !job.answer->error().is_ok()) job.status = job.answer->error();
      const int64_t index = static_cast<int64_t>(next_to_print);
      if (job.status.is_ok()) {
        printer.print_answer(index, *job.answer);
      } else {
        ++num_failed;
        printer.print_error(index, job.status);
        console.error("prompt " + std::to_string(index) + ": " + job.status.message());
      }
      job.answer.reset();  // a long batch should not hold all its texts
    }
  };
  print_finished();
  while (session.engine->has_work()) {
    RETURN_IF_ERROR(session.engine->step());
    print_finished();
    RETURN_IF_ERROR(check_results());  // nobody should wait for answers that go nowhere
  }
  printer.print_summary(session.engine->stats(), session.load_seconds);
  if (num_failed > 0) {
    return invalid_argument(
        fmt::format("{} of {} prompts could not be answered; the errors stand above", num_failed, jobs.size()));
  }
  return ok_status();
}

}  // namespace

std::function<Status()> declare_generate(CLI::App& parser) {
  auto options = std::make_shared<GenerateOptions>();
  options->sampling.params.max_tokens = kDefaultMaxTokens;
  add_engine_flags(parser, options->engine);
  CLI::Option* prompt =
      parser.add_option("--prompt", options->prompt, "The prompt; special tokens in it are recognised");
  prompt->each([options](const std::string&) { options->has_prompt = true; });
  CLI::Option* prompt_file = parser.add_option("--prompt-file", options->prompt_file, "A file that holds the prompt")
                                 ->check(CLI::ExistingFile);
  CLI::Option* prompts =
      parser
          .add_option("--prompts", options->prompts_file,
                      "A batch: a JSON object a line, with \"prompt\", \"prompt_token_ids\" or \"messages\", "
                      "and any sampling field beside it")
          ->check(CLI::ExistingFile);
  prompt->excludes(prompt_file)->excludes(prompts);
  prompt_file->excludes(prompts);
  parser.add_flag("--chat", options->is_chat, "Put the prompt into the model's chat template as a user's turn");
  parser.add_flag("--json", options->is_json, "Results as JSON on stdout, one object a line");
  add_sampling_flags(parser, options->sampling);
  parser.footer(
      "Without --prompt, --prompt-file or --prompts the prompt is read from standard input. --max-tokens is 256 unless "
      "given.");
  return [options] { return run(*options); };
}

}  // namespace quire::app
