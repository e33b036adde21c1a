// `quire tune`: measures the ways to multiply the matrices of a model, or of common formats, on this machine, and keeps
// the choice in a file that every later start reads: kernel rows on the CPU, the library's algorithms on a GPU
// (tune_gpu.h).
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <map>

#include "app/command.h"
#include "app/console.h"
#include "app/json_lines.h"
#include "app/model_path.h"
#include "app/model_session.h"
#include "app/options.h"
#include "app/tune_doubts.h"
#include "app/tune_file.h"
#include "app/tune_gpu.h"
#include "app/tune_measure.h"
#include "base/cpu_info.h"
#include "weights/checkpoint.h"

namespace quire::app {

namespace json = boost::json;

namespace {

struct TuneOptions {
  EngineFlags engine;
  double seconds = 0.3;
  bool forgets = false;
  bool is_json = false;
};

constexpr FormatId kCommonFormats[] = {FormatId::kF16,  FormatId::kBF16, FormatId::kQ8_0, FormatId::kQ4_0,
                                       FormatId::kQ4_1, FormatId::kQ4_K, FormatId::kQ6_K};
constexpr int64_t kCommonSize = 2048;
constexpr int64_t kMostOutputs = 4096;  // of a measured matrix: enough for the threads, and soon done
constexpr int64_t kMostInputs = 32768;

std::vector<TuneShape> common_shapes() {
  std::vector<TuneShape> shapes;
  for (const FormatId format : kCommonFormats) shapes.push_back({format, kCommonSize, kCommonSize, true});
  return shapes;
}

// One for each format and number of inputs among the model's matrices.
Result<std::vector<TuneShape>> shapes_of_model(const std::string& model, Console& console) {
  ASSIGN_OR_RETURN(const std::filesystem::path path, resolve_model(model, read_environment(), console));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_checkpoint(path.string()));
  std::map<std::pair<FormatId, int64_t>, int64_t> outputs;
  for (const SourceTensor& tensor : checkpoint.tensors().tensors()) {
    if (!tensor.format.has_value() || tensor.sizes.size() != 2) continue;
    const int64_t k = tensor.sizes[1];
    if (k > kMostInputs || k % quant_format(*tensor.format).values_per_block != 0) continue;
    int64_t& n = outputs[{*tensor.format, k}];
    n = std::max(n, std::min(tensor.sizes[0], kMostOutputs));
  }
  std::vector<TuneShape> shapes;
  for (const auto& [key, n] : outputs) shapes.push_back({key.first, n, key.second, false});
  if (shapes.empty()) return invalid_argument(path.string() + " has no matrices to tune for");
  return shapes;
}

void print(const TuneResult& result, bool is_json) {
  const std::string name(quant_format(result.shape.format).name);
  if (is_json) {
    json::object rows;
    for (const RowTimes& row : result.rows) {
      std::vector<double> sorted = row.seconds;
      std::sort(sorted.begin(), sorted.end());
      rows[row.row] = sorted.empty() ? json::value(nullptr) : json::value(1e6 * sorted[sorted.size() / 2]);
    }
    print_json_line(json::object{{"op", "linear"},
                                 {"format", name},
                                 {"n", result.shape.n},
                                 {"k", result.shape.k},
                                 {"min_tokens", result.tokens.min_tokens},
                                 {"max_tokens", result.tokens.max_tokens},
                                 {"row", result.rows[result.chosen].row},
                                 {"spread", widest_spread(result)},
                                 {"median_us", std::move(rows)}});
    return;
  }
  std::string text = fmt::format("linear {:<6} {:>6} x {:<6} {:>4} tokens  ", name, result.shape.n, result.shape.k,
                                 result.tokens.num_tokens);
  for (size_t i = 0; i < result.rows.size(); ++i) {
    std::vector<double> sorted = result.rows[i].seconds;
    std::sort(sorted.begin(), sorted.end());
    text += fmt::format("  {}{} {}", i == result.chosen ? "*" : "", result.rows[i].row,
                        sorted.empty() ? "alone" : fmt::format("{:.1f} us", 1e6 * sorted[sorted.size() / 2]));
  }
  if (const double spread = widest_spread(result); spread > kWideSpread) {
    text += fmt::format("   (spread {:.0f} %)", 100.0 * spread);
  }
  print_result(text + "\n");
}

Status forget(const std::filesystem::path& path, Console& console) {
  std::error_code error;
  const bool was_there = std::filesystem::remove(path, error);
  if (error) return unavailable(path.string() + " cannot be removed: " + error.message());
  console.info(was_there ? "removed " + path.string() : "there was no " + path.string());
  return ok_status();
}

// What is measured on the CPU is every row, for the formats of the model's files.
Status check_tunable(const EngineFlags& flags) {
  const std::string why = ": quire tune measures every way to multiply the weights that the files hold";
  if (flags.load_format == "dummy") return invalid_argument("--load-format dummy has no meaning here" + why);
  if (flags.quantization != "none") return invalid_argument("--quantization has no meaning here" + why);
  if (!flags.kernels.empty()) return invalid_argument("--kernel has no meaning here" + why);
  return ok_status();
}

Status tune_cpu(const TuneOptions& options, const std::filesystem::path& folder, Console& console) {
  RETURN_IF_ERROR(check_tunable(options.engine));
  const CpuInfo cpu = read_cpu_info();
  const TuningKey key = tuning_key(cpu, options.engine.num_threads);
  const std::filesystem::path path = tuning_path(folder, key);
  if (options.forgets) return forget(path, console);
  std::vector<TuneShape> shapes = common_shapes();
  if (!options.engine.model.empty()) {
    ASSIGN_OR_RETURN(shapes, shapes_of_model(options.engine.model, console));
  }
  if (!options.is_json) {
    print_result(
        "The median time of every way to multiply a matrix; * marks the one that is chosen, alone: there is no "
        "other.\n");
  }
  ThreadPool pool(key.num_threads);
  std::vector<TuneResult> results;
  const CpuClock begin = read_cpu_clock();
  for (const TuneShape& shape : shapes) {
    ASSIGN_OR_RETURN(const std::vector<TuneResult> measured, measure_shape(pool, cpu.features, shape, options.seconds));
    for (const TuneResult& result : measured) print(result, options.is_json);
    RETURN_IF_ERROR(check_results());
    results.insert(results.end(), measured.begin(), measured.end());
  }
  const Disturbance disturbance = disturbance_between(begin, read_cpu_clock());

  // What was found for other formats and shapes before stays.
  std::vector<TunedLinear> choices = choices_of(results);
  const auto is_measured_anew = [&](const TunedLinear& old) {
    return std::any_of(shapes.begin(), shapes.end(), [&](const TuneShape& shape) {
      return shape.format == old.format && (shape.is_for_any_k ? 0 : shape.k) == old.k;
    });
  };
  const size_t num_new = choices.size();
  Result<TunedChoices> before = read_tuning(path, key);
  if (!before.is_ok()) console.warn(before.status().message());
  if (before.is_ok()) {
    for (TunedLinear& old : before.value().linear) {
      if (!is_measured_anew(old)) choices.push_back(std::move(old));
    }
    std::stable_sort(choices.begin(), choices.end(),
                     [](const TunedLinear& a, const TunedLinear& b) { return (a.k == 0) < (b.k == 0); });
  }
  RETURN_IF_ERROR(write_tuning(path, key, {.linear = std::move(choices), .products = {}}));
  console.info(
      fmt::format("{} of {} choices differ from the usual ones; kept in {}", num_new, results.size(), path.string()));
  if (const std::string doubts = doubts_about(results, disturbance); !doubts.empty()) console.warn(doubts);
  return ok_status();
}

// A GPU where the flags name one, or where they name nothing, a model is given and there is one that later commands
// would take.
Status run(const TuneOptions& options) {
  RETURN_IF_ERROR(check_supported(options.engine));
  if (options.engine.backend == "reference") {
    return invalid_argument("--backend reference has one way for each op: there is nothing to tune");
  }
  Console console(parse_log_level(options.engine.log_level));
  const std::filesystem::path folder = read_environment().tuning_folder;
  if (wants_cuda(options.engine) || (names_no_device(options.engine) && !options.engine.model.empty())) {
    const Result<std::string> gpu = gpu_of_tuning(gpu_index(options.engine));
    if (wants_cuda(options.engine)) RETURN_IF_ERROR(gpu.status());
    if (gpu.is_ok()) {
      const TuningKey key = tuning_key(gpu.value());
      if (options.forgets) return forget(tuning_path(folder, key), console);
      return tune_gpu(options.engine, key, tuning_path(folder, key), options.is_json, console);
    }
  }
  return tune_cpu(options, folder, console);
}

}  // namespace

std::function<Status()> declare_tune(CLI::App& parser) {
  auto options = std::make_shared<TuneOptions>();
  add_engine_flags(parser, options->engine);
  parser.get_option("MODEL")->required(false)->description(
      "Tune for the matrices of this model; without it, for common formats on the CPU");
  parser.add_option("--seconds", options->seconds, "On the CPU: time for each matrix and range of tokens")
      ->check(number_in(0.0, 3600.0))
      ->capture_default_str();
  parser.add_flag("--forget", options->forgets, "Remove what was found on this machine");
  parser.add_flag("--json", options->is_json, "One JSON object a choice on stdout");
  return [options] { return run(*options); };
}

}  // namespace quire::app
