// A loopback address that other programs do not use: a port of it that was closed is still free when it is listened on
// again, while one of 127.0.0.1 may be anybody's by then.
#pragma once

#include <unistd.h>

#include <string>

namespace cairnfs {

// Of this process. All of 127.0.0.0/8 is local on Linux, and a pid has 22 bits.
inline std::string OwnAddress() {
  static const auto pid = static_cast<unsigned>(getpid());
  return "127." + std::to_string(64 + pid / 65536 % 64) + "." + std::to_string(pid / 256 % 256) + "." +
         std::to_string(pid % 256);
}

}  // namespace cairnfs
