// What keeps chunks from having their copies, for people.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "cluster/chunk_copies.h"

namespace cairnfs::cluster {

struct Shortage {
  Situation situation;
  size_t chunks;  // that wait for copies

  // With the nodes that are away or full, what helps, and the setting.
  std::string Describe() const;
  // kNoSpace where nodes are only full, else kUnavailable. `what` comes first.
  Error ToError(std::string_view what) const;
};

}  // namespace cairnfs::cluster
