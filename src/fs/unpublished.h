// Unpublished: files that some host has written to and not published: it has lost the bytes, or failed to. Among
// several hosts.
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

  // Which of the inodes lie below the sources, or are among them: also of those with more than one name.
  Result<std::set<InodeId>> LyingBelow(const Context& context, const std::vector<meta::Attr>& sources,
                                       const std::vector<InodeId>& inodes);
  // A sentence for each file below the sources, or of them, whose bytes some host has lost or failed to publish. What a
  // live host is still writing is not waited for: its close has not returned. The marks of sources that are files are
  // in their attributes.
  Result<std::vector<std::string>> Find(const Context& context, const std::vector<meta::Attr>& sources);

 private:
  meta::Namespace& names_;
  ClusterHost& host_;
  SyncRounds& rounds_;
};

}  // namespace cairnfs::fs
