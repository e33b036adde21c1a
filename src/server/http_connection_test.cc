// The protocol over a connection in memory: order, limits, timeouts, clients that leave, answers from anywhere.
#include "server/http_connection.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "server/http_exchange_state.h"
#include "server/testing/fake_transport.h"

namespace quire {
namespace {

using namespace std::chrono_literals;
using testing::FakeTransport;

// Answers /echo at once with the body; keeps all others for the test to answer. Refuses /forbidden.
class Door : public HttpFrontDoor {
 public:
  Admission admit(const HttpRequest& head, const std::string&) override {
    Admission admission;
    admission.headers = {{"X-Door", "open"}};
    admission.key_id = 7;
    if (head.path == "/forbidden") admission.refusal = HttpResponse{.status = 403, .body = "no"};
    if (head.path == "/small") admission.max_body_bytes = 4;
    admission.handler = [this](std::shared_ptr<HttpExchange> exchange) {
      if (exchange->request().path == "/throw") throw std::runtime_error("thrown");
      if (exchange->request().path == "/echo" || exchange->request().path == "/small") {
        return exchange->respond({.body = exchange->request().body + "!"});
      }
      exchange->on_closed([this] { ++num_closed; });
      kept.push_back(std::move(exchange));
    };
    return admission;
  }
  void on_finished(const HttpRequest& head, const std::string& request_id, int64_t key_id, const HttpOutcome& outcome,
                   const AnswerFacts& facts) override {
    finished.push_back(head.path + ' ' + std::to_string(outcome.status) + ' ' + outcome.reason);
    last_id = request_id;
    last_key = key_id;
    last_facts = facts;
  }

  std::vector<std::shared_ptr<HttpExchange>> kept;
  std::vector<std::string> finished;
  std::string last_id;
  int64_t last_key = -1;
  AnswerFacts last_facts;
  int num_closed = 0;
};

class HttpConnectionTest : public ::testing::Test {
 protected:
  void open() {
    context_ = std::make_shared<HttpConnectionContext>(limits_, door_);
    transport_ = std::make_shared<FakeTransport>();
    // Held by what it waits for, as in the server.
    const auto connection = std::make_shared<HttpConnection>(context_, transport_);
    connection_ = connection;
    connection->start();
    transport_->run();
  }
  std::string exchange(const std::string& bytes) {
    transport_->send(bytes);
    return transport_->take_written();
  }
  static std::string get(const std::string& path, const std::string& more = "") {
    return "GET " + path + " HTTP/1.1\r\nHost: h\r\n" + more + "\r\n";
  }
  static std::string post(const std::string& path, const std::string& body, const std::string& more = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + more +
           "\r\n" + body;
  }
  static bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
  static std::string body_of(const std::string& answer) { return answer.substr(answer.find("\r\n\r\n") + 4); }

  HttpLimits limits_;
  Door door_;
  std::shared_ptr<HttpConnectionContext> context_;
  std::shared_ptr<FakeTransport> transport_;
  std::weak_ptr<HttpConnection> connection_;
};

TEST_F(HttpConnectionTest, OneAfterAnother) {
  open();
  for (int i = 0; i < 3; ++i) {
    const std::string answer = exchange(post("/echo", "hi"));
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
    EXPECT_TRUE(has(answer, "\r\nContent-Length: 3\r\n") && has(answer, "\r\nX-Door: open\r\n")) << answer;
    EXPECT_TRUE(has(answer, "\r\nX-Request-Id: req-"));
    EXPECT_FALSE(has(answer, "Connection: close"));
    EXPECT_EQ(body_of(answer), "hi!");
  }
  EXPECT_EQ(door_.finished.size(), 3u);
  EXPECT_EQ(door_.last_key, 7);
  EXPECT_EQ(context_->num_buffered_body_bytes.load(), 0);
}

TEST_F(HttpConnectionTest, TheReasonAgreesWithTheStatus) {
  open();
  const std::pair<int, std::string> cases[] = {{200, "ok"},      {400, "bad_request"}, {404, "refused"},
                                               {429, "refused"}, {500, "failed"},      {503, "failed"}};
  for (const auto& [status, reason] : cases) {
    exchange(post("/slow", "{"));
    door_.kept.back()->respond({.status = status});
    transport_->take_written();
    EXPECT_EQ(door_.finished.back(), "/slow " + std::to_string(status) + ' ' + reason);
  }
}

TEST_F(HttpConnectionTest, PipelinedRequestsAreAnsweredInOrder) {
  open();
  EXPECT_EQ(exchange(get("/slow") + post("/echo", "2") + get("/slow")), "");
  ASSERT_EQ(door_.kept.size(), 1u);  // the others wait
  door_.kept[0]->respond({.body = "first"});
  std::string answer = transport_->take_written();
  EXPECT_LT(answer.find("first"), answer.find("2!"));
  ASSERT_EQ(door_.kept.size(), 2u);
  door_.kept[1]->respond({.body = "third"});
  EXPECT_EQ(body_of(transport_->take_written()), "third");

  std::string many;
  for (int i = 0; i < 2000; ++i) many += post("/echo", std::to_string(i));
  answer = exchange(many);
  EXPECT_EQ(door_.finished.size(), 2003u);
  EXPECT_TRUE(answer.ends_with("1999!"));
}

TEST_F(HttpConnectionTest, ReadsAheadOnlySoFar) {
  limits_.max_pipelined_bytes = 1000;
  open();
  transport_->send(get("/slow"));
  transport_->run();
  transport_->send(std::string(100'000, 'x'));
  transport_->run();
  EXPECT_GE(transport_->num_unread(), 90'000u);
}

TEST_F(HttpConnectionTest, RequestIds) {
  open();
  EXPECT_TRUE(has(exchange(get("/echo", "x-request-id: abc-1\r\n")), "\r\nX-Request-Id: abc-1\r\n"));
  EXPECT_EQ(door_.last_id, "abc-1");
  EXPECT_TRUE(has(exchange(get("/echo", "x-request-id: a b\r\n")), "\r\nX-Request-Id: req-"));
  EXPECT_TRUE(has(exchange(get("/echo", "x-request-id: " + std::string(200, 'a') + "\r\n")), "X-Request-Id: req-"));
}

TEST_F(HttpConnectionTest, HeadHasNoBody) {
  open();
  const std::string answer = exchange("HEAD /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(has(answer, "Content-Length: 1\r\n"));
  EXPECT_EQ(body_of(answer), "");
  EXPECT_EQ(body_of(exchange(get("/echo"))), "!");
}

TEST_F(HttpConnectionTest, OlderClients) {
  open();
  std::string answer = exchange("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_TRUE(has(answer, "\r\nConnection: keep-alive\r\n"));
  answer = exchange("GET /echo HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(has(answer, "\r\nConnection: close\r\n"));
  EXPECT_TRUE(transport_->is_finished());
}

TEST_F(HttpConnectionTest, ClosesWhereAsked) {
  open();
  EXPECT_TRUE(has(exchange(get("/echo", "Connection: close\r\n")), "\r\nConnection: close\r\n"));
  EXPECT_TRUE(transport_->is_finished());
}

TEST_F(HttpConnectionTest, ExpectContinue) {
  open();
  const std::string head = "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n";
  EXPECT_EQ(exchange(head), "HTTP/1.1 100 Continue\r\n\r\n");
  EXPECT_EQ(body_of(exchange("ab")), "ab!");
  EXPECT_TRUE(exchange(head + "cd").starts_with("HTTP/1.1 200"));  // the body is there: nobody waits for a go-ahead
  // A refusal comes before the body.
  EXPECT_TRUE(exchange("POST /forbidden HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
                  .starts_with("HTTP/1.1 403"));
  EXPECT_TRUE(transport_->is_finished());
  open();
  EXPECT_TRUE(exchange("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: tea\r\n\r\n")
                  .starts_with("HTTP/1.1 417"));
}

TEST_F(HttpConnectionTest, RefusedBeforeTheBody) {
  open();
  EXPECT_TRUE(exchange(post("/forbidden", "small")).starts_with("HTTP/1.1 403"));
  EXPECT_EQ(body_of(exchange(get("/echo"))), "!");  // a small body is skipped, and the connection goes on
  const std::string answer = exchange("POST /forbidden HTTP/1.1\r\nHost: h\r\nContent-Length: 10000000\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 403") && has(answer, "\r\nConnection: close\r\n"));
  EXPECT_TRUE(transport_->is_finished());
  EXPECT_EQ(context_->num_buffered_body_bytes.load(), 0);
}

TEST_F(HttpConnectionTest, BodiesAreTakenAsTheyAre) {
  open();
  for (const char* header : {"Content-Encoding: gzip\r\n", "Content-Encoding: identity, br\r\n",
                             "content-encoding:\r\nCONTENT-ENCODING: Deflate\r\n"}) {
    const std::string answer = exchange(post("/echo", "\x1f\x8b...", header));
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 415 Unsupported Media Type\r\n")) << answer;
    EXPECT_TRUE(has(answer, "\r\nAccept-Encoding: identity\r\n"));
    EXPECT_TRUE(has(body_of(answer), "unsupported_content_encoding")) << answer;
    EXPECT_EQ(door_.finished.back(), "/echo 415 refused");
  }
  EXPECT_EQ(body_of(exchange(post("/echo", "plain", "Content-Encoding: Identity\r\n"))), "plain!");
  EXPECT_EQ(body_of(exchange(post("/echo", "plain", "Content-Encoding:\r\n"))), "plain!");
  // Who may not come is told that first; what is too large to skip ends the connection.
  EXPECT_TRUE(exchange(post("/forbidden", "x", "Content-Encoding: gzip\r\n")).starts_with("HTTP/1.1 403"));
  EXPECT_TRUE(exchange("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\nContent-Length: 9999999\r\n\r\n")
                  .starts_with("HTTP/1.1 415"));
  EXPECT_TRUE(transport_->is_finished());
}

TEST_F(HttpConnectionTest, LimitsOfBodies) {
  limits_.max_buffered_body_bytes = 100;
  open();
  EXPECT_TRUE(exchange(post("/small", "12345")).starts_with("HTTP/1.1 413"));
  EXPECT_TRUE(transport_->is_finished());
  open();
  EXPECT_TRUE(exchange(post("/small", "1234")).starts_with("HTTP/1.1 200"));
  EXPECT_EQ(exchange(post("/slow", std::string(60, 'a'))), "");
  EXPECT_EQ(context_->num_buffered_body_bytes.load(), 60);
  // Another connection of the same server.
  const auto other = std::make_shared<FakeTransport>();
  const auto other_connection = std::make_shared<HttpConnection>(context_, other);
  other_connection->start();
  other->send(post("/slow", std::string(60, 'a')));
  EXPECT_TRUE(other->take_written().starts_with("HTTP/1.1 503"));
  door_.kept[0]->respond({});
  door_.kept.clear();
  transport_->run();
  EXPECT_EQ(context_->num_buffered_body_bytes.load(), 0);
}

TEST_F(HttpConnectionTest, BrokenRequestsGetAnErrorObject) {
  open();
  const std::string answer = exchange("NONSENSE\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 400")) << answer;
  EXPECT_TRUE(has(answer, "{\"error\":{\"message\":"));
  EXPECT_TRUE(transport_->is_finished());
  EXPECT_EQ(door_.finished.back(), " 400 bad_request");
}

TEST_F(HttpConnectionTest, TheReasonOfABrokenRequestIsThatOfItsStatus) {
  open();
  EXPECT_TRUE(exchange("GET /" + std::string(100'000, 'a') + " HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 431"));
  EXPECT_EQ(door_.finished.back(), " 431 refused");
  const std::pair<std::string, std::string> unknown[] = {
      {"501", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n"}, {"505", "GET / HTTP/2.0\r\n\r\n"}};
  for (const auto& [status, bytes] : unknown) {
    open();
    const std::string answer = exchange(bytes);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 " + status)) << answer;
    EXPECT_NE(answer.find("invalid_request_error"), std::string::npos) << answer;
  }
  EXPECT_EQ(door_.finished.back(), " 505 failed");
}

TEST_F(HttpConnectionTest, EventsAreChunks) {
  open();
  exchange(get("/slow"));
  HttpExchange& handle = *door_.kept[0];
  handle.begin_events();
  const std::string head = transport_->take_written();
  EXPECT_TRUE(has(head, "text/event-stream") && has(head, "Transfer-Encoding: chunked"));
  handle.send_event("{\"a\":\"\\n\"}");
  EXPECT_EQ(transport_->take_written(), "12\r\ndata: {\"a\":\"\\n\"}\n\n\r\n");
  handle.send_event("one");
  handle.send_event("two\nlines");
  handle.end_events();
  EXPECT_EQ(transport_->take_written(), "22\r\ndata: one\n\ndata: two\ndata: lines\n\n\r\n0\r\n\r\n");
  EXPECT_EQ(handle.num_unsent_bytes(), 0u);
  EXPECT_EQ(body_of(exchange(get("/echo"))), "!");  // and the connection goes on
}

TEST_F(HttpConnectionTest, EventsToAnOlderClientEndWithTheConnection) {
  open();
  exchange("GET /slow HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  door_.kept[0]->begin_events();
  door_.kept[0]->send_event("x");
  door_.kept[0]->end_events();
  const std::string answer = transport_->take_written();
  EXPECT_FALSE(has(answer, "chunked"));
  EXPECT_TRUE(answer.ends_with("\r\n\r\ndata: x\n\n"));
  EXPECT_TRUE(transport_->is_finished());
}

TEST_F(HttpConnectionTest, ClientsThatLeaveAreNoticed) {
  for (const bool is_reset : {false, true}) {
    for (const bool is_stream : {false, true}) {
      door_ = Door{};
      open();
      exchange(get("/slow"));
      if (is_stream) door_.kept[0]->begin_events();
      transport_->run();
      is_reset ? transport_->reset() : transport_->send_end();
      transport_->run();
      EXPECT_EQ(door_.num_closed, 1);
      EXPECT_TRUE(door_.kept[0]->is_closed());
      bool was_called = false;
      door_.kept[0]->on_closed([&] { was_called = true; });
      EXPECT_TRUE(was_called);
      // What the handler still says is harmless.
      if (is_stream) {
        door_.kept[0]->send_event("x");
      } else if (is_reset) {
        door_.kept[0]->respond({});
      }
      door_.kept.clear();
      transport_->run();
      EXPECT_EQ(door_.num_closed, 1);
      EXPECT_TRUE(transport_->is_closed() || transport_->is_finished());
      ASSERT_EQ(door_.finished.size(), 1u);
      EXPECT_TRUE(door_.finished[0].ends_with("client_closed")) << door_.finished[0];
    }
  }
}

TEST_F(HttpConnectionTest, LeavingAfterTheAnswerIsNothing) {
  open();
  exchange(get("/slow"));
  door_.kept[0]->respond({.body = "x"});
  EXPECT_EQ(body_of(transport_->take_written()), "x");
  transport_->send_end();
  transport_->run();
  EXPECT_EQ(door_.num_closed, 0);
  EXPECT_TRUE(transport_->is_finished());
  EXPECT_EQ(door_.finished[0], "/slow 200 ok");
}

// The rule for a client that ends its side after its request: it counts as gone, so that nothing is computed for
// nobody; but what the handler answers for all that is sent.
TEST_F(HttpConnectionTest, AnEndOfTheClientsSideEndsTheWork) {
  open();
  exchange(post("/slow", "a whole request"));
  EXPECT_EQ(door_.num_closed, 0);
  transport_->send_end();
  transport_->run();
  EXPECT_EQ(door_.num_closed, 1);
  EXPECT_TRUE(door_.kept[0]->is_closed());
  EXPECT_FALSE(transport_->is_closed());
  door_.kept[0]->respond({.body = "late"});
  EXPECT_EQ(body_of(transport_->take_written()), "late");
  EXPECT_TRUE(transport_->is_finished());
  EXPECT_EQ(door_.finished[0], "/slow 200 ok");
}

TEST_F(HttpConnectionTest, AClientMayEndItsSideFirst) {
  open();
  transport_->send(get("/echo") + get("/echo"));
  transport_->send_end();
  const std::string answer = transport_->take_written();
  EXPECT_EQ(door_.finished.size(), 2u);
  EXPECT_TRUE(answer.ends_with("!"));
  EXPECT_TRUE(transport_->is_finished());
}

TEST_F(HttpConnectionTest, EveryRequestGetsAnAnswer) {
  open();
  exchange(get("/slow"));
  door_.kept.clear();  // the handler forgets it
  std::string answer = transport_->take_written();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 500") && has(answer, "\"error\"")) << answer;
  answer = exchange(get("/throw"));
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 500"));
  EXPECT_FALSE(has(answer, "thrown"));  // for the log alone
  EXPECT_EQ(door_.last_facts.error, "thrown");
  exchange(get("/slow"));
  door_.kept[0]->begin_events();
  door_.kept[0]->send_event("x");
  door_.kept.clear();
  answer = transport_->take_written();
  EXPECT_TRUE(has(answer, "data: {\"error\":") && answer.ends_with("\r\n0\r\n\r\n")) << answer;
  EXPECT_EQ(door_.num_closed, 0);
}

TEST_F(HttpConnectionTest, SlowReadersAreDropped) {
  limits_.max_unsent_event_bytes = 10'000;
  open();
  exchange(get("/slow"));
  HttpExchange& handle = *door_.kept[0];
  handle.begin_events();
  transport_->run();
  transport_->set_window(100);
  const std::string event(1000, 'x');
  for (int i = 0; i < 9; ++i) {
    handle.send_event(event);
    transport_->run();
  }
  EXPECT_GT(handle.num_unsent_bytes(), 8000u);
  EXPECT_EQ(door_.num_closed, 0);
  for (int i = 0; i < 3; ++i) handle.send_event(event);
  transport_->run();
  EXPECT_EQ(door_.num_closed, 1);
  EXPECT_TRUE(transport_->is_closed());
  EXPECT_LT(handle.num_unsent_bytes(), 13'000u);
  EXPECT_EQ(door_.finished[0], "/slow 200 slow_reader");
}

TEST_F(HttpConnectionTest, ReadersThatStopAreDroppedInTime) {
  open();
  transport_->set_window(10);
  exchange(get("/echo"));
  transport_->pass(59s);
  transport_->set_window(10);  // a little progress counts
  transport_->run();
  transport_->pass(59s);
  EXPECT_FALSE(transport_->is_closed());
  transport_->pass(2s);
  EXPECT_TRUE(transport_->is_closed());
  EXPECT_EQ(door_.finished[0], "/echo 200 write_timeout");
}

TEST_F(HttpConnectionTest, Timeouts) {
  open();  // nothing comes
  transport_->pass(9s);
  EXPECT_FALSE(transport_->is_finished());
  transport_->pass(2s);
  EXPECT_TRUE(transport_->is_finished());

  open();  // a byte now and then
  for (int i = 0; i < 12 && !transport_->is_finished(); ++i) {
    transport_->send(std::string(1, "GET / HTTP/1.1\r\n"[i]));
    transport_->pass(1s);
  }
  EXPECT_TRUE(transport_->is_finished());
  EXPECT_TRUE(transport_->written().starts_with("HTTP/1.1 408"));

  open();  // between requests there is more time, within one there is not
  exchange(get("/echo"));
  transport_->pass(70s);
  EXPECT_FALSE(transport_->is_finished());
  exchange("GET");
  transport_->pass(11s);
  EXPECT_TRUE(transport_->is_finished());
  EXPECT_TRUE(transport_->written().starts_with("HTTP/1.1 408"));

  open();
  exchange(get("/echo"));
  transport_->pass(76s);
  EXPECT_TRUE(transport_->is_finished());

  open();  // a body that drips
  transport_->send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n");
  for (int i = 0; i < 40 && !transport_->is_finished(); ++i) {
    transport_->send("0123456789");
    transport_->pass(1s);
  }
  EXPECT_TRUE(transport_->is_finished());
  EXPECT_TRUE(transport_->written().starts_with("HTTP/1.1 408"));
  EXPECT_EQ(context_->num_buffered_body_bytes.load(), 0);

  open();  // one that is merely slow
  transport_->send("POST /slow HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n");
  for (int i = 0; i < 50; ++i) {
    transport_->send(std::string(20'000, 'x'));
    transport_->run();
    transport_->pass(1s);
  }
  EXPECT_FALSE(transport_->is_finished());
  transport_->pass(3600s);  // an answer may take its time
  EXPECT_FALSE(transport_->is_finished() || transport_->is_closed());
}

TEST_F(HttpConnectionTest, Stopping) {
  open();
  context_->is_stopping = true;
  connection_.lock()->begin_stop();
  EXPECT_TRUE(transport_->is_finished());  // it was idle

  open();
  exchange(get("/slow"));
  context_->is_stopping = true;
  connection_.lock()->begin_stop();
  EXPECT_FALSE(transport_->is_finished());
  door_.kept[0]->respond({.body = "late"});
  const std::string answer = transport_->take_written();
  EXPECT_TRUE(has(answer, "\r\nConnection: close\r\n") && answer.ends_with("late"));
  EXPECT_TRUE(transport_->is_finished());
}

TEST_F(HttpConnectionTest, HeadersCannotBeForged) {
  open();
  exchange(get("/slow"));
  door_.kept[0]->respond({.headers = {{"X-A", "1\r\nX-Evil: 1"}, {"X-B", "2"}}});
  const std::string answer = transport_->take_written();
  EXPECT_FALSE(has(answer, "Evil"));
  EXPECT_TRUE(has(answer, "X-B: 2\r\n"));
}

TEST_F(HttpConnectionTest, HandlesOutliveTheConnection) {
  open();
  exchange(get("/slow"));
  const auto handle = std::move(door_.kept[0]);
  door_.kept.clear();
  connection_.lock()->abandon("server_stopped");
  transport_->run();
  transport_.reset();
  context_.reset();
  EXPECT_EQ(door_.num_closed, 1);
  handle->begin_events();
  handle->send_event("x");
  handle->end_events();
}

}  // namespace
}  // namespace quire
