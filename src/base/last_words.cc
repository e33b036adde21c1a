#include "base/last_words.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "base/utf8_step.h"

namespace quire {

namespace {

std::atomic<LineFormat> last_words_format = LineFormat::kText;
static_assert(std::atomic<LineFormat>::is_always_lock_free, "a signal's handler reads it");

constexpr size_t kMostMessageBytes = 2 * PATH_MAX;
constexpr size_t kMostBytesOfAnEscape = 6;  // "\u001f"
constexpr size_t kMostOtherBytes = 128;     // the time, names, quotes

class Line {
 public:
  void add(std::string_view text) {
    const size_t num_bytes = std::min(text.size(), sizeof(text_) - size_);
    std::memcpy(text_ + size_, text.data(), num_bytes);
    size_ += num_bytes;
  }

  // As the inside of a JSON string.
  void add_json(std::string_view text) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    for (size_t i = 0; i < text.size();) {
      const Utf8Step step = step_utf8(text, i);
      const std::string_view character = text.substr(i, step.num_bytes);
      const auto first = static_cast<unsigned char>(character.front());
      i += step.num_bytes;
      if (step.kind != Utf8Step::Kind::kValid) {
        add("\xEF\xBF\xBD");
      } else if (first < ' ') {
        add("\\u00");
        add(kDigits.substr(first / 16, 1));
        add(kDigits.substr(first % 16, 1));
      } else {
        if (first == '"' || first == '\\') add("\\");
        add(character);
      }
    }
  }

  std::string_view view() const { return {text_, size_}; }

 private:
  char text_[kMostBytesOfAnEscape * kMostMessageBytes + kMostOtherBytes];
  size_t size_ = 0;
};

[[noreturn]] void tell_exception() {
  std::string what = "of an unknown kind";
  try {
    if (const std::exception_ptr exception = std::current_exception()) std::rethrow_exception(exception);
  } catch (const std::exception& exception) {
    what = exception.what();
  } catch (...) {  // has no name
  }
  tell_last_words("an exception was not caught: " + what);
  std::abort();
}

}  // namespace

void set_last_words_format(LineFormat format) {
  last_words_format = format;
  std::set_terminate(tell_exception);
}

void tell_last_words(std::string_view message) {
  message = message.substr(0, kMostMessageBytes);
  Line line;
  if (last_words_format == LineFormat::kJson) {
    line.add("{\"time\":\"");
    line.add(UtcTime(std::chrono::system_clock::now()).text());
    line.add("\",\"level\":\"error\",\"message\":\"");
    line.add_json(message);
    line.add("\"}\n");
  } else {
    line.add("quire: ");
    line.add(message);
    line.add("\n");
  }
  static_cast<void>(write_patiently(STDERR_FILENO, line.view()));
}

}  // namespace quire
