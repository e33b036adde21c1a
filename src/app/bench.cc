// `quire bench`: prefill and decode at given lengths and batch sizes, medians over repeats, beside the limits of the
// machine measured in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>

#include "app/bench_limits.h"
#include "app/bench_run.h"
#include "app/command.h"
#include "app/console.h"
#include "app/json_lines.h"
#include "app/model_session.h"
#include "app/options.h"
#include "base/cpu_info.h"
#include "server/sampling_fields.h"

namespace quire::app {

namespace json = boost::json;

namespace {

struct BenchOptions {
  EngineFlags engine;
  std::vector<int64_t> prompt_lens{512};
  std::vector<int64_t> gen_lens{128};
  std::vector<int> batch_sizes{1};
  int repeats = 5;
  bool is_prompt_shared = false;
  std::string sampling;  // JSON
  bool is_json = false;
};

struct CellResult {
  Spread prefill;
  Spread decode;
  int64_t num_prefill_steps = 0;
  int64_t num_decode_steps = 0;
  double kv_useful_share = 0.0;
};

Result<CellResult> measure_cell(Engine& engine, const BenchCell& cell, int repeats) {
  // As other programs' benchmarks do: memory that nobody has touched yet would count as computing.
  BenchCell warm_up = cell;
  warm_up.batch_size = 1;
  warm_up.prompt_len = std::min<int64_t>(cell.prompt_len, 128);
  warm_up.gen_len = std::min<int64_t>(cell.gen_len, 4);
  RETURN_IF_ERROR(run_bench_cell(engine, warm_up, 0).status());
  std::vector<double> prefill, decode, useful;
  int64_t num_prefill_steps = 0;
  int64_t num_decode_steps = 0;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    ASSIGN_OR_RETURN(const BenchTimes times, run_bench_cell(engine, cell, 2 * static_cast<uint64_t>(repeat) + 1));
    prefill.push_back(times.prefill_tok_s);
    decode.push_back(times.decode_tok_s);
    num_prefill_steps = times.num_prefill_steps;
    num_decode_steps = times.num_decode_steps;
    useful.push_back(times.kv_useful_share);
  }
  return CellResult{spread_of(prefill), spread_of(decode), num_prefill_steps, num_decode_steps,
                    spread_of(useful).median};
}

json::object to_json(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

json::object to_json(const BenchCell& cell, const CellResult& result, const std::optional<BenchLimits>& limits) {
  json::object cell_json = {{"batch", cell.batch_size}, {"prompt_len", cell.prompt_len},
                            {"gen_len", cell.gen_len},  {"prefill_tok_s", to_json(result.prefill)},
                            {"decode_tok_s", nullptr},  {"kv_useful_share", result.kv_useful_share}};
  const bool has_decode = result.num_decode_steps > 0;
  if (has_decode) cell_json["decode_tok_s"] = to_json(result.decode);
  if (limits.has_value()) {
    json::object shares = {{"prefill", result.prefill.median / limits->prefill_tok_s}, {"decode", nullptr}};
    if (has_decode) shares["decode"] = result.decode.median / limits->decode_tok_s;
    cell_json["share_of_limit"] = std::move(shares);
  }
  return cell_json;
}

constexpr const char* kTableRow = "{:>6} {:>7} {:>6} {:>27} {:>7} {:>27} {:>7}\n";

void print_row(const BenchCell& cell, const CellResult& result, const std::optional<BenchLimits>& limits) {
  const auto shown = [](const Spread& s) { return fmt::format("{:.1f} ({:.1f}..{:.1f})", s.median, s.min, s.max); };
  const auto share = [&](const Spread& s, double BenchLimits::*limit) {
    return limits.has_value() ? fmt::format("{:.0f} %", 100.0 * s.median / *limits.*limit) : std::string("-");
  };
  const bool has_decode = result.num_decode_steps > 0;
  print_result(fmt::format(kTableRow, cell.batch_size, cell.prompt_len, cell.gen_len, shown(result.prefill),
                           share(result.prefill, &BenchLimits::prefill_tok_s), has_decode ? shown(result.decode) : "-",
                           has_decode ? share(result.decode, &BenchLimits::decode_tok_s) : "-"));
}

// Where the context has no room for as many steps as were asked for.
void warn_of_few_steps(const BenchCell& cell, const CellResult& result, int64_t context, Console& console) {
  if (result.num_decode_steps == cell.gen_len) return;
  const std::string measured = result.num_decode_steps == 0 ? std::string("not measured")
                                                            : fmt::format("measured for {} steps, not {}",
                                                                          result.num_decode_steps, cell.gen_len);
  std::string told = fmt::format(
      "decode of {} after {} prompt tokens is {}: the context of {} tokens has no room for more in which all sequences "
      "decode; lower --prompt-lens, or raise what limits it (--max-model-len, --kv-cache-memory)",
      cell.batch_size, cell.prompt_len, measured, context);
  if (result.num_prefill_steps > 1) {
    told += fmt::format(
        ", or --max-num-batched-tokens: the first decode already in the {} steps in which the prompts are read",
        result.num_prefill_steps);
  }
  console.warn(told);
}

bool is_decode_past_limit(const CellResult& result, const std::optional<BenchLimits>& limits) {
  return limits.has_value() && result.decode.median > limits->decode_tok_s;
}

// Greedy and past the end, but for what `text` says.
Result<SamplingParams> parse_sampling(const std::string& text) {
  SamplingOptions sampling;
  sampling.params = BenchCell().sampling;
  if (text.empty()) return sampling.params;
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  if (error || !value.is_object()) {
    return invalid_argument("--sampling takes a JSON object, such as '{\"repetition_penalty\": 1.1, \"logprobs\": 5}'");
  }
  for (const auto& [key, ignored] : value.get_object()) {
    const std::span<const SamplingField> fields = sampling_fields();
    const std::string_view name(key.data(), key.size());
    if (std::none_of(fields.begin(), fields.end(), [&](const SamplingField& field) { return field.name == name; })) {
      return invalid_argument("--sampling: there is no field " + json::serialize(json::string(key)));
    }
  }
  RETURN_IF_ERROR(apply_sampling_fields(sampling, value.get_object()));
  return sampling.params;
}

Status run(const BenchOptions& options) {
  ASSIGN_OR_RETURN(const SamplingParams sampling, parse_sampling(options.sampling));
  Console console(parse_log_level(options.engine.log_level));
  EngineFlags flags = options.engine;
  const int largest_batch = *std::max_element(options.batch_sizes.begin(), options.batch_sizes.end());
  if (flags.max_num_seqs == 0) {
    const int num_tokens = flags.max_num_batched_tokens;
    if (num_tokens > 0 && num_tokens < largest_batch) {
      return invalid_argument(fmt::format(
          "--max-num-batched-tokens {} is less than the {} sequences of --batch-sizes, each of which gets a "
          "token a step",
          num_tokens, largest_batch));
    }
    const int usual = EngineOptions().max_num_seqs;
    flags.max_num_seqs = std::max(largest_batch, num_tokens > 0 ? std::min(usual, num_tokens) : usual);
  }
  ASSIGN_OR_RETURN(ModelSession session, open_model_session(flags, console, {.text = TextUse::kNone}));

  // Limits are measured on the CPU only; a GPU's are in docs/gpu_kernels.md.
  std::optional<MachineLimits> machine;
  if (session.ops->device().kind == DeviceKind::kCpu) {
    const CpuInfo cpu = read_cpu_info();
    ThreadPool pool(flags.num_threads > 0 ? flags.num_threads : default_num_threads(cpu));
    machine = measure_machine_limits(pool, cpu.features);
    console.info(
        fmt::format("{}, {} threads: reads {:.1f} GB/s, {:.0f} int8 GOP/s, {:.0f} bf16 and {:.0f} f32 GFLOP/s; "
                    "products in {}, attention in {}",
                    cpu.model_name, pool.num_threads(), machine->read_gbps, machine->int8_gops, machine->bf16_gflops,
                    machine->f32_gflops, arithmetic_name(session.arithmetic.linear),
                    arithmetic_name(session.arithmetic.attention)));
  }
  const BenchWork work{session.model->config(), session.model->weight_bytes(),
                       session.engine->memory_plan().kv_bytes_per_token, session.arithmetic};

  if (!options.is_json) {
    print_result(fmt::format(kTableRow, "batch", "prompt", "gen", "prefill tok/s (min..max)", "limit",
                             "decode tok/s (min..max)", "limit"));
  }
  bool is_past_limit = false;
  for (const int64_t prompt_len : options.prompt_lens) {
    for (const int64_t gen_len : options.gen_lens) {
      for (const int batch_size : options.batch_sizes) {
        const BenchCell cell{batch_size, prompt_len, gen_len, options.is_prompt_shared, sampling};
        ASSIGN_OR_RETURN(const CellResult result, measure_cell(*session.engine, cell, options.repeats));
        warn_of_few_steps(cell, result, session.engine->limits().max_model_len, console);
        std::optional<BenchLimits> limits;
        if (machine.has_value()) limits = bench_limits(work, cell, *machine);
        is_past_limit |= is_decode_past_limit(result, limits);
        if (options.is_json) {
          print_json_line(to_json(cell, result, limits));
        } else {
          print_row(cell, result, limits);
        }
        RETURN_IF_ERROR(check_results());
      }
    }
  }
  if (is_past_limit) {
    console.info(
        "decode past its limit: that is what memory gives, and the processor's caches hold a part of so small a model");
  }
  return ok_status();
}

}  // namespace

std::function<Status()> declare_bench(CLI::App& parser) {
  auto options = std::make_shared<BenchOptions>();
  add_engine_flags(parser, options->engine);
  const auto list = [&](const char* name, auto& values, const char* meaning) {
    parser.add_option(name, values, meaning)->delimiter(',')->check(CLI::Range(1, 1 << 24))->capture_default_str();
  };
  list("--prompt-lens", options->prompt_lens, "Prompt lengths in tokens");
  list("--gen-lens,--gen-len", options->gen_lens, "Tokens to generate");
  list("--batch-sizes", options->batch_sizes, "Sequences at once");
  parser.add_option("--repeats", options->repeats, "Measurements of each cell; the median is shown")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  parser.add_flag("--shared-prompt", options->is_prompt_shared,
                  "All sequences have one prompt, read once: to measure decode of large batches sooner");
  parser.add_option("--sampling", options->sampling, "Sampling fields of all requests, as a JSON object; else greedy")
      ->type_name("JSON");
  parser.add_flag("--json", options->is_json, "One JSON object a cell on stdout");
  return [options] { return run(*options); };
}

}  // namespace quire::app
