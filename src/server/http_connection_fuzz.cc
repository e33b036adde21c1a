// Bytes of a client, cut anywhere, with pauses, ends, resets and a reader that is slow at times, against a connection
// whose handlers answer in every way there is: at once, later, as a stream, never. Nothing may crash or leak; every
// request that began is finished once; a connection that is over says nothing more.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "server/http_connection.h"
#include "server/testing/fake_transport.h"

namespace quire {
namespace {

class Door : public HttpFrontDoor {
 public:
  Admission admit(const HttpRequest& head, const std::string&) override {
    Admission admission;
    const char kind = head.path.size() > 1 ? head.path[1] : '/';
    if (kind == 'r') admission.refusal = HttpResponse{.status = 403, .body = "no"};
    if (kind == 'm') admission.max_body_bytes = 3;
    admission.handler = [this, kind](std::shared_ptr<HttpExchange> exchange) {
      ++num_begun;
      if (kind == 'd') return;  // forgets it
      if (kind == 's') exchange->begin_events();
      if (kind == 's' || kind == 'l') {
        exchange->on_closed([this] { ++num_closed; });
        kept.push_back({std::move(exchange), kind == 's'});
        return;
      }
      exchange->respond({.body = exchange->request().body});
    };
    return admission;
  }
  void on_finished(const HttpRequest&, const std::string&, int64_t, const HttpOutcome&, const AnswerFacts&) override {
    ++num_finished;
  }
  // Something happens to the oldest that waits.
  void act(uint8_t choice) {
    if (kept.empty()) return;
    Kept& one = kept.front();
    if (one.is_stream && choice % 4 != 0) {
      one.exchange->send_event(std::string(choice, 'x'));
      return;
    }
    if (choice % 8 != 1) one.is_stream ? one.exchange->end_events() : one.exchange->respond({.body = "late"});
    kept.erase(kept.begin());
  }

  struct Kept {
    std::shared_ptr<HttpExchange> exchange;
    bool is_stream;
  };
  std::vector<Kept> kept;
  int num_begun = 0;
  int num_finished = 0;
  int num_closed = 0;
};

void run(const uint8_t* data, size_t size) {
  Door door;
  HttpLimits limits;
  limits.max_head_bytes = 300;
  limits.max_head_fields = 8;
  limits.max_body_bytes = 200;
  limits.max_buffered_body_bytes = 300;
  limits.max_pipelined_bytes = 150;
  limits.max_unsent_event_bytes = 500;
  const auto context = std::make_shared<HttpConnectionContext>(limits, door);
  const auto transport = std::make_shared<testing::FakeTransport>();
  auto connection = std::make_shared<HttpConnection>(context, transport);
  connection->start();
  transport->run();
  // A byte says what happens; 0 to 127: so many bytes of the rest are sent.
  for (size_t i = 0; i < size; ++i) {
    const uint8_t what = data[i];
    if (what < 128) {
      const size_t num = std::min<size_t>(what, size - i - 1);
      transport->send({reinterpret_cast<const char*>(data) + i + 1, num});
      i += num;
    } else if (what < 160) {
      transport->pass(std::chrono::milliseconds(1000 * (what - 127)));
    } else if (what < 200) {
      door.act(static_cast<uint8_t>(what - 160));
    } else if (what < 210) {
      transport->set_window(what - 200);
    } else if (what < 220) {
      transport->set_window(std::nullopt);
    } else if (what == 220) {
      transport->send_end();
    } else if (what == 221) {
      transport->reset();
    } else if (what == 222) {
      context->is_stopping = true;
      connection->begin_stop();
    }
    if (what % 2 == 0) transport->run();
  }
  transport->set_window(std::nullopt);
  transport->run();
  while (!door.kept.empty()) door.act(0);
  transport->run();
  transport->send_end();
  transport->run();
  connection->abandon("server_stopped");
  transport->run();
  CHECK(connection->is_closed());
  CHECK(door.num_finished >= door.num_begun);
  connection.reset();
  door.kept.clear();
  transport->run();
  CHECK(context->num_buffered_body_bytes.load() == 0);
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::run(data, size);
  return 0;
}
