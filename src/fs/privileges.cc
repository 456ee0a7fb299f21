#include "fs/privileges.h"

#include <sys/stat.h>

#include <algorithm>

#include "base/log.h"

namespace cairnfs::fs {
namespace {

constexpr uint32_t kSetId = S_ISUID | S_ISGID;
// Of threads whose exec was refused: enough for those that are between the refusal and the kernel's next try.
constexpr size_t kRefusedExecsMax = 64;

uint64_t PrivilegesGiven(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  return inode->privileges_given;
}

uint32_t SetIdOf(const meta::Attr& attr) { return S_ISREG(attr.mode) ? attr.mode & kSetId : 0; }

}  // namespace

uint32_t Privileges::SetIdThatGoes(const meta::Attr& attr, const Caller& caller) {
  const uint32_t bits = attr.mode & kSetId;
  if ((bits & S_ISGID) == 0) return bits;
  // Without the right of the group to execute the bit lends no group. Then it goes as the kernel's filesystems have it.
  const bool stays = (attr.mode & S_IXGRP) == 0 && caller.is_in_group && caller.is_in_group(attr.gid);
  return stays ? bits & ~static_cast<uint32_t>(S_ISGID) : bits;
}

bool Privileges::MayHave(const InodePtr& inode, Kills what) {
  return !inode->no_capability || (what == Kills::kSetIdToo && !inode->no_set_id);
}

bool Privileges::WillLoseCapability(const InodePtr& inode) {
  return inode->content && inode->content->changed && inode->content->publish->kills();
}

bool Privileges::WillLoseSetId(const InodePtr& inode, const meta::Attr& attr) {
  const bool kills = WillLoseCapability(inode) && inode->content->publish->kills() == Kills::kSetIdToo;
  return kills && SetIdOf(attr) != 0 && attr.inode_revision != inode->judged_revision;
}

void Privileges::NoteSeen(const meta::Attr& attr) {
  if (attr.inode_revision == 0 || SetIdOf(attr) != 0) return;
  InodePtr inode = table_.Find(attr.inode);
  if (!inode) return;
  MutexLock lock(inode->mutex);
  inode->NoteJudged(attr.inode_revision);
}

Status Privileges::Kill(const InodePtr& inode, Kills what, const Caller& caller) {
  Status status;
  if (what == Kills::kSetIdToo && !inode->no_set_id) status = KillSetId(inode, caller);
  if (status.ok() && !inode->no_capability) status = KillCapability(caller.context, inode);
  if (status.ok()) return {};
  spdlog::warn("inode {}: its set-id bits and capabilities could not be cleared, so it is not written to: {}",
               inode->id.value, status.error().message);
  return status;
}

Status Privileges::Kill(InodeId id, Kills what, const Caller& caller) {
  InodePtr inode = table_.Hold(id);
  const Status killed = Kill(inode, what, caller);
  table_.Unhold(inode);
  return killed;
}

void Privileges::NoteGiven(InodeId id) {
  InodePtr inode = table_.Find(id);
  if (!inode) return;
  MutexLock lock(inode->mutex);
  inode->privileges_given++;
  inode->no_set_id = inode->no_capability = false;
}

void Privileges::NoteModeSet(InodeId id) {
  NoteGiven(id);
  if (!any_set_id_replied_) return;
  InodePtr inode = table_.Find(id);
  if (!inode) return;
  // The kernel holds a lock of the file through a chmod and through the removal of a name: that one is done with.
  MutexLock lock(inode->mutex);
  inode->name_removed = false;
}

Status Privileges::KillSetId(const InodePtr& inode, const Caller& caller) {
  const uint64_t given = PrivilegesGiven(inode);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, names_.GetAttr(caller.context, inode->id));
  if (const uint32_t going = SetIdThatGoes(attr, caller); going != 0) {
    SyncRounds::Operation operation(rounds_);
    meta::AttrChanges changes;
    changes.mode_cleared = going;
    CAIRNFS_ASSIGN_OR_RETURN(attr, names_.SetAttr(caller.context, inode->id, changes));
  }
  MutexLock lock(inode->mutex);
  if (SetIdThatGoes(attr, caller) == 0) inode->NoteJudged(attr.inode_revision);
  if (inode->privileges_given == given && (attr.mode & kSetId) == 0) inode->no_set_id = true;
  return {};
}

Status Privileges::KillCapability(const Context& context, const InodePtr& inode) {
  const uint64_t given = PrivilegesGiven(inode);
  auto found = names_.GetXattr(context, inode->id, meta::kCapabilityXattr);
  if (found.ok()) {
    SyncRounds::Operation operation(rounds_);
    Status removed = names_.RemoveXattr(context, inode->id, meta::kCapabilityXattr);
    if (!removed.ok() && removed.error().code != ErrorCode::kNoData) return removed;
  } else if (found.error().code != ErrorCode::kNoData) {
    return found.error();
  }
  MutexLock lock(inode->mutex);
  if (inode->privileges_given == given) inode->no_capability = true;
  return {};
}

bool Privileges::NoteReply(const meta::Attr& attr) {
  const uint32_t bits = SetIdOf(attr);
  if (bits == 0 && !any_set_id_replied_) return true;
  InodePtr inode = table_.Find(attr.inode);
  if (!inode) return bits == 0;
  if (bits == 0) return inode->told_set_id == 0;
  any_set_id_replied_ = true;
  MutexLock lock(inode->mutex);
  inode->told_set_id |= bits;
  inode->refused_execs.clear();
  if (inode->no_set_id.exchange(false)) inode->privileges_given++;  // another host gave them
  return false;
}

Result<bool> Privileges::MayBelieveOldSetId(const Context& context, const InodePtr& inode) {
  const uint32_t told = inode->told_set_id;
  if (told == 0) return false;
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, names_.GetAttr(context, inode->id));
  MutexLock lock(inode->mutex);
  return (told & ~attr.mode) != 0 || WillLoseSetId(inode, attr);
}

Status Privileges::CheckMayExecute(InodeId id, const Caller& caller) {
  InodePtr inode = table_.Find(id);
  if (!inode) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const bool is_in_doubt, MayBelieveOldSetId(caller.context, inode));
  if (!is_in_doubt) return {};
  MutexLock lock(inode->mutex);
  if (inode->write_open_count > 0) return MakeError(ErrorCode::kBusy, "the file is open for writing");
  if (inode->name_removed) return MakeError(ErrorCode::kBusy, "its mode may be an old one; chmod it");
  auto& refused = inode->refused_execs;
  if (std::find(refused.begin(), refused.end(), caller.pid) != refused.end()) {
    refused.clear();
    inode->told_set_id = 0;
    return {};
  }
  if (refused.size() == kRefusedExecsMax) refused.erase(refused.begin());
  if (caller.pid != 0) refused.push_back(caller.pid);
  return MakeError(ErrorCode::kStale, "its mode is to be asked for once more");
}

void Privileges::NoteNameRemoved(const meta::Attr& attr) {
  if (!any_set_id_replied_ || !S_ISREG(attr.mode)) return;
  InodePtr inode = table_.Find(attr.inode);
  if (!inode || inode->told_set_id == 0) return;
  MutexLock lock(inode->mutex);
  inode->name_removed = true;
}

}  // namespace cairnfs::fs
