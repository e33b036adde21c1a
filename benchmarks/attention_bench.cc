// Times the kernel rows of attention over pages: prefill of 2,048 tokens in GFLOP/s and decoding in GB/s of KV, each
// with its share of what this machine can do, measured in the same run. The cache is larger than the processor's, on
// shuffled pages; data is random. One JSON object a line, with the memory that plan and call took beyond the problem
// itself; a table with --table.
//
// Rows of both orders run (--compute f32 or bf16: of one). --pages NAME, instead, is what pages cost: calls on pages
// and on the same cache with each sequence in one run take turns, after the bandwidth was measured in each round.
//
//   attention_bench [--row NAME] [--compute MODE] [--threads N] [--samples N] [--case NAME] [--table]
//   attention_bench --pages CASE [--rounds N] [--page-size N] [--row NAME] [--threads N] [--samples N]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu_info.h"
#include "base/machine_limits.h"
#include "base/thread_pool.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/tests/attention_problem.h"

namespace quire {
namespace {

struct Options {
  std::string row;
  std::string compute;
  std::string case_name;
  bool compares_pages = false;
  int num_threads = 0;
  int num_samples = 20;
  int num_rounds = 5;
  int page_size = 16;
  bool is_table = false;
};

constexpr char kUsage[] =
    "usage: attention_bench [--row NAME] [--compute f32|bf16] [--threads N] [--samples N] [--case NAME] [--table]\n"
    "       attention_bench --pages CASE [--rounds N] [--page-size N] [--row NAME] [--threads N] [--samples N]\n";

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--table") {
      options.is_table = true;
      continue;
    }
    const bool is_known = flag == "--row" || flag == "--compute" || flag == "--case" || flag == "--threads" ||
                          flag == "--samples" || flag == "--pages" || flag == "--rounds" || flag == "--page-size";
    if (!is_known || i + 1 >= argc) {
      std::fputs(kUsage, stderr);
      std::exit(flag == "--help" ? 0 : 2);
    }
    const std::string value = argv[++i];
    if (flag == "--row") options.row = value;
    if (flag == "--compute") options.compute = value;
    if (flag == "--case" || flag == "--pages") options.case_name = value;
    if (flag == "--pages") options.compares_pages = true;
    if (flag == "--page-size") options.page_size = std::max(1, std::atoi(value.c_str()));
    if (flag == "--rounds") options.num_rounds = std::max(1, std::atoi(value.c_str()));
    if (flag == "--threads") options.num_threads = std::atoi(value.c_str());
    if (flag == "--samples") options.num_samples = std::max(1, std::atoi(value.c_str()));
  }
  return options;
}

struct BenchCase {
  const char* name;
  AttentionCase attention_case;
};

std::vector<AttentionSequence> decoding(int num_sequences, int context_length) {
  std::vector<AttentionSequence> sequences;
  for (int s = 0; s < num_sequences; ++s) sequences.push_back({static_cast<uint64_t>(s), 1, context_length});
  return sequences;
}

std::vector<BenchCase> bench_cases() {
  const auto make = [](int num_heads, int num_kv_heads, int head_dim, DType dtype, int window,
                       std::vector<AttentionSequence> sequences) {
    AttentionCase made;
    made.num_heads = num_heads;
    made.num_kv_heads = num_kv_heads;
    made.head_dim = head_dim;
    made.dtype = dtype;
    made.params = {.scale = 0.125f, .window = window};
    made.sequences = std::move(sequences);
    return made;
  };
  const std::vector<AttentionSequence> prefill = {{1, 2048, 2048}};
  return {
      {"prefill_2k_d64_f16", make(9, 3, 64, DType::kF16, 0, prefill)},
      {"prefill_2k_d64_bf16", make(9, 3, 64, DType::kBF16, 0, prefill)},
      {"prefill_2k_d64_f32", make(9, 3, 64, DType::kF32, 0, prefill)},
      {"prefill_2k_d64_mha_f32", make(8, 8, 64, DType::kF32, 0, prefill)},
      {"prefill_2k_d64_mha_bf16", make(8, 8, 64, DType::kBF16, 0, prefill)},
      {"prefill_4k_d64_mha_f32", make(8, 8, 64, DType::kF32, 0, {{1, 4096, 4096}})},
      {"prefill_8k_d64_mha_f32", make(8, 8, 64, DType::kF32, 0, {{1, 8192, 8192}})},
      {"prefill_2k_d128_f16", make(8, 2, 128, DType::kF16, 0, prefill)},
      {"prefill_2k_d128_bf16", make(8, 2, 128, DType::kBF16, 0, prefill)},
      {"prefill_2k_d128_mha_f32", make(4, 4, 128, DType::kF32, 0, prefill)},
      {"prefill_2k_d128_mha_bf16", make(4, 4, 128, DType::kBF16, 0, prefill)},
      {"prefill_2k_d256_window512_f16", make(4, 1, 256, DType::kF16, 512, prefill)},
      {"decode_24x4k_d64_f16", make(9, 3, 64, DType::kF16, 0, decoding(24, 4096))},
      {"decode_24x4k_d64_bf16", make(9, 3, 64, DType::kBF16, 0, decoding(24, 4096))},
      {"decode_24x4k_d64_mha_f16", make(3, 3, 64, DType::kF16, 0, decoding(24, 4096))},
      {"decode_12x4k_d64_f32", make(9, 3, 64, DType::kF32, 0, decoding(12, 4096))},
      {"decode_16x4k_d128_f16", make(8, 2, 128, DType::kF16, 0, decoding(16, 4096))},
      {"decode_16x4k_d128_bf16", make(8, 2, 128, DType::kBF16, 0, decoding(16, 4096))},
      {"decode_1x64k_d128_f16", make(8, 2, 128, DType::kF16, 0, decoding(1, 65536))},
      {"decode_1x32k_d128_f32", make(8, 2, 128, DType::kF32, 0, decoding(1, 32768))},
      {"decode_1x64k_d128_bf16", make(8, 2, 128, DType::kBF16, 0, decoding(1, 65536))},
  };
}

// A number of /proc/self/status, in bytes ("VmRSS", "VmHWM"); 0 where there is none.
int64_t status_bytes(const char* name) {
  std::ifstream status("/proc/self/status");
  std::string key;
  int64_t kilobytes = 0;
  while (status >> key) {
    if (key == std::string(name) + ":" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

// The highest resident size is counted anew from here on.
int64_t reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
  return status_bytes("VmRSS");
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Multiplications and additions of q·k and p·v for the keys that are seen.
double operations_of(const AttentionCase& c) {
  double pairs = 0;
  for (const AttentionSequence& sequence : c.sequences) {
    for (int i = 0; i < sequence.num_queries; ++i) {
      const int seen = sequence.context_length - sequence.num_queries + i + 1;
      pairs += c.params.window > 0 ? std::min(seen, c.params.window) : seen;
    }
  }
  return 4.0 * pairs * c.head_dim * c.num_heads;
}

double kv_bytes_of(const AttentionCase& c) {
  double tokens = 0;
  for (const AttentionSequence& sequence : c.sequences) tokens += sequence.context_length;
  return 2.0 * tokens * c.num_kv_heads * c.head_dim * static_cast<double>(dtype_bytes(c.dtype));
}

// One row's calls on a problem.
class Runner {
 public:
  Runner(AttentionProblem& problem, std::string_view row, Compute compute, int num_threads)
      : problem_(problem),
        ops_(make_ops(row, compute, num_threads)),
        // Its memory is there before that of the op is counted.
        out_(static_cast<size_t>(problem.num_tokens() * problem.row_size()), 0.0f),
        resident_bytes_(reset_peak()),
        arena_(ops_->allocate(4096, "scratch").value()),
        plan_(ops_->create_attention_plan(problem.geometry()).value()) {}

  // Seconds.
  double run() {
    const AttentionCase& c = problem_.attention_case();
    const TensorView out = TensorView(out_.data(), DType::kF32, {problem_.num_tokens(), problem_.row_size()})
                               .split_last_dimension(c.head_dim);
    OpContext context{arena_};
    const double begin = now_seconds();
    ops_->plan_attention(context, *plan_, problem_.batch());
    ops_->attention(context, out, problem_.q(), problem_.kv(), problem_.batch(), *plan_, c.params);
    return now_seconds() - begin;
  }

  // Since this was made.
  int64_t peak_bytes() const { return status_bytes("VmHWM") - resident_bytes_; }

 private:
  static std::unique_ptr<CpuOps> make_ops(std::string_view row, Compute compute, int num_threads) {
    BackendOptions backend;
    backend.compute = compute;
    backend.num_threads = num_threads;
    backend.forced_kernels["attention"] = std::string(row);
    return CpuOps::create(backend).value();
  }

  AttentionProblem& problem_;
  std::unique_ptr<CpuOps> ops_;
  std::vector<float> out_;
  int64_t resident_bytes_;
  Arena arena_;
  std::unique_ptr<AttentionPlan> plan_;
};

// Of sorted numbers.
double quantile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5)];
}

void bench_row(const Options& options, const MachineLimits& limits, const BenchCase& bench, AttentionProblem& problem,
               std::string_view row, Compute compute, int num_threads) {
  const AttentionCase& c = bench.attention_case;
  Runner runner(problem, row, compute, num_threads);
  std::vector<double> times;
  for (int i = 0; i < options.num_samples + 2; ++i) {
    const double seconds = runner.run();
    if (i >= 2) times.push_back(seconds);  // two to warm up
  }
  const int64_t peak_bytes = runner.peak_bytes();
  std::sort(times.begin(), times.end());
  const double median = quantile(times, 0.5);
  const double gflops = operations_of(c) / median * 1e-9;
  const double gbps = kv_bytes_of(c) / median * 1e-9;
  const double most_gflops = compute == Compute::kF32 ? limits.f32_gflops : limits.bf16_gflops;
  const bool is_bound_by_reading = gbps / limits.read_gbps > gflops / most_gflops;
  const double share = std::max(gbps / limits.read_gbps, gflops / most_gflops);
  std::printf(options.is_table
                  ? "%-30s %-20s %d threads %9.3f ms (%.3f to %.3f)  %6.1f GFLOP/s  %5.1f GB/s  %4.1f %% of %s\n"
                  : "{\"op\": \"attention\", \"case\": \"%s\", \"row\": \"%s\", \"threads\": %d, \"median_ms\": %.4f, "
                    "\"p10_ms\": %.4f, \"p90_ms\": %.4f, \"gflops\": %.2f, \"kv_gbps\": %.2f, \"percent_of_limit\": "
                    "%.1f, \"limit\": \"%s\", \"peak_bytes\": %lld}\n",
              bench.name, std::string(row).c_str(), num_threads, median * 1e3, quantile(times, 0.1) * 1e3,
              quantile(times, 0.9) * 1e3, gflops, gbps, share * 100, is_bound_by_reading ? "read" : "compute",
              static_cast<long long>(peak_bytes));
  std::fflush(stdout);
}

// A line a round: the bandwidth, then calls on pages and on one run in turns, pair by pair.
void compare_pages(const Options& options, const CpuInfo& info, const BenchCase& bench, AttentionProblem& paged,
                   AttentionProblem& one_run, std::string_view row, Compute compute, int num_threads) {
  Runner on_pages(paged, row, compute, num_threads);
  Runner on_one_run(one_run, row, compute, num_threads);
  ThreadPool pool(num_threads);
  const double bytes = kv_bytes_of(bench.attention_case);
  for (int round = 0; round < options.num_rounds; ++round) {
    const double read_gbps = measure_machine_limits(pool, info.features).read_gbps;
    std::vector<double> paged_times;
    std::vector<double> one_run_times;
    std::vector<double> ratios;
    for (int i = 0; i < options.num_samples + 2; ++i) {
      const bool is_paged_first = i % 2 == 0;
      const double first = (is_paged_first ? on_pages : on_one_run).run();
      const double second = (is_paged_first ? on_one_run : on_pages).run();
      if (i < 2) continue;
      paged_times.push_back(is_paged_first ? first : second);
      one_run_times.push_back(is_paged_first ? second : first);
      ratios.push_back(paged_times.back() / one_run_times.back());
    }
    for (std::vector<double>* all : {&paged_times, &one_run_times, &ratios}) std::sort(all->begin(), all->end());
    const double median = quantile(paged_times, 0.5);
    std::printf(
        "{\"op\": \"attention\", \"case\": \"%s\", \"row\": \"%s\", \"machine\": \"%s\", \"threads\": %d, "
        "\"page_size\": %d, \"kv_mb\": "
        "%.1f, "
        "\"read_gbps\": %.2f, \"paged_ms\": %.4f, \"paged_p10_ms\": %.4f, \"paged_p90_ms\": %.4f, \"one_run_ms\": "
        "%.4f, "
        "\"one_run_p10_ms\": %.4f, \"one_run_p90_ms\": %.4f, \"ratio\": %.4f, \"ratio_p10\": %.4f, \"ratio_p90\": "
        "%.4f, "
        "\"paged_gbps\": %.2f, \"percent_of_read\": %.1f}\n",
        bench.name, std::string(row).c_str(), info.model_name.c_str(), num_threads, paged.attention_case().page_size,
        bytes * 1e-6, read_gbps, median * 1e3, quantile(paged_times, 0.1) * 1e3, quantile(paged_times, 0.9) * 1e3,
        quantile(one_run_times, 0.5) * 1e3, quantile(one_run_times, 0.1) * 1e3, quantile(one_run_times, 0.9) * 1e3,
        quantile(ratios, 0.5), quantile(ratios, 0.1), quantile(ratios, 0.9), bytes / median * 1e-9,
        bytes / median * 1e-7 / read_gbps);
    std::fflush(stdout);
  }
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"  // rows look at processor and mode alone

// Calls body(row's name, mode) for the rows that are asked for; of each order the best one, or all but the scalar ones.
template <typename Body>
void for_each_row(const Options& options, const CpuInfo& info, bool best_only, Body&& body) {
  for (const Compute compute : {Compute::kF32, Compute::kBF16}) {
    if (!options.compute.empty() && (options.compute == "f32") != (compute == Compute::kF32)) continue;
    cpu::AttentionInputs inputs{info.features};
    inputs.compute = compute;
    for (const auto& row : cpu::attention_rows()) {
      const bool is_wanted = options.row.empty() ? !row.name.starts_with("scalar") : row.name == options.row;
      if (!is_wanted || !row.accepts({inputs, nullptr, 0, nullptr})) continue;
      body(row.name, compute);
      if (best_only) break;
    }
  }
}

int main_with_options(const Options& options) {
  const CpuInfo info = read_cpu_info();
  const int num_threads = options.num_threads > 0 ? options.num_threads : default_num_threads(info);
  if (options.compares_pages) {
    for (const BenchCase& bench : bench_cases()) {
      if (options.case_name != bench.name) continue;
      AttentionCase one_run_case = bench.attention_case;
      one_run_case.page_size = one_run_case.sequences[0].context_length;
      AttentionCase paged_case = bench.attention_case;
      paged_case.page_size = options.page_size;
      AttentionProblem paged(paged_case);
      AttentionProblem one_run(one_run_case);
      for_each_row(options, info, true, [&](std::string_view row, Compute compute) {
        compare_pages(options, info, bench, paged, one_run, row, compute, num_threads);
      });
    }
    return 0;
  }
  MachineLimits limits;
  {
    ThreadPool pool(num_threads);
    limits = measure_machine_limits(pool, info.features);
  }
  std::printf(options.is_table ? "%s, %d threads: read %.1f GB/s, f32 %.0f GFLOP/s, bf16 %.0f GFLOP/s\n"
                               : "{\"machine\": \"%s\", \"threads\": %d, \"read_gbps\": %.2f, \"f32_gflops\": %.1f, "
                                 "\"bf16_gflops\": %.1f}\n",
              info.model_name.c_str(), num_threads, limits.read_gbps, limits.f32_gflops, limits.bf16_gflops);
  for (const BenchCase& bench : bench_cases()) {
    if (!options.case_name.empty() && options.case_name != bench.name) continue;
    AttentionProblem problem(bench.attention_case);
    for_each_row(options, info, false, [&](std::string_view row, Compute compute) {
      bench_row(options, limits, bench, problem, row, compute, num_threads);
    });
  }
  return 0;
}

#pragma GCC diagnostic pop

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::main_with_options(quire::parse_options(argc, argv));
}
