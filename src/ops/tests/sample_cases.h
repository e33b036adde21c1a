// Rows of logits and ways to sample from them, for the tests of `sample` on every backend.
#pragma once

#include <cmath>
#include <vector>

#include "ops/ops.h"
#include "ops/tests/op_test_data.h"

namespace quire {

struct SampleCase {
  int64_t size = 0;
  std::vector<float> logits;  // a row a SamplingRow
  std::vector<SamplingRow> rows;
};

// Every combination of temperature, top_k, top_p and min_p over random rows of one size; every other row has few
// distinct logits, so that many are equal.
inline SampleCase make_sample_case(TestRandom& random, int64_t size) {
  SampleCase result;
  result.size = size;
  for (const float temperature : {0.0f, 0.3f, 1.0f, 3.0f}) {
    for (const int32_t top_k : {0, 1, 2, 50, 2048, 5000}) {
      for (const float top_p : {1.0f, 0.9f, 0.3f, 1e-6f}) {
        for (const float min_p : {0.0f, 0.2f}) {
          SamplingRow row;
          row.inverse_temperature = temperature > 0 ? 1.0f / temperature : 0.0f;
          row.lowest = min_p > 0 ? std::log(min_p) : -27.5f;
          row.top_k = top_k;
          row.top_p = top_p;
          row.num_token_ids = static_cast<int32_t>(result.rows.size() % 3 == 0 ? std::max<int64_t>(1, size - 3) : size);
          row.uniform_bits = random.bits() >> 11;
          if (result.rows.size() % 7 == 0) row.uniform_bits = 0;
          if (result.rows.size() % 7 == 1) row.uniform_bits = (uint64_t{1} << 53) - 1;
          const bool has_ties = result.rows.size() % 2 == 1;
          for (int64_t i = 0; i < size; ++i) {
            const float logit = 4.0f * random.normal();
            result.logits.push_back(has_ties ? std::round(logit) : logit);
          }
          result.rows.push_back(row);
        }
      }
    }
  }
  return result;
}

}  // namespace quire
