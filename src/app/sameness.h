// What --sameness asks of a GPU. The CPU's kernels have one order of sums for everything, so it always keeps all of it.
#pragma once

#include "app/model_arithmetic.h"
#include "app/options.h"
#include "models/model_config.h"

namespace quire::app {

enum class Sameness : uint8_t {
  kOff,        // the fastest kernels, whose last bits may depend on how many tokens run
  kInBatches,  // an answer's bits do not depend on batch, chunks of the prompt, page size or giving way
  kStrict,     // nor on kept pages: those of drawn tokens, which a prompt would compute otherwise, are kept for nobody
};

// `auto` is kInBatches where that was measured to cost less than a tenth of the speed for any number of sequences
// (docs/gpu_kernels.md): large layers of 16-bit weights, multiplied as they are, by kernels that nobody forces; else
// kOff.
Sameness choose_sameness(const EngineFlags& flags, WeightKind weights, const ModelConfig& config);

}  // namespace quire::app
