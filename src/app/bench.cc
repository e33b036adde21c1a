// `quire bench`: prefill and decode at given lengths and batch sizes, medians over repeats, beside the limits of the
// machine measured in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "app/bench_run.h"
#include "app/command.h"
#include "app/model_session.h"
#include "app/options.h"

namespace quire::app {

namespace json = boost::json;

namespace {

struct BenchOptions {
  EngineFlags engine;
  std::vector<int64_t> prompt_lens{512};
  std::vector<int64_t> gen_lens{128};
  std::vector<int> batch_sizes{1};
  int repeats = 5;
  bool is_json = false;
};

json::object to_json(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

Status run(const BenchOptions& options) {
  Console console(parse_log_level(options.engine.log_level));
  EngineFlags flags = options.engine;
  const int largest_batch = *std::max_element(options.batch_sizes.begin(), options.batch_sizes.end());
  if (flags.max_num_seqs == 0) flags.max_num_seqs = std::max(largest_batch, EngineOptions().max_num_seqs);
  ASSIGN_OR_RETURN(ModelSession session, open_model_session(flags, console));
  if (!options.is_json) {
    fmt::print("{:>6} {:>11} {:>8} {:>32} {:>32}\n", "batch", "prompt_len", "gen_len", "prefill tok/s (min..max)",
               "decode tok/s (min..max)");
  }
  for (const int64_t prompt_len : options.prompt_lens) {
    for (const int64_t gen_len : options.gen_lens) {
      for (const int batch_size : options.batch_sizes) {
        const BenchCell cell{batch_size, prompt_len, gen_len};
        std::vector<double> prefill, decode, useful;
        for (int repeat = 0; repeat < options.repeats; ++repeat) {
          ASSIGN_OR_RETURN(const BenchTimes times,
                           run_bench_cell(*session.engine, cell, static_cast<uint64_t>(repeat) * 2 + 1));
          prefill.push_back(times.prefill_tok_s);
          decode.push_back(times.decode_tok_s);
          useful.push_back(times.kv_useful_share);
        }
        const Spread prefill_spread = spread_of(prefill);
        const Spread decode_spread = spread_of(decode);
        if (options.is_json) {
          fmt::print("{}\n", json::serialize(json::object{{"batch", batch_size},
                                                          {"prompt_len", prompt_len},
                                                          {"gen_len", gen_len},
                                                          {"prefill_tok_s", to_json(prefill_spread)},
                                                          {"decode_tok_s", to_json(decode_spread)},
                                                          {"kv_useful_share", spread_of(useful).median}}));
        } else {
          const auto shown = [](const Spread& s) {
            return fmt::format("{:.1f} ({:.1f}..{:.1f})", s.median, s.min, s.max);
          };
          fmt::print("{:>6} {:>11} {:>8} {:>32} {:>32}\n", batch_size, prompt_len, gen_len, shown(prefill_spread),
                     shown(decode_spread));
        }
        std::fflush(stdout);
      }
    }
  }
  return ok_status();
}

}  // namespace

std::function<Status()> declare_bench(CLI::App& parser) {
  auto options = std::make_shared<BenchOptions>();
  add_engine_flags(parser, options->engine);
  parser.add_option("--prompt-lens", options->prompt_lens, "Prompt lengths in tokens")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  parser.add_option("--gen-lens,--gen-len", options->gen_lens, "Tokens to generate")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  parser.add_option("--batch-sizes", options->batch_sizes, "Sequences at once")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  parser.add_option("--repeats", options->repeats, "Measurements of each cell; the median is shown")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  parser.add_flag("--json", options->is_json, "One JSON object a cell on stdout");
  return [options] { return run(*options); };
}

}  // namespace quire::app
