#include "app/options.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <optional>

#include "app/model_session.h"
#include "engine/engine.h"
#include "ops/backends.h"
#include "text/utf8.h"

namespace quire::app {

namespace {

std::string names_of_formats() {
  std::string names;
  for (const QuantFormat& known : kQuantFormats) names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

// Empty where it is a value of --quantization.
std::string check_quantization(const std::string& text) {
  for (const char* known : {"none", "int8", "fp8", "awq", "gptq"}) {
    if (text == known) return {};
  }
  if (find_random_format(text).has_value()) return {};
  return "'" + text + "' is not known: there are none, int8, fp8, awq and gptq, and for --load-format dummy " +
         names_of_formats();
}

}  // namespace

CLI::Validator number_in(double low, double high) {
  return CLI::Validator(
      [low, high](std::string& text) {
        char* end = nullptr;
        const double number = std::strtod(text.c_str(), &end);
        if (end != text.c_str() && *end == '\0' && number >= low && number <= high) return std::string();
        char bounds[64];
        std::snprintf(bounds, sizeof(bounds), "%g to %g", low, high);
        return "'" + text + "' is not a number from " + bounds;
      },
      CLI::Range(low, high).get_description());
}

std::optional<FormatId> find_random_format(const std::string& quantization) {
  std::string name = quantization;
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (name.size() > 4 && (name.ends_with("_k_s") || name.ends_with("_k_m") || name.ends_with("_k_l"))) {
    name.resize(name.size() - 2);
  }
  return find_format_by_name(name);
}

int64_t parse_memory_size(const std::string& text) {
  struct Unit {
    const char* name;
    double bytes;
  };
  constexpr Unit kUnits[] = {{"", 1},       {"B", 1},        {"K", 0x1p10},   {"KiB", 0x1p10}, {"KB", 1e3},
                             {"M", 0x1p20}, {"MiB", 0x1p20}, {"MB", 1e6},     {"G", 0x1p30},   {"GiB", 0x1p30},
                             {"GB", 1e9},   {"T", 0x1p40},   {"TiB", 0x1p40}, {"TB", 1e12}};
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end != text.c_str() && std::isfinite(number) && number >= 0) {
    for (const Unit& unit : kUnits) {
      if (std::string(end) == unit.name && number * unit.bytes < 0x1p62)
        return static_cast<int64_t>(number * unit.bytes);
    }
  }
  throw CLI::ValidationError("'" + text +
                             "' is not a size of memory: write a number and a unit, such as 512MiB, 2GiB or 1.5GB");
}

namespace {

// Where a GPU is named, whoever opens it tells what is wrong with it.
bool takes_cpu(const EngineFlags& flags) {
  if (wants_cuda(flags)) return false;
  return !names_no_device(flags) || !gpu_of_tuning(gpu_index(flags)).is_ok();
}

}  // namespace

Status check_supported_on_cpu(const EngineFlags& flags) {
  if (flags.dtype == "f16" || flags.dtype == "bf16") {
    return unimplemented("--dtype " + flags.dtype +
                         " is not supported on the CPU: activations are float there; leave --dtype out, and use "
                         "--kv-cache-dtype to halve the KV cache");
  }
  return ok_status();
}

Status check_supported(const EngineFlags& flags) {
  const bool is_cuda = flags.device.starts_with("cuda");
  if ((is_cuda && (flags.backend == "cpu" || flags.backend == "reference")) ||
      (flags.device == "cpu" && flags.backend == "cuda")) {
    return invalid_argument("--device " + flags.device + " and --backend " + flags.backend +
                            " exclude each other: leave one of them out");
  }
  if (flags.preemption == "swap" && flags.swap_space_bytes == 0) {
    return invalid_argument("--preemption swap needs room to swap to: give a --swap-space, such as 2GiB");
  }
  if (flags.quantization != "none" && flags.quantization != "fp8" && flags.quantization != "int8") {
    // A checkpoint of AWQ or GPTQ says so itself.
    const bool is_said_by_checkpoint = flags.quantization == "awq" || flags.quantization == "gptq";
    if (flags.load_format != "dummy" && !is_said_by_checkpoint) {
      return unimplemented(
          "--quantization " + flags.quantization +
          " is not supported yet: quantizing while loading, but for int8, and fp8 on a GPU; give a GGUF file that is "
          "quantized already");
    }
    if (const std::string wrong = check_quantization(flags.quantization); !wrong.empty()) {
      return invalid_argument("--quantization: " + wrong);
    }
  }
  if (flags.quantization == "fp8" && takes_cpu(flags)) {
    return unimplemented(
        "--quantization fp8 is for NVIDIA GPUs only: on the CPU, take int8, or give a GGUF file that is quantized");
  }
  return ok_status();
}

void add_model_argument(CLI::App& parser, std::string& model) {
  parser
      .add_option("MODEL", model,
                  "A GGUF file, a Hugging Face folder, a name from `quire models`, or ORG/NAME[:QUANT] on a hub")
      ->required();
}

CLI::Option* add_model_names_flag(CLI::App& parser, std::vector<std::string>& names, const char* meaning) {
  return parser.add_option("--served-model-name", names, meaning)->check([](const std::string& name) {
    if (name.empty()) return std::string("the name is empty: requests would have to ask for a model without one");
    return is_valid_utf8(name)
               ? std::string()
               : "the name is not UTF-8, which the API's JSON is written in: give one that is, or set the "
                 "terminal to UTF-8";
  });
}

void add_generation_config_flag(CLI::App& parser, std::string& value) {
  parser
      .add_option("--generation-config", value,
                  "Sampling of requests that do not say otherwise: auto, as the model's generation_config.json or "
                  "GGUF metadata recommend; none, temperature 1 and no filters")
      ->check(CLI::IsMember({"auto", "none"}))
      ->capture_default_str();
}

void add_engine_flags(CLI::App& parser, EngineFlags& flags) {
  add_model_argument(parser, flags.model);
  const std::string group = "Engine";
  const EngineOptions usual;
  const auto option = [&](const char* name, auto& value, const std::string& meaning) {
    return parser.add_option(name, value, meaning)->group(group)->capture_default_str();
  };
  option("--threads", flags.num_threads, "CPU threads; 0: what affinity, cgroup quota and cores allow")
      ->check(CLI::Range(0, 1024));
  option("--device", flags.device, "auto, cpu, cuda or cuda:N")
      ->check(CLI::Validator(
          [](std::string& text) {
            const bool is_numbered = text.rfind("cuda:", 0) == 0 && text.size() > 5 && text.size() < 8 &&
                                     text.find_first_not_of("0123456789", 5) == std::string::npos;
            return text == "auto" || text == "cpu" || text == "cuda" || is_numbered
                       ? std::string()
                       : "'" + text + "' is not a device: use auto, cpu, cuda or cuda:N";
          },
          ""));
  option("--backend", flags.backend, "Kernels: auto, reference (plain and slow), cpu or cuda")
      ->check(CLI::IsMember({"auto", "reference", "cpu", "cuda"}));
  option("--compute", flags.compute,
         "Products on the CPU. auto: integer weights by 8-bit activations, bf16 weights and attention in bf16, other "
         "floats in float; bf16: f16 weights and attention in bf16 too; f32: float throughout")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}));
  option("--dtype", flags.dtype,
         "Activations between layers: auto (float on the CPU, the model's own on a GPU), f32, f16 or bf16")
      ->check(CLI::IsMember({"auto", "f32", "f16", "bf16"}));
  option("--kv-cache-dtype", flags.kv_cache_dtype,
         "KV cache: auto (f32 under --compute f32, else 16 bits of the kind that attention or a GPU computes in), f32, "
         "f16, bf16, or fp8 (e4m3) or int8, with a scale for each token and head; on a GPU")
      ->check(CLI::IsMember({"auto", "f32", "f16", "bf16", "fp8", "int8"}));
  option("--page-size", flags.page_size, "Tokens in a KV page: a power of two from 8 to 256")
      ->check(CLI::IsMember({8, 16, 32, 64, 128, 256}));
  parser
      .add_option_function<std::string>(
          "--kv-cache-memory",
          [&flags](const std::string& text) { flags.kv_cache_memory_bytes = parse_memory_size(text); },
          "Memory for KV pages, such as 2GiB; default: a share of what is free (--gpu-memory-utilization)")
      ->group(group);
  option("--gpu-memory-utilization", flags.memory_utilization,
         "Share of the device's memory that may be used, weights included; on the CPU: of the memory that is free once "
         "they are loaded; 0: 0.9 on a GPU, 0.3 on the CPU and there at most 8 GiB of KV pages")
      ->check(number_in(0.0, 1.0));
  parser
      .add_option_function<std::string>(
          "--swap-space", [&flags](const std::string& text) { flags.swap_space_bytes = parse_memory_size(text); },
          "Host memory for the KV pages of sequences that had to give way, such as 2GiB; 0: they are computed again")
      ->group(group);
  option(
      "--preemption", flags.preemption,
      "When pages run out, the newest sequence gives way: its pages are swapped out, or computed again, or the cheaper "
      "of the two (auto, recompute, swap)")
      ->check(CLI::IsMember({"auto", "recompute", "swap"}));
  option("--max-num-seqs", flags.max_num_seqs,
         fmt::format(
             "Sequences that may run at once; 0: {} on the CPU, {} on a GPU, or --max-num-batched-tokens where that is "
             "less",
             usual.max_num_seqs, kDefaultSeqsOfGpu))
      ->check(CLI::Range(0, 65536));
  option(
      "--max-num-batched-tokens", flags.max_num_batched_tokens,
      fmt::format(
          "Tokens in one step; 0: {} on the CPU (serve and run-batch: as many as it computes in {} s), {} on a GPU, or "
          "--max-num-seqs where that is more",
          usual.max_num_batched_tokens, usual.step_seconds, kDefaultBatchedTokensOfGpu))
      ->check(CLI::Range(0, 1 << 20));
  option("--max-model-len", flags.max_model_len,
         "Longest prompt and answer together; 0: what the model allows, or the KV pages where they hold less")
      ->check(CLI::Range(0, 1 << 24));
  option("--chat-template", flags.chat_template_file, "A Jinja file to use instead of the model's own template")
      ->check(CLI::ExistingFile);
  option("--load-format", flags.load_format,
         "Weights: auto, those of the files; dummy: random ones of the model's shape, for measuring; config.json, or a "
         "GGUF file, is enough")
      ->check(CLI::IsMember({"auto", "dummy"}));
  option("--quantization", flags.quantization,
         "Weights: none, as the files hold them (awq, gptq: the same); int8, or fp8 on a GPU, from float weights while "
         "loading; a format (q4_k, int4_g128, ...) for --load-format dummy")
      ->check(CLI::Validator([](std::string& text) { return check_quantization(text); }, ""));
  option(
      "--sameness", flags.sameness,
      "Answers whose bits do not depend on what runs beside them; the CPU always keeps that. On a GPU auto: where it "
      "costs under a tenth of the speed, which is large models of 16-bit weights; off: the fastest kernels; strict: "
      "always, and an answer's pages are not kept for the conversation's next turn (docs/scheduling.md)")
      ->check(CLI::IsMember({"auto", "strict", "off"}));
  parser.add_flag("--no-prefix-cache", flags.is_prefix_cache_off, "Do not share pages between equal prefixes")
      ->group(group);
  parser
      .add_option(
          "--kernel", flags.kernels,
          "Force a kernel row where it fits (quire doctor lists those that are chosen): op=row; may be given again; on "
          "a GPU decoder_step=on or off too: a step of one token as one kernel, which else e4m3 weights have")
      ->group(group)
      ->check(CLI::Validator(
          [](std::string& text) {
            const size_t equals = text.find('=');
            return equals != std::string::npos && equals > 0 && equals + 1 < text.size()
                       ? std::string()
                       : "'" + text + "' is not of the form op=row, such as linear=avx2_f32";
          },
          ""));
  option("--log-level", flags.log_level,
         "What is told on stderr: debug (info, and a line for each probe of a server), info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
}

}  // namespace quire::app
