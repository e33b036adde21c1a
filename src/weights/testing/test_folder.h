// A folder of its own for a test that needs real files; gone with the object.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "weights/testing/gguf_writer.h"

namespace quire::testing {

class TestFolder {
 public:
  TestFolder() {
    const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = test->name();
    std::replace(name.begin(), name.end(), '/', '_');  // of a parameter
    path_ = ::testing::TempDir() + "quire_" + name + "_" + std::to_string(::getpid());
    std::filesystem::create_directories(path_);
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }

  std::string write(const std::string& name, const Bytes& bytes) const {
    write_file(path_ + "/" + name, bytes);
    return path_ + "/" + name;
  }
  std::string write_text(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

}  // namespace quire::testing
