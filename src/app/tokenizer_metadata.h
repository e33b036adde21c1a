// Copies what a GGUF file says about its tokenizer into the plain struct that text/tokenizer takes: text does not know
// GGUF, and weights does not know text.
#pragma once

#include "base/status.h"
#include "text/tokenizer_data.h"
#include "weights/gguf.h"

namespace quire::app {

// The error names the metadata key that is missing or of the wrong type.
Result<TokenizerData> read_tokenizer_data(const GgufFile& file);

}  // namespace quire::app
