// A small FUSE filesystem with one file for each disk, disk0.img and so on, that logs every write and every flush
// before it answers them.
//
//   block_log_fs MOUNTPOINT LOG COUNT IMAGE...
//
// The IMAGEs are the files behind the disks; LOG and COUNT: device_log.h. Serves in the foreground until it is
// unmounted. One thread answers one request after the other, so that the order in the log is the order in which they
// were done.
#define FUSE_USE_VERSION 314
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "device_log.h"

namespace cairnfs::testing {
namespace {

constexpr fuse_ino_t kFirstDisk = 2;  // the inode of disk0.img
constexpr double kForever = 3600;

struct Server {
  std::vector<int> images;
  int log = -1;
  SharedCount* count = nullptr;
};
Server server;

bool IsDisk(fuse_ino_t inode) { return inode >= kFirstDisk && inode < kFirstDisk + server.images.size(); }
uint32_t DeviceOf(fuse_ino_t inode) { return static_cast<uint32_t>(inode - kFirstDisk); }

void Append(LogEntryHeader::Kind kind, uint32_t device, uint64_t offset, const char* data, size_t length) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  LogEntryHeader header{kind, device, offset, length, now.tv_sec * 1000000000LL + now.tv_nsec};
  bool written = write(server.log, &header, sizeof(header)) == static_cast<ssize_t>(sizeof(header));
  written = written && (length == 0 || write(server.log, data, length) == static_cast<ssize_t>(length));
  if (!written) {
    perror("block_log_fs: the log cannot be written");
    _exit(1);
  }
  server.count->Increment();
}

struct stat StatOf(fuse_ino_t inode) {
  struct stat info = {};
  info.st_ino = inode;
  info.st_nlink = 1;
  info.st_mode = S_IFDIR | 0755;
  if (IsDisk(inode)) {
    fstat(server.images[DeviceOf(inode)], &info);
    info.st_ino = inode;
  }
  return info;
}

void Lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  unsigned number = 0;
  bool is_disk = parent == FUSE_ROOT_ID && std::sscanf(name, "disk%u.img", &number) == 1;
  if (!is_disk || number >= server.images.size()) {
    fuse_reply_err(request, ENOENT);
    return;
  }
  fuse_entry_param entry = {};
  entry.ino = kFirstDisk + number;
  entry.attr = StatOf(entry.ino);
  entry.attr_timeout = entry.entry_timeout = kForever;
  fuse_reply_entry(request, &entry);
}

void GetAttr(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  struct stat info = StatOf(inode);
  fuse_reply_attr(request, &info, kForever);
}

void Open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  if (!IsDisk(inode)) {
    fuse_reply_err(request, EISDIR);
    return;
  }
  file->direct_io = 1;  // otherwise writes would wait in the page cache of the kernel
  fuse_reply_open(request, file);
}

void Read(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info*) {
  std::vector<char> buffer(size);
  ssize_t count = pread(server.images[DeviceOf(inode)], buffer.data(), size, offset);
  if (count < 0)
    fuse_reply_err(request, errno);
  else
    fuse_reply_buf(request, buffer.data(), static_cast<size_t>(count));
}

void Write(fuse_req_t request, fuse_ino_t inode, const char* data, size_t size, off_t offset, fuse_file_info*) {
  if (pwrite(server.images[DeviceOf(inode)], data, size, offset) != static_cast<ssize_t>(size)) {
    fuse_reply_err(request, EIO);
    return;
  }
  Append(LogEntryHeader::kWrite, DeviceOf(inode), static_cast<uint64_t>(offset), data, size);
  fuse_reply_write(request, size);
}

void Fsync(fuse_req_t request, fuse_ino_t inode, int, fuse_file_info*) {
  Append(LogEntryHeader::kFlush, DeviceOf(inode), 0, nullptr, 0);
  fuse_reply_err(request, 0);
}

int Main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: block_log_fs MOUNTPOINT LOG COUNT IMAGE...\n");
    return 2;
  }
  server.log = open(argv[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  for (int i = 4; i < argc; ++i) server.images.push_back(open(argv[i], O_RDWR | O_CLOEXEC));
  for (int fd : server.images) {
    if (fd < 0 || server.log < 0) {
      perror("block_log_fs");
      return 1;
    }
  }
  SharedCount count(argv[3]);
  server.count = &count;
  fuse_lowlevel_ops operations = {};
  operations.lookup = Lookup;
  operations.getattr = GetAttr;
  operations.open = Open;
  operations.read = Read;
  operations.write = Write;
  operations.fsync = Fsync;
  char* words[] = {argv[0], nullptr};
  fuse_args arguments = FUSE_ARGS_INIT(1, words);
  fuse_session* session = fuse_session_new(&arguments, &operations, sizeof(operations), nullptr);
  if (session == nullptr || fuse_session_mount(session, argv[1]) != 0) return 1;
  fuse_set_signal_handlers(session);
  int rc = fuse_session_loop(session);
  fuse_session_unmount(session);
  fuse_session_destroy(session);
  return rc < 0 ? 1 : 0;
}

}  // namespace
}  // namespace cairnfs::testing

int main(int argc, char** argv) { return cairnfs::testing::Main(argc, argv); }
