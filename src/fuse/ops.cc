#include "fuse/ops.h"

namespace cairnfs::fuse {

const fuse_lowlevel_ops& Operations(void (*init)(void* user_data, fuse_conn_info* connection)) {
  static fuse_lowlevel_ops operations = [] {
    fuse_lowlevel_ops table{};
    table.lookup = OpLookup;
    table.forget = OpForget;
    table.forget_multi = OpForgetMulti;
    table.readlink = OpReadLink;
    table.mknod = OpMknod;
    table.mkdir = OpMkdir;
    table.symlink = OpSymlink;
    table.link = OpLink;
    table.unlink = OpUnlink;
    table.rmdir = OpRmdir;
    table.rename = OpRename;
    table.getattr = OpGetAttr;
    table.setattr = OpSetAttr;
    table.statfs = OpStatFs;
    table.ioctl = OpIoctl;
    table.open = OpOpen;
    table.create = OpCreate;
    table.flush = OpFlush;
    table.release = OpRelease;
    table.fsync = OpFsync;
    table.read = OpRead;
    table.write = OpWrite;
    table.fallocate = OpFallocate;
    table.lseek = OpLseek;
    table.copy_file_range = OpCopyFileRange;
    table.getlk = OpGetLk;
    table.setlk = OpSetLk;
    table.flock = OpFlock;
    table.opendir = OpOpenDir;
    table.readdir = OpReadDir;
    table.readdirplus = OpReadDirPlus;
    table.releasedir = OpReleaseDir;
    table.fsyncdir = OpFsyncDir;
    table.setxattr = OpSetXattr;
    table.getxattr = OpGetXattr;
    table.listxattr = OpListXattr;
    table.removexattr = OpRemoveXattr;
    return table;
  }();
  operations.init = init;
  return operations;
}

}  // namespace cairnfs::fuse
