// TokenizerData (a GGUF file's metadata) → TokenizerPipeline, one function a model kind. Runs once, when a model is
// loaded.
#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "text/bpe.h"
#include "text/pre_tokenizer_families.h"
#include "text/tokenizer_pipeline.h"
#include "text/unigram.h"
#include "text/utf8.h"
#include "text/wordpiece.h"

namespace quire {
namespace {

constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581

std::string replace_metaspace(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (text.substr(i, kMetaspace.size()) == kMetaspace) {
      out.push_back(' ');
      i += kMetaspace.size();
    } else {
      out.push_back(text[i++]);
    }
  }
  return out;
}

TokenType type_of(const TokenizerData& data, size_t id) {
  if (!data.token_types.empty()) {
    // 0 ("undefined") is how some converters fill rows beyond the vocabulary.
    return data.token_types[id] == 0 ? TokenType::kUnused : static_cast<TokenType>(data.token_types[id]);
  }
  if (static_cast<int32_t>(id) == data.unknown_id) return TokenType::kUnknown;
  const auto i = static_cast<int32_t>(id);
  return i == data.bos_id || i == data.eos_id ? TokenType::kControl : TokenType::kNormal;
}

// What all kinds share: special ids, the texts that are tokens as they stand, BOS and EOS.
TokenizerPipeline start_pipeline(const TokenizerData& data) {
  TokenizerPipeline pipe;
  const size_t num_tokens = data.tokens.size();
  pipe.pieces.resize(num_tokens);
  pipe.is_special.resize(num_tokens);
  for (size_t id = 0; id < num_tokens; ++id) {
    const TokenType type = type_of(data, id);
    const bool is_special = type == TokenType::kControl || type == TokenType::kUnknown;
    pipe.is_special[id] = is_special;
    if (!is_special && type != TokenType::kUserDefined) continue;
    pipe.pieces[id] = data.tokens[id];
    if (data.tokens[id].empty()) continue;
    pipe.added_tokens.push_back({.id = static_cast<int32_t>(id), .content = data.tokens[id], .is_special = is_special});
  }
  pipe.bos_id = data.bos_id;
  pipe.eos_id = data.eos_id;
  pipe.unknown_id = data.unknown_id;
  pipe.padding_id = data.padding_id;
  collect_end_of_turn_ids({data.eos_id, data.eot_id, data.eom_id}, pipe);
  return pipe;
}

void set_bos_eos(const TokenizerData& data, bool adds_bos_by_default, bool adds_eos_by_default,
                 TokenizerPipeline& pipe) {
  if (data.add_bos.value_or(adds_bos_by_default) && data.bos_id >= 0) pipe.prefix_ids = {data.bos_id};
  if (data.add_eos.value_or(adds_eos_by_default) && data.eos_id >= 0) pipe.suffix_ids = {data.eos_id};
}

// "left right" → ids, in the vocabulary's own texts. `to_text` undoes the file's spelling.
template <typename ToText>
std::vector<BpeMerge> read_merges(const std::vector<std::string>& lines, const TokenTable& vocabulary, ToText to_text) {
  std::vector<BpeMerge> merges;
  merges.reserve(lines.size());
  std::string left, right;
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    const std::string_view line = lines[rank];
    const size_t space = line.find(' ', 1);
    if (space == std::string_view::npos) continue;
    if (!to_text(line.substr(0, space), left) || !to_text(line.substr(space + 1), right)) continue;
    const int32_t left_id = vocabulary.find(left);
    const int32_t right_id = vocabulary.find(right);
    const int32_t merged_id = vocabulary.find(left + right);
    // A merge of texts that are no tokens can never be reached.
    if (left_id < 0 || right_id < 0 || merged_id < 0) continue;
    merges.push_back({left_id, right_id, merged_id, static_cast<uint32_t>(rank)});
  }
  return merges;
}

Result<TokenizerPipeline> make_byte_level_bpe(const TokenizerData& data) {
  ASSIGN_OR_RETURN(PreTokenizerFamily family, find_pre_tokenizer_family(data.pre));
  if (data.merges.empty()) return invalid_argument("the tokenizer has no merges (tokenizer.ggml.merges)");
  TokenizerPipeline pipe = start_pipeline(data);
  pipe.kind = "byte-level BPE (" + (data.pre.empty() ? std::string("default") : data.pre) + ")";
  const ByteAlphabet alphabet;
  const size_t num_tokens = data.tokens.size();
  std::vector<std::string> texts(num_tokens);
  std::vector<int32_t> findable;
  for (size_t id = 0; id < num_tokens; ++id) {
    const TokenType type = type_of(data, id);
    if (type != TokenType::kNormal && type != TokenType::kUnused && type != TokenType::kByte) continue;
    if (!alphabet.decode(data.tokens[id], texts[id])) {
      pipe.pieces[id] = data.tokens[id];
      texts[id].clear();
      continue;
    }
    pipe.pieces[id] = texts[id];
    if (type == TokenType::kNormal && !texts[id].empty()) findable.push_back(static_cast<int32_t>(id));
  }
  *pipe.vocabulary = TokenTable(std::move(texts));
  for (const int32_t id : findable) pipe.vocabulary->make_findable(id);
  const std::vector<BpeMerge> merges =
      read_merges(data.merges, *pipe.vocabulary,
                  [&](std::string_view text, std::string& out) { return alphabet.decode(text, out); });
  std::array<int32_t, 256> no_bytes;
  no_bytes.fill(-1);
  const BpeOptions options{.is_byte_level = true, .ignores_merges = family.ignores_merges, .unknown_id = -1};
  pipe.model = std::make_unique<BpeModel>(*pipe.vocabulary, merges, no_bytes, options);
  if (family.normalizes_nfc)
    pipe.normalizer = Normalizer(
        {{.kind = NormalizerStep::Kind::kNfc, .pattern = {}, .content = {}, .regex = nullptr, .charsmap = nullptr}});
  pipe.pre_tokenizer = PreTokenizer(std::move(family.steps));
  set_bos_eos(data, family.adds_bos_by_default, false, pipe);
  return pipe;
}

NormalizerStep step_of(NormalizerStep::Kind kind, std::string_view pattern = {}, std::string_view content = {}) {
  return {.kind = kind,
          .pattern = std::string(pattern),
          .content = std::string(content),
          .regex = nullptr,
          .charsmap = nullptr};
}

// SentencePiece's texts, findable where a piece of text may become them, and the <0xNN> tokens.
std::array<int32_t, 256> fill_metaspace_vocabulary(const TokenizerData& data, TokenizerPipeline& pipe) {
  std::array<int32_t, 256> byte_ids;
  byte_ids.fill(-1);
  std::vector<int32_t> findable;
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    const std::string& text = data.tokens[id];
    const TokenType type = type_of(data, id);
    const int byte = parse_byte_token(text);
    if (byte >= 0 && (type == TokenType::kByte || data.token_types.empty())) {
      pipe.pieces[id] = std::string(1, static_cast<char>(byte));
      int32_t& byte_id = byte_ids[static_cast<size_t>(byte)];
      if (byte_id < 0) byte_id = static_cast<int32_t>(id);
      continue;
    }
    if (type != TokenType::kNormal && type != TokenType::kUnused) continue;
    pipe.pieces[id] = replace_metaspace(text);
    if (type == TokenType::kNormal && !text.empty() && is_valid_utf8(text))
      findable.push_back(static_cast<int32_t>(id));
  }
  *pipe.vocabulary = TokenTable(data.tokens);
  for (const int32_t id : findable) pipe.vocabulary->make_findable(id);
  return byte_ids;
}

// SentencePiece BPE knows scores, not merges: any two neighbours whose joined text is a token may merge, best score
// first. That is the merge of every way to cut each token in two tokens, ranked by the score of the whole.
std::vector<BpeMerge> merges_from_scores(const TokenizerData& data, const TokenTable& vocabulary) {
  std::vector<float> scores = data.scores;
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  std::vector<BpeMerge> merges;
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    const std::string_view text = data.tokens[id];
    if (text.size() < 2 || vocabulary.find(text) != static_cast<int32_t>(id)) continue;
    const auto rank =
        std::lower_bound(scores.begin(), scores.end(), data.scores[id], std::greater<>()) - scores.begin();
    for (size_t cut = utf8_sequence_length(text[0]); cut < text.size(); cut += utf8_sequence_length(text[cut])) {
      const int32_t left = vocabulary.find(text.substr(0, cut));
      if (left < 0) continue;
      const int32_t right = vocabulary.find(text.substr(cut));
      if (right < 0) continue;
      merges.push_back({left, right, static_cast<int32_t>(id), static_cast<uint32_t>(rank)});
    }
  }
  return merges;
}

// Phi-3's markers take the white space after them along; GGUF files do not say so.
void apply_phi3_rules(TokenizerPipeline& pipe) {
  const bool is_phi3 = std::any_of(pipe.added_tokens.begin(), pipe.added_tokens.end(),
                                   [](const AddedToken& token) { return token.content == "<|placeholder1|>"; });
  if (!is_phi3) return;
  for (AddedToken& token : pipe.added_tokens) {
    token.strips_right = token.content != "<s>" && token.content != "<unk>" && token.content != "<|endoftext|>";
  }
}

Result<TokenizerPipeline> make_sentencepiece_bpe(const TokenizerData& data) {
  if (data.scores.empty()) return invalid_argument("the tokenizer has no scores (tokenizer.ggml.scores)");
  TokenizerPipeline pipe = start_pipeline(data);
  pipe.kind = "SentencePiece BPE";
  const std::array<int32_t, 256> byte_ids = fill_metaspace_vocabulary(data, pipe);
  const BpeOptions options{.has_byte_fallback = true, .fuses_unknown = true, .unknown_id = data.unknown_id};
  pipe.model =
      std::make_unique<BpeModel>(*pipe.vocabulary, merges_from_scores(data, *pipe.vocabulary), byte_ids, options);
  const bool adds_space = data.add_space_prefix.value_or(true);
  std::vector<NormalizerStep> steps;
  if (adds_space) steps.push_back(step_of(NormalizerStep::Kind::kPrepend, {}, kMetaspace));
  steps.push_back(step_of(NormalizerStep::Kind::kReplace, " ", kMetaspace));
  pipe.normalizer = Normalizer(std::move(steps));
  pipe.num_spaces_stripped_at_start = adds_space ? 1 : 0;
  apply_phi3_rules(pipe);
  set_bos_eos(data, true, false, pipe);
  return pipe;
}

// Gemma 4: SentencePiece's texts, but with a list of merges.
Result<TokenizerPipeline> make_metaspace_bpe(const TokenizerData& data) {
  if (data.merges.empty()) return invalid_argument("the tokenizer has no merges (tokenizer.ggml.merges)");
  TokenizerPipeline pipe = start_pipeline(data);
  pipe.kind = "BPE with byte fallback (" + data.model + ")";
  const std::array<int32_t, 256> byte_ids = fill_metaspace_vocabulary(data, pipe);
  const std::vector<BpeMerge> merges =
      read_merges(data.merges, *pipe.vocabulary, [](std::string_view text, std::string& out) {
        out = text;
        return true;
      });
  const BpeOptions options{.has_byte_fallback = true, .fuses_unknown = true, .unknown_id = data.unknown_id};
  pipe.model = std::make_unique<BpeModel>(*pipe.vocabulary, merges, byte_ids, options);
  pipe.normalizer = Normalizer({step_of(NormalizerStep::Kind::kReplace, " ", kMetaspace)});
  set_bos_eos(data, true, false, pipe);
  return pipe;
}

Result<TokenizerPipeline> make_unigram(const TokenizerData& data) {
  if (data.scores.empty()) return invalid_argument("the tokenizer has no scores (tokenizer.ggml.scores)");
  TokenizerPipeline pipe = start_pipeline(data);
  pipe.kind = "unigram";
  const std::array<int32_t, 256> byte_ids = fill_metaspace_vocabulary(data, pipe);
  const bool has_bytes = std::all_of(byte_ids.begin(), byte_ids.end(), [](int32_t id) { return id >= 0; });
  pipe.model = std::make_unique<UnigramModel>(
      *pipe.vocabulary, std::vector<double>(data.scores.begin(), data.scores.end()), byte_ids,
      UnigramOptions{.has_byte_fallback = has_bytes, .unknown_id = data.unknown_id});
  // As Hugging Face runs the published vocabularies of this kind (T5, XLM-R): the character map by graphemes, then
  // words, each with the space in front.
  if (!data.precompiled_charsmap.empty()) {
    NormalizerStep step = step_of(NormalizerStep::Kind::kCharsmapGraphemes);
    const std::string bytes(data.precompiled_charsmap.begin(), data.precompiled_charsmap.end());
    ASSIGN_OR_RETURN(step.charsmap, PrecompiledCharsmap::create(bytes));
    pipe.normalizer = Normalizer({std::move(step)});
  }
  const bool adds_space = data.add_space_prefix.value_or(true);
  std::vector<PreTokenizerStep> steps;
  if (data.remove_extra_whitespaces.value_or(true)) {
    steps.push_back({.kind = PreTokenizerStep::Kind::kSplitWhiteSpace,
                     .regex = nullptr,
                     .content = {},
                     .behavior = SplitBehavior::kRemoved});
  }
  steps.push_back(
      {.kind = PreTokenizerStep::Kind::kMetaspace,
       .regex = nullptr,
       .content = std::string(kMetaspace),
       .scheme = adds_space ? PreTokenizerStep::PrependScheme::kAlways : PreTokenizerStep::PrependScheme::kNever});
  pipe.pre_tokenizer = PreTokenizer(std::move(steps));
  pipe.num_spaces_stripped_at_start = adds_space ? 1 : 0;
  set_bos_eos(data, false, true, pipe);
  return pipe;
}

// GGUF spells the first piece of a word with U+2581 in front and the following ones without "##".
Result<TokenizerPipeline> make_wordpiece(const TokenizerData& data) {
  TokenizerPipeline pipe = start_pipeline(data);
  pipe.kind = "WordPiece";
  pipe.continuation_prefix = "##";
  pipe.piece_separator = " ";
  pipe.cleans_up_spaces = true;
  std::vector<std::string> texts(data.tokens.size());
  std::vector<int32_t> findable;
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    const TokenType type = type_of(data, id);
    if (type != TokenType::kNormal && type != TokenType::kUnused) continue;
    const std::string_view text = data.tokens[id];
    texts[id] = text.starts_with(kMetaspace) ? std::string(text.substr(kMetaspace.size())) : "##" + std::string(text);
    pipe.pieces[id] = texts[id];
    if (!texts[id].empty()) findable.push_back(static_cast<int32_t>(id));
  }
  *pipe.vocabulary = TokenTable(std::move(texts));
  for (const int32_t id : findable) pipe.vocabulary->make_findable(id);
  pipe.model = std::make_unique<WordPieceModel>(*pipe.vocabulary, WordPieceOptions{.unknown_id = data.unknown_id});
  using Kind = NormalizerStep::Kind;
  pipe.normalizer = Normalizer({step_of(Kind::kBertCleanText), step_of(Kind::kBertSpaceIdeographs), step_of(Kind::kNfd),
                                step_of(Kind::kStripNonspacing), step_of(Kind::kLowercase)});
  PreTokenizerStep spaces{.kind = PreTokenizerStep::Kind::kSplitWhiteSpace,
                          .regex = nullptr,
                          .content = {},
                          .behavior = SplitBehavior::kRemoved};
  PreTokenizerStep punctuation{.kind = PreTokenizerStep::Kind::kSplitPunctuation, .regex = nullptr, .content = {}};
  pipe.pre_tokenizer = PreTokenizer({spaces, punctuation});
  const int32_t cls = data.cls_id >= 0 ? data.cls_id : data.bos_id;
  const int32_t separator = data.separator_id >= 0 ? data.separator_id : data.eos_id;
  if (data.add_bos.value_or(true) && cls >= 0) pipe.prefix_ids = {cls};
  if (data.add_eos.value_or(true) && separator >= 0) pipe.suffix_ids = {separator};
  return pipe;
}

}  // namespace

Result<TokenizerPipeline> make_pipeline(const TokenizerData& data) {
  if (data.model == "gpt2") return make_byte_level_bpe(data);
  if (data.model == "llama") return make_sentencepiece_bpe(data);
  if (data.model == "gemma4") return make_metaspace_bpe(data);
  if (data.model == "t5") return make_unigram(data);
  if (data.model == "bert") return make_wordpiece(data);
  return unimplemented("the file's tokenizer is of kind \"" + data.model +
                       "\" (tokenizer.ggml.model); known kinds are gpt2, llama, gemma4, t5 and bert");
}

}  // namespace quire
