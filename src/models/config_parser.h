// From a model file's metadata to a ModelConfig: Hugging Face's config.json and generation_config.json, or GGUF keys.
// Any bytes give either a config whose numbers are in range or an error that names the key. Called at load.
#pragma once

#include <boost/json.hpp>
#include <string_view>

#include "base/status.h"
#include "models/architecture.h"
#include "models/model_config.h"
#include "weights/checkpoint.h"

namespace quire {

struct ParsedConfig {
  ModelConfig config;
  const ArchitectureSpec* spec = nullptr;
};

// `generation_config_json` may be empty: there is none.
Result<ParsedConfig> parse_hf_config(std::string_view config_json, std::string_view generation_config_json);

// Metadata as gguf_metadata makes them. Facts that only the tensors tell are asked of `tensors`: whether there is
// an output matrix, biases, frequency factors.
Result<ParsedConfig> parse_gguf_config(const boost::json::object& metadata, const TensorSource& tensors);

// The scalars and short arrays of a GGUF file under their keys; vocabularies are left out.
boost::json::object gguf_metadata(const GgufFile& file);

// Either kind.
Result<ParsedConfig> parse_config(const Checkpoint& checkpoint);

}  // namespace quire
