// The quire program: finds the subcommand, parses its options, runs it, and turns its Status into a message and an exit
// code.
#include <cstdio>
#include <exception>

#include "app/command.h"

namespace quire::app {
namespace {

constexpr Command kCommands[] = {
    {"generate", "Complete one prompt, or a batch of them", declare_generate},
    {"chat", "Hold a conversation in the terminal", declare_chat},
    {"tokenize", "Turn text into token ids, or back", declare_tokenize},
    {"render", "Render a chat template", declare_render},
    {"models", "List the cached models", declare_models},
    {"inspect", "Describe a model: architecture, sizes, tokenizer, memory needs", declare_inspect},
    {"bench", "Measure prefill and decode", declare_bench},
};

int run(int argc, char** argv) {
  CLI::App parser{"Quire serves large language models from one binary, on CPUs and NVIDIA GPUs.", "quire"};
  parser.require_subcommand(1);
  parser.set_version_flag("--version", QUIRE_VERSION);
  parser.footer(
      "`quire COMMAND --help` lists a command's options. MODEL is a GGUF file, a Hugging Face folder, or a name from "
      "`quire models`.");

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
    return parser.exit(request);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "quire: %s\nRun `quire --help` or `quire COMMAND --help` for the options.\n", error.what());
    return kExitUsage;
  }

  const Status status = body();
  if (status.is_ok()) return kExitDone;
  std::fprintf(stderr, "quire: %s\n", status.message().c_str());
  return kExitWorldWrong;
}

}  // namespace
}  // namespace quire::app

int main(int argc, char** argv) {
  return quire::app::run(argc, argv);
}
