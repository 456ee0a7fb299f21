// Keeping: what the filesystem has of retention (docs/commits.md, "What stays"): the attributes that say what stays,
// who may set them, and which files are open below a checkpoint.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "fs/filesystem.h"
#include "fs/inode.h"
#include "meta/namespace.h"

namespace cairnfs::fs {

// All functions may wait for the shared store. Any thread.
class Keeping {
 public:
  // The directories in which processes of other hosts have files open; some more than once. Empty: there are none.
  using OpenElsewhere = std::function<Result<std::vector<InodeId>>(const Context&)>;
  // Both outlive it.
  Keeping(meta::Namespace& names, InodeTable& table) : names_(names), table_(table) {}
  void AskOthers(OpenElsewhere open_elsewhere) { open_elsewhere_ = std::move(open_elsewhere); }  // before any call

  // kPermission: neither the owner nor root. kNotDirectory; kInvalidArgument: it is the root of the filesystem.
  Status CheckOwner(const Caller& caller, InodeId directory);
  // One of the attributes that are stored. kPermission: neither the owner nor root. kInvalidArgument: the value is
  // wrong, or it is the root of the filesystem. kNotDirectory. kAlreadyExists: it is held for longer. kBusy: it is
  // pinned or held, and so its removal cannot begin; or that has begun, and so it cannot be pinned or held. kNotFound:
  // its removal is to begin under a name that it does not have.
  Status Set(const Caller& caller, InodeId directory, std::string_view name, std::string_view value,
             meta::Namespace::XattrMode mode);
  Status Remove(const Caller& caller, InodeId directory, std::string_view name);
  // How many files below the directory processes have open; on another host those in one directory count as one.
  // kPermission, kNotDirectory; kUnavailable: a host does not say.
  Result<size_t> CountOpen(const Caller& caller, InodeId directory);
  // For other hosts: cluster::OpenHandler.
  std::vector<InodeId> OpenPlaces();
  // Whether retention may take it away now: kBusy, it is pinned or held.
  Status CheckMayGo(const Context& context, InodeId directory);
  // kBusy: its removal has begun, or is over and something of it stays.
  Status CheckHasNoMark(const Context& context, InodeId directory);
  // Whether it may get another name than retention gave it: kBusy, its removal has begun. What has something that is to
  // stay gets its own name back for that, and no other.
  struct Names {
    std::string_view from, to;
    bool is_move = false;  // into another directory
  };
  Status CheckMayComeBack(const Context& context, InodeId directory, const Names& names);

 private:
  using Effect = meta::PolicyEffect;
  enum class Change { kSet, kRemoved };
  static Effect EffectOf(std::string_view name, Change change);

  struct Attribute {
    std::string_view name, value;
  };
  Status CheckSet(const Context& context, InodeId directory, const Attribute& attribute,
                  const std::optional<std::string>& before);
  Result<std::optional<std::string>> ReadMark(const Context& context, InodeId directory);  // that its removal has begun
  Status CheckRemovalIsOver(const Context& context, InodeId directory);
  Status CheckHasName(const Context& context, InodeId directory, std::string_view name);
  std::vector<InodeId> PlacesOfOpen();  // by files of this host
  void NoteSilent(const Error& why) EXCLUDES_LOCK(mutex_);

  meta::Namespace& names_;
  InodeTable& table_;
  OpenElsewhere open_elsewhere_;
  Mutex mutex_;
  Clock::time_point tell_silent_at_ GUARDED_BY(mutex_){};
};

}  // namespace cairnfs::fs
