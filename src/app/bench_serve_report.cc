#include "app/bench_serve_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace quire::app {

namespace json = boost::json;

namespace {

constexpr double kMs = 1000.0;

bool keeps_limits(const BenchRecord& record, const GoodputLimits& limits) {
  const auto is_over = [](double seconds, double limit_ms) { return limit_ms > 0 && seconds * kMs > limit_ms; };
  const double longest_gap =
      record.gaps_s.empty() ? 0.0 : static_cast<double>(*std::max_element(record.gaps_s.begin(), record.gaps_s.end()));
  return !is_over(record.ttft_s(), limits.ttft_ms) && !is_over(record.tpot_s(), limits.tpot_ms) &&
         !is_over(longest_gap, limits.itl_ms) && !is_over(record.e2e_s(), limits.e2e_ms);
}

json::object to_json(const Percentiles& p) {
  return {{"mean", p.mean}, {"p50", p.p50}, {"p90", p.p90},    {"p99", p.p99},
          {"min", p.min},   {"max", p.max}, {"count", p.count}};
}

}  // namespace

Percentiles percentiles_of(std::vector<double> values) {
  Percentiles result;
  if (values.empty()) return result;
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const double rank = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<size_t>(rank);
    const size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (rank - static_cast<double>(below)) * (values[above] - values[below]);
  };
  double sum = 0.0;
  for (const double value : values) sum += value;
  result.mean = sum / static_cast<double>(values.size());
  result.p50 = at(0.5);
  result.p90 = at(0.9);
  result.p99 = at(0.99);
  result.min = values.front();
  result.max = values.back();
  result.count = static_cast<int64_t>(values.size());
  return result;
}

Result<GoodputLimits> parse_goodput(const std::vector<std::string>& texts) {
  GoodputLimits limits;
  for (const std::string& text : texts) {
    const size_t colon = std::min(text.find(':'), text.size());
    const std::string name = text.substr(0, colon);
    double* limit = name == "ttft"                    ? &limits.ttft_ms
                    : name == "tpot"                  ? &limits.tpot_ms
                    : name == "itl"                   ? &limits.itl_ms
                    : name == "e2e" || name == "e2el" ? &limits.e2e_ms
                                                      : nullptr;
    double value = 0.0;
    const char* begin = text.data() + std::min(colon + 1, text.size());
    const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
    if (limit == nullptr || *limit > 0 || error != std::errc() || end != text.data() + text.size() || !(value > 0) ||
        !std::isfinite(value)) {
      return invalid_argument(
          "--goodput '" + text +
          "' is not a limit: write ttft:MS, tpot:MS, itl:MS or e2e:MS, each once, such as ttft:500");
    }
    *limit = value;
  }
  return limits;
}

BenchReport make_bench_report(const std::vector<BenchRecord>& records, const GoodputLimits& limits) {
  BenchReport report;
  std::vector<double> ttft, tpot, itl, e2e, lag;
  double first_start = 0.0, last_end = 0.0, busy_s = 0.0;
  bool is_first = true;
  report.is_counted_by_server = !records.empty();
  for (const BenchRecord& record : records) {
    first_start = is_first ? record.start_s : std::min(first_start, record.start_s);
    last_end = std::max(last_end, record.end_s);
    is_first = false;
    busy_s += record.e2e_s();
    lag.push_back(kMs * (record.start_s - record.due_s));
    if (!record.is_ok()) {
      ++report.num_failed;
      ++report.errors[record.error_kind];
      report.error_samples.emplace(record.error_kind, record.error_message);
      continue;
    }
    ++report.num_ok;
    report.num_prompt_tokens += record.num_prompt_tokens;
    report.num_cached_tokens += record.num_cached_tokens;
    report.num_output_tokens += record.num_output_tokens;
    if (!record.is_counted_by_server) report.is_counted_by_server = false;
    ttft.push_back(kMs * record.ttft_s());
    e2e.push_back(kMs * record.e2e_s());
    if (record.num_output_tokens > 1) tpot.push_back(kMs * record.tpot_s());
    for (const float gap : record.gaps_s) itl.push_back(kMs * static_cast<double>(gap));
    if (keeps_limits(record, limits)) ++report.num_good;
  }
  report.duration_s = last_end - first_start;
  if (report.duration_s > 0) {
    report.request_throughput = static_cast<double>(report.num_ok) / report.duration_s;
    report.output_tok_s = static_cast<double>(report.num_output_tokens) / report.duration_s;
    report.total_tok_s = static_cast<double>(report.num_output_tokens + report.num_prompt_tokens) / report.duration_s;
    report.goodput = static_cast<double>(report.num_good) / report.duration_s;
    report.mean_concurrency = busy_s / report.duration_s;
  }
  report.ttft_ms = percentiles_of(std::move(ttft));
  report.tpot_ms = percentiles_of(std::move(tpot));
  report.itl_ms = percentiles_of(std::move(itl));
  report.e2e_ms = percentiles_of(std::move(e2e));
  report.lag_ms = percentiles_of(std::move(lag));
  return report;
}

json::object to_json(const BenchReport& report, const GoodputLimits& limits) {
  json::object errors;
  for (const auto& [kind, count] : report.errors) errors[kind] = count;
  json::object samples;
  for (const auto& [kind, message] : report.error_samples) samples[kind] = message;
  json::object result{{"num_ok", report.num_ok},
                      {"num_failed", report.num_failed},
                      {"errors", errors},
                      {"error_samples", samples},
                      {"duration_s", report.duration_s},
                      {"prompt_tokens", report.num_prompt_tokens},
                      {"cached_tokens", report.num_cached_tokens},
                      {"output_tokens", report.num_output_tokens},
                      {"tokens_counted_by", report.is_counted_by_server ? "usage" : "pieces"},
                      {"request_throughput", report.request_throughput},
                      {"output_tok_s", report.output_tok_s},
                      {"total_tok_s", report.total_tok_s},
                      {"mean_concurrency", report.mean_concurrency},
                      {"ttft_ms", to_json(report.ttft_ms)},
                      {"tpot_ms", to_json(report.tpot_ms)},
                      {"itl_ms", to_json(report.itl_ms)},
                      {"e2e_ms", to_json(report.e2e_ms)},
                      {"send_lag_ms", to_json(report.lag_ms)}};
  if (limits.has_any()) {
    json::object shown;
    for (const auto& [name, limit] : {std::pair<const char*, double>{"ttft", limits.ttft_ms},
                                      {"tpot", limits.tpot_ms},
                                      {"itl", limits.itl_ms},
                                      {"e2e", limits.e2e_ms}}) {
      if (limit > 0) shown[name] = limit;
    }
    result["goodput"] =
        json::object{{"limits_ms", shown}, {"num_good", report.num_good}, {"request_throughput", report.goodput}};
  }
  return result;
}

json::object to_json(const BenchRecord& record) {
  json::array gaps;
  for (const float gap : record.gaps_s) gaps.emplace_back(kMs * static_cast<double>(gap));
  json::object result{{"index", record.index},
                      {"due_s", record.due_s},
                      {"start_s", record.start_s},
                      {"end_s", record.end_s},
                      {"prompt_tokens", record.num_prompt_tokens},
                      {"cached_tokens", record.num_cached_tokens},
                      {"output_tokens", record.num_output_tokens},
                      {"finish_reason", record.finish_reason}};
  if (record.num_pieces > 0) {
    result["ttft_ms"] = kMs * record.ttft_s();
    result["gaps_ms"] = std::move(gaps);
  }
  if (!record.is_ok()) result["error"] = json::object{{"kind", record.error_kind}, {"message", record.error_message}};
  return result;
}

std::string to_table(const BenchReport& report, const GoodputLimits& limits) {
  std::string text;
  const auto row = [&](const char* name, const std::string& value) {
    text += fmt::format("{:<26} {:>14}\n", name, value);
  };
  row("requests answered", std::to_string(report.num_ok));
  row("requests failed", std::to_string(report.num_failed));
  for (const auto& [kind, count] : report.errors)
    text += fmt::format("  {:<24} {:>14}  {}\n", kind, count, report.error_samples.at(kind));
  row("duration, s", fmt::format("{:.2f}", report.duration_s));
  row("prompt tokens", std::to_string(report.num_prompt_tokens));
  if (report.num_cached_tokens > 0) row("  of them cached", std::to_string(report.num_cached_tokens));
  row("output tokens", std::to_string(report.num_output_tokens) + (report.is_counted_by_server ? "" : " pieces"));
  row("requests/s", fmt::format("{:.2f}", report.request_throughput));
  row("output tokens/s", fmt::format("{:.1f}", report.output_tok_s));
  row("all tokens/s", fmt::format("{:.1f}", report.total_tok_s));
  row("requests in flight, mean", fmt::format("{:.1f}", report.mean_concurrency));
  if (limits.has_any()) {
    row("goodput, requests/s", fmt::format("{:.2f}", report.goodput));
    row("  within the limits", fmt::format("{} of {}", report.num_good, report.num_ok + report.num_failed));
  }
  constexpr const char* kRow = "{:<26} {:>10} {:>10} {:>10} {:>10} {:>10}\n";
  text += fmt::format(kRow, "ms", "mean", "p50", "p90", "p99", "max");
  const auto latency = [&](const char* name, const Percentiles& p) {
    const auto shown = [](double value) { return fmt::format("{:.2f}", value); };
    text += fmt::format(kRow, name, shown(p.mean), shown(p.p50), shown(p.p90), shown(p.p99), shown(p.max));
  };
  latency("time to first token", report.ttft_ms);
  latency("time per output token", report.tpot_ms);
  latency("between pieces", report.itl_ms);
  latency("end to end", report.e2e_ms);
  if (report.lag_ms.max >= 1.0) latency("sent later than due", report.lag_ms);
  return text;
}

}  // namespace quire::app
