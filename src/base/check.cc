#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace quire::check_internal {

void fail(const char* file, int line, const char* expression, const std::string& values) {
  std::fprintf(stderr, "%s:%d: CHECK(%s) failed", file, line, expression);
  if (!values.empty()) std::fprintf(stderr, ": %s", values.c_str());
  std::fputc('\n', stderr);
  std::fflush(stderr);
  std::abort();
}

}  // namespace quire::check_internal
