#include "fs/copies.h"

#include <sys/stat.h>

#include <utility>

#include "base/clock.h"
#include "cairnfs/cairnfs.h"

namespace cairnfs::fs {

Result<std::string> LocalCopies::LevelOf(const Context&, InodeId) { return std::string(CAIRNFS_DURABILITY_LOCAL); }

Status LocalCopies::SetLevel(const Context&, InodeId, std::optional<std::string_view>) {
  return MakeError(ErrorCode::kNotSupported, "this host is alone: there is one level, " CAIRNFS_DURABILITY_LOCAL);
}

// A directory stands for all that is below it, which nobody lists in memory: it is pending while anything is. A file is
// when its bytes, its attributes or a name of it are. (Directories above it need no look: what made or moved them came
// before its name, and names become durable in order; or is a rename that has not returned.)
bool LocalCopies::IsPending(InodeId id, uint32_t mode) {
  if (at_.rounds.NothingPending()) return false;
  if ((mode & S_IFMT) == S_IFDIR) return true;
  // First the memory, then the layers: a record goes from the one to the other.
  if (InodePtr inode = at_.table.Find(id)) {
    MutexLock lock(inode->mutex);
    const Content* content = inode->content.get();
    if (content != nullptr && (content->changed || content->in_round || content->unrecorded)) return true;
  }
  auto any = [](std::string_view, const std::optional<std::string>&) { return true; };
  for (const std::string& key : {meta::InodeKey(id), meta::FileKey(id)}) {
    if (at_.parts.local_kv->HasUnflushed(key, key + '\0', any)) return true;
  }
  const std::string xattrs = meta::XattrPrefix(id);
  if (at_.parts.local_kv->HasUnflushed(xattrs, kv::PrefixEnd(xattrs), any)) return true;
  return at_.parts.local_kv->HasUnflushed("E", kv::PrefixEnd("E"), [id](std::string_view, const auto& value) {
    if (!value) return false;
    auto dentry = meta::DentryRecord::Decode(*value);
    return dentry.ok() && dentry->inode == id;
  });
}

Result<std::string> LocalCopies::DurabilityOf(const Context& context, InodeId id) {
  std::set<InodeId> lost = at_.lost.Inodes();
  if (lost.contains(id)) return std::string(CAIRNFS_DURABILITY_LOST);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, at_.parts.names.GetAttr(context, id));
  if (S_ISDIR(attr.mode) && !lost.empty()) {
    const auto found = FindNames(context, at_.parts.names, id, std::move(lost));
    if (found.ok() && !found->empty()) return std::string(CAIRNFS_DURABILITY_LOST);
  }
  return std::string(IsPending(id, attr.mode) ? CAIRNFS_DURABILITY_PENDING : CAIRNFS_DURABILITY_LOCAL);
}

Result<std::string> SharedCopies::LevelOf(const Context& context, InodeId id) {
  CAIRNFS_ASSIGN_OR_RETURN(const Durability level, at_.host.levels().Of(context, id));
  return std::string(NameOf(level));
}

Status SharedCopies::SetLevel(const Context& context, InodeId directory, std::optional<std::string_view> name) {
  std::optional<Durability> level;
  if (name) {
    level = DurabilityOfName(*name);
    if (!level) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "a level is " CAIRNFS_DURABILITY_LOCAL " or " CAIRNFS_DURABILITY_REPLICATED);
    }
  }
  return at_.host.levels().Set(context, directory, level);
}

std::vector<InodeId> SharedCopies::ChangedHere() {
  std::vector<InodeId> changed;
  at_.table.ForEachHeld([&changed](const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    if (inode->content && inode->content->changed) changed.push_back(inode->id);
  });
  return changed;
}

Result<SharedCopies::Unsaved> SharedCopies::FindUnsaved(const Context& context, const meta::Attr& attr) {
  Unsaved found;
  if (!S_ISDIR(attr.mode)) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto state,
                             at_.parts.names.ReadFile(context, attr.inode, meta::Namespace::WithMarks::kYes));
    for (const meta::Mark& mark : state.marks) (at_.host.Lives(mark) ? found.by_live : found.by_dead) = true;
    return found;
  }
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<meta::Namespace::MarkedFile> marked, at_.parts.names.ListMarks(context));
  std::vector<InodeId> live = ChangedHere(), dead;
  for (const auto& file : marked) (at_.host.Lives(file.mark) ? live : dead).push_back(file.inode);
  CAIRNFS_ASSIGN_OR_RETURN(const std::set<InodeId> dead_below, at_.unpublished.LyingBelow(context, {attr}, dead));
  found.by_dead = !dead_below.empty();
  if (found.by_dead) return found;
  CAIRNFS_ASSIGN_OR_RETURN(const std::set<InodeId> live_below, at_.unpublished.LyingBelow(context, {attr}, live));
  found.by_live = !live_below.empty();
  return found;
}

Result<std::string> SharedCopies::DurabilityOf(const Context& context, InodeId id) {
  if (at_.lost.Inodes().contains(id)) return std::string(CAIRNFS_DURABILITY_LOST);
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, at_.parts.names.GetAttr(context, id));
  bool is_pending = false, is_local = false;
  if (const InodePtr inode = at_.table.Find(id)) {
    MutexLock lock(inode->mutex);
    is_pending = inode->content && inode->content->changed;
    is_local = inode->content && inode->content->shared().published_locally;
  }
  CAIRNFS_ASSIGN_OR_RETURN(const Unsaved unsaved, FindUnsaved(context, attr));
  if (unsaved.by_dead) return std::string(CAIRNFS_DURABILITY_LOST);
  if (is_pending || unsaved.by_live) return std::string(CAIRNFS_DURABILITY_PENDING);
  // Wherever it lies by now. Which of the missing copies are of this file is not looked up.
  if (!is_local && at_.parts.lacks_copies) is_local = at_.parts.lacks_copies();
  if (is_local) return std::string(CAIRNFS_DURABILITY_LOCAL);
  CAIRNFS_ASSIGN_OR_RETURN(const Durability level, at_.host.levels().Of(context, id));
  return std::string(NameOf(level));
}

Status SharedCopies::CheckBelow(const Context& context, InodeId inode) {
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, at_.parts.names.GetAttr(context, inode));
  if (S_ISREG(attr.mode)) {
    CAIRNFS_ASSIGN_OR_RETURN(meta::FileState state,
                             at_.parts.names.ReadFile(context, inode, meta::Namespace::WithMarks::kYes));
    attr.marks = std::move(state.marks);
  }
  meta::RefusedCommit failure;
  CAIRNFS_ASSIGN_OR_RETURN(Unpublished::Found found, at_.unpublished.Find(context, {std::move(attr)}));
  failure.causes = std::move(found.causes);
  if (failure.causes.empty()) return {};
  return MakeError(ErrorCode::kIo, failure.JoinCauses());
}

// The check has told the cluster's chunk store of each damaged chunk, which is replacing them.
Result<std::vector<Digest>> SharedCopies::AwaitReplaced(const Context& context, const std::vector<Digest>& damaged) {
  CAIRNFS_RETURN_IF_ERROR(at_.host.chunks().AwaitHealing(context));
  const std::vector<bool> is_sound = at_.parts.local_chunks.HasSound(damaged);
  std::vector<Digest> replaced;
  for (size_t i = 0; i < damaged.size(); ++i) {
    if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "stopped");
    // Of very many damaged ones not all are known to be so: that it was replaced shows when it is read.
    const bool is_replaced = is_sound[i] && store::GetBlocking(at_.parts.local_chunks, damaged[i]).ok();
    if (is_replaced) replaced.push_back(damaged[i]);
  }
  return replaced;
}

std::optional<FileSystem::Parts::Space> SharedCopies::Space() {
  if (!at_.parts.cluster_space) return std::nullopt;
  return at_.parts.cluster_space();
}

Covering SharedCopies::CoveringFor(const Caller& caller) const {
  const auto wait_max = std::chrono::seconds(at_.options.commit_wait_seconds_max);
  const Context context = caller.context.WithStop(at_.session.waits_end()).WithTimeout(wait_max);
  return {at_.parts, at_.host, context, caller.context};
}

void SharedCopies::WhenCovered(InodeId file, InodeId parent, const Caller& caller, Done<void> go) {
  const auto may_lack = at_.host.levels().MayLackCopies(caller.context, file, parent);
  if (!may_lack.ok()) return go(may_lack.error());
  if (!*may_lack) return go({});
  auto cover = [this, file, caller, go] { go(CoveringFor(caller).CoverFile(file)); };
  at_.calls.RunToWait(caller, std::move(cover), go);
}

}  // namespace cairnfs::fs
