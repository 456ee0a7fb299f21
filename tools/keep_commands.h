// `cairnfs pin`, `unpin` and `hold`: what keeps a checkpoint from retention.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace cairnfs::tools {

struct PinCommand {
  std::string path;
  bool json = false;
};
struct HoldCommand {
  std::string path;
  std::string time;  // as 2h
  bool release = false, json = false;
};

int RunPin(const PinCommand& command);
int RunUnpin(const PinCommand& command);
int RunHold(const HoldCommand& command);

// "2h" in milliseconds, at least a second. kInvalidArgument.
Result<uint64_t> ParseHoldTime(const std::string& text);
// Holds the checkpoint for at least so long. Once it returns retention leaves the checkpoint under its path until then.
// kNotFound: it is not there, any more perhaps; kInvalidArgument: it is no directory, or the root; kUnavailable: it is
// on no CairnFS; kPermission: the caller is neither its owner nor root.
Status HoldFor(const std::string& path, uint64_t milliseconds);

}  // namespace cairnfs::tools
