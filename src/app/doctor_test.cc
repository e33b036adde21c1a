// What the doctor reads of made-up machines, and what it concludes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "app/doctor_findings.h"
#include "app/doctor_machine.h"

namespace quire::app {
namespace {

class FakeMachine {
 public:
  FakeMachine() : root_(testing::TempDir() + "/quire_doctor_machine_" + std::to_string(::getpid())) {
    std::filesystem::remove_all(root_);
  }
  ~FakeMachine() { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

TEST(DoctorMachine, ReadsWhatTheSystemTells) {
  FakeMachine machine;
  machine.write("/proc/cpuinfo", "model name\t: Test CPU 9000\n");
  machine.write("/proc/meminfo",
                "MemTotal:       8000 kB\nMemAvailable:   2000 kB\nSwapTotal:      1000 kB\nSwapFree:        400 kB\n");
  machine.write("/proc/self/status", "Cpus_allowed_list:\t0-1\nVmSwap:\t     12 kB\n");
  for (const char* cpu : {"cpu0", "cpu1", "cpu2", "cpufreq", "cpuidle"})
    machine.write(std::string("/sys/devices/system/cpu/") + cpu + "/x", "");
  machine.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  machine.write("/sys/devices/system/node/node0/x", "");
  machine.write("/sys/devices/system/node/node1/x", "");
  machine.write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  machine.write("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t Test GPU\nIRQ: 1\n");
  const MachineState state = read_machine_state(machine.root());
  EXPECT_EQ(state.cpu.model_name, "Test CPU 9000");
  EXPECT_EQ(state.cpu.num_allowed_cpus, 2);
  EXPECT_EQ(state.num_online_cpus, 3);
  EXPECT_EQ(state.num_numa_nodes, 2);
  EXPECT_EQ(state.governor, "powersave");
  EXPECT_EQ(state.huge_pages, "madvise");
  EXPECT_EQ(state.memory_bytes, 8000 * 1024);
  EXPECT_EQ(state.available_bytes, 2000 * 1024);
  EXPECT_EQ(state.swap_bytes, 1000 * 1024);
  EXPECT_EQ(state.swap_used_bytes, 600 * 1024);
  EXPECT_EQ(state.own_swapped_bytes, 12 * 1024);
  EXPECT_EQ(state.gpus, std::vector<std::string>{"Test GPU"});
}

TEST(DoctorMachine, WhatNothingTellsIsUnknown) {
  const MachineState state = read_machine_state("/no/such/root");
  EXPECT_EQ(state.huge_pages, "");
  EXPECT_EQ(state.memory_bytes, -1);
  EXPECT_EQ(state.available_bytes, -1);
  EXPECT_EQ(state.swap_used_bytes, -1);
  EXPECT_TRUE(state.gpus.empty());
  const CpuClock clock = read_cpu_clock("/no/such/root");
  EXPECT_EQ(clock.busy_s, 0.0);
  EXPECT_EQ(clock.throttled_s, 0.0);
}

TEST(DoctorMachine, ClocksTellWhatOthersTook) {
  FakeMachine machine;
  machine.write("/proc/stat", "cpu  1000 0 0 5000 0 0 0 0 0 0\ncpu0 1 2 3\n");
  machine.write("/proc/self/cgroup", "0::/box\n");
  machine.write("/sys/fs/cgroup/box/cpu.stat", "usage_usec 5\nthrottled_usec 1000000\n");
  CpuClock before = read_cpu_clock(machine.root());
  machine.write("/proc/stat", "cpu  1300 0 100 5000 50 0 0 100 0 0\n");
  machine.write("/sys/fs/cgroup/box/cpu.stat", "usage_usec 5\nthrottled_usec 1500000\n");
  CpuClock after = read_cpu_clock(machine.root());
  before.wall_s = 10.0;
  after.wall_s = 12.0;
  before.own_s = 1.0;
  after.own_s = 4.0;
  const Disturbance disturbance = disturbance_between(before, after);
  const double tick_s = 1.0 / 100;  // what Linux uses
  EXPECT_NEAR(disturbance.stolen_cpus, 100 * tick_s / 2.0, 1e-9);
  EXPECT_NEAR(disturbance.other_cpus, (400 * tick_s - 3.0) / 2.0, 1e-9);
  EXPECT_NEAR(disturbance.throttled_share, 0.25, 1e-9);
  EXPECT_EQ(disturbance_between(after, after).other_cpus, 0.0);
}

// A machine without fault.
DoctorFacts good_facts() {
  DoctorFacts facts;
  facts.machine.cpu.num_allowed_cpus = 4;
  facts.machine.cpu.num_physical_cores = 4;
  CpuFeatures& features = facts.machine.cpu.features;
  features.avx2 = features.fma = features.f16c = true;
  features.avx512f = features.avx512bw = features.avx512vl = features.avx512dq = features.avx512_vnni = true;
  facts.machine.num_online_cpus = 4;
  facts.machine.num_numa_nodes = 1;
  facts.machine.huge_pages = "madvise";
  facts.machine.memory_bytes = int64_t{16} << 30;
  facts.machine.available_bytes = int64_t{8} << 30;
  facts.machine.swap_bytes = facts.machine.swap_used_bytes = 0;
  facts.machine.own_swapped_bytes = 0;
  facts.num_threads = 4;
  facts.limits = {40, 2000, 1200, 600};
  facts.one_thread_limits = {20, 500, 300, 150};
  facts.fork_join_us = 2;
  return facts;
}

const Finding* find(const std::vector<Finding>& findings, const std::string& id) {
  const auto found = std::find_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.id == id; });
  return found == findings.end() ? nullptr : &*found;
}

TEST(DoctorFindings, AGoodMachineHasNoProblems) {
  const std::vector<Finding> findings = find_what_limits(good_facts());
  EXPECT_FALSE(findings.empty());
  for (const Finding& finding : findings) EXPECT_EQ(finding.level, FindingLevel::kGood) << finding.text;
}

struct Fault {
  const char* id;
  FindingLevel level;
  void (*spoil)(DoctorFacts&);
  const char* advice;
};

TEST(DoctorFindings, EachFaultIsFoundAloneWithAdvice) {
  constexpr FindingLevel kNote = FindingLevel::kNote;
  constexpr FindingLevel kProblem = FindingLevel::kProblem;
  const Fault faults[] = {
    {"threads", kProblem,
     [](DoctorFacts& f) {
       f.num_threads = 2;
       f.limits.int8_gops = 1000;
     },
     "raise it to 4"},
    {"threads", kProblem, [](DoctorFacts& f) { f.num_threads = 5; }, "lower --threads"},
    {"affinity", kNote, [](DoctorFacts& f) { f.machine.num_online_cpus = 8; }, "taskset"},
    {"quota", kProblem,
     [](DoctorFacts& f) {
       f.machine.cpu.quota_cpus = 2.5;
       f.num_threads = 2;
       f.limits.int8_gops = 1000;
     },
     "CPU limit"},
    {"throttled", kProblem, [](DoctorFacts& f) { f.disturbance.throttled_share = 0.2; }, "20 %"},
    {"steal", kProblem, [](DoctorFacts& f) { f.disturbance.stolen_cpus = 0.3; }, "dedicated"},
    {"busy", kProblem, [](DoctorFacts& f) { f.disturbance.other_cpus = 1.0; }, "stop them"},
    {"huge_pages", kProblem, [](DoctorFacts& f) { f.machine.huge_pages = "never"; }, "madvise"},
    {"governor", kNote, [](DoctorFacts& f) { f.machine.governor = "powersave"; }, "performance"},
    {"swapped", kProblem, [](DoctorFacts& f) { f.machine.own_swapped_bytes = 1 << 20; }, "free memory"},
    {"swap", kProblem,
     [](DoctorFacts& f) {
       f.machine.swap_used_bytes = 1 << 30;
       f.machine.available_bytes = 1 << 20;
     },
     "free memory"},
    {"numa", kNote, [](DoctorFacts& f) { f.machine.num_numa_nodes = 2; }, "numactl"},
    {"cores", kProblem, [](DoctorFacts& f) { f.limits.int8_gops = 1000; }, "50 %"},
    {"fork_join", kProblem, [](DoctorFacts& f) { f.fork_join_us = 300; }, "300 us"},
    {"gpu", kProblem,
     [](DoctorFacts& f) {
       f.machine.gpus = {"Test GPU"};
       f.why_no_gpu = "no CUDA here";
     },
     "no CUDA here"},
#if defined(__x86_64__)
    {"instructions", kNote, [](DoctorFacts& f) { f.machine.cpu.features.avx512_vnni = false; }, "VNNI"},
    {"instructions", kProblem, [](DoctorFacts& f) { f.machine.cpu.features.avx2 = false; }, "-cpu host"},
#endif
  };
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.id);
    DoctorFacts facts = good_facts();
    fault.spoil(facts);
    const std::vector<Finding> findings = find_what_limits(facts);
    const Finding* found = find(findings, fault.id);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->level, fault.level);
    EXPECT_NE(found->text.find(fault.advice), std::string::npos) << found->text;
  }
}

TEST(DoctorFindings, ProblemsComeFirst) {
  DoctorFacts facts = good_facts();
  facts.machine.num_numa_nodes = 2;
  facts.disturbance.stolen_cpus = 1;
  const std::vector<Finding> findings = find_what_limits(facts);
  EXPECT_EQ(findings.front().id, "steal");
  EXPECT_TRUE(std::is_sorted(findings.begin(), findings.end(),
                             [](const Finding& a, const Finding& b) { return a.level > b.level; }));
}

TEST(DoctorFindings, SaysWhatLimitsAModel) {
  DoctorFacts facts = good_facts();
  DoctorModel model;
  model.arithmetic.linear = Arithmetic::kInt8;
  model.bits_per_weight = 8.5;
  model.limits = {2000, 100};
  model.decode_read_tok_s = 100;
  model.decode_multiply_tok_s = 900;
  model.prefill = {1500, 1400, 1600};
  model.decode = {90, 85, 95};
  facts.model = model;
  EXPECT_NE(find(find_what_limits(facts), "decode")->text.find("the memory limits it; fewer bits"), std::string::npos);
  EXPECT_NE(find(find_what_limits(facts), "prefill")->text.find("75 %"), std::string::npos);
  EXPECT_EQ(find(find_what_limits(facts), "spread"), nullptr);

  facts.model->decode = {40, 20, 50};  // of a small model
  EXPECT_NE(find(find_what_limits(facts), "decode")->text.find("25000 us, of which 10000"), std::string::npos);
  EXPECT_NE(find(find_what_limits(facts), "spread"), nullptr);

  facts.model->decode = {90, 85, 95};
  facts.model->decode_multiply_tok_s = 100;
  facts.model->decode_read_tok_s = 900;
  EXPECT_NE(find(find_what_limits(facts), "decode")->text.find("multiplications limit"), std::string::npos);

  facts.model->arithmetic.linear = Arithmetic::kF32;
  EXPECT_NE(find(find_what_limits(facts), "prefill")->text.find("quantized"), std::string::npos);

  facts.model->limits = {};  // a processor whose limits are not known
  EXPECT_EQ(find(find_what_limits(facts), "decode"), nullptr);
}

}  // namespace
}  // namespace quire::app
