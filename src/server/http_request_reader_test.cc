// Requests whole, cut at every byte, and broken; the limits.
#include "server/http_request_reader.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using State = HttpRequestReader::State;

struct Outcome {
  State state;
  HttpRequest request;
  int error_status = 0;
  std::string error_message;
  size_t num_left = 0;
};

// Feeds `bytes` in pieces of `step`.
Outcome read(const std::string& bytes, size_t step, const HttpLimits& limits = {}) {
  HttpRequestReader reader(limits);
  std::string pending;
  size_t next = 0;
  while (reader.state() != State::kDone && reader.state() != State::kFailed) {
    if (reader.state() == State::kDecide) {
      reader.begin_body(limits.max_body_bytes, [](size_t) { return true; });
    }
    pending.erase(0, reader.feed(pending));
    if (reader.state() == State::kHead || reader.state() == State::kBody) {
      if (next == bytes.size()) break;
      const size_t num = std::min(step, bytes.size() - next);
      pending += bytes.substr(next, num);
      next += num;
    }
  }
  Outcome outcome{.state = reader.state(),
                  .request = {},
                  .error_status = reader.error_status(),
                  .error_message = reader.error_message()};
  outcome.num_left = pending.size() + bytes.size() - next;
  outcome.request = reader.request();
  return outcome;
}

TEST(HttpRequestReader, TheSameWhereverItIsCut) {
  const std::string body_with_nul("hello\0world", 11);
  const std::string plain =
      "POST /v1/a%20b?x=%20y#z HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\nX-A: 1\r\n\r\n" + body_with_nul + "GET";
  const std::string chunked =
      "\r\n\r\nPOST http://h:1/c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n"
      "5;name=\"v\"\r\nhello\r\n6\r\n world\r\n0\r\nTrailer: x\r\n\r\n";
  for (size_t step = 1; step < 80; ++step) {
    Outcome outcome = read(plain, step);
    ASSERT_EQ(outcome.state, State::kDone) << step;
    EXPECT_EQ(outcome.request.method, "POST");
    EXPECT_EQ(outcome.request.path, "/v1/a b");
    EXPECT_EQ(outcome.request.query, "x=%20y");
    EXPECT_EQ(outcome.request.header("x-a"), "1");
    EXPECT_EQ(outcome.request.header("absent"), "");
    EXPECT_EQ(outcome.request.body, body_with_nul);
    EXPECT_EQ(outcome.num_left, 3u);

    outcome = read(chunked, step);
    ASSERT_EQ(outcome.state, State::kDone) << step;
    EXPECT_EQ(outcome.request.path, "/c");
    EXPECT_EQ(outcome.request.body, "hello world");
    EXPECT_EQ(outcome.request.headers.size(), 2u);  // the trailer is dropped
    EXPECT_EQ(outcome.num_left, 0u);
  }
}

TEST(HttpRequestReader, ChunksThatEndAtOnce) {
  const std::string head = "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string end : {"0\r\n\r\n", "000\r\n\r\n", "0;a\r\n\r\n", "0\r\nA: b\r\n\r\n"}) {
    for (size_t step = 1; step < 8; ++step) {
      const Outcome outcome = read(head + end + "GET", step);
      EXPECT_EQ(outcome.state, State::kDone) << end << step;
      EXPECT_EQ(outcome.request.body, "");
      EXPECT_EQ(outcome.num_left, 3u);
    }
    for (size_t length = 0; length < end.size(); ++length) {
      EXPECT_EQ(read(head + end.substr(0, length), 1).state, State::kBody) << end << length;
    }
  }
  EXPECT_EQ(read(head + "0\r\n ", 3).state, State::kBody);
}

TEST(HttpRequestReader, WhatIsBrokenIsRefused) {
  const struct {
    std::string bytes;
    int status;
  } cases[] = {
      {"GET / HTTP/1.1\r\n\r\n", 400},                                  // no Host
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},            //
      {"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400},                    //
      {"GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400},                    //
      {"GET /%0d%0aX: HTTP/1.1\r\nHost: a\r\n\r\n", 400},               //
      {"GET noslash HTTP/1.1\r\nHost: a\r\n\r\n", 400},                 //
      {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},                       //
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},                        //
      {"GET / HTTP/1.1\nHost: a\r\n\r\n", 400},                         //
      {"GET / HTTP/1.1\n\n", 400},                                      //
      {"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400},                      //
      {"GET / http/1.1\r\nHost: a\r\n\r\n", 400},                       //
      {"\x16\x03\x01\x02 is TLS, not HTTP, and long enough\r\n", 400},  //
      {"GET / HTTP/1.1\r\nHost: a\r\nBad Name: x\r\n\r\n", 400},        //
      {"GET / HTTP/1.1\r\nHost: a\r\nX: a\nb\r\n\r\n", 400},            //
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n", 501},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n", 413},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000000\r\n\r\n", 413},
  };
  for (const auto& one : cases) {
    for (const size_t step : {size_t{1}, size_t{7}, one.bytes.size()}) {
      const Outcome outcome = read(one.bytes, step);
      EXPECT_EQ(outcome.state, State::kFailed) << one.bytes;
      EXPECT_EQ(outcome.error_status, one.status) << one.bytes;
    }
  }
}

TEST(HttpRequestReader, ALineFeedAloneIsNamed) {
  const std::string bytes = "GET / HTTP/1.1\nHost: a\r\n\r\n";
  for (const size_t step : {size_t{1}, size_t{7}, bytes.size()}) {
    EXPECT_EQ(read(bytes, step).error_message,
              "the request line ends with a line feed alone: lines of HTTP end with CR LF");
  }
}

TEST(HttpRequestReader, LimitsOfTheHead) {
  HttpLimits limits;
  limits.max_head_bytes = 1000;
  limits.max_head_fields = 20;
  for (const size_t step : {size_t{1}, size_t{100}, size_t{5000}}) {
    EXPECT_EQ(read("GET /" + std::string(5000, 'a'), step, limits).error_status, 431);  // without an end
    EXPECT_EQ(read("GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(5000, 'a'), step, limits).error_status, 431);
    std::string many = "GET / HTTP/1.1\r\nHost: a\r\n";
    std::string some = many;
    for (int i = 0; i < 300; ++i) many += "A" + std::to_string(i) + ": b\r\n";
    for (int i = 0; i < 21; ++i) some += "A: b\r\n";
    EXPECT_EQ(read(many + "\r\n", step, limits).error_status, 431);  // short fields, each within the limit
    EXPECT_EQ(read(some + "\r\n", step, limits).error_status, 431);
    std::string empty_lines;
    for (int i = 0; i < 501; ++i) empty_lines += "\r\n";
    EXPECT_EQ(read(empty_lines, step, limits).error_status, 431);
    EXPECT_EQ(read(empty_lines.substr(4) + "GET / HTTP/1.1\r\nHost: a\r\n\r\n", step, limits).state, State::kDone);
  }
  EXPECT_EQ(read("GET /" + std::string(900, 'a') + " HTTP/1.1\r\nHost: a\r\n\r\n", 100, limits).state, State::kDone);
}

TEST(HttpRequestReader, LimitsOfTheBody) {
  HttpLimits limits;
  limits.max_body_bytes = 10;
  const std::string chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(read(chunked + "6\r\nabcdef\r\n4\r\nabcd\r\n0\r\n\r\n", 5, limits).state, State::kDone);
  EXPECT_EQ(read(chunked + "6\r\nabcdef\r\n5\r\nabcde\r\n0\r\n\r\n", 5, limits).error_status, 413);
  // A size line, and a trailer, that never end.
  EXPECT_EQ(read(chunked + "1;" + std::string(50'000, 'x'), 1000).error_status, 400);
  EXPECT_EQ(read(chunked + "0\r\nA: " + std::string(50'000, 'x'), 1000).error_status, 400);

  HttpRequestReader reader(limits);
  reader.feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\n");
  ASSERT_EQ(reader.state(), State::kDecide);
  reader.begin_body(10, [total = size_t{0}](size_t num_bytes) mutable { return (total += num_bytes) <= 4; });
  EXPECT_EQ(reader.feed("abcd"), 4u);
  EXPECT_EQ(reader.state(), State::kBody);
  reader.feed("e");
  EXPECT_EQ(reader.error_status(), 503);
  EXPECT_EQ(reader.request().body, "abcd");
}

}  // namespace
}  // namespace quire
