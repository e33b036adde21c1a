#include "weights/messages.h"

#include <algorithm>

namespace quire {

namespace {

std::string escaped(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string result;
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte >= 0x7f || character == '\\') {
      result += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      result += character;
    }
  }
  return result;
}

}  // namespace

std::string quoted(std::string_view text, size_t max_length) {
  if (text.size() <= max_length) return "'" + escaped(text) + "'";
  const size_t head = max_length * 2 / 3;
  const size_t tail = max_length - head;
  return "'" + escaped(text.substr(0, head)) + "..." + escaped(text.substr(text.size() - tail)) + "' (" +
         std::to_string(text.size()) + " bytes)";
}

std::string describe_foreign_file(std::span<const std::byte> bytes) {
  const std::string_view start(reinterpret_cast<const char*>(bytes.data()), std::min<size_t>(bytes.size(), 512));
  const auto starts_with_any = [&](std::initializer_list<std::string_view> prefixes) {
    return std::any_of(prefixes.begin(), prefixes.end(),
                       [&](std::string_view prefix) { return start.starts_with(prefix); });
  };
  if (start.starts_with("version https://git-lfs")) {
    return "a Git LFS pointer, not the file itself: run `git lfs pull` in its folder, or download it again";
  }
  if (starts_with_any({"<!DOCTYPE", "<!doctype", "<html", "<HTML", "<?xml"})) {
    return "a web page, probably an error message that was saved in place of the file: download it again";
  }
  if (start.starts_with("GGUF")) return "a GGUF file";
  if (starts_with_any({"lmgg", "fmgg", "tjgg", "algg"})) {
    return "a model in the old GGML format from before GGUF: get a GGUF file of it";
  }
  if (start.starts_with("PK\x03\x04")) return "a zip archive or a PyTorch checkpoint: get GGUF or safetensors instead";
  if (start.starts_with("\x1f\x8b")) return "compressed with gzip: unpack it first";
  if (start.starts_with("\x28\xb5\x2f\xfd")) return "compressed with zstd: unpack it first";
  if (start.size() > 8 && start[8] == '{' && start.substr(5, 3) == std::string_view("\0\0\0", 3)) {
    return "a safetensors file";
  }
  if (starts_with_any({"{", "["})) return "a JSON text";
  const bool is_all_zero =
      !start.empty() && std::all_of(start.begin(), start.end(), [](char character) { return character == '\0'; });
  if (is_all_zero) return "filled with zeros at its start: the download did not finish";
  return "";
}

std::string join_some(const std::vector<std::string>& items, std::string_view separator, size_t max_items) {
  std::string result;
  for (size_t i = 0; i < std::min(items.size(), max_items); ++i) {
    if (i > 0) result += separator;
    result += items[i];
  }
  if (items.size() > max_items) result += " and " + std::to_string(items.size() - max_items) + " more";
  return result;
}

}  // namespace quire
