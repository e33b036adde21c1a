#include "app/tokenizer_metadata.h"

#include <limits>

namespace quire::app {

namespace {

Status read_id(const GgufFile& file, const char* key, int32_t& id) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> value, file.find_integer(key));
  if (!value.has_value()) return ok_status();
  // Files write "none" as 2^32 - 1 or -1.
  if (*value == -1 || *value == std::numeric_limits<uint32_t>::max()) return ok_status();
  if (*value < 0 || *value > std::numeric_limits<int32_t>::max()) {
    return invalid_argument(std::string(key) + " is " + std::to_string(*value) + ", which is not a token id");
  }
  id = static_cast<int32_t>(*value);
  return ok_status();
}

}  // namespace

Result<TokenizerData> read_tokenizer_data(const GgufFile& file) {
  TokenizerData data;
  ASSIGN_OR_RETURN(const auto model, file.find_string("tokenizer.ggml.model"));
  if (!model.has_value()) return invalid_argument("the file has no tokenizer: the key tokenizer.ggml.model is missing");
  data.model = *model;
  ASSIGN_OR_RETURN(const auto pre, file.find_string("tokenizer.ggml.pre"));
  if (pre.has_value()) data.pre = *pre;

  ASSIGN_OR_RETURN(const auto tokens, file.find_strings("tokenizer.ggml.tokens"));
  if (!tokens.has_value())
    return invalid_argument("the file has no vocabulary: the key tokenizer.ggml.tokens is missing");
  data.tokens.assign(tokens->begin(), tokens->end());
  ASSIGN_OR_RETURN(const auto merges, file.find_strings("tokenizer.ggml.merges"));
  if (merges.has_value()) data.merges.assign(merges->begin(), merges->end());
  ASSIGN_OR_RETURN(auto scores, file.find_floats("tokenizer.ggml.scores"));
  if (scores.has_value()) data.scores = std::move(*scores);
  ASSIGN_OR_RETURN(const auto types, file.find_integers("tokenizer.ggml.token_type"));
  if (types.has_value()) {
    for (const int64_t type : *types) {
      if (type < 0 || type > 255)
        return invalid_argument("tokenizer.ggml.token_type has the value " + std::to_string(type));
      data.token_types.push_back(static_cast<int32_t>(type));
    }
  }
  ASSIGN_OR_RETURN(const auto charsmap, file.find_integers("tokenizer.ggml.precompiled_charsmap"));
  if (charsmap.has_value()) {
    for (const int64_t byte : *charsmap) data.precompiled_charsmap.push_back(static_cast<uint8_t>(byte));
  }

  struct NamedId {
    const char* key;
    int32_t& id;
  };
  const NamedId ids[] = {
      {"tokenizer.ggml.bos_token_id", data.bos_id},
      {"tokenizer.ggml.eos_token_id", data.eos_id},
      {"tokenizer.ggml.eot_token_id", data.eot_id},
      {"tokenizer.ggml.eom_token_id", data.eom_id},
      {"tokenizer.ggml.unknown_token_id", data.unknown_id},
      {"tokenizer.ggml.padding_token_id", data.padding_id},
      {"tokenizer.ggml.seperator_token_id", data.separator_id},
      {"tokenizer.ggml.cls_token_id", data.cls_id},
      {"tokenizer.ggml.mask_token_id", data.mask_id},
  };
  for (const NamedId& named : ids) RETURN_IF_ERROR(read_id(file, named.key, named.id));

  ASSIGN_OR_RETURN(data.add_bos, file.find_bool("tokenizer.ggml.add_bos_token"));
  ASSIGN_OR_RETURN(data.add_eos, file.find_bool("tokenizer.ggml.add_eos_token"));
  ASSIGN_OR_RETURN(data.add_space_prefix, file.find_bool("tokenizer.ggml.add_space_prefix"));
  ASSIGN_OR_RETURN(data.remove_extra_whitespaces, file.find_bool("tokenizer.ggml.remove_extra_whitespaces"));
  return data;
}

}  // namespace quire::app
