// Each test is a child process that dies as it should.
#include "base/mapping_fault.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/last_words.h"
#include "base/mapped_file.h"

namespace quire {
namespace {

constexpr size_t kNumBytes = 1 << 20;

class MappingFaultTest : public testing::Test {
 protected:
  MappingFaultTest() : path_(testing::TempDir() + "mapping fault " + std::to_string(::getpid()) + ".gguf") {
    std::ofstream(path_, std::ios::binary) << std::string(kNumBytes, 'x');
  }
  ~MappingFaultTest() override { std::filesystem::remove(path_); }

  const std::string path_;
};

int sum(std::span<const std::byte> bytes) {
  int sum = 0;
  for (const std::byte& byte : bytes) sum += static_cast<int>(*static_cast<const volatile std::byte*>(&byte));
  return sum;
}

// Ends as one that found nothing wrong.
[[noreturn]] void read_cut_off_file(const std::string& path, int num_threads, LineFormat format = LineFormat::kText) {
  set_last_words_format(format);
  catch_mapping_faults();
  const auto file = MappedFile::open(path);
  if (!file.is_ok() || ::truncate(path.c_str(), 100) != 0) ::_exit(2);
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i) threads.emplace_back([&] { sum(file.value()->bytes()); });
  for (std::thread& thread : threads) thread.join();
  ::_exit(0);
}

TEST_F(MappingFaultTest, AFileThatIsCutOffIsNamed) {
  EXPECT_EXIT(read_cut_off_file(path_, 1), testing::ExitedWithCode(1),
              "^quire: /[^\n]*/mapping fault [0-9]+\\.gguf cannot be read any more: [^\n]*rename it[^\n]*\n$");
}

// As after a copy onto a model that failed, and the rename that mends it.
TEST_F(MappingFaultTest, AFileThatIsCutOffAndThenReplacedIsNamed) {
  const auto read_replaced_file = [&](bool is_replaced) {
    catch_mapping_faults();
    const auto file = MappedFile::open(path_);
    if (!file.is_ok() || ::truncate(path_.c_str(), 0) != 0) ::_exit(2);
    const std::string whole = path_ + ".new";
    std::ofstream(whole, std::ios::binary) << "whole";
    std::filesystem::rename(whole, path_);
    if (!is_replaced) std::filesystem::remove(path_);
    sum(file.value()->bytes());
    ::_exit(0);
  };
  for (const bool is_replaced : {true, false}) {
    EXPECT_EXIT(read_replaced_file(is_replaced), testing::ExitedWithCode(1),
                "^quire: /[^\n]*\\.gguf[^\n]* cannot be read ");
  }
}

TEST_F(MappingFaultTest, AFileWhoseNameHasTwoLinesIsNamed) {
  const std::string path = path_ + "\n2";
  std::filesystem::rename(path_, path);
  EXPECT_EXIT(read_cut_off_file(path, 1), testing::ExitedWithCode(1), "^quire: [^\n]*gguf\\\\0122 cannot be read ");
  std::filesystem::remove(path);
}

TEST_F(MappingFaultTest, ItIsToldOnceThoughManyThreadsRead) {
  EXPECT_EXIT(read_cut_off_file(path_, 8), testing::ExitedWithCode(1), "^quire: [^\n]*\n$");
}

TEST_F(MappingFaultTest, ItIsToldAsJson) {
  const std::string path = path_ + " \"x\"\t\\";
  std::filesystem::rename(path_, path);
  EXPECT_EXIT(read_cut_off_file(path, 1, LineFormat::kJson), testing::ExitedWithCode(1),
              R"(^\{"time":"20[^"]*Z","level":"error","message":"[^"]*gguf \\"x\\"\\u0009\\\\ cannot be read [^"]*"\})"
              "\n$");
  std::filesystem::remove(path);
}

TEST_F(MappingFaultTest, ANameThatIsNotUtf8IsToldAsJson) {
  const std::string path = path_ + "\xff\xe4";
  std::filesystem::rename(path_, path);
  EXPECT_EXIT(read_cut_off_file(path, 1, LineFormat::kJson), testing::ExitedWithCode(1),
              "\\.gguf\xEF\xBF\xBD\xEF\xBF\xBD cannot be read ");
  std::filesystem::remove(path);
}

TEST_F(MappingFaultTest, AnyOtherFaultIsLeftAsItIs) {
  const auto raise = [] {
    catch_mapping_faults();
    ::raise(SIGBUS);
    ::_exit(0);
  };
  EXPECT_EXIT(raise(), testing::KilledBySignal(SIGBUS), "^$");
  const auto read_memory_without_a_file = [] {
    catch_mapping_faults();
    const int memory = ::memfd_create("memory", 0);
    if (::ftruncate(memory, kNumBytes) != 0) ::_exit(2);
    const void* data = ::mmap(nullptr, kNumBytes, PROT_READ, MAP_SHARED, memory, 0);
    if (data == MAP_FAILED || ::ftruncate(memory, 0) != 0) ::_exit(2);
    sum({static_cast<const std::byte*>(data), kNumBytes});
    ::_exit(0);
  };
  EXPECT_EXIT(read_memory_without_a_file(), testing::KilledBySignal(SIGBUS), "^$");
}

}  // namespace
}  // namespace quire
