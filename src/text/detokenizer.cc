// Pieces are bytes; what leaves is whole characters.
#include "text/detokenizer.h"

#include "text/tokenizer_pipeline.h"
#include "text/utf8.h"

namespace quire {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// What WordPiece's decoder does to each token.
void clean_up_spaces(std::string& piece) {
  replace_all(piece, " .", ".");
  replace_all(piece, " ?", "?");
  replace_all(piece, " !", "!");
  replace_all(piece, " ,", ",");
  replace_all(piece, " ' ", "'");
  replace_all(piece, " n't", "n't");
  replace_all(piece, " 'm", "'m");
  replace_all(piece, " do not", " don't");
  replace_all(piece, " 's", "'s");
  replace_all(piece, " 've", "'ve");
  replace_all(piece, " 're", "'re");
}

}  // namespace

Detokenizer::Detokenizer(const Tokenizer& tokenizer, const DecodeOptions& options)
    : tokenizer_(&tokenizer), options_(options) {
  num_spaces_to_strip_ = options.is_at_start ? tokenizer.pipeline().num_spaces_stripped_at_start : 0;
}

void Detokenizer::add(int32_t id, std::string& out) {
  if (options_.skips_special && tokenizer_->is_special(id)) return;
  const TokenizerPipeline& pipe = tokenizer_->pipeline();
  std::string_view bytes = tokenizer_->piece(id);
  std::string spaced;
  if (!pipe.piece_separator.empty()) {
    const bool joins = !pipe.continuation_prefix.empty() && bytes.starts_with(pipe.continuation_prefix);
    if (!is_first_piece_ && joins) {
      spaced = bytes.substr(pipe.continuation_prefix.size());
    } else {
      if (!is_first_piece_ || !options_.is_at_start) spaced = pipe.piece_separator;
      spaced += bytes;
    }
    if (pipe.cleans_up_spaces) clean_up_spaces(spaced);
    bytes = spaced;
  }
  is_first_piece_ = false;
  while (num_spaces_to_strip_ > 0 && !bytes.empty()) {
    if (bytes.front() != ' ') {
      num_spaces_to_strip_ = 0;
      break;
    }
    bytes.remove_prefix(1);
    --num_spaces_to_strip_;
  }
  add_bytes(bytes, out);
}

void Detokenizer::add_bytes(std::string_view bytes, std::string& out) {
  if (bytes.empty()) return;
  std::string joined;
  if (!held_.empty()) {
    joined = held_;
    joined += bytes;
    bytes = joined;
    held_.clear();
  }
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Step step = step_utf8(bytes, i);
    if (step.kind == Utf8Step::Kind::kIncomplete) {
      held_ = bytes.substr(i);
      return;
    }
    if (step.kind == Utf8Step::Kind::kValid) {
      out.append(bytes.substr(i, step.num_bytes));
    } else {
      append_utf8(kReplacementCharacter, out);
    }
    i += step.num_bytes;
  }
}

std::string Detokenizer::add(int32_t id) {
  std::string out;
  add(id, out);
  return out;
}

void Detokenizer::finish(std::string& out) {
  if (!held_.empty()) append_utf8(kReplacementCharacter, out);
  held_.clear();
  is_first_piece_ = true;
  num_spaces_to_strip_ = options_.is_at_start ? tokenizer_->pipeline().num_spaces_stripped_at_start : 0;
}

std::string Detokenizer::finish() {
  std::string out;
  finish(out);
  return out;
}

}  // namespace quire
