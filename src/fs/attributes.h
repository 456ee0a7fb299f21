// Attributes: what belongs to an inode beside its names and bytes.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "fs/names.h"
#include "fs/services.h"

namespace cairnfs::fs {

class Attributes {
 public:
  // `names` outlives it.
  Attributes(const Services& services, Names& names, QuotaSettings& quotas)
      : at_(services), names_(names), quotas_(quotas) {}

  // In a cluster a new size waits until what no close of this host waits for is durable, unless `caller` is killed.
  void SetAttr(InodeId inode, const SetAttrRequest& request, Done<meta::Attr> done, const Caller& caller = {});
  // To be called before an answer to the kernel that tells these attributes. False: it is to ask anew each time.
  bool NoteReply(const meta::Attr& attr) { return at_.privileges.NoteReply(attr); }
  // Answers user.cairnfs.durability ("local" or "replicated" once durable, "pending" before, "lost" where
  // bytes could not be stored, or a host died before they were safe), .level, .unique_bytes, .chunks, .commit and
  // .open_files itself; refuses to set those, but for the level of a directory of a cluster. Those of retention are
  // stored (keeping.h).
  void GetXattr(InodeId inode, std::string_view name, Done<std::string> done, const Caller& caller = {});
  // To be called before SetXattr of this name: calls `then` when it may be set, perhaps on another thread.
  // kInterrupted.
  void WhenItMayBeSet(InodeId inode, std::string_view name, const Caller& caller, Done<void> then);
  Status SetXattr(const Caller& caller, InodeId inode, std::string_view name, std::string_view value,
                  meta::Namespace::XattrMode mode);
  // user.cairnfs.sealed set to 1: nothing below the directory can be changed once `done` is told so. kBusy: a process
  // has a file below open for writing; user.cairnfs.writers tells which.
  void Seal(const Caller& caller, InodeId inode, Done<void> done);
  // Without those under user.cairnfs.
  Result<std::vector<std::string>> ListXattrs(const Context& context, InodeId inode);
  Status RemoveXattr(const Caller& caller, InodeId inode, std::string_view name);
  // After SetXattr or RemoveXattr of this name: calls `then` when it counts on all hosts. Holds no thread meanwhile.
  // Ends early when the caller is killed.
  void WhenItCounts(std::string_view name, const Caller& caller, std::function<void()> then) const;

 private:
  Result<std::string> DescribeSeal(const Context& context, InodeId id);
  Result<std::string> DescribeSealedInside(const Caller& caller, InodeId id);
  Result<std::string> DescribeWriters(const Caller& caller, InodeId id);
  Status PlanSeal(const Caller& caller, InodeId id, std::string_view value);
  Status Unseal(const Caller& caller, InodeId id);
  // Before set-id bits or capabilities are given to a file. Bytes that are published later take them away.
  void BeforeGiving(InodeId inode, const Caller& caller, Done<void> then);
  struct ChunkTotals {
    uint64_t count = 0, bytes = 0;
  };
  bool WillLoseCapability(InodeId inode);
  void SetUnsealed(InodeId id, const SetAttrRequest& request, const Done<meta::Attr>& done, const Caller& caller);
  struct Begun {
    Caller caller;
    uint64_t session = 0;  // of the host, when the inode was found below no seal
  };
  void SetNow(InodeId inode, const SetAttrRequest& request, const Done<meta::Attr>& done, const Begun& begun);
  // The session of the open file through which the request comes; 0: through none.
  Result<uint64_t> SessionOf(const SetAttrRequest& request);
  // Changes what of the request is in the inode's record.
  Status SetRecord(const meta::Attr& before, const SetAttrRequest& request, Timestamp now, const Caller& caller);
  void SetContent(InodeId id, const SetAttrRequest& request, Timestamp now, uint64_t session,
                  const Done<meta::Attr>& done, const Caller& caller);
  // Of the distinct chunks of a file, those of its recipe among them. Waits.
  Result<ChunkTotals> ChunksOf(const Context& context, const InodePtr& inode);

  const Services at_;
  Names& names_;
  QuotaSettings& quotas_;
};

}  // namespace cairnfs::fs
