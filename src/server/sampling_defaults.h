// What the makers of a model recommend for sampling: used by the server where a request names no value of its own. Read
// once at load, from generation_config.json or from GGUF's general.sampling keys. Pure functions.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "weights/gguf.h"

namespace quire {

struct SamplingDefaults {
  SamplingParams params;            // the API's own defaults, but for what the file says
  std::string told;                 // "temperature 0.7, top_p 0.8"; empty: it says nothing
  std::vector<std::string> faults;  // values that make no sense; they are left out
};

// temperature, top_p, top_k, min_p and repetition_penalty. Other keys (do_sample, max_new_tokens, …) mean nothing here.
SamplingDefaults read_sampling_defaults(const boost::json::object& generation_config);
SamplingDefaults parse_generation_config(std::string_view json);
SamplingDefaults read_gguf_sampling_defaults(const GgufFile& file);

}  // namespace quire
