// Small pure functions on the texts of HTTP: names without case, percent-encoding, dates, reasons of status codes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire {

bool equals_ignoring_case(std::string_view left, std::string_view right);
std::string_view trim_spaces(std::string_view text);

// None: a broken escape, or a NUL or a line end come out of it.
std::optional<std::string> percent_decode(std::string_view text);

// "Not Found"; "Unknown" for codes without a name.
const char* http_reason(int status);

// "Sun, 29 Nov 2026 22:43:29 GMT".
std::string http_date(int64_t seconds_since_1970);

// `data` as one event of a stream: every line gets "data: ", an empty line ends it.
void append_event(std::string& out, std::string_view data);

}  // namespace quire
