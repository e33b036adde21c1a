// What the two readers of model configs share: the ranges that numbers must lie in, and what follows from the numbers.
// Internal to config_hf.cc and config_gguf.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "models/architecture.h"
#include "models/config_fields.h"
#include "models/model_config.h"

namespace quire {

// Far past any model that exists; small enough that products of any two fit 64 bits.
constexpr ValueRange<int64_t> kLayerRange = {1, 4096};
constexpr ValueRange<int64_t> kHeadRange = {1, 4096};
constexpr ValueRange<int64_t> kHeadDimRange = {2, 4096};
constexpr ValueRange<int64_t> kWidthRange = {1, int64_t{1} << 20};
constexpr ValueRange<int64_t> kIntermediateRange = {1, int64_t{1} << 22};
constexpr ValueRange<int64_t> kVocabRange = {1, int64_t{1} << 24};
constexpr ValueRange<int64_t> kContextRange = {1, int64_t{1} << 30};
constexpr ValueRange<int64_t> kWindowRange = {0, int64_t{1} << 30};
constexpr ValueRange<int64_t> kIdRange = {-1, (int64_t{1} << 24) - 1};
constexpr ValueRange<double> kThetaRange = {1e-3, 1e15};
constexpr ValueRange<double> kFactorRange = {1e-3, 1e6};
constexpr ValueRange<double> kEpsilonRange = {0.0, 1.0};
constexpr ValueRange<double> kCapRange = {0.0, 1e6};

// Adds ids to the stop set, which stays sorted and without duplicates; -1 is none.
void add_stop_ids(ModelConfig& config, const std::vector<int64_t>& ids);

// Fills what both kinds of file leave to be worked out from the rest.
void fill_derived(const ArchitectureSpec& spec, ModelConfig& config);

// Per layer whether it has the window: every `pattern`-th sees everything; pattern 0: none does.
std::vector<uint8_t> sliding_layers(int num_layers, int64_t pattern);

}  // namespace quire
