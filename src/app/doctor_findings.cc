#include "app/doctor_findings.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/format_bytes.h"

namespace quire::app {

namespace {

constexpr FindingLevel kGood = FindingLevel::kGood;
constexpr FindingLevel kNote = FindingLevel::kNote;
constexpr FindingLevel kProblem = FindingLevel::kProblem;

// From here on a share of the limit is one that other work than ours can hardly raise.
constexpr double kNearLimit = 0.7;

double percent(double share) {
  return 100.0 * share;
}

void look_at_threads(const DoctorFacts& facts, std::vector<Finding>& findings) {
  const CpuInfo& cpu = facts.machine.cpu;
  const int best = default_num_threads(cpu);
  if (facts.num_threads < best) {
    findings.push_back({kProblem, "threads",
                        fmt::format("{} of {} usable cores are used: leave --threads out, or raise it to {}",
                                    facts.num_threads, best, best)});
  } else if (facts.num_threads > best) {
    findings.push_back({kProblem, "threads",
                        fmt::format("{} threads share {} usable cores, so that each waits for others: lower --threads "
                                    "to {}",
                                    facts.num_threads, best, best)});
  } else {
    findings.push_back({kGood, "threads", fmt::format("{} threads, one on each usable core", facts.num_threads)});
  }
  if (facts.machine.num_online_cpus > cpu.num_allowed_cpus) {
    findings.push_back({kNote, "affinity",
                        fmt::format("this process may run on {} of the machine's {} processors (taskset, cpuset or a "
                                    "container's setting): allow more for more speed",
                                    cpu.num_allowed_cpus, facts.machine.num_online_cpus)});
  }
  if (cpu.quota_cpus > 0 && cpu.quota_cpus < cpu.num_physical_cores) {
    findings.push_back({kProblem, "quota",
                        fmt::format("a cgroup quota allows {:.2f} processors of {} cores: raise the container's CPU "
                                    "limit; whole numbers waste least",
                                    cpu.quota_cpus, cpu.num_physical_cores)});
  }
  if (facts.disturbance.throttled_share > kNotableThrottledShare) {
    findings.push_back({kProblem, "throttled",
                        fmt::format("the cgroup quota was used up and stopped this process for {:.0f} % of the time: "
                                    "raise the container's CPU limit, or lower --threads",
                                    percent(facts.disturbance.throttled_share))});
  }
}

void look_at_neighbours(const DoctorFacts& facts, std::vector<Finding>& findings) {
  const Disturbance& disturbance = facts.disturbance;
  if (disturbance.stolen_cpus > kNotableStolenCpus) {
    findings.push_back({kProblem, "steal",
                        fmt::format("other guests of this machine's host took {:.2f} processors meanwhile (steal "
                                    "time): figures are below what the processor can do; ask for dedicated cores, or "
                                    "measure again later",
                                    disturbance.stolen_cpus)});
  }
  if (disturbance.other_cpus > kNotableOtherCpus) {
    findings.push_back({kProblem, "busy",
                        fmt::format("other programs used {:.2f} processors meanwhile: stop them, or keep them on cores "
                                    "of their own (taskset)",
                                    disturbance.other_cpus)});
  }
  if (disturbance.stolen_cpus <= kNotableStolenCpus && disturbance.other_cpus <= kNotableOtherCpus) {
    findings.push_back({kGood, "quiet", "no other program or guest disturbed the measurement"});
  }
}

void look_at_settings(const DoctorFacts& facts, std::vector<Finding>& findings) {
  const MachineState& machine = facts.machine;
  if (machine.huge_pages == "never") {
    findings.push_back({kProblem, "huge_pages",
                        "transparent huge pages are off, which costs up to a quarter of the memory's speed: "
                        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"});
  } else if (!machine.huge_pages.empty()) {
    findings.push_back({kGood, "huge_pages", "weights and KV lie in huge pages (" + machine.huge_pages + ")"});
  }
  if (!machine.governor.empty() && machine.governor == "powersave") {
    findings.push_back({kNote, "governor",
                        "the frequency governor is powersave, which on some drivers keeps the clock low: "
                        "cpupower frequency-set -g performance"});
  }
  if (machine.own_swapped_bytes > 0) {
    findings.push_back({kProblem, "swapped",
                        format_bytes(machine.own_swapped_bytes) +
                            " of this process are swapped out: free memory, or use a smaller model or KV cache"});
  } else if (machine.swap_used_bytes > 0 && machine.available_bytes >= 0 && machine.memory_bytes > 0 &&
             10 * machine.available_bytes < machine.memory_bytes) {
    findings.push_back({kProblem, "swap",
                        fmt::format("memory is short ({} available, {} swapped out): weights may have to be read from "
                                    "the disk again; free memory",
                                    format_bytes(machine.available_bytes), format_bytes(machine.swap_used_bytes))});
  }
  if (machine.num_numa_nodes > 1) {
    findings.push_back({kNote, "numa",
                        fmt::format("{} memory nodes: a model that fits one is fastest when kept on it "
                                    "(numactl --cpunodebind=0 --membind=0), a larger one spread over all "
                                    "(numactl --interleave=all)",
                                    machine.num_numa_nodes)});
  }
}

void look_at_processor(const DoctorFacts& facts, std::vector<Finding>& findings) {
  const CpuFeatures& features = facts.machine.cpu.features;
#if defined(__x86_64__)
  if (!features.has_avx2()) {
    findings.push_back({kProblem, "instructions",
                        "no AVX2 with FMA and F16C here: the plain kernels run, many times slower; in a virtual "
                        "machine, let it see the host's processor (for QEMU: -cpu host)"});
  } else if (!features.has_avx512_vnni()) {
    findings.push_back({kNote, "instructions",
                        "no AVX-512 with VNNI here, so that integer weights are multiplied by AVX2; a processor with "
                        "VNNI reads prompts about three times as fast"});
  } else {
    findings.push_back({kGood, "instructions", "integer weights are multiplied by AVX-512 VNNI"});
  }
#else
  (void)features;
#endif
  const double ratio = facts.one_thread_limits.int8_gops > 0
                           ? facts.limits.int8_gops / (facts.one_thread_limits.int8_gops * facts.num_threads)
                           : 1.0;
  if (facts.num_threads > 1 && ratio < 0.75) {
    findings.push_back({kProblem, "cores",
                        fmt::format("{} threads together multiply at {:.0f} % of {} times one thread's rate: they "
                                    "share cores (hyperthreads), or the clock falls, or others run beside them",
                                    facts.num_threads, percent(ratio), facts.num_threads)});
  }
  if (facts.fork_join_us > 20) {
    findings.push_back(
        {kProblem, "fork_join",
         fmt::format("{} threads begin together only after {:.0f} us (a few on a quiet machine), which small "
                     "models feel: others run on these cores, or the host delays a virtual processor",
                     facts.num_threads, facts.fork_join_us)});
  }
  if (!facts.machine.gpus.empty() && facts.is_on_cpu) {
    findings.push_back({kProblem, "gpu",
                        fmt::format("there is a GPU ({}), which is not used: {}", facts.machine.gpus.front(),
                                    facts.why_no_gpu.empty() ? "leave --device out" : facts.why_no_gpu)});
  }
}

void look_at_prefill(const DoctorFacts& facts, const DoctorModel& model, std::vector<Finding>& findings) {
  if (!(model.limits.prefill_tok_s > 0)) return;
  const double share = model.prefill.median / model.limits.prefill_tok_s;
  const char* kind = arithmetic_name(model.arithmetic.linear);
  std::string text = fmt::format(
      "prefill reaches {:.0f} tok/s, {:.0f} % of what the processor's {} multiplications "
      "allow ({:.0f})",
      model.prefill.median, percent(share), kind, model.limits.prefill_tok_s);
  if (model.arithmetic.linear != Arithmetic::kInt8 && facts.machine.cpu.features.has_avx2()) {
    text += ": a quantized model (q8_0, q4_0) is multiplied as bytes, several times as fast";
  } else if (share >= kNearLimit) {
    text += ": only more cores, or a smaller model, would be faster";
  } else {
    text += ": the rest goes to activations, attention, and memory; longer prompts and more of them a step reach more";
  }
  findings.push_back({share < 0.3 ? kNote : kGood, "prefill", text});
}

void look_at_decode(const DoctorFacts& facts, const DoctorModel& model, std::vector<Finding>& findings) {
  if (!(model.limits.decode_tok_s > 0) || !(model.decode.median > 0)) return;
  const double share = model.decode.median / model.limits.decode_tok_s;
  const bool is_bound_by_reading = model.decode_read_tok_s <= model.decode_multiply_tok_s;
  std::string text = fmt::format(
      "decode reaches {:.1f} tok/s, {:.0f} % of what {} allows ({:.1f})", model.decode.median, percent(share),
      is_bound_by_reading ? fmt::format("reading at {:.1f} GB/s", facts.limits.read_gbps) : std::string("multiplying"),
      model.limits.decode_tok_s);
  if (share >= kNearLimit && is_bound_by_reading) {
    text += ": the memory limits it; ";
    text += model.bits_per_weight > 5 ? "fewer bits a weight (q4_0, q4_k_m) and " : "";
    text += "several sequences at once get more out of each byte read";
  } else if (share >= kNearLimit) {
    text += ": the processor's multiplications limit it";
  } else {
    const double step_us = 1e6 * model.cell.batch_size / model.decode.median;
    const double least_us = 1e6 * model.cell.batch_size / model.limits.decode_tok_s;
    text += fmt::format(
        ": a step takes {:.0f} us, of which {:.0f} are needed; the rest goes to giving work to threads, "
        "attention and sampling, which weigh more the smaller the model is",
        step_us, least_us);
  }
  findings.push_back({share < 0.3 ? kNote : kGood, "decode", text});
  if (model.decode.min < 0.8 * model.decode.max) {
    findings.push_back({kNote, "spread",
                        fmt::format("decode varied from {:.1f} to {:.1f} tok/s: something disturbs this machine",
                                    model.decode.min, model.decode.max)});
  }
}

}  // namespace

const char* finding_level_name(FindingLevel level) {
  switch (level) {
    case kGood:
      return "good";
    case kNote:
      return "note";
    case kProblem:
      return "problem";
  }
  return "";
}

std::vector<Finding> find_what_limits(const DoctorFacts& facts) {
  std::vector<Finding> findings;
  look_at_threads(facts, findings);
  look_at_neighbours(facts, findings);
  look_at_settings(facts, findings);
  look_at_processor(facts, findings);
  if (facts.model.has_value() && facts.is_on_cpu) {
    look_at_prefill(facts, *facts.model, findings);
    look_at_decode(facts, *facts.model, findings);
  }
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.level > b.level; });
  return findings;
}

}  // namespace quire::app
