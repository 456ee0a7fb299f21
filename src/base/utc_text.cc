#include "base/utc_text.h"

#include <ctime>

namespace cairnfs {

std::string UtcText(const Timestamp& time) {
  const time_t seconds = time.seconds;
  std::tm parts{};
  char text[32] = {};
  if (gmtime_r(&seconds, &parts) == nullptr || strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts) == 0) {
    return "an unknown time";
  }
  return text;
}

}  // namespace cairnfs
