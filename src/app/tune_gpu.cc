#include "app/tune_gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "app/bench_run.h"
#include "app/json_lines.h"
#include "app/model_session.h"
#include "ops/backends.h"

namespace quire::app {

namespace {

// Steps of all sizes: sequences that decode, and prompts. Algorithms are chosen for powers of two.
std::vector<BenchCell> steps_of(const MemoryPlan& plan) {
  std::vector<BenchCell> cells;
  for (int num_seqs = 1; num_seqs < plan.max_num_seqs; num_seqs *= 2) cells.push_back({num_seqs, 2, 2});
  cells.push_back({plan.max_num_seqs, 2, 2});
  const int64_t longest = std::min<int64_t>(plan.max_num_batched_tokens, plan.max_model_len - 2);
  for (int64_t length = 4; length < longest; length *= 2) cells.push_back({1, length, 1});
  cells.push_back({1, longest, 1});
  return cells;
}

auto place_of(const TunedProduct& product) {
  return std::tuple(product.n, product.k, product.dtype, product.y_dtype, product.has_residual, product.num_tokens);
}

std::string text_of(const TunedProduct& product) {
  return fmt::format("{} x {:>6} of {} and {}{}, {:>4} tokens: {}", product.n, product.k, dtype_name(product.dtype),
                     dtype_name(product.y_dtype), product.has_residual ? " with a sum" : "", product.num_tokens,
                     product.algorithm);
}

}  // namespace

Status tune_gpu(const EngineFlags& flags, const TuningKey& key, const std::filesystem::path& path, bool is_json,
                Console& console) {
  if (flags.model.empty()) return invalid_argument("a GPU is tuned for the matrices of a model: give a MODEL");
  ASSIGN_OR_RETURN(const ModelSession session,
                   open_model_session(flags, console, {.text = TextUse::kNone, .is_tuning = true}));
  const std::vector<BenchCell> cells = steps_of(session.engine->memory_plan());
  for (size_t i = 0; i < cells.size(); ++i) {
    console.progress_line(fmt::format("measuring products: step {} of {}", i + 1, cells.size()));
    RETURN_IF_ERROR(run_bench_cell(*session.engine, cells[i], i).status());
  }
  console.end_progress();

  std::map<decltype(place_of(TunedProduct())), TunedProduct> choices;
  const Result<TunedChoices> before = read_tuning(path, key);
  if (!before.is_ok()) console.warn(before.status().message());
  if (before.is_ok()) {
    for (const TunedProduct& old : before.value().products) choices[place_of(old)] = old;
  }
  const std::vector<TunedProduct> measured = tuned_products(*session.ops);
  for (const TunedProduct& product : measured) {
    choices[place_of(product)] = product;
    if (is_json) {
      print_json_line(to_json(product));
    } else {
      print_result(text_of(product) + "\n");
    }
  }
  RETURN_IF_ERROR(check_results());
  TunedChoices all;
  for (const auto& [place, product] : choices) all.products.push_back(product);
  RETURN_IF_ERROR(write_tuning(path, key, all));
  console.info(fmt::format("{} products measured; {} choices kept in {}", measured.size(), all.size(), path.string()));
  return ok_status();
}

}  // namespace quire::app
