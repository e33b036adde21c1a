// Random weights of the shapes that a map describes, in place of a file's: a model of a real shape can be measured
// without its weights. Called by models/load_model at start.
#pragma once

#include <functional>
#include <vector>

#include "quant/format.h"
#include "weights/loader.h"

namespace quire {

struct RandomWeightCallbacks {
  // Makes a packed weight of random values with this format, n, k and num_experts (parts are empty).
  std::function<Result<Weight>(const Weight& shape, uint64_t seed)> make;
  std::function<void(const LoadProgress&)> progress;  // may be empty
};

// Matrices have the formats of the source's tensors where it has them, else `format`; norms are ones and biases zeros.
// The seed of a matrix is its place in the map.
Result<LoadedWeights> make_random_weights(const WeightMap& map, const TensorSource& source, FormatId format, Rank rank,
                                          const RandomWeightCallbacks& callbacks);

// Another source's tensors without their bytes, all matrices of one format: what random weights of a format that the
// files do not have are made for.
class OneFormatSource final : public TensorSource {
 public:
  OneFormatSource(const TensorSource& source, FormatId format);
  std::span<const SourceTensor> tensors() const override { return tensors_; }
  const SourceTensor* find(std::string_view name) const override;
  std::shared_ptr<const void> owner() const override { return nullptr; }

 private:
  std::vector<SourceTensor> tensors_;  // by name
};

// A source for map makers that has every tensor they ask for, all of one format, and no bytes.
class AnyTensorSource final : public TensorSource {
 public:
  explicit AnyTensorSource(FormatId format);
  std::span<const SourceTensor> tensors() const override { return {}; }
  const SourceTensor* find(std::string_view) const override { return &tensor_; }
  std::shared_ptr<const void> owner() const override { return nullptr; }

 private:
  SourceTensor tensor_;
};

}  // namespace quire
