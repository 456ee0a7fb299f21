// The real disk: through io_uring and through threads, on file systems that take O_DIRECT and on one that does not.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <spdlog/sinks/ostream_sink.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include "../../support/few_descriptors.h"
#include "base/log.h"
#include "io/file.h"
#include "scratch.h"

namespace cairnfs::io {
namespace {

// What is logged while it lives.
class LogCapture {
 public:
  LogCapture() : before_(spdlog::default_logger()) {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("capture", sink));
  }
  ~LogCapture() { spdlog::set_default_logger(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::shared_ptr<spdlog::logger> before_;
  std::ostringstream text_;
};

struct Variant {
  const char* name;
  const char* parent;
  bool use_io_uring;
  bool direct;
  unsigned queue_depth;
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

class DiskTest : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    scratch_ = std::make_unique<ScratchDirectory>(GetParam().parent);
    if (scratch_->path().empty()) GTEST_SKIP() << "no scratch directory can be made under " << GetParam().parent;
    auto disk = OpenDisk({.path = scratch_->path(),
                          .direct = GetParam().direct,
                          .use_io_uring = GetParam().use_io_uring,
                          .queue_depth = GetParam().queue_depth});
    ASSERT_TRUE(disk.ok()) << disk.error().message;
    disk_ = std::move(*disk);
  }
  std::unique_ptr<File> Create(const std::string& name) {
    auto file = disk_->Create(name);
    EXPECT_TRUE(file.ok()) << file.error().message;
    return std::move(*file);
  }

  std::unique_ptr<ScratchDirectory> scratch_;
  std::unique_ptr<Disk> disk_;
};

TEST_P(DiskTest, WritesReadBack) {
  auto file = Create("a");
  EXPECT_TRUE(GetParam().direct || !file->direct());
  auto data = AlignedBytes::Random(3 * kMiB, 1);
  ASSERT_TRUE(file->Write(kPageBytes, data).ok());
  ASSERT_TRUE(file->DataSync().ok());
  EXPECT_EQ(*file->Size(), 3 * kMiB + kPageBytes);
  file = std::move(*disk_->Open("a"));
  AlignedBytes back(3 * kMiB);
  auto read = file->Read(kPageBytes, back);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, 3 * kMiB);
  EXPECT_EQ(back.Text(), data.Text());
  EXPECT_EQ(file->path(), scratch_->path() + "/a");
}

TEST_P(DiskTest, ReadsEndWithTheFile) {
  auto file = Create("a");
  ASSERT_TRUE(file->Write(0, AlignedBytes(2 * kPageBytes, std::byte{7})).ok());
  AlignedBytes back(4 * kPageBytes);
  EXPECT_EQ(*file->Read(0, back), 2 * kPageBytes);
  EXPECT_EQ(*file->Read(2 * kPageBytes, back), 0u);
  EXPECT_EQ(*file->Read(kGiB, back), 0u);
  ASSERT_TRUE(file->Truncate(kPageBytes + 10).ok());
  EXPECT_EQ(*file->Read(0, back), kPageBytes + 10);
  EXPECT_EQ(*file->Read(0, MutableByteSpan(back).first(0)), 0u);
  EXPECT_TRUE(file->Write(0, ByteSpan(back).first(0)).ok());
  EXPECT_EQ(*file->Size(), kPageBytes + 10);
}

TEST_P(DiskTest, AllocateGivesZerosAndNeverShrinks) {
  auto file = Create("a");
  ASSERT_TRUE(file->Write(0, AlignedBytes(kPageBytes, std::byte{7})).ok());
  ASSERT_TRUE(file->Allocate(kMiB).ok());
  EXPECT_EQ(*file->Size(), kMiB);
  ASSERT_TRUE(file->Allocate(kPageBytes).ok());
  ASSERT_TRUE(file->Allocate(0).ok());
  EXPECT_EQ(*file->Size(), kMiB);
  AlignedBytes back(kMiB);
  EXPECT_EQ(*file->Read(0, back), kMiB);
  EXPECT_EQ(back.Text(), std::string(kPageBytes, 7) + std::string(kMiB - kPageBytes, '\0'));
}

TEST_P(DiskTest, AllocatingMoreThanTheDiskHoldsIsNoSpace) {
  auto file = Create("a");
  auto space = disk_->GetSpace();
  ASSERT_TRUE(space.ok());
  EXPECT_GT(space->total_bytes, 0u);
  EXPECT_LE(space->free_bytes, space->total_bytes);
  auto status = file->Allocate(space->total_bytes + kGiB);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kNoSpace) << status.error().message;
  EXPECT_EQ(*file->Size(), 0u);
}

// Far more operations than the queue holds, several files, several threads; every byte counts.
TEST_P(DiskTest, ManyAtOnce) {
  constexpr size_t kThreads = 4;
  constexpr size_t kBlocks = 200;
  constexpr size_t kBlockBytes = 4 * kPageBytes;
  std::vector<std::unique_ptr<File>> files;
  std::vector<AlignedBytes> data;
  for (size_t t = 0; t < kThreads; t++) {
    files.push_back(Create("file" + std::to_string(t)));
    data.push_back(AlignedBytes::Random(kBlocks * kBlockBytes, t));
  }
  std::atomic<size_t> done = 0;
  auto count = [&](Result<size_t> result) {
    EXPECT_TRUE(result.ok()) << result.error().message;
    EXPECT_TRUE(result.ok() && *result == kBlockBytes);
    done++;
    done.notify_all();
  };
  auto wait = [&] {
    for (size_t now = done; now != kThreads * kBlocks; now = done) done.wait(now);
    done = 0;
  };
  auto on_all = [&](auto start) {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kThreads; t++) {
      threads.emplace_back([&, t] {
        for (size_t block = 0; block < kBlocks; block++) start(t, block * kBlockBytes);
      });
    }
    for (std::thread& thread : threads) thread.join();
    wait();
  };
  on_all([&](size_t t, size_t offset) {
    files[t]->WriteAsync(offset, ByteSpan(data[t]).subspan(offset, kBlockBytes), count);
  });
  std::vector<AlignedBytes> back;
  for (size_t t = 0; t < kThreads; t++) back.emplace_back(kBlocks * kBlockBytes);
  on_all([&](size_t t, size_t offset) {
    files[t]->ReadAsync(offset, MutableByteSpan(back[t]).subspan(offset, kBlockBytes), count);
  });
  for (size_t t = 0; t < kThreads; t++) EXPECT_TRUE(back[t].Text() == data[t].Text());
}

// A callback starts more than the queue holds; it must not wait for itself.
TEST_P(DiskTest, CallbacksMayStartOperations) {
  constexpr size_t kCount = 64;
  auto file = Create("a");
  auto data = AlignedBytes::Random(kCount * kPageBytes, 4);
  std::atomic<size_t> done = 0;
  auto count = [&](Result<size_t> result) {
    EXPECT_TRUE(result.ok());
    done++;
    done.notify_all();
  };
  file->WriteAsync(0, ByteSpan(data).first(kPageBytes), [&](Result<size_t> result) {
    for (size_t i = 1; i < kCount; i++) {
      file->WriteAsync(i * kPageBytes, ByteSpan(data).subspan(i * kPageBytes, kPageBytes), count);
    }
    count(std::move(result));
  });
  for (size_t now = done; now != kCount; now = done) done.wait(now);
  AlignedBytes back(kCount * kPageBytes);
  EXPECT_EQ(*file->Read(0, back), kCount * kPageBytes);
  EXPECT_TRUE(back.Text() == data.Text());
}

TEST_P(DiskTest, NamesComeAndGo) {
  Create("b");
  Create("a");
  std::filesystem::create_directory(scratch_->path() + "/lost+found");
  EXPECT_EQ(*disk_->List(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(disk_->Create("a").error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(disk_->Open("c").error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(disk_->Rename("a", "c").ok());
  ASSERT_TRUE(disk_->Rename("b", "c").ok());
  EXPECT_EQ(disk_->Rename("b", "d").error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(disk_->SyncDirectory().ok());
  EXPECT_EQ(*disk_->List(), std::vector<std::string>{"c"});
  ASSERT_TRUE(disk_->Remove("c").ok());
  EXPECT_EQ(disk_->Remove("c").error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(disk_->List()->empty());
  for (const char* name : {"", ".", "..", "a/b", "/etc/passwd"}) {
    EXPECT_EQ(disk_->Create(name).error().code, ErrorCode::kInvalidArgument) << name;
    EXPECT_EQ(disk_->Remove(name).error().code, ErrorCode::kInvalidArgument) << name;
    EXPECT_EQ(disk_->Rename("a", name).error().code, ErrorCode::kInvalidArgument) << name;
  }
}

TEST_P(DiskTest, ARemovedFileStaysReadable) {
  auto file = Create("a");
  ASSERT_TRUE(file->Write(0, AlignedBytes(kPageBytes, std::byte{9})).ok());
  ASSERT_TRUE(disk_->Remove("a").ok());
  AlignedBytes back(kPageBytes);
  EXPECT_EQ(*file->Read(0, back), kPageBytes);
  EXPECT_EQ(back[0], std::byte{9});
}

INSTANTIATE_TEST_SUITE_P(All, DiskTest,
                         testing::Values(Variant{"UringDirect", "/var/tmp", true, true, 256},
                                         Variant{"UringTiny", "/var/tmp", true, true, 1},
                                         Variant{"UringCached", "/var/tmp", true, false, 8},
                                         Variant{"ThreadsDirect", "/var/tmp", false, true, 256},
                                         Variant{"ThreadsTiny", "/var/tmp", false, true, 1},
                                         Variant{"UringTmpfs", "/dev/shm", true, true, 16},
                                         Variant{"ThreadsTmpfs", "/dev/shm", false, false, 16}),
                         [](const auto& info) { return info.param.name; });

TEST(OpenDisk, SaysWhatIsWrong) {
  ScratchDirectory scratch("/tmp");
  auto missing = OpenDisk({.path = scratch.path() + "/missing"});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find(scratch.path() + "/missing"), std::string::npos);

  std::ofstream(scratch.path() + "/file") << "x";
  auto file = OpenDisk({.path = scratch.path() + "/file"});
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kNotDirectory);
  EXPECT_EQ(OpenDisk({.path = scratch.path(), .queue_depth = 0}).error().code, ErrorCode::kInvalidArgument);

  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere; kPermission was not tried";
  chmod(scratch.path().c_str(), 0500);
  EXPECT_EQ(OpenDisk({.path = scratch.path()}).error().code, ErrorCode::kPermission);
  chmod(scratch.path().c_str(), 0700);
}

TEST(OpenDisk, AsksForNoWarningOnAnOrdinaryDisk) {
  ScratchDirectory scratch("/var/tmp");
  LogCapture log;
  auto disk = OpenDisk({.path = scratch.path()});
  ASSERT_TRUE(disk.ok());
  auto file = (*disk)->Create("a");
  ASSERT_TRUE(file.ok());
  if (!(*file)->direct()) GTEST_SKIP() << "/var/tmp takes no O_DIRECT here";
  EXPECT_EQ(log.text(), "");
}

// One descriptor is left, and the directory takes it: the ring gets none.
TEST(OpenDisk, FallsBackToThreadsWhereIoUringIsRefused) {
  ScratchDirectory scratch("/tmp");
  LogCapture log;
  auto disk = [&] {
    FewDescriptors one(1);
    return OpenDisk({.path = scratch.path(), .direct = false});
  }();
  ASSERT_TRUE(disk.ok()) << disk.error().message;
  EXPECT_NE(log.text().find("io_uring cannot be used for " + scratch.path()), std::string::npos) << log.text();
  auto file = (*disk)->Create("a");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->Write(0, AlignedBytes(kPageBytes)).ok());
  EXPECT_EQ(*(*file)->Size(), kPageBytes);
}

TEST(OpenDisk, ALackOfDescriptorsIsToldApart) {
  ScratchDirectory scratch("/tmp");
  auto disk = OpenDisk({.path = scratch.path(), .direct = false});
  ASSERT_TRUE(disk.ok()) << disk.error().message;
  ASSERT_TRUE((*disk)->Create("a").ok());
  {
    FewDescriptors none(0);
    EXPECT_EQ((*disk)->Create("b").error().code, ErrorCode::kExhausted);
    EXPECT_EQ((*disk)->Open("a").error().code, ErrorCode::kExhausted);
  }
  EXPECT_EQ(*(*disk)->List(), std::vector<std::string>{"a"});
  EXPECT_TRUE((*disk)->Create("b").ok());
}

// As a file system makes itself after an error. It is mounted in a mount namespace of this thread's own.
TEST(OpenDisk, AReadOnlyFileSystemStaysReadable) {
  ScratchDirectory scratch("/tmp");
  std::string skipped;
  std::thread([&] {
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("none", scratch.path().c_str(), "tmpfs", 0, nullptr) != 0) {
      skipped = "no file system can be mounted here";
      return;
    }
    auto disk = OpenDisk({.path = scratch.path(), .direct = false});
    ASSERT_TRUE(disk.ok()) << disk.error().message;
    const AlignedBytes data(kPageBytes, std::byte{5});
    {
      auto file = (*disk)->Create("a");
      ASSERT_TRUE(file.ok()) << file.error().message;
      ASSERT_TRUE((*file)->Write(0, data).ok());
    }
    ASSERT_EQ(mount(nullptr, scratch.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
    auto file = (*disk)->Open("a");
    ASSERT_TRUE(file.ok()) << file.error().message;
    AlignedBytes back(kPageBytes);
    EXPECT_EQ(*(*file)->Read(0, back), kPageBytes);
    EXPECT_EQ(back[0], std::byte{5});
    EXPECT_EQ((*file)->Write(0, data).error().code, ErrorCode::kIo);
    EXPECT_EQ((*disk)->Create("b").error().code, ErrorCode::kPermission);
  }).join();
  if (!skipped.empty()) GTEST_SKIP() << skipped;
}

// ramfs takes no O_DIRECT. It is mounted in a mount namespace of this thread's own and goes with it.
TEST(OpenDisk, FallsBackWhereDirectIsRefused) {
  ScratchDirectory scratch("/tmp");
  std::string skipped;
  std::thread([&] {
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("none", scratch.path().c_str(), "ramfs", 0, nullptr) != 0) {
      skipped = "a file system without O_DIRECT cannot be mounted here";
      return;
    }
    LogCapture log;
    auto disk = OpenDisk({.path = scratch.path()});
    ASSERT_TRUE(disk.ok()) << disk.error().message;
    auto file = (*disk)->Create("a");
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_FALSE((*file)->direct());
    EXPECT_TRUE((*disk)->Create("b").ok());
    EXPECT_NE(log.text().find("the file system at " + scratch.path() + " refuses direct I/O"), std::string::npos)
        << log.text();
    EXPECT_EQ(std::ranges::count(log.text(), '\n'), 1) << log.text();
    auto data = AlignedBytes::Random(kMiB, 3);
    EXPECT_TRUE((*file)->Write(17, data).ok());
    AlignedBytes back(kMiB);
    EXPECT_EQ(*(*file)->Read(17, back), kMiB);
    EXPECT_TRUE(back.Text() == data.Text());
    EXPECT_GT((*disk)->GetSpace()->free_bytes, 0u);
    EXPECT_TRUE((*file)->Allocate(2 * kMiB).ok());
    EXPECT_EQ(*(*file)->Size(), 2 * kMiB);
  }).join();
  if (!skipped.empty()) GTEST_SKIP() << skipped;
}

}  // namespace
}  // namespace cairnfs::io
