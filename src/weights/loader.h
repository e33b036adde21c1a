// Loads the weights that a map describes from a source, for one rank: checks all tensors first and reports every
// missing and misshapen one at once, then reads only the rank's own bytes. Matrices go through a callback that lets the
// backend re-lay them (Ops::pack; weights does not know ops). Called once a model at start, on any one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "quant/weight.h"
#include "weights/tensor_source.h"
#include "weights/weight_map.h"

namespace quire {

struct LoadProgress {
  int64_t num_bytes_done = 0;  // of this rank's part of the file; what rows share counts once
  int64_t num_bytes_total = 0;
  std::string_view row_name;  // the row that was loaded last
};

struct LoadCallbacks {
  // Takes a row-major weight whose bytes are those of the file (or of a copy, where pieces were joined or inputs cut).
  // Not given: weights stay row-major.
  std::function<Result<Weight>(const Weight&)> pack;
  std::function<void(const LoadProgress&)> progress;  // after every row; may be empty
};

class LoadedWeights {
 public:
  // The weight of a row; not given (is_given() is false) where an optional row's tensors were missing. Asking for a
  // name that was not in the map, or of the other kind, is our own bug: a CHECK.
  const Weight& matrix(std::string_view name) const;
  // Values of a vector row; empty where an optional row was missing. Lives as long as this object.
  const std::vector<float>& vector(std::string_view name) const;

  // Tensors of the file that no row used and the map did not list as ignored: worth a warning.
  const std::vector<std::string>& unused_tensors() const { return unused_tensors_; }
  // Bytes of all distinct weights after packing; rows that share a tensor (tied embeddings) count once.
  int64_t num_bytes() const { return num_bytes_; }

 private:
  friend class LoaderJob;
  friend class RandomWeightsJob;
  std::unordered_map<std::string, Weight> matrices_;
  std::unordered_map<std::string, std::vector<float>> vectors_;
  std::vector<std::string> unused_tensors_;
  int64_t num_bytes_ = 0;
};

// Rows that take the same outputs of the same tensor with the same shard share one packed weight.
Result<LoadedWeights> load(const WeightMap& map, const TensorSource& source, Rank rank, const LoadCallbacks& callbacks);

}  // namespace quire
