#include "quant/dequantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cctype>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace quire {
namespace {

std::string lower(std::string text) {
  for (char& character : text) character = static_cast<char>(std::tolower(static_cast<unsigned char>(character)));
  return text;
}

std::vector<std::byte> from_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

TEST(DequantizeTest, EqualsGgufsPythonPackageBitForBit) {
  std::ifstream file(QUIRE_SOURCE_DIR "/tests/goldens/quant_blocks.txt");
  ASSERT_TRUE(file.is_open());
  std::map<FormatId, int> num_blocks_of_format;
  int line_number = 0;
  for (std::string line; std::getline(file, line);) {
    ++line_number;
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name;
    std::string hex;
    words >> name >> hex;
    const std::optional<FormatId> id = find_format_by_name(lower(name));
    ASSERT_TRUE(id.has_value()) << name;
    std::vector<std::byte> bytes = from_hex(hex);
    std::vector<uint32_t> wanted;
    for (std::string word; words >> word;) wanted.push_back(static_cast<uint32_t>(std::stoul(word, nullptr, 16)));

    const QuantFormat& format = quant_format(*id);
    const auto num_values = static_cast<int64_t>(wanted.size());
    ASSERT_EQ(static_cast<int64_t>(bytes.size()), format.row_bytes(num_values)) << "line " << line_number;
    bytes.insert(bytes.begin(), std::byte{0});  // an odd address: blocks may lie anywhere
    std::vector<float> values(wanted.size());
    dequantize_row(*id, bytes.data() + 1, values.data(), num_values);
    for (size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), wanted[i]) << name << ", line " << line_number << ", value " << i;
    }
    num_blocks_of_format[*id] += static_cast<int>(num_values / format.values_per_block);
  }
  for (const QuantFormat& format : kQuantFormats) {
    // gguf has no word of ours; regroup_test.cc has them.
    if (format.id == FormatId::kF32 || format.gguf_type >= kFirstOwnType) continue;
    EXPECT_GE(num_blocks_of_format[format.id], 8) << format.name;
  }
}

TEST(DequantizeTest, FloatsAreCopied) {
  const std::vector<float> values = {0.0f, -0.0f, 1.5f, -3.25e-30f, 7e37f};
  std::vector<float> out(values.size());
  dequantize_row(FormatId::kF32, reinterpret_cast<const std::byte*>(values.data()), out.data(), 5);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(values[i]));
  }
}

TEST(DequantizeTest, WritesRowsOfSeveralBlocksAndNothingBeyond) {
  for (const QuantFormat& format : kQuantFormats) {
    const int64_t num_values = int64_t{3} * format.values_per_block;
    std::vector<std::byte> bytes(static_cast<size_t>(format.row_bytes(num_values)));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 % 59);
    std::vector<float> whole(static_cast<size_t>(num_values) + 1, -77.0f);
    dequantize_row(format.id, bytes.data(), whole.data(), num_values);
    EXPECT_EQ(whole.back(), -77.0f) << format.name;
    std::vector<float> block(static_cast<size_t>(format.values_per_block));
    dequantize_row(format.id, bytes.data() + 2 * format.bytes_per_block, block.data(), format.values_per_block);
    for (size_t i = 0; i < block.size(); ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(block[i]),
                std::bit_cast<uint32_t>(whole[static_cast<size_t>(2 * format.values_per_block) + i]))
          << format.name;
    }
    dequantize_row(format.id, bytes.data(), whole.data(), 0);
  }
}

}  // namespace
}  // namespace quire
