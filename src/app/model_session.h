// Everything that a command needs to run a model: opened, loaded and ready. Made from the engine flags; the parts are
// destroyed in the right order. Used by generate, chat and bench on the main thread.
#pragma once

#include <functional>
#include <memory>

#include "app/console.h"
#include "app/model_arithmetic.h"
#include "app/options.h"
#include "base/status.h"
#include "engine/engine.h"
#include "models/model.h"
#include "ops/ops.h"
#include "server/text_frontend.h"
#include "weights/checkpoint.h"

namespace quire::app {

struct ModelSession {
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Model> model;
  std::unique_ptr<TextFrontend> text;  // null where it was not asked for
  std::unique_ptr<Engine> engine;      // last: it refers to ops and model
  double load_seconds = 0.0;
  SamplingParams default_sampling = {};  // of a server's requests; filled where SessionOptions asks for it
  ModelArithmetic arithmetic;            // on the CPU
};

enum class TextUse : uint8_t { kNeeded, kNone };
struct SessionOptions {
  TextUse text = TextUse::kNeeded;  // kNone: a model without a tokenizer will do
  // Answers are streamed while other prompts come in: on the CPU the tokens of a step are bounded by time, unless a
  // flag says how many, and the whole memory plan is told.
  bool is_serving = false;
  bool is_first_token_urgent = false;    // somebody waits for the first token since the command began
  bool needs_model_hash = false;         // the prefix cache is kept in a file: reads every byte of the model once more
  bool reads_sampling_defaults = false;  // what the model's makers recommend
  TextFrontend::Parsers parsers = {};    // how the model writes tool calls and thinking
  std::function<void(int64_t num_bytes_done, int64_t num_bytes_total)> on_progress = nullptr;
  bool is_tuning = false;  // a GPU measures products anew
};

// Whether the flags name a GPU, and which; whether they leave the choice to us.
bool wants_cuda(const EngineFlags& flags);
int gpu_index(const EngineFlags& flags);
bool names_no_device(const EngineFlags& flags);

// Opens, loads and plans memory, telling the console what is loaded, where, how large and how fast.
Result<ModelSession> open_model_session(const EngineFlags& flags, Console& console, const SessionOptions& options = {});

// The tokenizer alone. A vocabulary-only GGUF will do.
Result<std::unique_ptr<Tokenizer>> open_tokenizer(const Checkpoint& checkpoint);

// `chat_template_file` may be empty: the model's own template.
Result<std::unique_ptr<TextFrontend>> open_text_frontend(const Checkpoint& checkpoint,
                                                         const std::string& chat_template_file,
                                                         const TextFrontend::Parsers& parsers = {});

// The chat template that the checkpoint carries, if any.
Result<std::optional<std::string>> find_chat_template(const Checkpoint& checkpoint);

}  // namespace quire::app
