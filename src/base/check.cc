#include "base/check.h"

#include <cstdlib>

#include "base/last_words.h"

namespace quire::check_internal {

void fail(const char* file, int line, const char* expression, const std::string& values) {
  std::string message = std::string(file) + ":" + std::to_string(line) + ": CHECK(" + expression + ") failed";
  if (!values.empty()) message += ": " + values;
  tell_last_words(message);
  std::abort();
}

}  // namespace quire::check_internal
