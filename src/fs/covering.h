// Covering: what is about to lie where copies are promised gets them before it has its name there.
//
// What was published at level `local` may have its chunks on one node alone, of any host, and of an earlier process of
// it. So the records are read of all files that get such a name, and the cluster is asked about every chunk that they
// name. Only moves and links from `local` to `replicated` pay for that.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fs/cluster_host.h"
#include "fs/filesystem.h"
#include "meta/namespace.h"

namespace cairnfs::fs {

// For one operation on one thread. Blocks. Memory is bounded, however much lies below a directory.
class Covering {
 public:
  // All outlive it. It waits for no longer than `context`, which is one for all of it, and `caller`, within which that
  // was made: kInterrupted where the caller is gone, else kUnavailable.
  Covering(const FileSystem::Parts& parts, ClusterHost& host, Context context, Context caller)
      : parts_(parts), host_(host), context_(std::move(context)), caller_(std::move(caller)) {}

  // On success all chunks have their copies that the record of the file names, or those of the files below the
  // directory; what lies below a directory with a level of its own keeps that, and is left alone. Else says which file
  // and why: kUnavailable where there are too few nodes, or the chunks are on nodes that do not come back in time.
  Status Cover(const meta::Attr& source);
  Status CoverFile(InodeId file);

 private:
  Status CoverBelow(InodeId directory);
  Status AddFiles(const std::vector<InodeId>& files);
  Status AddRecord(InodeId file, const meta::FileRecord& record);
  Status AddPage(InodeId file, const Digest& digest, std::string* text);
  Status Add(InodeId file, const Digest& digest, size_t size);
  Status AwaitCopies();  // of those that were added
  Status CheckContext() const;
  Status PauseAfter(InodeId file, const Error& why);
  Error ErrorOf(InodeId file, const Error& why);

  const FileSystem::Parts& parts_;
  ClusterHost& host_;
  const Context context_, caller_;
  std::vector<ClusterHost::SizedChunk> chunks_;
  std::vector<InodeId> files_;  // that name them, in the same order
};

}  // namespace cairnfs::fs
