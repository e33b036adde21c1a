#include "server/api_error.h"

#include <boost/json.hpp>

namespace quire {

namespace json = boost::json;

namespace {

const char* error_type(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 501:  // of a transfer coding, or
    case 505:  // of a version of HTTP: what the client asks for is unknown here
      return "invalid_request_error";
    case 503:
      return "service_unavailable_error";
    default:
      return http_status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string error_object(int http_status, std::string_view message, std::string_view param, std::string_view code) {
  json::object error;
  error["message"] = valid_utf8(message);
  error["type"] = error_type(http_status);
  error["param"] = param.empty() ? json::value(nullptr) : json::value(valid_utf8(param));
  error["code"] = code.empty() ? json::value(nullptr) : json::value(valid_utf8(code));
  return json::serialize(json::object{{"error", std::move(error)}});
}

HttpResponse make_response(int http_status, std::string body) {
  HttpResponse response{.status = http_status, .body = std::move(body)};
  if (http_status == 429 || http_status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

}  // namespace

int http_status_of(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return 200;
    case StatusCode::kInvalidArgument:
    case StatusCode::kResourceExhausted:
    case StatusCode::kUnimplemented:
      return 400;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kOverloaded:
      return 429;
    case StatusCode::kUnavailable:
      return 503;
    case StatusCode::kCancelled:
      return 499;
    case StatusCode::kInternal:
      return 500;
  }
  return 500;
}

std::string error_json(const Status& status, std::string_view param, std::string_view code) {
  return error_object(http_status_of(status.code()), status.message(), param, code);
}

HttpResponse error_response(const Status& status, std::string_view param, std::string_view code) {
  return make_response(http_status_of(status.code()), error_json(status, param, code));
}

HttpResponse http_error_response(int http_status, const std::string& message, std::string_view code) {
  return make_response(http_status, error_object(http_status, message, {}, code));
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
    const unsigned first = byte(i);
    size_t length = first < 0x80 ? 1 : first >= 0xc2 && first <= 0xdf ? 2 : first >= 0xe0 && first <= 0xef ? 3 : 4;
    if (first >= 0x80 && (first < 0xc2 || first > 0xf4)) length = 0;
    bool is_valid = length > 0 && i + length <= text.size();
    for (size_t k = 1; is_valid && k < length; ++k) is_valid = (byte(i + k) & 0xc0u) == 0x80u;
    if (is_valid && length == 3) {
      is_valid = !(first == 0xe0 && byte(i + 1) < 0xa0) && !(first == 0xed && byte(i + 1) > 0x9f);
    }
    if (is_valid && length == 4) {
      is_valid = !(first == 0xf0 && byte(i + 1) < 0x90) && !(first == 0xf4 && byte(i + 1) > 0x8f);
    }
    if (is_valid) {
      out += text.substr(i, length);
      i += length;
    } else {
      out += "\xef\xbf\xbd";
      ++i;
    }
  }
  return out;
}

}  // namespace quire
