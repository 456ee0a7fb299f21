// Levels: the durability that was set for a directory (user.cairnfs.level) and counts for the files below it. Of the
// directories above a file, the nearest with a level counts. If there is none, the level of the mount does.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "fs/filesystem.h"
#include "meta/namespace.h"

namespace cairnfs::fs {

std::string_view NameOf(Durability level);  // "local", "replicated"
std::optional<Durability> DurabilityOfName(std::string_view name);

// All functions read or write the shared store, and any thread may call them.
class Levels {
 public:
  // A level that another host sets counts here after at most this long.
  static constexpr auto kReadEvery = std::chrono::seconds(1);
  Levels(kv::KvStore& kv, meta::Namespace& names, Durability of_mount) : kv_(kv), names_(names), of_mount_(of_mount) {}

  // The level of each inode. While no directory has a level, this costs one read of the store a second.
  Result<std::vector<Durability>> Of(const Context& context, const std::vector<InodeId>& inodes);
  Result<Durability> Of(const Context& context, InodeId inode);
  // Whether a move of `from` into `to` may need copies: `to` promises them, and `from` does not, or it is not known
  // where `from` lies. Costs what `Of` does.
  Result<bool> MayLackCopies(const Context& context, InodeId from, InodeId to);
  // Whether the directory has a level of its own. That moves with it.
  Result<bool> HasOwn(const Context& context, InodeId directory);
  // Sets the level of a directory; nullopt takes it away, so that the directory above counts again. kNotDirectory,
  // kNotFound; kNoData: there is none to take away.
  Status Set(const Context& context, InodeId directory, std::optional<Durability> level);

 private:
  using ByDirectory = std::map<InodeId, Durability>;
  Result<ByDirectory> Read(const Context& context);
  // nullopt of an inode: it is not known where it lies.
  Result<std::vector<std::optional<Durability>>> Find(const Context& context, const std::vector<InodeId>& inodes);

  kv::KvStore& kv_;
  meta::Namespace& names_;
  const Durability of_mount_;
  Mutex mutex_;
  ByDirectory known_ GUARDED_BY(mutex_);
  std::optional<Clock::time_point> read_at_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::fs
