// Routes, keys, CORS, trace context and error objects, without a socket.
#include "server/front_door.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <fstream>

#include "server/api_error.h"
#include "server/http_text.h"

namespace quire {
namespace {

namespace json = boost::json;

HttpRequest request(const std::string& method, const std::string& path,
                    std::vector<std::pair<std::string, std::string>> headers = {}) {
  HttpRequest made;
  made.method = method;
  made.path = path;
  made.headers = std::move(headers);
  made.headers.emplace_back("Host", "server:8000");
  return made;
}

std::string header_of(const Admission& admission, const std::string& name) {
  for (const auto& [key, value] : admission.headers) {
    if (key == name) return value;
  }
  if (admission.refusal.has_value()) {
    for (const auto& [key, value] : admission.refusal->headers) {
      if (key == name) return value;
    }
  }
  return {};
}

int status_of(const Admission& admission) {
  return admission.refusal.has_value() ? admission.refusal->status : 200;
}

std::shared_ptr<RouteTable> make_routes() {
  auto routes = std::make_shared<RouteTable>();
  const RouteHandler nothing = [](std::shared_ptr<HttpExchange>) {};
  routes->add({.method = "GET", .path = "/v1/models", .handler = nothing});
  routes->add({.method = "GET", .path = "/v1/models/{model}", .handler = nothing});
  routes->add({.method = "POST", .path = "/v1/completions", .handler = nothing, .max_body_bytes = 77});
  routes->add({.method = "GET", .path = "/health", .handler = nothing, .needs_key = false});
  return routes;
}

class FrontDoorTest : public ::testing::Test {
 protected:
  void open(bool has_keys, const std::vector<std::string>& origins) {
    if (has_keys) keys_ = ApiKeys::parse("# ours\nalice sk-a\n\n  bob\tsk-b  \nsk-c\n", "keys").value();
    FrontDoor::Options options;
    options.keys = keys_.get();
    options.cors = CorsPolicy::create(origins).value();
    options.metrics = &metrics_;
    door_ = std::make_unique<FrontDoor>(options);
    door_->set_routes(make_routes());
  }
  Admission admit(const HttpRequest& head) { return door_->admit(head, "id"); }

  std::unique_ptr<ApiKeys> keys_;
  MetricRegistry metrics_;
  std::unique_ptr<FrontDoor> door_;
};

TEST_F(FrontDoorTest, FindsRoutes) {
  open(false, {});
  EXPECT_EQ(status_of(admit(request("GET", "/v1/models"))), 200);
  EXPECT_EQ(status_of(admit(request("HEAD", "/v1/models/"))), 200);
  const Admission one = admit(request("GET", "/v1/models/org/name"));
  EXPECT_EQ(one.path_argument, "org/name");
  EXPECT_EQ(admit(request("POST", "/v1/completions")).max_body_bytes, 77u);
  EXPECT_EQ(status_of(admit(request("GET", "/v1"))), 404);
  EXPECT_EQ(status_of(admit(request("GET", "/v1/modelsx"))), 404);
  const Admission wrong = admit(request("GET", "/v1/completions"));
  EXPECT_EQ(status_of(wrong), 405);
  EXPECT_EQ(header_of(wrong, "Allow"), "POST, OPTIONS");
  EXPECT_EQ(status_of(admit(request("POST", "/v1/models/x"))), 405);
  door_->set_routes(std::make_shared<RouteTable>(), unavailable("loading"));
  EXPECT_EQ(status_of(admit(request("GET", "/v1/models"))), 503);
}

TEST_F(FrontDoorTest, AsksForKeys) {
  open(true, {});
  const auto with = [](const std::string& value) {
    return request("POST", "/v1/completions", {{"authorization", value}});
  };
  EXPECT_EQ(admit(with("Bearer sk-a")).key_id, 1);
  EXPECT_EQ(admit(with("bearer   sk-b")).key_id, 2);
  EXPECT_EQ(admit(with("Bearer sk-c")).key_id, 3);
  EXPECT_EQ(keys_->name(1) + keys_->name(2) + keys_->name(3), "alicebobkey-3");
  for (const char* wrong :
       {"", "Bearer", "Bearer ", "Bearer sk-", "Bearer sk-aa", "Basic sk-a", "sk-a", "Bearer alice"}) {
    const Admission refused = admit(with(wrong));
    EXPECT_EQ(status_of(refused), 401) << wrong;
    EXPECT_EQ(header_of(refused, "WWW-Authenticate"), "Bearer");
    const json::value body = json::parse(refused.refusal->body);
    EXPECT_EQ(body.at("error").at("code").as_string(), "invalid_api_key");
  }
  EXPECT_EQ(status_of(admit(request("GET", "/health"))), 200);
  EXPECT_EQ(status_of(admit(request("GET", "/nowhere"))), 404);
}

// F082.
TEST_F(FrontDoorTest, BrowsersAskFirst) {
  open(true, {"https://page.example", "http://other.example:3000"});
  const HttpRequest asks = request("OPTIONS", "/v1/completions",
                                   {{"Origin", "https://page.example"},
                                    {"Access-Control-Request-Method", "POST"},
                                    {"Access-Control-Request-Headers", "authorization,x-stainless-os"}});
  const Admission told = admit(asks);
  EXPECT_EQ(status_of(told), 204);
  EXPECT_EQ(header_of(told, "Access-Control-Allow-Origin"), "https://page.example");
  EXPECT_EQ(header_of(told, "Vary"), "Origin");
  EXPECT_EQ(header_of(told, "Access-Control-Allow-Methods"), "POST, OPTIONS");
  const std::string headers = header_of(told, "Access-Control-Allow-Headers");
  EXPECT_NE(headers.find("authorization"), std::string::npos);
  EXPECT_NE(headers.find("x-stainless-os"), std::string::npos);
  EXPECT_EQ(header_of(told, "Access-Control-Allow-Credentials"), "");
  // The request itself still needs the key; its refusal can be read by the page.
  const Admission refused = admit(request("POST", "/v1/completions", {{"Origin", "https://page.example"}}));
  EXPECT_EQ(status_of(refused), 401);
  EXPECT_EQ(header_of(refused, "Access-Control-Allow-Origin"), "https://page.example");
  const Admission other = admit(request("POST", "/v1/completions", {{"Origin", "https://evil.example"}}));
  EXPECT_EQ(status_of(other), 403);
  EXPECT_EQ(header_of(other, "Access-Control-Allow-Origin"), "");
}

TEST(CorsPolicy, Origins) {
  const CorsPolicy none = CorsPolicy::create({}).value();
  EXPECT_TRUE(none.allows("", "server"));
  EXPECT_TRUE(none.allows("http://server:8000", "server:8000"));
  EXPECT_FALSE(none.allows("http://server:8001", "server:8000"));
  EXPECT_FALSE(none.allows("null", "server"));
  const CorsPolicy local = CorsPolicy::create({"local"}).value();
  EXPECT_TRUE(local.allows("http://localhost:3000", "x"));
  EXPECT_TRUE(local.allows("https://127.0.0.1", "x"));
  EXPECT_TRUE(local.allows("http://[::1]:3000", "x"));
  EXPECT_FALSE(local.allows("http://localhost.evil.example", "x"));
  EXPECT_FALSE(local.allows("http://127.0.0.1.evil.example", "x"));
  EXPECT_FALSE(local.allows("file://localhost", "x"));
  const CorsPolicy all = CorsPolicy::create({"*"}).value();
  EXPECT_TRUE(all.allows("https://anything", "x") && all.allows("null", "x"));
  EXPECT_EQ(all.headers("https://anything")[0].second, "*");
  for (const auto& [name, value] : all.headers("https://anything")) EXPECT_NE(name, "Access-Control-Allow-Credentials");
  for (const char* wrong : {"", "example.org", "https://", "https://a/b", "ftp://a"}) {
    EXPECT_FALSE(CorsPolicy::create({wrong}).is_ok()) << wrong;
  }
}

TEST(ApiKeys, Files) {
  for (const char* wrong : {"", "# nothing\n", "a b c\n", "a k\na l\n", "a k\nb k\n", "a \xff\n"}) {
    const auto keys = ApiKeys::parse(wrong, "file");
    ASSERT_FALSE(keys.is_ok()) << wrong;
    EXPECT_NE(keys.status().message().find("file"), std::string::npos);
  }
  EXPECT_FALSE(ApiKeys::read("/nonexistent").is_ok());
  const std::string path = ::testing::TempDir() + "quire_keys_test_" + std::to_string(::getpid());
  std::ofstream(path) << "a one\nb two\n";
  const auto keys = ApiKeys::read(path).value();
  EXPECT_EQ(keys->find("two"), 2);
  std::ofstream(path) << "b three\nc four\n";  // a has gone, b has a new key
  ASSERT_TRUE(keys->reload().is_ok());
  EXPECT_EQ(keys->find("one"), 0);
  EXPECT_EQ(keys->find("two"), 0);
  EXPECT_EQ(keys->find("three"), 2);
  EXPECT_EQ(keys->find("four"), 3);
  std::ofstream(path) << "\n";
  EXPECT_FALSE(keys->reload().is_ok());
  EXPECT_EQ(keys->find("three"), 2);
  std::remove(path.c_str());
}

TEST(TraceContext, Parents) {
  const std::string valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  EXPECT_EQ(trace_id_of(valid), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(trace_id_of("cc" + valid.substr(2) + "-more"), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(trace_id_of(valid + "-more"), "");
  EXPECT_EQ(trace_id_of("ff" + valid.substr(2)), "");
  EXPECT_EQ(trace_id_of(""), "");
  EXPECT_EQ(trace_id_of("00-" + std::string(32, '0') + "-00f067aa0ba902b7-01"), "");
  EXPECT_EQ(trace_id_of("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"), "");
}

TEST(ApiError, Objects) {
  const json::value plain = json::parse(error_json(invalid_argument("n: too \"small\""), "n", "bad"));
  const json::object& error = plain.at("error").as_object();
  EXPECT_EQ(error.at("message").as_string(), "n: too \"small\"");
  EXPECT_EQ(error.at("type").as_string(), "invalid_request_error");
  EXPECT_EQ(error.at("param").as_string(), "n");
  EXPECT_EQ(error.at("code").as_string(), "bad");
  EXPECT_TRUE(json::parse(error_json(internal_error("x"))).at("error").at("param").is_null());
  EXPECT_EQ(error_response(overloaded("x")).status, 429);
  EXPECT_EQ(error_response(overloaded("x")).headers.at(0).first, "Retry-After");
  EXPECT_EQ(error_response(unavailable("x")).status, 503);
  EXPECT_EQ(error_response(not_found("x")).status, 404);
  EXPECT_EQ(error_response(resource_exhausted("x")).status, 400);
  // Whatever bytes a client sent, the error that quotes them is UTF-8.
  EXPECT_EQ(valid_utf8("\xc4\xe3 \xed\xa0\x80 \xf4\x90\x80\x80 \xc0\x80 \xe4\xbd\xa0 \xf0\x9f\x98\x80 \xe4\xbd"),
            "\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd "
            "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd \xe4\xbd\xa0 "
            "\xf0\x9f\x98\x80 \xef\xbf\xbd\xef\xbf\xbd");
}

TEST(HttpText, Events) {
  std::string out;
  append_event(out, "a\r\nb\rc\n");
  EXPECT_EQ(out, "data: a\ndata: b\ndata: c\ndata: \n\n");
  EXPECT_EQ(http_date(1795992209), "Sun, 29 Nov 2026 22:43:29 GMT");
}

TEST_F(FrontDoorTest, Counts) {
  open(false, {});
  HttpOutcome outcome;
  outcome.status = 200;
  door_->on_finished(request("GET", "/v1/models/x"), "id", 0, outcome, {});
  outcome.status = 404;
  door_->on_finished(request("GET", "/anything/at/all"), "id", 0, outcome, {});
  const std::string text = metrics_.text();
  EXPECT_NE(text.find("http_requests_total{handler=\"/v1/models/{model}\",method=\"GET\",status=\"2xx\"} 1\n"),
            std::string::npos);
  EXPECT_NE(text.find("http_requests_total{handler=\"none\",method=\"other\",status=\"4xx\"} 1\n"), std::string::npos);
  EXPECT_EQ(text.find("anything"), std::string::npos);  // clients cannot make new series
}

}  // namespace
}  // namespace quire
