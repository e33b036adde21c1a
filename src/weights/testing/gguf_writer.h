// Writes GGUF and safetensors bytes for tests and fuzzers: right ones easily, wrong ones by patching. Everything comes
// from seeds, so a failure can be repeated. Not part of the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quant/format.h"
#include "weights/gguf.h"

namespace quire::testing {

using Bytes = std::vector<std::byte>;

// Collects metadata and tensors; finish() gives the file. Usage errors are not checked: a test may want them.
class GgufWriter {
 public:
  uint32_t version = 3;
  uint32_t alignment = 32;  // used for the layout, and written as general.alignment if it is not 32

  void add_string(std::string_view key, std::string_view value);
  void add_u32(std::string_view key, uint32_t value);
  void add_i32(std::string_view key, int32_t value);
  void add_u16(std::string_view key, uint16_t value);
  void add_f32(std::string_view key, float value);
  void add_bool(std::string_view key, bool value);
  void add_strings(std::string_view key, const std::vector<std::string>& values);
  void add_i32s(std::string_view key, const std::vector<int32_t>& values);
  void add_f32s(std::string_view key, const std::vector<float>& values);
  // Any value: `encoded` follows the type number.
  void add_raw(std::string_view key, uint32_t type, const Bytes& encoded);

  // `sizes` are outermost first, as SourceTensor has them.
  void add_tensor(std::string_view name, FormatId format, std::vector<int64_t> sizes, Bytes data);
  // A description alone, as it will stand in the file (sizes innermost first), without data.
  void add_raw_description(std::string_view name, std::vector<uint64_t> file_sizes, uint32_t type, uint64_t offset);

  Bytes finish() const;

 private:
  Bytes entries_;
  uint64_t num_entries_ = 0;
  Bytes descriptions_;
  uint64_t num_tensors_ = 0;
  Bytes data_;
};

// Appends the little-endian bytes of a number, or a GGUF string (u64 length, bytes).
void append_bytes(Bytes& out, const void* data, size_t size);
template <typename T>
void append_number(Bytes& out, T value) {
  append_bytes(out, &value, sizeof(T));
}
void append_string(Bytes& out, std::string_view text);

// One safetensors file: tensors in order, data one after another. `header_override`, if not empty, stands in place of
// the header that belongs there.
struct SafetensorsTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> sizes;
  Bytes data;
};
Bytes make_safetensors(const std::vector<SafetensorsTensor>& tensors, std::string_view header_override = {});

// Small counter-based random numbers: the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  int64_t below(int64_t limit) { return static_cast<int64_t>(next() % static_cast<uint64_t>(limit)); }
  float uniform(float low, float high);

 private:
  uint64_t state_;
};

// Bytes of num_values weights in a format: any codes, finite f16 scales, values of about the given size. Minimums (of
// q4_1 and its kin) are such that values fall around zero.
Bytes random_weights(FormatId format, int64_t num_values, float size, Random& random);
Bytes f32_bytes(const std::vector<float>& values);

void write_file(const std::string& path, const Bytes& bytes);

}  // namespace quire::testing
