// Which entries of the trash a removed directory comes back with: `cairnfs trash restore ID --tree`.
#pragma once

#include <cstdint>
#include <vector>

#include "control.pb.h"

namespace cairnfs::tools {

struct TrashTree {
  // What lay below it, each after the directory that it lay in. Without the directory itself.
  std::vector<control::TrashEntry> below;
  // Those of which something of the same name and place was removed later: they stay in the trash.
  uint64_t replaced = 0;
};

// `entries`: those of the trash, the oldest first. `directory`: an inode, whether it is among them or not.
TrashTree TreeBelow(const std::vector<control::TrashEntry>& entries, uint64_t directory);

}  // namespace cairnfs::tools
