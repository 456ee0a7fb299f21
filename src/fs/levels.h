// Levels: which durability the files below a directory have, where that was set (user.cairnfs.level). Of the
// directories above a file the nearest one counts for which it was; without one, the level of the mount.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
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
  // What other hosts set counts here after this long.
  static constexpr auto kReadEvery = std::chrono::seconds(1);
  Levels(kv::KvStore& kv, meta::Namespace& names, Durability of_mount) : kv_(kv), names_(names), of_mount_(of_mount) {}

  // Of each inode. At no cost while no directory has a level, but for a look once a second.
  Result<std::vector<Durability>> Of(const Context& context, const std::vector<InodeId>& inodes);
  Result<Durability> Of(const Context& context, InodeId inode);
  // Whether copies are promised of what lies in `to`, and what was published of `from` may be without them: it lies
  // where none are, or where it lies is not known. As `Of` for what it costs.
  Result<bool> MayLackCopies(const Context& context, InodeId from, InodeId to);
  // Whether the directory has a level of its own, which goes with it wherever it is moved.
  Result<bool> HasOwn(const Context& context, InodeId directory);
  // Of a directory; nullopt: it has those of the directory above it again. kNotDirectory, kNotFound; kNoData when there
  // was none to take away.
  Status Set(const Context& context, InodeId directory, std::optional<Durability> level);

 private:
  using ByDirectory = std::map<InodeId, Durability>;
  Result<ByDirectory> Read(const Context& context);
  // nullopt: where it lies is not known.
  Result<std::vector<std::optional<Durability>>> Find(const Context& context, const std::vector<InodeId>& inodes);

  kv::KvStore& kv_;
  meta::Namespace& names_;
  const Durability of_mount_;
  Mutex mutex_;
  ByDirectory known_ GUARDED_BY(mutex_);
  std::optional<Clock::time_point> read_at_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::fs
