#include "text/tokenizer_pipeline.h"
namespace quire {
Result<TokenizerPipeline> make_pipeline_from_json(std::string_view, std::string_view) {
  return unimplemented("tokenizer.json");
}
}  // namespace quire
