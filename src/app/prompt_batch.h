// The prompts of `quire generate`: one text, or the lines of a JSON Lines file, each with its own sampling fields.
// Reading and checking only; a line that is wrong carries its error, so that the other lines still run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/sampling_fields.h"
#include "server/text_frontend.h"

namespace quire::app {

struct BatchPrompt {
  Status status;  // why this line cannot run
  std::vector<int32_t> token_ids;
  SamplingOptions sampling;
};

// One raw prompt, or one user turn under the chat template.
BatchPrompt make_prompt(const TextFrontend& text, const std::string& prompt, bool is_chat,
                        const SamplingOptions& sampling);

// Lines of {"prompt": ...}, {"prompt_token_ids": [...]} or {"messages": [...]}; `defaults` holds for fields a line
// leaves out. Blank lines are skipped. `warn` is told of each key that means nothing here, once: it may be a typing
// mistake. The error is for the file as a whole.
Result<std::vector<BatchPrompt>> read_prompts(const TextFrontend& text, const std::string& path, bool is_chat,
                                              const SamplingOptions& defaults,
                                              const std::function<void(const std::string&)>& warn);

}  // namespace quire::app
