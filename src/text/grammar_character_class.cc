#include "text/grammar_character_class.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace quire::grammar_internal {
namespace {

struct CategoryRun {
  char32_t first, last;
  char name[2];  // such as "Lu"
};

// All code points, in some 3,300 runs of one category each.
const std::vector<CategoryRun>& category_runs() {
  static const std::vector<CategoryRun> runs = [] {
    std::vector<CategoryRun> made;
    for (char32_t c = 0; c <= kMaxCodePoint; ++c) {
      const char* name = utf8proc_category_string(static_cast<utf8proc_int32_t>(c));
      if (!made.empty() && made.back().name[0] == name[0] && made.back().name[1] == name[1]) {
        made.back().last = c;
      } else {
        made.push_back({c, c, {name[0], name[1]}});
      }
    }
    return made;
  }();
  return runs;
}

}  // namespace

std::optional<std::vector<CodePointRange>> class_of_escape(char letter) {
  static constexpr CodePointRange kDigits[] = {{'0', '9'}};
  static constexpr CodePointRange kWord[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  static constexpr CodePointRange kSpace[] = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                                              {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                              {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  auto copy = [](std::span<const CodePointRange> ranges) {
    return std::vector<CodePointRange>(ranges.begin(), ranges.end());
  };
  switch (letter) {
    case 'd':
      return copy(kDigits);
    case 'w':
      return copy(kWord);
    case 's':
      return copy(kSpace);
    case 'D':
      return complement_ranges(kDigits);
    case 'W':
      return complement_ranges(kWord);
    case 'S':
      return complement_ranges(kSpace);
    default:
      return std::nullopt;
  }
}

std::optional<std::vector<CodePointRange>> class_of_category(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> kLongNames[] = {
      {"Letter", "L"}, {"Uppercase_Letter", "Lu"}, {"Lowercase_Letter", "Ll"},
      {"Number", "N"}, {"Decimal_Number", "Nd"},   {"Punctuation", "P"},
      {"Symbol", "S"}, {"Separator", "Z"},         {"Mark", "M"},
      {"Other", "C"}};
  for (const auto& [long_name, short_name] : kLongNames) {
    if (name == long_name) name = short_name;
  }
  static constexpr std::string_view kCategories[] = {
      "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
      "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cn"};
  if (std::find(std::begin(kCategories), std::end(kCategories), name) == std::end(kCategories)) return std::nullopt;
  std::vector<CodePointRange> ranges;
  for (const CategoryRun& run : category_runs()) {
    if (std::string_view(run.name, 2).starts_with(name)) ranges.push_back({run.first, run.last});
  }
  return normalize_ranges(std::move(ranges));
}

}  // namespace quire::grammar_internal
