// ClusterMember: a filesystem among other hosts: its session with them. Ends what depends on one that is lost.
#pragma once

#include <cassert>
#include <memory>
#include <stop_token>

#include "base/thread_annotations.h"
#include "fs/cluster_host.h"
#include "fs/error_names.h"
#include "fs/inode.h"
#include "fs/orphans.h"
#include "fs/streams.h"

namespace cairnfs::fs {

class ClusterMember {
 public:
  struct Parts {  // all outlive it
    const FileSystem::Parts& parts;
    const FsOptions& options;
    ClusterHost& host;
    InodeTable& table;
    Streams& streams;
    ErrorNames& error_names;
    std::stop_source& stop;  // of what goes on by itself
  };
  explicit ClusterMember(const Parts& parts) : at_(parts) {}
  ~ClusterMember() { Stop(); }

  Status Start();
  // Orphans are left to other hosts from now on.
  void Stop();
  // REQUIRES: Start returned ok.
  Orphans& orphans() {
    assert(orphans_ != nullptr);
    return *orphans_;
  }

 private:
  struct Guard {
    Mutex mutex;  // held while a loss is worked on
    ClusterMember* member GUARDED_BY(mutex) = nullptr;
  };
  Status BeginSession();
  void LoseSession();
  void DropUnpublished();

  const Parts at_;
  std::unique_ptr<Orphans> orphans_;
  std::shared_ptr<Guard> guard_;
};

}  // namespace cairnfs::fs
