#include "daemon/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

namespace cairnfs::daemon {
namespace {

constexpr std::array<std::string_view, 14> kPassedOn = {
    "PATH",           "TZ",          "LANG",          "LC_ALL",       "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID",
    "JOURNAL_STREAM", "MALLOC_CONF", "INVOCATION_ID", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS",  "LSAN_OPTIONS"};

std::string_view NameOf(std::string_view variable) { return variable.substr(0, variable.find('=')); }

}  // namespace

bool IsPassedOn(std::string_view variable) {
  const std::string_view name = NameOf(variable);
  return std::find(kPassedOn.begin(), kPassedOn.end(), name) != kPassedOn.end() || name.starts_with("CAIRNFS_");
}

void CleanEnvironment() {
  std::vector<std::string> others;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!IsPassedOn(*variable)) others.emplace_back(NameOf(*variable));
  }
  for (const std::string& name : others) unsetenv(name.c_str());
}

}  // namespace cairnfs::daemon
