// Extended attributes, and those that CairnFS answers itself.
#include <sys/stat.h>

#include <unordered_map>

#include "cairnfs/cairnfs.h"
#include "fs/impl.h"

namespace cairnfs::fs {
namespace {

constexpr std::string_view kOwnPrefix = CAIRNFS_XATTR_PREFIX;
constexpr std::string_view kDurability = CAIRNFS_XATTR_DURABILITY;
constexpr std::string_view kUniqueBytes = CAIRNFS_XATTR_UNIQUE_BYTES;
constexpr std::string_view kChunks = CAIRNFS_XATTR_CHUNKS;

constexpr std::string_view kCapability = "security.capability";
constexpr std::string_view kLevel = CAIRNFS_XATTR_LEVEL;

bool IsOwn(std::string_view name) { return name.starts_with(kOwnPrefix); }

}  // namespace

// A directory stands for all that is below it, which nobody lists in memory: it is pending while anything is. A file is
// when its bytes, its attributes or a name of it are. (Directories above it need no look: what made or moved them came
// before its name, and names become durable in order; or is a rename that has not returned.)
bool FileSystem::Impl::IsPending(InodeId id, uint32_t mode) {
  if (rounds->NothingPending()) return false;
  if ((mode & S_IFMT) == S_IFDIR) return true;
  // First the memory, then the layers: a record goes from the one to the other.
  if (InodePtr inode = table.Find(id)) {
    MutexLock lock(inode->mutex);
    const Content* content = inode->content.get();
    if (content != nullptr && (content->changed || content->owed || content->unrecorded)) return true;
  }
  auto any = [](std::string_view, const std::optional<std::string>&) { return true; };
  for (const std::string& key : {meta::InodeKey(id), meta::FileKey(id)}) {
    if (parts.local_kv->HasUnflushed(key, key + '\0', any)) return true;
  }
  const std::string xattrs = meta::XattrPrefix(id);
  if (parts.local_kv->HasUnflushed(xattrs, kv::PrefixEnd(xattrs), any)) return true;
  return parts.local_kv->HasUnflushed("E", kv::PrefixEnd("E"), [id](std::string_view, const auto& value) {
    if (!value) return false;
    auto dentry = meta::DentryRecord::Decode(*value);
    return dentry.ok() && dentry->inode == id;
  });
}

Result<std::string> FileSystem::Impl::LevelOf(InodeId id) {
  if (host == nullptr) return std::string(CAIRNFS_DURABILITY_LOCAL);
  CAIRNFS_ASSIGN_OR_RETURN(const Durability level, host->levels().Of(id));
  return std::string(NameOf(level));
}

Status FileSystem::Impl::SetLevel(InodeId id, std::optional<std::string_view> name) {
  if (host == nullptr) {
    return MakeError(ErrorCode::kNotSupported, "this host is alone: there is one level, " CAIRNFS_DURABILITY_LOCAL);
  }
  std::optional<Durability> level;
  if (name) {
    level = DurabilityOfName(*name);
    if (!level) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "a level is " CAIRNFS_DURABILITY_LOCAL " or " CAIRNFS_DURABILITY_REPLICATED);
    }
  }
  return host->levels().Set(id, level);
}

Result<std::string> FileSystem::Impl::DurabilityOf(InodeId id) {
  std::set<InodeId> lost = LostInodes();
  if (lost.contains(id)) return std::string(CAIRNFS_DURABILITY_LOST);
  if (host != nullptr) return DurabilityShared(id);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, parts.names.GetAttr(id));
  if (!lost.empty() && (attr.mode & S_IFMT) == S_IFDIR) {
    auto found = FindNames(id, lost);
    if (found.ok() && !found->empty()) return std::string(CAIRNFS_DURABILITY_LOST);
  }
  return std::string(IsPending(id, attr.mode) ? CAIRNFS_DURABILITY_PENDING : CAIRNFS_DURABILITY_LOCAL);
}

Result<FileSystem::Impl::ChunkTotals> FileSystem::Impl::ChunksOf(const InodePtr& inode) {
  uint64_t length = kFileSizeMax;
  std::vector<Digest> pages;
  std::vector<store::ChunkPin> pins;  // of the pages, which a round may replace meanwhile
  auto extents = StoredExtents(inode, 0, length, /*pins=*/nullptr);
  {
    MutexLock lock(inode->mutex);
    if (inode->content) pages = inode->content->extents.Pages();
    for (const Digest& page : pages) {
      CAIRNFS_ASSIGN_OR_RETURN(store::ChunkPin pin, parts.chunks.Pin(page));
      pins.push_back(std::move(pin));
    }
    DropContentIfUnused(inode);
  }
  if (!extents.ok()) return extents.error();
  std::unordered_map<Digest, uint64_t, DigestHash> sizes;
  for (const Extent& extent : *extents) sizes[extent.digest] = extent.chunk_size;
  for (const Digest& page : pages) {
    CAIRNFS_ASSIGN_OR_RETURN(const std::string text, store::GetText(parts.chunks, page));
    sizes[page] = text.size();
  }
  ChunkTotals totals{sizes.size(), 0};
  for (const auto& [digest, size] : sizes) totals.bytes += size;
  return totals;
}

void FileSystem::GetXattr(InodeId id, std::string_view name, Done<std::string> done, const Caller& caller) {
  if (!IsOwn(name)) return done(impl_->parts.names.GetXattr(id, name));
  if (name == kDurability) return done(impl_->DurabilityOf(id));
  if (name == kLevel) return done(impl_->LevelOf(id));
  if (name != kUniqueBytes && name != kChunks) {
    return done(MakeError(ErrorCode::kNoData, "no attribute of this name"));
  }
  auto attr = impl_->parts.names.GetAttr(id);
  if (!attr.ok()) return done(attr.error());
  if ((attr->mode & S_IFMT) != S_IFREG) return done(MakeError(ErrorCode::kNoData, "only regular files have chunks"));
  InodePtr inode = impl_->table.Hold(id);
  auto count = [this, inode, unique = name == kUniqueBytes, done, caller] {
    // Where it cannot be had, what is in memory is told.
    if (impl_->host != nullptr) static_cast<void>(impl_->Refresh(inode, caller, {.may_wait = true}).ok());
    auto taken = impl_->ChunksOf(inode);
    impl_->table.Unhold(inode);
    if (!taken.ok()) return done(taken.error());
    done(std::to_string(unique ? taken->bytes : taken->count));
  };
  impl_->PostToWait(caller, std::move(count), [this, inode, done](const Status& refused) {
    impl_->table.Unhold(inode);
    done(refused.error());
  });
}

Status FileSystem::SetXattr(InodeId inode, std::string_view name, std::string_view value,
                            meta::Namespace::XattrMode mode) {
  if (name == kLevel) return impl_->SetLevel(inode, value);
  if (IsOwn(name)) return MakeError(ErrorCode::kPermission, "attributes under user.cairnfs. are CairnFS's own");
  SyncRounds::Operation operation(*impl_->rounds);
  CAIRNFS_RETURN_IF_ERROR(impl_->parts.names.SetXattr(inode, name, value, mode));
  if (name == kCapability) impl_->NotePrivilegesGiven(inode);
  return {};
}

Result<std::vector<std::string>> FileSystem::ListXattrs(InodeId inode) { return impl_->parts.names.ListXattrs(inode); }

Status FileSystem::RemoveXattr(InodeId inode, std::string_view name) {
  if (name == kLevel) return impl_->SetLevel(inode, std::nullopt);
  if (IsOwn(name)) return MakeError(ErrorCode::kPermission, "attributes under user.cairnfs. are CairnFS's own");
  SyncRounds::Operation operation(*impl_->rounds);
  return impl_->parts.names.RemoveXattr(inode, name);
}

}  // namespace cairnfs::fs
