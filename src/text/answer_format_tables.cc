// The families, as data: a row for each way of writing tool calls and one for each way of thinking. Rows are tried from
// the top when a template is looked at, the more telling ones first. To add a family, add a row, and a file of recorded
// answers in tests/goldens/answers.
#include "text/answer_format.h"

namespace quire {
namespace {

using E = AnswerElement;
using Kind = AnswerElement::Kind;

constexpr E text(std::string_view t) {
  return E{.kind = Kind::kText, .text = t};
}
constexpr E optional(std::string_view t) {
  return E{.kind = Kind::kText, .text = t, .is_optional = true};
}
constexpr E only_read(std::string_view t) {
  return E{.kind = Kind::kText, .text = t, .is_optional = true, .is_not_written = true};
}
constexpr E space(std::string_view written = "") {
  return E{.kind = Kind::kSpace, .text = written};
}
constexpr E of_kind(Kind kind) {
  return E{.kind = kind};
}
constexpr E call_object(std::string_view arguments_key, std::string_view name_key = "name") {
  return E{.kind = Kind::kCallObject, .text = arguments_key, .name_key = name_key};
}
constexpr E kToolName = of_kind(Kind::kName);
constexpr E kJsonArguments = of_kind(Kind::kArguments);
constexpr E kTaggedParameters = of_kind(Kind::kParameters);

// [ {…}, {…} ], shared by the families that write a JSON array behind a marker of their own.
constexpr E kComma[] = {text(","), space(" ")};
constexpr E kCloseBracket[] = {space(), text("]")};
constexpr E kOneObject[] = {call_object("arguments")};

// --- Hermes: <tool_call>\n{"name": …, "arguments": …}\n</tool_call> ---
constexpr std::string_view kHermesAliases[] = {"qwen", "qwen2", "qwen2_5", "qwen25", "qwen3", "granite4"};
constexpr std::string_view kHermesEvidence[] = {"<tool_call>"};
constexpr E kHermesCall[] = {text("<tool_call>"), space("\n"), call_object("arguments"), space("\n"),
                             text("</tool_call>")};

// --- Qwen3-Coder: <tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call> ---
constexpr std::string_view kQwenXmlAliases[] = {"qwen3_xml", "step3p5", "nemotron3"};
constexpr std::string_view kQwenXmlEvidence[] = {"<function=", "<parameter=", "<tool_call>"};
constexpr E kQwenXmlCall[] = {
    optional("<tool_call>"), space("\n"),         text("<function="), kToolName,           text(">"), space("\n"),
    kTaggedParameters,       text("</function>"), space("\n"),        text("</tool_call>")};
constexpr ParameterSyntax kQwenXmlParameters = {.key_open = "<parameter=",
                                                .key_close = ">",
                                                .value_open = "",
                                                .value_close = "</parameter>",
                                                .space_around_value = "\n",
                                                .space_between = "\n"};

constexpr std::string_view kSeedEvidence[] = {"<seed:tool_call>"};
constexpr E kSeedCall[] = {text("<seed:tool_call>"),
                           space("\n"),
                           text("<function="),
                           kToolName,
                           text(">"),
                           space("\n"),
                           kTaggedParameters,
                           text("</function>"),
                           space("\n"),
                           text("</seed:tool_call>")};
constexpr ParameterSyntax kSeedParameters = {.key_open = "<parameter=",
                                             .key_close = ">",
                                             .value_open = "",
                                             .value_close = "</parameter>",
                                             .space_around_value = "",
                                             .space_between = "\n"};

// --- GLM: <tool_call>name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n</tool_call> ---
constexpr std::string_view kGlmAliases[] = {"glm47", "glm4_moe"};
constexpr std::string_view kGlmEvidence[] = {"<arg_key>", "<tool_call>"};
constexpr E kGlmCall[] = {text("<tool_call>"), space(),           kToolName,
                          space("\n"),         kTaggedParameters, text("</tool_call>")};
constexpr ParameterSyntax kGlmParameters = {.key_open = "<arg_key>",
                                            .key_close = "</arg_key>",
                                            .value_open = "<arg_value>",
                                            .value_close = "</arg_value>",
                                            .space_around_value = "",
                                            .space_between = "\n"};

// --- MiniMax M2: <minimax:tool_call>\n<invoke name="name">\n<parameter name="key">value</parameter>\n</invoke>\n… ---
constexpr std::string_view kMinimaxEvidence[] = {"<minimax:tool_call>"};
constexpr E kMinimaxOpening[] = {text("<minimax:tool_call>"), space("\n")};
constexpr E kMinimaxCall[] = {text("<invoke name=\""), kToolName,        text("\">"), space("\n"),
                              kTaggedParameters,       text("</invoke>")};
constexpr E kNewLine[] = {space("\n")};
constexpr E kMinimaxClosing[] = {space("\n"), text("</minimax:tool_call>")};
constexpr ParameterSyntax kMinimaxParameters = {.key_open = "<parameter name=\"",
                                                .key_close = "\">",
                                                .value_open = "",
                                                .value_close = "</parameter>",
                                                .space_around_value = "",
                                                .space_between = "\n"};

// --- DeepSeek V3.2: the same with tags of its own, and a word with each parameter on whether it is text or JSON ---
constexpr std::string_view kDsmlAliases[] = {"deepseek_v4"};
constexpr std::string_view kDsmlEvidence[] = {"DSML"};
constexpr E kDsmlOpening[] = {text("<｜DSML｜function_calls>"), space("\n")};
constexpr E kDsmlCall[] = {text("<｜DSML｜invoke name=\""), kToolName, text("\">"), space("\n"), kTaggedParameters,
                           text("</｜DSML｜invoke>")};
constexpr E kDsmlClosing[] = {space("\n"), text("</｜DSML｜function_calls>")};
constexpr ParameterSyntax kDsmlParameters = {.key_open = "<｜DSML｜parameter name=\"",
                                             .key_close = "\">",
                                             .value_open = "",
                                             .value_close = "</｜DSML｜parameter>",
                                             .space_around_value = "",
                                             .space_between = "\n",
                                             .key_close_text = "\" string=\"true\">",
                                             .key_close_json = "\" string=\"false\">"};

// --- DeepSeek R1 and V3: the name behind "function", the arguments in a Markdown block of JSON ---
constexpr std::string_view kDeepSeekV3Aliases[] = {"deepseek_r1"};
constexpr std::string_view kDeepSeekV3Evidence[] = {"<｜tool▁sep｜>", "```json"};
constexpr E kDeepSeekOpening[] = {text("<｜tool▁calls▁begin｜>"), space()};
constexpr E kDeepSeekV3Call[] = {text("<｜tool▁call▁begin｜>"),
                                 text("function"),
                                 text("<｜tool▁sep｜>"),
                                 kToolName,
                                 space("\n"),
                                 optional("```json"),
                                 space("\n"),
                                 kJsonArguments,
                                 space("\n"),
                                 optional("```"),
                                 space(),
                                 text("<｜tool▁call▁end｜>")};
constexpr E kDeepSeekClosing[] = {space(), text("<｜tool▁calls▁end｜>")};

// --- DeepSeek V3.1: begin, name, sep, arguments, end ---
constexpr std::string_view kDeepSeekV31Evidence[] = {"<｜tool▁sep｜>"};
constexpr E kDeepSeekV31Call[] = {text("<｜tool▁call▁begin｜>"), space(), kToolName,      space(),
                                  text("<｜tool▁sep｜>"),        space(), kJsonArguments, space(),
                                  text("<｜tool▁call▁end｜>")};

// --- Kimi K2: the id of the call, functions.name:index, stands for the name ---
constexpr std::string_view kKimiEvidence[] = {"<|tool_call_argument_begin|>"};
constexpr E kKimiOpening[] = {text("<|tool_calls_section_begin|>"), space()};
constexpr E kKimiCall[] = {text("<|tool_call_begin|>"),
                           space(),
                           optional("functions."),
                           kToolName,
                           text(":"),
                           of_kind(Kind::kNumber),
                           space(),
                           text("<|tool_call_argument_begin|>"),
                           space(),
                           kJsonArguments,
                           space(),
                           text("<|tool_call_end|>")};
constexpr E kKimiClosing[] = {space(), text("<|tool_calls_section_end|>")};

// --- Mistral: [TOOL_CALLS]name[CALL_ID]id[ARGS]{…}, without the id, and the older [TOOL_CALLS][{…}] ---
constexpr std::string_view kMistralCallIdEvidence[] = {"[TOOL_CALLS]", "[CALL_ID]"};
constexpr E kMistralCallIdCall[] = {
    text("[TOOL_CALLS]"), space(), kToolName,     optional("[CALL_ID]"), E{.kind = Kind::kCallId, .is_optional = true},
    optional("[ARGS]"),   space(), kJsonArguments};
constexpr std::string_view kMistralArgsEvidence[] = {"[TOOL_CALLS]", "[ARGS]"};
constexpr E kMistralArgsCall[] = {text("[TOOL_CALLS]"),
                                  space(),
                                  kToolName,
                                  only_read("[CALL_ID]"),
                                  E{.kind = Kind::kCallId, .is_optional = true, .is_not_written = true},
                                  optional("[ARGS]"),
                                  space(),
                                  kJsonArguments};
constexpr std::string_view kMistralArrayAliases[] = {"mistral_json"};
constexpr std::string_view kMistralArrayEvidence[] = {"[TOOL_CALLS]"};
constexpr E kMistralArrayOpening[] = {text("[TOOL_CALLS]"), space(), text("["), space()};

// --- Arrays of objects behind other markers ---
constexpr std::string_view kGraniteEvidence[] = {"<|tool_call|>"};
constexpr E kGraniteOpening[] = {text("<|tool_call|>"), space(), text("["), space()};
constexpr std::string_view kNemotronAliases[] = {"nemotron_v2"};
constexpr std::string_view kNemotronEvidence[] = {"<TOOLCALL>"};
constexpr E kNemotronOpening[] = {text("<TOOLCALL>"), space(), text("["), space()};
constexpr E kNemotronClosing[] = {space(), text("]"), space(), text("</TOOLCALL>")};
constexpr std::string_view kJambaAliases[] = {"apriel"};
constexpr std::string_view kJambaEvidence[] = {"<tool_calls>[", "</tool_calls>"};
constexpr E kJambaOpening[] = {text("<tool_calls>"), space(), text("["), space()};
constexpr E kJambaClosing[] = {space(), text("]"), space(), text("</tool_calls>")};
constexpr std::string_view kFirefunctionEvidence[] = {"functools["};
constexpr E kFirefunctionOpening[] = {text("functools["), space()};
constexpr std::string_view kCohereAliases[] = {"command_r7b", "cohere2"};
constexpr std::string_view kCohereEvidence[] = {"<|START_ACTION|>"};
constexpr E kCohereOpening[] = {text("<|START_ACTION|>"), space(), text("["), space("\n")};
constexpr E kCohereCall[] = {call_object("parameters", "tool_name")};
constexpr E kCohereClosing[] = {space("\n"), text("]"), space(), text("<|END_ACTION|>")};

// --- Llama 3: {"name": …, "parameters": …}, perhaps behind <|python_tag|>, several apart by ';' ---
constexpr std::string_view kLlamaAliases[] = {"llama3", "llama", "llama4_json"};
constexpr std::string_view kLlamaEvidence[] = {"<|start_header_id|>", "\"parameters\": "};
constexpr E kLlamaCall[] = {only_read("<|python_tag|>"), space(), call_object("parameters")};
constexpr E kLlamaSeparator[] = {text(";"), space(" ")};
constexpr std::string_view kFunctionTagAliases[] = {"functionary_v3_llama_3_1"};
constexpr std::string_view kFunctionTagEvidence[] = {"<function="};
constexpr E kFunctionTagCall[] = {text("<function="), kToolName, text(">"),          space(),
                                  kJsonArguments,     space(),   text("</function>")};

// --- Python calls: [name(key=value, …), …] (Llama 4, and LFM 2 between markers) ---
constexpr std::string_view kPythonicAliases[] = {"llama4_pythonic"};
constexpr std::string_view kPythonicEvidence[] = {"<|header_start|>", "tool_calls"};
constexpr E kPythonicOpening[] = {text("["), space()};
constexpr E kPythonicCall[] = {of_kind(Kind::kPythonCall)};
constexpr std::string_view kLfm2Evidence[] = {"<|tool_call_start|>"};
constexpr std::string_view kLfm2OtherEvidence[] = {"<|tool_list_start|>"};
constexpr E kLfm2Opening[] = {text("<|tool_call_start|>"), space(), text("["), space()};
constexpr E kLfm2Closing[] = {space(), text("]"), space(), text("<|tool_call_end|>")};

constexpr std::string_view kHarmonyAliases[] = {"gptoss", "gpt_oss", "harmony", "openai_gptoss"};
constexpr std::string_view kHarmonyEvidence[] = {"<|start|>assistant", "<|channel|>", "<|message|>"};

constexpr std::string_view kGenericAliases[] = {"generic"};

constexpr ToolSyntax kToolSyntaxes[] = {
    {.name = "openai", .aliases = kHarmonyAliases, .evidence = kHarmonyEvidence, .is_harmony = true},
    {.name = "deepseek_v32",
     .aliases = kDsmlAliases,
     .evidence = kDsmlEvidence,
     .opening = kDsmlOpening,
     .call = kDsmlCall,
     .separator = kNewLine,
     .closing = kDsmlClosing,
     .parameters = kDsmlParameters},
    {.name = "deepseek_v3",
     .aliases = kDeepSeekV3Aliases,
     .evidence = kDeepSeekV3Evidence,
     .opening = kDeepSeekOpening,
     .call = kDeepSeekV3Call,
     .separator = kNewLine,
     .closing = kDeepSeekClosing},
    {.name = "deepseek_v31",
     .evidence = kDeepSeekV31Evidence,
     .opening = kDeepSeekOpening,
     .call = kDeepSeekV31Call,
     .closing = kDeepSeekClosing},
    {.name = "kimi_k2",
     .evidence = kKimiEvidence,
     .opening = kKimiOpening,
     .call = kKimiCall,
     .closing = kKimiClosing,
     .call_id = ToolSyntax::CallId::kFunctionIndex},
    {.name = "minimax_m2",
     .evidence = kMinimaxEvidence,
     .opening = kMinimaxOpening,
     .call = kMinimaxCall,
     .separator = kNewLine,
     .closing = kMinimaxClosing,
     .parameters = kMinimaxParameters},
    {.name = "seed_oss", .evidence = kSeedEvidence, .call = kSeedCall, .parameters = kSeedParameters},
    {.name = "glm45", .aliases = kGlmAliases, .evidence = kGlmEvidence, .call = kGlmCall, .parameters = kGlmParameters},
    {.name = "qwen3_coder",
     .aliases = kQwenXmlAliases,
     .evidence = kQwenXmlEvidence,
     .call = kQwenXmlCall,
     .parameters = kQwenXmlParameters},
    {.name = "mistral",
     .evidence = kMistralCallIdEvidence,
     .call = kMistralCallIdCall,
     .call_id = ToolSyntax::CallId::kNineLetters},
    {.name = "mistral",
     .evidence = kMistralArgsEvidence,
     .call = kMistralArgsCall,
     .call_id = ToolSyntax::CallId::kNineLetters},
    {.name = "mistral",
     .aliases = kMistralArrayAliases,
     .evidence = kMistralArrayEvidence,
     .opening = kMistralArrayOpening,
     .call = kOneObject,
     .separator = kComma,
     .closing = kCloseBracket,
     .call_id = ToolSyntax::CallId::kNineLetters},
    {.name = "granite",
     .evidence = kGraniteEvidence,
     .opening = kGraniteOpening,
     .call = kOneObject,
     .separator = kComma,
     .closing = kCloseBracket},
    {.name = "nemotron",
     .aliases = kNemotronAliases,
     .evidence = kNemotronEvidence,
     .opening = kNemotronOpening,
     .call = kOneObject,
     .separator = kComma,
     .closing = kNemotronClosing},
    {.name = "jamba",
     .aliases = kJambaAliases,
     .evidence = kJambaEvidence,
     .opening = kJambaOpening,
     .call = kOneObject,
     .separator = kComma,
     .closing = kJambaClosing},
    {.name = "firefunction",
     .evidence = kFirefunctionEvidence,
     .opening = kFirefunctionOpening,
     .call = kOneObject,
     .separator = kComma,
     .closing = kCloseBracket},
    {.name = "cohere",
     .aliases = kCohereAliases,
     .evidence = kCohereEvidence,
     .opening = kCohereOpening,
     .call = kCohereCall,
     .separator = kComma,
     .closing = kCohereClosing},
    {.name = "lfm2",
     .evidence = kLfm2Evidence,
     .opening = kLfm2Opening,
     .call = kPythonicCall,
     .separator = kComma,
     .closing = kLfm2Closing},
    {.name = "lfm2",
     .evidence = kLfm2OtherEvidence,
     .opening = kLfm2Opening,
     .call = kPythonicCall,
     .separator = kComma,
     .closing = kLfm2Closing},
    {.name = "hermes", .aliases = kHermesAliases, .evidence = kHermesEvidence, .call = kHermesCall},
    {.name = "function_tag",
     .aliases = kFunctionTagAliases,
     .evidence = kFunctionTagEvidence,
     .call = kFunctionTagCall},
    {.name = "llama3_json",
     .aliases = kLlamaAliases,
     .evidence = kLlamaEvidence,
     .call = kLlamaCall,
     .separator = kLlamaSeparator},
    {.name = "pythonic",
     .aliases = kPythonicAliases,
     .evidence = kPythonicEvidence,
     .opening = kPythonicOpening,
     .call = kPythonicCall,
     .separator = kComma,
     .closing = kCloseBracket},
    // Without evidence: what is left. One object, or several lines of them.
    {.name = "json", .aliases = kGenericAliases, .call = kOneObject},
};

// --- Thinking ---
constexpr std::string_view kThinkAliases[] = {"deepseek_v3", "deepseek_v31", "deepseek_v32", "glm45",  "granite",
                                              "kimi_k2",     "minimax_m2",   "nemotron_v3",  "hermes", "think"};
constexpr std::string_view kThinkEvidence[] = {"<think>"};
constexpr std::string_view kMistralThinkEvidence[] = {"[THINK]"};
constexpr std::string_view kSeedThinkEvidence[] = {"<seed:think>"};
constexpr std::string_view kCohereThinkEvidence[] = {"<|START_THINKING|>"};
constexpr std::string_view kApertusEvidence[] = {"<|inner_prefix|>"};
constexpr std::string_view kGemmaThinkEvidence[] = {"<|channel>thought"};

constexpr ReasoningSyntax kReasoningSyntaxes[] = {
    {.name = "openai_gptoss", .aliases = kHarmonyAliases, .evidence = kHarmonyEvidence, .is_harmony = true},
    {.name = "mistral", .evidence = kMistralThinkEvidence, .open = "[THINK]", .close = "[/THINK]"},
    {.name = "seed_oss", .evidence = kSeedThinkEvidence, .open = "<seed:think>", .close = "</seed:think>"},
    {.name = "cohere",
     .aliases = kCohereAliases,
     .evidence = kCohereThinkEvidence,
     .open = "<|START_THINKING|>",
     .close = "<|END_THINKING|>"},
    {.name = "apertus", .evidence = kApertusEvidence, .open = "<|inner_prefix|>", .close = "<|inner_suffix|>"},
    {.name = "gemma4", .evidence = kGemmaThinkEvidence, .open = "<|channel>thought", .close = "<channel|>"},
    {.name = "qwen3", .aliases = kThinkAliases, .evidence = kThinkEvidence, .open = "<think>", .close = "</think>"},
    {.name = "deepseek_r1", .open = "<think>", .close = "</think>", .is_always_first = true},
};

}  // namespace

std::span<const ToolSyntax> tool_syntaxes() {
  return kToolSyntaxes;
}

std::span<const ReasoningSyntax> reasoning_syntaxes() {
  return kReasoningSyntaxes;
}

}  // namespace quire
