// File systems whose times come from another host's clock: one that is behind or ahead of this host's, or stands still.
// This program sees the times of files through its own statx(2).
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <atomic>
#include <functional>

#include "client/output_file.h"
#include "save_world.h"

namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kHour = 3600 * kSecond;
std::atomic<int64_t> ahead_ns = 0;
std::atomic<int64_t> tick_ns = 1;

void Show(statx_timestamp& time) {
  int64_t ns = time.tv_sec * kSecond + time.tv_nsec;
  ns = ns / tick_ns * tick_ns + ahead_ns + 1;  // never a whole second, as if ticks were long
  time.tv_sec = ns / kSecond;
  time.tv_nsec = static_cast<uint32_t>(ns % kSecond);
}

}  // namespace

// In place of the C library's.
extern "C" int statx(int folder, const char* path, int flags, unsigned mask, struct statx* found) noexcept {
  const long status = syscall(SYS_statx, folder, path, flags, mask, found);
  if (status != 0) return -1;
  Show(found->stx_mtime);
  Show(found->stx_ctime);
  return 0;
}

namespace cairnfs::client {
namespace {

class OtherClock : public SaveWorld {
 protected:
  ~OtherClock() override {
    ahead_ns = 0;
    tick_ns = 1;
  }

  // The file "file", just now put in its place.
  std::unique_ptr<OutputFile> Published() {
    auto file = OutputFile::Create({Path("file"), 0, 4});
    EXPECT_TRUE(file.ok());
    EXPECT_TRUE((*file)->Write(reinterpret_cast<const std::byte*>("abcd"), 4, 0).ok());
    EXPECT_TRUE((*file)->Publish().ok());
    return std::move(*file);
  }
  // Somebody writes to it.
  void Write() const {
    const int file = open(Path("file").c_str(), O_WRONLY);
    EXPECT_EQ(pwrite(file, "x", 1, 0), 1);
    close(file);
  }
  // The same, and gives it the mtime back.
  void WriteInSecret() const {
    struct stat before {};
    ASSERT_EQ(stat(Path("file").c_str(), &before), 0);
    Write();
    const timespec times[2] = {before.st_atim, before.st_mtim};
    ASSERT_EQ(utimensat(AT_FDCWD, Path("file").c_str(), times, 0), 0);
  }
};

constexpr int64_t kAhead[] = {-kHour, -kSecond, 0, kSecond, kHour};

TEST_F(OtherClock, ItsFilesAreTrusted) {
  tick_ns = 10'000'000;
  for (const int64_t ahead : kAhead) {
    ahead_ns = ahead;
    auto saver = OpenSaver();
    const std::vector<TestTensor> state{NewTensor("a", CAIRNFS_HOST, kBlock)};
    SaveRight(*saver, state, Path("one"), nullptr);
    const auto result = SaveRight(*saver, state, Path("two"), Path("one").c_str());
    EXPECT_EQ(result.base_use, static_cast<uint32_t>(CAIRNFS_BASE_USED)) << ahead << ": " << result.base_text;
  }
}

// Several times by each clock: in other moments of its ticks.
void OnEachClock(const std::function<void()>& body) {
  tick_ns = 10'000'000;
  for (const int64_t ahead : kAhead) {
    ahead_ns = ahead;
    for (int round = 0; round < 8; round++) body();
  }
}

TEST_F(OtherClock, AWriteAfterTheRenameShows) {
  OnEachClock([this] {
    auto file = Published();
    Write();
    EXPECT_FALSE(file->Look().has_value()) << ahead_ns;
  });
}

TEST_F(OtherClock, AWriteAfterTheLookShows) {
  OnEachClock([this] {
    auto file = Published();
    const auto seen = file->Look();
    ASSERT_TRUE(seen.has_value()) << ahead_ns;
    WriteInSecret();
    const int descriptor = open(Path("file").c_str(), O_RDONLY);
    const auto now = IdentityOf(descriptor, "file");
    close(descriptor);
    ASSERT_TRUE(now.ok());
    EXPECT_TRUE(*now != *seen) << ahead_ns;
  });
}

TEST_F(OtherClock, OneThatStandsStillIsNotTrusted) {
  tick_ns = kHour;
  EXPECT_FALSE(Published()->Look().has_value());
}

}  // namespace
}  // namespace cairnfs::client
