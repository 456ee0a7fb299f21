// Volume: a data directory opened with all that lives in it, in the order in which the parts need each other.
#pragma once

#include <memory>

#include "base/result.h"
#include "chunking/chunker.h"
#include "daemon/any_volume.h"
#include "daemon/config.h"
#include "daemon/data_directory.h"
#include "daemon/storage.h"
#include "fs/filesystem.h"
#include "io/buffer_pool.h"
#include "io/file.h"
#include "kv/engine.h"
#include "kv/hosted_store.h"
#include "kv/local_store.h"
#include "meta/namespace.h"
#include "store/local_chunk_store.h"

namespace cairnfs::daemon {

class Volume final : public AnyVolume {
 public:
  using Purpose = Storage::Purpose;

  // `directory` is locked by the caller and outlives the volume. Makes the filesystem in a new directory. The message
  // of an error names the part of the directory that is wrong and what would help.
  static Result<std::unique_ptr<Volume>> Open(DataDirectory& directory, const Config& config,
                                              Purpose purpose = Purpose::kMount);
  // For `cairnfs check --rebuild-index`: before the store is opened, writes the index anew from the segments.
  static Result<store::RebuildResult> RebuildIndex(DataDirectory& directory, const Config& config);

  io::BufferPool& pool() override { return storage_->pool(); }
  store::LocalChunkStore& chunks() { return storage_->chunks(); }
  fs::FileSystem::Parts Parts() override;
  fs::FsOptions FileSystemOptions() const override;
  Status MayTake(const Config& config) const override;
  control::RankGate& gate() override { return *gate_; }
  meta::Dedup dedup() const override { return dedup_; }
  Result<control::HoldReply> DumpNames(const Context& context, std::chrono::seconds hold,
                                       const meta::DumpWriter::Sink& sink) override;

 private:
  Volume(DataDirectory& directory, const Config& config) : directory_(directory), config_(config) {}
  Status OpenParts(Purpose purpose);
  Status OpenLowerParts(Storage::WhenFull when_full);
  Status RefuseOrphans();
  Status MakeOrReadHeader();
  Status MakeGate();

  DataDirectory& directory_;
  const Config config_;
  chunking::ChunkParams chunk_params_;
  meta::Dedup dedup_ = meta::Dedup::kMount;
  // Destroyed from the last to the first.
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<kv::LocalKvStore> kv_;
  std::unique_ptr<meta::Namespace> names_;
  // Ranks of one host meet in memory: none of them outlives the daemon through which they wait.
  std::unique_ptr<kv::KvEngine> gate_engine_;
  std::unique_ptr<kv::HostedStore> gate_store_;
  std::unique_ptr<control::RankGate> gate_;
};

// What the configuration says about a filesystem, of a host alone and of one in a cluster.
fs::FsOptions FileSystemOptions(const Config& config, size_t cache_bytes_max);

}  // namespace cairnfs::daemon
