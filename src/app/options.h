// Every option that several commands share, once: its name, default, meaning and check. The only place that reads the
// environment. Values are plain structs; turning them into engine types is the business of app/model_session.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "quant/format.h"
#include "server/http_client.h"

namespace quire::app {

// What the environment says; read once, by app/options_environment.
struct Environment {
  std::filesystem::path cache_folder;      // $QUIRE_CACHE, or quire/models in the user's cache folder; need not exist
  std::filesystem::path tuning_folder;     // quire/tuning in the user's cache folder; need not exist
  std::filesystem::path hub_cache_folder;  // $HF_HUB_CACHE, $HF_HOME/hub, …: shared with other tools; need not exist
  std::string hub_endpoint;                // $HF_ENDPOINT, or https://huggingface.co; no slash at its end
  std::string hub_token;                   // $HF_TOKEN
  std::filesystem::path hub_token_file;    // read where there is no token in the environment; may not exist
  bool is_hub_offline = false;             // $HF_HUB_OFFLINE
  std::string http_proxy;                  // as for HttpClientOptions
  std::string https_proxy;
  std::string no_proxy;
  std::string ca_file;  // $SSL_CERT_FILE, $REQUESTS_CA_BUNDLE or $CURL_CA_BUNDLE
  std::string api_key;  // $OPENAI_API_KEY
};
Environment read_environment();

// Options for an HTTP client that goes out as the environment says.
HttpClientOptions client_options(const Environment& environment);

// What an option's check() answers: nothing, or what is wrong with the text.
inline std::string complaint(const Status& status) {
  return status.is_ok() ? std::string() : status.message();
}

// The engine's options, as the command line gives them; 0 or "auto" means that the engine decides.
struct EngineFlags {
  std::string model;
  int num_threads = 0;
  std::string device = "auto";
  std::string backend = "auto";
  std::string compute = "auto";
  std::string dtype = "auto";  // of activations between layers
  std::string kv_cache_dtype = "auto";
  int page_size = 16;
  int64_t kv_cache_memory_bytes = 0;
  double memory_utilization = 0.0;
  int max_num_seqs = 0;
  int max_num_batched_tokens = 0;
  int max_model_len = 0;
  std::string chat_template_file;
  std::string load_format = "auto";
  std::string quantization = "none";
  std::string preemption = "auto";
  std::string sameness = "auto";
  int64_t swap_space_bytes = 0;
  bool is_prefix_cache_off = false;
  std::vector<std::string> kernels;  // op=row
  std::string log_level = "info";
};

// What 0 stands for on a GPU, which wants more at once than a CPU; there it is what EngineOptions have.
inline constexpr int kDefaultSeqsOfGpu = 256;
inline constexpr int kDefaultBatchedTokensOfGpu = 8192;

// Declares MODEL and the engine flags on a subcommand.
void add_engine_flags(CLI::App& parser, EngineFlags& flags);
// Whether requests get the sampling that the model's makers recommend: for commands that serve them.
void add_generation_config_flag(CLI::App& parser, std::string& value);
void add_model_argument(CLI::App& parser, std::string& model);
// --served-model-name, for commands that answer as the API does.
CLI::Option* add_model_names_flag(CLI::App& parser, std::vector<std::string>& names, const char* meaning);

// An error that names the first flag whose value is known but not supported (on this device), and says what to do
// instead.
Status check_supported(const EngineFlags& flags);
Status check_supported_on_cpu(const EngineFlags& flags);

// CLI::Range for numbers that may have a fraction: nan is outside.
CLI::Validator number_in(double low, double high);

// The format of random weights that --quantization names, by GGUF's names of mixed files too: q4_k_m is q4_k.
std::optional<FormatId> find_random_format(const std::string& quantization);

// "2GiB", "512M", "1.5GB", "1073741824" → bytes; throws CLI::ValidationError with what is accepted.
int64_t parse_memory_size(const std::string& text);

}  // namespace quire::app
