#include <linux/fuse.h>

#include <string>
#include <string_view>
#include <vector>

#include "fs/directories.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fuse/admitted.h"
#include "fuse/interrupt.h"
#include "fuse/ops.h"
#include "fuse/reply.h"
#include "fuse/session.h"

namespace cairnfs::fuse {
namespace {

bool IsDots(std::string_view name) { return name == "." || name == ".."; }

// The part of an entry that is known without a look-up. Inode 0: the kernel makes no dentry of it.
fuse_entry_param EntryWithoutAttr(const fs::DirectoryListing::Entry& listed) {
  fuse_entry_param entry{};
  entry.attr.st_ino = listed.inode.value;
  entry.attr.st_mode = listed.type;
  return entry;
}

void ListAndReply(const Context& context, fuse_req_t request, fs::FileSystem& filesystem, InodeId inode,
                  fs::HandleId handle, size_t size, uint64_t offset) {
  auto listing = filesystem.directories().Read(context, handle, inode, offset);
  if (!listing.ok()) return ReplyError(request, listing.error());
  std::string out(size, '\0');
  size_t used = 0;
  for (uint64_t i = offset; i < (*listing)->size(); ++i) {
    const fs::DirectoryListing::Entry entry = (*listing)->At(i);
    const fuse_entry_param known = EntryWithoutAttr(entry);
    const size_t needed = fuse_add_direntry(request, out.data() + used, size - used, entry.name, &known.attr,
                                            static_cast<off_t>(entry.next_offset));
    if (needed > size - used) break;
    used += needed;
  }
  fuse_reply_buf(request, out.data(), used);
}

void ListWithAttrAndReply(const Context& context, fuse_req_t request, fs::FileSystem& filesystem, InodeId inode,
                          fs::HandleId handle, size_t size, uint64_t offset) {
  auto listing = filesystem.directories().Read(context, handle, inode, offset);
  if (!listing.ok()) return ReplyError(request, listing.error());
  std::string out(size, '\0');
  std::vector<InodeId> looked_up;
  size_t used = 0;
  for (uint64_t i = offset; i < (*listing)->size(); ++i) {
    const fs::DirectoryListing::Entry entry = (*listing)->At(i);
    if (fuse_add_direntry_plus(request, nullptr, 0, entry.name, nullptr, 0) > size - used) break;
    fuse_entry_param known = EntryWithoutAttr(entry);
    // Where the kernel may not keep attributes, they are not worth a round trip each.
    if (!IsDots(entry.name) && CacheTimesOf(request).attr_seconds > 0) {
      // A name that has gone since the listing was taken is listed without attributes.
      const bool is_asked = IsAskedEachTime(request, inode, entry.name);
      auto attr = filesystem.names().Lookup(context, inode, entry.name);
      if (attr.ok()) {
        const EntryPlace place{inode, entry.name, is_asked, NamesBeside(request, *attr)};
        known = EntryOf(*attr, CacheTimesOf(request, *attr, place), place.is_beside);
        looked_up.push_back(attr->inode);
      }
    }
    used += fuse_add_direntry_plus(request, out.data() + used, size - used, entry.name, &known,
                                   static_cast<off_t>(entry.next_offset));
  }
  if (fuse_reply_buf(request, out.data(), used) == 0) return;
  for (InodeId each : looked_up) filesystem.names().Forget(each, 1);
}

}  // namespace

void OpOpenDir(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  WhereItMayWait(request, [request, inode, file = *file](fs::FileSystem& filesystem, const fs::Caller& caller) {
    auto handle = filesystem.directories().Open(caller.context, InodeId{inode});
    if (!handle.ok()) return ReplyInodeError(request, handle.error());
    fuse_file_info opened = file;
    opened.fh = *handle;
    if (fuse_reply_open(request, &opened) != 0) filesystem.directories().Release(*handle);
  });
}

void OpReadDir(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info* file) {
  WhereItMayWait(request, [=, handle = file->fh](fs::FileSystem& filesystem, const fs::Caller& caller) {
    ListAndReply(caller.context, request, filesystem, InodeId{inode}, handle, size, static_cast<uint64_t>(offset));
  });
}

void OpReadDirPlus(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info* file) {
  WhereItMayWait(request, [=, handle = file->fh](fs::FileSystem& filesystem, const fs::Caller& caller) {
    ListWithAttrAndReply(caller.context, request, filesystem, InodeId{inode}, handle, size,
                         static_cast<uint64_t>(offset));
  });
}

void OpReleaseDir(fuse_req_t request, fuse_ino_t, fuse_file_info* file) {
  SessionOf(request).filesystem().directories().Release(file->fh);
  fuse_reply_err(request, 0);
}

void OpFsyncDir(fuse_req_t request, fuse_ino_t inode, int, fuse_file_info* file) {
  SessionOf(request).filesystem().open_files().Fsync(
      file->fh, InodeId{inode}, [request](const Result<void>& status) { ReplyStatus(request, status); },
      CallerOf(request));
}

}  // namespace cairnfs::fuse
