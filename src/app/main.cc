// The quire program: finds the subcommand, parses its options, runs it, and turns its Status into a message and an exit
// code.
#include <fcntl.h>

#include <exception>
#include <string>
#include <vector>

#include "app/command.h"
#include "app/console.h"
#include "base/last_words.h"
#include "base/mapping_fault.h"

namespace quire::app {
namespace {

constexpr Command kCommands[] = {
    {"serve", "Serve a model behind the OpenAI API", declare_serve},
    {"generate", "Complete one prompt, or a batch of them", declare_generate},
    {"chat", "Hold a conversation in the terminal", declare_chat},
    {"tokenize", "Turn text into token ids, or back", declare_tokenize},
    {"render", "Render a chat template", declare_render},
    {"run-batch", "Answer a file of requests, in OpenAI's batch format", declare_run_batch},
    {"models", "List the cached models", declare_models},
    {"pull", "Fetch a model from a hub", declare_pull},
    {"inspect", "Describe a model: architecture, sizes, tokenizer, memory needs", declare_inspect},
    {"bench", "Measure prefill and decode", declare_bench},
    {"doctor", "Measure this machine, and a model on it; say what limits it and what to do", declare_doctor},
    {"tune", "Find the fastest kernels for this machine, and keep the choice in a file", declare_tune},
    {"bench-serve", "Load a server and measure what its clients see", declare_bench_serve},
};

// A program may be started with standard streams closed. The next file to be opened would take their place, and the
// results would go into it. What is opened here instead refuses to be read or written.
void hold_standard_streams() {
  for (int stream = 0; stream <= 2; ++stream) {
    if (::fcntl(stream, F_GETFD) != -1) continue;
    if (::open("/dev/null", stream == 0 ? O_WRONLY : O_RDONLY) != stream) return;
  }
}

// How the command that was given writes its lines on stderr, as far as the command line could be read.
LineFormat line_format(const CLI::App& parser) {
  for (const CLI::App* command : parser.get_subcommands()) {
    const CLI::Option* option = command->get_option_no_throw("--log-format");
    if (option != nullptr && !option->empty() && option->results().back() == "json") return LineFormat::kJson;
  }
  return LineFormat::kText;
}

int fail(const std::string& message, LineFormat format, int exit_code) {
  tell(format == LineFormat::kJson ? json_log_line("error", message) : "quire: " + message + "\n");
  return exit_code;
}

int run(int argc, char** argv) {
  hold_standard_streams();
  set_last_words_format(LineFormat::kText);
  catch_mapping_faults();
  CLI::App parser{"Quire serves large language models from one binary, on CPUs and NVIDIA GPUs.", "quire"};
  parser.require_subcommand(1);
  parser.set_version_flag("--version", QUIRE_VERSION);
  parser.footer(
      "`quire COMMAND --help` lists a command's options. MODEL is a GGUF file, a Hugging Face folder, a name from "
      "`quire models`, or ORG/NAME[:QUANT] on a hub.");

  std::function<Status()> body;
  for (const Command& command : kCommands) {
    CLI::App* subparser = parser.add_subcommand(command.name, command.summary);
    subparser->get_formatter()->column_width(36);
    auto declared = command.declare(*subparser);
    subparser->final_callback([&body, declared] { body = declared; });
  }
  try {
    parser.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    parser.exit(request);
    const Status told = check_results();
    return told.is_ok() ? kExitDone : fail(told.message(), LineFormat::kText, kExitWorldWrong);
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> unknown =
        parser.get_subcommands().empty() ? parser.remaining() : std::vector<std::string>();
    const bool is_unknown_command = !unknown.empty() && !unknown.front().starts_with("-");
    const std::string message = is_unknown_command ? "there is no command " + unknown.front() : error.what();
    return fail(message + "\nRun `quire --help` or `quire COMMAND --help` for the options.", line_format(parser),
                kExitUsage);
  }

  Status status = body();
  if (status.is_ok()) status = check_results();
  return status.is_ok() ? kExitDone : fail(status.message(), line_format(parser), kExitWorldWrong);
}

}  // namespace
}  // namespace quire::app

int main(int argc, char** argv) {
  return quire::app::run(argc, argv);
}
