// URLs as the HTTP client needs them: taken apart, resolved against a page, encoded.
#include <algorithm>
#include <charconv>

#include "server/http_client.h"

namespace quire {

namespace {

constexpr size_t kMaxUrlBytes = 16384;

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c != 0x7f; });
}

uint16_t default_port(std::string_view scheme) {
  return scheme == "https" ? 443 : 80;
}

// "/a/b/../c" → "/a/c"; the query is no part of it.
std::string remove_dots(std::string_view path) {
  std::vector<std::string_view> parts;
  bool ends_in_folder = false;
  for (size_t begin = 1; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    ends_in_folder = part.empty() || part == "." || part == "..";
    if (part == "..") {
      if (!parts.empty()) parts.pop_back();
    } else if (part != "." && !(part.empty() && end == path.size())) {
      parts.push_back(part);
    }
    begin = end + 1;
  }
  std::string result;
  for (const std::string_view part : parts) result.append("/").append(part);
  if (ends_in_folder || result.empty()) result += '/';
  return result;
}

}  // namespace

std::string HttpUrl::host_and_port() const {
  const std::string shown = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return port == default_port(scheme) ? shown : shown + ":" + std::to_string(port);
}

std::string HttpUrl::origin() const {
  return scheme + "://" + (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

Result<HttpUrl> parse_url(std::string_view text) {
  const auto wrong = [&](const char* what) {
    return invalid_argument("'" + std::string(text.substr(0, 200)) + "' is no URL that can be fetched: " + what);
  };
  if (text.size() > kMaxUrlBytes) return wrong("it is too long");
  if (!is_plain(text)) return wrong("it holds blanks or control characters");
  HttpUrl url;
  const size_t colon = text.find("://");
  if (colon == std::string_view::npos) return wrong("it should begin with http:// or https://");
  url.scheme = lower(text.substr(0, colon));
  if (url.scheme != "http" && url.scheme != "https") return wrong("it should begin with http:// or https://");
  std::string_view rest = text.substr(colon + 3);
  const size_t authority_end = std::min(rest.find_first_of("/?#"), rest.size());
  std::string_view authority = rest.substr(0, authority_end);
  rest = rest.substr(authority_end);
  rest = rest.substr(0, rest.find('#'));
  url.target = std::string(rest.empty() || rest[0] != '/' ? "/" : "") + std::string(rest);

  if (const size_t at = authority.rfind('@'); at != std::string_view::npos) {
    url.user_info = authority.substr(0, at);
    authority = authority.substr(at + 1);
  }
  size_t host_end = 0;
  if (!authority.empty() && authority[0] == '[') {
    host_end = authority.find(']');
    if (host_end == std::string_view::npos) return wrong("the address has no closing bracket");
    url.host = authority.substr(1, host_end - 1);
    ++host_end;
  } else {
    host_end = std::min(authority.find(':'), authority.size());
    url.host = lower(authority.substr(0, host_end));
  }
  if (url.host.empty() || url.host.size() > 255) return wrong("it names no host");
  const bool has_good_letters = std::all_of(url.host.begin(), url.host.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_' || c == ':' || c == '%';
  });
  if (!has_good_letters) return wrong("the host's name holds signs that no host has");
  const std::string_view port = authority.substr(host_end);
  url.port = default_port(url.scheme);
  if (!port.empty() && port != ":") {
    int value = 0;
    const auto [end, error] = std::from_chars(port.data() + 1, port.data() + port.size(), value);
    if (port[0] != ':' || error != std::errc() || end != port.data() + port.size() || value < 1 || value > 65535)
      return wrong("the port is not a number from 1 to 65535");
    url.port = static_cast<uint16_t>(value);
  }
  return url;
}

Result<HttpUrl> resolve_location(const HttpUrl& base, std::string_view location) {
  location = location.substr(0, location.find('#'));
  if (location.find("://") != std::string_view::npos && location.find("://") < location.find_first_of("/?"))
    return parse_url(location);
  const std::string root = base.scheme + "://" + base.host_and_port();
  if (location.substr(0, 2) == "//") return parse_url(base.scheme + ":" + std::string(location));
  const std::string_view base_path = std::string_view(base.target).substr(0, base.target.find('?'));
  if (location.empty()) return parse_url(root + base.target);
  if (location[0] == '?') return parse_url(root + std::string(base_path) + std::string(location));
  const std::string_view query = location.substr(std::min(location.find('?'), location.size()));
  std::string path(location.substr(0, location.size() - query.size()));
  if (path[0] != '/') path = std::string(base_path.substr(0, base_path.rfind('/') + 1)) + path;
  return parse_url(root + remove_dots(path) + std::string(query));
}

std::string encode_url_path(std::string_view path) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string result;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_safe = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') ||
                         std::string_view("-._~/").find(c) != std::string_view::npos;
    if (is_safe) {
      result += c;
    } else {
      result += '%';
      result += kHex[byte >> 4];
      result += kHex[byte & 15];
    }
  }
  return result;
}

Status SseParser::add(std::string_view piece) {
  while (!piece.empty()) {
    // A line ends with CR, LF or both, and the two may come apart.
    if (was_carriage_return_ && piece[0] == '\n') piece.remove_prefix(1);
    was_carriage_return_ = false;
    const size_t end = piece.find_first_of("\r\n");
    if (end == std::string_view::npos) {
      line_ += piece;
      piece = {};
    } else {
      was_carriage_return_ = piece[end] == '\r';
      if (line_.empty()) {
        RETURN_IF_ERROR(add_line(piece.substr(0, end)));
      } else {
        line_ += piece.substr(0, end);
        const std::string line = std::move(line_);
        line_.clear();
        RETURN_IF_ERROR(add_line(line));
      }
      piece.remove_prefix(end + 1);
    }
    if (line_.size() + data_.size() > kMaxEventBytes)
      return invalid_argument("an event of the stream is longer than 16 MiB");
  }
  return ok_status();
}

Status SseParser::add_line(std::string_view line) {
  if (line.empty()) {
    if (has_data_) on_event_(data_);
    data_.clear();
    has_data_ = false;
    return ok_status();
  }
  const size_t colon = std::min(line.find(':'), line.size());
  if (line.substr(0, colon) != "data") return ok_status();  // event names, ids and comments
  std::string_view value = line.substr(std::min(colon + 1, line.size()));
  if (!value.empty() && value[0] == ' ') value.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += value;
  has_data_ = true;
  if (data_.size() > kMaxEventBytes) return invalid_argument("an event of the stream is longer than 16 MiB");
  return ok_status();
}

}  // namespace quire
