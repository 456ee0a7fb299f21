// Unpublished: finds files whose bytes some host has lost, or failed to publish. Among several hosts.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "fs/cluster_host.h"
#include "fs/sync_rounds.h"
#include "meta/namespace.h"

namespace cairnfs::fs {

// Functions wait for the shared store. Any thread.
class Unpublished {
 public:
  // All outlive it.
  Unpublished(meta::Namespace& names, ClusterHost& host, SyncRounds& rounds)
      : names_(names), host_(host), rounds_(rounds) {}

  // Those of the inodes that are, or lie below, one of the sources, by any of their names.
  Result<std::set<InodeId>> LyingBelow(const Context& context, const std::vector<meta::Attr>& sources,
                                       const std::vector<InodeId>& inodes);
  // A cause for each such file among or below the sources. A file that a live host is still writing is none: its
  // close has not returned. The attributes of sources that are files have their marks.
  Result<std::vector<meta::RefusalCause>> Find(const Context& context, const std::vector<meta::Attr>& sources);

 private:
  meta::Namespace& names_;
  ClusterHost& host_;
  SyncRounds& rounds_;
};

}  // namespace cairnfs::fs
