#include "ops/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace quire {
namespace {

// A folder that stands before /proc and /sys.
class FakeRoot {
 public:
  FakeRoot()
      : path_(std::filesystem::path(testing::TempDir()) / ("quire_host_memory_test_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = path_.string() + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(HostMemory, TheSmallerOfTheSystemAndTheGroupCounts) {
  FakeRoot root;
  EXPECT_GT(available_host_bytes(root.path()), int64_t{1} << 60);  // nothing says
  root.write("/proc/meminfo", "MemTotal:  4000 kB\nMemAvailable:  3000 kB\n");
  EXPECT_EQ(available_host_bytes(root.path()), 3000 * 1024);
  root.write("/sys/fs/cgroup/memory.max", "max\n");
  root.write("/sys/fs/cgroup/memory.current", "100\n");
  EXPECT_EQ(available_host_bytes(root.path()), 3000 * 1024);
  root.write("/proc/self/cgroup", "0::/a/b\n");
  root.write("/sys/fs/cgroup/a/memory.max", "1000000\n");
  root.write("/sys/fs/cgroup/a/memory.current", "400000\n");
  root.write("/sys/fs/cgroup/a/memory.stat", "anon 7\ninactive_file 100000\n");
  EXPECT_EQ(available_host_bytes(root.path()), 700'000);
  root.write("/sys/fs/cgroup/a/b/memory.max", "50\n");
  root.write("/sys/fs/cgroup/a/b/memory.current", "60\n");
  EXPECT_EQ(available_host_bytes(root.path()), 0);
}

TEST(HostMemory, VersionOneGroups) {
  FakeRoot root;
  root.write("/proc/self/cgroup", "3:cpu:/x\n2:memory:/x\n");
  root.write("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "1\n");
  EXPECT_GT(available_host_bytes(root.path()), int64_t{1} << 60);
  root.write("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "5000\n");
  EXPECT_EQ(available_host_bytes(root.path()), 4999);
}

TEST(HostMemory, BlocksAreAlignedAndUsable) {
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{20} << 20}) {
    Result<DeviceBuffer> block = allocate_host(size, "test");
    ASSERT_TRUE(block.is_ok());
    EXPECT_EQ(block.value().num_bytes(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.value().data()) % 256, 0u);
    if (size > 0) {
      static_cast<char*>(block.value().data())[0] = 1;
      static_cast<char*>(block.value().data())[size - 1] = 1;
    }
  }
}

TEST(HostMemory, WhatCannotFitIsRefusedWithNumbers) {
  const Result<DeviceBuffer> block = allocate_host(int64_t{1} << 60, "KV pages");
  ASSERT_FALSE(block.is_ok());
  EXPECT_EQ(block.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(block.status().message().find("KV pages"), std::string::npos);
  EXPECT_NE(block.status().message().find("1048576.00 TiB"), std::string::npos) << block.status().message();
  EXPECT_NE(block.status().message().find("available"), std::string::npos);
}

TEST(HostMemory, DescribesBytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(int64_t{3} << 30), "3.00 GiB");
}

// Of what /proc/self/smaps tells of the mapping that holds an address: bytes in huge pages.
int64_t huge_bytes_at(const std::byte* data) {
  std::ifstream file("/proc/self/smaps");
  const auto address = static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(data));
  std::string line;
  bool is_inside = false;
  while (std::getline(file, line)) {
    unsigned long long begin = 0;
    unsigned long long end = 0;
    long long kilobytes = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) is_inside = begin <= address && address < end;
    if (is_inside && std::sscanf(line.c_str(), "AnonHugePages: %lld kB", &kilobytes) == 1) return kilobytes * 1024;
  }
  return -1;
}

TEST(HostMemory, SmallPagesBecomeHugeAndKeepWhatTheyHold) {
  constexpr int64_t kPages = 5;
  Result<DeviceBuffer> block = allocate_host(kPages * kHugePageBytes, "test");
  ASSERT_TRUE(block.is_ok());
  std::byte* data = static_cast<std::byte*>(block.value().data());
  make_present_in_small_pages(data, kPages * kHugePageBytes);
  EXPECT_EQ(huge_bytes_at(data), 0);
  for (int64_t i = 0; i < kPages * kHugePageBytes; i += 512) data[i] = static_cast<std::byte>(i / 512 * 7);
  // Fails where the system has no huge page left; what is held stays in any case.
  const bool is_huge = can_make_huge() && make_huge(data + 2 * kHugePageBytes);
  if (is_huge) {
    EXPECT_EQ(huge_bytes_at(data + 2 * kHugePageBytes), kHugePageBytes);
    EXPECT_EQ(huge_bytes_at(data), 0);
  }
  for (int64_t i = 0; i < kPages * kHugePageBytes; i += 512) {
    ASSERT_EQ(data[i], static_cast<std::byte>(i / 512 * 7)) << i;
  }
}

}  // namespace
}  // namespace quire
