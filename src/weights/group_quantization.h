// What a Hugging Face checkpoint's config.json says of its weights' quantization in groups: GPTQ, AWQ, and
// llm-compressor's pack-quantized. The tensors are group_quantized.h's subject. Called at start, on the calling thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire {

// Ends every message about what is not supported of them.
inline constexpr const char* kWhatToTake = "; take a GGUF file or another quantization of the model";
inline constexpr int64_t kMaxGroupedSide = int64_t{1} << 31;  // inputs or outputs of a matrix

enum class GroupMethod : uint8_t { kGptq, kAwq, kCompressedTensors };

struct GroupQuantization {
  GroupMethod method = GroupMethod::kGptq;
  int64_t group_size = 128;    // inputs that share a scale; -1: all of them
  bool is_symmetric = false;   // every zero point is 8
  bool has_own_order = false;  // inputs may belong to groups in another order, which a tensor of each matrix lists
  int stored_zero_shift = 0;   // added to a stored zero point, which has 4 bits: GPTQ's first format has one less
};

// The quant_method that config.json names, whatever it is; empty where it names none.
std::string quantization_method(std::string_view config_json);

// What config.json's quantization_config says; nothing where it has none. An error where it names another method, or a
// form of one of these that is not supported.
Result<std::optional<GroupQuantization>> read_group_quantization(std::string_view config_json);

}  // namespace quire
