// What --quantization can and cannot do to the weights that a checkpoint has; asked before they are loaded.
#pragma once

#include <string>

#include "base/status.h"
#include "weights/checkpoint.h"

namespace quire::app {

// awq and gptq are claims about the checkpoint: an error where they are wrong.
Status check_group_method(const std::string& quantization, const Checkpoint& checkpoint);

// Of int8 and fp8, which float matrices become while they are loaded: what the user should know where the file has
// matrices of other kinds, which stay as they are. Empty: nothing.
std::string what_stays_quantized(const std::string& quantization, const TensorSource& tensors);

}  // namespace quire::app
