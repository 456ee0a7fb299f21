// RankService: what every user of this host may ask of the daemon, over a socket of its own beside the control socket:
// to commit with other ranks or later, to wait until something is durable, and what is about the trash. A call is
// judged by the rights of its caller.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/result.h"
#include "control/call_watch.h"
#include "control/rank_gate.h"
#include "fs/filesystem.h"

namespace cairnfs::control {

class RankService {
 public:
  struct Options {
    std::string control_socket;                     // path of that; RankSocketPath says where the other one lies
    unsigned commits_max;                           // ranks that commit at once, of all users but root
    std::chrono::milliseconds connection_idle_max;  // one without a call is closed then
  };
  struct Parts {  // all outlive it
    RankGate& gate;
    fs::FileSystem& filesystem;
    CallWatch& calls;
  };
  // Listens. kInvalidArgument: the path is too long; kIo.
  static Result<std::unique_ptr<RankService>> Start(const Options& options, const Parts& parts);
  // Waits for the calls, for some seconds. REQUIRES (unchecked): Parts::calls is stopped.
  virtual ~RankService() = default;
};

}  // namespace cairnfs::control
