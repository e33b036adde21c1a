#include "base/cpu_info.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace quire {
namespace {

// A made-up machine below a temporary folder.
class FakeMachine {
 public:
  explicit FakeMachine(const std::string& name)
      : root_(testing::TempDir() + "/quire_cpu_info_" + name + "_" + std::to_string(::getpid())) {
    std::filesystem::remove_all(root_);
    write("/proc/cpuinfo", "processor : 0\nmodel name\t: Test CPU 9000\n");
  }
  ~FakeMachine() { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void set_cores(int num_cores, int threads_per_core) {
    for (int cpu = 0; cpu < num_cores * threads_per_core; ++cpu) {
      const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
      write(folder + "physical_package_id", "0\n");
      write(folder + "core_id", std::to_string(cpu % num_cores) + "\n");
    }
  }
  void set_allowed(const std::string& list) {
    write("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t" + list + "\n");
  }
  CpuInfo info() const { return read_cpu_info(root_); }
  int threads() const { return default_num_threads(info()); }

 private:
  std::string root_;
};

// F090.
TEST(CpuInfo, QuotaAffinityAndCoresLimitThreads) {
  FakeMachine machine("v2");
  machine.set_cores(8, 1);
  machine.set_allowed("0-7");
  machine.write("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(machine.threads(), 8);
  EXPECT_EQ(machine.info().model_name, "Test CPU 9000");
  machine.write("/sys/fs/cgroup/cpu.max", "400000 100000\n");
  EXPECT_EQ(machine.threads(), 4);
  machine.write("/sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(machine.threads(), 8);
  machine.set_allowed("0-3");
  EXPECT_EQ(machine.threads(), 4);
  machine.set_allowed("0-7");
  machine.write("/sys/fs/cgroup/cpu.max", "765000 100000\n");
  EXPECT_EQ(machine.threads(), 7);
  machine.write("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(machine.threads(), 1);
}

TEST(CpuInfo, SiblingsOfACoreCountOnce) {
  FakeMachine machine("smt");
  machine.set_cores(4, 2);
  machine.set_allowed("0-7");
  EXPECT_EQ(machine.info().num_allowed_cpus, 8);
  EXPECT_EQ(machine.threads(), 4);
  machine.set_allowed("1,3,5-6");
  EXPECT_EQ(machine.threads(), 3);  // 1 and 5 share a core
}

TEST(CpuInfo, LimitsOfParentGroupsCount) {
  FakeMachine machine("nested");
  machine.set_cores(16, 1);
  machine.set_allowed("0-15");
  machine.write("/proc/self/cgroup", "0::/pod/container\n");
  machine.write("/sys/fs/cgroup/pod/container/cpu.max", "900000 100000");
  machine.write("/sys/fs/cgroup/pod/cpu.max", "600000 100000");
  EXPECT_EQ(machine.threads(), 6);
}

TEST(CpuInfo, OldCgroups) {
  FakeMachine machine("v1");
  machine.set_cores(8, 1);
  machine.set_allowed("0-7");
  machine.write("/proc/self/cgroup", "5:memory:/box\n4:cpu,cpuacct:/box\n");
  machine.write("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n");
  machine.write("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(machine.threads(), 8);
  machine.write("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "350000\n");
  EXPECT_EQ(machine.threads(), 3);
}

TEST(CpuInfo, MissingAndAbsurdFilesGiveAtLeastOneThread) {
  FakeMachine machine("absurd");
  EXPECT_GE(machine.threads(), 1);
  machine.set_allowed("x,7-2,-5");
  machine.write("/proc/self/cgroup", "garbage\n0::\n::::");
  machine.write("/sys/fs/cgroup/cpu.max", "-3 0");
  EXPECT_GE(machine.threads(), 1);
  machine.set_allowed("0-99999999999");
  EXPECT_GE(machine.threads(), 1);
}

TEST(CpuInfo, ThisMachine) {
  const CpuInfo info = read_cpu_info();
  EXPECT_FALSE(info.model_name.empty());
  EXPECT_GE(default_num_threads(info), 1);
  EXPECT_LE(default_num_threads(info), info.num_allowed_cpus);
}

}  // namespace
}  // namespace quire
