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
  struct Found {
    std::vector<meta::RefusalCause> causes;  // one for each such file
    std::vector<meta::Mark> live;            // one for each other host that is still writing some of them
  };
  // Looks among and below the sources. A file that a live host is still writing is no cause: its close has not
  // returned. Of each such host it has word, so this may wait (ClusterHost::AwaitWord). The attributes of sources that
  // are files have their marks. kInterrupted.
  Result<Found> Find(const Context& context, const std::vector<meta::Attr>& sources);

 private:
  Result<std::vector<meta::Namespace::MarkedFile>> MarksOf(const Context& context,
                                                           const std::vector<meta::Attr>& sources);
  // Takes out those that live hosts are still writing. One mark of each such host.
  Result<std::vector<meta::Mark>> TakeLive(const Context& context, const std::vector<meta::Attr>& sources,
                                           std::vector<meta::Namespace::MarkedFile>& marked);
  meta::Namespace& names_;
  ClusterHost& host_;
  SyncRounds& rounds_;
};

}  // namespace cairnfs::fs
