#include "daemon/data_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/clock.h"

namespace cairnfs::daemon {
namespace {

namespace stdfs = std::filesystem;

class DataDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (stdfs::temp_directory_path() / "cairnfs-data-XXXXXX").string();
    folder_ = stdfs::canonical(mkdtemp(pattern.data())).string();
    data_ = folder_ + "/data";
  }
  void TearDown() override { stdfs::remove_all(folder_); }

  Result<std::unique_ptr<DataDirectory>> Open(bool create = true) {
    return DataDirectory::Open({data_, create, "testing"});
  }
  Error ErrorOf(bool create = true) {
    auto opened = Open(create);
    return opened.ok() ? MakeError(ErrorCode::kFailed, "no error") : opened.error();
  }
  void Make() {
    auto made = Open();
    ASSERT_TRUE(made.ok()) << made.error().message;
    ASSERT_TRUE((*made)->is_new());
    ASSERT_TRUE((*made)->FinishMaking().ok());
    (*made)->lock().MarkClean();
  }
  // Ends without a word while it has the directory open, as when it is killed.
  void OpenAndDie() {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) _exit(Open().value().release() == nullptr ? 1 : 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    dead_ = child;
  }
  void Write(const std::string& name, const std::string& text) { std::ofstream(data_ + "/" + name) << text; }
  static bool Has(const Error& error, const std::string& text) { return error.message.find(text) != std::string::npos; }

  std::string folder_, data_;
  pid_t dead_ = 0;
};

TEST_F(DataDirectoryTest, IsMadeOnceAndKeepsItsIdentity) {
  Make();
  auto again = Open();
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_FALSE((*again)->is_new());
  EXPECT_EQ((*again)->path(), data_);
  EXPECT_EQ((*again)->lock().previous(), "");
  std::string uuid = (*again)->uuid();
  (*again)->lock().MarkClean();
  again->reset();
  EXPECT_EQ(Open().value()->uuid(), uuid);
}

TEST_F(DataDirectoryTest, SecondOneSaysWhoHoldsIt) {
  Make();
  auto first = Open();
  ASSERT_TRUE(first.ok());
  Error error = ErrorOf();
  EXPECT_EQ(error.code, ErrorCode::kBusy);
  EXPECT_TRUE(Has(error, "process " + std::to_string(getpid()) + " (testing)")) << error.message;
}

TEST_F(DataDirectoryTest, WaitsForOneThatIsStopping) {
  Make();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    auto held = Open();
    (*held)->lock().SetState("stopping");
    if (write(ends[1], "x", 1) != 1) _exit(1);
    Clock::SleepFor(std::chrono::milliseconds(300));
    (*held)->lock().MarkClean();
    _exit(0);
  }
  char byte;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  EXPECT_TRUE(Open().ok());
  waitpid(child, nullptr, 0);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(DataDirectoryTest, UncleanEndIsSeen) {
  Make();
  Open().value()->lock().SetState("running");
  EXPECT_EQ(Open().value()->lock().previous(), std::to_string(getpid()) + " running");
}

// A start or a check that fails before anything is served says nothing about how the last daemon ended.
TEST_F(DataDirectoryTest, WhoServesNothingLeavesTheStateAlone) {
  Make();
  { auto failed = Open(); }
  EXPECT_EQ(*ReadLockText(data_), "");
  EXPECT_EQ(Open().value()->lock().previous(), "");
  for (const char* state : {"123 running", "failed: the disk is on fire"}) {
    Write("LOCK", std::string(state) + "\n");
    for (int tries = 0; tries < 2; ++tries) {
      auto failed = Open();
      ASSERT_TRUE(failed.ok());
      EXPECT_EQ((*failed)->lock().previous(), state);
      EXPECT_EQ(*ReadLockText(data_), std::to_string(getpid()) + " testing");
    }
    EXPECT_EQ(*ReadLockText(data_), state);
  }
  Open().value()->lock().MarkFailed("another disk");
  EXPECT_EQ(*ReadLockText(data_), "failed: another disk");
  Open().value()->lock().MarkClean();
  EXPECT_EQ(*ReadLockText(data_), "");
}

// Nor does one that is killed, by Ctrl-C say.
TEST_F(DataDirectoryTest, WhoIsKilledBeforeItServesLeavesTheStateAlone) {
  Make();
  for (const std::string state : {"", "123 running", "failed: the disk is on fire"}) {
    Write("LOCK", state.empty() ? "" : state + "\n");
    for (int tries = 0; tries < 2; ++tries) {
      OpenAndDie();
      EXPECT_EQ(*ReadLockText(data_), std::to_string(dead_) + " testing");
      EXPECT_EQ(*ReadLastEnd(data_), state);
    }
    EXPECT_EQ(Open().value()->lock().previous(), state);
    EXPECT_EQ(*ReadLockText(data_), state);
    EXPECT_EQ(*ReadLastEnd(data_), state);
  }
  OpenAndDie();
  Open().value()->lock().SetState("running");
  EXPECT_EQ(*ReadLastEnd(data_), std::to_string(getpid()) + " running");
}

TEST_F(DataDirectoryTest, WhatLockHoldsIsFitToBePrinted) {
  Make();
  const std::string raw = "1 \x1b[31m\x07\x9b\xc2\x9b\x7f\xff";
  const std::string text = "1 \\x1b[31m\\x07\\x9b\\xc2\\x9b\\x7f\\xff";
  Write("LOCK", raw + "\n");
  EXPECT_EQ(*ReadLockText(data_), text);
  EXPECT_EQ(*ReadLastEnd(data_), text);
  EXPECT_EQ(Open().value()->lock().previous(), text);
  std::ifstream file(data_ + "/LOCK");
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(file)), {}), raw + "\n") << "it is left as it was";
  const int holder = open((data_ + "/LOCK").c_str(), O_RDWR);
  ASSERT_EQ(flock(holder, LOCK_EX), 0);
  EXPECT_TRUE(Has(ErrorOf(), "process 1 (" + text.substr(2) + ")")) << ErrorOf().message;
  close(holder);
}

// As on a disk that gives nothing any more: it must not look like a clean end.
TEST_F(DataDirectoryTest, ATextThatCannotBeReadIsNoEmptyOne) {
  EXPECT_EQ(*ReadLockText(data_), "") << "there is none";
  ASSERT_TRUE(std::filesystem::create_directories(data_ + "/LOCK"));
  auto text = ReadLockText(data_);
  ASSERT_FALSE(text.ok());
  EXPECT_NE(text.error().message.find(data_ + "/LOCK"), std::string::npos) << text.error().message;
}

// A state is written over the one before, and that is cut off then: a crash between leaves the end of it.
TEST_F(DataDirectoryTest, TheStateIsTheFirstLine) {
  Make();
  Write("LOCK", "failed: no space\nolder text\n");
  EXPECT_EQ(*ReadLockText(data_), "failed: no space");
  EXPECT_EQ(Open().value()->lock().previous(), "failed: no space");
  Open().value()->lock().MarkFailed("two\nlines");
  EXPECT_EQ(*ReadLockText(data_), "failed: two lines");
}

TEST_F(DataDirectoryTest, WhoIsRefusedDoesNotTouchTheHoldersState) {
  Make();
  auto holder = Open();
  (*holder)->lock().SetState("running");
  EXPECT_EQ(ErrorOf().code, ErrorCode::kBusy);
  EXPECT_EQ(*ReadLockText(data_), std::to_string(getpid()) + " running");
}

// As when its last thread waits for the disk: here a process that has the lock from it.
TEST_F(DataDirectoryTest, AHolderThatWasKilledIsWaitedFor) {
  Make();
  const pid_t holder = fork();
  ASSERT_GE(holder, 0);
  if (holder == 0) {
    const int lock = open((data_ + "/LOCK").c_str(), O_RDWR);
    if (flock(lock, LOCK_EX) != 0 || ftruncate(lock, 0) != 0) _exit(1);
    dprintf(lock, "%d running\n", getpid());
    if (fork() == 0) {
      sleep(3);
      _exit(0);
    }
    raise(SIGKILL);
  }
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(holder), &info, WEXITED | WNOWAIT), 0);  // it is a zombie now
  auto opened = Open();
  EXPECT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_EQ(waitpid(holder, nullptr, 0), holder);
}

TEST_F(DataDirectoryTest, IsInUseWhileItIsHeld) {
  Make();
  EXPECT_FALSE(IsInUse(data_));
  {
    auto holder = Open();
    ASSERT_TRUE(holder.ok());
    EXPECT_TRUE(IsInUse(data_));
  }
  EXPECT_FALSE(IsInUse(data_));
  EXPECT_TRUE(Open().ok());
  EXPECT_TRUE(IsInUse(folder_ + "/absent"));  // nothing is known of it
}

TEST_F(DataDirectoryTest, HalfMadeIsMadeAnew) {
  OpenAndDie();  // not finished
  Write("segments/junk", "x");
  auto again = Open();
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_TRUE((*again)->is_new());
  EXPECT_FALSE(stdfs::exists(data_ + "/segments/junk"));
  ASSERT_EQ((*again)->notes().size(), 1U);
  EXPECT_EQ((*again)->notes()[0], data_ + " is half-made: its first start did not come to its end; making it anew");
  EXPECT_EQ((*again)->lock().previous(), "");
}

TEST_F(DataDirectoryTest, AFirstStartThatIsRefusedLeavesNothingHalfMade) {
  ASSERT_TRUE(Open().ok());  // not finished
  EXPECT_FALSE(stdfs::exists(data_ + "/format.making"));
  EXPECT_FALSE(stdfs::exists(data_ + "/segments"));
  auto again = Open();
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_TRUE((*again)->is_new());
  EXPECT_TRUE((*again)->notes().empty()) << (*again)->notes()[0];
  EXPECT_EQ((*again)->lock().previous(), "");
}

TEST_F(DataDirectoryTest, StrangersAreLeftAlone) {
  stdfs::create_directory(data_);
  Write("thesis.tex", "x");
  Error error = ErrorOf();
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(Has(error, "thesis.tex")) << error.message;
  EXPECT_FALSE(stdfs::exists(data_ + "/LOCK"));
}

TEST_F(DataDirectoryTest, NewerVersionIsNamed) {
  Make();
  Write("format", "version = 7\nuuid = 0123456789abcdef0123456789abcdef\n");
  Error error = ErrorOf();
  EXPECT_EQ(error.code, ErrorCode::kNotSupported);
  EXPECT_TRUE(Has(error, "format version 7") && Has(error, "versions up to 1")) << error.message;
}

TEST_F(DataDirectoryTest, DamagedFormatIsRefusedAtEveryTruncation) {
  Make();
  std::ifstream file(data_ + "/format");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  for (size_t size = 0; size + 1 < text.size(); ++size) {
    Write("format", text.substr(0, size));
    EXPECT_EQ(ErrorOf().code, ErrorCode::kCorrupt) << size;
  }
  Write("format", text);
  EXPECT_TRUE(Open().ok());
}

TEST_F(DataDirectoryTest, RemembersItsCluster) {
  const std::string filesystem = "00112233445566778899aabbccddeeff";
  {
    auto made = Open();
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_EQ((*made)->filesystem(), "");
    ASSERT_TRUE((*made)->JoinFilesystem(filesystem).ok());
    ASSERT_TRUE((*made)->FinishMaking().ok());
    (*made)->lock().MarkClean();
  }
  EXPECT_EQ(Open().value()->filesystem(), filesystem);
  std::ifstream file(data_ + "/format");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  for (size_t size = 0; size + 1 < text.size(); ++size) {
    Write("format", text.substr(0, size));
    EXPECT_EQ(ErrorOf().code, ErrorCode::kCorrupt) << size;
  }
}

TEST_F(DataDirectoryTest, JoinsAClusterLater) {
  Make();
  std::string uuid = Open().value()->uuid();
  ASSERT_TRUE(Open().value()->JoinFilesystem("00112233445566778899aabbccddeeff").ok());
  auto again = Open();
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ((*again)->uuid(), uuid);
  EXPECT_EQ((*again)->filesystem(), "00112233445566778899aabbccddeeff");
}

TEST_F(DataDirectoryTest, MissingPartsAreNamed) {
  Make();
  stdfs::remove(data_ + "/format");
  EXPECT_TRUE(Has(ErrorOf(), "'format' is missing"));
  Write("format", "version = 1\nuuid = 0123456789abcdef0123456789abcdef\n");
  stdfs::remove_all(data_ + "/segments");
  EXPECT_TRUE(Has(ErrorOf(), "segments is missing"));
}

TEST_F(DataDirectoryTest, BelongsToWhoMadeIt) {
  if (geteuid() != 0) GTEST_SKIP() << "gives a file away";
  Make();
  ASSERT_EQ(chown((data_ + "/format").c_str(), 12345, 12345), 0);
  Error error = ErrorOf();
  EXPECT_EQ(error.code, ErrorCode::kPermission);
  EXPECT_TRUE(Has(error, "belongs to uid 12345: run this as that user")) << error.message;
  EXPECT_TRUE(Has(error, "chown -R root " + data_)) << error.message;
  EXPECT_FALSE(stdfs::exists(data_ + "/owner.probe"));
}

TEST_F(DataDirectoryTest, OfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "gives a directory away";
  for (const bool is_made : {false, true}) {
    if (is_made) {
      ASSERT_EQ(chown(data_.c_str(), 0, 0), 0);
      Make();
    } else {
      stdfs::create_directory(data_);
    }
    ASSERT_EQ(chown(data_.c_str(), 12345, 12345), 0);
    Error error = ErrorOf();
    EXPECT_EQ(error.code, ErrorCode::kPermission);
    EXPECT_TRUE(Has(error, data_ + " belongs to uid 12345: run this as that user")) << error.message;
    EXPECT_TRUE(Has(error, "chown -R root " + data_)) << error.message;
    EXPECT_EQ(stdfs::exists(data_ + "/LOCK"), is_made);
    EXPECT_FALSE(stdfs::exists(data_ + "/owner.probe"));
  }
}

TEST_F(DataDirectoryTest, ThatOthersMayWriteIntoIsRefused) {
  Make();
  for (const mode_t mode : {0770, 0702, 01777}) {
    ASSERT_EQ(chmod(data_.c_str(), mode), 0);
    Error error = ErrorOf();
    EXPECT_EQ(error.code, ErrorCode::kPermission) << std::oct << mode;
    EXPECT_TRUE(Has(error, "run chmod go-w " + data_)) << error.message;
  }
  ASSERT_EQ(chmod(data_.c_str(), 0755), 0);
  EXPECT_TRUE(Open().ok());
}

TEST_F(DataDirectoryTest, LinksInPlaceOfItsFilesAreRefused) {
  Make();
  const std::string victim = folder_ + "/victim";
  std::ofstream(victim) << "precious";
  for (const char* name : {"LOCK", "cairnfs.log", "cairnfs.1.log"}) {
    const std::string path = data_ + "/" + name;
    for (const bool is_hard : {false, true}) {
      stdfs::remove(path);
      if (is_hard) {
        stdfs::create_hard_link(victim, path);
      } else {
        stdfs::create_symlink(victim, path);
      }
      Error error = ErrorOf();
      EXPECT_EQ(error.code, ErrorCode::kInvalidArgument) << path;
      EXPECT_TRUE(Has(error, path + (is_hard ? " is a file with other names" : " is a symbolic link")))
          << error.message;
    }
    stdfs::remove(path);
    EXPECT_TRUE(Open().ok());
  }
  std::string text;
  std::getline(std::ifstream(victim), text);
  EXPECT_EQ(text, "precious");
}

TEST_F(DataDirectoryTest, FifosInPlaceOfItsFilesAreRefused) {
  Make();
  for (const char* name : {"format.making", "format.new", "format"}) {
    const std::string path = data_ + "/" + name;
    stdfs::remove(path);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    Error error = ErrorOf();
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument) << path;
    EXPECT_TRUE(Has(error, path + " is no regular file")) << error.message;
    stdfs::remove(path);
  }
}

TEST_F(DataDirectoryTest, WrongPlaces) {
  EXPECT_EQ(ErrorOf(false).code, ErrorCode::kNotFound);
  data_ = folder_ + "/no/such";
  EXPECT_TRUE(Has(ErrorOf(), folder_ + "/no does not exist"));
  data_ = folder_ + "/file";
  std::ofstream(data_) << "x";
  EXPECT_EQ(ErrorOf().code, ErrorCode::kNotDirectory);
  data_ = folder_ + "/empty";
  stdfs::create_directory(data_);
  EXPECT_TRUE(Has(ErrorOf(false), "is not a CairnFS data directory"));
  EXPECT_FALSE(stdfs::exists(data_ + "/LOCK"));
}

TEST_F(DataDirectoryTest, LongPathsGetASocketThatFits) {
  std::string path = folder_ + "/" + std::string(200, 'd');
  stdfs::create_directory(path);
  EXPECT_LT(ControlSocketPath(path).value().size(), 108U);
  EXPECT_EQ(ControlSocketPath(folder_).value(), folder_ + "/control.sock");
}

}  // namespace
}  // namespace cairnfs::daemon
