// Restoring from the trash: a name for what has none, by the rights of a rename.
#include <sys/stat.h>

#include <mutex>
#include <shared_mutex>

#include "base/answer.h"
#include "base/log.h"
#include "base/utc_text.h"
#include "cairnfs/cairnfs.h"
#include "fs/names.h"
#include "fs/permissions.h"
#include "fs/quota_walk.h"
#include "retention/values.h"

namespace cairnfs::fs {
namespace {

// For an error that says what would be right.
Error AboutPlace(const Error& why, const TrashItem& item, bool is_own_place) {
  Error error = why;
  const std::string instead = ": cairnfs trash restore " + std::to_string(item.entry.parts.inode.value) + " TO";
  if (why.code == ErrorCode::kAlreadyExists && !is_own_place) {
    error.message = "the place that it was to get is taken; give another one" + instead;
  } else if (why.code == ErrorCode::kAlreadyExists) {
    error.message = "its place is taken by now; give it another name" + instead;
  } else if (why.code == ErrorCode::kNotFound && is_own_place) {
    error.message =
        "the directory it lay in (inode " + std::to_string(item.entry.record.parent.value) +
        ") is removed; restore that first, if the trash has it (with --tree all that lay in it comes back), "
        "or give another place" +
        instead;
  }
  return error.WithContext("'" + item.path + "'");
}

template <typename Start>
Status Await(const Start& start) {
  return *AwaitStatus({}, start);
}

}  // namespace

void Names::TellNames(NameTold tell) {
  const std::unique_lock lock(told_);
  tell_ = std::move(tell);
}

Result<bool> Names::PromiseRoom(const Context& context, const meta::RestoreParams& params) {
  if (params.entry.record.type != S_IFREG || !at_.quotas.any()) return false;
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr directory, at_.parts.names.GetAttr(context, params.to_parent));
  if (directory.quota.value == 0) return false;
  const InodeId id = params.entry.parts.inode;
  CAIRNFS_ASSIGN_OR_RETURN(const meta::FileState state, at_.parts.names.ReadFile(context, id));
  meta::QuotaBytes bytes;
  if (state.record) bytes = {state.record->allocated_bytes, state.record->unique_bytes};
  if (const InodePtr inode = at_.table.Find(id)) {  // what was written is published a little later
    MutexLock lock(inode->mutex);
    if (inode->content && inode->content->changed) bytes = inode->content->QuotaBytes();
  }
  const Status promised = at_.quotas.Promise(context, directory.quota, id, bytes);
  return promised.ok() ? Result<bool>(true) : promised.error().WithContext("it has no room there");
}

void Names::FollowQuota(const Context& context, const meta::Attr& restored, InodeId quota_before) {
  if (restored.quota.value == 0 && quota_before.value == 0) return;
  QuotaWalk walk(at_, [](uint64_t) { return Status(); });
  Status followed;
  if (S_ISDIR(restored.mode)) {
    if (restored.quota != quota_before) followed = walk.Move(context, restored.inode, restored.quota);
  } else if (S_ISREG(restored.mode) && (!at_.parts.cluster || at_.table.Find(restored.inode))) {
    // Among several hosts the transaction has moved what is published.
    followed = Await([&](Done<void> done) {
      QuotaWalk::MoveContent(at_, context, restored.inode, restored.quota, std::move(done));
    });
  }
  if (followed.ok()) return;
  spdlog::warn("inode {} is restored, and not all of it falls under the quota of its directory: {}",
               restored.inode.value, followed.error().message);
}

void Names::FollowQuotaOfNamed(InodeId file, InodeId directory, const Caller& caller, const Done<void>& done) {
  if (!at_.quotas.any()) return done({});
  const auto ignore = [done](const Status&) { done({}); };
  auto follow = [this, file, directory, context = caller.context, done, ignore] {
    const auto attr = at_.parts.names.GetAttr(context, directory);
    const InodePtr inode = attr.ok() ? at_.table.Find(file) : nullptr;
    bool is_other = false;
    if (inode != nullptr) {
      MutexLock lock(inode->mutex);
      is_other = inode->content && inode->content->quota != attr->quota;
    }
    if (!is_other) return done({});
    QuotaWalk::MoveContent(at_, context, file, attr->quota, ignore);
  };
  at_.calls.Run(caller, std::move(follow), ignore);
}

Status Names::RestoreAdmitted(const Context& context, const meta::RestoreParams& params) {
  meta::Attr restored;
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr before, at_.parts.names.GetAttr(context, params.entry.parts.inode));
  {
    SyncRounds::Operation operation(at_.rounds);
    CAIRNFS_ASSIGN_OR_RETURN(restored, at_.parts.names.Restore(context, params));
    at_.trash.NoteRestored(params.entry);
    at_.atomic_rules.NoteMoved();
    if (const InodePtr inode = at_.table.Find(restored.inode)) {
      inode->directory = params.to_parent.value;
      inode->in_trash = false;
    }
  }
  FollowQuota(context, restored, before.quota);
  {
    const std::shared_lock lock(told_);
    if (tell_) tell_(params.to_parent, params.to_name);
  }
  const Status durable = Await([&](Done<void> done) { changes_.SyncNames(std::move(done)); });
  if (durable.ok()) return {};
  return MakeError(ErrorCode::kUnavailable, "it is restored, and not durable yet: " + durable.error().message);
}

Result<std::string> Names::Restore(const Context& context, const Credentials& caller, InodeId id,
                                   const std::optional<Place>& place) {
  CAIRNFS_RETURN_IF_ERROR(at_.trash.CheckMayChange());
  CAIRNFS_ASSIGN_OR_RETURN(const TrashItem item, at_.trash.Find(context, caller, id));
  meta::RestoreParams params{.entry = item.entry,
                             .to_parent = place ? place->parent : item.entry.record.parent,
                             .to_name = place ? place->name : item.entry.record.name,
                             .uid = caller.uid};
  if (retention::IsGoingName(params.to_name)) {
    return MakeError(ErrorCode::kInvalidArgument, "names of what retention removes are no place to restore to");
  }
  const auto about = [&](const Error& why) { return AboutPlace(why, item, !place); };
  const Status allowed = CheckMayName(context, at_.parts.names, caller, id, item.entry.record.parent, params.to_parent);
  if (!allowed.ok()) return about(allowed.error());
  if (item.entry.record.by_retention && item.entry.record.type == S_IFDIR) {
    Timestamp until = Clock::WallTime();
    until.seconds += std::chrono::seconds(kRetentionTrash).count();
    params.attributes.emplace_back(CAIRNFS_XATTR_HELD_UNTIL, retention::HeldUntilText(until));
  }
  Caller by;
  by.uid = caller.uid;
  by.gid = caller.gid;
  by.context = context;
  const Status admitted = Await([&](Done<void> go) { changes_.WhenAdmitted(NameChange::kMakes, by, std::move(go)); });
  if (!admitted.ok()) return admitted.error();
  const Status covered = Await([&](Done<void> go) { at_.copies.WhenCovered(id, params.to_parent, by, std::move(go)); });
  if (!covered.ok()) return covered.error();
  const auto promised = PromiseRoom(context, params);
  if (!promised.ok()) return about(promised.error());
  const Status restored = RestoreAdmitted(context, params);
  if (*promised) at_.quotas.EndPromise(id, restored.ok() ? Quotas::Kept::kYes : Quotas::Kept::kNo);
  if (!restored.ok()) return about(restored.error());
  spdlog::info("'{}' (inode {}) is restored from the trash for uid {}", item.path, id.value, caller.uid);
  if (MayListAbove(context, at_.parts.names, caller, params.to_parent)) {
    return at_.parts.names.PathOf(context, params.to_parent, params.to_name);
  }
  return "#" + std::to_string(params.to_parent.value) + "/" + params.to_name;
}

}  // namespace cairnfs::fs
