#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

namespace quire {
namespace {

class MappedFileTest : public testing::Test {
 protected:
  MappedFileTest() : folder_(testing::TempDir() + "mapped_file_test." + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~MappedFileTest() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  std::string folder_;
};

std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_F(MappedFileTest, GivesTheBytesOfTheFile) {
  std::string text(100'000, 'a');
  text[0] = 'x';
  text[99'999] = 'z';
  auto file = MappedFile::open(write("a.bin", text));
  ASSERT_TRUE(file.is_ok()) << file.status().message();
  EXPECT_EQ(file.value()->num_bytes(), 100'000);
  EXPECT_EQ(as_text(file.value()->bytes()), text);
}

TEST_F(MappedFileTest, BytesCanBeReadAgainAfterDoneWith) {
  std::string text(50'000, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31);
  auto file = MappedFile::open(write("a.bin", text));
  ASSERT_TRUE(file.is_ok());
  const auto bytes = file.value()->bytes();
  for (const auto part : {bytes, bytes.subspan(0, 0), bytes.subspan(1, 1), bytes.subspan(4095, 8193), bytes.last(1)}) {
    file.value()->will_need(part);
    file.value()->done_with(part);
    EXPECT_EQ(as_text(bytes), text);
  }
}

TEST_F(MappedFileTest, SaysWhetherTheFileWasWrittenTo) {
  const std::string path = write("a.bin", "abc");
  const auto set_age = [&](int hours) {
    std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  set_age(2);
  auto file = MappedFile::open(path);
  ASSERT_TRUE(file.is_ok());
  EXPECT_EQ(as_text(file.value()->bytes()), "abc");
  EXPECT_TRUE(file.value()->check_unchanged().is_ok());

  write("a.bin", "xyz");
  set_age(1);
  const Status changed = file.value()->check_unchanged();
  EXPECT_NE(changed.message().find(path + " was written to"), std::string::npos) << changed.message();

  std::filesystem::rename(write("b.bin", "of another file"), path);
  EXPECT_TRUE(file.value()->check_unchanged().is_ok());
  std::filesystem::remove(path);
  EXPECT_TRUE(file.value()->check_unchanged().is_ok());
}

TEST_F(MappedFileTest, SaysWhatIsWrongWithAPath) {
  const auto missing = MappedFile::open(folder_ + "/none.gguf");
  ASSERT_FALSE(missing.is_ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("none.gguf"), std::string::npos);

  const auto folder = MappedFile::open(folder_);
  ASSERT_FALSE(folder.is_ok());
  EXPECT_NE(folder.status().message().find("is a folder"), std::string::npos);

  const auto empty = MappedFile::open(write("empty.gguf", ""));
  ASSERT_FALSE(empty.is_ok());
  EXPECT_NE(empty.status().message().find("is empty"), std::string::npos);

  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto fifo = MappedFile::open(pipe);
  ASSERT_FALSE(fifo.is_ok());
  EXPECT_NE(fifo.status().message().find("not a regular file"), std::string::npos);
}

TEST_F(MappedFileTest, SaysWhenPermissionIsMissing) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const std::string path = write("secret.gguf", "abc");
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  const auto file = MappedFile::open(path);
  ASSERT_FALSE(file.is_ok());
  EXPECT_NE(file.status().message().find("no permission"), std::string::npos);
}

TEST_F(MappedFileTest, ReadsSmallTextFilesWhole) {
  const auto text = read_text_file(write("a.json", std::string("{\"a\": \0}", 8)), 100);
  ASSERT_TRUE(text.is_ok());
  EXPECT_EQ(text.value(), std::string("{\"a\": \0}", 8));
  EXPECT_EQ(read_text_file(write("empty.json", ""), 100).value(), "");

  const auto too_long = read_text_file(write("long.json", std::string(101, ' ')), 100);
  ASSERT_FALSE(too_long.is_ok());
  EXPECT_NE(too_long.status().message().find("101 bytes"), std::string::npos);
  EXPECT_EQ(read_text_file(folder_ + "/none", 100).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(read_text_file(folder_, 100).is_ok());
}

}  // namespace
}  // namespace quire
