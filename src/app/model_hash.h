// What tells one model's contents from another's, for files that are good for one model alone (--prefix-cache-file).
#pragma once

#include <string>

#include "weights/checkpoint.h"

namespace quire::app {

// Of all tensors and of what the file says about the model. Reads every byte once.
std::string hash_model(const Checkpoint& checkpoint);

}  // namespace quire::app
