#include "app/tune_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>

#include "app/doctor_machine.h"
#include "base/mapped_file.h"

namespace quire::app {

namespace fs = std::filesystem;
namespace json = boost::json;

namespace {

constexpr int64_t kMaxFileBytes = 4 << 20;
constexpr size_t kMaxChoices = 4096;

json::object to_json(const TuningKey& key) {
  return {{"device", key.device}, {"features", key.features}, {"threads", key.num_threads}, {"version", key.version}};
}

// A whole number of at least `least`; -1: there is none.
int64_t number_at(const json::object& object, const char* name, int64_t least) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_int64() && value->get_int64() >= least ? value->get_int64() : -1;
}

std::string text_at(const json::object& object, const char* name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

bool read_linear(const json::object& object, TunedLinear& choice) {
  const std::optional<FormatId> format = find_format_by_name(text_at(object, "format"));
  choice.k = number_at(object, "k", 0);
  choice.min_tokens = number_at(object, "min_tokens", 1);
  choice.max_tokens = number_at(object, "max_tokens", 1);
  choice.row = text_at(object, "row");
  if (!format.has_value()) return false;
  choice.format = *format;
  return choice.k >= 0 && choice.min_tokens >= 1 && choice.max_tokens >= choice.min_tokens && !choice.row.empty();
}

std::optional<DType> dtype_at(const json::object& object, const char* name) {
  const std::string text = text_at(object, name);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3}) {
    if (text == dtype_name(dtype)) return dtype;
  }
  return std::nullopt;
}

bool read_product(const json::object& object, TunedProduct& choice) {
  choice.num_tokens = number_at(object, "num_tokens", 1);
  choice.n = number_at(object, "n", 1);
  choice.k = number_at(object, "k", 1);
  const std::optional<DType> dtype = dtype_at(object, "dtype");
  const std::optional<DType> y_dtype = dtype_at(object, "y_dtype");
  const json::value* has_residual = object.if_contains("has_residual");
  choice.algorithm = text_at(object, "algorithm");
  if (!dtype.has_value() || !y_dtype.has_value() || has_residual == nullptr || !has_residual->is_bool()) return false;
  choice.dtype = *dtype;
  choice.y_dtype = *y_dtype;
  choice.has_residual = has_residual->get_bool();
  const int64_t largest = std::max({choice.num_tokens, choice.n, choice.k});
  return std::min({choice.num_tokens, choice.n, choice.k}) >= 1 && largest <= INT32_MAX && !choice.algorithm.empty();
}

bool read_choice(const json::value& value, TunedChoices& choices) {
  if (!value.is_object()) return false;
  const json::object& object = value.get_object();
  const std::string op = text_at(object, "op");
  if (op == "linear") return read_linear(object, choices.linear.emplace_back());
  return op == "matmul" && read_product(object, choices.products.emplace_back());
}

}  // namespace

TuningKey tuning_key(const std::string& gpu) {
  return {gpu, "", 0, QUIRE_VERSION};
}

TuningKey tuning_key(const CpuInfo& cpu, int num_threads) {
  return {cpu.model_name, shown_features(cpu.features), num_threads > 0 ? num_threads : default_num_threads(cpu),
          QUIRE_VERSION};
}

fs::path tuning_path(const fs::path& folder, const TuningKey& key) {
  const std::string text = json::serialize(to_json(key));
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a: a name, no proof
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return folder / fmt::format("{:016x}.json", hash);
}

json::object to_json(const TunedProduct& choice) {
  return {{"op", "matmul"},
          {"num_tokens", choice.num_tokens},
          {"n", choice.n},
          {"k", choice.k},
          {"dtype", dtype_name(choice.dtype)},
          {"y_dtype", dtype_name(choice.y_dtype)},
          {"has_residual", choice.has_residual},
          {"algorithm", choice.algorithm}};
}

Result<TunedChoices> read_tuning(const fs::path& path, const TuningKey& key) {
  std::error_code error;
  if (!fs::exists(path, error)) return TunedChoices();
  const auto refuse = [&](const std::string& what) {
    return invalid_argument(path.string() + " " + what + ": run `quire tune` again, or remove the file");
  };
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path.string(), kMaxFileBytes));
  boost::system::error_code parse_error;
  const json::value file = json::parse(text, parse_error);
  if (parse_error || !file.is_object()) return refuse("is not a JSON object");
  const json::value* its_key = file.get_object().if_contains("key");
  if (its_key == nullptr || *its_key != json::value(to_json(key))) return refuse("is of another machine or version");
  const json::value* list = file.get_object().if_contains("choices");
  if (list == nullptr || !list->is_array() || list->get_array().size() > kMaxChoices)
    return refuse("has no list of choices");
  TunedChoices choices;
  for (const json::value& value : list->get_array()) {
    if (!read_choice(value, choices)) return refuse("has a choice that cannot be read");
  }
  return choices;
}

Status write_tuning(const fs::path& path, const TuningKey& key, const TunedChoices& choices) {
  json::array list;
  for (const TunedLinear& choice : choices.linear) {
    list.push_back(json::object{{"op", "linear"},
                                {"format", quant_format(choice.format).name},
                                {"k", choice.k},
                                {"min_tokens", choice.min_tokens},
                                {"max_tokens", choice.max_tokens},
                                {"row", choice.row}});
  }
  for (const TunedProduct& choice : choices.products) list.push_back(to_json(choice));
  const json::object file{{"key", to_json(key)}, {"choices", std::move(list)}};
  const auto fail = [&](const std::string& why) {
    return unavailable("the choices cannot be kept in " + path.string() + ": " + why +
                       "; set XDG_CACHE_HOME to a folder that can be written");
  };
  if (choices.size() > kMaxChoices) return fail("they are too many: begin anew with --forget");
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) return fail(error.message());
  const fs::path fresh = path.string() + "." + std::to_string(getpid());
  {
    std::ofstream stream(fresh, std::ios::binary | std::ios::trunc);
    stream << json::serialize(file) << "\n";
    stream.flush();
    if (!stream) {
      fs::remove(fresh, error);
      return fail("it cannot be written");
    }
  }
  fs::rename(fresh, path, error);
  if (!error) return ok_status();
  const std::string why = error.message();
  fs::remove(fresh, error);
  return fail(why);
}

}  // namespace quire::app
