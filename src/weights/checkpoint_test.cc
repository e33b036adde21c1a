#include "weights/checkpoint.h"

#include <gtest/gtest.h>

#include "weights/testing/gguf_writer.h"
#include "weights/testing/test_folder.h"

namespace quire {
namespace {

using testing::Bytes;
using testing::TestFolder;

#define EXPECT_HAS(text, part) EXPECT_PRED2(has, std::string(text), std::string(part))
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string error_of(const std::string& path, const CheckpointOptions& options = {}) {
  const auto checkpoint = open_checkpoint(path, options);
  EXPECT_FALSE(checkpoint.is_ok());
  return checkpoint.is_ok() ? "" : checkpoint.status().message();
}

Bytes one_tensor() {
  return testing::make_safetensors({{"a", "F32", {1}, Bytes(4)}});
}

TEST(CheckpointTest, OpensTheCommittedModels) {
  const std::string models = QUIRE_SOURCE_DIR "/tests/goldens/models/";
  const auto gguf = open_checkpoint(models + "llama/model.gguf");
  ASSERT_TRUE(gguf.is_ok()) << gguf.status().message();
  EXPECT_EQ(gguf.value().kind, CheckpointKind::kGguf);
  EXPECT_NE(gguf.value().tensors().find("token_embd.weight"), nullptr);

  const auto sharded = open_checkpoint(models + "llama");
  ASSERT_TRUE(sharded.is_ok()) << sharded.status().message();
  EXPECT_EQ(sharded.value().kind, CheckpointKind::kHuggingFace);
  EXPECT_TRUE(sharded.value().config_json.has_value());
  EXPECT_TRUE(sharded.value().generation_config_json.has_value());
  EXPECT_TRUE(sharded.value().tokenizer_json.has_value());
  EXPECT_TRUE(sharded.value().tokenizer_config_json.has_value());
  EXPECT_FALSE(sharded.value().chat_template_jinja.has_value());
  const SourceTensor* embedding = sharded.value().tensors().find("model.embed_tokens.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->format, FormatId::kBF16);

  const auto single = open_checkpoint(models + "gemma3/");
  ASSERT_TRUE(single.is_ok()) << single.status().message();
  EXPECT_GT(single.value().tensors().tensors().size(), 10u);
}

TEST(CheckpointTest, ATokenizerAloneWillDoWhereTensorsAreNotNeeded) {
  TestFolder folder;
  folder.write_text("tokenizer.json", "{}");
  folder.write_text("chat_template.jinja", "{{ messages }}");
  const auto checkpoint = open_checkpoint(folder.path(), {.needs_tensors = false});
  ASSERT_TRUE(checkpoint.is_ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint.value().chat_template_jinja, "{{ messages }}");
  EXPECT_EQ(checkpoint.value().safetensors, nullptr);
  EXPECT_HAS(error_of(folder.path()), "without config.json");
}

TEST(CheckpointTest, WrongPathsSayWhatToDo) {
  TestFolder folder;
  EXPECT_HAS(error_of(folder.path() + "/none.gguf"), "there is no file");
  EXPECT_HAS(error_of(folder.path()), "without config.json");
  EXPECT_HAS(error_of(folder.path(), {.needs_tensors = false}), "not a Hugging Face model");
  EXPECT_HAS(error_of(folder.write("x.gguf", {})), "is empty");
  EXPECT_HAS(error_of(folder.write_text("y.gguf", "<!DOCTYPE html>\n<html>404</html>")), "web page");
  EXPECT_HAS(error_of(folder.write_text("z.gguf", "version https://git-lfs.github.com/spec/v1\n")), "git lfs pull");
  EXPECT_HAS(error_of(folder.path()), "give one of them as the model: " + folder.path() + "/x.gguf");
  EXPECT_HAS(error_of(folder.write("model.safetensors", one_tensor())),
             "give its folder as the model: " + folder.path());
}

TEST(CheckpointTest, FoldersWithoutUsableWeightsSayWhatToDo) {
  TestFolder folder;
  folder.write_text("config.json", "{}");
  EXPECT_HAS(error_of(folder.path()), "has no weights");
  folder.write_text("pytorch_model.bin", "PK");
  EXPECT_HAS(error_of(folder.path()), "PyTorch pickles only (pytorch_model.bin)");
  folder.write("model.safetensors", one_tensor());
  EXPECT_TRUE(open_checkpoint(folder.path()).is_ok());
  folder.write_text("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:00\n");
  EXPECT_HAS(error_of(folder.path()), "Git LFS pointer");
  folder.write("model.safetensors", one_tensor());
  folder.write_text("tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:00\n");
  EXPECT_HAS(error_of(folder.path()), "tokenizer.json is a Git LFS pointer");
}

TEST(CheckpointTest, OneShardWithoutItsIndexIsNoModel) {
  TestFolder folder;
  folder.write_text("config.json", "{}");
  folder.write("model-00001-of-00002.safetensors", one_tensor());
  EXPECT_HAS(error_of(folder.path()), "only model-00001-of-00002.safetensors");
}

}  // namespace
}  // namespace quire
