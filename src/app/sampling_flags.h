// The sampling fields of the API (server/sampling_fields.h) as flags of the command line: --top-p 0.9, --stop TEXT, ...
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "server/sampling_fields.h"

namespace quire::app {

// Declares one flag per field; parsing writes to `options`, and a wrong value is a usage error.
void add_sampling_flags(CLI::App& parser, SamplingOptions& options);

}  // namespace quire::app
