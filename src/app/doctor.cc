// `quire doctor`: what this machine can do, measured; with a model, how much of that the model gets; and in words what
// limits it and what to do. Main thread.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <chrono>

#include "app/command.h"
#include "app/console.h"
#include "app/doctor_findings.h"
#include "app/doctor_machine.h"
#include "app/json_lines.h"
#include "app/model_session.h"
#include "app/options.h"
#include "base/format_bytes.h"
#include "ops/backends.h"
#include "ops/cpu/kernel_choices.h"

namespace quire::app {

namespace json = boost::json;

namespace {

struct DoctorOptions {
  EngineFlags engine;
  BenchCell cell{.batch_size = 1, .prompt_len = 512, .gen_len = 64};
  int repeats = 3;
  bool is_json = false;
};

constexpr FormatId kShownFormats[] = {FormatId::kF16,  FormatId::kBF16, FormatId::kQ8_0,
                                      FormatId::kQ4_0, FormatId::kQ4_1, FormatId::kQ4_K};

// The median time until every thread has got some of the work and all have given it back. Each waits inside for the
// others, or one thread could do all before they wake; not for longer than a millisecond, where a thread gets no core.
double measure_fork_join_us(ThreadPool& pool) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (int call = 0; call < 501; ++call) {
    const auto begin = Clock::now();
    std::atomic<int> num_arrived = 0;
    pool.parallel_for(pool.num_threads(), 1, [&](const WorkRange&) {
      num_arrived.fetch_add(1);
      while (num_arrived.load() < pool.num_threads() && Clock::now() - begin < std::chrono::milliseconds(1)) {
      }
    });
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return spread_of(times).median * 1e6;
}

void measure_processor(const EngineFlags& flags, DoctorFacts& facts) {
  const CpuInfo& cpu = facts.machine.cpu;
  ThreadPool one_thread(1);
  ThreadPool pool(flags.num_threads > 0 ? flags.num_threads : default_num_threads(cpu));
  facts.num_threads = pool.num_threads();
  facts.limits = measure_machine_limits(pool, cpu.features);
  facts.one_thread_limits = pool.num_threads() > 1 ? measure_machine_limits(one_thread, cpu.features) : facts.limits;
  facts.fork_join_us = pool.num_threads() > 1 ? measure_fork_join_us(pool) : 0.0;
}

Status measure_model(const DoctorOptions& options, Console& console, DoctorFacts& facts) {
  ASSIGN_OR_RETURN(ModelSession session, open_model_session(options.engine, console, {.text = TextUse::kNone}));
  DoctorModel model;
  model.cell = options.cell;
  // A small context is no reason to know nothing of the model.
  const int64_t context = session.engine->limits().max_model_len;
  model.cell.prompt_len = std::min(model.cell.prompt_len, std::max<int64_t>(1, context / 2));
  model.cell.gen_len = std::min(model.cell.gen_len, std::max<int64_t>(1, context / 4));
  std::vector<double> prefill;
  std::vector<double> decode;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    console.progress_line(fmt::format("measuring, {} of {}", repeat + 1, options.repeats));
    ASSIGN_OR_RETURN(const BenchTimes times,
                     run_bench_cell(*session.engine, model.cell, 2 * static_cast<uint64_t>(repeat) + 1));
    prefill.push_back(times.prefill_tok_s);
    decode.push_back(times.decode_tok_s);
  }
  console.end_progress();
  model.prefill = spread_of(prefill);
  model.decode = spread_of(decode);
  model.arithmetic = session.arithmetic;
  model.bits_per_weight =
      8.0 * static_cast<double>(session.model->weight_bytes()) / num_multiplied_weights(session.model->config());
  facts.is_on_cpu = session.ops->device().kind == DeviceKind::kCpu;
  if (facts.is_on_cpu && facts.limits.read_gbps > 0) {
    const BenchWork work{session.model->config(), session.model->weight_bytes(),
                         session.engine->memory_plan().kv_bytes_per_token, model.arithmetic};
    constexpr double kNoLimit = 1e12;
    model.limits = bench_limits(work, model.cell, facts.limits);
    model.decode_read_tok_s =
        bench_limits(work, model.cell, {facts.limits.read_gbps, kNoLimit, kNoLimit, kNoLimit}).decode_tok_s;
    model.decode_multiply_tok_s =
        bench_limits(work, model.cell,
                     {kNoLimit, facts.limits.int8_gops, facts.limits.bf16_gflops, facts.limits.f32_gflops})
            .decode_tok_s;
  }
  facts.model = model;
  return ok_status();
}

// Whether a GPU would be used, where no flag speaks against it.
void look_for_gpu(const EngineFlags& flags, DoctorFacts& facts) {
  if (facts.machine.gpus.empty()) return;
  if (flags.device == "cpu" || flags.backend == "cpu" || flags.backend == "reference") {
    facts.why_no_gpu = "the flags ask for the CPU";
    return;
  }
  BackendOptions options;
  options.kind = BackendKind::kCuda;
  const Result<std::unique_ptr<Ops>> ops = create_ops(options);
  facts.is_on_cpu = !ops.is_ok();
  if (!ops.is_ok()) facts.why_no_gpu = ops.status().message();
}

json::object to_json(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

json::object to_json(const MachineLimits& limits) {
  return {{"read_gb_s", limits.read_gbps},
          {"int8_gop_s", limits.int8_gops},
          {"bf16_gflop_s", limits.bf16_gflops},
          {"f32_gflop_s", limits.f32_gflops}};
}

json::value known_bytes(int64_t num_bytes) {
  return num_bytes >= 0 ? json::value(num_bytes) : json::value(nullptr);
}

json::value known_text(const std::string& text) {
  return text.empty() ? json::value(nullptr) : json::value(text);
}

json::object describe_machine(const DoctorFacts& facts) {
  const MachineState& machine = facts.machine;
  return {{"cpu", machine.cpu.model_name},
          {"features", shown_features(machine.cpu.features)},
          {"online_cpus", machine.num_online_cpus},
          {"allowed_cpus", machine.cpu.num_allowed_cpus},
          {"physical_cores", machine.cpu.num_physical_cores},
          {"quota_cpus", machine.cpu.quota_cpus > 0 ? json::value(machine.cpu.quota_cpus) : json::value(nullptr)},
          {"numa_nodes", machine.num_numa_nodes},
          {"threads", facts.num_threads},
          {"memory_bytes", known_bytes(machine.memory_bytes)},
          {"available_bytes", known_bytes(machine.available_bytes)},
          {"swap_bytes", known_bytes(machine.swap_bytes)},
          {"swap_used_bytes", known_bytes(machine.swap_used_bytes)},
          {"huge_pages", known_text(machine.huge_pages)},
          {"governor", known_text(machine.governor)},
          {"gpus", json::value_from(machine.gpus)}};
}

json::object describe_measurements(const DoctorFacts& facts) {
  return {{"all_threads", to_json(facts.limits)},
          {"one_thread", to_json(facts.one_thread_limits)},
          {"fork_join_us", facts.fork_join_us},
          {"meanwhile", json::object{{"stolen_cpus", facts.disturbance.stolen_cpus},
                                     {"other_cpus", facts.disturbance.other_cpus},
                                     {"throttled_share", facts.disturbance.throttled_share}}}};
}

json::object describe_kernels(const DoctorOptions& options, const DoctorFacts& facts) {
  json::object kernels;
  for (const cpu::KernelChoice& choice : cpu::kernel_choices(
           facts.machine.cpu.features, choose_compute(options.engine.compute, DeviceKind::kCpu, WeightKind::kInteger),
           kShownFormats)) {
    std::string row = choice.rows.empty() ? std::string() : std::string(choice.rows.front());
    for (const std::string& forced : options.engine.kernels) {
      if (forced.compare(0, choice.op.size() + 1, choice.op + "=") != 0) continue;
      const std::string_view wanted = std::string_view(forced).substr(choice.op.size() + 1);
      if (std::find(choice.rows.begin(), choice.rows.end(), wanted) != choice.rows.end()) row = wanted;
    }
    kernels[choice.format.empty() ? choice.op : choice.op + " " + choice.format] = row;
  }
  return kernels;
}

json::object describe_model(const DoctorModel& model) {
  json::object text = {{"prompt_len", model.cell.prompt_len},
                       {"gen_len", model.cell.gen_len},
                       {"prefill_tok_s", to_json(model.prefill)},
                       {"decode_tok_s", to_json(model.decode)}};
  if (model.limits.decode_tok_s > 0) {
    text["limit"] = json::object{{"prefill_tok_s", model.limits.prefill_tok_s},
                                 {"decode_tok_s", model.limits.decode_tok_s},
                                 {"decode_read_tok_s", model.decode_read_tok_s},
                                 {"decode_multiply_tok_s", model.decode_multiply_tok_s}};
    text["share_of_limit"] = json::object{{"prefill", model.prefill.median / model.limits.prefill_tok_s},
                                          {"decode", model.decode.median / model.limits.decode_tok_s}};
  }
  return text;
}

void print_report(const DoctorOptions& options, const DoctorFacts& facts, const std::vector<Finding>& findings) {
  const MachineState& machine = facts.machine;
  const auto line = [](const char* name, const std::string& text) {
    print_result(fmt::format("{:<14}{}\n", name, text));
  };
  const auto bytes = [](int64_t count) { return count >= 0 ? format_bytes(count) : std::string("unknown"); };
  line("processor", machine.cpu.model_name);
  line("instructions", shown_features(machine.cpu.features));
  line("cores", fmt::format("{} usable, {} processors allowed of {}{}", machine.cpu.num_physical_cores,
                            machine.cpu.num_allowed_cpus, machine.num_online_cpus,
                            machine.cpu.quota_cpus > 0 ? fmt::format(", quota {:.2f}", machine.cpu.quota_cpus) : ""));
  line("threads", fmt::format("{}, {:.1f} us to give work to all", facts.num_threads, facts.fork_join_us));
  line("memory",
       fmt::format("{}, {} available; swap {}, {} used", bytes(machine.memory_bytes), bytes(machine.available_bytes),
                   bytes(machine.swap_bytes), bytes(machine.swap_used_bytes)));
  line("huge pages", machine.huge_pages.empty() ? "unknown" : machine.huge_pages);
  std::string gpus;
  for (const std::string& gpu : machine.gpus) gpus += (gpus.empty() ? "" : ", ") + gpu;
  line("GPU", gpus.empty() ? "none found" : gpus);
  const auto rates = [](const MachineLimits& limits) {
    if (!(limits.read_gbps > 0)) return std::string("not measured on this processor");
    return fmt::format("reads {:.1f} GB/s, multiplies {:.0f} int8 GOP/s, {:.0f} bf16 and {:.0f} f32 GFLOP/s",
                       limits.read_gbps, limits.int8_gops, limits.bf16_gflops, limits.f32_gflops);
  };
  line("all threads", rates(facts.limits));
  line("one thread", rates(facts.one_thread_limits));
  std::string kernels;
  for (const auto& [op, row] : describe_kernels(options, facts)) {
    kernels += (kernels.empty() ? "" : ", ") + std::string(op) + " " + std::string(row.get_string());
  }
  line("kernels", kernels);
  if (facts.model.has_value()) {
    const DoctorModel& model = *facts.model;
    const auto phase = [](const Spread& spread, double limit) {
      std::string text = fmt::format("{:.1f} tok/s ({:.1f}..{:.1f})", spread.median, spread.min, spread.max);
      if (limit > 0) text += fmt::format(", {:.0f} % of {:.1f}", 100.0 * spread.median / limit, limit);
      return text;
    };
    line("prefill",
         fmt::format("{} of {} tokens", phase(model.prefill, model.limits.prefill_tok_s), model.cell.prompt_len));
    line("decode",
         fmt::format("{} after {} tokens", phase(model.decode, model.limits.decode_tok_s), model.cell.prompt_len));
  }
  print_result("\n");
  for (const Finding& finding : findings)
    print_result(fmt::format("{:<9}{}\n", finding_level_name(finding.level), finding.text));
}

Status run(const DoctorOptions& options) {
  Console console(parse_log_level(options.engine.log_level));
  RETURN_IF_ERROR(check_supported(options.engine));
  DoctorFacts facts;
  facts.machine = read_machine_state();
  look_for_gpu(options.engine, facts);
  const CpuClock before = read_cpu_clock();
  measure_processor(options.engine, facts);
  facts.disturbance = disturbance_between(before, read_cpu_clock());
  if (!options.engine.model.empty()) {
    RETURN_IF_ERROR(measure_model(options, console, facts));
    facts.machine.own_swapped_bytes = read_machine_state().own_swapped_bytes;
  }

  const std::vector<Finding> findings = find_what_limits(facts);
  if (!options.is_json) {
    print_report(options, facts, findings);
    return ok_status();
  }
  json::array told;
  for (const Finding& finding : findings) {
    told.push_back(
        json::object{{"level", finding_level_name(finding.level)}, {"id", finding.id}, {"text", finding.text}});
  }
  print_json_line(json::object{{"version", QUIRE_VERSION},
                               {"machine", describe_machine(facts)},
                               {"measured", describe_measurements(facts)},
                               {"kernels", describe_kernels(options, facts)},
                               {"model", facts.model.has_value() ? json::value(describe_model(*facts.model)) : nullptr},
                               {"findings", std::move(told)}});
  return ok_status();
}

}  // namespace

std::function<Status()> declare_doctor(CLI::App& parser) {
  auto options = std::make_shared<DoctorOptions>();
  add_engine_flags(parser, options->engine);
  parser.get_option("MODEL")->required(false)->description(
      "Measure this model too: a GGUF file, a Hugging Face folder, a name from `quire models`, or ORG/NAME[:QUANT]");
  parser.add_option("--prompt-len", options->cell.prompt_len, "Tokens of the model's prompts")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  parser.add_option("--gen-len", options->cell.gen_len, "Tokens to generate")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  parser.add_option("--repeats", options->repeats, "Measurements of the model; the median is shown")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  parser.add_flag("--json", options->is_json, "One JSON object on stdout");
  return [options] { return run(*options); };
}

}  // namespace quire::app
