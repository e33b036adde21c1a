// `quire tune` on a GPU: lets a model multiply at every number of tokens that steps may have, so that the library's
// algorithms are measured for each, and keeps the choice. Main thread.
#pragma once

#include <filesystem>

#include "app/console.h"
#include "app/options.h"
#include "app/tune_file.h"
#include "base/status.h"

namespace quire::app {

// What was found for other models before stays in the file. `flags` say how later commands will load the model.
Status tune_gpu(const EngineFlags& flags, const TuningKey& key, const std::filesystem::path& path, bool is_json,
                Console& console);

}  // namespace quire::app
