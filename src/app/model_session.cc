#include "app/model_session.h"

#include <fmt/format.h>

#include <chrono>
#include <future>

#include "app/load_quantization.h"
#include "app/model_hash.h"
#include "app/model_path.h"
#include "app/sameness.h"
#include "app/tokenizer_metadata.h"
#include "app/tune_file.h"
#include "base/cpu_info.h"
#include "base/mapped_file.h"
#include "engine/memory_plan.h"
#include "models/config_parser.h"
#include "models/load_model.h"
#include "ops/backends.h"
#include "server/sampling_defaults.h"
#include "text/grammar_cache.h"
#include "text/grammar_vocabulary.h"
#include "weights/group_quantization.h"
#include "weights/messages.h"

namespace quire::app {

namespace json = boost::json;

bool wants_cuda(const EngineFlags& flags) {
  return flags.backend == "cuda" || flags.device.rfind("cuda", 0) == 0;
}

int gpu_index(const EngineFlags& flags) {
  const size_t colon = flags.device.find(':');
  return colon == std::string::npos ? 0 : std::stoi(flags.device.substr(colon + 1));
}

bool names_no_device(const EngineFlags& flags) {
  return flags.backend == "auto" && flags.device == "auto";
}

namespace {

constexpr int64_t kMaxTemplateBytes = 1 << 20;
constexpr int64_t kMostBytesOfSmallModel = int64_t{1} << 30;

BackendOptions backend_options(const EngineFlags& flags, Compute compute) {
  BackendOptions options;
  if (flags.backend == "reference") {
    options.kind = BackendKind::kReference;
  } else if (wants_cuda(flags)) {
    options.kind = BackendKind::kCuda;
    options.device_index = gpu_index(flags);
  }
  options.num_threads = flags.num_threads;
  options.compute = compute;
  if (flags.quantization == "fp8") options.weight_quantization = WeightQuantization::kF8;
  if (flags.quantization == "int8") options.weight_quantization = WeightQuantization::kI8;
  for (const std::string& forced : flags.kernels) {
    const size_t equals = forced.find('=');
    options.forced_kernels[forced.substr(0, equals)] = forced.substr(equals + 1);
  }
  return options;
}

// What `quire tune` found on this machine's processor or GPU.
TunedChoices load_tuning(const TuningKey& key, Console& console) {
  const std::filesystem::path path = tuning_path(read_environment().tuning_folder, key);
  Result<TunedChoices> choices = read_tuning(path, key);
  if (!choices.is_ok()) {
    console.warn("kernels are chosen as usual: " + choices.status().message());
    return {};
  }
  if (choices.value().size() > 0) {
    console.info(fmt::format("{} kernel choices from {}", choices.value().size(), path.string()));
  }
  return std::move(choices).value();
}

// A GPU with what was tuned for it, unless that is about to be measured anew. What was tuned has orders of sums of its
// own: `sameness` becomes kOff where it was left to us.
Result<std::unique_ptr<Ops>> create_gpu_ops(BackendOptions options, Sameness& sameness, bool is_tuning,
                                            Console& console) {
  const Result<std::string> gpu = gpu_of_tuning(options.device_index);
  options.is_tuning = is_tuning;
  if (is_tuning && sameness == Sameness::kInBatches) sameness = Sameness::kOff;
  options.is_strict = sameness != Sameness::kOff;
  if (!gpu.is_ok() || is_tuning || sameness == Sameness::kStrict) return create_ops(options);
  options.tuned_products = load_tuning(tuning_key(gpu.value()), console).products;
  if (!options.tuned_products.empty() && sameness == Sameness::kInBatches) {
    console.info("products as tuned: the last bits of an answer may depend on what runs beside it (--sameness strict)");
    sameness = Sameness::kOff;
    options.is_strict = false;
  }
  Result<std::unique_ptr<Ops>> ops = create_ops(options);
  if (ops.is_ok() || options.tuned_products.empty() || ops.status().code() != StatusCode::kInvalidArgument) return ops;
  console.warn("products are multiplied as usual: " + ops.status().message());
  options.tuned_products.clear();
  return create_ops(options);
}

// What the flags name; where they name nothing, a GPU if there is one that this build can use, else the CPU.
Result<std::unique_ptr<Ops>> choose_ops(const EngineFlags& flags, WeightKind weights, Sameness& sameness,
                                        const SessionOptions& session, Console& console) {
  const Compute of_gpu = choose_compute(flags.compute, DeviceKind::kCuda, weights);
  if (wants_cuda(flags)) return create_gpu_ops(backend_options(flags, of_gpu), sameness, session.is_tuning, console);
  if (names_no_device(flags) && has_cuda_backend()) {
    BackendOptions options = backend_options(flags, of_gpu);
    options.kind = BackendKind::kCuda;
    Result<std::unique_ptr<Ops>> ops = create_gpu_ops(options, sameness, session.is_tuning, console);
    const StatusCode code = ops.status().code();
    if (code != StatusCode::kUnavailable && code != StatusCode::kUnimplemented) return ops;
    // Without what the error says to do: nobody asked for a GPU.
    const std::string& message = ops.status().message();
    console.info("computing on the CPU: " + message.substr(0, message.find(": ")));
  }
  BackendOptions options = backend_options(flags, choose_compute(flags.compute, DeviceKind::kCpu, weights));
  options.is_first_token_urgent = session.is_first_token_urgent;
  if (options.kind == BackendKind::kCpu) {
    options.tuned_linear = load_tuning(tuning_key(read_cpu_info(), flags.num_threads), console).linear;
  }
  return create_ops(options);
}

std::optional<DType> parse_float_dtype(const std::string& name) {
  if (name == "f32") return DType::kF32;
  if (name == "f16") return DType::kF16;
  if (name == "bf16") return DType::kBF16;
  if (name == "fp8") return DType::kF8E4M3;
  if (name == "int8") return DType::kI8;
  return std::nullopt;
}

constexpr int kMostSamplingThreads = 8;

EngineOptions engine_options(const EngineFlags& flags, Compute compute, Sameness sameness, const Ops& ops,
                             const Tokenizer* tokenizer) {
  EngineOptions options;
  if (ops.device().kind == DeviceKind::kCuda) {
    options.max_num_seqs = kDefaultSeqsOfGpu;
    options.max_num_batched_tokens = kDefaultBatchedTokensOfGpu;
    options.is_strict = sameness != Sameness::kOff;
    options.shares_drawn_pages = sameness != Sameness::kStrict;
  }
  if (flags.max_num_seqs > 0) options.max_num_seqs = flags.max_num_seqs;
  if (flags.max_num_batched_tokens > 0) {
    options.max_num_batched_tokens = flags.max_num_batched_tokens;
    if (flags.max_num_seqs == 0) options.max_num_seqs = std::min(options.max_num_seqs, flags.max_num_batched_tokens);
  } else {
    options.max_num_batched_tokens = std::max(options.max_num_batched_tokens, options.max_num_seqs);
  }
  options.max_model_len = flags.max_model_len;
  options.page_size = flags.page_size;
  options.kv_cache_memory_bytes = flags.kv_cache_memory_bytes;
  options.swap_space_bytes = flags.swap_space_bytes;
  options.preemption = flags.preemption == "swap"        ? PreemptionMode::kSwap
                       : flags.preemption == "recompute" ? PreemptionMode::kRecompute
                                                         : PreemptionMode::kAuto;
  options.memory_utilization = flags.memory_utilization;
  options.kv_dtype = parse_float_dtype(flags.kv_cache_dtype);
  options.compute = compute;
  // f16 weights that auto multiplies in float do not ask for K and V of 32 bits.
  if (flags.compute == "auto" && compute == Compute::kF32 && !options.kv_dtype.has_value()) {
    options.kv_dtype = DType::kF16;
  }
  options.has_prefix_cache = !flags.is_prefix_cache_off;
  const int num_threads = flags.num_threads > 0 ? flags.num_threads : default_num_threads(read_cpu_info());
  options.num_sampling_threads = std::min(num_threads, kMostSamplingThreads);
  if (tokenizer != nullptr) {
    options.eos_token_ids = tokenizer->end_of_turn_ids();
    options.num_token_ids = tokenizer->vocab_size();
  }
  return options;
}

// "chat_template" of tokenizer_config.json: a string, or a list of named ones of which "default" is taken.
Result<std::optional<std::string>> template_of_tokenizer_config(const std::string& text) {
  boost::system::error_code error;
  const json::value config = json::parse(text, error);
  if (error || !config.is_object()) return invalid_argument("tokenizer_config.json is not a JSON object");
  const json::value* found = config.get_object().if_contains("chat_template");
  if (found == nullptr || found->is_null()) return std::optional<std::string>();
  if (found->is_string()) return std::optional<std::string>(std::string(found->get_string()));
  if (found->is_array()) {
    for (const json::value& named : found->get_array()) {
      if (!named.is_object()) continue;
      const json::value* name = named.get_object().if_contains("name");
      const json::value* source = named.get_object().if_contains("template");
      if (name != nullptr && source != nullptr && name->is_string() && source->is_string() &&
          name->get_string() == "default") {
        return std::optional<std::string>(std::string(source->get_string()));
      }
    }
  }
  return invalid_argument(
      "chat_template in tokenizer_config.json is neither a string nor a list with one named 'default'");
}

SamplingParams read_default_sampling(const Checkpoint& checkpoint, Console& console) {
  const bool is_gguf = checkpoint.kind == CheckpointKind::kGguf;
  if (!is_gguf && !checkpoint.generation_config_json.has_value()) return {};
  const SamplingDefaults defaults = is_gguf ? read_gguf_sampling_defaults(*checkpoint.gguf)
                                            : parse_generation_config(*checkpoint.generation_config_json);
  const std::string source = is_gguf ? "the model file" : "generation_config.json";
  for (const std::string& fault : defaults.faults) console.warn(source + ", not taken as a default: " + fault);
  if (!defaults.told.empty()) {
    console.info("sampling of requests that do not say otherwise, from " + source + ": " + defaults.told +
                 " (--generation-config none: temperature 1, no filters)");
  }
  return defaults.params;
}

int64_t num_bytes_of(const TensorSource& tensors) {
  int64_t num_bytes = 0;
  for (const SourceTensor& tensor : tensors.tensors()) num_bytes += static_cast<int64_t>(tensor.data.size());
  return num_bytes;
}

}  // namespace

Result<std::optional<std::string>> find_chat_template(const Checkpoint& checkpoint) {
  if (checkpoint.kind == CheckpointKind::kGguf) {
    ASSIGN_OR_RETURN(const auto source, checkpoint.gguf->find_string("tokenizer.chat_template"));
    return source.has_value() ? std::optional<std::string>(std::string(*source)) : std::nullopt;
  }
  if (checkpoint.chat_template_jinja.has_value()) return checkpoint.chat_template_jinja;
  if (checkpoint.tokenizer_config_json.has_value())
    return template_of_tokenizer_config(*checkpoint.tokenizer_config_json);
  return std::optional<std::string>();
}

Result<std::unique_ptr<Tokenizer>> open_tokenizer(const Checkpoint& checkpoint) {
  if (checkpoint.kind == CheckpointKind::kGguf) {
    ASSIGN_OR_RETURN(const TokenizerData data, read_tokenizer_data(*checkpoint.gguf));
    return Tokenizer::create(data);
  }
  if (!checkpoint.tokenizer_json.has_value()) {
    return not_found(checkpoint.path + " has no tokenizer.json: put the model's tokenizer.json into the folder");
  }
  return Tokenizer::create_from_json(*checkpoint.tokenizer_json, checkpoint.tokenizer_config_json.value_or(""));
}

Result<std::unique_ptr<TextFrontend>> open_text_frontend(const Checkpoint& checkpoint,
                                                         const std::string& chat_template_file,
                                                         const TextFrontend::Parsers& parsers) {
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, open_tokenizer(checkpoint));
  std::optional<std::string> chat_template;
  if (!chat_template_file.empty()) {
    ASSIGN_OR_RETURN(chat_template, read_text_file(chat_template_file, kMaxTemplateBytes));
  } else {
    ASSIGN_OR_RETURN(chat_template, find_chat_template(checkpoint));
  }
  return TextFrontend::create(std::move(tokenizer), chat_template, parsers);
}

namespace {

// What random weights are made of: what --quantization names, else what the files have or their config says.
void choose_random_format(const Checkpoint& checkpoint, EngineFlags& flags, LoadModelOptions& options,
                          Console& console) {
  const bool is_given = flags.quantization != "none";
  options.random_format = find_random_format(flags.quantization).value_or(FormatId::kBF16);
  options.is_random_format_forced = is_given;
  const std::string_view name = quant_format(*options.random_format).name;
  if (is_given && find_random_format(flags.quantization).has_value() && flags.quantization != name) {
    console.info(fmt::format("random weights: all matrices {}", name));
  }
  if (is_given || checkpoint.has_tensors()) return;
  const std::string config = checkpoint.config_json.value_or("");
  const std::string method = quantization_method(config);
  if (method.empty()) return;
  if (const auto groups = read_group_quantization(config); groups.is_ok()) {
    options.random_format = FormatId::kInt4G128;
    console.info("random weights: all matrices int4_g128, as the model's quantization_config has " + method +
                 " (--quantization bf16: 16 bits)");
    return;
  }
  const bool has_gpu = wants_cuda(flags) || (names_no_device(flags) && gpu_of_tuning(gpu_index(flags)).is_ok());
  if (method == "fp8" && has_gpu) {
    flags.quantization = "fp8";
    console.info("random weights: fp8, as the model's quantization_config says (--quantization bf16: 16 bits)");
    return;
  }
  console.warn("the model's quantization_config has " + quire::quoted(method) +
               ", but its random weights are of 16 bits: --quantization names another format");
}

}  // namespace

Result<ModelSession> open_model_session(const EngineFlags& given_flags, Console& console,
                                        const SessionOptions& options) {
  EngineFlags flags = given_flags;
  const auto begin = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(check_supported(flags));
  ASSIGN_OR_RETURN(const std::filesystem::path path, resolve_model(flags.model, read_environment(), console));
  const bool is_random = flags.load_format == "dummy";
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_checkpoint(path.string(), {.needs_tensors = !is_random}));
  if (!is_random) {
    RETURN_IF_ERROR(check_group_method(flags.quantization, checkpoint));
    const std::string stays = what_stays_quantized(flags.quantization, checkpoint.tensors());
    if (!stays.empty()) console.warn(stays);
  }

  ModelSession session;
  // Beside a small model's weights; before those of a large one, so that what is wrong here is said before minutes of
  // loading.
  const bool is_small = checkpoint.has_tensors() && num_bytes_of(checkpoint.tensors()) < kMostBytesOfSmallModel;
  std::future<Result<std::unique_ptr<TextFrontend>>> text;
  if (options.text == TextUse::kNeeded) {
    text = std::async(is_small ? std::launch::async : std::launch::deferred,
                      [&] { return open_text_frontend(checkpoint, flags.chat_template_file, options.parsers); });
    if (!is_small) {
      ASSIGN_OR_RETURN(session.text, text.get());
    }
  }
  if (options.reads_sampling_defaults) session.default_sampling = read_default_sampling(checkpoint, console);
  LoadModelOptions load_options;
  if (is_random) choose_random_format(checkpoint, flags, load_options, console);
  const bool has_own_format = is_random && (load_options.is_random_format_forced || !checkpoint.has_tensors());
  const WeightKind weights = flags.quantization == "int8" ? WeightKind::kInteger
                             : has_own_format             ? weight_kind(*load_options.random_format)
                                                          : main_weight_kind(checkpoint.tensors());
  ASSIGN_OR_RETURN(const ParsedConfig parsed, parse_config(checkpoint));
  Sameness sameness = choose_sameness(flags, weights, parsed.config);
  ASSIGN_OR_RETURN(session.ops, choose_ops(flags, weights, sameness, options, console));
  if (session.ops->device().kind == DeviceKind::kCpu) RETURN_IF_ERROR(check_supported_on_cpu(flags));
  if (checkpoint.has_tensors() && !has_own_format) {
    // Said before minutes of loading, not after.
    RETURN_IF_ERROR(check_weights_fit(num_bytes_of(checkpoint.tensors()), session.ops->memory().free_bytes));
  }

  const std::string name = path.filename().string();
  load_options.max_context = flags.max_model_len;
  load_options.activation_dtype = parse_float_dtype(flags.compute == "f32" ? flags.compute : flags.dtype);
  load_options.progress = [&](const LoadProgress& progress) {
    console.progress("loading " + name, progress.num_bytes_done, progress.num_bytes_total);
    if (options.on_progress) options.on_progress(progress.num_bytes_done, progress.num_bytes_total);
  };
  load_options.warn = [&](const std::string& message) { console.warn(message); };
  ASSIGN_OR_RETURN(session.model, load_model(checkpoint, *session.ops, load_options));
  if (text.valid()) {
    ASSIGN_OR_RETURN(session.text, text.get());
  }
  const bool is_on_cpu = session.ops->device().kind == DeviceKind::kCpu;
  const Compute compute = choose_compute(flags.compute, session.ops->device().kind, weights);
  EngineOptions of_engine = engine_options(flags, compute, sameness, *session.ops,
                                           session.text != nullptr ? &session.text->tokenizer() : nullptr);
  if (options.is_serving && is_on_cpu && flags.max_num_batched_tokens == 0) of_engine.max_num_batched_tokens = 0;
  if (options.needs_model_hash) of_engine.model_hash = hash_model(checkpoint);
  ASSIGN_OR_RETURN(session.engine, Engine::create(*session.ops, *session.model, of_engine));
  session.arithmetic = model_arithmetic(compute, weights);
  session.load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  const MemoryPlan& plan = session.engine->memory_plan();
  const bool tells_sameness = !is_on_cpu && sameness != Sameness::kOff;
  console.info(fmt::format("{}: {}, weights {}, on {}{}, ready in {:.2f} s", name, session.model->config().architecture,
                           format_bytes(session.model->weight_bytes()), session.ops->description(),
                           tells_sameness ? ", answers the same in any batch" : "", session.load_seconds));
  if (options.is_serving) {
    std::string table = plan.to_string();
    table +=
        fmt::format("grammars    {:>12}  at most, as answers ask for them: {} compiled, {} of token masks\n",
                    format_bytes(GrammarCache::kDefaultMaxBytes + GrammarVocabulary::kMaxTokenSetBytes),
                    format_bytes(GrammarCache::kDefaultMaxBytes), format_bytes(GrammarVocabulary::kMaxTokenSetBytes));
    table.pop_back();  // the last end of line
    console.info(table);
    return session;
  }
  // The host's memory is taken page by page, as sequences first write to it.
  console.info(fmt::format("KV memory: {}{} ({} pages of {} tokens, {} per token), up to {} tokens a sequence",
                           is_on_cpu ? "taken as it is used, at most " : "", format_bytes(plan.kv_bytes),
                           plan.num_pages, plan.page_size, format_bytes(plan.kv_bytes_per_token), plan.max_model_len));
  return session;
}

}  // namespace quire::app
