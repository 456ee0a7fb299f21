#include "fs/attributes.h"

#include <sys/stat.h>

#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/printable.h"
#include "cairnfs/cairnfs.h"
#include "fs/levels.h"
#include "fs/quota_settings.h"
#include "fs/waits.h"
#include "retention/values.h"

namespace cairnfs::fs {
namespace {

constexpr std::string_view kOwnPrefix = CAIRNFS_XATTR_PREFIX;
constexpr std::string_view kDurability = CAIRNFS_XATTR_DURABILITY;
constexpr std::string_view kUniqueBytes = CAIRNFS_XATTR_UNIQUE_BYTES;
constexpr std::string_view kChunks = CAIRNFS_XATTR_CHUNKS;

constexpr std::string_view kLevel = CAIRNFS_XATTR_LEVEL;
constexpr size_t kLoggedBytesMax = 512;  // of what a user's wrong value is told with

bool IsOwn(std::string_view name) { return name.starts_with(kOwnPrefix); }

std::string_view SealText(meta::SealState state) {
  switch (state) {
    case meta::SealState::kNone: return "";
    case meta::SealState::kAtCommit: return "at-commit";
    case meta::SealState::kCommits: return "commits";
    case meta::SealState::kSealing:
    case meta::SealState::kCommitting:
    case meta::SealState::kSealingCommits: return "sealing";
    case meta::SealState::kSealed: return "1";
  }
  return "";
}

// What of the request is in the inode's record: all but the size and a regular file's time of change.
meta::AttrChanges ChangesOf(const SetAttrRequest& request, const meta::Attr& before, Timestamp now,
                            const Caller& caller) {
  meta::AttrChanges changes;
  changes.mode = request.mode;
  changes.uid = request.uid;
  changes.gid = request.gid;
  changes.atime = request.atime_now ? now : request.atime;
  if (!S_ISREG(before.mode)) changes.mtime = request.mtime_now ? now : request.mtime;
  // The kernel never clears these bits of a directory.
  if (request.kill_suid_sgid && !request.mode && !S_ISDIR(before.mode)) {
    changes.mode_cleared = Privileges::SetIdThatGoes(before, caller);
  }
  return changes;
}

}  // namespace

// ftruncate comes through an open file.
Result<uint64_t> Attributes::SessionOf(const SetAttrRequest& request) {
  if (!request.size || !request.handle) return uint64_t{0};
  const HandlePtr handle = at_.handles.Find(*request.handle);
  if (!handle) return MakeError(ErrorCode::kStale, "the file is not open");
  CAIRNFS_RETURN_IF_ERROR(at_.session.Check(*handle));
  return handle->session;
}

Status Attributes::SetRecord(const meta::Attr& before, const SetAttrRequest& request, Timestamp now,
                             const Caller& caller) {
  const meta::AttrChanges changes = ChangesOf(request, before, now, caller);
  if (S_ISREG(before.mode) && (request.uid || request.gid || request.size)) {
    CAIRNFS_RETURN_IF_ERROR(at_.privileges.Kill(before.inode, Kills::kCapability, caller));
  }
  const bool changes_mode = changes.mode || changes.mode_cleared != 0;
  if (!changes_mode && !changes.uid && !changes.gid && !changes.atime && !changes.mtime) return {};
  SyncRounds::Operation operation(at_.rounds);
  auto changed = at_.parts.names.SetAttr(caller.context, before.inode, changes);
  if (!changed.ok()) return changed.error();
  at_.privileges.NoteSeen(*changed);
  if (request.mode) at_.privileges.NoteModeSet(before.inode);
  if (changes.uid) at_.contents.NoteOwner(before.inode, *changes.uid);
  return {};
}

// Who had the file open may have written before: a publish takes away what it does not know of (publish_items.cc).
void Attributes::BeforeGiving(InodeId id, const Caller& caller, Done<void> then) {
  InodePtr inode = at_.table.Find(id);
  if (!inode) return then({});
  at_.closing.PublishFirst(inode, caller, std::move(then));
}

void Attributes::SetAttr(InodeId id, const SetAttrRequest& request, Done<meta::Attr> done, const Caller& caller) {
  auto go_on = [this, id, request, done, caller](const Status& may) {
    if (!may.ok()) return done(may.error());
    SetUnsealed(id, request, done, caller);
  };
  OnceSealsAreKnown(at_, id, caller, std::move(go_on));
}

void Attributes::SetUnsealed(InodeId id, const SetAttrRequest& request, const Done<meta::Attr>& done,
                             const Caller& caller) {
  auto set = [this, id, request, caller, done](const Status& may) {
    if (!may.ok()) return done(may.error());
    const auto change = at_.seals.BeginChange(caller.context, id);
    if (!change.ok()) return done(change.error());
    const bool lasts = request.size || request.mtime || request.mtime_now;  // else one transaction makes it
    SetNow(id, request,
           [gate = lasts ? change->gate : nullptr, done](Result<meta::Attr> attr) { done(std::move(attr)); },
           {caller, change->session});
  };
  const bool gives = request.mode && (*request.mode & (S_ISUID | S_ISGID)) != 0;
  auto give = [this, id, caller, gives, set, done](const Status& admitted) {
    if (!admitted.ok() || !gives) return set(admitted);
    BeforeGiving(id, caller, set);
  };
  const bool empties = request.size == uint64_t{0};
  names_.WhenAdmitted(empties ? NameChange::kShortens : NameChange::kAlters, std::move(give), caller);
}

void Attributes::SetNow(InodeId id, const SetAttrRequest& request, const Done<meta::Attr>& done, const Begun& begun) {
  const Caller& caller = begun.caller;
  auto before = at_.parts.names.GetAttr(caller.context, id);
  if (!before.ok()) return done(before.error());
  const bool regular = S_ISREG(before->mode);
  // What cannot be done changes nothing.
  if (request.size && !regular) {
    return done(MakeError(S_ISDIR(before->mode) ? ErrorCode::kIsDirectory : ErrorCode::kInvalidArgument,
                          "only a regular file can be truncated"));
  }
  if (request.size && *request.size > kFileSizeMax) {
    return done(MakeError(ErrorCode::kTooLarge, "file size past the format's limit"));
  }
  const Result<uint64_t> opened = SessionOf(request);
  if (!opened.ok()) return done(opened.error());
  const Timestamp now = Clock::WallTime();
  if (Status set = SetRecord(*before, request, now, caller); !set.ok()) return done(set.error());
  const bool changes_content = regular && (request.size || request.mtime || request.mtime_now);
  if (!changes_content) return done(names_.GetAttr(caller.context, id));
  SetContent(id, request, now, *opened != 0 ? *opened : begun.session, done, caller);
}

void Attributes::SetContent(InodeId id, const SetAttrRequest& request, Timestamp now, uint64_t session,
                            const Done<meta::Attr>& done, const Caller& caller) {
  InodePtr inode = at_.table.Hold(id);
  std::optional<Kills> kills;
  if (request.size) kills = request.kill_suid_sgid ? Kills::kSetIdToo : Kills::kCapability;
  const std::optional<Timestamp> mtime = request.mtime_now ? now : request.mtime;
  auto apply = [this, inode, size = request.size, mtime, now](Content& content) -> Status {
    inode->mutex.AssertHeld();
    if (size) CAIRNFS_RETURN_IF_ERROR(at_.contents.Truncate(inode, *size));
    if (mtime) content.mtime = *mtime;
    content.ctime = now;
    content.publish->NoteTimes();
    content.must_publish = true;
    return {};
  };
  auto finish = [this, inode, context = caller.context, done](const Status& status) {
    Result<meta::Attr> attr = status.ok() ? names_.GetAttr(context, inode->id) : Result<meta::Attr>(status.error());
    at_.table.Unhold(inode);
    done(std::move(attr));
  };
  FileChange change{.inode = inode,
                    .apply = std::move(apply),
                    .empties = request.size == uint64_t{0},
                    .removes = request.size.has_value(),
                    .publishes = true,
                    .session = session,
                    .kills = kills,
                    .caller = caller};
  at_.sharing.Change(std::move(change), std::move(finish));
}

Result<Attributes::ChunkTotals> Attributes::ChunksOf(const Context& context, const InodePtr& inode) {
  uint64_t length = kFileSizeMax;
  std::vector<Digest> pages;
  std::vector<store::ChunkPin> pins;  // of the pages, which a round may replace meanwhile
  auto extents = at_.contents.StoredExtents(context, inode, 0, length, /*pins=*/nullptr);
  {
    MutexLock lock(inode->mutex);
    if (inode->content) pages = inode->content->extents.Pages();
    for (const Digest& page : pages) {
      CAIRNFS_ASSIGN_OR_RETURN(store::ChunkPin pin, at_.parts.chunks.Pin(page, /*size=*/0));
      pins.push_back(std::move(pin));
    }
    at_.contents.DropIfUnused(inode);
  }
  if (!extents.ok()) return extents.error();
  std::unordered_map<Digest, uint64_t, DigestHash> sizes;
  for (const Extent& extent : *extents) sizes[extent.digest] = extent.chunk_size;
  for (const Digest& page : pages) {
    CAIRNFS_ASSIGN_OR_RETURN(const std::string text, store::GetText(at_.parts.chunks, page));
    sizes[page] = text.size();
  }
  ChunkTotals totals{sizes.size(), 0};
  for (const auto& [digest, size] : sizes) totals.bytes += size;
  return totals;
}

bool Attributes::WillLoseCapability(InodeId id) {
  InodePtr inode = at_.table.Find(id);
  if (!inode) return false;
  MutexLock lock(inode->mutex);
  return Privileges::WillLoseCapability(inode);
}

void Attributes::GetXattr(InodeId id, std::string_view name, Done<std::string> done, const Caller& caller) {
  if (name == meta::kCapabilityXattr && WillLoseCapability(id)) {
    return done(MakeError(ErrorCode::kNoData, "bytes that are not published yet take the capabilities away"));
  }
  if (!IsOwn(name)) return done(at_.parts.names.GetXattr(caller.context, id, name));
  if (name == kDurability) return done(at_.copies.DurabilityOf(caller.context, id));
  if (name == kLevel) return done(at_.copies.LevelOf(caller.context, id));
  if (name == CAIRNFS_XATTR_REFUSED) return done(at_.commits.refusals().Describe(caller, id));
  if (name == CAIRNFS_XATTR_COMMIT) {
    const bool tells_all = caller.uid == 0 || at_.parts.dedup == meta::Dedup::kOwner;
    using Tell = Commits::Tell;
    return done(at_.commits.Describe(caller.context, id, tells_all ? Tell::kAll : Tell::kWithoutNewBytes));
  }
  if (AtomicRules::IsAttribute(name)) return done(at_.atomic_rules.Get(caller.context, id, name));
  if (retention::IsRetentionAttribute(name)) return done(at_.parts.names.GetXattr(caller.context, id, name));
  if (name == CAIRNFS_XATTR_RETAINED) {
    const Status may = at_.keeping.CheckOwner(caller, id);
    return done(may.ok() ? at_.policies.Describe(caller.context, id) : Result<std::string>(may.error()));
  }
  if (name == CAIRNFS_XATTR_SEALED) {
    return OnceSealsAreKnown(at_, id, caller, [this, id, caller, done](const Status& known) {
      const bool is_told = known.ok() || known.error().code == ErrorCode::kSealed;
      done(is_told ? DescribeSeal(caller.context, id) : Result<std::string>(known.error()));
    });
  }
  if (name == CAIRNFS_XATTR_WRITERS) {
    return at_.calls.RunToWait(
        caller, [this, id, caller, done] { done(DescribeWriters(caller, id)); },
        [done](const Status& refused) { done(refused.error()); });
  }
  if (name == CAIRNFS_XATTR_SEALED_INSIDE) {
    return at_.calls.RunToWait(
        caller, [this, id, caller, done] { done(DescribeSealedInside(caller, id)); },
        [done](const Status& refused) { done(refused.error()); });
  }
  if (name == CAIRNFS_XATTR_QUOTA) return done(quotas_.Describe(caller, id));
  if (name == CAIRNFS_XATTR_OPEN_FILES) {
    const auto count = at_.keeping.CountOpen(caller, id);
    return done(count.ok() ? Result<std::string>(std::to_string(*count)) : count.error());
  }
  if (name != kUniqueBytes && name != kChunks) {
    return done(MakeError(ErrorCode::kNoData, "no attribute of this name"));
  }
  auto attr = at_.parts.names.GetAttr(caller.context, id);
  if (!attr.ok()) return done(attr.error());
  if ((attr->mode & S_IFMT) != S_IFREG) return done(MakeError(ErrorCode::kNoData, "only regular files have chunks"));
  InodePtr inode = at_.table.Hold(id);
  auto count = [this, inode, unique = name == kUniqueBytes, done, caller] {
    // Where it cannot be had, what is in memory is told.
    at_.sharing.Refresh(inode, caller);
    auto taken = ChunksOf(caller.context, inode);
    at_.table.Unhold(inode);
    if (!taken.ok()) return done(taken.error());
    done(std::to_string(unique ? taken->bytes : taken->count));
  };
  at_.calls.RunToWait(caller, std::move(count), [this, inode, done](const Status& refused) {
    at_.table.Unhold(inode);
    done(refused.error());
  });
}

void Attributes::WhenItMayBeSet(InodeId inode, std::string_view name, const Caller& caller, Done<void> then) {
  auto give = [this, inode, caller, gives = name == meta::kCapabilityXattr, then](const Status& may) {
    if (!may.ok() || !gives) return then(may);
    BeforeGiving(inode, caller, then);
  };
  OnceSealsAreKnown(at_, inode, caller, std::move(give));
}

Status Attributes::SetXattr(const Caller& caller, InodeId inode, std::string_view name, std::string_view value,
                            meta::Namespace::XattrMode mode) {
  if (name == kLevel) {
    CAIRNFS_RETURN_IF_ERROR(at_.parts.names.CheckUnsealed(caller.context, inode));
    return at_.copies.SetLevel(caller.context, inode, value);
  }
  if (name == CAIRNFS_XATTR_SEALED) return PlanSeal(caller, inode, value);
  const bool is_rule = AtomicRules::IsAttribute(name);
  if (IsOwn(name) && !is_rule && !retention::IsRetentionAttribute(name)) {
    return MakeError(ErrorCode::kPermission, "attributes under user.cairnfs. are CairnFS's own");
  }
  if (is_rule) CAIRNFS_RETURN_IF_ERROR(at_.parts.names.CheckUnsealed(caller.context, inode));
  if (IsOwn(name)) {
    const Status set = at_.room.OnceThereIsRoom([&] {
      SyncRounds::Operation operation(at_.rounds);
      return is_rule ? at_.atomic_rules.Set(caller, inode, name, std::string(value), mode)
                     : at_.keeping.Set(caller, inode, name, value, mode);
    });
    const bool is_wrong = !set.ok() && set.error().code == ErrorCode::kInvalidArgument;
    if (is_wrong) {
      const std::string why = set.error().message.substr(0, kLoggedBytesMax);
      spdlog::info("uid {} cannot set {}: {}", caller.uid, Printable(name), Printable(why));
    }
    return set;
  }
  CAIRNFS_RETURN_IF_ERROR(at_.room.OnceThereIsRoom([&] {
    SyncRounds::Operation operation(at_.rounds);
    return at_.parts.names.SetXattr(caller.context, inode, name, value, mode, caller.uid);
  }));
  if (name == meta::kCapabilityXattr) at_.privileges.NoteGiven(inode);
  return {};
}

Result<std::vector<std::string>> Attributes::ListXattrs(const Context& context, InodeId inode) {
  CAIRNFS_ASSIGN_OR_RETURN(auto names, at_.parts.names.ListXattrs(context, inode));
  std::erase_if(names, IsOwn);
  return names;
}

Status Attributes::RemoveXattr(const Caller& caller, InodeId inode, std::string_view name) {
  if (name == kLevel) {
    CAIRNFS_RETURN_IF_ERROR(at_.parts.names.CheckUnsealed(caller.context, inode));
    return at_.copies.SetLevel(caller.context, inode, std::nullopt);
  }
  if (name == CAIRNFS_XATTR_SEALED) return Unseal(caller, inode);
  const bool is_rule = AtomicRules::IsAttribute(name);
  if (IsOwn(name) && !is_rule && !retention::IsRetentionAttribute(name)) {
    return MakeError(ErrorCode::kPermission, "attributes under user.cairnfs. are CairnFS's own");
  }
  if (is_rule) CAIRNFS_RETURN_IF_ERROR(at_.parts.names.CheckUnsealed(caller.context, inode));
  SyncRounds::Operation operation(at_.rounds);
  if (is_rule) return at_.atomic_rules.Set(caller, inode, name, std::nullopt, meta::Namespace::XattrMode::kSet);
  if (IsOwn(name)) return at_.keeping.Remove(caller, inode, name);
  return at_.parts.names.RemoveXattr(caller.context, inode, name);
}

Result<std::string> Attributes::DescribeSeal(const Context& context, InodeId id) {
  CAIRNFS_ASSIGN_OR_RETURN(const meta::SealState state, at_.parts.names.SealOf(context, id));
  if (meta::Blocks(state)) return std::string(SealText(state));
  const Status unsealed = at_.parts.names.CheckUnsealed(context, id);
  if (!unsealed.ok() && unsealed.error().code == ErrorCode::kSealed) return std::string("below");
  if (!unsealed.ok()) return unsealed.error();
  if (state == meta::SealState::kNone) return MakeError(ErrorCode::kNoData, "it is not sealed");
  return std::string(SealText(state));
}

Result<std::string> Attributes::DescribeSealedInside(const Caller& caller, InodeId id) {
  CAIRNFS_RETURN_IF_ERROR(at_.keeping.CheckOwner(caller, id));
  if (!at_.seals.TakePlace(caller.uid)) {
    return MakeError(ErrorCode::kBusy, "too many other directories of this user's are looked at; try again");
  }
  const auto sealed = at_.parts.names.FindSealedBelow(caller.context, id);
  at_.seals.LeavePlace(caller.uid);
  if (!sealed.ok()) return sealed.error();
  if (!*sealed) return MakeError(ErrorCode::kNoData, "nothing in it is sealed");
  return at_.parts.names.PathOfInode(caller.context, **sealed);
}

Result<std::string> Attributes::DescribeWriters(const Caller& caller, InodeId id) {
  CAIRNFS_RETURN_IF_ERROR(at_.keeping.CheckOwner(caller, id));
  if (!at_.seals.TakePlace(caller.uid)) {
    return MakeError(ErrorCode::kBusy, "too many other directories of this user's are looked at; try again");
  }
  const auto writers = at_.seals.DescribeWriters(caller.context, id, Seals::What::kWritten);
  at_.seals.LeavePlace(caller.uid);
  if (!writers.ok()) return writers.error();
  std::string text;
  for (const std::string& writer : *writers) text += writer + "\n";
  return text;
}

// What takes effect later.
Status Attributes::PlanSeal(const Caller& caller, InodeId id, std::string_view value) {
  CAIRNFS_RETURN_IF_ERROR(at_.keeping.CheckOwner(caller, id));
  for (const meta::SealState state : {meta::SealState::kAtCommit, meta::SealState::kCommits}) {
    if (value != SealText(state)) continue;
    SyncRounds::Operation operation(at_.rounds);
    return at_.parts.names.SetSeal(caller.context, id, state);
  }
  return MakeError(ErrorCode::kInvalidArgument, "the value is to be 1, at-commit or commits");
}

Status Attributes::Unseal(const Caller& caller, InodeId id) {
  CAIRNFS_RETURN_IF_ERROR(at_.keeping.CheckOwner(caller, id));
  CAIRNFS_ASSIGN_OR_RETURN(const meta::SealState before, at_.parts.names.SealOf(caller.context, id));
  if (before == meta::SealState::kNone) return MakeError(ErrorCode::kNoData, "it is not sealed");
  SyncRounds::Operation operation(at_.rounds);
  return at_.parts.names.SetSeal(caller.context, id, meta::SealState::kNone);
}

// As a rename to the name that it has, which waits until all below is durable.
void Attributes::Seal(const Caller& caller, InodeId id, Done<void> done) {
  auto seal = [this, caller, id, done] {
    if (Status owns = at_.keeping.CheckOwner(caller, id); !owns.ok()) return done(owns);
    const auto name = at_.parts.names.NameOf(caller.context, id);
    if (!name.ok()) return done(name.error());
    meta::RenameParams params{name->parent, name->name, name->parent, name->name};
    params.expected_from = id;
    params.wants_seal = true;
    names_.Rename(params, caller, done);
  };
  at_.calls.RunToWait(caller, std::move(seal), done);
}

void Attributes::WhenItCounts(std::string_view name, const Caller& caller, std::function<void()> then) const {
  if (name != kLevel && !AtomicRules::IsAttribute(name)) return then();
  if (!at_.parts.cluster) return then();
  static_assert(AtomicRules::kCountsAfter == Levels::kReadEvery);
  // By then each host has read the levels anew.
  auto time_is_up = [] { return MakeError(ErrorCode::kUnavailable, "no host counts the old level any more"); };
  static_cast<void>(at_.waits.Within(caller.context.WithTimeout(Levels::kReadEvery), time_is_up,
                                     [then = std::move(then)](const Status&) { then(); }));
}

}  // namespace cairnfs::fs
