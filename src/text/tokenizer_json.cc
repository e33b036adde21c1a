// tokenizer.json and tokenizer_config.json (Hugging Face) → TokenizerPipeline. The reader is bounded in size and depth,
// checks every type, and refuses what it does not know by name: a part that is silently skipped would give wrong ids.
// Runs once, when a model is loaded.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "text/bpe.h"
#include "text/json_reader.h"
#include "text/tokenizer_json_steps.h"
#include "text/tokenizer_pipeline.h"
#include "text/unigram.h"
#include "text/utf8.h"
#include "text/wordpiece.h"

namespace quire {
namespace {

// Ids may have gaps, but not so wide that a short file asks for gigabytes.
constexpr size_t kMaxIdGap = 262144;
constexpr size_t kMaxIdsPerToken = 4;
// A search for added tokens costs up to the longest of them at each byte.
constexpr size_t kMaxAddedTokenBytes = 1024;
constexpr std::string_view kMetaspace = "\xE2\x96\x81";

// ---- vocabulary and added tokens ----

Status check_id(int64_t id, const JsonTokenizer& out) {
  if (id >= 0 && id < out.id_limit) return ok_status();
  return invalid_argument("tokenizer.json: the token id " + std::to_string(id) +
                          " is out of range for a vocabulary of its size");
}

Status put_token(int64_t id, std::string_view text, JsonTokenizer& out) {
  RETURN_IF_ERROR(check_id(id, out));
  const auto index = static_cast<size_t>(id);
  if (out.vocabulary_texts.size() <= index) out.vocabulary_texts.resize(index + 1);
  out.vocabulary_texts[index] = text;
  return ok_status();
}

Status read_vocabulary_object(const JsonValue& model, JsonTokenizer& out) {
  ASSIGN_OR_RETURN(const JsonValue vocabulary, model.get("vocab", "model"));
  out.id_limit += static_cast<int64_t>(kMaxIdsPerToken * vocabulary.num_members());
  return vocabulary.for_each_member("model's vocab", [&](std::string_view text, const JsonValue& id) -> Status {
    ASSIGN_OR_RETURN(const int64_t number, id.to_integer("model's vocab"));
    return put_token(number, text, out);
  });
}

// [["text", score], …], the index being the id
Status read_unigram_vocabulary(const JsonValue& model, JsonTokenizer& out) {
  ASSIGN_OR_RETURN(const std::vector<JsonValue> rows, model.get_array("vocab", "model"));
  out.id_limit += static_cast<int64_t>(rows.size());
  for (size_t id = 0; id < rows.size(); ++id) {
    ASSIGN_OR_RETURN(const std::vector<JsonValue> row, rows[id].to_array("model's vocab"));
    if (row.size() != 2 || !row[0].is_string()) {
      return invalid_argument("tokenizer.json: entry " + std::to_string(id) +
                              " of the unigram vocab is not [text, score]");
    }
    ASSIGN_OR_RETURN(const double score, row[1].to_number("model's vocab"));
    if (!std::isfinite(score)) return invalid_argument("tokenizer.json: a unigram score is not finite");
    RETURN_IF_ERROR(put_token(static_cast<int64_t>(id), row[0].as_string(), out));
    out.scores.push_back(score);
  }
  return ok_status();
}

Status read_added_tokens(const JsonValue& root, JsonTokenizer& out) {
  if (!root.has("added_tokens")) return ok_status();
  const std::string what = "added_tokens";
  TokenTable by_text(out.vocabulary_texts);
  for (size_t id = 0; id < out.vocabulary_texts.size(); ++id) {
    if (!out.vocabulary_texts[id].empty()) by_text.make_findable(static_cast<int32_t>(id));
  }
  ASSIGN_OR_RETURN(const std::vector<JsonValue> rows, root.get_array("added_tokens", "file"));
  out.id_limit += static_cast<int64_t>(rows.size());
  for (const JsonValue& row : rows) {
    AddedToken token;
    ASSIGN_OR_RETURN(const int64_t id, row.get_integer("id", what));
    ASSIGN_OR_RETURN(token.content, row.get_string("content", what));
    ASSIGN_OR_RETURN(token.is_special, row.get_bool_or("special", false, what));
    ASSIGN_OR_RETURN(token.is_single_word, row.get_bool_or("single_word", false, what));
    ASSIGN_OR_RETURN(token.strips_left, row.get_bool_or("lstrip", false, what));
    ASSIGN_OR_RETURN(token.strips_right, row.get_bool_or("rstrip", false, what));
    ASSIGN_OR_RETURN(token.is_normalized, row.get_bool_or("normalized", !token.is_special, what));
    if (token.content.empty()) continue;
    if (token.content.size() > kMaxAddedTokenBytes) {
      return invalid_argument("tokenizer.json: an added token is longer than 1024 bytes");
    }
    const int32_t in_vocabulary = by_text.find(token.content);
    if (in_vocabulary >= 0) {
      token.id = in_vocabulary;
    } else {
      RETURN_IF_ERROR(check_id(id, out));
      token.id = static_cast<int32_t>(id);
    }
    out.pipe.added_tokens.push_back(std::move(token));
  }
  return ok_status();
}

// ---- models ----

// Texts as the model matches them: bytes for byte-level vocabularies. Markers are left unfindable, so that no chain of
// merges can spell one.
Status make_vocabulary(JsonTokenizer& out) {
  const ByteAlphabet alphabet;
  std::vector<std::string> texts = out.vocabulary_texts;
  std::vector<bool> is_findable(texts.size(), true);
  for (const AddedToken& token : out.pipe.added_tokens) {
    if (is_marker(token) && static_cast<size_t>(token.id) < texts.size())
      is_findable[static_cast<size_t>(token.id)] = false;
  }
  if (out.is_byte_level) {
    std::string bytes;
    for (size_t id = 0; id < texts.size(); ++id) {
      if (alphabet.decode(texts[id], bytes)) {
        texts[id] = bytes;
      } else {
        is_findable[id] = false;
      }
    }
  }
  for (size_t id = 0; id < texts.size(); ++id) is_findable[id] = is_findable[id] && !texts[id].empty();
  *out.pipe.vocabulary = TokenTable(std::move(texts));
  for (size_t id = 0; id < is_findable.size(); ++id) {
    if (is_findable[id]) out.pipe.vocabulary->make_findable(static_cast<int32_t>(id));
  }
  return ok_status();
}

int32_t find_spelled(const JsonTokenizer& tokenizer, std::string_view text) {
  for (const AddedToken& token : tokenizer.pipe.added_tokens) {
    if (token.content == text) return token.id;
  }
  for (size_t id = 0; id < tokenizer.vocabulary_texts.size(); ++id) {
    if (tokenizer.vocabulary_texts[id] == text) return static_cast<int32_t>(id);
  }
  return -1;
}

Result<int32_t> read_unknown_token(const JsonValue& model, const JsonTokenizer& out) {
  if (!model.has("unk_token")) return -1;
  ASSIGN_OR_RETURN(const std::string text, model.get_string("unk_token", "model"));
  const int32_t id = find_spelled(out, text);
  if (id < 0)
    return invalid_argument("tokenizer.json: the unk_token \"" + text.substr(0, 100) + "\" is not in the vocabulary");
  return id;
}

std::array<int32_t, 256> byte_tokens(const JsonTokenizer& tokenizer) {
  std::array<int32_t, 256> ids;
  ids.fill(-1);
  for (size_t id = 0; id < tokenizer.vocabulary_texts.size(); ++id) {
    const int byte = parse_byte_token(tokenizer.vocabulary_texts[id]);
    if (byte >= 0 && ids[static_cast<size_t>(byte)] < 0) ids[static_cast<size_t>(byte)] = static_cast<int32_t>(id);
  }
  return ids;
}

Status read_merges(const JsonValue& model, const JsonTokenizer& out, std::vector<BpeMerge>& merges) {
  const ByteAlphabet alphabet;
  const TokenTable& vocabulary = *out.pipe.vocabulary;
  ASSIGN_OR_RETURN(const std::vector<JsonValue> rows, model.get_array("merges", "model"));
  std::string left, right, bytes;
  const auto to_text = [&](std::string_view spelled, std::string& text) {
    if (out.is_byte_level) return alphabet.decode(spelled, text);
    text = spelled;
    return true;
  };
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    std::string_view left_spelled, right_spelled;
    if (rows[rank].is_string()) {
      const std::string_view line = rows[rank].as_string();
      const size_t space = line.find(' ', 1);
      if (space == std::string_view::npos) continue;
      left_spelled = line.substr(0, space);
      right_spelled = line.substr(space + 1);
    } else {
      ASSIGN_OR_RETURN(const std::vector<JsonValue> pair, rows[rank].to_array("model's merges"));
      if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
        return invalid_argument("tokenizer.json: merge " + std::to_string(rank) + " is not a pair of texts");
      }
      left_spelled = pair[0].as_string();
      right_spelled = pair[1].as_string();
    }
    if (!to_text(left_spelled, left) || !to_text(right_spelled, right)) continue;
    const int32_t left_id = vocabulary.find(left);
    const int32_t right_id = vocabulary.find(right);
    const int32_t merged_id = vocabulary.find(left + right);
    if (left_id < 0 || right_id < 0 || merged_id < 0) continue;
    merges.push_back({left_id, right_id, merged_id, static_cast<uint32_t>(rank)});
  }
  return ok_status();
}

Status make_bpe(const JsonValue& model, JsonTokenizer& out) {
  ASSIGN_OR_RETURN(const double dropout, model.get_number_or("dropout", 0.0, "model"));
  if (dropout != 0.0) return unknown_part("model option", "dropout");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.has(key)) continue;
    ASSIGN_OR_RETURN(const std::string affix, model.get_string(key, "model"));
    if (!affix.empty()) return unknown_part("model option", key);
  }
  BpeOptions options;
  options.is_byte_level = out.is_byte_level;
  ASSIGN_OR_RETURN(options.has_byte_fallback, model.get_bool_or("byte_fallback", false, "model"));
  ASSIGN_OR_RETURN(options.fuses_unknown, model.get_bool_or("fuse_unk", false, "model"));
  ASSIGN_OR_RETURN(options.ignores_merges, model.get_bool_or("ignore_merges", false, "model"));
  ASSIGN_OR_RETURN(options.unknown_id, read_unknown_token(model, out));
  out.pipe.unknown_id = options.unknown_id;
  std::vector<BpeMerge> merges;
  RETURN_IF_ERROR(read_merges(model, out, merges));
  out.pipe.model = std::make_unique<BpeModel>(*out.pipe.vocabulary, merges, byte_tokens(out), options);
  out.pipe.kind = out.is_byte_level ? "byte-level BPE (tokenizer.json)" : "BPE (tokenizer.json)";
  return ok_status();
}

Status make_unigram(const JsonValue& model, JsonTokenizer& out) {
  UnigramOptions options;
  ASSIGN_OR_RETURN(options.has_byte_fallback, model.get_bool_or("byte_fallback", false, "model"));
  if (model.has("unk_id")) {
    ASSIGN_OR_RETURN(const int64_t id, model.get_integer("unk_id", "model"));
    if (id < 0 || static_cast<size_t>(id) >= out.scores.size()) {
      return invalid_argument("tokenizer.json: the model's unk_id is outside its vocabulary");
    }
    options.unknown_id = static_cast<int32_t>(id);
  }
  out.pipe.unknown_id = options.unknown_id;
  std::vector<double> scores = out.scores;
  scores.resize(out.pipe.vocabulary->num_ids(), 0.0);
  out.pipe.model = std::make_unique<UnigramModel>(*out.pipe.vocabulary, std::move(scores), byte_tokens(out), options);
  out.pipe.kind = "unigram (tokenizer.json)";
  return ok_status();
}

Status make_wordpiece(const JsonValue& model, JsonTokenizer& out) {
  WordPieceOptions options;
  if (model.has("continuing_subword_prefix")) {
    ASSIGN_OR_RETURN(options.continuation_prefix, model.get_string("continuing_subword_prefix", "model"));
  }
  if (model.has("max_input_chars_per_word")) {
    ASSIGN_OR_RETURN(const int64_t limit, model.get_integer("max_input_chars_per_word", "model"));
    if (limit < 0) return invalid_argument("tokenizer.json: max_input_chars_per_word is negative");
    options.max_word_characters = static_cast<size_t>(limit);
  }
  ASSIGN_OR_RETURN(options.unknown_id, read_unknown_token(model, out));
  out.pipe.unknown_id = options.unknown_id;
  out.pipe.model = std::make_unique<WordPieceModel>(*out.pipe.vocabulary, options);
  out.pipe.kind = "WordPiece (tokenizer.json)";
  return ok_status();
}

// ---- post-processor ----

// Ids that cannot be are caught by check_affixes once all tokens are known.
int32_t clamp_id(int64_t id) {
  return static_cast<int32_t>(std::clamp<int64_t>(id, -1, std::numeric_limits<int32_t>::max()));
}

Status check_affixes(const TokenizerPipeline& pipe) {
  for (const std::vector<int32_t>* ids : {&pipe.prefix_ids, &pipe.suffix_ids}) {
    for (const int32_t id : *ids) {
      if (id < 0 || static_cast<size_t>(id) >= pipe.pieces.size()) {
        return invalid_argument("tokenizer.json: the post_processor adds the token id " + std::to_string(id) +
                                ", which the vocabulary does not have");
      }
    }
  }
  return ok_status();
}

Status read_template(const JsonValue& value, TokenizerPipeline& pipe) {
  const std::string what = "TemplateProcessing";
  ASSIGN_OR_RETURN(const std::vector<JsonValue> parts, value.get_array("single", what));
  ASSIGN_OR_RETURN(const JsonValue specials, value.get("special_tokens", what));
  bool is_after_text = false;
  for (const JsonValue& part : parts) {
    if (part.has("Sequence")) {
      is_after_text = true;
      continue;
    }
    ASSIGN_OR_RETURN(const JsonValue token, part.get("SpecialToken", what));
    ASSIGN_OR_RETURN(const std::string name, token.get_string("id", what));
    ASSIGN_OR_RETURN(const JsonValue special, specials.get(name, what + " special_tokens"));
    ASSIGN_OR_RETURN(const std::vector<JsonValue> ids, special.get_array("ids", what));
    for (const JsonValue& id : ids) {
      ASSIGN_OR_RETURN(const int64_t number, id.to_integer(what));
      (is_after_text ? pipe.suffix_ids : pipe.prefix_ids).push_back(clamp_id(number));
    }
  }
  return ok_status();
}

Status read_post_processor(const JsonValue& value, TokenizerPipeline& pipe) {
  if (value.is_null()) return ok_status();
  ASSIGN_OR_RETURN(const std::string type, value.get_string("type", "post_processor"));
  if (type == "ByteLevel") return ok_status();  // offsets only
  if (type == "TemplateProcessing") return read_template(value, pipe);
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const std::vector<JsonValue> parts, value.get_array("processors", "post_processor"));
    for (const JsonValue& part : parts) RETURN_IF_ERROR(read_post_processor(part, pipe));
    return ok_status();
  }
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    for (const char* key : {"cls", "sep"}) {
      ASSIGN_OR_RETURN(const std::vector<JsonValue> pair, value.get_array(key, type));
      if (pair.size() != 2) return invalid_argument("tokenizer.json: " + type + "'s " + key + " is not [text, id]");
      ASSIGN_OR_RETURN(const int64_t id, pair[1].to_integer(type));
      (key[0] == 'c' ? pipe.prefix_ids : pipe.suffix_ids).push_back(clamp_id(id));
    }
    return ok_status();
  }
  return unknown_part("post-processor", type);
}

// ---- decoder ----

void replace_in(std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  size_t position = 0;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, position)) {
    out.append(text, position, at - position);
    out.append(to);
    position = at + from.size();
  }
  out.append(text, position, text.size() - position);
  text = std::move(out);
}

struct DecoderState {
  bool is_fused = false;
  bool is_byte_level = false;
  std::vector<bool> is_byte;  // the piece is a raw byte already
};

// Works on pipe.pieces, which hold every token's spelling at first.
Status apply_decoder(const JsonValue& value, TokenizerPipeline& pipe, DecoderState& state) {
  ASSIGN_OR_RETURN(const std::string type, value.get_string("type", "decoder"));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const std::vector<JsonValue> parts, value.get_array("decoders", "decoder"));
    for (const JsonValue& part : parts) RETURN_IF_ERROR(apply_decoder(part, pipe, state));
    return ok_status();
  }
  if (type == "ByteLevel") {
    state.is_byte_level = true;
    return ok_status();
  }
  if (type == "Fuse") {
    state.is_fused = true;
    return ok_status();
  }
  if (type == "Replace") {
    ASSIGN_OR_RETURN(const JsonValue pattern, value.get("pattern", "Replace decoder"));
    std::string literal;
    std::shared_ptr<const SplitRegex> regex;
    RETURN_IF_ERROR(read_pattern(pattern, "Replace decoder", literal, regex));
    if (regex != nullptr) return unknown_part("decoder", "Replace with a Regex");
    ASSIGN_OR_RETURN(const std::string content, value.get_string("content", "Replace decoder"));
    for (size_t id = 0; id < pipe.pieces.size(); ++id) {
      if (!state.is_byte[id]) replace_in(pipe.pieces[id], literal, content);
    }
    return ok_status();
  }
  if (type == "ByteFallback") {
    for (size_t id = 0; id < pipe.pieces.size(); ++id) {
      const int byte = parse_byte_token(pipe.pieces[id]);
      if (byte < 0) continue;
      pipe.pieces[id] = std::string(1, static_cast<char>(byte));
      state.is_byte[id] = true;
    }
    return ok_status();
  }
  if (type == "Metaspace") {
    std::string replacement(kMetaspace);
    if (value.has("replacement")) {
      ASSIGN_OR_RETURN(replacement, value.get_string("replacement", "Metaspace"));
    }
    if (replacement.empty()) return invalid_argument("tokenizer.json: Metaspace has an empty replacement");
    ASSIGN_OR_RETURN(const auto scheme, read_prepend_scheme(value));
    for (std::string& piece : pipe.pieces) replace_in(piece, replacement, " ");
    if (scheme != PreTokenizerStep::PrependScheme::kNever) pipe.num_spaces_stripped_at_start = 1;
    return ok_status();
  }
  if (type == "Strip") {
    ASSIGN_OR_RETURN(const std::string content, value.get_string("content", "Strip decoder"));
    ASSIGN_OR_RETURN(const int64_t start, value.get_integer("start", "Strip decoder"));
    ASSIGN_OR_RETURN(const int64_t stop, value.get_integer("stop", "Strip decoder"));
    if (content != " " || stop != 0 || start < 0 || start > 1000 || !state.is_fused) {
      return unknown_part("decoder", "Strip, other than of spaces at the start of fused text");
    }
    pipe.num_spaces_stripped_at_start = static_cast<size_t>(start);
    return ok_status();
  }
  if (type == "WordPiece") {
    ASSIGN_OR_RETURN(pipe.continuation_prefix, value.get_string("prefix", "WordPiece decoder"));
    ASSIGN_OR_RETURN(pipe.cleans_up_spaces, value.get_bool_or("cleanup", true, "WordPiece decoder"));
    pipe.piece_separator = " ";
    return ok_status();
  }
  return unknown_part("decoder", type);
}

Status read_decoder(const JsonValue& root, JsonTokenizer& out) {
  TokenizerPipeline& pipe = out.pipe;
  pipe.pieces = out.vocabulary_texts;
  for (const AddedToken& token : pipe.added_tokens) {
    if (pipe.pieces.size() <= static_cast<size_t>(token.id)) pipe.pieces.resize(static_cast<size_t>(token.id) + 1);
    pipe.pieces[static_cast<size_t>(token.id)] = token.content;
  }
  DecoderState state;
  state.is_byte.resize(pipe.pieces.size());
  if (root.has("decoder")) {
    ASSIGN_OR_RETURN(const JsonValue decoder, root.get("decoder", "file"));
    RETURN_IF_ERROR(apply_decoder(decoder, pipe, state));
  } else if (out.is_byte_level) {
    state.is_byte_level = true;
  } else {
    pipe.piece_separator = " ";
  }
  pipe.is_special.resize(pipe.pieces.size());
  std::vector<bool> is_added(pipe.pieces.size());
  for (const AddedToken& token : pipe.added_tokens) {
    is_added[static_cast<size_t>(token.id)] = true;
    if (token.is_special) pipe.is_special[static_cast<size_t>(token.id)] = true;
  }
  if (!state.is_byte_level) return ok_status();
  const ByteAlphabet alphabet;
  std::string bytes;
  for (size_t id = 0; id < pipe.pieces.size(); ++id) {
    if (!is_added[id] && alphabet.decode(pipe.pieces[id], bytes)) pipe.pieces[id] = bytes;
  }
  return ok_status();
}

// ---- tokenizer_config.json ----

// A token is a text or {"content": text}; anything else, and a text without an id, is no token.
int32_t find_config_token(const JsonValue& config, const char* key, const JsonTokenizer& out) {
  Result<JsonValue> value = config.get(key, "tokenizer_config.json");
  if (!value.is_ok()) return -1;
  if (value.value().is_string()) return find_spelled(out, value.value().as_string());
  Result<std::string> content = value.value().get_string("content", key);
  return content.is_ok() ? find_spelled(out, content.value()) : -1;
}

Status read_config(std::string_view text, JsonTokenizer& out) {
  TokenizerPipeline& pipe = out.pipe;
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    if (!pipe.prefix_ids.empty()) pipe.bos_id = pipe.prefix_ids.front();
    if (!pipe.suffix_ids.empty()) pipe.eos_id = pipe.suffix_ids.back();
    return ok_status();
  }
  ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(text, "tokenizer_config.json"));
  const JsonValue config = document.root();
  pipe.bos_id = find_config_token(config, "bos_token", out);
  pipe.eos_id = find_config_token(config, "eos_token", out);
  pipe.padding_id = find_config_token(config, "pad_token", out);
  if (pipe.unknown_id < 0) pipe.unknown_id = find_config_token(config, "unk_token", out);
  // The flags are obeyed where they are given; Llama's and Gemma's classes rebuild the post-processor from them.
  Result<std::string> class_name = config.get_string("tokenizer_class", "tokenizer_config.json");
  const bool rebuilds = class_name.is_ok() && (class_name.value().find("Llama") != std::string::npos ||
                                               class_name.value().find("Gemma") != std::string::npos);
  const auto apply_flag = [&](const char* key, int32_t id, std::vector<int32_t>& ids) {
    Result<JsonValue> flag = config.get(key, "tokenizer_config.json");
    if (!flag.is_ok() || !flag.value().is_bool()) return;
    if (flag.value().as_bool()) {
      if (ids.empty() && id >= 0) ids = {id};
    } else if (rebuilds && ids == std::vector<int32_t>{id}) {
      ids.clear();
    }
  };
  apply_flag("add_bos_token", pipe.bos_id, pipe.prefix_ids);
  apply_flag("add_eos_token", pipe.eos_id, pipe.suffix_ids);
  return ok_status();
}

}  // namespace

Result<TokenizerPipeline> make_pipeline_from_json(std::string_view tokenizer_json,
                                                  std::string_view tokenizer_config_json) {
  ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(tokenizer_json, "tokenizer.json"));
  const JsonValue root = document.root();
  JsonTokenizer out;
  out.id_limit = kMaxIdGap;
  ASSIGN_OR_RETURN(const JsonValue model, root.get("model", "file"));
  std::string type;
  if (model.has("type")) {
    ASSIGN_OR_RETURN(type, model.get_string("type", "model"));
  } else {  // files of before the key existed
    type = model.has("merges") ? "BPE" : model.has("unk_id") ? "Unigram" : "WordPiece";
  }
  if (type != "BPE" && type != "Unigram" && type != "WordPiece") return unknown_part("model", type);
  RETURN_IF_ERROR(type == "Unigram" ? read_unigram_vocabulary(model, out) : read_vocabulary_object(model, out));
  if (out.vocabulary_texts.empty()) return invalid_argument("tokenizer.json: the model's vocab is empty");
  RETURN_IF_ERROR(read_added_tokens(root, out));
  RETURN_IF_ERROR(read_normalizer(root.get_or_null("normalizer"), out));
  RETURN_IF_ERROR(read_pre_tokenizer(root.get_or_null("pre_tokenizer"), out));
  if (out.is_byte_level && type != "BPE") return unknown_part("model with ByteLevel", type);
  RETURN_IF_ERROR(make_vocabulary(out));
  RETURN_IF_ERROR(type == "BPE"       ? make_bpe(model, out)
                  : type == "Unigram" ? make_unigram(model, out)
                                      : make_wordpiece(model, out));
  RETURN_IF_ERROR(read_post_processor(root.get_or_null("post_processor"), out.pipe));
  RETURN_IF_ERROR(read_decoder(root, out));
  RETURN_IF_ERROR(check_affixes(out.pipe));
  RETURN_IF_ERROR(read_config(tokenizer_config_json, out));
  out.pipe.normalizer = Normalizer(std::move(out.normalizer_steps));
  out.pipe.pre_tokenizer = PreTokenizer(std::move(out.pre_tokenizer_steps));
  collect_end_of_turn_ids({out.pipe.eos_id}, out.pipe);
  return std::move(out.pipe);
}

}  // namespace quire
