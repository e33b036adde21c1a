// Reading model configs: what published files of each family say, and hostile ones, which must be refused by name.
#include "models/config_parser.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quire {
namespace {

constexpr const char* kLlamaJson = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
  "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": true,
  "hidden_act": "silu", "bos_token_id": 128000, "eos_token_id": [128001, 128008], "torch_dtype": "bfloat16",
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"}})";

// kLlamaJson with some keys set to other JSON values; a value of "" removes the key.
std::string changed(std::initializer_list<std::pair<const char*, const char*>> changes, const char* base = kLlamaJson) {
  boost::json::object object = boost::json::parse(base).get_object();
  for (const auto& [key, value] : changes) {
    if (*value == '\0') {
      object.erase(key);
    } else {
      object[key] = boost::json::parse(value);
    }
  }
  return boost::json::serialize(object);
}

ModelConfig must_parse(const std::string& json, const std::string& generation = "") {
  auto parsed = parse_hf_config(json, generation);
  EXPECT_TRUE(parsed.is_ok()) << parsed.status().message();
  return parsed.is_ok() ? parsed.value().config : ModelConfig();
}

std::string error_of(const std::string& json) {
  auto parsed = parse_hf_config(json, "");
  return parsed.is_ok() ? "no error" : parsed.status().message();
}

TEST(HfConfig, Llama32) {
  const ModelConfig config = must_parse(kLlamaJson, R"({"eos_token_id": [128001, 128009], "pad_token_id": 128004})");
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.num_layers, 16);
  EXPECT_EQ(config.num_heads, 32);
  EXPECT_EQ(config.num_kv_heads, 8);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.max_context, 131072);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(config.rope.original_context, 8192);
  EXPECT_FLOAT_EQ(config.attention_scale, 0.125f);
  EXPECT_TRUE(config.has_tied_embeddings);
  EXPECT_FALSE(config.has_qkv_bias);
  EXPECT_EQ(config.dtype, DType::kBF16);
  EXPECT_EQ(config.bos_token_id, 128000);
  EXPECT_EQ(config.pad_token_id, 128004);
  // The union of both files, sorted.
  EXPECT_EQ(config.stop_token_ids, (std::vector<int32_t>{128001, 128008, 128009}));
  EXPECT_EQ(config.sliding_window, 0);
  EXPECT_EQ(config.window_of_layer(3), 0);
}

TEST(HfConfig, LlamaDefaults) {
  const ModelConfig config = must_parse(changed({{"head_dim", ""},
                                                 {"num_key_value_heads", ""},
                                                 {"rope_scaling", "null"},
                                                 {"tie_word_embeddings", ""},
                                                 {"rope_theta", ""},
                                                 {"eos_token_id", "2"}}));
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.num_kv_heads, 32);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kNone);
  EXPECT_FALSE(config.has_tied_embeddings);
  EXPECT_EQ(config.stop_token_ids, std::vector<int32_t>{2});
  EXPECT_TRUE(must_parse(changed({{"attention_bias", "true"}})).has_qkv_bias);
}

TEST(HfConfig, APadIdPastTheVocabularyIsNone) {
  EXPECT_EQ(must_parse(changed({{"pad_token_id", "128256"}})).pad_token_id, -1);
  EXPECT_EQ(must_parse(changed({{"pad_token_id", "128255"}})).pad_token_id, 128255);
}

TEST(HfConfig, MistralWindow) {
  const auto mistral = [](const char* window) {
    return must_parse(changed({{"architectures", R"(["MistralForCausalLM"])"},
                               {"model_type", R"("mistral")"},
                               {"rope_scaling", ""},
                               {"sliding_window", window}}));
  };
  EXPECT_EQ(mistral("4096").window_of_layer(0), 4096);
  EXPECT_EQ(mistral("null").window_of_layer(0), 0);    // null: no window
  EXPECT_EQ(mistral("").window_of_layer(0), 4096);     // no key: what transformers takes
  EXPECT_EQ(mistral("131072").window_of_layer(0), 0);  // as long as the context
}

TEST(HfConfig, QwenWindowOnlyWhereSwitchedOn) {
  const auto qwen = [](const char* use) {
    return must_parse(changed({{"architectures", R"(["Qwen2ForCausalLM"])"},
                               {"model_type", R"("qwen2")"},
                               {"rope_scaling", ""},
                               {"sliding_window", "1024"},
                               {"max_window_layers", "12"},
                               {"use_sliding_window", use}}));
  };
  EXPECT_TRUE(qwen("false").has_qkv_bias);
  EXPECT_EQ(qwen("false").window_of_layer(15), 0);
  EXPECT_EQ(qwen("").window_of_layer(15), 0);
  EXPECT_EQ(qwen("true").window_of_layer(11), 0);
  EXPECT_EQ(qwen("true").window_of_layer(12), 1024);
}

TEST(HfConfig, YarnReachesPastTheNamedContext) {
  const ModelConfig config = must_parse(
      changed({{"architectures", R"(["Qwen2ForCausalLM"])"},
               {"max_position_embeddings", "32768"},
               {"rope_scaling", R"({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})"}}));
  EXPECT_EQ(config.max_context, 131072);
  EXPECT_NEAR(config.rope.attention_factor, 0.1 * std::log(4.0) + 1.0, 1e-12);
}

constexpr const char* kGemmaJson = R"({
  "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106],
  "text_config": {
    "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-06, "sliding_window": 1024, "query_pre_attn_scalar": 168,
    "hidden_activation": "gelu_pytorch_tanh", "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}})";

TEST(HfConfig, Gemma3InsideAModelThatSeesImages) {
  const ModelConfig config = must_parse(kGemmaJson);
  EXPECT_EQ(config.architecture, "gemma3");
  EXPECT_TRUE(config.has_tied_embeddings);
  EXPECT_EQ(config.stop_token_ids, (std::vector<int32_t>{1, 106}));
  EXPECT_FLOAT_EQ(config.embedding_scale, std::sqrt(2560.0f));
  EXPECT_FLOAT_EQ(config.attention_scale, 1.0f / std::sqrt(168.0f));
  EXPECT_EQ(config.rope.theta, 1000000.0);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(config.sliding_rope.theta, 10000.0);
  EXPECT_EQ(config.sliding_rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(config.max_context, 131072);  // the factor is in it
  EXPECT_EQ(config.window_of_layer(4), 1024);
  EXPECT_EQ(config.window_of_layer(5), 0);
}

TEST(HfConfig, LayersWithARopeOfTheirOwnStayApartUnderAnyContext) {
  boost::json::object object = boost::json::parse(kGemmaJson).get_object();
  object["text_config"].get_object()["max_position_embeddings"] = 512;
  const ModelConfig config = must_parse(boost::json::serialize(object));
  EXPECT_EQ(config.window_of_layer(0), 1024);
  EXPECT_EQ(config.window_of_layer(5), 0);
  object["text_config"].get_object()["sliding_window"] = nullptr;
  EXPECT_NE(error_of(boost::json::serialize(object)).find("does not say how long"), std::string::npos);
}

TEST(HfConfig, UnknownArchitecturesAreNamedAndTheKnownListed) {
  const std::string message = error_of(changed({{"architectures", R"(["MambaForCausalLM"])"}}));
  EXPECT_NE(message.find("MambaForCausalLM"), std::string::npos) << message;
  EXPECT_NE(message.find("LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM"), std::string::npos) << message;
  EXPECT_NE(error_of(changed({{"architectures", ""}, {"model_type", R"("mamba")"}})).find("mamba"), std::string::npos);
}

TEST(HfConfig, UnknownArchitecturesAreNamedWithoutTheirControlBytes) {
  const std::string message = error_of(changed({{"architectures", R"(["\u001b[31mMamba\n"])"}}));
  EXPECT_NE(message.find("Mamba"), std::string::npos) << message;
  EXPECT_EQ(message.find_first_of("\x1b\n"), std::string::npos) << message;
}

TEST(HfConfig, ModelTypeAloneWillDo) {
  EXPECT_EQ(must_parse(changed({{"architectures", ""}})).architecture, "llama");
}

struct BadField {
  const char* key;
  const char* value;
  const char* message_part;

  friend void PrintTo(const BadField& field, std::ostream* out) { *out << field.key << " = " << field.value; }
};

class BadHfField : public ::testing::TestWithParam<BadField> {};

TEST_P(BadHfField, IsRefusedByName) {
  const BadField& field = GetParam();
  const std::string message = error_of(changed({{field.key, field.value}}));
  EXPECT_NE(message.find(field.message_part), std::string::npos)
      << field.key << " = " << field.value << ": " << message;
}

INSTANTIATE_TEST_SUITE_P(
    All, BadHfField,
    ::testing::Values(
        BadField{"num_attention_heads", "0", "num_attention_heads is 0, expected an integer between 1 and 4096"},
        BadField{"num_attention_heads", "-3", "num_attention_heads is -3"},
        BadField{"num_attention_heads", "33", "must divide the number of attention heads (33)"},
        BadField{"num_attention_heads", R"("32")", "num_attention_heads is \"32\""},
        BadField{"num_attention_heads", "", "num_attention_heads is missing"},
        BadField{"num_key_value_heads", "5", "number of KV heads (5) must divide"},
        BadField{"num_key_value_heads", "64", "must divide"},
        BadField{"num_key_value_heads", "0", "num_key_value_heads is 0"},
        BadField{"head_dim", "63", "head_dim must be even"}, BadField{"head_dim", "1", "head_dim is 1"},
        BadField{"head_dim", "1000000", "head_dim is 1000000"},
        BadField{"hidden_size", "9223372036854775807", "hidden_size is 9223372036854775807"},
        BadField{"hidden_size", "18446744073709551615", "hidden_size is 18446744073709551615"},
        BadField{"hidden_size", "1e300", "hidden_size is 1E300"}, BadField{"hidden_size", "2048.5", "hidden_size is"},
        BadField{"hidden_size", "[2048]", "hidden_size is [2048]"},
        BadField{"num_hidden_layers", "0", "num_hidden_layers is 0"},
        BadField{"num_hidden_layers", "100000000", "num_hidden_layers is 100000000"},
        BadField{"intermediate_size", "null", "intermediate_size is missing"},
        BadField{"vocab_size", "-1", "vocab_size is -1"},
        BadField{"vocab_size", "1000", "end-of-sequence id 128001 is outside of the vocabulary of 1000"},
        BadField{"bos_token_id", "128256", "beginning-of-sequence id 128256 is outside of the vocabulary"},
        BadField{"max_position_embeddings", "0", "max_position_embeddings is 0"},
        BadField{"rms_norm_eps", "-1", "rms_norm_eps is -1"}, BadField{"rms_norm_eps", "true", "rms_norm_eps is true"},
        BadField{"rope_theta", "0", "rope_theta is 0"},
        BadField{"hidden_act", R"("relu")", "hidden_act is \"relu\", expected \"silu\""},
        BadField{"tie_word_embeddings", "1", "tie_word_embeddings is 1, expected true or false"},
        BadField{"eos_token_id", "[1, \"x\"]", "eos_token_id is [1,\"x\"]"},
        BadField{"eos_token_id", "99999999999", "eos_token_id is 99999999999"},
        BadField{"architectures", "7", "architectures is 7"},
        BadField{"layer_types", R"(["full_attention"])", "one entry a layer, 16"},
        BadField{"rope_scaling", "3", "rope_scaling is 3, expected an object"},
        BadField{"rope_scaling", R"({"type": "dynamic", "factor": 2})",
                 "rope_type is \"dynamic\", which is not supported"},
        BadField{"rope_scaling", R"({"type": "linear"})", "rope_scaling.factor is missing"},
        BadField{"rope_scaling", R"({"type": "linear", "factor": 0})", "rope_scaling.factor is 0"},
        BadField{"rope_scaling", R"({"type": "llama3", "factor": 8})", "low_freq_factor is missing"},
        BadField{"rope_scaling", R"({"type": "longrope", "short_factor": [1], "long_factor": [1]})", "32 numbers"},
        BadField{"rope_scaling", R"({"type": "longrope", "short_factor": "x"})", "short_factor is \"x\""}));

TEST(HfConfig, DamagedFilesAreRefused) {
  EXPECT_NE(error_of("{\"hidden_size\": 12").find("not valid JSON"), std::string::npos);
  EXPECT_NE(error_of("[]").find("must hold a JSON object"), std::string::npos);
  EXPECT_NE(error_of("").find("not valid JSON"), std::string::npos);
  EXPECT_NE(error_of(std::string(100000, '[')).find("not valid JSON"), std::string::npos);
  auto parsed = parse_hf_config(kLlamaJson, "{");
  ASSERT_FALSE(parsed.is_ok());
  EXPECT_NE(parsed.status().message().find("generation_config.json"), std::string::npos);
}

// Any single key of a good file, outer or inner, replaced by any of these must give an answer, not a crash.
TEST(HfConfig, NoValueOfAnyKeyCrashes) {
  const char* values[] = {"0",    "-1", "1",   "2",     "7",  "1e308", "-0.0", "9223372036854775807",
                          "\"\"", "[]", "[0]", "[[1]]", "{}", "null",  "true", "4294967296"};
  int num_cases = 0;
  for (const char* base : {kLlamaJson, kGemmaJson}) {
    const boost::json::object object = boost::json::parse(base).get_object();
    for (const auto& [key, value] : object) {
      for (const char* replacement : values) {
        boost::json::object copy = object;
        copy[key] = boost::json::parse(replacement);
        (void)error_of(boost::json::serialize(copy));
        ++num_cases;
      }
      if (!value.is_object()) continue;
      for (const auto& [inner_key, inner_value] : value.get_object()) {
        for (const char* replacement : values) {
          boost::json::object copy = object;
          copy[key].get_object()[inner_key] = boost::json::parse(replacement);
          (void)error_of(boost::json::serialize(copy));
          ++num_cases;
        }
      }
    }
  }
  EXPECT_GT(num_cases, 500);
}

// ---- GGUF ----------------------------------------------------------------------------------------------------------

class FakeTensors final : public TensorSource {
 public:
  void add(std::string name, std::vector<int64_t> sizes, std::vector<float> values = {}) {
    values_.push_back(std::make_unique<std::vector<float>>(std::move(values)));
    SourceTensor tensor;
    tensor.name = std::move(name);
    tensor.format = FormatId::kF32;
    tensor.sizes = std::move(sizes);
    tensor.data = std::as_bytes(std::span(*values_.back()));
    tensors_.push_back(std::move(tensor));
  }
  std::span<const SourceTensor> tensors() const override { return tensors_; }
  const SourceTensor* find(std::string_view name) const override {
    for (const SourceTensor& tensor : tensors_) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
  std::shared_ptr<const void> owner() const override { return nullptr; }

 private:
  std::vector<SourceTensor> tensors_;
  std::vector<std::unique_ptr<std::vector<float>>> values_;
};

constexpr const char* kGgufJson = R"({
  "general.architecture": "llama", "general.name": "a llama", "llama.block_count": 4, "llama.embedding_length": 512,
  "llama.feed_forward_length": 1024, "llama.attention.head_count": 8, "llama.attention.head_count_kv": 2,
  "llama.context_length": 8192, "llama.attention.layer_norm_rms_epsilon": 1e-05, "llama.rope.freq_base": 500000.0,
  "llama.rope.dimension_count": 64, "tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 9,
  "tokenizer.ggml.bos_token_id": 5})";

FakeTensors llama_tensors() {
  FakeTensors tensors;
  tensors.add("token_embd.weight", {1000, 512});
  return tensors;
}

Result<ParsedConfig> parse_gguf(const std::string& json, const TensorSource& tensors) {
  return parse_gguf_config(boost::json::parse(json).get_object(), tensors);
}

TEST(GgufConfig, Llama) {
  const FakeTensors tensors = llama_tensors();
  auto parsed = parse_gguf(kGgufJson, tensors);
  ASSERT_TRUE(parsed.is_ok()) << parsed.status().message();
  const ModelConfig& config = parsed.value().config;
  EXPECT_EQ(config.name, "a llama");
  EXPECT_EQ(config.vocab_size, 1000);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_TRUE(config.has_tied_embeddings);
  EXPECT_EQ(config.stop_token_ids, (std::vector<int32_t>{7, 9}));
  EXPECT_EQ(config.bos_token_id, 5);
  EXPECT_EQ(config.pad_token_id, -1);
}

TEST(GgufConfig, TensorsDecideWhatKeysDoNotSay) {
  FakeTensors tensors = llama_tensors();
  tensors.add("output.weight", {1000, 512});
  tensors.add("blk.0.attn_q.bias", {512});
  tensors.add("rope_freqs.weight", {32}, std::vector<float>(32, 2.0f));
  auto parsed = parse_gguf(kGgufJson, tensors);
  ASSERT_TRUE(parsed.is_ok()) << parsed.status().message();
  EXPECT_FALSE(parsed.value().config.has_tied_embeddings);
  EXPECT_TRUE(parsed.value().config.has_qkv_bias);
  EXPECT_EQ(parsed.value().config.rope.divisors, std::vector<float>(32, 2.0f));
}

TEST(GgufConfig, ValuesThatAreListsAWholeModelLong) {
  const FakeTensors tensors = llama_tensors();
  auto equal = parse_gguf(changed({{"llama.attention.head_count_kv", "[2, 2, 2, 2]"}}, kGgufJson), tensors);
  ASSERT_TRUE(equal.is_ok()) << equal.status().message();
  EXPECT_EQ(equal.value().config.num_kv_heads, 2);
  auto different = parse_gguf(changed({{"llama.attention.head_count_kv", "[2, 2, 4, 2]"}}, kGgufJson), tensors);
  ASSERT_FALSE(different.is_ok());
  EXPECT_NE(different.status().message().find("the same number for all layers"), std::string::npos);
}

class BadGgufField : public ::testing::TestWithParam<BadField> {};

TEST_P(BadGgufField, IsRefusedByName) {
  const BadField& field = GetParam();
  const FakeTensors tensors = llama_tensors();
  auto parsed = parse_gguf(changed({{field.key, field.value}}, kGgufJson), tensors);
  ASSERT_FALSE(parsed.is_ok()) << field.key << " = " << field.value;
  EXPECT_NE(parsed.status().message().find(field.message_part), std::string::npos) << parsed.status().message();
}

INSTANTIATE_TEST_SUITE_P(
    All, BadGgufField,
    ::testing::Values(BadField{"general.architecture", "", "general.architecture is missing"},
                      BadField{"general.architecture", R"("falcon")",
                               "'falcon', which is not supported; supported are: llama, qwen2"},
                      BadField{"general.architecture", "3", "general.architecture is 3"},
                      BadField{"llama.expert_count", "8", "mixture of experts are not supported"},
                      BadField{"llama.block_count", "0", "llama.block_count is 0"},
                      BadField{"llama.attention.head_count", "0", "llama.attention.head_count is 0"},
                      BadField{"llama.attention.head_count", "[]", "is [], expected"},
                      BadField{"llama.attention.head_count", "7",
                               "head_count is 7, expected a divisor of embedding_length (512)"},
                      BadField{"llama.attention.head_count_kv", "3", "must divide"},
                      BadField{"llama.attention.key_length", "65", "head_dim must be even"},
                      BadField{"llama.attention.value_length", "32", "value_length is 32"},
                      BadField{"llama.embedding_length", "1099511627776", "llama.embedding_length is 1099511627776"},
                      BadField{"llama.context_length", "-1", "llama.context_length is -1"},
                      BadField{"llama.attention.layer_norm_rms_epsilon", "", "layer_norm_rms_epsilon is missing"},
                      BadField{"llama.rope.dimension_count", "128", "must be even and between 2 and head_dim (64)"},
                      BadField{"llama.rope.scaling.type", R"("spiral")", "rope.scaling.type is \"spiral\""},
                      BadField{"tokenizer.ggml.eos_token_id", "1000", "end-of-sequence id 1000 is outside"}));

TEST(GgufConfig, AFileWithoutWeightsIsRefused) {
  const FakeTensors none;
  auto parsed = parse_gguf(kGgufJson, none);
  ASSERT_FALSE(parsed.is_ok());
  EXPECT_NE(parsed.status().message().find("no model weights"), std::string::npos) << parsed.status().message();
}

}  // namespace
}  // namespace quire
