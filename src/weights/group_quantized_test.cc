// Matrices as GPTQ, AWQ and llm-compressor write them, made here from codes, zero points and scales: opened, they have
// the values scale * (code - zero), exactly where scales are f16.
#include "weights/group_quantized.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "quant/dequantize.h"
#include "tensor/dtype.h"
#include "weights/checkpoint.h"
#include "weights/safetensors.h"
#include "weights/testing/gguf_writer.h"
#include "weights/testing/test_folder.h"

namespace quire {
namespace {

using testing::Bytes;
using testing::make_safetensors;
using testing::Random;
using testing::SafetensorsTensor;

struct Case {
  GroupMethod method;
  int64_t group_size;  // -1: all inputs
  bool is_symmetric;
  FormatId format;
  int stored_zero_shift = 0;
};

struct Made {
  std::vector<SafetensorsTensor> tensors;
  std::vector<float> values;  // [n][k]
};

Bytes bytes_of_words(const std::vector<uint32_t>& words) {
  Bytes bytes(words.size() * 4);
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

// `groups`: of each input; empty where they are in order.
Made make_matrix(const std::string& name, const Case& c, int64_t n, int64_t k, Random& random,
                 const std::vector<uint32_t>& groups = {}) {
  const int64_t group_size = c.group_size == -1 ? k : c.group_size;
  const int64_t num_groups = k / group_size;
  std::vector<uint32_t> codes(static_cast<size_t>(n * k));
  std::vector<uint32_t> zeros(static_cast<size_t>(n * num_groups));
  std::vector<uint16_t> scales(static_cast<size_t>(n * num_groups));
  for (uint32_t& code : codes) code = static_cast<uint32_t>(random.below(16));
  for (uint32_t& zero : zeros) zero = c.is_symmetric ? 8 : static_cast<uint32_t>(random.below(16));
  for (uint16_t& scale : scales) scale = f32_to_f16(random.uniform(0.001f, 0.1f));
  const auto code = [&](int64_t o, int64_t i) { return codes[static_cast<size_t>(o * k + i)]; };
  const auto group = [&](int64_t o, int64_t g) { return static_cast<size_t>(o * num_groups + g); };
  Made made;
  for (int64_t o = 0; o < n; ++o) {
    for (int64_t i = 0; i < k; ++i) {
      const size_t at = group(o, groups.empty() ? i / group_size : groups[static_cast<size_t>(i)]);
      made.values.push_back(f16_to_f32(scales[at]) * (static_cast<float>(code(o, i)) - static_cast<float>(zeros[at])));
    }
  }
  if (c.method == GroupMethod::kCompressedTensors) {
    std::vector<uint32_t> packed(static_cast<size_t>(n * k / 8));
    for (int64_t o = 0; o < n; ++o) {
      for (int64_t i = 0; i < k; ++i) packed[static_cast<size_t>((o * k + i) / 8)] |= code(o, i) << (i % 8 * 4);
    }
    Bytes scale_bytes(scales.size() * 2);
    std::memcpy(scale_bytes.data(), scales.data(), scale_bytes.size());
    made.tensors.push_back({name + ".weight_packed", "I32", {n, k / 8}, bytes_of_words(packed)});
    made.tensors.push_back({name + ".weight_scale", "F16", {n, num_groups}, scale_bytes});
    made.tensors.push_back({name + ".weight_shape", "I64", {2}, Bytes(16)});
    return made;
  }
  constexpr int kPlaceOfOutput[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // AWQ: which nibble has output 0, 1, ...
  const bool is_awq = c.method == GroupMethod::kAwq;
  std::vector<uint32_t> packed(static_cast<size_t>(n * k / 8));
  std::vector<uint32_t> packed_zeros(static_cast<size_t>(num_groups * n / 8));
  std::vector<uint16_t> turned_scales(scales.size());
  for (int64_t o = 0; o < n; ++o) {
    for (int64_t i = 0; i < k; ++i) {
      if (is_awq) {
        packed[static_cast<size_t>((i * n + o) / 8)] |= code(o, i) << (4 * kPlaceOfOutput[o % 8]);
      } else {
        packed[static_cast<size_t>(i / 8 * n + o)] |= code(o, i) << (i % 8 * 4);
      }
    }
    for (int64_t g = 0; g < num_groups; ++g) {
      const uint32_t stored = (zeros[group(o, g)] - static_cast<uint32_t>(c.stored_zero_shift)) & 15u;
      packed_zeros[static_cast<size_t>((g * n + o) / 8)] |=
          stored << (4 * (is_awq ? kPlaceOfOutput[o % 8] : static_cast<int>(o % 8)));
      turned_scales[static_cast<size_t>(g * n + o)] = scales[group(o, g)];
    }
  }
  Bytes scale_bytes(scales.size() * 2);
  std::memcpy(scale_bytes.data(), turned_scales.data(), scale_bytes.size());
  const std::vector<int64_t> sizes = is_awq ? std::vector<int64_t>{k, n / 8} : std::vector<int64_t>{k / 8, n};
  made.tensors.push_back({name + ".qweight", "I32", sizes, bytes_of_words(packed)});
  made.tensors.push_back({name + ".qzeros", "I32", {num_groups, n / 8}, bytes_of_words(packed_zeros)});
  made.tensors.push_back({name + ".scales", "F16", {num_groups, n}, scale_bytes});
  return made;
}

Result<std::unique_ptr<TensorSource>> open_tensors(const std::vector<SafetensorsTensor>& tensors, const Case& c) {
  const auto bytes = std::make_shared<Bytes>(make_safetensors(tensors));
  auto files = SafetensorsFiles::parse("test", *bytes, bytes);
  EXPECT_TRUE(files.is_ok());
  return open_group_quantized(std::move(files).value(), {.method = c.method,
                                                         .group_size = c.group_size,
                                                         .is_symmetric = c.is_symmetric,
                                                         .stored_zero_shift = c.stored_zero_shift});
}

constexpr Case kCases[] = {
    {GroupMethod::kAwq, 128, false, FormatId::kInt4G128},
    {GroupMethod::kAwq, 64, false, FormatId::kQ5_0},
    {GroupMethod::kGptq, 128, false, FormatId::kInt4G128, 1},
    {GroupMethod::kGptq, 128, true, FormatId::kInt4G128, 0},
    {GroupMethod::kGptq, 32, true, FormatId::kQ4_0, 1},
    {GroupMethod::kGptq, -1, false, FormatId::kInt4G128, 1},
    {GroupMethod::kCompressedTensors, 128, true, FormatId::kInt4G128},
    {GroupMethod::kCompressedTensors, 64, true, FormatId::kQ4_0},
    {GroupMethod::kCompressedTensors, -1, true, FormatId::kInt4G128},
};

TEST(GroupQuantized, HasTheValuesOfCodesZerosAndScales) {
  Random random(1);
  for (const Case& c : kCases) {
    for (const int64_t n : {8, 72}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(c.method) << " " << c.group_size << " " << n);
      Made made = make_matrix("layer.q_proj", c, n, 384, random);
      made.tensors.push_back({"norm.weight", "F16", {3}, Bytes(6)});
      made.tensors.push_back({"scales", "F32", {1}, Bytes(4)});
      auto opened = open_tensors(made.tensors, c);
      ASSERT_TRUE(opened.is_ok()) << opened.status().message();
      const TensorSource& source = *opened.value();
      ASSERT_EQ(source.tensors().size(), 3u);  // and what is none of theirs
      EXPECT_NE(source.find("norm.weight"), nullptr);
      const SourceTensor* matrix = source.find("layer.q_proj.weight");
      ASSERT_NE(matrix, nullptr);
      EXPECT_EQ(matrix->format, c.format);
      EXPECT_EQ(matrix->sizes, (std::vector<int64_t>{n, 384}));
      std::vector<float> values(made.values.size());
      ASSERT_EQ(static_cast<int64_t>(matrix->data.size()), n * quant_format(c.format).row_bytes(384));
      EXPECT_EQ(matrix->data.front(), std::byte{0});  // nothing is turned before it is wanted
      for (int times = 0; times < 2; ++times) {       // nor kept once it has been copied
        ASSERT_TRUE(source.prepare(*matrix).is_ok());
        ASSERT_TRUE(source.prepare(*matrix).is_ok());
        dequantize_row(c.format, matrix->data.data(), values.data(), static_cast<int64_t>(values.size()));
        EXPECT_EQ(values, made.values);
        source.done_with(matrix->data);
        EXPECT_EQ(matrix->data.front(), std::byte{0});
      }
    }
  }
}

TEST(GroupQuantized, SaysWhatIsWrong) {
  Random random(2);
  const Case c = kCases[2];
  const std::vector<SafetensorsTensor> good = make_matrix("m", c, 16, 256, random).tensors;
  const auto error_of = [&](const std::vector<SafetensorsTensor>& tensors) {
    const auto opened = open_tensors(tensors, c);
    Status status = opened.status();
    for (size_t i = 0; status.is_ok() && i < opened.value()->tensors().size(); ++i) {
      status = opened.value()->prepare(opened.value()->tensors()[i]);
    }
    EXPECT_FALSE(status.is_ok());
    return status.message();
  };
  std::vector<SafetensorsTensor> bad = good;
  bad.pop_back();
  EXPECT_NE(error_of(bad).find("'m.scales'"), std::string::npos);
  bad = good;
  bad[1].sizes = {1, 4};  // as many bytes
  EXPECT_NE(error_of(bad).find("'m.qzeros' is [1, 4], should be [2, 2]"), std::string::npos);
  bad = good;
  bad[0].dtype = "F32";
  EXPECT_NE(error_of(bad).find("packed codes"), std::string::npos);
  bad = good;
  bad[2].data[1] = std::byte{0x7c};  // infinity, or a number of that size
  bad[2].data[0] = std::byte{0};
  EXPECT_NE(error_of(bad).find("'m.scales'"), std::string::npos);
  bad = good;
  bad.push_back({"m.weight", "F16", {1}, Bytes(2)});
  EXPECT_NE(error_of(bad).find("both"), std::string::npos);
  // Inputs in order are fine, others are not.
  std::vector<uint32_t> groups(256, 0);
  for (size_t i = 128; i < 256; ++i) groups[i] = 1;
  std::vector<SafetensorsTensor> ordered = good;
  ordered.push_back({"m.g_idx", "I32", {256}, bytes_of_words(groups)});
  EXPECT_TRUE(open_tensors(ordered, c).is_ok());
  groups[200] = 2;
  ordered.back().data = bytes_of_words(groups);
  EXPECT_NE(error_of(ordered).find("a group that is not there"), std::string::npos);
  // 3e-8 is less than half of the least f16.
  bad = good;
  bad[2].dtype = "F32";
  bad[2].data.assign(bad[2].data.size() * 2, std::byte{0});
  const float small = 2e-8f;
  std::memcpy(bad[2].data.data(), &small, sizeof(small));
  EXPECT_NE(error_of(bad).find("f16 does not hold"), std::string::npos);
}

// desc_act: inputs of a group are anywhere; all matrices become f16, so that they can be joined.
TEST(GroupQuantized, InputsInAnotherOrderBecomeF16) {
  Random random(6);
  for (const Case& c : {kCases[1], kCases[2], kCases[4], kCases[7]}) {
    const int64_t k = 384;
    std::vector<uint32_t> groups;
    for (int64_t i = 0; i < k; ++i) groups.push_back(static_cast<uint32_t>(i / c.group_size));
    for (size_t i = groups.size(); i > 1; --i)
      std::swap(groups[i - 1], groups[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
    const bool is_packed = c.method == GroupMethod::kCompressedTensors;
    Made made = make_matrix("m", c, 40, k, random, groups);
    made.tensors.push_back({is_packed ? "m.weight_g_idx" : "m.g_idx", "I32", {k}, bytes_of_words(groups)});
    Made other = make_matrix("other", c, 8, k, random);
    made.tensors.insert(made.tensors.end(), other.tensors.begin(), other.tensors.end());
    const auto opened = open_tensors(made.tensors, c);
    ASSERT_TRUE(opened.is_ok()) << opened.status().message();
    for (const auto& [name, values] : {std::pair("m.weight", &made.values), std::pair("other.weight", &other.values)}) {
      const SourceTensor* matrix = opened.value()->find(name);
      ASSERT_NE(matrix, nullptr);
      EXPECT_EQ(matrix->format, FormatId::kF16);
      ASSERT_EQ(matrix->data.size(), values->size() * 2);
      ASSERT_TRUE(opened.value()->prepare(*matrix).is_ok());
      for (size_t i = 0; i < values->size(); ++i) {
        uint16_t bits;
        std::memcpy(&bits, matrix->data.data() + 2 * i, sizeof(bits));
        ASSERT_EQ(bits, f32_to_f16((*values)[i])) << name << " " << i;
      }
    }
  }
}

TEST(GroupQuantized, AnOrderThatIsNotListedIsRefused) {
  Random random(4);
  const std::vector<SafetensorsTensor> tensors = make_matrix("m", kCases[2], 16, 256, random).tensors;
  const auto bytes = std::make_shared<Bytes>(make_safetensors(tensors));
  for (const bool has_own_order : {false, true}) {
    auto files = SafetensorsFiles::parse("test", *bytes, bytes);
    ASSERT_TRUE(files.is_ok());
    GroupQuantization quantization{.method = GroupMethod::kGptq, .stored_zero_shift = 1};
    quantization.has_own_order = has_own_order;
    const auto opened = open_group_quantized(std::move(files).value(), quantization);
    EXPECT_EQ(opened.is_ok(), !has_own_order);
    const std::string message = opened.is_ok() ? "'m.g_idx'" : opened.status().message();
    EXPECT_NE(message.find("'m.g_idx'"), std::string::npos) << message;
  }
}

TEST(GroupQuantized, PackedZeroPointsAreRefused) {
  Random random(5);
  const Case c = kCases[6];
  std::vector<SafetensorsTensor> tensors = make_matrix("m", c, 16, 256, random).tensors;
  tensors.push_back({"m.weight_zero_point", "I32", {2, 2}, Bytes(16)});
  const auto opened = open_tensors(tensors, c);
  ASSERT_FALSE(opened.is_ok());
  EXPECT_NE(opened.status().message().find("'m.weight_zero_point'"), std::string::npos);
}

TEST(GroupQuantized, ReadsTheConfig) {
  const auto read = [](const std::string& fields) {
    return read_group_quantization("{\"quantization_config\":{" + fields + "}}");
  };
  EXPECT_FALSE(read_group_quantization("{}").value().has_value());
  EXPECT_FALSE(read_group_quantization("[").value().has_value());
  const auto unknown = read(R"("quant_method":"bitsandbytes")");
  ASSERT_FALSE(unknown.is_ok());
  EXPECT_NE(unknown.status().message().find("'bitsandbytes'"), std::string::npos) << unknown.status().message();
  const auto other_form = read(R"("quant_method":"compressed-tensors","format":"int-quantized")");
  ASSERT_FALSE(other_form.is_ok());
  EXPECT_NE(other_form.status().message().find("'int-quantized'"), std::string::npos);
  const GroupQuantization gptq =
      read(R"("quant_method":"gptq","bits":4,"group_size":64,"sym":true,"desc_act":false)").value().value();
  EXPECT_EQ(gptq.method, GroupMethod::kGptq);
  EXPECT_EQ(gptq.group_size, 64);
  EXPECT_TRUE(gptq.is_symmetric);
  EXPECT_FALSE(gptq.has_own_order);
  EXPECT_TRUE(read(R"("quant_method":"gptq","bits":4,"desc_act":true)").value()->has_own_order);
  EXPECT_EQ(gptq.stored_zero_shift, 1);
  EXPECT_EQ(read(R"("quant_method":"gptq","bits":4,"checkpoint_format":"gptq_v2")").value()->stored_zero_shift, 0);
  const GroupQuantization awq =
      read(R"("quant_method":"awq","bits":4,"group_size":128,"version":"GEMM","zero_point":true)").value().value();
  EXPECT_EQ(awq.method, GroupMethod::kAwq);
  EXPECT_FALSE(awq.is_symmetric);
  const GroupQuantization packed = read(R"("quant_method":"compressed-tensors","format":"pack-quantized",)"
                                        R"("config_groups":{"group_0":{"weights":{"num_bits":4,"type":"int",)"
                                        R"("symmetric":true,"strategy":"group","group_size":128}}})")
                                       .value()
                                       .value();
  EXPECT_EQ(packed.method, GroupMethod::kCompressedTensors);
  EXPECT_EQ(packed.group_size, 128);
  for (const char* fields :
       {R"("quant_method":"gptq","bits":8)", R"("quant_method":"gptq","bits":4,"group_size":20)",
        R"("quant_method":"gptq","bits":4,"desc_act":"true")", R"("quant_method":"gptq","bits":"4")",
        R"("quant_method":"gptq","bits":4,"checkpoint_format":5)", R"("quant_method":"awq","group_size":"128")",
        R"("quant_method":"gptq","bits":4,"checkpoint_format":"marlin")", R"("quant_method":"awq","version":"gemv")",
        R"("quant_method":"compressed-tensors","format":"pack-quantized")"}) {
    EXPECT_FALSE(read(fields).is_ok()) << fields;
  }
}

TEST(GroupQuantized, AFolderIsOpenedAsOne) {
  const testing::TestFolder folder;
  Random random(3);
  const Made made = make_matrix("m", kCases[0], 16, 256, random);
  folder.write("model.safetensors", make_safetensors(made.tensors));
  folder.write_text("config.json", R"({"quantization_config":{"quant_method":"awq","bits":4,"group_size":128}})");
  const auto checkpoint = open_checkpoint(folder.path());
  ASSERT_TRUE(checkpoint.is_ok()) << checkpoint.status().message();
  ASSERT_NE(checkpoint.value().tensors().find("m.weight"), nullptr);
  EXPECT_EQ(checkpoint.value().tensors().find("m.weight")->format, FormatId::kInt4G128);
  folder.write_text("config.json", R"({"quantization_config":{"quant_method":"awq","bits":3}})");
  const auto refused = open_checkpoint(folder.path());
  ASSERT_FALSE(refused.is_ok());
  EXPECT_NE(refused.status().message().find("3 bits"), std::string::npos);

  EXPECT_TRUE(checkpoint.value().tensors().check_unchanged().is_ok());
  std::ofstream(folder.path() + "/model.safetensors", std::ios::app) << "more";
  EXPECT_FALSE(checkpoint.value().tensors().check_unchanged().is_ok());
}

}  // namespace
}  // namespace quire
