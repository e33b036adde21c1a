// Times the kernel rows of linear layers: per row, format, shape and number of tokens the median time, GB/s of weights,
// GOP/s, and the share of what this machine can do, measured in the same run. Weights rotate through sets larger than
// the caches, data is random. One JSON object a line; a table with --table.
//
//   ops_bench [--format q4_1,f16] [--row NAME] [--tokens 1,512] [--shape 1536x576] [--threads N] [--compute f32]
//             [--seconds S] [--clock wall|cpu] [--table]
//
// --clock cpu counts the processor time of one thread (with --threads 1): of use on a machine that others share.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu_info.h"
#include "base/machine_limits.h"
#include "base/thread_pool.h"
#include "ops/cpu/linear.h"
#include "ops/host_memory.h"
#include "ops/tests/op_test_data.h"

namespace quire {
namespace {

// All weights of a case together: several times the largest third-level cache share that we know.
constexpr int64_t kRotatedBytes = int64_t{160} << 20;

struct Options {
  std::vector<std::string> formats = {"q4_1", "q8_0", "q4_k", "q6_k", "f16"};
  std::vector<int64_t> tokens = {1, 8, 512};
  std::vector<std::pair<int64_t, int64_t>> shapes = {{1536, 576}};  // n, k
  std::string row;
  int num_threads = 0;
  double seconds = 0.5;
  Compute compute = Compute::kAuto;
  bool is_table = false;
  bool counts_cpu_time = false;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

constexpr char kUsage[] =
    "usage: ops_bench [--format q4_1,f16] [--row NAME] [--tokens 1,512] [--shape 1536x576] [--threads N]\n"
    "                 [--compute f32] [--seconds S] [--clock wall|cpu] [--table]\n";

[[noreturn]] void end_with_usage(std::string_view flag) {
  std::fputs(kUsage, stderr);
  std::exit(flag == "--help" ? 0 : 2);
}

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--table") {
      options.is_table = true;
      continue;
    }
    if (i + 1 >= argc) end_with_usage(flag);
    const std::string value = argv[++i];
    if (flag == "--format") {
      options.formats = split(value);
    } else if (flag == "--row") {
      options.row = value;
    } else if (flag == "--tokens") {
      options.tokens.clear();
      for (const std::string& part : split(value)) options.tokens.push_back(std::atoll(part.c_str()));
    } else if (flag == "--shape") {
      options.shapes.clear();
      for (const std::string& part : split(value)) {
        long long n = 0;
        long long k = 0;
        if (std::sscanf(part.c_str(), "%lldx%lld", &n, &k) == 2) options.shapes.emplace_back(n, k);
      }
    } else if (flag == "--threads") {
      options.num_threads = std::atoi(value.c_str());
    } else if (flag == "--seconds") {
      options.seconds = std::atof(value.c_str());
    } else if (flag == "--clock") {
      options.counts_cpu_time = value == "cpu";
    } else if (flag == "--compute") {
      options.compute = value == "f32" ? Compute::kF32 : Compute::kAuto;
    } else {
      end_with_usage(flag);
    }
  }
  return options;
}

double now_seconds(const Options& options) {
  if (options.counts_cpu_time) return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void bench_case(const Options& options, ThreadPool& pool, const CpuInfo& info, const MachineLimits& limits,
                FormatId format, int64_t n, int64_t k, int64_t num_tokens) {
  if (k % quant_format(format).values_per_block != 0) return;
  TestRandom random(1);
  const FileWeight file = make_file_weight(random, format, n, k);
  cpu::WeightMemory memory;
  std::vector<Weight> sets;
  const int64_t num_sets = std::max<int64_t>(2, kRotatedBytes / static_cast<int64_t>(file.bytes.size()));
  for (int64_t i = 0; i < num_sets; ++i) {
    Result<Weight> packed = cpu::pack_weight(pool, memory, file.weight);
    if (!packed.is_ok()) {
      std::fprintf(stderr, "%s\n", packed.status().message().c_str());
      std::exit(1);
    }
    sets.push_back(packed.value());
  }
  // Activations lie in huge pages, as a model's do.
  Result<DeviceBuffer> scratch_block = allocate_host(256 << 20, "scratch");
  if (!scratch_block.is_ok()) std::exit(1);
  Arena scratch(std::move(scratch_block).value());
  const TensorView x = scratch.take(DType::kF32, {num_tokens, k});
  const TensorView y = scratch.take(DType::kF32, {num_tokens, n});
  const std::vector<float> values = random.normals(num_tokens * k);
  std::memcpy(x.data<float>(), values.data(), values.size() * sizeof(float));
  for (const KernelRow<cpu::LinearCall>& row : cpu::linear_rows()) {
    if (!options.row.empty() && row.name != options.row) continue;
    if (options.row.empty() && row.name.starts_with("scalar")) continue;
    std::vector<double> times;
    const auto run = [&](const Weight& weight) {
      const cpu::LinearCall call{pool, scratch, info.features, options.compute, y, x, weight};
      if (!row.accepts(call)) return false;
      cpu::linear(call, row.name);
      return true;
    };
    if (!run(sets[0])) continue;
    size_t next = 0;
    // A sample is a round over several sets, so that the clock costs nothing.
    const double weight_bytes = static_cast<double>(sets[0].num_bytes());
    const double operations = 2.0 * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(num_tokens);
    const int batch = static_cast<int>(std::clamp(2e8 / operations, 1.0, 64.0));
    const double end = now_seconds(options) + options.seconds;
    while (now_seconds(options) < end || times.size() < 5) {
      const double begin = now_seconds(options);
      for (int i = 0; i < batch; ++i) run(sets[next++ % sets.size()]);
      times.push_back((now_seconds(options) - begin) / batch);
    }
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2];
    const double low = times[times.size() / 10];
    const double high = times[times.size() * 9 / 10];
    const double gbps = weight_bytes / median * 1e-9;
    const double gops = operations / median * 1e-9;
    const double peak = row.name.ends_with("int8") ? limits.int8_gops : limits.f32_gflops;
    const double share = std::max(gbps / limits.read_gbps, gops / peak);
    const std::string_view name = quant_format(format).name;
    if (options.is_table) {
      std::printf("%-18.*s %-7.*s n %-6lld k %-6lld tokens %-5lld %9.2f us  %6.1f GB/s  %7.1f GOP/s  %5.1f %% of %s\n",
                  static_cast<int>(row.name.size()), row.name.data(), static_cast<int>(name.size()), name.data(),
                  static_cast<long long>(n), static_cast<long long>(k), static_cast<long long>(num_tokens),
                  median * 1e6, gbps, gops, share * 100, gbps / limits.read_gbps > gops / peak ? "read" : "compute");
    } else {
      std::printf(
          "{\"op\": \"linear\", \"row\": \"%.*s\", \"format\": \"%.*s\", \"n\": %lld, \"k\": %lld, \"tokens\": %lld, "
          "\"threads\": %d, \"median_us\": %.3f, \"p10_us\": %.3f, \"p90_us\": %.3f, \"samples\": %zu, "
          "\"gbps\": %.2f, \"gops\": %.2f, \"share_of_limit\": %.4f}\n",
          static_cast<int>(row.name.size()), row.name.data(), static_cast<int>(name.size()), name.data(),
          static_cast<long long>(n), static_cast<long long>(k), static_cast<long long>(num_tokens), pool.num_threads(),
          median * 1e6, low * 1e6, high * 1e6, times.size(), gbps, gops, share);
    }
    std::fflush(stdout);
  }
}

int main_with_options(const Options& options) {
  const CpuInfo info = read_cpu_info();
  ThreadPool pool(options.num_threads > 0 ? options.num_threads : default_num_threads(info));
  const MachineLimits limits = measure_machine_limits(pool, info.features);
  std::printf(options.is_table ? "%s, %d threads: read %.1f GB/s, int8 %.0f GOP/s, f32 %.0f GFLOP/s\n"
                               : "{\"machine\": \"%s\", \"threads\": %d, \"read_gbps\": %.2f, \"int8_gops\": %.1f, "
                                 "\"f32_gflops\": %.1f}\n",
              info.model_name.c_str(), pool.num_threads(), limits.read_gbps, limits.int8_gops, limits.f32_gflops);
  for (const std::string& name : options.formats) {
    const std::optional<FormatId> format = find_format_by_name(name);
    if (!format) {
      std::fprintf(stderr, "unknown format: %s\n", name.c_str());
      return 2;
    }
    for (const auto& [n, k] : options.shapes) {
      for (const int64_t num_tokens : options.tokens)
        bench_case(options, pool, info, limits, *format, n, k, num_tokens);
    }
  }
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::main_with_options(quire::parse_options(argc, argv));
}
