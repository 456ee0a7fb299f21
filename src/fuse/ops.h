// The FUSE operations: one small function each, by theme in ops_*.cc. Each decodes its request, calls the filesystem
// and replies, at once or from the filesystem's callback. No lock is held meanwhile.
//
// Left out on purpose: access (default_permissions: the kernel checks), bmap, poll, and O_TMPFILE, which libfuse 3.14
// answers with ENOSYS and the kernel turns into EOPNOTSUPP.
#pragma once

#include <fuse_lowlevel.h>

#include "fs/filesystem.h"

namespace cairnfs::fuse {

// The table for libfuse, with `init` as its INIT hook.
const fuse_lowlevel_ops& Operations(void (*init)(void* user_data, fuse_conn_info* connection));

// Gives the write to the filesystem and replies when that is done.
void SubmitWrite(fuse_req_t request, fs::FileSystem::WriteRequest write);

// Answers a write for which no buffer came. `write` has no data; `payload` lies in the message, or is a copy.
void RefuseWrite(fuse_req_t request, fs::FileSystem::WriteRequest write, ByteSpan payload, const Error& why);

// Open flags as open(2) has them.
fs::OpenFlags OpenFlagsOf(int flags);
// Changes as a SETATTR request has them: FATTR_* bits and values.
fs::SetAttrRequest SetAttrRequestOf(uint32_t valid, const struct stat& values);

// ops_names.cc
void OpLookup(fuse_req_t request, fuse_ino_t parent, const char* name);
void OpForget(fuse_req_t request, fuse_ino_t inode, uint64_t count);
void OpForgetMulti(fuse_req_t request, size_t count, fuse_forget_data* forgets);
void OpReadLink(fuse_req_t request, fuse_ino_t inode);
void OpMknod(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device);
void OpMkdir(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode);
void OpSymlink(fuse_req_t request, const char* target, fuse_ino_t parent, const char* name);
void OpLink(fuse_req_t request, fuse_ino_t inode, fuse_ino_t new_parent, const char* new_name);
void OpUnlink(fuse_req_t request, fuse_ino_t parent, const char* name);
void OpRmdir(fuse_req_t request, fuse_ino_t parent, const char* name);
void OpRename(fuse_req_t request, fuse_ino_t from_parent, const char* from_name, fuse_ino_t to_parent,
              const char* to_name, unsigned flags);

// ops_attr.cc
void OpGetAttr(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file);
void OpSetAttr(fuse_req_t request, fuse_ino_t inode, struct stat* values, int to_set, fuse_file_info* file);
void OpStatFs(fuse_req_t request, fuse_ino_t inode);

// ops_files.cc
void OpOpen(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file);
void OpCreate(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* file);
void OpFlush(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file);
void OpRelease(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file);
void OpFsync(fuse_req_t request, fuse_ino_t inode, int data_only, fuse_file_info* file);

// ops_data.cc
void OpRead(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info* file);
void OpWrite(fuse_req_t request, fuse_ino_t inode, const char* data, size_t size, off_t offset, fuse_file_info* file);
void OpFallocate(fuse_req_t request, fuse_ino_t inode, int mode, off_t offset, off_t length, fuse_file_info* file);
void OpLseek(fuse_req_t request, fuse_ino_t inode, off_t offset, int whence, fuse_file_info* file);
void OpCopyFileRange(fuse_req_t request, fuse_ino_t from, off_t from_offset, fuse_file_info* from_file, fuse_ino_t to,
                     off_t to_offset, fuse_file_info* to_file, size_t length, int flags);

// ops_directories.cc
void OpOpenDir(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file);
void OpReadDir(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info* file);
void OpReadDirPlus(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info* file);
void OpReleaseDir(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file);
void OpFsyncDir(fuse_req_t request, fuse_ino_t inode, int data_only, fuse_file_info* file);

// ops_locks.cc: asked only where the kernel does not keep the locks.
void OpGetLk(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file, struct flock* range);
void OpSetLk(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file, struct flock* range, int sleep);
void OpFlock(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file, int operation);

// ops_ioctl.cc
void OpIoctl(fuse_req_t request, fuse_ino_t inode, unsigned command, void* argument, fuse_file_info* file,
             unsigned flags, const void* in, size_t in_size, size_t out_size);

// ops_xattr.cc
void OpSetXattr(fuse_req_t request, fuse_ino_t inode, const char* name, const char* value, size_t size, int flags);
void OpGetXattr(fuse_req_t request, fuse_ino_t inode, const char* name, size_t size);
void OpListXattr(fuse_req_t request, fuse_ino_t inode, size_t size);
void OpRemoveXattr(fuse_req_t request, fuse_ino_t inode, const char* name);

}  // namespace cairnfs::fuse
