// Carries out reads and writes, by io_uring, or by threads where the kernel refuses that. Internal.
#pragma once

#include <memory>

#include "io/io_request.h"

namespace cairnfs::io {

class IoEngine {
 public:
  virtual ~IoEngine() = default;  // REQUIRES: no request is under way.
  // Starts the request. May wait while too many are under way, except inside a callback of this engine. The result is
  // given to request->done on a thread of the engine. Any thread.
  virtual void Submit(std::unique_ptr<IoRequest> request) = 0;
};

// kNotSupported, kPermission or kIo when the kernel refuses io_uring or is too old.
Result<std::unique_ptr<IoEngine>> MakeUringEngine(unsigned queue_depth);
std::unique_ptr<IoEngine> MakeThreadEngine();

}  // namespace cairnfs::io
