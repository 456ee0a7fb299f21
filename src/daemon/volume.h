// Volume: a data directory opened with all that lives in it, in the order in which the parts need each other.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "chunking/chunker.h"
#include "daemon/config.h"
#include "daemon/data_directory.h"
#include "fs/filesystem.h"
#include "io/buffer_pool.h"
#include "io/file.h"
#include "kv/engine.h"
#include "kv/local_store.h"
#include "meta/namespace.h"
#include "store/local_chunk_store.h"

namespace cairnfs::daemon {

class Volume {
 public:
  enum class Purpose { kMount, kCheck };  // kCheck: missing and damaged segments are left for the check to report

  // `directory` is locked by the caller and outlives the volume. Makes the filesystem in a new directory. The message
  // of an error names the part of the directory that is wrong and what would help.
  static Result<std::unique_ptr<Volume>> Open(DataDirectory& directory, const Config& config,
                                              Purpose purpose = Purpose::kMount);
  // For `cairnfs check --rebuild-index`: before the store is opened, writes the index anew from the segments.
  static Result<store::RebuildResult> RebuildIndex(DataDirectory& directory, const Config& config);

  io::BufferPool& pool() { return *pool_; }
  store::LocalChunkStore& chunks() { return *chunks_; }
  fs::FileSystem::Parts Parts();
  fs::FsOptions FileSystemOptions() const;

 private:
  Volume(DataDirectory& directory, const Config& config) : directory_(directory), config_(config) {}
  Status OpenParts(Purpose purpose);
  Status OpenLowerParts();
  Result<std::unique_ptr<kv::KvEngine>> OpenEngine();
  Status MakeOrReadHeader();

  DataDirectory& directory_;
  const Config config_;
  chunking::ChunkParams chunk_params_;
  // Destroyed from the last to the first.
  std::unique_ptr<io::BufferPool> pool_;
  std::unique_ptr<kv::KvEngine> engine_;
  std::unique_ptr<kv::LocalKvStore> kv_;
  std::unique_ptr<io::Disk> disk_;
  std::unique_ptr<meta::Namespace> names_;
  std::unique_ptr<store::LocalChunkStore> chunks_;
};

}  // namespace cairnfs::daemon
