// How a model's hidden states become one vector, an embedding: from the files of sentence-transformers
// (modules.json, 1_Pooling/config.json) or GGUF's `<arch>.pooling_type`. Read at load; the server and the engine go by
// it.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

// What becomes of the hidden states of a prompt, taken after the model's final norm.
enum class Pooling : uint8_t {
  kNone,  // no embedding: the request generates
  kLast,  // of the last token
  kMean,  // the mean over all tokens
  kCls,   // of the first token
};
const char* pooling_name(Pooling pooling);

struct PoolingConfig {
  // Where no file says anything: what vLLM does with a decoder that was not made for embeddings.
  Pooling pooling = Pooling::kLast;
  bool is_normalized = true;  // divided by its Euclidean length
  std::string source;         // the file or key that says so; empty: none does
  // Not empty: the files ask for something that there is not, and this says what. Embeddings are then to be refused;
  // generation works.
  std::string unsupported;
};

// Either text may be empty: there is none.
PoolingConfig parse_sentence_transformers(std::string_view modules_json, std::string_view pooling_json);
// Of metadata as gguf_metadata makes them.
PoolingConfig parse_gguf_pooling(const boost::json::object& metadata);

}  // namespace quire
