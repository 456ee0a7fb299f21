#include "daemon/notify.h"

#include <fmt/format.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <charconv>
#include <chrono>

#include "base/context.h"

namespace cairnfs::daemon {
namespace {

constexpr std::string_view kReady = "ready\n";
constexpr std::string_view kFailed = "failed ";  // then the exit code, a newline and the message

}  // namespace

Notifier::~Notifier() {
  StopWatchdog();
  if (ready_fd_ >= 0) close(ready_fd_);
}

void Notifier::TellStarter(const std::string& text) {
  if (ready_fd_ < 0) return;
  // The starter may be gone. Then nobody is there to be told.
  [[maybe_unused]] ssize_t written = write(ready_fd_, text.data(), text.size());
  close(ready_fd_);
  ready_fd_ = -1;
}

void Notifier::Ready(const std::string& status) {
  TellStarter(std::string(kReady));
  sd_notifyf(0, "READY=1\nSTATUS=%s", status.c_str());
}

void Notifier::Starting(const std::string& status) { sd_notifyf(0, "STATUS=%s", status.c_str()); }

void Notifier::Failed(const Error& error, int exit_code) {
  TellStarter(fmt::format("{}{}\n{}", kFailed, exit_code, error.message));
  sd_notifyf(0, "STATUS=%s", error.message.c_str());
}

void Notifier::Stopping(const std::string& status) { sd_notifyf(0, "STOPPING=1\nSTATUS=%s", status.c_str()); }

void Notifier::StartWatchdog(std::function<bool()> alive) {
  uint64_t interval_us = 0;
  if (sd_watchdog_enabled(0, &interval_us) <= 0) return;
  watchdog_ = std::jthread([interval_us, alive = std::move(alive)](std::stop_token stop) {
    const Context context(std::move(stop));
    while (!context.IsStopped()) {
      if (alive()) sd_notify(0, "WATCHDOG=1");
      static_cast<void>(context.Sleep(std::chrono::microseconds(interval_us / 3)));
    }
  });
}

StartReport ParseStartReport(const std::string& text) {
  StartReport report;
  if (text == kReady) {
    report.ready = true;
    return report;
  }
  report.exit_code = 1;
  if (!text.starts_with(kFailed)) {
    report.message = "cairnfsd ended before the mount was ready and said nothing; look into its log";
    return report;
  }
  const char* begin = text.data() + kFailed.size();
  const char* end = text.data() + text.size();
  auto [rest, code] = std::from_chars(begin, end, report.exit_code);
  if (code != std::errc{} || report.exit_code == 0) report.exit_code = 1;
  report.message = rest == end ? std::string() : std::string(rest + 1, end);
  return report;
}

}  // namespace cairnfs::daemon
