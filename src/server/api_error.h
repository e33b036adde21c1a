// Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}}, with the HTTP status that a
// Status of ours means. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "server/http_exchange.h"

namespace quire {

// 400 invalid argument, resource exhausted (it can never fit), unimplemented; 404 not found; 429 overloaded; 499
// cancelled; 503 unavailable; 500 internal.
int http_status_of(StatusCode code);

// The JSON text of an error object alone: for a line of an event stream that fails half way. Always valid UTF-8.
std::string error_json(const Status& status, std::string_view param = {}, std::string_view code = {});

// The whole answer; 429 and 503 come with Retry-After. `param` names the field that was wrong; `code` is a short word
// such as "context_length_exceeded"; both become null where empty.
HttpResponse error_response(const Status& status, std::string_view param = {}, std::string_view code = {});

// For errors of HTTP itself, which no StatusCode means: 401, 405, 413, ….
HttpResponse http_error_response(int http_status, const std::string& message, std::string_view code = {});

// What is not UTF-8 in `text` becomes U+FFFD, so that an error about broken bytes is not broken itself.
std::string valid_utf8(std::string_view text);

}  // namespace quire
