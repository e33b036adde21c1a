#include "quant/regroup.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "quant/dequantize.h"

namespace quire {

namespace {

constexpr int kGroup = 32;
constexpr int kSymmetricZero = 8;
constexpr int64_t kBlocksPerPiece = 1024;

int zero_of(const uint8_t* block) {
  return std::min<int>(block[2], kMaxInt4Zero);
}

uint8_t code_of(const uint8_t* block, int i) {
  return static_cast<uint8_t>(block[3 + i % 64] >> (i < 64 ? 0 : 4) & 15);
}

}  // namespace

// Codes of q5_0 are 16 more than what the scale multiplies, those of q4_0 are 8 more.
void write_int4_group(FormatId format, const uint8_t* codes, uint16_t scale, int zero, std::byte* out) {
  CHECK(format == FormatId::kQ4_0 || format == FormatId::kQ5_0);
  std::memcpy(out, &scale, sizeof(scale));
  const int shift = format == FormatId::kQ5_0 ? 16 - zero : 0;
  uint32_t fifth_bits = 0;
  std::byte* const nibbles = out + (format == FormatId::kQ5_0 ? 6 : 2);
  for (int i = 0; i < kGroup / 2; ++i) {
    const int low = codes[i] + shift;
    const int high = codes[kGroup / 2 + i] + shift;
    nibbles[i] = static_cast<std::byte>((low & 15) | (high & 15) << 4);
    fifth_bits |= static_cast<uint32_t>(low >> 4) << i | static_cast<uint32_t>(high >> 4) << (kGroup / 2 + i);
  }
  if (format == FormatId::kQ5_0) {
    for (int i = 0; i < 4; ++i) out[2 + i] = static_cast<std::byte>(fifth_bits >> (8 * i));
  }
}

Weight regroup_int4(ThreadPool& pool, const Weight& weight) {
  CHECK(weight.layout == Layout::kRowMajor);
  CHECK(weight.format == FormatId::kInt4G128);
  const QuantFormat& from = weight.quant();
  const int64_t num_blocks = weight.num_experts * weight.n * weight.k / from.values_per_block;
  const uint8_t* blocks = reinterpret_cast<const uint8_t*>(weight.parts[0].data());
  std::atomic<bool> is_symmetric = true;
  pool.parallel_for(num_blocks, kBlocksPerPiece, [&](const WorkRange& range) {
    for (int64_t b = range.begin; b < range.end; ++b) {
      if (zero_of(blocks + b * from.bytes_per_block) != kSymmetricZero) is_symmetric = false;
    }
  });
  Weight regrouped = weight;
  regrouped.format = is_symmetric ? FormatId::kQ4_0 : FormatId::kQ5_0;
  const int64_t group_bytes = regrouped.quant().bytes_per_block;
  const int groups_per_block = from.values_per_block / kGroup;
  const auto rows =
      std::make_shared<std::vector<std::byte>>(static_cast<size_t>(num_blocks * groups_per_block * group_bytes));
  pool.parallel_for(num_blocks, kBlocksPerPiece, [&](const WorkRange& range) {
    for (int64_t b = range.begin; b < range.end; ++b) {
      const uint8_t* block = blocks + b * from.bytes_per_block;
      uint16_t scale;
      std::memcpy(&scale, block, sizeof(scale));
      for (int g = 0; g < groups_per_block; ++g) {
        uint8_t codes[kGroup];
        for (int i = 0; i < kGroup; ++i) codes[i] = code_of(block, kGroup * g + i);
        write_int4_group(regrouped.format, codes, scale, zero_of(block),
                         rows->data() + (b * groups_per_block + g) * group_bytes);
      }
    }
  });
  regrouped.parts = {};
  regrouped.parts[0] = *rows;
  regrouped.owner = rows;
  return regrouped;
}

}  // namespace quire
