// `quire bench-serve`: loads a server that speaks OpenAI's API, ours or another, and tells latencies, throughput and
// errors.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <thread>

#include "app/bench_serve_load.h"
#include "app/bench_serve_prompts.h"
#include "app/bench_serve_report.h"
#include "app/bench_serve_request.h"
#include "app/command.h"
#include "app/console.h"
#include "app/json_lines.h"
#include "app/options.h"

namespace quire::app {

namespace json = boost::json;

namespace {

constexpr int kDefaultOpenConcurrency = 1024;

struct BenchServeOptions {
  std::string url;
  std::string model;
  std::string api = "completions";
  std::string api_key;
  std::vector<std::string> headers;
  BenchPromptOptions prompts;
  std::string prompt_kind = "words";
  std::string output_dist = "fixed";
  std::vector<int64_t> id_range{1000, 30000};
  int64_t num_requests = 100;
  int concurrency = 0;
  double request_rate = 0.0;
  double duration_s = 0.0;
  int num_warmup = 1;
  bool has_ignore_eos = false;
  double temperature = 0.0;
  std::string extra_body;
  std::vector<std::string> goodput;
  double timeout_s = 600.0;
  double wait_s = 0.0;
  bool is_json = false;
  std::string details_file;
};

// "http://host:8000", "…/v1" and "…/v1/" are the same server.
Result<std::string> base_url(std::string url) {
  if (url.find("://") == std::string::npos) url = "http://" + url;
  while (!url.empty() && url.back() == '/') url.pop_back();
  if (url.size() < 3 || url.compare(url.size() - 3, 3, "/v1") != 0) url += "/v1";
  RETURN_IF_ERROR(parse_url(url).is_ok() ? ok_status() : parse_url(url).status());
  return url;
}

Result<BenchTarget> make_target(const BenchServeOptions& options, const Environment& environment) {
  BenchTarget target;
  ASSIGN_OR_RETURN(target.base_url, base_url(options.url));
  target.model = options.model;
  target.api = options.prompts.api;
  target.temperature = options.temperature;
  target.has_ignore_eos = options.has_ignore_eos;
  for (const std::string& header : options.headers) {
    const size_t colon = header.find(':');
    if (colon == std::string::npos || colon == 0)
      return invalid_argument("--header '" + header + "' is not of the form 'Name: value'");
    const size_t begin = std::min(header.find_first_not_of(' ', colon + 1), header.size());
    target.headers.emplace_back(header.substr(0, colon), header.substr(begin));
  }
  const std::string& key = options.api_key.empty() ? environment.api_key : options.api_key;
  if (!key.empty()) target.credentials.emplace_back("Authorization", "Bearer " + key);
  if (!options.extra_body.empty()) {
    boost::system::error_code wrong;
    const json::value extra = json::parse(options.extra_body, wrong);
    if (wrong || !extra.is_object()) return invalid_argument("--extra-body is not a JSON object");
    for (const auto& field : extra.get_object()) {
      target.extra_fields += "," + json::serialize(json::value(field.key())) + ":" + json::serialize(field.value());
    }
  }
  return target;
}

// Waits until the server lists its models, and gives the name of the first.
Result<std::string> find_model(HttpClient& client, const BenchTarget& target, double wait_s) {
  const auto deadline = BenchClock::now() + std::chrono::duration<double>(wait_s);
  const HttpCall call{.url = target.base_url + "/models", .headers = target.headers, .credentials = target.credentials};
  while (true) {
    const Result<HttpReply> reply = client.send(call);
    if (reply.is_ok() && reply.value().status == 200) {
      boost::system::error_code wrong;
      const json::value body = json::parse(reply.value().body, wrong);
      const json::value* id = wrong ? nullptr : body.find_pointer("/data/0/id", wrong);
      if (id != nullptr && id->is_string()) return std::string(id->get_string());
      return invalid_argument(call.url + " lists no model: name one with --model");
    }
    const bool may_come_later = !reply.is_ok() || reply.value().status == 503;
    if (!may_come_later || BenchClock::now() >= deadline) {
      if (!reply.is_ok()) return reply.status().with_context("the server does not answer");
      return unavailable(call.url + " answers " + std::to_string(reply.value().status) +
                         ": check --url and --api-key, or name the model with --model");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
  }
}

// Hundreds of connections need as many file descriptors.
Status allow_connections(int num_connections) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return ok_status();
  const rlim_t wanted = static_cast<rlim_t>(num_connections) + 64;
  if (limit.rlim_cur >= wanted) return ok_status();
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= wanted) return ok_status();
  return resource_exhausted("--concurrency " + std::to_string(num_connections) + " needs more open files than the " +
                            std::to_string(limit.rlim_max) + " that are allowed: see `ulimit -n`");
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Status warm_up(const BenchServeOptions& options, const HttpClientOptions& http, const BenchTarget& target,
               const std::vector<BenchPrompt>& prompts) {
  HttpClient client(http);
  for (int i = 0; i < options.num_warmup; ++i) {
    const BenchPrompt& prompt = prompts[static_cast<size_t>(i) % prompts.size()];
    const BenchRecord record = run_bench_request(client, target, prompt, BenchClock::now());
    if (record.is_ok() || record.error_kind == "empty") continue;
    std::string advice;
    if (record.error_kind == "http_400" && target.has_ignore_eos)
      advice = ". If the server does not know ignore_eos, leave --ignore-eos out";
    return unavailable("the warm-up request failed (" + record.error_kind + "): " + record.error_message + advice);
  }
  return ok_status();
}

Status write_details(const std::string& path, const std::vector<BenchRecord>& records) {
  std::ofstream file(path, std::ios::binary);
  for (const BenchRecord& record : records) file << json::serialize(to_json(record)) << '\n';
  file.flush();
  return file ? ok_status() : internal_error("the details could not be written to " + path);
}

json::object settings(const BenchServeOptions& options, const BenchTarget& target, const BenchLoad& load) {
  json::object result{{"url", target.url()},
                      {"model", target.model},
                      {"num_requests", load.num_requests},
                      {"max_concurrency", load.concurrency},
                      {"request_rate", load.request_rate > 0 ? json::value(load.request_rate) : json::value()},
                      {"seed", options.prompts.seed},
                      {"ignore_eos", options.has_ignore_eos},
                      {"warmup", options.num_warmup}};
  if (options.prompts.dataset.empty()) {
    result["prompts"] = options.prompt_kind;
    result["shared_prefix_len"] = options.prompts.shared_prefix_len;
    result["input_len"] = options.prompts.input_len;
  } else {
    result["dataset"] = options.prompts.dataset.string();
  }
  result["output_len"] = options.prompts.output_len;
  result["output_dist"] = options.output_dist;
  return result;
}

Status run(BenchServeOptions options) {
  const Environment environment = read_environment();
  ASSIGN_OR_RETURN(const GoodputLimits limits, parse_goodput(options.goodput));
  if (options.id_range.size() != 2) return invalid_argument("--id-range needs two numbers: FIRST,LAST");
  options.prompts.api = options.api == "chat" ? BenchApi::kChat : BenchApi::kCompletions;
  options.prompts.are_ids = options.prompt_kind == "ids";
  options.prompts.first_id = options.id_range[0];
  options.prompts.last_id = options.id_range[1];
  options.prompts.output_spread = options.output_dist == "uniform"       ? LengthSpread::kUniform
                                  : options.output_dist == "exponential" ? LengthSpread::kExponential
                                                                         : LengthSpread::kFixed;
  options.prompts.num_prompts = options.num_requests;
  BenchLoad load{.concurrency = options.concurrency,
                 .request_rate = options.request_rate,
                 .num_requests = options.num_requests,
                 .duration_s = options.duration_s,
                 .seed = options.prompts.seed};
  if (load.concurrency == 0) load.concurrency = load.request_rate > 0 ? kDefaultOpenConcurrency : 1;
  RETURN_IF_ERROR(allow_connections(load.concurrency));

  ASSIGN_OR_RETURN(BenchTarget target, make_target(options, environment));
  HttpClientOptions http = client_options(environment);
  http.idle_timeout = std::chrono::milliseconds(std::llround(1000.0 * options.timeout_s));
  {
    HttpClient client(http);
    Result<std::string> model = target.model.empty() || options.wait_s > 0 ? find_model(client, target, options.wait_s)
                                                                           : Result<std::string>(target.model);
    if (!model.is_ok()) return model.status();
    if (target.model.empty()) target.model = model.value();
  }
  // Warm-up prompts are others than the measured ones, or a prefix cache would know those.
  BenchPromptOptions warm = options.prompts;
  warm.num_prompts = std::max(1, options.num_warmup);
  warm.seed = options.prompts.seed + 0x9e3779b97f4a7c15u;
  ASSIGN_OR_RETURN(const std::vector<BenchPrompt> warm_prompts, make_bench_prompts(warm));
  ASSIGN_OR_RETURN(const std::vector<BenchPrompt> prompts, make_bench_prompts(options.prompts));
  RETURN_IF_ERROR(warm_up(options, http, target, warm_prompts));

  Console console(LogLevel::kInfo);
  BenchProgress progress;
  const BenchSend send = [&](HttpClient& client, int64_t index, BenchClock::time_point start) {
    return run_bench_request(client, target, prompts[static_cast<size_t>(index)], start);
  };
  const auto on_tick = [&](double elapsed_s) {
    const int64_t num_failed = progress.num_failed;
    console.progress_line(fmt::format(
        "{:.0f} s: {} of {} requests done{}, {} in flight, {:.0f} output tok/s", elapsed_s, progress.num_done.load(),
        load.num_requests, num_failed > 0 ? fmt::format(" ({} failed)", num_failed) : "", progress.num_running.load(),
        static_cast<double>(progress.num_output_tokens) / elapsed_s));
  };
  const double cpu_before = cpu_seconds();
  bool was_interrupted = false;
  const std::vector<BenchRecord> records = run_bench_load(load, http, send, &progress, on_tick, &was_interrupted);
  const double cpu_s = cpu_seconds() - cpu_before;
  console.end_progress();
  if (records.empty()) return cancelled("no request was sent");

  const BenchReport report = make_bench_report(records, limits);
  if (!options.details_file.empty()) RETURN_IF_ERROR(write_details(options.details_file, records));
  if (options.is_json) {
    json::object result = to_json(report, limits);
    result["was_interrupted"] = was_interrupted;
    result["peak_concurrency"] = progress.peak_running.load();
    result["client_cpu_share"] = report.duration_s > 0 ? cpu_s / report.duration_s : 0.0;
    result["settings"] = settings(options, target, load);
    print_json_line(result);
  } else {
    print_result(to_table(report, limits));
    print_result(fmt::format("{:<26} {:>14}\n", "this client's CPU",
                             fmt::format("{:.1f} %", report.duration_s > 0 ? 100.0 * cpu_s / report.duration_s : 0.0)));
  }
  RETURN_IF_ERROR(check_results());
  if (was_interrupted) return cancelled("interrupted: the figures are those of the requests until then");
  if (report.num_ok == 0) {
    return unavailable("no request was answered: " + report.error_samples.begin()->first + ": " +
                       report.error_samples.begin()->second);
  }
  return ok_status();
}

}  // namespace

std::function<Status()> declare_bench_serve(CLI::App& parser) {
  auto options = std::make_shared<BenchServeOptions>();
  const auto option = [&](const char* name, auto& value, const char* meaning) {
    return parser.add_option(name, value, meaning)->capture_default_str();
  };
  option("--url", options->url, "The server, such as http://127.0.0.1:8000")
      ->check([](const std::string& text) { return complaint(parse_url(text).status()); })
      ->required();
  option("--model", options->model, "The model's name; default: the first that the server lists");
  option("--api", options->api, "completions or chat")->check(CLI::IsMember({"completions", "chat"}));
  option("--api-key", options->api_key, "Default: $OPENAI_API_KEY");
  parser.add_option("--header", options->headers, "A further header, 'Name: value'; may be given again");
  option("-n,--num-requests,--num-prompts", options->num_requests, "Requests to send")
      ->check(CLI::Range(int64_t{1}, int64_t{10'000'000}));
  option("-c,--concurrency,--max-concurrency", options->concurrency,
         "Requests in flight at most; default: 1, or 1024 with --request-rate")
      ->check(CLI::Range(0, 16384));
  option("--request-rate", options->request_rate, "Requests a second, arriving at random (Poisson); 0: as answers come")
      ->check(number_in(0.0, 1e6));
  option("--duration", options->duration_s, "Seconds after which no request is sent; 0: no limit")
      ->check(number_in(0.0, 1e7));
  option("--prompts", options->prompt_kind, "Random prompts: words, or ids (tokens exactly; completions only)")
      ->check(CLI::IsMember({"words", "ids"}));
  option("--shared-prefix-len", options->prompts.shared_prefix_len, "Words or ids that all prompts begin with")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24));
  option("--input-len", options->prompts.input_len, "Words or ids of each prompt, after the prefix")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24));
  parser.add_option("--id-range", options->id_range, "Ids are drawn from FIRST,LAST")->delimiter(',')->expected(2);
  CLI::Option* output_len = option("--output-len", options->prompts.output_len, "Tokens of each answer (max_tokens)");
  output_len->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  option("--output-dist", options->output_dist, "fixed; uniform or exponential around --output-len")
      ->check(CLI::IsMember({"fixed", "uniform", "exponential"}));
  option("--dataset", options->prompts.dataset, "JSON or JSON lines of prompts, messages or ShareGPT conversations")
      ->check(CLI::ExistingFile);
  parser.add_flag("--ignore-eos", options->has_ignore_eos, "Answers go on to --output-len (not every server knows it)");
  option("--temperature", options->temperature, "Sampling temperature")->check(number_in(0.0, 100.0));
  option("--extra-body", options->extra_body, "Fields to add to every request: a JSON object");
  option("--warmup", options->num_warmup, "Requests before the clock starts")->check(CLI::Range(0, 10000));
  option("--seed", options->prompts.seed, "Of prompts, lengths and arrivals");
  parser
      .add_option("--goodput", options->goodput,
                  "Count requests within limits in ms: ttft:500 tpot:50 itl:200 e2e:9000")
      ->check([](const std::string& text) { return complaint(parse_goodput({text}).status()); });
  option("--timeout", options->timeout_s, "Seconds without a byte after which a request has failed")
      ->check(number_in(0.001, 1e6));
  option("--wait", options->wait_s, "Seconds to wait for the server to come up")->check(number_in(0.0, 1e6));
  parser.add_flag("--json", options->is_json, "One JSON object on stdout");
  option("--details", options->details_file, "Write a JSON line a request to this file");
  return [options, output_len] {
    options->prompts.has_output_len = output_len->count() > 0;
    return run(*options);
  };
}

}  // namespace quire::app
