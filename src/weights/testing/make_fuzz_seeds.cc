// Writes the files from which the fuzzers of this folder start: make_fuzz_seeds FOLDER fills FOLDER/gguf,
// FOLDER/safetensors and FOLDER/group_quantized. Run by hand.
#include <cstdio>
#include <filesystem>

#include "weights/testing/gguf_writer.h"

namespace {

using quire::FormatId;
using quire::GgufType;
using namespace quire::testing;

Bytes array(GgufType type, uint64_t count, const Bytes& elements) {
  Bytes bytes;
  append_number(bytes, static_cast<uint32_t>(type));
  append_number(bytes, count);
  append_bytes(bytes, elements.data(), elements.size());
  return bytes;
}

Bytes gguf_with_all_types() {
  GgufWriter writer;
  for (uint32_t type = 0; type <= 12; ++type) {
    if (type == 8 || type == 9) continue;
    const size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    writer.add_raw("scalar." + std::to_string(type), type, Bytes(sizes[type], std::byte{1}));
    const Bytes two(2 * sizes[type], std::byte{1});
    writer.add_raw("array." + std::to_string(type), 9, array(static_cast<GgufType>(type), 2, two));
  }
  writer.add_strings("strings", {"a", "", "longer"});
  writer.add_raw("nested", 9, array(GgufType::kArray, 1, array(GgufType::kU8, 2, Bytes(2))));
  return writer.finish();
}

Bytes gguf_with_all_formats() {
  Random random(1);
  GgufWriter writer;
  for (const quire::QuantFormat& format : quire::kQuantFormats) {
    writer.add_tensor(format.name, format.id, {2, format.values_per_block},
                      random_weights(format.id, int64_t{2} * format.values_per_block, 1.0f, random));
  }
  return writer.finish();
}

Bytes split_part(uint16_t index) {
  GgufWriter writer;
  writer.alignment = 64;
  writer.add_u16("split.no", index);
  writer.add_u16("split.count", 2);
  writer.add_i32("split.tensors.count", 2);
  writer.add_tensor("t" + std::to_string(index), FormatId::kF32, {2}, f32_bytes({1, 2}));
  return writer.finish();
}

// config.json, a zero byte, and a file with one matrix of 32 inputs and 8 outputs.
Bytes group_quantized(const std::string& config, const std::vector<SafetensorsTensor>& tensors) {
  const std::string text = "{\"quantization_config\":{" + config + "}}";
  Bytes bytes;
  append_bytes(bytes, text.data(), text.size() + 1);
  const Bytes file = make_safetensors(tensors);
  append_bytes(bytes, file.data(), file.size());
  return bytes;
}

void write_group_quantized(const std::string& folder) {
  std::filesystem::create_directories(folder);
  const SafetensorsTensor zeros{"m.qzeros", "I32", {1, 1}, Bytes(4)};
  const SafetensorsTensor scales{"m.scales", "F16", {1, 8}, Bytes(16)};
  write_file(folder + "/awq", group_quantized(R"("quant_method":"awq","bits":4,"group_size":32)",
                                              {{"m.qweight", "I32", {32, 1}, Bytes(128)}, zeros, scales}));
  write_file(folder + "/gptq", group_quantized(R"("quant_method":"gptq","bits":4,"group_size":32)",
                                               {{"m.qweight", "I32", {4, 8}, Bytes(128)}, zeros, scales}));
  write_file(folder + "/packed",
             group_quantized(R"("quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":)"
                             R"({"weights":{"num_bits":4,"type":"int","strategy":"group","group_size":32}}})",
                             {{"m.weight_packed", "I32", {8, 4}, Bytes(128)},
                              {"m.weight_scale", "F16", {8, 1}, Bytes(16)},
                              {"m.weight_shape", "I64", {2}, Bytes(16)}}));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_fuzz_seeds FOLDER\n");
    return 2;
  }
  const std::string folder = argv[1];
  std::filesystem::create_directories(folder + "/gguf");
  std::filesystem::create_directories(folder + "/safetensors");
  write_file(folder + "/gguf/types", gguf_with_all_types());
  write_file(folder + "/gguf/formats", gguf_with_all_formats());
  Bytes both = split_part(0);
  write_file(folder + "/gguf/part", both);
  const Bytes second = split_part(1);
  append_bytes(both, second.data(), second.size());
  write_file(folder + "/gguf/split", both);
  write_file(
      folder + "/safetensors/two",
      make_safetensors({{"a", "F32", {2, 1}, Bytes(8)}, {"b", "BF16", {3}, Bytes(6)}, {"c", "F4", {2}, Bytes(1)}}));
  write_file(folder + "/safetensors/metadata", make_safetensors({}, R"({"__metadata__":{"format":"pt"}})"));
  write_group_quantized(folder + "/group_quantized");
  return 0;
}
