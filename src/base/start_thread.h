// Starting a thread can fail: a machine, or a container, has a limit on threads.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "base/result.h"

namespace cairnfs {

// A thread on which no signal of the process is handled: SIGXFSZ of a file that grows past its limit, say, does not end
// the process. `refused`: the system gives no further thread, or there is no memory for it. `purpose`: "a watch", for
// the message.
Result<std::thread> StartThread(const std::string& purpose, std::function<void()> run,
                                ErrorCode refused = ErrorCode::kUnavailable);

}  // namespace cairnfs
