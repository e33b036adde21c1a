// For tests: a small random Llama with real kernels behind it.
#pragma once

#include "weights/testing/gguf_writer.h"

namespace quire::testing {

constexpr int64_t kTinyLlamaVocab = 96;

// Two layers of random weights in a mix of formats, as quantized files have them; 1,024 tokens of context.
Bytes tiny_quantized_llama();

}  // namespace quire::testing
