// `cairnfs ls`, `latest` and `watch`: what checkpoints there are, which is the newest whole one, and which come.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace cairnfs::tools {

struct LsCommand {
  std::string directory, match;
  bool json = false;
};
struct LatestCommand {
  std::string directory, match;
  std::optional<uint64_t> before;
  std::string hold;  // what it found, for so long, as 2h; empty: not at all
  bool verify = false, json = false;
};
struct WatchCommand {
  std::string directory, match, exec;
  std::optional<uint64_t> since;
  std::string hold;    // each, for so long, as 2h; empty: not at all
  uint64_t count = 0;  // ends after so many, and those of the last one's revision; 0: never
  bool json = false;
};

int RunLs(const LsCommand& command);
int RunLatest(const LatestCommand& command);
int RunWatch(const WatchCommand& command);

}  // namespace cairnfs::tools
