#include "weights/testing/gguf_writer.h"

#include <cmath>
#include <cstring>
#include <fstream>

#include "base/check.h"
#include "tensor/dtype.h"

namespace quire::testing {

namespace {

void pad_to(Bytes& out, size_t alignment) {
  while (alignment != 0 && out.size() % alignment != 0) out.push_back(std::byte{0});
}

// One scale field of a block: an f16 at `offset`, about `factor` times the size of the weights.
struct ScaleField {
  int offset;
  float factor;
};

// Codes are uniform, so a scale of size / (largest code) gives values up to about `size`; minimums centre them.
std::vector<ScaleField> scale_fields(FormatId format) {
  switch (format) {
    case FormatId::kF32:
    case FormatId::kF16:
    case FormatId::kBF16:
      return {};
    case FormatId::kQ4_0:
      return {{0, 1.0f / 8}};
    case FormatId::kQ4_1:
      return {{0, 2.0f / 15}, {2, -1.0f}};
    case FormatId::kQ5_0:
      return {{0, 1.0f / 16}};
    case FormatId::kQ5_1:
      return {{0, 2.0f / 31}, {2, -1.0f}};
    case FormatId::kQ8_0:
      return {{0, 1.0f / 128}};
    case FormatId::kQ2_K:
      return {{80, 2.0f / (15 * 3)}, {82, 1.0f / 15}};
    case FormatId::kQ3_K:
      return {{108, 1.0f / (32 * 4)}};
    case FormatId::kQ4_K:
      return {{0, 2.0f / (63 * 15)}, {2, 1.0f / 63}};
    case FormatId::kQ5_K:
      return {{0, 2.0f / (63 * 31)}, {2, 1.0f / 63}};
    case FormatId::kQ6_K:
      return {{208, 1.0f / (128 * 32)}};
    case FormatId::kIQ4_NL:
      return {{0, 1.0f / 127}};
    case FormatId::kIQ4_XS:
      return {{0, 1.0f / (32 * 127)}};
    case FormatId::kInt4G128:
      return {{0, 1.0f / 16}};
  }
  return {};
}

void store_u16(std::byte* out, uint16_t value) {
  std::memcpy(out, &value, sizeof(value));
}

}  // namespace

void append_bytes(Bytes& out, const void* data, size_t size) {
  const auto* bytes = static_cast<const std::byte*>(data);
  out.insert(out.end(), bytes, bytes + size);
}

void append_string(Bytes& out, std::string_view text) {
  append_number<uint64_t>(out, text.size());
  append_bytes(out, text.data(), text.size());
}

void GgufWriter::add_raw(std::string_view key, uint32_t type, const Bytes& encoded) {
  append_string(entries_, key);
  append_number(entries_, type);
  append_bytes(entries_, encoded.data(), encoded.size());
  ++num_entries_;
}

void GgufWriter::add_string(std::string_view key, std::string_view value) {
  Bytes encoded;
  append_string(encoded, value);
  add_raw(key, static_cast<uint32_t>(GgufType::kString), encoded);
}

namespace {

template <typename T>
Bytes encode(T value) {
  Bytes encoded;
  append_number(encoded, value);
  return encoded;
}

Bytes encode_array_header(GgufType element_type, size_t count) {
  Bytes encoded;
  append_number(encoded, static_cast<uint32_t>(element_type));
  append_number<uint64_t>(encoded, count);
  return encoded;
}

}  // namespace

void GgufWriter::add_u32(std::string_view key, uint32_t value) {
  add_raw(key, static_cast<uint32_t>(GgufType::kU32), encode(value));
}

void GgufWriter::add_i32(std::string_view key, int32_t value) {
  add_raw(key, static_cast<uint32_t>(GgufType::kI32), encode(value));
}

void GgufWriter::add_u16(std::string_view key, uint16_t value) {
  add_raw(key, static_cast<uint32_t>(GgufType::kU16), encode(value));
}

void GgufWriter::add_f32(std::string_view key, float value) {
  add_raw(key, static_cast<uint32_t>(GgufType::kF32), encode(value));
}

void GgufWriter::add_bool(std::string_view key, bool value) {
  add_raw(key, static_cast<uint32_t>(GgufType::kBool), encode(static_cast<uint8_t>(value ? 1 : 0)));
}

void GgufWriter::add_strings(std::string_view key, const std::vector<std::string>& values) {
  Bytes encoded = encode_array_header(GgufType::kString, values.size());
  for (const std::string& value : values) append_string(encoded, value);
  add_raw(key, static_cast<uint32_t>(GgufType::kArray), encoded);
}

void GgufWriter::add_i32s(std::string_view key, const std::vector<int32_t>& values) {
  Bytes encoded = encode_array_header(GgufType::kI32, values.size());
  append_bytes(encoded, values.data(), values.size() * sizeof(int32_t));
  add_raw(key, static_cast<uint32_t>(GgufType::kArray), encoded);
}

void GgufWriter::add_f32s(std::string_view key, const std::vector<float>& values) {
  Bytes encoded = encode_array_header(GgufType::kF32, values.size());
  append_bytes(encoded, values.data(), values.size() * sizeof(float));
  add_raw(key, static_cast<uint32_t>(GgufType::kArray), encoded);
}

void GgufWriter::add_tensor(std::string_view name, FormatId format, std::vector<int64_t> sizes, Bytes data) {
  pad_to(data_, alignment);
  add_raw_description(name, std::vector<uint64_t>(sizes.rbegin(), sizes.rend()),
                      static_cast<uint32_t>(quant_format(format).gguf_type), data_.size());
  append_bytes(data_, data.data(), data.size());
}

void GgufWriter::add_raw_description(std::string_view name, std::vector<uint64_t> file_sizes, uint32_t type,
                                     uint64_t offset) {
  append_string(descriptions_, name);
  append_number(descriptions_, static_cast<uint32_t>(file_sizes.size()));
  for (const uint64_t size : file_sizes) append_number(descriptions_, size);
  append_number(descriptions_, type);
  append_number(descriptions_, offset);
  ++num_tensors_;
}

Bytes GgufWriter::finish() const {
  GgufWriter copy = *this;
  if (alignment != 32) copy.add_u32("general.alignment", alignment);
  Bytes out;
  append_bytes(out, "GGUF", 4);
  append_number(out, version);
  append_number(out, copy.num_tensors_);
  append_number(out, copy.num_entries_);
  append_bytes(out, copy.entries_.data(), copy.entries_.size());
  append_bytes(out, descriptions_.data(), descriptions_.size());
  if (num_tensors_ > 0) pad_to(out, alignment);
  append_bytes(out, data_.data(), data_.size());
  return out;
}

Bytes make_safetensors(const std::vector<SafetensorsTensor>& tensors, std::string_view header_override) {
  std::string header = "{";
  Bytes data;
  for (const SafetensorsTensor& tensor : tensors) {
    if (header.size() > 1) header += ',';
    const size_t begin = data.size();
    append_bytes(data, tensor.data.data(), tensor.data.size());
    header += "\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[";
    for (size_t i = 0; i < tensor.sizes.size(); ++i) header += (i > 0 ? "," : "") + std::to_string(tensor.sizes[i]);
    header += "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
  }
  header += "}";
  if (!header_override.empty()) header = header_override;
  while (header.size() % 8 != 0) header += ' ';
  Bytes out;
  append_string(out, header);
  append_bytes(out, data.data(), data.size());
  return out;
}

// splitmix64.
uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15u;
  uint64_t mixed = state_;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
  return mixed ^ (mixed >> 31);
}

float Random::uniform(float low, float high) {
  return low + (high - low) * (static_cast<float>(next() >> 40) * 0x1p-24f);
}

Bytes random_weights(FormatId id, int64_t num_values, float size, Random& random) {
  const QuantFormat& format = quant_format(id);
  CHECK(num_values % format.values_per_block == 0);
  Bytes out(static_cast<size_t>(format.row_bytes(num_values)));
  if (format.is_float) {
    for (int64_t i = 0; i < num_values; ++i) {
      std::byte* target = out.data() + i * format.bytes_per_block;
      const float value = random.uniform(-size, size);
      if (id == FormatId::kF32) std::memcpy(target, &value, sizeof(value));
      if (id == FormatId::kF16) store_u16(target, f32_to_f16(value));
      if (id == FormatId::kBF16) store_u16(target, f32_to_bf16(value));
    }
    return out;
  }
  for (std::byte& byte : out) byte = static_cast<std::byte>(random.next() & 255);
  const std::vector<ScaleField> fields = scale_fields(id);
  for (size_t block = 0; block < out.size(); block += static_cast<size_t>(format.bytes_per_block)) {
    // One factor for all fields of a block, so that a minimum stays in the middle of its codes.
    const float block_size = size * random.uniform(0.5f, 1.0f);
    for (const ScaleField& field : fields) {
      store_u16(out.data() + block + field.offset, f32_to_f16(field.factor * block_size));
    }
  }
  return out;
}

Bytes f32_bytes(const std::vector<float>& values) {
  Bytes out;
  append_bytes(out, values.data(), values.size() * sizeof(float));
  return out;
}

void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  CHECK(file.good());
}

}  // namespace quire::testing
