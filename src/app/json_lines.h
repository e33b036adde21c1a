// Commands that map lines of standard input to lines of standard output: JSON in, JSON out, one value a line. A line
// that is wrong gives {"error": "..."} in its place, so that lines keep their order, and the command ends with an
// error.
#pragma once

#include <boost/json.hpp>
#include <functional>

#include "base/status.h"

namespace quire::app {

Status map_json_lines(const std::function<Result<boost::json::value>(const boost::json::value& line)>& body);

}  // namespace quire::app
