// Runs a TokenizerPipeline: added tokens in the raw text, normalizer, added tokens in the normalized text,
// pre-tokenizer, subword model; BOS and EOS around it.
#include "text/tokenizer.h"

#include <algorithm>

#include "text/detokenizer.h"
#include "text/split_regex.h"
#include "text/tokenizer_pipeline.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;
// Below this a scratch made for one call does not earn its cache back.
constexpr size_t kMinBytesForCache = 16 * 1024;

// Ill-formed sequences become U+FFFD; their marks follow.
void repair_utf8(std::string& text, std::string& marks) {
  if (is_valid_utf8(text)) return;
  if (marks.empty()) {
    text = replace_invalid_utf8(text);
    return;
  }
  MarkedText out;
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = step_utf8(text, i);
    const std::string_view bytes = std::string_view(text).substr(i, step.num_bytes);
    // A character that lies across a border is closed if any byte of it is.
    const bool is_open =
        std::string_view(marks).substr(i, step.num_bytes).find(MarkedText::kClosed) == std::string_view::npos;
    const char mark = is_open ? MarkedText::kOpen : MarkedText::kClosed;
    out.append(step.kind == Utf8Step::Kind::kValid ? bytes : "\xEF\xBF\xBD", mark, true);
    i += step.num_bytes;
  }
  text = std::move(out.text);
  marks = std::move(out.marks);
}

}  // namespace

struct EncodeScratch::Impl {
  SplitRegexScratch regex;
  SubwordScratch subword;
  PreTokenizedText pre_tokenized;
  std::vector<AddedTokenMatcher::Match> raw_matches;
  std::vector<AddedTokenMatcher::Match> normalized_matches;
};

EncodeScratch::EncodeScratch() : impl_(std::make_unique<Impl>()) {}
EncodeScratch::~EncodeScratch() = default;

struct Tokenizer::Impl {
  TokenizerPipeline pipeline;
  AddedTokenMatcher raw_matcher;
  AddedTokenMatcher normalized_matcher;
  TokenTable added_by_text;
};

Tokenizer::Tokenizer(TokenizerPipeline pipeline) {
  auto impl = std::make_unique<Impl>();
  impl->pipeline = std::move(pipeline);
  std::vector<std::string> contents(impl->pipeline.pieces.size());
  for (const AddedToken& token : impl->pipeline.added_tokens) contents[static_cast<size_t>(token.id)] = token.content;
  impl->added_by_text = TokenTable(std::move(contents));
  SplitRegexScratch scratch;
  for (const AddedToken& token : impl->pipeline.added_tokens) {
    impl->added_by_text.make_findable(token.id);
    if (!token.is_normalized) {
      impl->raw_matcher.add(token, token.content);
      continue;
    }
    MarkedText pattern{.text = token.content, .marks = {}};
    // A pattern that is too hard for a token's own text leaves the token as it is written.
    if (!impl->pipeline.normalizer.apply(pattern, scratch).is_ok()) pattern.text = token.content;
    impl->normalized_matcher.add(token, pattern.text);
  }
  impl_ = std::move(impl);
}

Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::create(const TokenizerData& data) {
  RETURN_IF_ERROR(validate(data));
  ASSIGN_OR_RETURN(TokenizerPipeline made, make_pipeline(data));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(made)));
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::create_from_json(std::string_view tokenizer_json,
                                                               std::string_view tokenizer_config_json) {
  ASSIGN_OR_RETURN(TokenizerPipeline made, make_pipeline_from_json(tokenizer_json, tokenizer_config_json));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(made)));
}

const TokenizerPipeline& Tokenizer::pipeline() const {
  return impl_->pipeline;
}

std::unique_ptr<EncodeScratch> Tokenizer::create_scratch() const {
  return std::unique_ptr<EncodeScratch>(new EncodeScratch());
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, const EncodeOptions& options,
                                               EncodeScratch* scratch) const {
  const TextSpan span{.text = text, .may_be_special = options.recognizes_special};
  return encode(std::span<const TextSpan>(&span, 1), options, scratch);
}

Result<std::vector<int32_t>> Tokenizer::encode(std::span<const TextSpan> spans, const EncodeOptions& options,
                                               EncodeScratch* scratch) const {
  size_t num_bytes = 0;
  bool needs_marks = false;
  for (const TextSpan& span : spans) {
    if (span.text.size() > kMaxTextBytes - num_bytes) {
      return invalid_argument("the text is longer than 1 GiB; send less");
    }
    num_bytes += span.text.size();
    needs_marks = needs_marks || (!span.may_be_special && !span.text.empty());
  }
  MarkedText text;
  text.text.reserve(num_bytes);
  for (const TextSpan& span : spans) {
    text.append(span.text, span.may_be_special ? MarkedText::kOpen : MarkedText::kClosed, needs_marks);
  }
  std::unique_ptr<EncodeScratch> own_scratch;
  if (scratch == nullptr) {
    own_scratch = create_scratch();
    own_scratch->impl_->subword.use_cache = num_bytes >= kMinBytesForCache;
    scratch = own_scratch.get();
  }
  std::vector<int32_t> ids;
  ids.reserve(num_bytes / 3 + 8);
  RETURN_IF_ERROR(encode_marked(text.text, text.marks, *scratch->impl_, ids));
  if (!options.adds_bos_eos) return ids;
  const std::vector<int32_t>& prefix = impl_->pipeline.prefix_ids;
  const std::vector<int32_t>& suffix = impl_->pipeline.suffix_ids;
  const bool opens_with_prefix =
      !prefix.empty() && ids.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin());
  if (!(options.keeps_single_bos && opens_with_prefix)) ids.insert(ids.begin(), prefix.begin(), prefix.end());
  ids.insert(ids.end(), suffix.begin(), suffix.end());
  return ids;
}

Status Tokenizer::encode_marked(std::string& text, std::string& marks, EncodeScratch::Impl& scratch,
                                std::vector<int32_t>& ids) const {
  repair_utf8(text, marks);
  std::vector<AddedTokenMatcher::Match>& matches = scratch.raw_matches;
  matches.clear();
  impl_->raw_matcher.find_all(text, marks, matches);
  const std::string_view view = text;
  const std::string_view mark_view = marks;
  const auto marks_of = [&](size_t begin, size_t end) {
    return marks.empty() ? std::string_view() : mark_view.substr(begin, end - begin);
  };
  size_t position = 0;
  for (const AddedTokenMatcher::Match& match : matches) {
    RETURN_IF_ERROR(encode_between(view.substr(position, match.begin - position), marks_of(position, match.begin),
                                   position == 0, scratch, ids));
    ids.push_back(match.id);
    position = match.end;
  }
  return encode_between(view.substr(position), marks_of(position, view.size()), position == 0, scratch, ids);
}

Status Tokenizer::encode_between(std::string_view text, std::string_view marks, bool is_at_start,
                                 EncodeScratch::Impl& scratch, std::vector<int32_t>& ids) const {
  if (text.empty()) return ok_status();
  const TokenizerPipeline& pipe = impl_->pipeline;
  MarkedText normalized;
  if (!pipe.normalizer.is_identity()) {
    normalized.text = std::string(text);
    if (!impl_->normalized_matcher.is_empty()) normalized.marks = std::string(marks);
    RETURN_IF_ERROR(pipe.normalizer.apply(normalized, scratch.regex));
    text = normalized.text;
    marks = normalized.marks;
  }
  if (impl_->normalized_matcher.is_empty()) return encode_plain(text, is_at_start, scratch, ids);
  std::vector<AddedTokenMatcher::Match>& matches = scratch.normalized_matches;
  matches.clear();
  impl_->normalized_matcher.find_all(text, marks, matches);
  size_t position = 0;
  for (const AddedTokenMatcher::Match& match : matches) {
    RETURN_IF_ERROR(
        encode_plain(text.substr(position, match.begin - position), is_at_start && position == 0, scratch, ids));
    ids.push_back(match.id);
    position = match.end;
  }
  return encode_plain(text.substr(position), is_at_start && position == 0, scratch, ids);
}

Status Tokenizer::encode_plain(std::string_view text, bool is_at_start, EncodeScratch::Impl& scratch,
                               std::vector<int32_t>& ids) const {
  PreTokenizedText& cut = scratch.pre_tokenized;
  RETURN_IF_ERROR(impl_->pipeline.pre_tokenizer.apply(text, is_at_start, cut, scratch.regex));
  for (const PreTokenizedText::Range& piece : cut.pieces) {
    impl_->pipeline.model->encode(cut.text.substr(piece.begin, piece.end - piece.begin), scratch.subword, ids);
  }
  return ok_status();
}

std::string Tokenizer::decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  std::string out;
  Detokenizer detokenizer(*this, options);
  for (const int32_t id : ids) detokenizer.add(id, out);
  detokenizer.finish(out);
  return out;
}

std::string_view Tokenizer::piece(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return impl_->pipeline.pieces[static_cast<size_t>(id)];
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->pipeline.is_special[static_cast<size_t>(id)];
}

int32_t Tokenizer::find_token(std::string_view text) const {
  const int32_t added = impl_->added_by_text.find(text);
  return added >= 0 ? added : impl_->pipeline.vocabulary->find(text);
}

int32_t Tokenizer::vocab_size() const {
  return static_cast<int32_t>(impl_->pipeline.pieces.size());
}
int32_t Tokenizer::bos_id() const {
  return impl_->pipeline.bos_id;
}
int32_t Tokenizer::eos_id() const {
  return impl_->pipeline.eos_id;
}
int32_t Tokenizer::unknown_id() const {
  return impl_->pipeline.unknown_id;
}
int32_t Tokenizer::padding_id() const {
  return impl_->pipeline.padding_id;
}
const std::vector<int32_t>& Tokenizer::end_of_turn_ids() const {
  return impl_->pipeline.end_of_turn_ids;
}
bool Tokenizer::adds_bos() const {
  return !impl_->pipeline.prefix_ids.empty();
}
bool Tokenizer::adds_eos() const {
  return !impl_->pipeline.suffix_ids.empty();
}
const std::string& Tokenizer::kind() const {
  return impl_->pipeline.kind;
}

}  // namespace quire
