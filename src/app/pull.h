// Fetching models from a hub: `quire pull`, and a MODEL of the form ORG/NAME[:quant][@revision] on its first use.
#pragma once

#include <filesystem>

#include "app/console.h"
#include "app/hub_repo.h"
#include "app/options.h"
#include "base/status.h"

namespace quire::app {

// Brings the cache to what the hub holds now and gives the path to load: a GGUF file or a folder. Files that are there
// already are not fetched again. While another process fetches the same file, waits for it.
Result<std::filesystem::path> pull_model(const HubName& name, const Environment& environment, Console& console);

}  // namespace quire::app
