// Sizes and durations as people write them in a configuration: "256MiB", "1500ms" (not "1.5s").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace cairnfs::daemon {

// "65536", "64K", "64KiB", "256MiB", "2G", "1TiB": bytes, in powers of 1024. kInvalidArgument says what is accepted;
// decimal units ("MB") are refused because they are taken for either.
Result<uint64_t> ParseSize(std::string_view text);

// "250ms", "5s", "10min", "1h": milliseconds. A unit is required.
Result<uint64_t> ParseDurationMs(std::string_view text);

// "256.0 MiB": for people.
std::string FormatSize(uint64_t bytes);
// "256MiB", or "1000000" when no unit divides it: what ParseSize reads back.
std::string FormatSizeExact(uint64_t bytes);
// "5s", or "250ms": what ParseDurationMs reads back.
std::string FormatDurationMs(uint64_t milliseconds);

}  // namespace cairnfs::daemon
