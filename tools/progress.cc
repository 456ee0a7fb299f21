#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "daemon/size_text.h"

namespace cairnfs::tools {
namespace {

constexpr double kShareMin = 0.01;  // done, before the rest is guessed at
constexpr double kSecondsMin = 1;

std::string TimeText(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", std::max(1.0, seconds));
  if (seconds < 90 * 60) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

}  // namespace

ProgressLine::ProgressLine(bool is_wanted) : is_terminal_(is_wanted && isatty(STDERR_FILENO) == 1) {}

void ProgressLine::Show(const std::string& text) {
  if (!is_terminal_) return;
  fmt::print(stderr, "\r\x1b[K{}", text);
  std::fflush(stderr);
  has_text_ = true;
}

void ProgressLine::Clear() {
  if (!has_text_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  has_text_ = false;
}

std::string LeftText(uint64_t done, uint64_t total, Clock::duration elapsed) {
  if (done >= total) return "";
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const double seconds = std::chrono::duration<double>(elapsed).count();
  if (share < kShareMin || seconds < kSecondsMin) return "";
  return fmt::format(", about {} left", TimeText(seconds * (1 - share) / share));
}

std::string ShareText(uint64_t bytes_done, uint64_t bytes_total, Clock::duration elapsed, double rate) {
  if (bytes_total == 0) return "nothing";
  bytes_done = std::min(bytes_done, bytes_total);
  const double share = static_cast<double>(bytes_done) / static_cast<double>(bytes_total);
  std::string text = fmt::format("{} of {} ({:.0f} %)", daemon::FormatSize(bytes_done), daemon::FormatSize(bytes_total),
                                 std::min(99.0, share * 100));
  if (bytes_done == bytes_total) text = fmt::format("all of {}", daemon::FormatSize(bytes_total));
  if (rate < 1 || bytes_done == bytes_total) return text + LeftText(bytes_done, bytes_total, elapsed);
  return text + fmt::format(", about {} left", TimeText(static_cast<double>(bytes_total - bytes_done) / rate));
}

}  // namespace cairnfs::tools
