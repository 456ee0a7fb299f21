// Tells systemd (sd_notify) and the process that started the daemon (by the readiness pipe) how the daemon is.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "base/result.h"

namespace cairnfs::daemon {

class Notifier {
 public:
  // `ready_fd`: the pipe of `cairnfs mount`; -1: none.
  explicit Notifier(int ready_fd) : ready_fd_(ready_fd) {}
  ~Notifier();

  void Starting(const std::string& status);  // what is being waited for
  void Ready(const std::string& status);
  void Failed(const Error& error, int exit_code);  // before Ready
  void Stopping(const std::string& status);
  // Pats systemd's watchdog, when it asked for that, as long as `alive` says so.
  void StartWatchdog(std::function<bool()> alive);
  void StopWatchdog() { watchdog_ = {}; }

 private:
  void TellStarter(const std::string& text);
  int ready_fd_;
  std::jthread watchdog_;
};

// The report that comes out of the readiness pipe. The starter reads until the end of the stream.
struct StartReport {
  bool ready = false;
  int exit_code = 0;
  std::string message;
};
StartReport ParseStartReport(const std::string& text);

}  // namespace cairnfs::daemon
