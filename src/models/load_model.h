// From an opened model file to a model that is ready to run: finds the architecture, parses the config, loads the
// weights into the layouts that the backend prefers. The one way in for the app and for tests; called at start.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "models/model.h"
#include "ops/ops.h"
#include "quant/format.h"
#include "weights/checkpoint.h"
#include "weights/loader.h"

namespace quire {

struct LoadModelOptions {
  Rank rank;
  // The longest context that will be served; 0: the model's own. Longrope (Phi-3's long variants) takes its long
  // factors when this is past the context that the model was first trained with.
  int64_t max_context = 0;
  std::optional<DType> activation_dtype;  // none: f32 on the CPU; on a GPU that of the model's floats, f16 or bf16
  // Random weights in place of the file's: of its tensors' formats, or of this one where it has no tensors.
  std::optional<FormatId> random_format = {};
  bool is_random_format_forced = false;               // that format whatever the file's tensors have
  std::function<void(const LoadProgress&)> progress;  // may be empty
  std::function<void(const std::string&)> warn = {};  // oddities that do not stop us: unused tensors; may be empty
};

// Nothing of `checkpoint` is needed afterwards. `ops` must outlive the model.
Result<std::unique_ptr<Model>> load_model(const Checkpoint& checkpoint, Ops& ops, const LoadModelOptions& options = {});

}  // namespace quire
