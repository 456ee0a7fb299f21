// AnyVolume: a data directory opened with all that lives in it, on a host alone (Volume) or on one in a cluster
// (ClusterVolume).
#pragma once

#include <chrono>
#include <memory>

#include "control/rank_gate.h"
#include "control/service.h"
#include "daemon/config.h"
#include "daemon/data_directory.h"
#include "fs/filesystem.h"
#include "io/buffer_pool.h"
#include "meta/dump.h"

namespace cairnfs::daemon {

class AnyVolume {
 public:
  virtual ~AnyVolume() = default;
  virtual io::BufferPool& pool() = 0;
  virtual fs::FileSystem::Parts Parts() = 0;
  virtual fs::FsOptions FileSystemOptions() const = 0;
  virtual control::RankGate& gate() = 0;
  virtual meta::Dedup dedup() const = 0;
  // To be called when this host is told to stop. From then on calls that wait for something outside this host, also
  // those under way, give up soon when it does not answer. Any thread, any number of times.
  virtual void Stopping() {}
  // To be called when the start has failed: what it made known to other hosts is taken back when the volume ends.
  virtual void StartFailed() {}
  // Whether the parts below the filesystem can take a changed configuration. kNoSpace: files are to become changeable,
  // but the metadata was opened for reading alone on a full disk.
  virtual Status MayTake(const Config&) const { return {}; }
  virtual void Take(const Config&) {}
  // As daemon::DumpNames. With a hold, of a cluster alone, the chunks of the dump stay for so long; which hold that is.
  virtual Result<control::HoldReply> DumpNames(const Context& context, std::chrono::seconds hold,
                                               const meta::DumpWriter::Sink& sink) = 0;
  virtual control::ClusterControl* cluster() { return nullptr; }  // null: this host is alone
};

// Opens the volume that the configuration describes. `directory` is locked by the caller and outlives the volume.
Result<std::unique_ptr<AnyVolume>> OpenVolume(DataDirectory& directory, const Config& config);

}  // namespace cairnfs::daemon
