// `quire chat`: a conversation in the terminal. Answers stream; Ctrl-C stops an answer, Ctrl-D leaves.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "app/command.h"
#include "app/console.h"
#include "app/conversation.h"
#include "app/json_lines.h"
#include "app/model_session.h"
#include "app/options.h"
#include "app/sampling_flags.h"

namespace quire::app {

namespace json = boost::json;

namespace {

constexpr int64_t kDefaultMaxTokens = 2048;

constexpr const char* kHelp =
    "/system TEXT  set the system message (alone: take it away)\n"
    "/reset        forget the conversation\n"
    "/regen        answer the last turn anew\n"
    "/save FILE    write the conversation as JSON\n"
    "/help         this list\n"
    "A line that ends in \\ goes on in the next. Ctrl-C stops an answer, Ctrl-D leaves.\n";

// Set by SIGINT, read between steps: all that a signal handler may do.
volatile sig_atomic_t interrupt_count = 0;
void on_interrupt(int) {
  interrupt_count = interrupt_count + 1;
}

struct ChatOptions {
  EngineFlags engine;
  SamplingOptions sampling;
  std::string system;
  bool is_json = false;
};

// Writes beside the file and renames, so that a full disk does not cost an older conversation of that name. What is
// no regular file (a pipe, a terminal) is written to directly.
Status write_whole_file(const std::string& path, const std::string& text) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool is_special = fs::exists(path, error) && !fs::is_regular_file(path, error);
  const std::string target = is_special ? path : path + ".partial";
  std::ofstream file(target, std::ios::binary);
  const bool is_open = file.is_open();
  file << text;
  file.close();
  bool is_written = static_cast<bool>(file);
  if (is_written && !is_special) {
    fs::rename(target, fs::is_symlink(path, error) ? fs::canonical(path, error) : fs::path(path), error);
    is_written = !error;
  }
  if (is_written) return ok_status();
  if (is_open && !is_special) fs::remove(target, error);
  return internal_error("cannot write " + path + ": is there such a folder, and room on its disk?");
}

class ChatLoop {
 public:
  ChatLoop(const ChatOptions& options, ModelSession& session, Console& console)
      : options_(options), console_(console), conversation_(session, options.sampling) {
    conversation_.set_system(options.system);
    is_interactive_ = isatty(STDIN_FILENO) == 1;
  }

  Status run() {
    std::string line;
    while (read_turn(line)) {
      if (line.empty()) continue;
      if (line[0] == '/') {
        run_command(line);
      } else {
        show(conversation_.answer(line, on_text(), stopped()));
      }
    }
    // A person has seen it; a script looks at the exit code.
    if (is_interactive_ || num_failed_ == 0) return ok_status();
    return invalid_argument(std::to_string(num_failed_) + " turns could not be answered; the errors stand above");
  }

 private:
  // Reads one turn, of several lines where they end in a backslash. False: the input has ended.
  bool read_turn(std::string& turn) {
    turn.clear();
    while (true) {
      if (is_interactive_) tell(turn.empty() ? "> " : "| ");
      interrupt_count = 0;
      std::string line;
      if (!std::getline(std::cin, line)) {
        if (interrupt_count == 0) {
          if (is_interactive_) std::fputc('\n', stderr);
          return !turn.empty();
        }
        std::cin.clear();
        clearerr(stdin);
        tell("\n(Ctrl-D leaves)\n");
        turn.clear();
        continue;
      }
      const bool goes_on = !line.empty() && line.back() == '\\';
      if (goes_on) line.back() = '\n';
      turn += line;
      if (!goes_on) return true;
    }
  }

  std::function<void(const std::string&)> on_text() const {
    if (options_.is_json) return [](const std::string&) {};
    return [](const std::string& piece) {
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
    };
  }

  std::function<bool()> stopped() const {
    interrupt_count = 0;
    return [] { return interrupt_count > 0; };
  }

  void show(const Result<Reply>& result) {
    if (!result.is_ok()) {
      ++num_failed_;
      if (options_.is_json) print_json_line(json::object{{"error", result.status().message()}});
      std::fflush(stdout);
      console_.error(result.status().message());
      return;
    }
    const Reply& reply = result.value();
    if (options_.is_json) {
      const json::object object{{"role", "assistant"},
                                {"content", reply.text},
                                {"finish_reason", finish_reason_name(reply.finish_reason)},
                                {"usage", json::object{{"prompt_tokens", reply.num_prompt_tokens},
                                                       {"completion_tokens", reply.num_completion_tokens},
                                                       {"cached_tokens", reply.num_cached_tokens}}}};
      print_json_line(object);
    } else {
      std::fputc('\n', stdout);
    }
    std::fflush(stdout);
    console_.info(fmt::format("[{} tokens, {} of {} prompt tokens cached, {:.1f} s{}]", reply.num_completion_tokens,
                              reply.num_cached_tokens, reply.num_prompt_tokens, reply.seconds,
                              reply.finish_reason == FinishReason::kLength ? ", cut at --max-tokens" : ""));
  }

  void run_command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const std::string argument = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/reset") {
      conversation_.reset();
      console_.info("The conversation is empty.");
    } else if (name == "/system") {
      conversation_.set_system(argument);
      console_.info(argument.empty() ? "No system message." : "The system message is set.");
    } else if (name == "/regen") {
      show(conversation_.regenerate(on_text(), stopped()));
    } else if (name == "/save") {
      save(argument);
    } else {
      if (name != "/help") console_.error("there is no command " + name);
      tell(kHelp);
    }
  }

  void save(const std::string& path) {
    if (path.empty()) {
      console_.error("say where to: /save FILE");
      return;
    }
    const Status status = write_whole_file(path, json::serialize(conversation_.to_json()) + "\n");
    if (!status.is_ok()) {
      console_.error(status.message());
    } else {
      console_.info("Saved to " + path);
    }
  }

  const ChatOptions& options_;
  Console& console_;
  Conversation conversation_;
  bool is_interactive_ = false;
  int64_t num_failed_ = 0;  // turns
};

Status run(const ChatOptions& options) {
  if (options.sampling.params.n != 1) return invalid_argument("a conversation has one answer a turn: leave --n at 1");
  Console console(parse_log_level(options.engine.log_level));
  ASSIGN_OR_RETURN(ModelSession session, open_model_session(options.engine, console, {.is_first_token_urgent = true}));
  if (!session.text->has_chat_template()) {
    return invalid_argument(
        "this model has no chat template: give one with --chat-template FILE, or use `quire generate`");
  }
  // Without SA_RESTART, so that Ctrl-C also ends a read of the next turn.
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  console.info("Type a message. /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.");
  return ChatLoop(options, session, console).run();
}

}  // namespace

std::function<Status()> declare_chat(CLI::App& parser) {
  auto options = std::make_shared<ChatOptions>();
  options->sampling.params.max_tokens = kDefaultMaxTokens;
  add_engine_flags(parser, options->engine);
  parser.add_option("--system", options->system, "The system message");
  parser.add_flag("--json", options->is_json, "Each answer as a JSON object on stdout");
  add_sampling_flags(parser, options->sampling);
  parser.footer(
      "One turn a line on standard input. In the conversation: /system TEXT, /reset, /regen, /save FILE, /help.");
  return [options] { return run(*options); };
}

}  // namespace quire::app
