// The file in which `quire tune` keeps its choices, one for each processor or GPU that shares the folder: a small JSON
// object with the key that it was made under. Choices change speed, and on a GPU the order of sums, no more, so a file
// that is missing, of another machine or version, or broken is passed over. Read once at start.
#pragma once

#include <boost/json.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "base/cpu_info.h"
#include "base/status.h"
#include "ops/backends.h"

namespace quire::app {

// What choices hold for. All of it must be equal.
struct TuningKey {
  std::string device;  // a processor, or a GPU with its library
  std::string features;
  int num_threads = 1;  // 0: of a GPU
  std::string version;  // of this program
  bool operator==(const TuningKey&) const = default;
};

// `num_threads` as in the engine's flags: 0 for the machine's own number.
TuningKey tuning_key(const CpuInfo& cpu, int num_threads);

// `gpu` as gpu_of_tuning (ops/backends.h) tells it.
TuningKey tuning_key(const std::string& gpu);

struct TunedChoices {
  std::vector<TunedLinear> linear;     // of a CPU
  std::vector<TunedProduct> products;  // of a GPU
  size_t size() const { return linear.size() + products.size(); }
};

// As the file has it.
boost::json::object to_json(const TunedProduct& choice);

// In the folder, a name of the key's own.
std::filesystem::path tuning_path(const std::filesystem::path& folder, const TuningKey& key);

// No choices where there is no file. The error says what is wrong with the file, and how to make it anew.
Result<TunedChoices> read_tuning(const std::filesystem::path& path, const TuningKey& key);

// Makes the folder where it is missing, and replaces the file as a whole.
Status write_tuning(const std::filesystem::path& path, const TuningKey& key, const TunedChoices& choices);

}  // namespace quire::app
