// `quire models`: what lies in the cache folder, and in the one that is shared with the hub's other tools, by the names
// that MODEL may be.
#include <fmt/format.h>

#include <boost/json.hpp>

#include "app/command.h"
#include "app/console.h"
#include "app/hub_cache.h"
#include "app/json_lines.h"
#include "app/model_path.h"
#include "app/options.h"
#include "engine/memory_plan.h"

namespace quire::app {

namespace {

Status run(bool is_json) {
  const Environment environment = read_environment();
  std::vector<CachedModel> models = list_cached_models(environment.cache_folder);
  for (CachedHubModel& model : list_hub_models(environment.hub_cache_folder))
    models.push_back({std::move(model.name), std::move(model.path), model.num_bytes});
  for (const CachedModel& model : models) {
    if (is_json) {
      print_json_line(
          boost::json::object{{"name", model.name}, {"path", model.path.string()}, {"bytes", model.num_bytes}});
    } else {
      print_result(fmt::format("{:<40} {:>12}  {}\n", model.name, format_bytes(model.num_bytes), model.path.string()));
    }
  }
  if (models.empty()) {
    tell(fmt::format(
        "No models in {} and {}. `make model` fetches the default one, `quire pull ORG/NAME` any other; GGUF files and "
        "Hugging Face folders put into the first are found.\n",
        environment.cache_folder.string(), environment.hub_cache_folder.string()));
  }
  return ok_status();
}

}  // namespace

std::function<Status()> declare_models(CLI::App& parser) {
  auto is_json = std::make_shared<bool>(false);
  parser.add_flag("--json", *is_json, "One JSON object a line");
  return [is_json] { return run(*is_json); };
}

}  // namespace quire::app
