// On the real kernel, as root.
#include "io/backing_fs.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "io/scratch.h"

namespace cairnfs::io {
namespace {

constexpr uint64_t kRoomBytes = 16 * kMiB;

class BackingFsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = BackingFs::Open({.size_bytes_max = kRoomBytes});
    if (!opened.ok() &&
        (opened.error().code == ErrorCode::kPermission || opened.error().code == ErrorCode::kNotSupported)) {
      GTEST_SKIP() << opened.error().message;
    }
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    fs_ = *std::move(opened);
  }

  std::unique_ptr<BackingFile> Make(ByteSpan bytes = {}) {
    auto made = fs_->MakeFile();
    EXPECT_TRUE(made.ok()) << made.error().message;
    EXPECT_TRUE((*made)->Write(0, bytes).ok());
    return *std::move(made);
  }
  uint64_t Used() {
    auto used = fs_->UsedBytes();
    EXPECT_TRUE(used.ok());
    return *used;
  }

  std::unique_ptr<BackingFs> fs_;
};

// As the kernel does for who opens a file of the mount: one more open file of it.
int OpenAnew(const BackingFile& file, int flags) {
  return open(("/proc/self/fd/" + std::to_string(file.fd())).c_str(), flags | O_CLOEXEC);
}

class Mapping {
 public:
  Mapping(int fd, size_t size) : size_(size), at_(mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0)) {
    EXPECT_NE(at_, MAP_FAILED);
  }
  ~Mapping() { munmap(at_, size_); }
  Mapping(const Mapping&) = delete;
  std::string Text(size_t offset, size_t length) const { return {static_cast<const char*>(at_) + offset, length}; }
  const void* at() const { return at_; }

 private:
  const size_t size_;
  void* const at_;
};

std::string ReadAll(int fd) {
  std::string text(kRoomBytes, '\0');
  const ssize_t size = pread(fd, text.data(), text.size(), 0);
  EXPECT_GE(size, 0);
  text.resize(static_cast<size_t>(size));
  return text;
}

// Memory of the mapping at `address` that huge pages serve, by this line of /proc/self/smaps.
size_t HugeBytesAt(const void* address, const std::string& name) {
  std::ifstream maps("/proc/self/smaps");
  bool is_it = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    if (sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      is_it = begin <= reinterpret_cast<unsigned long>(address) && reinterpret_cast<unsigned long>(address) < end;
    }
    if (is_it && line.starts_with(name + ":")) return std::stoul(line.substr(name.size() + 1)) * kKiB;
  }
  return 0;
}

TEST_F(BackingFsTest, WhoReadsOrMapsAFileSeesEachChangeAtOnce) {
  const AlignedBytes bytes = AlignedBytes::Random(3 * kMiB, 1);
  auto file = Make(bytes);
  EXPECT_EQ(ReadAll(file->fd()), bytes.Text());
  const Mapping mapping(file->fd(), 3 * kMiB);
  EXPECT_EQ(mapping.Text(kMiB, kMiB), bytes.Text(kMiB, kMiB));

  ASSERT_TRUE(file->Write(kMiB + 5, AsBytes("changed")).ok());
  EXPECT_EQ(mapping.Text(kMiB + 4, 9), bytes.Text(kMiB + 4, 1) + "changed" + bytes.Text(kMiB + 12, 1));
  ASSERT_TRUE(file->Punch(0, kPageBytes + 1).ok());
  EXPECT_EQ(mapping.Text(0, kPageBytes + 2), std::string(kPageBytes + 1, '\0') + bytes.Text(kPageBytes + 1, 1));
  ASSERT_TRUE(file->Truncate(2 * kMiB).ok());
  EXPECT_EQ(ReadAll(file->fd()).size(), 2 * kMiB);
  ASSERT_TRUE(file->Truncate(4 * kMiB).ok());
  EXPECT_EQ(ReadAll(file->fd()).substr(2 * kMiB), std::string(2 * kMiB, '\0'));
}

TEST_F(BackingFsTest, AFileThatIsWrittenKeepsOneDescriptor) {
  const auto count = [] {
    const std::filesystem::directory_iterator open("/proc/self/fd");
    return std::distance(begin(open), end(open));
  };
  const auto before = count();
  auto file = Make(AlignedBytes(kMiB));
  file->EndWriting();
  EXPECT_EQ(count(), before + 1);
  ASSERT_TRUE(file->Write(7, AsBytes("still written")).ok());
  EXPECT_EQ(ReadAll(file->fd()).substr(7, 13), "still written");
  file.reset();
  EXPECT_EQ(count(), before);
}

TEST_F(BackingFsTest, NobodyCanWriteThroughTheDescriptorThatIsRegistered) {
  auto file = Make(AlignedBytes(kPageBytes));
  for (const int flags : {O_RDWR, O_WRONLY, O_RDWR | O_TRUNC}) {
    EXPECT_EQ(OpenAnew(*file, flags), -1);
    EXPECT_EQ(errno, EROFS);
  }
  EXPECT_EQ(pwrite(file->fd(), "x", 1, 0), -1);
  EXPECT_EQ(mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd(), 0), MAP_FAILED);
  const int opened = OpenAnew(*file, O_RDONLY);
  EXPECT_GE(opened, 0);
  close(opened);
}

TEST_F(BackingFsTest, ItIsUsedWhileSomebodyElseHasItOpenOrMapped) {
  auto file = Make(AlignedBytes(kMiB));
  const auto is_used = [&] {
    auto used = file->IsUsed();
    EXPECT_TRUE(used.ok()) << used.error().message;
    return *used;
  };
  EXPECT_FALSE(is_used());
  const int opened = OpenAnew(*file, O_RDONLY);
  ASSERT_GE(opened, 0);
  EXPECT_TRUE(is_used());
  {
    const Mapping mapping(opened, kMiB);
    close(opened);
    EXPECT_TRUE(is_used());
    ASSERT_TRUE(file->Write(7, AsBytes("still written")).ok());
    EXPECT_EQ(mapping.Text(7, 13), "still written");
  }
  EXPECT_FALSE(is_used());
  ASSERT_TRUE(file->Write(0, AsBytes("again")).ok());
  EXPECT_FALSE(is_used());
}

TEST_F(BackingFsTest, MemoryIsBoundedAndComesBack) {
  EXPECT_EQ(Used(), 0U);
  auto first = Make(AlignedBytes(10 * kMiB));
  EXPECT_EQ(Used(), 10 * kMiB);
  auto second = Make();
  const Status refused = second->Write(0, AlignedBytes(8 * kMiB));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace) << refused.error().message;
  EXPECT_LE(Used(), kRoomBytes);
  second.reset();
  EXPECT_EQ(Used(), 10 * kMiB);
  {
    const Mapping mapping(first->fd(), 10 * kMiB);
    first.reset();
    EXPECT_EQ(Used(), 10 * kMiB);  // the mapping has it
  }
  EXPECT_EQ(Used(), 0U);
}

TEST_F(BackingFsTest, WhatIsMappedOutlivesTheFileSystem) {
  const AlignedBytes bytes = AlignedBytes::Random(kMiB, 2);
  auto file = Make(bytes);
  const Mapping mapping(file->fd(), kMiB);
  file.reset();
  fs_.reset();
  EXPECT_EQ(mapping.Text(0, kMiB), bytes.Text());
}

TEST_F(BackingFsTest, ItLiesNowhere) {
  auto file = Make(AlignedBytes(kPageBytes));
  std::ifstream mounts("/proc/self/mountinfo");
  struct stat info {};
  ASSERT_EQ(fstat(file->fd(), &info), 0);
  const std::string device = std::to_string(major(info.st_dev)) + ":" + std::to_string(minor(info.st_dev)) + " ";
  for (std::string line; std::getline(mounts, line);) EXPECT_EQ(line.find(" " + device), std::string::npos) << line;
}

// Of memory that has nothing to do with files.
bool MachineHasHugePages() {
  constexpr size_t kBytes = 8 * kMiB;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(memory, MAP_FAILED);
  EXPECT_EQ(madvise(memory, kBytes, MADV_HUGEPAGE), 0);
  std::memset(memory, 1, kBytes);
  const bool has = HugeBytesAt(memory, "AnonHugePages") > 0;
  munmap(memory, kBytes);
  return has;
}

TEST_F(BackingFsTest, LargeFilesHaveHugePages) {
  if (!MachineHasHugePages()) GTEST_SKIP() << "no huge page is free on this machine";
  auto file = Make(AlignedBytes(8 * kMiB));
  const Mapping mapping(file->fd(), 8 * kMiB);
  for (size_t at = 0; at < 8 * kMiB; at += kPageBytes) static_cast<void>(mapping.Text(at, 1));
  EXPECT_GT(HugeBytesAt(mapping.at(), "ShmemPmdMapped"), 0U);
}

// Whether a process that did so first is told that it is not permitted.
bool IsNotPermittedAfter(const std::function<bool()>& become) {
  const pid_t child = fork();
  EXPECT_GE(child, 0);
  if (child == 0) {
    if (!become()) _exit(3);
    const auto opened = BackingFs::Open({.size_bytes_max = kMiB});
    _exit(!opened.ok() && opened.error().code == ErrorCode::kPermission ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status == 0;
}

TEST(BackingFs, SaysWhatItTakesWhereItIsNotPermitted) {
  if (geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  EXPECT_TRUE(IsNotPermittedAfter([] { return setresuid(4321, 4321, 4321) == 0; }));
}

// Root there may mount a tmpfs, and the kernel would take none of its files.
TEST(BackingFs, SaysSoInAUserNamespaceToo) {
  if (geteuid() != 0) GTEST_SKIP() << "only root makes one everywhere";
  const auto become = [] {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/uid_map") << "0 0 1";
    return true;
  };
  EXPECT_TRUE(IsNotPermittedAfter(become));
}

}  // namespace
}  // namespace cairnfs::io
