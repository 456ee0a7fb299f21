#include "workload.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "content_model.h"

namespace cairnfs::testing {

Workload::Workload(const WorkloadOptions& options, Writer& writer, Sequence& sequence)
    : options_(options),
      writer_(writer),
      sequence_(sequence),
      random_(options.seed),
      directory_(options.root + "/" + writer.name) {}

Workload::~Workload() {
  for (int fd : deleted_open_) close(fd);
}

void Workload::Run(const std::atomic<bool>& stop) {
  while (!stop && Act()) {
    if (random_.OneIn(3)) usleep(static_cast<useconds_t>(random_.Below(options_.pause_us_max)));
  }
}

Record& Workload::Begin(Step step, const std::string& a, const std::string& b, int file) {
  Record& record = writer_.track.emplace_back();
  record.step = step;
  record.a = a;
  record.b = b;
  record.file = file;
  return record;
}

bool Workload::Fail(const char* what) {
  failure_errno_ = errno;
  failure_ = fmt::format("{}: {}: {}", writer_.name, what, strerror(failure_errno_));
  return false;
}

// Runs after the call; its result says whether the step is done.
bool Workload::End(Record& record, int64_t result, const char* what) {
  if (result < 0) return Fail(what);
  sequence_.End(record);
  return true;
}

int Workload::OpenFile(const std::string& path, int flags) {
  int fd = open(Full(path).c_str(), flags | O_CLOEXEC);
  if (fd < 0) Fail("open");
  return fd;
}

bool Workload::CloseFile(int fd, int file) {
  Record& record = Begin(Step::kClose, "", "", file);
  sequence_.Begin(record);
  return End(record, close(fd), "close");
}

bool Workload::SyncFile(int fd, int file) {
  Record& record = Begin(Step::kFsync, "", "", file);
  record.is_sync_point = true;
  sequence_.Begin(record);
  return End(record, random_.OneIn(3) ? fdatasync(fd) : fsync(fd), "fsync");
}

uint64_t Workload::PickSize() {
  if (random_.OneIn(6)) return random_.Between(options_.file_bytes_max, options_.file_bytes_max * 4);
  return 1 + random_.Skewed(options_.file_bytes_max);
}

// A third of the content was written before, by this writer or another one.
uint64_t Workload::PickSeed() { return random_.OneIn(3) ? random_.Below(24) : random_.Next(); }

bool Workload::WriteTo(int fd, int file, uint64_t offset, uint64_t length, bool is_sync_point) {
  Record& record = Begin(Step::kWrite, "", "", file);
  record.offset = offset;
  record.length = length;
  record.seed = PickSeed();
  record.is_sync_point = is_sync_point;
  std::string bytes = MakeContent(record.seed, length);
  ApplyData(record, contents_[file]);
  sequence_.Begin(record);
  ssize_t count = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
  if (count >= 0 && static_cast<size_t>(count) != bytes.size()) {
    errno = EIO;
    return Fail("a short write");
  }
  return End(record, count, "pwrite");
}

bool Workload::SaveNew(const std::string& path, bool sync, File* saved) {
  int id = files_made_++;
  Record& create = Begin(Step::kCreate, path, "", id);
  create.mode = 0640;
  sequence_.Begin(create);
  int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | (options_.sync_percent > 0 && random_.OneIn(20) ? O_SYNC : 0);
  int fd = open(Full(path).c_str(), flags, 0640);
  if (!End(create, fd, "create")) return false;
  uint64_t size = PickSize();
  uint64_t done = 0;
  while (done < size) {
    uint64_t count = std::min(size - done, 1 + random_.Skewed(256 * 1024));
    if (!WriteTo(fd, id, done, count, (flags & O_SYNC) != 0)) return close(fd), false;
    done += count;
  }
  if (sync && !SyncFile(fd, id)) return close(fd), false;
  *saved = File{path, id};
  return CloseFile(fd, id);
}

bool Workload::Overwrite() {
  File file = files_[PickFile()];
  int fd = OpenFile(file.path, O_RDWR);
  if (fd < 0) return false;
  uint64_t size = contents_[file.id].size();
  for (uint64_t i = random_.Between(1, 4); i > 0; --i) {
    if (!WriteTo(fd, file.id, random_.Below(size + 1), 1 + random_.Skewed(64 * 1024), false)) return close(fd), false;
    if (random_.Percent(options_.sync_percent) && !SyncFile(fd, file.id)) return close(fd), false;
    if (random_.OneIn(8)) usleep(static_cast<useconds_t>(random_.Below(20000)));
  }
  return CloseFile(fd, file.id);
}

bool Workload::Append() {
  File file = files_[PickFile()];
  int fd = OpenFile(file.path, O_WRONLY | O_APPEND);
  if (fd < 0) return false;
  uint64_t length = 1 + random_.Skewed(100 * 1024);
  if (!WriteTo(fd, file.id, contents_[file.id].size(), length, false)) return close(fd), false;
  return CloseFile(fd, file.id);
}

bool Workload::Truncate() {
  File file = files_[PickFile()];
  int fd = OpenFile(file.path, O_WRONLY);
  if (fd < 0) return false;
  Record& record = Begin(Step::kTruncate, "", "", file.id);
  record.length = random_.Below(contents_[file.id].size() * 5 / 4 + 1);
  ApplyData(record, contents_[file.id]);
  sequence_.Begin(record);
  if (!End(record, ftruncate(fd, static_cast<off_t>(record.length)), "ftruncate")) return close(fd), false;
  return CloseFile(fd, file.id);
}

bool Workload::Punch() {
  File file = files_[PickFile()];
  int fd = OpenFile(file.path, O_WRONLY);
  if (fd < 0) return false;
  Record& record = Begin(Step::kPunch, "", "", file.id);
  record.offset = random_.Below(contents_[file.id].size() + 1);
  record.length = 1 + random_.Skewed(100 * 1024);
  ApplyData(record, contents_[file.id]);
  sequence_.Begin(record);
  int rc = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(record.offset),
                     static_cast<off_t>(record.length));
  if (!End(record, rc, "punch hole")) return close(fd), false;
  return CloseFile(fd, file.id);
}

bool Workload::Copy() {
  File from = files_[PickFile()];
  int id = files_made_++;
  std::string path = FreshName("c");
  Record& create = Begin(Step::kCreate, path, "", id);
  create.mode = 0600;
  sequence_.Begin(create);
  int to_fd = open(Full(path).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (!End(create, to_fd, "create")) return false;
  int from_fd = OpenFile(from.path, O_RDONLY);
  if (from_fd < 0) return close(to_fd), false;
  const std::string& source = contents_[from.id];
  uint64_t begin = random_.OneIn(2) ? 0 : random_.Below(source.size() + 1);
  Record& record = Begin(Step::kWrite, "", "", id);
  record.bytes = std::make_shared<std::string>(source.substr(begin));
  record.length = record.bytes->size();
  ApplyData(record, contents_[id]);
  sequence_.Begin(record);
  off_t position = static_cast<off_t>(begin);
  uint64_t done = 0;
  ssize_t count = 1;
  while (done < record.length &&
         (count = copy_file_range(from_fd, &position, to_fd, nullptr, record.length - done, 0)) > 0) {
    done += count;
  }
  close(from_fd);
  if (count == 0) {
    errno = EIO;
    count = -1;
  }
  if (!End(record, count, "copy_file_range")) return close(to_fd), false;
  files_.push_back(File{path, id});
  return CloseFile(to_fd, id);
}

// Stores through a shared mapping count from munmap or close on.
bool Workload::MapAndWrite() {
  File file = files_[PickFile()];
  uint64_t size = contents_[file.id].size();
  if (size == 0) return true;
  int fd = OpenFile(file.path, O_RDWR);
  if (fd < 0) return false;
  Record& record = Begin(Step::kWrite, "", "", file.id);
  record.offset = random_.Below(size);
  record.length = std::min<uint64_t>(size - record.offset, 1 + random_.Skewed(20000));
  record.seed = PickSeed();
  ApplyData(record, contents_[file.id]);
  sequence_.Begin(record);
  void* map = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return Fail("mmap"), close(fd), false;
  // A store would end in SIGBUS if the daemon died just now: written through /proc/self/mem, it fails instead.
  std::string bytes = MakeContent(record.seed, record.length);
  int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
  ssize_t count =
      pwrite(memory, bytes.data(), bytes.size(), static_cast<off_t>(reinterpret_cast<uintptr_t>(map) + record.offset));
  close(memory);
  if (count != static_cast<ssize_t>(bytes.size())) {
    errno = EIO;
    count = -1;
  }
  int rc = random_.OneIn(2) ? msync(map, size, MS_SYNC) : 0;
  munmap(map, size);
  if (!End(record, count < 0 ? count : rc, "mmap")) return close(fd), false;
  return CloseFile(fd, file.id);
}

bool Workload::Rename() {
  size_t index = PickFile();
  File file = files_[index];
  std::string path = FreshName("r");
  Record& record = Begin(Step::kRenameFile, file.path, path, file.id);
  sequence_.Begin(record);
  if (!End(record, rename(Full(file.path).c_str(), Full(path).c_str()), "rename")) return false;
  files_[index].path = path;
  return true;
}

bool Workload::MakeLink() {
  std::string path = FreshName("l");
  if (random_.OneIn(2)) {
    Record& record = Begin(Step::kSymlink, path, "target-" + path);
    sequence_.Begin(record);
    links_.push_back(path);
    return End(record, symlink(record.b.c_str(), Full(path).c_str()), "symlink");
  }
  File file = files_[PickFile()];
  Record& record = Begin(Step::kLink, file.path, path, file.id);
  sequence_.Begin(record);
  if (!End(record, link(Full(file.path).c_str(), Full(path).c_str()), "link")) return false;
  files_.push_back(File{path, file.id});
  return true;
}

bool Workload::Attributes() {
  File file = files_[PickFile()];
  if (random_.OneIn(2)) {
    Record& record = Begin(Step::kChmod, file.path);
    record.mode = 0400 | static_cast<uint32_t>(random_.Below(0400)) | 0200;
    sequence_.Begin(record);
    return End(record, chmod(Full(file.path).c_str(), record.mode), "chmod");
  }
  Record& record = Begin(Step::kSetxattr, file.path, std::to_string(random_.Next()));
  sequence_.Begin(record);
  return End(record, setxattr(Full(file.path).c_str(), "user.test", record.b.data(), record.b.size(), 0), "setxattr");
}

bool Workload::Delete() { return DeleteAt(PickFile()); }

bool Workload::DeleteAt(size_t index) {
  std::string path = files_[index].path;
  Record& record = Begin(Step::kUnlink, path);
  sequence_.Begin(record);
  files_.erase(files_.begin() + static_cast<ptrdiff_t>(index));
  return End(record, unlink(Full(path).c_str()), "unlink");
}

// A file that lives on without a name: after a crash it is gone, and its space comes back.
bool Workload::DeleteOpen() {
  std::swap(files_[PickFile()], files_.back());
  int fd = OpenFile(files_.back().path, O_RDWR);
  if (fd < 0) return false;
  deleted_open_.push_back(fd);
  if (deleted_open_.size() > 3) {
    close(deleted_open_.front());
    deleted_open_.pop_front();
  }
  return DeleteAt(files_.size() - 1);
}

bool Workload::SyncDirectory() {
  int fd = OpenFile(".", O_RDONLY | O_DIRECTORY);
  if (fd < 0) return false;
  Record& record = Begin(Step::kFsyncDirectory, ".");
  record.is_sync_point = true;
  sequence_.Begin(record);
  int rc = fsync(fd);
  int saved = errno;
  close(fd);
  errno = saved;
  return End(record, rc, "fsync of a directory");
}

}  // namespace cairnfs::testing
