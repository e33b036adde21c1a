// split, rsplit, splitlines, partition and rpartition of Python's str, on marked text.
#include <algorithm>
#include <limits>

#include "text/jinja_string_call.h"
#include "text/jinja_unicode.h"

namespace quire::jinja {
namespace {

constexpr size_t kNotFound = std::string_view::npos;

std::vector<Piece> split_on_space(std::string_view bytes, int64_t max_split) {
  std::vector<Piece> pieces;
  size_t at = 0;
  const auto skip = [&](bool spaces) {
    while (at < bytes.size()) {
      const CodePoint point = code_point_at(bytes, at);
      if (is_python_space(point.value) != spaces) break;
      at += point.num_bytes;
    }
  };
  for (;;) {
    skip(true);
    if (at >= bytes.size()) return pieces;
    const size_t begin = at;
    if (max_split >= 0 && static_cast<int64_t>(pieces.size()) >= max_split) {
      size_t end = bytes.size();
      while (end > begin) {
        const size_t previous = previous_offset(bytes, end);
        if (!is_python_space(code_point_at(bytes, previous).value)) break;
        end = previous;
      }
      pieces.push_back({begin, end});
      return pieces;
    }
    skip(false);
    pieces.push_back({begin, at});
  }
}

std::vector<Piece> rsplit_on_space(std::string_view bytes, int64_t max_split) {
  std::vector<Piece> pieces;
  size_t end = bytes.size();
  const auto skip = [&](bool spaces) {
    while (end > 0) {
      const size_t previous = previous_offset(bytes, end);
      if (is_python_space(code_point_at(bytes, previous).value) != spaces) break;
      end = previous;
    }
  };
  for (;;) {
    skip(true);
    if (end == 0) break;
    const size_t piece_end = end;
    if (max_split >= 0 && static_cast<int64_t>(pieces.size()) >= max_split) {
      size_t begin = 0;
      while (is_python_space(code_point_at(bytes, begin).value)) begin += code_point_at(bytes, begin).num_bytes;
      pieces.push_back({begin, piece_end});
      break;
    }
    skip(false);
    pieces.push_back({end, piece_end});
  }
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

std::vector<Piece> split_on(std::string_view bytes, std::string_view separator, int64_t max_split) {
  std::vector<Piece> pieces;
  size_t begin = 0;
  while (max_split < 0 || static_cast<int64_t>(pieces.size()) < max_split) {
    const size_t found = bytes.find(separator, begin);
    if (found == kNotFound) break;
    pieces.push_back({begin, found});
    begin = found + separator.size();
  }
  pieces.push_back({begin, bytes.size()});
  return pieces;
}

std::vector<Piece> rsplit_on(std::string_view bytes, std::string_view separator, int64_t max_split) {
  std::vector<Piece> pieces;
  size_t end = bytes.size();
  while (max_split < 0 || static_cast<int64_t>(pieces.size()) < max_split) {
    if (end < separator.size()) break;
    const size_t found = bytes.rfind(separator, end - separator.size());
    if (found == kNotFound) break;
    pieces.push_back({found + separator.size(), end});
    end = found;
  }
  pieces.push_back({0, end});
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

Result<Value> make_pieces(const StringCall& call, const std::vector<Piece>& pieces, Kind kind = Kind::kList) {
  RETURN_IF_ERROR(call.runtime.step(static_cast<int64_t>(pieces.size())));
  std::vector<Value> items;
  items.reserve(pieces.size());
  for (const Piece& piece : pieces) items.push_back(call.piece(piece.begin, piece.end));
  return call.runtime.make_list(std::move(items), kind);
}

}  // namespace

Result<Value> split(const StringCall& call) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, call.bind({"sep", "maxsplit"}, 0));
  ASSIGN_OR_RETURN(const int64_t max_split, integer_argument(bound[1], -1));
  const bool is_right = call.name == "rsplit";
  if (bound[0].is_missing() || bound[0].is_none()) {
    return make_pieces(call,
                       is_right ? rsplit_on_space(call.bytes(), max_split) : split_on_space(call.bytes(), max_split));
  }
  if (!bound[0].is_string()) return invalid_argument(std::string("must be str or None, not ") + type_name(bound[0]));
  const std::string_view separator = bound[0].bytes();
  if (separator.empty()) return invalid_argument("empty separator");
  return make_pieces(
      call, is_right ? rsplit_on(call.bytes(), separator, max_split) : split_on(call.bytes(), separator, max_split));
}

Result<Value> split_lines(const StringCall& call) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, call.bind({"keepends"}, 0));
  const bool keeps_ends = !bound[0].is_missing() && is_true(bound[0]);
  const std::string_view bytes = call.bytes();
  std::vector<Piece> pieces;
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const CodePoint point = code_point_at(bytes, at);
    size_t next = at + point.num_bytes;
    if (is_line_break(point.value)) {
      if (point.value == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
      pieces.push_back({begin, keeps_ends ? next : at});
      begin = next;
    }
    at = next;
  }
  if (begin < bytes.size()) pieces.push_back({begin, bytes.size()});
  return make_pieces(call, pieces);
}

Result<Value> partition(const StringCall& call) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, call.bind({"/sep"}, 1));
  if (!bound[0].is_string()) return expects_string(call.name, bound[0]);
  const std::string_view separator = bound[0].bytes();
  if (separator.empty()) return invalid_argument("empty separator");
  const bool is_right = call.name == "rpartition";
  const size_t found = is_right ? call.bytes().rfind(separator) : call.bytes().find(separator);
  const size_t size = call.bytes().size();
  if (found == kNotFound) {
    if (is_right) return make_pieces(call, {{0, 0}, {0, 0}, {0, size}}, Kind::kTuple);
    return make_pieces(call, {{0, size}, {size, size}, {size, size}}, Kind::kTuple);
  }
  return call.runtime.make_list(
      {call.piece(0, found), call.piece(found, found + separator.size()), call.piece(found + separator.size(), size)},
      Kind::kTuple);
}

}  // namespace quire::jinja
