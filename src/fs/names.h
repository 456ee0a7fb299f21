// Names: operations on names.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "fs/name_changes.h"
#include "fs/services.h"

namespace cairnfs::fs {

class Names {
 public:
  // `changes` outlives it.
  Names(const Services& services, NameChanges& changes) : at_(services), changes_(changes) {}

  // Calls `go` once names may be changed so: nearly always before it returns; after the next sync round, on another
  // thread, when too many changes wait for the disk. kNoSpace for kMakes when little room is left for metadata (in a
  // cluster the call itself is refused so, where one of its nodes keeps the names). Asked by the caller before
  // OpenFiles::Create, MakeNode, Link, SetXattr (kMakes), RemoveXattr (kAlters), Unlink and Rmdir (kRemoves), which do
  // not wait for that themselves; SetAttr and Rename ask by themselves. In a cluster it blocks while this host has no
  // session, and kRemoves waits until what no close waits for is durable (AfterUnawaited): `go` runs on a thread that
  // may wait; or is told kInterrupted, when the caller is killed meanwhile.
  void WhenAdmitted(NameChange change, Done<void> go, const Caller& caller = {}) {
    changes_.WhenAdmitted(change, caller, std::move(go));
  }

  // Functions that give an Attr for a name (Lookup, MakeNode, Link, and OpenFiles::Create) add one to the inode's
  // lookup count, which Forget takes away; an inode without a link goes when it is neither looked up nor open.
  // "." finds `parent` itself, which need not have been looked up before, ".." what it lies in.
  Result<meta::Attr> Lookup(const Context& context, InodeId parent, std::string_view name);
  void Forget(InodeId inode, uint64_t count) { at_.table.Forget(inode, count); }
  Result<meta::Attr> GetAttr(const Context& context, InodeId inode);
  Result<std::string> ReadLink(const Context& context, InodeId inode) {
    return at_.parts.names.ReadLink(context, inode);
  }
  Result<meta::Attr> MakeNode(const Context& context, InodeId parent, std::string_view name,
                              const meta::CreateParams& params);  // all types
  // Waits, in a cluster, where the file may lack the copies that are promised for the new name: for them, on another
  // thread, for no longer than a commit does. kInterrupted: the caller was killed meanwhile.
  void Link(InodeId inode, InodeId new_parent, std::string_view new_name, Done<meta::Attr> done,
            const Caller& caller = {});
  Status Unlink(const Context& context, InodeId parent, std::string_view name);
  Status Rmdir(const Context& context, InodeId parent, std::string_view name);
  void Rename(const meta::RenameParams& params, const Caller& caller, Done<void> done) {
    changes_.Rename(params, caller, std::move(done));
  }
  // Whether rename(2) would let the caller give the directory a name in `final_parent`, by the modes and owners of both
  // and of the directory that it lies in: kPermission says what is missing. May wait for other hosts.
  Status CheckMayRename(const Context& context, const Credentials& caller, InodeId directory, InodeId final_parent);
  // Whether the directory has this name now. May wait for other hosts.
  Result<bool> HasName(const Context& context, InodeId directory, InodeId parent, std::string_view name);
  // The name of each regular file below the directory. kTooLarge: there are more than kVisitedMax names. kInterrupted.
  // May wait for other hosts.
  static constexpr size_t kVisitedMax = 1'000'000;
  Status VisitFilesBelow(const Context& context, InodeId directory,
                         const std::function<void(std::string_view name)>& visit);
  // Why the last rename of it was refused, if one was lately.
  std::optional<CommitFailure> LastFailedCommit(InodeId directory) const { return at_.commits.LastRefused(directory); }

 private:
  // Adds one to its lookup count; kNotFound without a link, too.
  Result<meta::Attr> LookUpInode(const Context& context, InodeId id);
  Result<meta::Attr> LinkNow(const Caller& caller, InodeId inode, InodeId new_parent, std::string_view new_name);

  const Services at_;
  NameChanges& changes_;
};

}  // namespace cairnfs::fs
