#include "checks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>

#include "../support/random.h"

namespace cairnfs::testing {
namespace {

constexpr uint64_t kWholeBelow = 96 * 1024;
constexpr uint64_t kWindow = 24 * 1024;
constexpr size_t kFindingsMax = 12;

std::string ReadRange(int fd, uint64_t begin, uint64_t end) {
  std::string bytes(end - begin, '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    ssize_t count = pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(begin + done));
    if (count < 0) return fmt::format("<read failed: {}>", strerrorname_np(errno));
    if (count == 0) break;
    done += count;
  }
  bytes.resize(done);
  return bytes;
}

void CompareRange(int plain, int mount, uint64_t begin, uint64_t end, const std::string& path, Findings& findings) {
  while (begin < end && findings.size() < kFindingsMax) {
    uint64_t stop = std::min<uint64_t>(end, begin + 1024 * 1024);
    std::string expected = ReadRange(plain, begin, stop);
    std::string found = ReadRange(mount, begin, stop);
    if (expected != found) {
      if (expected.size() != found.size()) {
        findings.push_back(fmt::format("{}: {} bytes read at {} instead of {} {}", path, found.size(), begin,
                                       expected.size(), found.size() < 50 ? found : ""));
        return;
      }
      auto [at, other] = std::mismatch(expected.begin(), expected.end(), found.begin());
      size_t differing = 0;
      for (size_t i = 0; i < expected.size(); ++i) differing += expected[i] != found[i];
      findings.push_back(fmt::format("{}: {} bytes differ in [{}, {}), the first at {}: {:#04x} instead of {:#04x}",
                                     path, differing, begin, stop, begin + (at - expected.begin()),
                                     static_cast<unsigned char>(*other), static_cast<unsigned char>(*at)));
      return;
    }
    begin = stop;
  }
}

// Ranges in which at least one side has data: a sparse file of a terabyte is compared in no time.
void CompareData(int plain, int mount, uint64_t size, const std::string& path, Findings& findings) {
  for (int side : {plain, mount}) {
    off_t position = 0;
    while (findings.size() < kFindingsMax) {
      off_t begin = lseek(side, position, SEEK_DATA);
      if (begin < 0) break;
      off_t end = lseek(side, begin, SEEK_HOLE);
      if (end <= begin) end = static_cast<off_t>(size);
      CompareRange(plain, mount, begin, end, path, findings);
      position = end;
    }
  }
}

void CompareContent(int plain, int mount, uint64_t size, uint64_t offset, bool whole, const std::string& path,
                    Findings& findings) {
  if (size <= kWholeBelow) return CompareRange(plain, mount, 0, size + 1, path, findings);
  if (whole) {
    CompareData(plain, mount, size, path, findings);
  } else {
    CompareRange(plain, mount, 0, 4096, path, findings);
    uint64_t begin = offset > kWindow ? offset - kWindow : 0;
    if (begin < size) CompareRange(plain, mount, begin, std::min(size, offset + kWindow), path, findings);
  }
  CompareRange(plain, mount, size > 4096 ? size - 4096 : 0, size + 1, path, findings);
}

std::map<std::string, std::string> Xattrs(int root, const std::string& path) {
  std::string link = fmt::format("/proc/self/fd/{}/{}", root, path);
  std::map<std::string, std::string> xattrs;
  char names[8192], value[8192];
  ssize_t size = llistxattr(link.c_str(), names, sizeof(names));
  for (const char* name = names; size > 0 && name < names + size; name += strlen(name) + 1) {
    ssize_t length = lgetxattr(link.c_str(), name, value, sizeof(value));
    xattrs[name] = length < 0 ? strerrorname_np(errno) : std::string(value, length);
  }
  return xattrs;
}

std::string LinkTarget(int root, const std::string& path) {
  char target[4200];
  ssize_t size = readlinkat(root, path.c_str(), target, sizeof(target));
  return size < 0 ? "" : std::string(target, size);
}

void CompareFile(int plain_root, int mount_root, const std::string& path, uint64_t size, uint64_t offset, bool whole,
                 Findings& findings) {
  int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NOATIME;
  int plain = openat(plain_root, path.c_str(), flags);
  int mount = openat(mount_root, path.c_str(), flags);
  if (plain < 0 || mount < 0) {
    findings.push_back(fmt::format("{}: cannot be opened to be compared: {}", path, strerror(errno)));
  } else {
    CompareContent(plain, mount, size, offset, whole, path, findings);
  }
  if (plain >= 0) close(plain);
  if (mount >= 0) close(mount);
}

void CompareBelow(int plain_root, int mount_root, const std::string& path, std::map<ino_t, ino_t>& inodes,
                  Findings& findings) {
  if (findings.size() >= kFindingsMax) return;
  Findings here = CompareEntry(plain_root, mount_root, path, 0, true);
  findings.insert(findings.end(), here.begin(), here.end());
  struct stat plain, mount;
  if (fstatat(plain_root, path.c_str(), &plain, AT_SYMLINK_NOFOLLOW) != 0) return;
  if (fstatat(mount_root, path.c_str(), &mount, AT_SYMLINK_NOFOLLOW) != 0) return;
  // Hard links join the same names on both sides.
  auto [known, is_new] = inodes.emplace(plain.st_ino, mount.st_ino);
  if (!is_new && known->second != mount.st_ino) findings.push_back(path + ": hard links join other names");
  if (!S_ISDIR(plain.st_mode)) return;
  std::vector<std::string> expected = ListNames(plain_root, path), found = ListNames(mount_root, path);
  if (expected != found) {
    findings.push_back(
        fmt::format("{}: the directory lists {} names instead of {}", path, found.size(), expected.size()));
    for (const std::string& name : expected) {
      if (!std::binary_search(found.begin(), found.end(), name)) findings.push_back(path + ": missing " + name);
    }
    for (const std::string& name : found) {
      if (!std::binary_search(expected.begin(), expected.end(), name)) findings.push_back(path + ": too many: " + name);
    }
  }
  for (const std::string& name : expected) {
    CompareBelow(plain_root, mount_root, path + "/" + name.substr(0, name.rfind('/')), inodes, findings);
  }
}

}  // namespace

Findings CompareEntry(int plain_root, int mount_root, const std::string& path, uint64_t offset, bool whole) {
  Findings findings;
  struct stat plain, mount;
  int plain_rc = fstatat(plain_root, path.c_str(), &plain, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : errno;
  int mount_rc = fstatat(mount_root, path.c_str(), &mount, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : errno;
  if (plain_rc != mount_rc) {
    findings.push_back(fmt::format("{}: lstat says {} instead of {}", path,
                                   mount_rc == 0 ? "0" : strerrorname_np(mount_rc),
                                   plain_rc == 0 ? "0" : strerrorname_np(plain_rc)));
  }
  if (plain_rc != 0 || mount_rc != 0) return findings;
  if (StatText(plain) != StatText(mount)) {
    findings.push_back(fmt::format("{}: {} instead of {}", path, StatText(mount), StatText(plain)));
    if (plain.st_size != mount.st_size || (plain.st_mode & S_IFMT) != (mount.st_mode & S_IFMT)) return findings;
  }
  if (Xattrs(plain_root, path) != Xattrs(mount_root, path)) findings.push_back(path + ": the xattrs differ");
  if (S_ISREG(plain.st_mode)) CompareFile(plain_root, mount_root, path, plain.st_size, offset, whole, findings);
  if (S_ISLNK(plain.st_mode) && LinkTarget(plain_root, path) != LinkTarget(mount_root, path)) {
    findings.push_back(path + ": the target differs");
  }
  return findings;
}

Findings CompareDescriptors(int plain, int mount, uint64_t offset) {
  Findings findings;
  if (plain < 0 && mount < 0) return findings;
  struct stat plain_info, mount_info;
  if (fstat(plain, &plain_info) != 0 || fstat(mount, &mount_info) != 0) {
    findings.push_back(fmt::format("fstat fails: {}", strerror(errno)));
    return findings;
  }
  if (StatText(plain_info) != StatText(mount_info)) {
    findings.push_back(fmt::format("open file: {} instead of {}", StatText(mount_info), StatText(plain_info)));
    return findings;
  }
  if (!S_ISREG(plain_info.st_mode)) return findings;
  off_t plain_position = lseek(plain, 0, SEEK_CUR), mount_position = lseek(mount, 0, SEEK_CUR);
  if (plain_position != mount_position) {
    findings.push_back(fmt::format("open file: the position is {} instead of {}", mount_position, plain_position));
  }
  int mode = fcntl(plain, F_GETFL);
  if ((mode & O_ACCMODE) == O_WRONLY || (mode & (O_DIRECT | O_PATH)) != 0) return findings;
  CompareContent(plain, mount, plain_info.st_size, offset, false, "open file", findings);
  return findings;
}

Findings CompareTrees(int plain_root, int mount_root, const std::string& path) {
  Findings findings;
  std::map<ino_t, ino_t> inodes;
  CompareBelow(plain_root, mount_root, path, inodes, findings);
  return findings;
}

std::string CounterName(unsigned how) { return "counter-" + std::to_string(how); }

constexpr size_t kRecordBytes = 61;

std::string AppendRecord(unsigned worker, uint64_t content) {
  std::string record = fmt::format("{:02} {:020} {:020} ", worker, content, MixBits(content));
  record.resize(kRecordBytes - 1, '.');
  return record + "\n";
}

Findings CheckShared(int shared_root, const SharedTotals& totals, unsigned phase) {
  Findings findings;
  int fd = openat(shared_root, "log", O_RDONLY | O_CLOEXEC);
  struct stat info = {};
  if (fd >= 0) fstat(fd, &info);
  std::string log = fd < 0 ? "" : ReadRange(fd, 0, info.st_size);
  if (fd >= 0) close(fd);
  if (log.size() != totals.appended_records * kRecordBytes) {
    findings.push_back(fmt::format("log: {} bytes, and {} records of {} were appended", log.size(),
                                   totals.appended_records.load(), kRecordBytes));
  }
  for (size_t at = 0; at + kRecordBytes <= log.size(); at += kRecordBytes) {
    unsigned worker = 0;
    unsigned long long content = 0;
    std::string record = log.substr(at, kRecordBytes);
    if (std::sscanf(record.c_str(), "%u %llu", &worker, &content) != 2 || record != AppendRecord(worker, content)) {
      findings.push_back(fmt::format("log: the record at {} is torn: {}", at, record));
      break;
    }
  }
  for (unsigned how = 0; how < 3; ++how) {
    uint64_t count = 0;
    fd = openat(shared_root, CounterName(how).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && pread(fd, &count, sizeof(count), 0) < 0) count = ~0ULL;
    if (fd >= 0) close(fd);
    if (count != totals.counted[how]) {
      findings.push_back(fmt::format("{}: {} after {} increments under its lock", CounterName(how), count,
                                     totals.counted[how].load()));
    }
  }
  size_t directories = ListNames(shared_root, "race").size();
  if (directories != totals.mkdirs_won) {
    findings.push_back(fmt::format("race: {} directories, and {} calls of mkdir returned 0 (phase {})", directories,
                                   totals.mkdirs_won.load(), phase));
  }
  return findings;
}

}  // namespace cairnfs::testing
