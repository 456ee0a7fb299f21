#define FUSE_USE_VERSION 314
#include "transport.h"

#include <fuse_lowlevel.h>
#include <linux/fuse.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "fuse/negotiation.h"

namespace cairnfs::bench {
namespace {

constexpr fuse_ino_t kFile = 2;
constexpr double kTimeoutSeconds = 1.0;
constexpr size_t kNoBuffer = SIZE_MAX;
// What lies in front of a write's payload; the request is received so much before the payload's page.
constexpr size_t kWriteHeaders = sizeof(fuse_in_header) + sizeof(fuse_write_in);

struct Floor {
  FloorBuffers& buffers;
  Pack& pack;
  fuse_session* session = nullptr;
  size_t answer_buffer = 0;              // what reads are answered from
  size_t answer_count = 1;               // or else from so many, by offset
  std::atomic<uint64_t> init_unique{0};  // the INIT request's number
  std::atomic<bool> exists{false};
  std::atomic<uint64_t> size{0};
};
Floor* floor_state = nullptr;
thread_local size_t receiving = kNoBuffer;  // the buffer that this thread's request lies in

struct stat Attributes(fuse_ino_t inode) {
  struct stat status {};
  status.st_ino = inode;
  status.st_mode = inode == kFile ? S_IFREG | 0644 : S_IFDIR | 0755;
  status.st_nlink = 1;
  if (inode == kFile) status.st_size = static_cast<off_t>(floor_state->size);
  return status;
}

fuse_entry_param Entry() {
  fuse_entry_param entry{};
  entry.ino = kFile;
  entry.attr_timeout = kTimeoutSeconds;
  entry.entry_timeout = kTimeoutSeconds;
  entry.attr = Attributes(kFile);
  return entry;
}

void Init(void*, fuse_conn_info* connection) {
  connection->max_write = FloorBuffers::kPayloadBytes;
  connection->want &= ~static_cast<unsigned>(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE);
}

void Lookup(fuse_req_t request, fuse_ino_t, const char*) {
  if (!floor_state->exists) {
    fuse_reply_err(request, ENOENT);
    return;
  }
  fuse_entry_param entry = Entry();
  fuse_reply_entry(request, &entry);
}

void GetAttributes(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  struct stat status = Attributes(inode);
  fuse_reply_attr(request, &status, kTimeoutSeconds);
}

void SetAttributes(fuse_req_t request, fuse_ino_t inode, struct stat* wanted, int which, fuse_file_info*) {
  if ((which & FUSE_SET_ATTR_SIZE) != 0) floor_state->size = static_cast<uint64_t>(wanted->st_size);
  struct stat status = Attributes(inode);
  fuse_reply_attr(request, &status, kTimeoutSeconds);
}

void Create(fuse_req_t request, fuse_ino_t, const char*, mode_t, fuse_file_info* file) {
  floor_state->exists = true;
  floor_state->size = 0;
  file->direct_io = 1;
  fuse_entry_param entry = Entry();
  fuse_reply_create(request, &entry, file);
}

void Open(fuse_req_t request, fuse_ino_t, fuse_file_info* file) {
  file->direct_io = 1;
  fuse_reply_open(request, file);
}

// Removing the file is how the driver begins a new round: the pack starts anew.
void Unlink(fuse_req_t request, fuse_ino_t, const char*) {
  floor_state->exists = false;
  int error = floor_state->pack.Sync();
  if (error == 0) error = floor_state->pack.Restart();
  fuse_reply_err(request, error);
}

void Write(fuse_req_t request, fuse_ino_t, const char*, size_t size, off_t offset, fuse_file_info*) {
  uint64_t end = static_cast<uint64_t>(offset) + size;
  uint64_t before = floor_state->size;
  while (before < end && !floor_state->size.compare_exchange_weak(before, end)) {
  }
  floor_state->pack.Expect();
  fuse_reply_write(request, size);
  floor_state->pack.Add(std::exchange(receiving, kNoBuffer), size);
}

void Read(fuse_req_t request, fuse_ino_t, size_t size, off_t offset, fuse_file_info*) {
  uint64_t end = floor_state->size;
  uint64_t left = static_cast<uint64_t>(offset) < end ? end - static_cast<uint64_t>(offset) : 0;
  uint64_t count = std::min<uint64_t>(size, left);
  // One buffer stays in the processor's cache; all of them are memory, as a checkpoint in a cache is.
  uint64_t piece = static_cast<uint64_t>(offset) / FloorBuffers::kPayloadBytes;
  std::vector<iovec> parts;
  for (; count > 0; piece++) {
    size_t buffer = floor_state->answer_count > 1 ? piece % floor_state->answer_count : floor_state->answer_buffer;
    parts.push_back({floor_state->buffers.payload(buffer), std::min<uint64_t>(count, FloorBuffers::kPayloadBytes)});
    count -= parts.back().iov_len;
  }
  fuse_reply_iov(request, parts.data(), static_cast<int>(parts.size()));
}

// Reads are to be as large as those of CairnFS. libfuse has no name for larger reads than writes: the answer to INIT is
// changed on its way.
ssize_t WriteReply(int fd, iovec* parts, int count, void*) {
  const auto* header = static_cast<const fuse_out_header*>(parts[0].iov_base);
  if (header->unique == floor_state->init_unique && count == 2 && parts[1].iov_len >= sizeof(fuse_init_out)) {
    static_cast<fuse_init_out*>(parts[1].iov_base)->max_pages = fuse::kMaxReadBytes / kPageBytes;
  }
  return writev(fd, parts, count);
}
ssize_t ReadNothing(int, void*, size_t, void*) {
  errno = EAGAIN;
  return -1;
}

void Fsync(fuse_req_t request, fuse_ino_t, int, fuse_file_info*) { fuse_reply_err(request, floor_state->pack.Sync()); }
void Flush(fuse_req_t request, fuse_ino_t, fuse_file_info*) { fuse_reply_err(request, 0); }

// Reads /dev/fuse into its own buffers, so that a write's payload lies page-aligned and is never copied.
void Receive() {
  Floor& floor = *floor_state;
  int device = fuse_session_fd(floor.session);
  while (!fuse_session_exited(floor.session)) {
    if (receiving == kNoBuffer) receiving = floor.buffers.Take();
    std::byte* begin = floor.buffers.payload(receiving) - kWriteHeaders;
    ssize_t count = read(device, begin, kWriteHeaders + FloorBuffers::kPayloadBytes + kPageBytes);
    if (count < 0 && (errno == ENODEV || errno == EBADF)) break;
    if (count <= 0) continue;
    const auto* header = reinterpret_cast<const fuse_in_header*>(begin);
    if (header->opcode == FUSE_INIT) floor.init_unique = header->unique;
    fuse_buf buffer{};
    buffer.mem = begin;
    buffer.size = static_cast<size_t>(count);
    fuse_session_process_buf(floor.session, &buffer);
  }
}

fuse_lowlevel_ops Operations() {
  fuse_lowlevel_ops operations{};
  operations.init = Init;
  operations.lookup = Lookup;
  operations.getattr = GetAttributes;
  operations.setattr = SetAttributes;
  operations.create = Create;
  operations.open = Open;
  operations.unlink = Unlink;
  operations.write = Write;
  operations.read = Read;
  operations.fsync = Fsync;
  operations.flush = Flush;
  return operations;
}

}  // namespace

int ServeFloor(const FloorOptions& options, FloorBuffers& buffers, Pack& pack) {
  Floor floor{buffers, pack};
  floor.answer_buffer = buffers.Take();
  if (options.answer_from_all) floor.answer_count = options.buffer_count;
  floor_state = &floor;
  fuse_lowlevel_ops operations = Operations();
  char name[] = "bench_floor";
  char option[] = "-osubtype=cairnfs-bench-floor";
  char* words[] = {name, option, nullptr};
  fuse_args arguments = FUSE_ARGS_INIT(2, words);
  floor.session = fuse_session_new(&arguments, &operations, sizeof operations, nullptr);
  if (floor.session == nullptr) return 1;
  if (fuse_session_mount(floor.session, options.mount_point.c_str()) != 0) return 1;
  fuse_custom_io io{};
  io.writev = WriteReply;
  io.read = ReadNothing;  // Receive reads
  if (fuse_session_custom_io(floor.session, &io, fuse_session_fd(floor.session)) != 0) return 1;
  std::puts("ready");
  std::fflush(stdout);
  {
    std::vector<std::jthread> receivers;
    for (unsigned i = 0; i < options.receive_threads; i++) receivers.emplace_back(Receive);
  }
  fuse_session_unmount(floor.session);
  std::fflush(nullptr);
  _exit(0);  // the threads of the pack never end
}

}  // namespace cairnfs::bench
