// `quire serve`: a model behind the OpenAI API. Listens first, so that probes get answers while the model is loaded on
// a thread of its own; then the engine loop, the text pool and all routes. The main thread waits for signals: SIGTERM
// and SIGINT drain and end, a second one ends sooner, SIGHUP reads the API keys again.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>

#include "app/command.h"
#include "app/console.h"
#include "app/model_session.h"
#include "app/serve_options.h"
#include "base/format_bytes.h"
#include "base/last_words.h"
#include "engine/engine_loop.h"
#include "engine/prefix_file.h"
#include "server/api_context.h"
#include "server/api_routes.h"
#include "server/front_door.h"
#include "server/service_routes.h"
#include "server/tokenize_routes.h"

namespace quire::app {

namespace {

using namespace std::chrono_literals;

constexpr auto kFailureCheckInterval = 1s;
// After the drain: answers that are complete still travel to clients.
constexpr auto kLastAnswersTimeout = 5s;
// Requests that were cut off are told so.
constexpr auto kLastErrorsTimeout = 1s;
// A step takes a fraction of a second: one that is not over by then never will be.
constexpr auto kStopTimeout = 20s;
constexpr auto kImpatientStopTimeout = 3s;  // from a further signal on

std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

// Signals as something to wait for, instead of something that interrupts. All threads made later leave them alone.
class Signals {
 public:
  Signals() {
    ::signal(SIGPIPE, SIG_IGN);
    sigset_t set;
    ::sigemptyset(&set);
    for (const int number : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&set, number);
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
    signal_fd_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    event_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  }
  ~Signals() {
    ::close(signal_fd_);
    ::close(event_fd_);
  }
  Signals(const Signals&) = delete;

  // Any thread: ends a wait with 0.
  void wake() { static_cast<void>(::eventfd_write(event_fd_, 1)); }

  // The next signal; 0: the time is over, or wake was called.
  int wait(std::chrono::milliseconds limit) {
    pollfd fds[] = {{signal_fd_, POLLIN, 0}, {event_fd_, POLLIN, 0}};
    ::poll(fds, 2, static_cast<int>(limit.count()));
    eventfd_t ignored = 0;
    static_cast<void>(::eventfd_read(event_fd_, &ignored));
    signalfd_siginfo info{};
    if (::read(signal_fd_, &info, sizeof(info)) == sizeof(info)) return static_cast<int>(info.ssi_signo);
    return 0;
  }

 private:
  int signal_fd_ = -1;
  int event_fd_ = -1;
};

// While the server ends: a step that never returns may not keep the process. After too long a time, or soon after a
// further signal, it ends without that step.
class StopGuard {
 public:
  StopGuard(Signals& signals, Console& console) : signals_(signals), console_(console), thread_([this] { watch(); }) {}
  ~StopGuard() {
    has_stopped_ = true;
    signals_.wake();
    thread_.join();
  }
  StopGuard(const StopGuard&) = delete;

 private:
  void watch() {
    auto deadline = std::chrono::steady_clock::now() + kStopTimeout;
    while (std::chrono::steady_clock::now() < deadline) {
      const int signal = signals_.wait(100ms);
      if (has_stopped_) return;
      if (signal == SIGTERM || signal == SIGINT) {
        deadline = std::min(deadline, std::chrono::steady_clock::now() + kImpatientStopTimeout);
      }
    }
    console_.error("a step does not come to its end: stopped without it");
    std::_Exit(kExitWorldWrong);
  }

  Signals& signals_;
  Console& console_;
  std::atomic<bool> has_stopped_ = false;
  std::thread thread_;
};

// A connection takes a file descriptor, and the usual limit of 1024 is soon reached.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Gauges that monitoring knows from other servers.
void set_process_metrics(MetricRegistry& registry) {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0;
  int64_t resident_pages = 0;
  if (statm >> total_pages >> resident_pages) {
    registry.gauge("process_resident_memory_bytes", "Memory of the process that is in RAM.")
        .set(static_cast<double>(resident_pages * ::sysconf(_SC_PAGESIZE)));
  }
  registry.counter("process_cpu_seconds_total", "Processor time of the process.")
      .raise_to(static_cast<double>(std::clock()) / CLOCKS_PER_SEC);
}

// Said before hours of serving, not after them.
Status check_prefix_cache_file(const ServeFlags& flags) {
  if (flags.prefix_cache_file.empty()) return ok_status();
  const std::string flag = "--prefix-cache-file " + flags.prefix_cache_file;
  if (flags.engine.load_format == "dummy") {
    return invalid_argument(flag + " is of no use with --load-format dummy: prefixes of random weights are not kept");
  }
  if (flags.max_prefix_cache_file_bytes == 0) {
    return invalid_argument("--prefix-cache-file-limit 0 leaves no room for anything: raise it, or leave out " + flag);
  }
  const Result<std::string> target = find_replaceable_file(flags.prefix_cache_file);
  if (!target.is_ok()) return invalid_argument("--prefix-cache-file: " + target.status().message());
  std::filesystem::path folder = std::filesystem::path(target.value()).parent_path();
  if (folder.empty()) folder = ".";
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return ok_status();
  return invalid_argument(flag + " could not be written at the end: " + folder.string() +
                          " is no folder that this user may write to");
}

// All of a running server. Ended by stop(); where it never ran, members are destroyed from below, the sockets first.
class Server {
 public:
  Server(const ServeFlags& flags, Console& console)
      : flags_(flags),
        console_(console),
        log_(make_log_options(flags)),
        names_(make_model_names(flags)),
        server_metrics_(metrics_, names_.front()),
        state_(std::make_shared<ServiceState>(QUIRE_VERSION)) {}

  Status run();

 private:
  Status listen();
  void load();
  Status start_engine();
  Status make_routes();
  void tell_cache_config();
  std::string metrics_text();
  Status wait_for_end();
  std::string told_keys() const;  // "2 API keys"
  void reload_keys();
  void drain();
  void stop();
  Status save_prefixes();
  ServiceRoutesContext service_context();

  const ServeFlags& flags_;
  Console& console_;
  Signals signals_;
  AccessLog log_;
  MetricRegistry metrics_;
  const std::vector<std::string> names_;
  ServerMetrics server_metrics_;
  std::mutex scrape_mutex_;
  std::shared_ptr<ServiceState> state_;

  ModelSession session_;
  std::atomic<bool> has_loaded_ = false;
  Status load_status_;
  GrammarCache grammars_;
  std::unique_ptr<TextPool> pool_;
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<LoopClient> client_;

  std::unique_ptr<ApiKeys> keys_;
  std::unique_ptr<FrontDoor> door_;
  std::unique_ptr<HttpServer> http_;
  // The same for handlers, which run before the server is ours and until it has gone. Null at first.
  std::atomic<const HttpServer*> listening_ = nullptr;
};

Status Server::listen() {
  if (!flags_.api_key_file.empty()) {
    ASSIGN_OR_RETURN(keys_, ApiKeys::read(flags_.api_key_file));
  }
  FrontDoor::Options options;
  options.keys = keys_.get();
  ASSIGN_OR_RETURN(options.cors, make_cors_policy(flags_));
  options.log = &log_;
  options.metrics = &metrics_;
  door_ = std::make_unique<FrontDoor>(options);
  auto routes = std::make_shared<RouteTable>();
  ServiceRoutesContext context = service_context();
  context.model.names.clear();
  context.check_health = nullptr;
  register_service_routes(*routes, context);
  door_->set_routes(routes, unavailable("the model is being loaded: try again in a while"));
  ASSIGN_OR_RETURN(http_, HttpServer::create(flags_.http, *door_));
  listening_ = http_.get();
  if (keys_ == nullptr && !is_loopback(flags_.http.host)) {
    console_.warn("everybody who reaches " + http_->address() +
                  " may use it: give --api-key-file, or --host 127.0.0.1 for this machine alone");
  }
  return ok_status();
}

ServiceRoutesContext Server::service_context() {
  ServiceRoutesContext context;
  context.state = state_;
  context.check_health = [this] { return check_progress(*loop_, flags_.health_timeout_s); };
  context.metrics_text = [this] { return metrics_text(); };
  context.model.names = names_;
  context.model.created = static_cast<int64_t>(std::time(nullptr));
  return context;
}

std::string Server::metrics_text() {
  // Two scrapes at once may not mix their values.
  const std::lock_guard lock(scrape_mutex_);
  if (has_loaded_.load()) set_engine_metrics(server_metrics_, loop_->snapshot());
  set_process_metrics(metrics_);
  const HttpServer* http = listening_.load();
  const HttpServerStats stats = http == nullptr ? HttpServerStats() : http->stats();
  metrics_.gauge("quire_http_connections", "Open connections.").set(stats.num_connections);
  metrics_.gauge("quire_http_buffered_body_bytes", "Request bodies that are held.")
      .set(static_cast<double>(stats.num_buffered_body_bytes));
  metrics_.counter("quire_http_connections_accepted_total", "Connections that were accepted.")
      .raise_to(static_cast<double>(stats.num_accepted));
  metrics_.counter("quire_http_connections_refused_total", "Connections over --max-connections.")
      .raise_to(static_cast<double>(stats.num_refused));
  return metrics_.text();
}

void Server::tell_cache_config() {
  const MemoryPlan& plan = loop_->memory_plan();
  metrics_
      .gauge("vllm:cache_config_info", "How the KV cache is laid out, as labels.",
             {{"model_name", names_.front()},
              {"block_size", std::to_string(plan.page_size)},
              {"num_gpu_blocks", std::to_string(plan.num_pages)},
              {"cache_dtype", flags_.engine.kv_cache_dtype},
              {"enable_prefix_caching", flags_.engine.is_prefix_cache_off ? "False" : "True"}})
      .set(1);
}

// On a thread of its own.
void Server::load() {
  SessionOptions options;
  options.is_serving = true;
  options.parsers = {.tools = flags_.tool_call_parser, .reasoning = flags_.reasoning_parser};
  options.on_progress = [this](int64_t num_done, int64_t num_total) {
    if (num_total > 0) state_->set_loading(fmt::format("{} %", 100 * num_done / num_total));
  };
  options.needs_model_hash = !flags_.prefix_cache_file.empty();
  options.reads_sampling_defaults = flags_.generation_config == "auto";
  auto session = open_model_session(flags_.engine, console_, options);
  load_status_ = session.status();
  if (session.is_ok()) session_ = std::move(session).value();
}

Status Server::start_engine() {
  if (!flags_.prefix_cache_file.empty()) {
    const auto read = session_.engine->load_prefix_cache(flags_.prefix_cache_file, flags_.max_prefix_cache_file_bytes);
    if (read.is_ok()) {
      const int64_t num_left_out = read.value().num_left_out;
      console_.info(fmt::format(
          "prefix cache: {} tokens from {}{}", read.value().num_tokens, flags_.prefix_cache_file,
          num_left_out == 0 ? std::string() : fmt::format("; for {} more there are no KV pages", num_left_out)));
    } else if (read.status().code() == StatusCode::kResourceExhausted) {
      console_.warn("the prefix cache is not taken from " + flags_.prefix_cache_file + ": " + read.status().message() +
                    " (--prefix-cache-file-limit)");
    } else if (read.status().code() != StatusCode::kNotFound) {
      console_.warn("the prefix cache is not taken from " + flags_.prefix_cache_file + ": " + read.status().message());
    }
  }
  TextPoolOptions pool;
  pool.num_threads = flags_.num_text_threads;
  ASSIGN_OR_RETURN(pool_, TextPool::create(pool));
  EngineLoopOptions loop;
  loop.max_num_queued = flags_.max_queued_requests;
  ASSIGN_OR_RETURN(loop_, EngineLoop::create(*session_.engine, loop));
  client_ = std::make_unique<LoopClient>(*loop_);
  tell_cache_config();
  return ok_status();
}

Status Server::make_routes() {
  const Tokenizer& tokenizer = session_.text->tokenizer();
  auto context = std::make_shared<ApiContext>(ApiContext{
      .engine = *client_, .text = *session_.text, .pool = *pool_, .metrics = &server_metrics_, .model_names = names_});
  ASSIGN_OR_RETURN(context->grammar_vocabulary, GrammarVocabulary::create(tokenizer));
  context->grammars = &grammars_;
  context->end_token_ids = tokenizer.end_of_turn_ids();
  const ModelConfig& config = session_.model->config();
  context->embedding_size = config.hidden_size;
  context->pooling = config.pooling;
  context->default_sampling = session_.default_sampling;
  context->limits.max_n = loop_->limits().max_n;
  context->limits.max_logprobs = loop_->limits().max_logprobs;
  // Each part of a list is a request of its own.
  const size_t most_requests =
      static_cast<size_t>(loop_->max_num_seqs()) + static_cast<size_t>(flags_.max_queued_requests);
  context->limits.is_max_prompts_of_queue = most_requests < context->limits.max_prompts;
  context->limits.max_prompts = std::min(context->limits.max_prompts, most_requests);

  auto routes = std::make_shared<RouteTable>();
  ServiceRoutesContext service = service_context();
  service.model.max_model_len = loop_->limits().max_model_len;
  service.model.num_token_ids = loop_->limits().vocab_size;
  register_service_routes(*routes, service);
  register_openai_routes(*routes, context);
  register_tokenize_routes(*routes, context);
  door_->set_routes(routes);
  return ok_status();
}

std::string Server::told_keys() const {
  return fmt::format("{} API key{}", keys_->num_keys(), keys_->num_keys() == 1 ? "" : "s");
}

void Server::reload_keys() {
  if (keys_ == nullptr) return;
  const Status status = keys_->reload();
  if (status.is_ok()) {
    console_.info(fmt::format("{} read again from {}", told_keys(), flags_.api_key_file));
  } else {
    console_.error("the API keys stay as they were: " + status.message());
  }
}

// Until a signal asks to end, or the engine fails.
Status Server::wait_for_end() {
  while (true) {
    const int signal = signals_.wait(kFailureCheckInterval);
    if (signal == SIGHUP) reload_keys();
    if (signal == SIGTERM || signal == SIGINT) return ok_status();
    RETURN_IF_ERROR(loop_->failure());
  }
}

void Server::drain() {
  state_->set_draining();
  loop_->begin_drain();
  const int num_active = loop_->snapshot().num_active;
  if (num_active > 0) {
    console_.info(fmt::format("stopping: {} requests may end in {:.0f} s; a second signal stops at once", num_active,
                              flags_.drain_timeout_s));
  } else {
    console_.info("stopping");
  }
  // While the last requests run, probes and clients still get answers: new work gets 503.
  const auto deadline = std::chrono::steady_clock::now() + to_milliseconds(flags_.drain_timeout_s);
  bool is_idle = false;
  while (!is_idle && std::chrono::steady_clock::now() < deadline) {
    is_idle = loop_->wait_until_idle(50ms);
    const int signal = signals_.wait(0ms);
    if (signal == SIGTERM || signal == SIGINT) break;
  }
  http_->begin_stop();
  if (is_idle) {
    const auto last = std::chrono::steady_clock::now() + kLastAnswersTimeout;
    while (std::chrono::steady_clock::now() < last && !http_->wait_until_stopped(50ms)) {
      const int signal = signals_.wait(0ms);
      if (signal == SIGTERM || signal == SIGINT) break;
    }
  } else {
    console_.warn(fmt::format("{} requests are cut off", loop_->snapshot().num_active));
  }
}

// The loop first, so that requests which still run are answered with what cut them off; then the sockets, and the pool
// last: handlers use it, and its last tasks call the loop.
void Server::stop() {
  const StopGuard guard(signals_, console_);
  http_->begin_stop();
  loop_->stop();
  static_cast<void>(http_->wait_until_stopped(kLastErrorsTimeout));
  http_.reset();
  pool_.reset();
}

Status Server::save_prefixes() {
  if (flags_.prefix_cache_file.empty()) return ok_status();
  // A server that has cached nothing, having been started by mistake, say, leaves what others did.
  if (session_.engine->stats().num_pages_cached == 0) return ok_status();
  const auto written = session_.engine->save_prefix_cache(flags_.prefix_cache_file, flags_.max_prefix_cache_file_bytes);
  RETURN_IF_ERROR(written.status());
  console_.info(fmt::format("prefix cache: {} tokens to {}", written.value().num_tokens, flags_.prefix_cache_file));
  if (written.value().num_left_out > 0) {
    console_.warn(fmt::format(
        "the prefix cache is not all in {}: the oldest {} of {} tokens are left out, as it may have "
        "{} (--prefix-cache-file-limit)",
        flags_.prefix_cache_file, written.value().num_left_out,
        written.value().num_left_out + written.value().num_tokens, format_bytes(flags_.max_prefix_cache_file_bytes)));
  }
  return ok_status();
}

Status Server::run() {
  raise_descriptor_limit();
  metrics_.gauge("process_start_time_seconds", "When the process began, in seconds since 1970.")
      .set(static_cast<double>(std::time(nullptr)));
  RETURN_IF_ERROR(listen());
  console_.info("listening on " + http_->address() + " while the model is loaded");

  std::atomic<bool> is_loading = true;
  std::thread loader([&] {
    load();
    is_loading = false;
    signals_.wake();
  });
  while (is_loading) {
    const int signal = signals_.wait(1s);
    if (signal == SIGTERM || signal == SIGINT) {
      // Loading cannot be interrupted, and has nothing that must be put in order.
      console_.info("stopped while the model was loaded");
      std::_Exit(kExitDone);
    }
  }
  loader.join();
  RETURN_IF_ERROR(load_status_);
  RETURN_IF_ERROR(start_engine());
  has_loaded_ = true;
  RETURN_IF_ERROR(make_routes());
  state_->set_ready();
  std::string names = names_.front();
  for (size_t i = 1; i < names_.size(); ++i) names += ", " + names_[i];
  console_.info(fmt::format("serving {} on {}{}", names, http_->address(),
                            keys_ == nullptr ? std::string() : ", " + told_keys()));

  const Status ended = wait_for_end();
  if (ended.is_ok()) drain();
  state_->set_draining();
  stop();
  RETURN_IF_ERROR(ended);
  return save_prefixes();
}

Status run(const ServeFlags& flags) {
  RETURN_IF_ERROR(check_supported(flags.engine));
  RETURN_IF_ERROR(check_prefix_cache_file(flags));
  set_last_words_format(line_format(flags));
  Console console(parse_log_level(flags.engine.log_level), line_format(flags));
  Server server(flags, console);
  return server.run();
}

}  // namespace

std::function<Status()> declare_serve(CLI::App& parser) {
  auto flags = std::make_shared<ServeFlags>();
  add_serve_flags(parser, *flags);
  parser.footer(
      "The API is OpenAI's, under /v1; /openapi.json describes all routes. SIGTERM or SIGINT ends the server once its "
      "requests have ended. See docs/operations.md.");
  return [flags] { return run(*flags); };
}

}  // namespace quire::app
