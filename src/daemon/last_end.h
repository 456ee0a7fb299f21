// What a start says when the last end was not a clean one: the daemon died, or the machine did. It says what programs
// got to see then, since their own messages seldom name the mount.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cairnfs::daemon {

struct LastEnd {
  std::string data;                       // the data directory
  std::string state;                      // the text in LOCK, not empty
  std::vector<std::string> mount_points;  // that the dead daemon left; none after a reboot
  std::optional<int64_t> written_at;      // when metadata was written to the disk last; seconds since 1970
};

// To be called before the metadata is opened, and before the mount points are used anew.
LastEnd LookAtLastEnd(const std::string& data, const std::string& state, std::vector<std::string> mount_points);
// One line for the log.
std::string DescribeLastEnd(const LastEnd& end);

}  // namespace cairnfs::daemon
