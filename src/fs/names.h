// Names: operations on names.
#pragma once

#include <functional>
#include <optional>
#include <shared_mutex>
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
  // Where the trash would get a record that finds no room, its oldest goes first.
  void WhenAdmitted(NameChange change, Done<void> go, const Caller& caller = {});

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
  // `uid`: who removes. What goes to the trash, Trash::For says. Under a name of retention's a directory goes there
  // with all that is below it, where the user owns every directory of that; else it is kNotEmpty. kBusy: it is pinned
  // or held. Without room for names what is removed is gone for good, unless retention removes it.
  Status Unlink(const Context& context, InodeId parent, std::string_view name, uint32_t uid = 0);
  Status Rmdir(const Context& context, InodeId parent, std::string_view name, uint32_t uid = 0);
  // The same; for a name of retention's on a thread that may wait, as all below is looked at.
  void Rmdir(InodeId parent, const std::string& name, const Caller& caller, Done<void> done);
  void Rename(const meta::RenameParams& params, const Caller& caller, Done<void> done);
  // Gives what is in the trash a name again: `place`, or the one that it had. The rights are those of a rename(2) into
  // that directory by the caller, who must be one that may see the entry. Durable once `done` is told so; where the new
  // name cannot be made durable it stays, and the error says so. Where it was: its path. kNotFound: no such entry of
  // the caller's, or its directory is removed; kAlreadyExists: the name is taken; kPermission.
  struct Place {
    InodeId parent;
    std::string name;
  };
  Result<std::string> Restore(const Context& context, const Credentials& caller, InodeId id,
                              const std::optional<Place>& place);
  // Who is told of each name that comes to be past the kernel; null: nobody any more. Returns once nobody is being
  // told.
  using NameTold = std::function<void(InodeId parent, const std::string& name)>;
  void TellNames(NameTold tell);
  // A file gets its first name in the directory, or has got it. Calls `done`, with no error, once what this host keeps
  // of it counts for the quota of that, or the caller waits no more.
  void FollowQuotaOfNamed(InodeId file, InodeId directory, const Caller& caller, const Done<void>& done);
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
  std::optional<meta::RefusedCommit> LastFailedCommit(InodeId directory) const {
    return at_.commits.refusals().Last(directory);
  }

 private:
  // Adds one to its lookup count; kNotFound without a link, too.
  Result<meta::Attr> LookUpInode(const Context& context, InodeId id);
  Result<meta::Attr> LinkNow(const Caller& caller, InodeId inode, InodeId new_parent, std::string_view new_name);

  Status RmdirNow(const Context& context, InodeId parent, std::string_view name,
                  const std::optional<meta::TrashParams>& trash, const std::function<Status(InodeId)>& check);
  std::optional<meta::TrashParams> TrashFor(const Context& context, InodeId parent, std::string_view name,
                                            uint32_t uid);
  Status RestoreAdmitted(const Context& context, const meta::RestoreParams& params);
  // Has a file that is to be restored count for its quota from now on. True: Quotas::EndPromise is to be called.
  Result<bool> PromiseRoom(const Context& context, const meta::RestoreParams& params);
  // What this host keeps of it, or what lies below it, falls under the same quota as the restored inode.
  void FollowQuota(const Context& context, const meta::Attr& restored, InodeId quota_before);

  const Services at_;
  NameChanges& changes_;
  // Shared by those who tell: each may wait for the kernel's lock of a directory, which a rename of any user's holds.
  std::shared_mutex told_;
  NameTold tell_;  // guarded by told_
};

}  // namespace cairnfs::fs
