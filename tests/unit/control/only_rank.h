#pragma once

#include <chrono>

#include "base/types.h"
#include "control/rank_gate.h"

namespace cairnfs::control {

// What the only rank of a job asks: that `directory` becomes "final" in the root.
inline GateCall CallOfTheOnlyRank(InodeId directory) {
  GateCall call;
  call.directory = directory;
  call.final_parent = kRootInode;
  call.final_name = "final";
  call.ranks = 1;
  call.rank = 0;
  call.timeout = std::chrono::seconds(30);
  return call;
}

}  // namespace cairnfs::control
