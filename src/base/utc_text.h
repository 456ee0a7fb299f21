// A time of day as messages give it.
#pragma once

#include <string>

#include "base/types.h"

namespace cairnfs {

// "2026-11-28 07:31:06 UTC"; "an unknown time" for one past what calendars hold.
std::string UtcText(const Timestamp& time);

}  // namespace cairnfs
