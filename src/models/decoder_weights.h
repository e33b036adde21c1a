// The weight map of any decoder: which tensors of a GGUF file or a Hugging Face folder make up its weights, how they
// are cut among ranks, and what the rows are called. Used by models/load_model; the decoder takes the loaded rows by
// name.
#pragma once

#include <string>

#include "base/status.h"
#include "models/architecture.h"
#include "models/model_config.h"
#include "weights/checkpoint.h"
#include "weights/loader.h"
#include "weights/weight_map.h"

namespace quire {

// Row names: "embedding", "head", "final_norm", and for a layer "layers.3." with what follows here.
namespace weight_names {
inline constexpr const char* kEmbedding = "embedding";
inline constexpr const char* kHead = "head";
inline constexpr const char* kFinalNorm = "final_norm";
std::string of_layer(int layer, std::string_view part);  // part: "attention_norm", "qkv", "q", "output.bias", …
}  // namespace weight_names

// q, k and v become one matrix where their formats allow, likewise gate and up; else a row each. Asks `source` which of
// a row's possible names it has.
Result<WeightMap> make_weight_map(const ArchitectureSpec& spec, const ModelConfig& config, CheckpointKind kind,
                                  const TensorSource& source, Rank rank);

}  // namespace quire
