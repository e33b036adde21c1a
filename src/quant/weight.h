// Weight: a matrix of a linear layer as kernels take it. y = x · Wᵀ, with W [n outputs, k inputs], each output's inputs
// stored together and quantized along k. The loader makes weights in Layout::kRowMajor, straight from the file; a
// backend's pack() re-lays them once into the layout that its kernels prefer. Copying a Weight shares its bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "quant/format.h"

namespace quire {

enum class Layout : uint8_t {
  kRowMajor,    // parts[0]: n rows of quant_format(format).row_bytes(k) bytes, as the file has them
  kCpuPanels,   // parts as quant/packing.h describes them: panels of outputs, a lane an output
  kCudaPlanes,  // parts as ops/cuda describes them: codes, scales and offsets apart
  kCudaF8,      // n rows of k e4m3 numbers, and a float an output that multiplies them; `format` tells what they were
  kCudaI8,      // the same of int8
};

// Which part of a whole matrix this weight is, when several ranks share a model.
enum class ShardKind : uint8_t {
  kNone,     // every rank holds all of it
  kRows,     // rank r holds some of the inputs (k); its product is a partial sum
  kColumns,  // rank r holds some of the outputs (n)
  kHeads,    // outputs, in whole attention heads; replicated where ranks outnumber heads
  kVocab,    // outputs of the head or rows of the embedding
};

struct Shard {
  ShardKind kind = ShardKind::kNone;
  int64_t unit = 1;         // cuts fall on multiples of this: a quantization block, or head_dim
  int64_t first_index = 0;  // first output (or input) that this rank holds, in the whole matrix
};

struct Weight {
  FormatId format = FormatId::kF32;
  Layout layout = Layout::kRowMajor;
  std::array<std::span<const std::byte>, 4> parts;
  int64_t n = 0;            // outputs of one expert
  int64_t k = 0;            // inputs
  int64_t num_experts = 1;  // > 1: that many matrices one after another in every part
  Shard shard;
  std::shared_ptr<const void> owner;  // keeps the bytes of `parts` alive: a mapped file or a device buffer

  bool is_given() const { return n > 0; }
  const QuantFormat& quant() const { return quant_format(format); }
  int64_t num_bytes() const {
    int64_t total = 0;
    for (const auto& part : parts) total += static_cast<int64_t>(part.size());
    return total;
  }
};

}  // namespace quire
