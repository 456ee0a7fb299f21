// `cairnfs drain`: makes durable what can be in a time, and lists what is not then.
#pragma once

#include <chrono>
#include <functional>
#include <string_view>

#include "base/context.h"
#include "base/result.h"
#include "control.pb.h"
#include "fs/maintenance.h"

namespace cairnfs::control {

// Tell the log what there is to do, and what is left. Empty: nobody does.
struct DrainLog {
  std::function<void(std::string_view what, const StopEstimate& estimate)> estimate = {};
  std::function<void(std::string_view reason, const fs::Unsaved& unsaved)> unsaved = {};
};

struct DrainCall {
  fs::Maintenance& maintenance;
  Context wanted;
  std::chrono::milliseconds deadline;  // from now
  StopEstimate estimate;
  const DrainLog& log;
};

// Waits until all is durable, for that time at most. `tell` gets the steps. kUnavailable: the daemon is being stopped.
Status RunDrain(const DrainCall& call, const std::function<void(const DrainStep&)>& tell);

}  // namespace cairnfs::control
