// What the files of embedding models say about pooling, and files that say nonsense.
#include "models/pooling_config.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr const char* kModules = R"([
  {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
  {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
  {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}])";
constexpr const char* kWithoutNormalize = R"([
  {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
  {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling"}])";

TEST(PoolingConfig, WithoutFilesIsTheLastTokenNormalized) {
  const PoolingConfig config = parse_sentence_transformers("", "");
  EXPECT_EQ(config.pooling, Pooling::kLast);
  EXPECT_TRUE(config.is_normalized);
  EXPECT_TRUE(config.source.empty());
  EXPECT_TRUE(config.unsupported.empty());
}

TEST(PoolingConfig, SentenceTransformers) {
  const PoolingConfig mean = parse_sentence_transformers(
      kModules, R"({"word_embedding_dimension": 384, "pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true,
                    "pooling_mode_max_tokens": false, "pooling_mode_mean_sqrt_len_tokens": false})");
  EXPECT_EQ(mean.pooling, Pooling::kMean);
  EXPECT_TRUE(mean.is_normalized);
  EXPECT_EQ(mean.source, "1_Pooling/config.json");
  EXPECT_TRUE(mean.unsupported.empty()) << mean.unsupported;

  const PoolingConfig last = parse_sentence_transformers(
      kWithoutNormalize,
      R"({"pooling_mode_cls_token": false, "pooling_mode_lasttoken": true, "include_prompt": true})");
  EXPECT_EQ(last.pooling, Pooling::kLast);
  EXPECT_FALSE(last.is_normalized);

  EXPECT_EQ(parse_sentence_transformers(kModules, R"({"pooling_mode": "cls"})").pooling, Pooling::kCls);
  EXPECT_EQ(parse_sentence_transformers("", R"({"pooling_mode_cls_token": true})").pooling, Pooling::kCls);
}

TEST(PoolingConfig, SaysWhatIsNotSupported) {
  const auto fault = [](const char* modules, const char* pooling) {
    return parse_sentence_transformers(modules, pooling).unsupported;
  };
  EXPECT_NE(fault(kModules, R"({"pooling_mode_max_tokens": true})").find("max"), std::string::npos);
  EXPECT_NE(fault(kModules, R"({"pooling_mode_max_tokens": false})").find("names no pooling"), std::string::npos);
  EXPECT_NE(fault(kModules, R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true})").find("several"),
            std::string::npos);
  EXPECT_NE(fault(R"([{"type": "sentence_transformers.models.Dense"}])", "").find("Dense"), std::string::npos);
  for (const char* text : {"[", "{}", "3", "[3]", "[{}]", R"([{"type": 3}])", "\xff"})
    EXPECT_FALSE(fault(text, "").empty()) << text;
  for (const char* text : {"[", "[]", "3", R"({"pooling_mode": 3})", R"({"pooling_mode_cls_token": 1})"}) {
    EXPECT_FALSE(fault("", text).empty()) << text;
  }
}

TEST(PoolingConfig, Gguf) {
  const auto of_type = [](boost::json::value type) {
    return parse_gguf_pooling({{"general.architecture", "qwen3"}, {"qwen3.pooling_type", std::move(type)}});
  };
  EXPECT_EQ(of_type(1).pooling, Pooling::kMean);
  EXPECT_EQ(of_type(2).pooling, Pooling::kCls);
  EXPECT_EQ(of_type(3u).pooling, Pooling::kLast);
  EXPECT_EQ(of_type(1).source, "qwen3.pooling_type");
  EXPECT_EQ(of_type(0).pooling, Pooling::kLast);
  EXPECT_TRUE(of_type(0).unsupported.empty());
  for (const boost::json::value& type : {boost::json::value(4), boost::json::value(-1), boost::json::value(1e300),
                                         boost::json::value("mean"), boost::json::value(nullptr)}) {
    EXPECT_FALSE(of_type(type).unsupported.empty());
  }
  EXPECT_TRUE(parse_gguf_pooling({}).unsupported.empty());
}

}  // namespace
}  // namespace quire
