// AnyVolume: a data directory opened with all that lives in it, of a host alone (Volume) or of one in a cluster
// (ClusterVolume).
#pragma once

#include <memory>

#include "control/rank_gate.h"
#include "control/service.h"
#include "daemon/config.h"
#include "daemon/data_directory.h"
#include "fs/filesystem.h"
#include "io/buffer_pool.h"

namespace cairnfs::daemon {

class AnyVolume {
 public:
  virtual ~AnyVolume() = default;
  virtual io::BufferPool& pool() = 0;
  virtual fs::FileSystem::Parts Parts() = 0;
  virtual fs::FsOptions FileSystemOptions() const = 0;
  virtual control::RankGate& gate() = 0;
  virtual meta::Dedup dedup() const = 0;
  // This host is told to stop: from now on calls that wait for something outside it, also those under way, give up soon
  // where it does not answer. Any thread, any number of times.
  virtual void Stopping() {}
  // This start comes to nothing: what it made known to other hosts is taken back when the volume ends.
  virtual void StartFailed() {}
  // Of a configuration that has changed, what is none of the filesystem's. kNoSpace: it says that files may be changed,
  // and the disk was too full to open the metadata for that; nothing is taken then.
  virtual Status MayTake(const Config&) const { return {}; }
  virtual void Take(const Config&) {}
  virtual control::ClusterControl* cluster() { return nullptr; }  // null: this host is alone
};

// As the configuration says. `directory` is locked by the caller and outlives the volume.
Result<std::unique_ptr<AnyVolume>> OpenVolume(DataDirectory& directory, const Config& config);

}  // namespace cairnfs::daemon
