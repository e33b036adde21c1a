// `quire tokenize`: JSON strings on stdin become arrays of token ids on stdout, or the other way round. Needs a
// vocabulary only, no weights.
#include <limits>

#include "app/command.h"
#include "app/console.h"
#include "app/json_lines.h"
#include "app/model_path.h"
#include "app/model_session.h"
#include "app/options.h"

namespace quire::app {

namespace json = boost::json;

namespace {

struct TokenizeOptions {
  std::string model;
  bool is_detokenize = false;
  bool has_no_bos = false;
  bool is_plain = false;
  bool is_json = false;
};

Result<json::value> tokenize_line(const Tokenizer& tokenizer, EncodeScratch& scratch, const TokenizeOptions& options,
                                  const json::value& line) {
  if (!line.is_string()) return invalid_argument("the line must be a JSON string");
  EncodeOptions encode;
  encode.adds_bos_eos = !options.has_no_bos;
  encode.recognizes_special = !options.is_plain;
  const json::string& text = line.get_string();
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                   tokenizer.encode(std::string_view(text.data(), text.size()), encode, &scratch));
  return json::value_from(ids);
}

Result<json::value> detokenize_line(const Tokenizer& tokenizer, const json::value& line) {
  const Status wrong =
      invalid_argument("the line must be an array of token ids below " + std::to_string(tokenizer.vocab_size()));
  if (!line.is_array()) return wrong;
  std::vector<int32_t> ids;
  for (const json::value& item : line.get_array()) {
    if (!item.is_int64() || item.get_int64() < 0 || item.get_int64() >= tokenizer.vocab_size()) return wrong;
    ids.push_back(static_cast<int32_t>(item.get_int64()));
  }
  DecodeOptions decode;
  decode.skips_special = false;
  return json::value(tokenizer.decode(ids, decode));
}

Status run(const TokenizeOptions& options) {
  Console console(LogLevel::kInfo);
  ASSIGN_OR_RETURN(const std::filesystem::path path, resolve_model(options.model, read_environment(), console));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_checkpoint(path.string(), {.needs_tensors = false}));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, open_tokenizer(checkpoint));
  if (options.is_detokenize) {
    return map_json_lines([&](const json::value& line) { return detokenize_line(*tokenizer, line); });
  }
  const std::unique_ptr<EncodeScratch> scratch = tokenizer->create_scratch();
  return map_json_lines([&](const json::value& line) { return tokenize_line(*tokenizer, *scratch, options, line); });
}

}  // namespace

std::function<Status()> declare_tokenize(CLI::App& parser) {
  auto options = std::make_shared<TokenizeOptions>();
  add_model_argument(parser, options->model);
  parser.add_flag("--detokenize", options->is_detokenize, "Read arrays of ids, write strings");
  parser.add_flag("--no-bos", options->has_no_bos, "Leave out the BOS (and EOS) that the model asks for");
  parser.add_flag("--plain", options->is_plain, "Take special tokens in the text as plain text");
  parser.add_flag("--json", options->is_json, "Accepted for uniformity: the output is JSON in any case");
  parser.footer("stdin: a JSON string a line. stdout: a JSON array of token ids a line, or {\"error\": ...}.");
  return [options] { return run(*options); };
}

}  // namespace quire::app
