#include "daemon/size_text.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <optional>

#include "base/types.h"

namespace cairnfs::daemon {
namespace {

struct NumberAndUnit {
  uint64_t number;
  std::string_view unit;
};

std::optional<NumberAndUnit> Split(std::string_view text) {
  uint64_t number = 0;
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc{}) return std::nullopt;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  return NumberAndUnit{number, unit};
}

struct Unit {
  std::string_view name;
  uint64_t factor;
};

constexpr std::array kSizeUnits = {
    Unit{"", 1},       Unit{"B", 1},    Unit{"K", kKiB},   Unit{"KiB", kKiB}, Unit{"M", kMiB},
    Unit{"MiB", kMiB}, Unit{"G", kGiB}, Unit{"GiB", kGiB}, Unit{"T", kTiB},   Unit{"TiB", kTiB},
};
constexpr std::array kDurationUnits = {
    Unit{"ms", 1}, Unit{"s", 1000}, Unit{"min", 60'000}, Unit{"h", 3'600'000}, Unit{"d", 86'400'000},
};

template <size_t kCount>
std::optional<uint64_t> Scale(const NumberAndUnit& parsed, const std::array<Unit, kCount>& units) {
  for (const Unit& unit : units) {
    if (unit.name != parsed.unit) continue;
    uint64_t product = 0;
    if (__builtin_mul_overflow(parsed.number, unit.factor, &product)) return std::nullopt;
    return product;
  }
  return std::nullopt;
}

}  // namespace

Result<uint64_t> ParseSize(std::string_view text) {
  if (auto parsed = Split(text)) {
    if (auto bytes = Scale(*parsed, kSizeUnits)) return *bytes;
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("'{}' is not a size; write bytes or a whole number with K, M, G, T, KiB, MiB, GiB or "
                               "TiB, for example \"256MiB\"",
                               text));
}

Result<uint64_t> ParseDurationMs(std::string_view text) {
  if (auto parsed = Split(text)) {
    if (auto milliseconds = Scale(*parsed, kDurationUnits)) return *milliseconds;
  }
  return MakeError(
      ErrorCode::kInvalidArgument,
      fmt::format("'{}' is not a duration; write a whole number with ms, s, min, h or d, for example \"5s\"", text));
}

std::string FormatSize(uint64_t bytes) {
  if (bytes < kKiB) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  for (const char* unit : {"KiB", "MiB", "GiB"}) {
    value /= 1024;
    if (value < 1024) return fmt::format("{:.1f} {}", value, unit);
  }
  return fmt::format("{:.1f} TiB", value / 1024);
}

std::string FormatSizeExact(uint64_t bytes) {
  for (const Unit& unit : {Unit{"TiB", kTiB}, Unit{"GiB", kGiB}, Unit{"MiB", kMiB}, Unit{"KiB", kKiB}}) {
    if (bytes != 0 && bytes % unit.factor == 0) return fmt::format("{}{}", bytes / unit.factor, unit.name);
  }
  return fmt::format("{}", bytes);
}

std::string FormatDurationMs(uint64_t milliseconds) {
  return milliseconds % 1000 == 0 ? fmt::format("{}s", milliseconds / 1000) : fmt::format("{}ms", milliseconds);
}

}  // namespace cairnfs::daemon
