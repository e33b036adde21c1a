#include "app/model_hash.h"

#include <fmt/format.h>

#include "base/content_hash.h"
#include "models/config_parser.h"

namespace quire::app {

std::string hash_model(const Checkpoint& checkpoint) {
  ContentHash hash;
  hash.add(checkpoint.gguf != nullptr ? boost::json::serialize(gguf_metadata(*checkpoint.gguf))
                                      : checkpoint.config_json.value_or(""));
  if (!checkpoint.has_tensors()) return hash.hex() + " without weights";
  const TensorSource& tensors = checkpoint.tensors();
  for (const SourceTensor& tensor : tensors.tensors()) {
    hash.add(fmt::format("{} {} {}", tensor.name, tensor.type_name, describe_sizes(tensor.sizes)));
    tensors.will_need(tensor.data);
    if (const Status status = tensors.prepare(tensor); !status.is_ok()) hash.add(status.message());
    hash.add(tensor.data);
    tensors.done_with(tensor.data);
  }
  return hash.hex();
}

}  // namespace quire::app
