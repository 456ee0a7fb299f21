#include "fs/covering.h"

#include <sys/stat.h>

#include <algorithm>

#include "fs/recipe.h"
#include "fs/waits.h"

namespace cairnfs::fs {
namespace {

constexpr std::chrono::milliseconds kAskAgain{100};  // whether the copies are there
constexpr size_t kKeysPerRead = 64;                  // records of files

constexpr size_t kChunksPerWait = 4096;
constexpr size_t kEntriesPerRead = 1024;

// A directory whose entries are gone through: one page of them is in memory.
struct Walk {
  InodeId directory;
  std::string after = {};           // the last name that was read
  std::vector<InodeId> below = {};  // directories of the page, which come before the next page
};

}  // namespace

// Before it goes on with more.
Status Covering::CheckContext() const {
  if (caller_.Expired()) return CallerIsGone();
  if (context_.IsStopped()) {
    return MakeError(ErrorCode::kUnavailable, "this host is stopping, and copies are still missing");
  }
  if (context_.IsLate()) {
    return MakeError(ErrorCode::kUnavailable, "the copies were not made in time (commit_wait_max)");
  }
  return {};
}

// Of what stands in the way of the file's copies: success once it is to be tried again.
Status Covering::PauseAfter(InodeId file, const Error& why) {
  if (why.code != ErrorCode::kUnavailable) return ErrorOf(file, why);
  if (context_.IsLate()) return ErrorOf(file, why);
  static_cast<void>(context_.Sleep(kAskAgain));  // expired: so says the check
  return context_.IsStopped() ? CheckContext() : Status();
}

Error Covering::ErrorOf(InodeId file, const Error& why) {
  return why.WithContext("'" + parts_.names.PathOfInode(caller_, file) + "' lacks copies");
}

Status Covering::Cover(const meta::Attr& source) {
  if (S_ISREG(source.mode)) return CoverFile(source.inode);
  if (!S_ISDIR(source.mode)) return {};
  CAIRNFS_RETURN_IF_ERROR(CoverBelow(source.inode));
  return AwaitCopies();
}

Status Covering::CoverFile(InodeId file) {
  CAIRNFS_RETURN_IF_ERROR(AddFiles({file}));
  return AwaitCopies();
}

Status Covering::CoverBelow(InodeId directory) {
  std::vector<Walk> walks{{directory}};
  CAIRNFS_ASSIGN_OR_RETURN(const bool source_has_own, host_.levels().HasOwn(context_, directory));
  if (source_has_own) return {};
  while (!walks.empty()) {
    Walk& walk = walks.back();
    if (!walk.below.empty()) {
      const InodeId below = walk.below.back();
      walk.below.pop_back();
      CAIRNFS_ASSIGN_OR_RETURN(const bool has_own, host_.levels().HasOwn(context_, below));
      if (!has_own) walks.push_back({below});
      continue;
    }
    auto entries = parts_.names.ReadDirectory(context_, walk.directory, walk.after, kEntriesPerRead);
    const bool is_gone = !entries.ok() && entries.error().code == ErrorCode::kNotFound;
    if (!entries.ok() && !is_gone) return entries.error();
    if (is_gone || entries->empty()) {
      walks.pop_back();
      continue;
    }
    CAIRNFS_RETURN_IF_ERROR(CheckContext());
    walk.after = entries->back().name;
    std::vector<InodeId> files;
    for (const meta::DirectoryEntry& entry : *entries) {
      if (entry.type == S_IFDIR) walk.below.push_back(entry.inode);
      if (entry.type == S_IFREG) files.push_back(entry.inode);
    }
    CAIRNFS_RETURN_IF_ERROR(AddFiles(files));
  }
  return {};
}

Status Covering::AddFiles(const std::vector<InodeId>& files) {
  std::vector<std::string> keys;
  keys.reserve(files.size());
  for (InodeId file : files) keys.push_back(meta::FileKey(file));
  return kv::ReadKeys(context_, parts_.kv, keys, kKeysPerRead, [&](size_t i, const kv::KvEntry* entry) -> Status {
    if (entry == nullptr) return {};
    auto record = meta::FileRecord::Decode(entry->value);
    if (!record.ok()) return ErrorOf(files[i], record.error());
    return AddRecord(files[i], *record);
  });
}

Status Covering::AddRecord(InodeId file, const meta::FileRecord& record) {
  auto recipe = Recipe::Decode(record.recipe);
  if (!recipe.ok()) return ErrorOf(file, recipe.error());
  for (const Extent& extent : recipe->extents) {
    CAIRNFS_RETURN_IF_ERROR(Add(file, extent.digest, extent.chunk_size));
  }
  for (const PageRef& inner : recipe->inner) {
    std::string text;
    CAIRNFS_RETURN_IF_ERROR(AddPage(file, inner.digest, &text));
    auto leaves = DecodePageRefs(text);
    if (!leaves.ok()) return ErrorOf(file, leaves.error());
    for (const PageRef& leaf : *leaves) {
      CAIRNFS_RETURN_IF_ERROR(AddPage(file, leaf.digest, &text));
      auto extents = DecodeExtents(text, leaf.index * kLeafBytes, kLeafBytes);
      if (!extents.ok()) return ErrorOf(file, extents.error());
      for (const Extent& extent : *extents) CAIRNFS_RETURN_IF_ERROR(Add(file, extent.digest, extent.chunk_size));
    }
  }
  return {};
}

// `text` gets the page's bytes. Waits for hosts that have it and do not answer.
Status Covering::AddPage(InodeId file, const Digest& digest, std::string* text) {
  for (;;) {
    auto read = store::GetText(parts_.chunks, digest);
    if (read.ok()) {
      *text = *std::move(read);
      return Add(file, digest, text->size());
    }
    CAIRNFS_RETURN_IF_ERROR(PauseAfter(file, read.error()));
  }
}

Status Covering::Add(InodeId file, const Digest& digest, size_t size) {
  chunks_.push_back({digest, size});
  files_.push_back(file);
  if (chunks_.size() < kChunksPerWait) return {};
  CAIRNFS_RETURN_IF_ERROR(AwaitCopies());
  return CheckContext();
}

// A chunk that cannot be read holds up nobody else's sync; this operation waits for the nodes that have it.
Status Covering::AwaitCopies() {
  const std::vector<store::ChunkPin> pins = host_.chunks().Cover(chunks_);
  while (!pins.empty()) {
    const auto synced = host_.SyncReadableChunks(context_, Durability::kReplicated);
    if (!synced.ok() && context_.IsStopped()) return CheckContext();
    CAIRNFS_ASSIGN_OR_RETURN(const auto unreadable, synced);
    auto first = std::find_if(chunks_.begin(), chunks_.end(),
                              [&](const ClusterHost::SizedChunk& chunk) { return unreadable.contains(chunk.digest); });
    if (first == chunks_.end()) break;
    const Error& why = unreadable.at(first->digest);
    CAIRNFS_RETURN_IF_ERROR(PauseAfter(files_[static_cast<size_t>(first - chunks_.begin())], why));
  }
  chunks_.clear();
  files_.clear();
  return context_.IsStopped() ? CheckContext() : Status();
}

}  // namespace cairnfs::fs
