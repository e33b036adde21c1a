#include "text/grammar_formats.h"

#include <algorithm>
#include <iterator>

namespace quire::grammar_internal {
namespace {

// Years 0001 to 9999, with the 29th of February in leap years alone.
std::string date_pattern() {
  const std::string year = "(?:[1-9]\\d{3}|0[1-9]\\d{2}|00[1-9]\\d|000[1-9])";
  const std::string by_4 = "(?:0[48]|[2468][048]|[13579][26])";
  const std::string leap_year = "(?:\\d\\d" + by_4 + "|" + by_4 + "00)";
  return "(?:" + year +
         "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8])"
         ")|" +
         leap_year + "-02-29)";
}

std::string time_pattern() {
  return "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)";
}

std::string duration_pattern() {
  const std::string time = "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)";
  const std::string date = "(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)";
  return "P(?:" + date + "(?:" + time + ")?|" + time + "|\\d+W)";
}

std::string hostname_pattern() {
  const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  return label + "(?:\\." + label + "){0,9}";
}

std::string ipv4_pattern() {
  const std::string byte = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]\\d|\\d)";
  return byte + "(?:\\." + byte + "){3}";
}

std::string ipv6_pattern() {
  const std::string group = "[0-9A-Fa-f]{1,4}";
  const std::string tail = "(?:" + group + ":" + group + "|" + ipv4_pattern() + ")";
  auto times = [&](int count) { return "(?:" + group + ":){" + std::to_string(count) + "}"; };
  auto up_to = [&](int count) { return "(?:(?:" + group + ":){0," + std::to_string(count - 1) + "}" + group + ")?"; };
  std::string pattern = "(?:" + times(6) + tail + "|::" + times(5) + tail;
  for (int left = 1; left <= 5; ++left) {
    const int right = 5 - left;
    pattern += "|" + up_to(left) + "::" + (right > 0 ? times(right - 0) : "") + (right >= 0 ? tail : "");
  }
  pattern += "|" + up_to(6) + "::" + group + "|" + up_to(7) + "::)";
  return pattern;
}

std::string email_pattern() {
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  return atom + "(?:\\." + atom + ")*@" + label + "(?:\\." + label + ")*";
}

constexpr char kUriCharacter[] = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";

std::string uri_pattern() {
  const std::string c = kUriCharacter;
  const std::string host = "(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})";
  const std::string user = "(?:" + host + "|:)";
  const std::string authority = "//(?:" + user + "*@)?(?:" + host + "*|\\[[0-9A-Fa-f:.]+\\])(?::\\d*)?";
  const std::string path =
      "(?:" + authority + "(?:/" + c + "*)*|/(?:" + c + "+(?:/" + c + "*)*)?|" + c + "+(?:/" + c + "*)*|)";
  return "[A-Za-z][A-Za-z0-9+.-]*:" + path + "(?:\\?(?:" + c + "|[/?])*)?(?:#(?:" + c + "|[/?])*)?";
}

std::string uri_reference_pattern() {
  const std::string c = kUriCharacter;
  return "(?:" + uri_pattern() + "|(?:/" + c + "*)*(?:\\?(?:" + c + "|[/?])*)?(?:#(?:" + c + "|[/?])*)?)";
}

}  // namespace

FormatPattern pattern_of_format(std::string_view format) {
  using Kind = FormatPattern::Kind;
  if (format == "date") return {Kind::kPattern, date_pattern()};
  if (format == "time") return {Kind::kPattern, time_pattern()};
  if (format == "date-time") return {Kind::kPattern, date_pattern() + "T" + time_pattern()};
  if (format == "duration") return {Kind::kPattern, duration_pattern()};
  if (format == "uuid") {
    return {Kind::kPattern, "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"};
  }
  if (format == "email") return {Kind::kPattern, email_pattern()};
  if (format == "hostname") return {Kind::kPattern, hostname_pattern()};
  if (format == "ipv4") return {Kind::kPattern, ipv4_pattern()};
  if (format == "ipv6") return {Kind::kPattern, ipv6_pattern()};
  if (format == "uri" || format == "url") return {Kind::kPattern, uri_pattern()};
  if (format == "uri-reference") return {Kind::kPattern, uri_reference_pattern()};
  if (format == "json-pointer") return {Kind::kPattern, "(?:/(?:[^/~\\u0000-\\u001f]|~[01])*)*"};
  static constexpr std::string_view kAnnotations[] = {
      "password", "binary", "byte", "path", "file-path", "directory-path", "int32", "int64", "float", "double", "text"};
  if (std::find(std::begin(kAnnotations), std::end(kAnnotations), format) != std::end(kAnnotations)) {
    return {Kind::kAnnotation, ""};
  }
  return {Kind::kUnknown, ""};
}

}  // namespace quire::grammar_internal
