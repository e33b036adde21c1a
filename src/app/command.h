// A subcommand of the quire program: its name, its options and its body. app/main lists them; each lives in a file of
// its own.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <functional>

#include "base/status.h"

namespace quire::app {

// Exit codes that scripts rely on.
constexpr int kExitDone = 0;
constexpr int kExitWorldWrong = 1;  // the message says what to do
constexpr int kExitUsage = 2;

struct Command {
  const char* name;
  const char* summary;
  // Declares the options on `parser` and returns the body, which runs after a successful parse.
  std::function<Status()> (*declare)(CLI::App& parser);
};

std::function<Status()> declare_serve(CLI::App& parser);
std::function<Status()> declare_generate(CLI::App& parser);
std::function<Status()> declare_chat(CLI::App& parser);
std::function<Status()> declare_tokenize(CLI::App& parser);
std::function<Status()> declare_render(CLI::App& parser);
std::function<Status()> declare_models(CLI::App& parser);
std::function<Status()> declare_inspect(CLI::App& parser);
std::function<Status()> declare_bench(CLI::App& parser);
std::function<Status()> declare_bench_serve(CLI::App& parser);
std::function<Status()> declare_doctor(CLI::App& parser);
std::function<Status()> declare_tune(CLI::App& parser);
std::function<Status()> declare_pull(CLI::App& parser);
std::function<Status()> declare_run_batch(CLI::App& parser);

}  // namespace quire::app
