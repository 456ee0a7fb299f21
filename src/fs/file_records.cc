#include "fs/file_records.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "fs/recipe.h"

namespace cairnfs::fs {

chunking::Owner OwnerOf(const FileSystem::Parts& parts, uint32_t uid) {
  return {parts.dedup == meta::Dedup::kOwner ? uid : 0};
}

Result<chunking::Owner> FindOwner(const Context& context, const FileSystem::Parts& parts, InodeId id) {
  if (parts.dedup == meta::Dedup::kMount) return chunking::Owner{};
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, parts.names.GetAttr(context, id));
  return OwnerOf(parts, attr.uid);
}

static std::unique_ptr<Content> MakeOwned(const FileSystem::Parts& parts, chunking::Owner owner,
                                          std::unique_ptr<PublishState> state) {
  auto content = std::make_unique<Content>(parts.chunk_params, std::move(state));
  content->owner = owner;
  return content;
}

std::unique_ptr<Content> LocalRecords::MakeContent(chunking::Owner owner) const {
  return MakeOwned(parts_, owner, std::make_unique<PublishState>());
}

Result<bool> LocalRecords::Load(const Context& context, const InodePtr& inode, MayWait may_wait) {
  CAIRNFS_ASSIGN_OR_RETURN(auto entry, parts_.kv.Get(context, meta::FileKey(inode->id)));
  CAIRNFS_ASSIGN_OR_RETURN(const chunking::Owner owner, FindOwner(context, parts_, inode->id));
  auto content = MakeContent(owner);
  if (entry) {
    CAIRNFS_ASSIGN_OR_RETURN(meta::FileRecord record, meta::FileRecord::Decode(entry->value));
    CAIRNFS_ASSIGN_OR_RETURN(Recipe recipe, Recipe::Decode(record.recipe));
    if (recipe.is_tree && may_wait == MayWait::kNo) return false;
    CAIRNFS_RETURN_IF_ERROR(LoadExtents(recipe, record.size, content->extents, parts_.chunks));
    content->size = content->published_size = record.size;
    content->quota = record.quota;
    content->unique_bytes = record.unique_bytes;
    content->mtime = record.mtime;
    content->ctime = record.ctime;
  } else {
    CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, parts_.names.GetAttr(context, inode->id));
    content->mtime = attr.mtime;
    content->ctime = attr.ctime;
    content->quota = attr.quota;
  }
  inode->content = std::move(content);
  return true;
}

void LocalRecords::BeginAnew(const InodePtr& inode, chunking::Owner owner) { inode->content = MakeContent(owner); }

std::unique_ptr<Content> SharedRecords::MakeContent(chunking::Owner owner) const {
  return MakeOwned(parts_, owner, std::make_unique<SharedContent>(host_.unawaited_files()));
}

Result<bool> SharedRecords::Load(const Context& context, const InodePtr& inode, MayWait) {
  CAIRNFS_ASSIGN_OR_RETURN(const meta::FileState state, parts_.names.ReadFile(context, inode->id));
  CAIRNFS_RETURN_IF_ERROR(LoadState(inode, state));
  return true;
}

void SharedRecords::BeginAnew(const InodePtr& inode, chunking::Owner owner) {
  if (!inode->content) inode->content = MakeContent(owner);
  inode->content->shared().is_void = false;
}

// What was given up with its session may be in a round for as long as no round can go on.
Status SharedRecords::CheckWait(const Content& content, uint64_t session) const {
  CAIRNFS_RETURN_IF_ERROR(session_.Check(session));
  return session_.GivesUpOn(content.shared()) ? Status(PublishInDoubt()) : Status();
}

static void NotePrivileges(const InodePtr& inode, const meta::FileState& state) REQUIRES_LOCK(inode->mutex) {
  if (state.has_capability) inode->no_capability = false;
  if ((state.inode.mode & (S_ISUID | S_ISGID)) != 0) {
    inode->no_set_id = false;
  } else {
    inode->NoteJudged(state.inode_revision);
  }
}

static Error BytesOfAnotherHost() { return MakeError(ErrorCode::kBusy, "another host may have changed it"); }

// In place: whoever works on the content meanwhile finds it changed, not gone.
Status SharedRecords::LoadState(const InodePtr& inode, const meta::FileState& state) {
  const chunking::Owner owner = OwnerOf(parts_, state.inode.uid);
  if (state.inode.nlink > 0) inode->in_trash = false;
  auto fresh = MakeContent(owner);
  CAIRNFS_RETURN_IF_ERROR(Rebase(*fresh, state.record, state.record_revision, parts_.chunks));
  if (!state.record) {
    fresh->mtime = state.inode.mtime;
    fresh->ctime = state.inode.ctime;
    fresh->quota = state.inode.quota;
  }
  if (!inode->content) inode->content = MakeContent(owner);
  Content& content = *inode->content;
  if (inode->backing) inode->backing->FallBehind(BytesOfAnotherHost());
  content.owner = owner;
  streams_.RemoveRange(inode, 0, kFileSizeMax);  // bytes that are stored, kept for a stream that goes on
  content.extents = std::move(fresh->extents);
  NoteEnd(inode, content.size, fresh->size);
  content.size = fresh->size;
  content.published_size = fresh->published_size;
  content.quota = fresh->quota;
  content.unique_bytes = fresh->unique_bytes;
  content.mtime = fresh->mtime;
  content.ctime = fresh->ctime;
  content.shared().base_revision = fresh->shared().base_revision;
  content.shared().own = content.shared().publishing = {};
  content.shared().is_void = false;
  NotePrivileges(inode, state);
  return {};
}

void SharedRecords::NoteEnd(const InodePtr& inode, uint64_t before, uint64_t now) {
  const uint64_t believed = std::max(before, inode->others_cut_from);
  inode->others_cut_from = believed > now ? believed : 0;
  inode->late_appends.Clear();
}

Status SharedRecords::Adopt(const InodePtr& inode, const meta::FileState& state) {
  if (!inode->content || inode->content->must_reload()) return LoadState(inode, state);
  NotePrivileges(inode, state);
  if (state.inode.nlink > 0) inode->in_trash = false;  // another host has restored it
  Content& content = *inode->content;
  content.owner = OwnerOf(parts_, state.inode.uid);
  if (state.record_revision > content.shared().base_revision) {
    if (!content.changed && content.idle()) return LoadState(inode, state);
    const uint64_t size_before = content.size;
    if (inode->backing) inode->backing->FallBehind(BytesOfAnotherHost());
    CAIRNFS_RETURN_IF_ERROR(Rebase(content, state.record, state.record_revision, parts_.chunks));
    NoteEnd(inode, size_before, content.size);
    streams_.DropStoredFronts(inode);
  }
  return {};
}

bool SharedRecords::AwaitsAnswer(const InodePtr& inode, const meta::FileState& state) {
  if (!inode->content || inode->content->must_reload()) return false;
  const SharedContent& shared = inode->content->shared();
  return shared.is_sent && state.record_revision > shared.base_revision;
}

std::vector<Digest> SharedRecords::PagesToOpen(const meta::FileState& state) const {
  std::vector<Digest> pages;
  if (!state.record) return pages;
  auto recipe = Recipe::Decode(state.record->recipe);
  if (!recipe.ok()) return pages;
  ExtentMap extents;
  if (extents.Load(*recipe, parts_.chunks).ok()) return extents.MissingPages(state.record->size, 1);
  for (const PageRef& inner : recipe->inner) pages.push_back(inner.digest);
  return pages;
}

}  // namespace cairnfs::fs
