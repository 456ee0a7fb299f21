// Starting a thread can fail: a machine, or a container, has a limit on threads.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/result.h"

namespace cairnfs::kv {

// kUnavailable: the system gives no further thread. `purpose`: "a watch", for the message.
template <typename Function>
Result<std::thread> StartThread(const std::string& purpose, Function function) {
  try {
    return std::thread(std::move(function));
  } catch (const std::system_error& error) {
    return MakeError(ErrorCode::kUnavailable, "no thread can be started for " + purpose + ": " + error.what() +
                                                  "; the limit on threads of this process or machine is too low");
  }
}

}  // namespace cairnfs::kv
