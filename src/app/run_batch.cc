// `quire run-batch`: a file of requests in OpenAI's batch format through the handlers of the server, without a socket.
// Requests run side by side, as many as the engine takes; answers are written as they come, so their order is not that
// of the requests. A run that was stopped goes on where it stopped.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "app/command.h"
#include "app/console.h"
#include "app/json_lines.h"
#include "app/model_session.h"
#include "app/options.h"
#include "app/run_batch_exchange.h"
#include "app/run_batch_files.h"
#include "engine/engine_loop.h"
#include "server/api_context.h"
#include "server/api_routes.h"

namespace quire::app {

namespace {

constexpr int64_t kMaxBytesUnderWay = 256 << 20;  // of request bodies; one alone may be larger
constexpr int kMaxQueued = 1 << 20;               // nothing is refused for want of room: this program bounds itself

struct RunBatchOptions {
  EngineFlags engine;
  std::string input = "-";
  std::string output = "-";
  std::vector<std::string> model_names;
  int num_under_way = 0;
  bool is_fresh = false;
  std::string generation_config = "auto";
};

// What the handlers need, as the server has it. Destroyed from below: the loop ends what runs, then the pool.
struct BatchServer {
  ModelSession session;
  GrammarCache grammars;
  std::unique_ptr<TextPool> pool;
  std::unique_ptr<EngineLoop> loop;
  std::unique_ptr<LoopClient> client;
  RouteTable routes;

  Status start(const RunBatchOptions& options, Console& console) {
    SessionOptions session_options;
    session_options.is_serving = true;
    session_options.reads_sampling_defaults = options.generation_config == "auto";
    ASSIGN_OR_RETURN(session, open_model_session(options.engine, console, session_options));
    TextPoolOptions pool_options;
    pool_options.max_waiting_long = kMaxQueued;
    ASSIGN_OR_RETURN(pool, TextPool::create(pool_options));
    EngineLoopOptions loop_options;
    loop_options.max_num_queued = kMaxQueued;
    ASSIGN_OR_RETURN(loop, EngineLoop::create(*session.engine, loop_options));
    client = std::make_unique<LoopClient>(*loop);
    const Tokenizer& tokenizer = session.text->tokenizer();
    auto context = std::make_shared<ApiContext>(
        ApiContext{.engine = *client, .text = *session.text, .pool = *pool, .model_names = model_names(options)});
    ASSIGN_OR_RETURN(context->grammar_vocabulary, GrammarVocabulary::create(tokenizer));
    context->grammars = &grammars;
    context->end_token_ids = tokenizer.end_of_turn_ids();
    const ModelConfig& config = session.model->config();
    context->embedding_size = config.hidden_size;
    context->pooling = config.pooling;
    context->default_sampling = session.default_sampling;
    context->limits.max_n = loop->limits().max_n;
    context->limits.max_logprobs = loop->limits().max_logprobs;
    register_openai_routes(routes, context);
    return ok_status();
  }

  // As it was typed, and its file's name.
  static std::vector<std::string> model_names(const RunBatchOptions& options) {
    if (!options.model_names.empty()) return options.model_names;
    const std::filesystem::path path(options.engine.model);
    std::string name = path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
    if (name.ends_with(".gguf")) name.resize(name.size() - 5);
    if (name.empty() || name == options.engine.model) return {options.engine.model};
    return {name, options.engine.model};
  }
};

class BatchRun {
 public:
  BatchRun(const RunBatchOptions& options, std::istream& input, BatchServer& server, BatchOutput& output,
           Console& console)
      : input_(input), server_(server), output_(output), console_(console) {
    most_under_way_ = options.num_under_way > 0 ? options.num_under_way : 2 * server.loop->max_num_seqs();
    std::error_code error;
    const uintmax_t size = options.input == "-" ? 0 : std::filesystem::file_size(options.input, error);
    if (!error) num_input_bytes_ = static_cast<int64_t>(size);
  }

  Status run() {
    std::string line;
    bool is_too_long = false;
    while (true) {
      BatchAnswer answer;
      while (answers_.try_take(&answer)) RETURN_IF_ERROR(finish(std::move(answer)));
      if (num_under_way_ > 0 && (num_under_way_ >= most_under_way_ || num_bytes_under_way_ >= kMaxBytesUnderWay)) {
        RETURN_IF_ERROR(finish(answers_.take()));
        continue;
      }
      if (!read_line(input_, line, is_too_long)) break;
      ++line_number_;
      num_bytes_read_ += static_cast<int64_t>(line.size()) + 1;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      RETURN_IF_ERROR(start(line, is_too_long));
    }
    while (num_under_way_ > 0) RETURN_IF_ERROR(finish(answers_.take()));
    console_.end_progress();
    console_.info(
        fmt::format("{} answered, {} failed, {} were there already: {} prompt tokens, {} tokens made in {:.1f} s",
                    num_answered_, num_failed_, num_skipped_, num_prompt_tokens_, num_generated_tokens_, elapsed_s()));
    const int64_t num_failures = num_failed_ + num_failed_before_;
    if (num_failures == 0) return ok_status();
    const std::string before =
        num_failed_before_ == 0
            ? std::string()
            : fmt::format(" ({} of them in an earlier run: --overwrite asks again)", num_failed_before_);
    return invalid_argument(fmt::format("{} of {} requests failed{}; the output says why", num_failures,
                                        num_answered_ + num_failed_ + num_skipped_, before));
  }

 private:
  double elapsed_s() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

  Status start(const std::string& line, bool is_too_long) {
    BatchCall call;
    BatchLineError error;
    if (is_too_long) {
      error = {"", "line_too_long", fmt::format("line {} is longer than 64 MiB", line_number_)};
    } else if (read_batch_line(line, line_number_, &call, &error)) {
      if (output_.claim(call.custom_id)) {
        if (!output_.has_answer(call.custom_id)) return send(std::move(call));
        ++num_skipped_;
        if (output_.has_failure(call.custom_id)) ++num_failed_before_;
        return ok_status();
      }
      error = {call.custom_id, "duplicate_custom_id",
               fmt::format("line {}: an earlier line has the same custom_id", line_number_)};
    }
    if (output_.has_line_error(line_number_)) {
      ++num_skipped_;
      ++num_failed_before_;
      return ok_status();
    }
    ++num_failed_;
    return output_.write_error(error, line_number_);
  }

  Status send(BatchCall call) {
    const RouteTable::Match match = server_.routes.find("POST", call.url);
    CHECK(match.route != nullptr);
    ++num_under_way_;
    num_bytes_under_way_ += static_cast<int64_t>(call.body.size());
    match.route->handler(make_batch_exchange(std::move(call), &answers_));
    return ok_status();
  }

  Status finish(BatchAnswer answer) {
    --num_under_way_;
    num_bytes_under_way_ -= static_cast<int64_t>(answer.num_request_bytes);
    // Answers that only say that the engine has broken are not kept: the next run asks again.
    RETURN_IF_ERROR(server_.loop->failure());
    if (answer.status / 100 == 2) {
      ++num_answered_;
      num_prompt_tokens_ += answer.num_prompt_tokens;
      num_generated_tokens_ += answer.num_generated_tokens;
    } else {
      ++num_failed_;  // of a prompt that was refused nothing was computed
    }
    RETURN_IF_ERROR(output_.write(answer));
    show_progress();
    return ok_status();
  }

  void show_progress() {
    const double now_s = elapsed_s();
    if (now_s - last_shown_s_ < 0.1) return;
    last_shown_s_ = now_s;
    std::string bar;
    if (num_input_bytes_ > 0) {
      constexpr int kWidth = 24;
      const double share = std::min(
          1.0, static_cast<double>(num_bytes_read_ - num_bytes_under_way_) / static_cast<double>(num_input_bytes_));
      const int filled = std::max(0, static_cast<int>(share * kWidth));
      bar = fmt::format("[{}{}] {:3.0f} % ", std::string(static_cast<size_t>(filled), '#'),
                        std::string(static_cast<size_t>(kWidth - filled), ' '), std::max(0.0, 100.0 * share));
    }
    console_.progress_line(fmt::format("{}{} answered, {} failed, {} under way, {:.0f} tok/s", bar,
                                       num_answered_ + num_skipped_, num_failed_, num_under_way_,
                                       static_cast<double>(num_generated_tokens_) / now_s));
  }

  std::istream& input_;
  BatchServer& server_;
  BatchOutput& output_;
  Console& console_;
  BatchAnswers answers_;
  int64_t most_under_way_ = 1;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double last_shown_s_ = 0.0;
  int64_t line_number_ = 0;
  int64_t num_input_bytes_ = 0;
  int64_t num_bytes_read_ = 0;
  int64_t num_under_way_ = 0;
  int64_t num_bytes_under_way_ = 0;
  int64_t num_answered_ = 0;
  int64_t num_failed_ = 0;
  int64_t num_skipped_ = 0;
  int64_t num_failed_before_ = 0;  // of them
  int64_t num_prompt_tokens_ = 0;
  int64_t num_generated_tokens_ = 0;
};

Status run(const RunBatchOptions& options) {
  Console console(parse_log_level(options.engine.log_level));
  std::ifstream file;
  if (options.input != "-") {
    file.open(options.input, std::ios::binary);
    if (!file) return not_found("cannot read " + options.input);
    std::error_code error;
    if (options.output != "-" && std::filesystem::equivalent(options.input, options.output, error))
      return invalid_argument("-i and -o are the same file: answers need one of their own");
  }
  // Before the model: what is wrong with a file is told at once.
  ASSIGN_OR_RETURN(const std::unique_ptr<BatchOutput> output, BatchOutput::open(options.output, options.is_fresh));
  if (output->was_repaired()) console.warn(options.output + ": the last line was cut off, and is taken away");
  if (output->num_kept() > 0)
    console.info(
        fmt::format("{} holds {} answers: they are kept, and not asked for again", options.output, output->num_kept()));
  BatchServer server;
  RETURN_IF_ERROR(server.start(options, console));
  // What runs when this ends with an error still answers into the run's queue: the loop and the pool end first.
  BatchRun batch(options, options.input == "-" ? std::cin : file, server, *output, console);
  const Status status = batch.run();
  console.end_progress();
  server.loop->stop();
  server.pool.reset();  // its last tasks still call the loop
  return status;
}

}  // namespace

std::function<Status()> declare_run_batch(CLI::App& parser) {
  auto options = std::make_shared<RunBatchOptions>();
  add_engine_flags(parser, options->engine);
  parser.add_option("-i,--input-file", options->input, "Requests, a JSON line each; -: standard input")
      ->capture_default_str();
  parser
      .add_option("-o,--output-file", options->output, "Answers; one that is there is gone on with; -: standard output")
      ->capture_default_str();
  parser.add_flag("--overwrite", options->is_fresh, "Empty the output file first");
  add_model_names_flag(parser, options->model_names,
                       "What \"model\" may be in requests; default: the model as typed, and its file's name");
  add_generation_config_flag(parser, options->generation_config);
  parser.add_option("--concurrency", options->num_under_way, "Requests under way at once; 0: twice --max-num-seqs")
      ->check(CLI::Range(0, kMaxQueued))
      ->capture_default_str();
  parser.footer("Answers come in the order in which they are ready; custom_id says which is whose.");
  return [options] { return run(*options); };
}

}  // namespace quire::app
