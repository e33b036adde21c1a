// Binary search over ranges; case mapping with the special one-to-many rows and Python's rule for the final sigma.
#include "text/jinja_unicode.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>

namespace quire::jinja {
namespace {

struct Range {
  uint32_t first, last;
};
struct CaseRun {
  uint32_t first, last, stride;
  int32_t delta;
};
struct SpecialCase {
  uint32_t code_point;
  std::array<uint32_t, 3> mapped;  // 0 ends it
};

#include "text/jinja_unicode_tables.inc"

bool contains(std::span<const Range> ranges, uint32_t code_point) {
  const auto it = std::upper_bound(ranges.begin(), ranges.end(), code_point,
                                   [](uint32_t value, const Range& range) { return value < range.first; });
  return it != ranges.begin() && code_point <= std::prev(it)->last;
}

struct CaseTable {
  std::span<const CaseRun> runs;
  std::span<const SpecialCase> special;
};
constexpr CaseTable kLowerTable = {kLowerRuns, kLowerSpecial};
constexpr CaseTable kUpperTable = {kUpperRuns, kUpperSpecial};
constexpr CaseTable kTitleTable = {kTitleRuns, kTitleSpecial};
constexpr CaseTable kFoldTable = {kFoldRuns, kFoldSpecial};

void append_mapped(std::string& out, const CaseTable& table, uint32_t code_point) {
  const auto special = std::lower_bound(table.special.begin(), table.special.end(), code_point,
                                        [](const SpecialCase& row, uint32_t value) { return row.code_point < value; });
  if (special != table.special.end() && special->code_point == code_point) {
    for (uint32_t mapped : special->mapped) {
      if (mapped != 0) append_utf8(out, mapped);
    }
    return;
  }
  // Runs of stride 2 may interleave with the run after them: look at the two that begin at or before the character.
  auto it = std::upper_bound(table.runs.begin(), table.runs.end(), code_point,
                             [](uint32_t value, const CaseRun& run) { return value < run.first; });
  for (int i = 0; i < 3 && it != table.runs.begin(); ++i) {
    --it;
    if (code_point <= it->last && (code_point - it->first) % it->stride == 0) {
      append_utf8(out, static_cast<uint32_t>(static_cast<int64_t>(code_point) + it->delta));
      return;
    }
  }
  append_utf8(out, code_point);
}

// A capital sigma is final if a cased letter stands before it and none after it, case-ignorable characters skipped.
bool is_final_sigma(std::string_view bytes, size_t offset) {
  size_t before = offset;
  bool cased_before = false;
  while (before > 0) {
    before = previous_offset(bytes, before);
    const uint32_t value = code_point_at(bytes, before).value;
    if (contains(kCaseIgnorable, value)) continue;
    cased_before = contains(kCased, value);
    break;
  }
  if (!cased_before) return false;
  for (size_t after = offset + 2; after < bytes.size();) {
    const CodePoint point = code_point_at(bytes, after);
    if (!contains(kCaseIgnorable, point.value)) return !contains(kCased, point.value);
    after += point.num_bytes;
  }
  return true;
}

void append_lower(std::string& out, std::string_view bytes, size_t offset, uint32_t code_point) {
  if (code_point == 0x3A3) {
    append_utf8(out, is_final_sigma(bytes, offset) ? 0x3C2 : 0x3C3);
  } else {
    append_mapped(out, kLowerTable, code_point);
  }
}

}  // namespace

bool is_python_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_line_break(uint32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_printable(uint32_t code_point) {
  return contains(kPrintable, code_point);
}
bool is_alpha(uint32_t code_point) {
  return contains(kAlpha, code_point);
}
bool is_decimal(uint32_t code_point) {
  return contains(kDecimal, code_point);
}
int decimal_value(uint32_t code_point) {
  const auto it = std::upper_bound(std::begin(kDecimal), std::end(kDecimal), code_point,
                                   [](uint32_t value, const Range& range) { return value < range.first; });
  if (it == std::begin(kDecimal) || code_point > std::prev(it)->last) return -1;
  return static_cast<int>((code_point - std::prev(it)->first) % 10);  // digits stand in tens that begin with zero
}

bool is_digit(uint32_t code_point) {
  return contains(kDigit, code_point);
}
bool is_numeric(uint32_t code_point) {
  return contains(kNumeric, code_point);
}
bool is_lower(uint32_t code_point) {
  return contains(kLower, code_point);
}
bool is_upper(uint32_t code_point) {
  return contains(kUpper, code_point);
}
bool is_title(uint32_t code_point) {
  return contains(kTitle, code_point);
}

Text map_case(const Text& text, CaseMapping mapping) {
  const std::string_view bytes = text.bytes();
  Text result;
  std::string mapped;
  bool previous_cased = false;
  text.for_each_run(0, text.size(), [&](size_t begin, size_t end, bool is_trusted) {
    for (size_t i = begin; i < end;) {
      const CodePoint point = code_point_at(bytes, i);
      mapped.clear();
      switch (mapping) {
        case CaseMapping::kLower:
          append_lower(mapped, bytes, i, point.value);
          break;
        case CaseMapping::kUpper:
          append_mapped(mapped, kUpperTable, point.value);
          break;
        case CaseMapping::kFold:
          append_mapped(mapped, kFoldTable, point.value);
          break;
        case CaseMapping::kTitle:
          if (previous_cased) {
            append_lower(mapped, bytes, i, point.value);
          } else {
            append_mapped(mapped, kTitleTable, point.value);
          }
          previous_cased = contains(kCased, point.value);
          break;
        case CaseMapping::kCapitalize:
          if (i == 0) {
            append_mapped(mapped, kTitleTable, point.value);
          } else {
            append_lower(mapped, bytes, i, point.value);
          }
          break;
        case CaseMapping::kSwap:
          if (is_upper(point.value)) {
            append_lower(mapped, bytes, i, point.value);
          } else if (is_lower(point.value)) {
            append_mapped(mapped, kUpperTable, point.value);
          } else {
            append_utf8(mapped, point.value);
          }
          break;
      }
      result.append(mapped, is_trusted);
      i += point.num_bytes;
    }
  });
  return result;
}

}  // namespace quire::jinja
