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

int code_of(const uint8_t* block, int i) {
  return block[3 + i % 64] >> (i < 64 ? 0 : 4) & 15;
}

// Codes of q5_0 are 16 more than what the scale multiplies, those of q4_0 are 8 more.
void write_group(const uint8_t* block, int group, FormatId format, uint8_t* out) {
  std::memcpy(out, block, 2);
  const int shift = format == FormatId::kQ5_0 ? 16 - zero_of(block) : 0;
  uint32_t fifth_bits = 0;
  uint8_t* const nibbles = out + (format == FormatId::kQ5_0 ? 6 : 2);
  for (int i = 0; i < kGroup / 2; ++i) {
    const int low = code_of(block, kGroup * group + i) + shift;
    const int high = code_of(block, kGroup * group + i + kGroup / 2) + shift;
    nibbles[i] = static_cast<uint8_t>((low & 15) | (high & 15) << 4);
    fifth_bits |= static_cast<uint32_t>(low >> 4) << i | static_cast<uint32_t>(high >> 4) << (i + kGroup / 2);
  }
  if (format == FormatId::kQ5_0) {
    for (int i = 0; i < 4; ++i) out[2 + i] = static_cast<uint8_t>(fifth_bits >> (8 * i));
  }
}

}  // namespace

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
  uint8_t* const out = reinterpret_cast<uint8_t*>(rows->data());
  pool.parallel_for(num_blocks, kBlocksPerPiece, [&](const WorkRange& range) {
    for (int64_t b = range.begin; b < range.end; ++b) {
      for (int g = 0; g < groups_per_block; ++g) {
        write_group(blocks + b * from.bytes_per_block, g, regrouped.format,
                    out + (b * groups_per_block + g) * group_bytes);
      }
    }
  });
  regrouped.parts = {};
  regrouped.parts[0] = *rows;
  regrouped.owner = rows;
  return regrouped;
}

}  // namespace quire
