// One row a family: the names under which it is known and its splits, in order.
#include "text/pre_tokenizer_families.h"

#include <string>

namespace quire {
namespace {

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kTekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                                R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
                                R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kKimiK2 =
    R"([\p{Han}]+|)"
    R"([^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";

constexpr const char* kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kBloom = R"( ?[^(\s|.,!?…。，、।۔،)]+)";

// Letters that have case, as DeepSeek LLM's first vocabulary lists them.
constexpr const char* kDeepseekCasedLetters =
    R"(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF})"
    R"(\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1})"
    R"(\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5})"
    R"(\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A})"
    R"(\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B})"
    R"(\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC})"
    R"(\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107})"
    R"(\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134})"
    R"(\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})"
    R"(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787})"
    R"(\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A})"
    R"(\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2})"
    R"(\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+)";
constexpr const char* kDeepseekIdeographs = R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
constexpr const char* kDeepseekPunctuation =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";

constexpr const char* kDeepseekV3Words =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// A row's splits: patterns, and two shorthands.
constexpr const char* kDigitsOneByOne = "<digits>";
constexpr const char* kPunctuationRuns = "<punctuation>";

struct FamilyRow {
  std::vector<std::string_view> names;
  std::vector<const char*> splits;
  bool ignores_merges = false;
  bool adds_bos_by_default = false;
  bool normalizes_nfc = false;
};

std::vector<FamilyRow> family_rows() {
  return {
      {.names = {"gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum",
                 "modern-bert", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "roberta-bpe"},
       .splits = {kGpt2}},
      {.names = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"},
       .splits = {kDigitsOneByOne, kGpt2}},
      {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       .splits = {kLlama3},
       .ignores_merges = true,
       .adds_bos_by_default = true},
      {.names = {"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, .splits = {kLlama3}},
      {.names = {"qwen2", "deepseek-r1-qwen", "kormo", "megrez"}, .splits = {kQwen2}, .normalizes_nfc = true},
      {.names = {"stablelm2", "hunyuan", "grok-2"}, .splits = {kQwen2}},
      // Its GGUF test vectors are not normalized, unlike those of qwen2.
      {.names = {"qwen35"}, .splits = {kQwen35}},
      {.names = {"gpt-4o", "llama4", "o200k"}, .splits = {kO200k}},
      {.names = {"minimax-m2"}, .splits = {kO200k}},
      {.names = {"tekken"}, .splits = {kTekken}, .ignores_merges = true, .adds_bos_by_default = true},
      {.names = {"kimi-k2"}, .splits = {kKimiK2}},
      {.names = {"bailingmoe", "bailingmoe2", "llada-moe"}, .splits = {kBailing}},
      {.names = {"seed-coder"}, .splits = {kSeedCoder}},
      {.names = {"deepseek-llm"},
       .splits = {"[\r\n]", kDeepseekCasedLetters, kDeepseekPunctuation, R"(\s+$)", kDeepseekIdeographs,
                  kDigitsOneByOne}},
      {.names = {"deepseek-coder"},
       .splits = {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepseekIdeographs, kDigitsOneByOne}},
      {.names = {"deepseek-v3", "hunyuan-dense", "joyai-llm"},
       .splits = {R"(\p{N}{1,3})", R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)", kDeepseekV3Words}},
      {.names = {"falcon"}, .splits = {kPunctuationRuns, kGpt2, "[0-9][0-9][0-9]"}},
      {.names = {"bloom", "poro-chat", "gpt3-finnish"}, .splits = {kBloom}},
      {.names = {"viking"}, .splits = {kBloom, R"(\p{N})"}},
      // Files of before the key existed: GPT-NeoX, MPT, Aquila, all with GPT-2's pattern.
      {.names = {"", "default"}, .splits = {kGpt2}},
  };
}

}  // namespace

std::string_view gpt2_split_pattern() {
  return kGpt2;
}

Result<PreTokenizerFamily> find_pre_tokenizer_family(std::string_view name) {
  for (const FamilyRow& row : family_rows()) {
    bool has_name = false;
    for (const std::string_view known : row.names) has_name = has_name || known == name;
    if (!has_name) continue;
    PreTokenizerFamily family;
    family.ignores_merges = row.ignores_merges;
    family.adds_bos_by_default = row.adds_bos_by_default;
    family.normalizes_nfc = row.normalizes_nfc;
    for (const char* split : row.splits) {
      PreTokenizerStep step{.kind = PreTokenizerStep::Kind::kSplitRegex, .regex = nullptr, .content = {}};
      if (split == kDigitsOneByOne) {
        step.kind = PreTokenizerStep::Kind::kSplitDigits;
      } else if (split == kPunctuationRuns) {
        step.kind = PreTokenizerStep::Kind::kSplitPunctuation;
        step.behavior = SplitBehavior::kContiguous;
      } else {
        ASSIGN_OR_RETURN(step.regex, SplitRegex::compile(split));
      }
      family.steps.push_back(std::move(step));
    }
    return family;
  }
  return unimplemented("the file's pre-tokenizer \"" + std::string(name) +
                       "\" (tokenizer.ggml.pre) is not known; text would be cut wrongly, so the model is not loaded");
}

}  // namespace quire
