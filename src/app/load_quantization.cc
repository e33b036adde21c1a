#include "app/load_quantization.h"

#include <fmt/format.h>

#include <optional>
#include <set>
#include <string_view>

#include "weights/group_quantization.h"

namespace quire::app {

Status check_group_method(const std::string& quantization, const Checkpoint& checkpoint) {
  const bool is_awq = quantization == "awq";
  if (!is_awq && quantization != "gptq") return ok_status();
  std::optional<GroupQuantization> found;
  if (checkpoint.config_json.has_value()) {
    ASSIGN_OR_RETURN(found, read_group_quantization(*checkpoint.config_json));
  }
  if (found.has_value() && found->method == (is_awq ? GroupMethod::kAwq : GroupMethod::kGptq)) return ok_status();
  return invalid_argument("--quantization " + quantization + ": " + checkpoint.path +
                          " is no checkpoint of that kind; leave --quantization out to take its weights as they are");
}

std::string what_stays_quantized(const std::string& quantization, const TensorSource& tensors) {
  if (quantization != "int8" && quantization != "fp8") return {};
  int num_floats = 0;
  int num_others = 0;
  std::set<std::string_view> others;
  for (const SourceTensor& tensor : tensors.tensors()) {
    const bool is_matrix = tensor.sizes.size() > 1;
    if (!is_matrix || !tensor.format.has_value()) continue;
    const QuantFormat& format = quant_format(*tensor.format);
    if (format.is_float) {
      ++num_floats;
    } else {
      ++num_others;
      others.insert(format.name);
    }
  }
  if (num_others == 0) return {};
  std::string names;
  for (const std::string_view name : others) names += (names.empty() ? "" : ", ") + std::string(name);
  if (num_floats == 0) {
    return fmt::format(
        "--quantization {} changes nothing: it is for matrices of floats, and this model's are quantized already ({})",
        quantization, names);
  }
  return fmt::format(
      "--quantization {} is for matrices of floats, which {} of this model's {} are: the others are quantized already "
      "({}) and stay so",
      quantization, num_floats, num_floats + num_others, names);
}

}  // namespace quire::app
