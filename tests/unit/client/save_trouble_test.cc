// Saves that cannot be made: bad input, full disks, devices that fail, kills. Nothing half-written is left, and the
// base stays whole.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <thread>

#include "../../support/few_threads.h"
#include "../../support/no_threads.h"
#include "base/failpoint.h"
#include "save_world.h"

namespace cairnfs::client {
namespace {

class SaveTrouble : public SaveWorld {
 protected:
  // The save is refused with that code and a text that has `word`, and the folder stays as it is.
  void Refused(Request& made, const std::string& path, ErrorCode code, const std::string& word) {
    const auto before = Names();
    auto saver = OpenSaver();
    const auto result = Save(*saver, made, path, nullptr);
    ASSERT_FALSE(result.ok()) << word;
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_NE(result.error().message.find(word), std::string::npos) << result.error().message;
    EXPECT_EQ(Names(), before);
  }
};

TEST_F(SaveTrouble, BadInputNamesWhatAndWhich) {
  const std::vector<TestTensor> state{NewTensor("first", CAIRNFS_HOST, 100), NewTensor("second", 0, 100)};
  const auto with = [&](auto change, ErrorCode code, const std::string& word) {
    Request made;
    Build(state, 1, made);
    change(made);
    Refused(made, Path("x"), code, word);
  };
  const ErrorCode invalid = ErrorCode::kInvalidArgument;
  const ErrorCode pointer = ErrorCode::kStale;
  with([](Request& r) { r.segments[1].data = nullptr; }, pointer, "'first'");
  with([&](Request& r) { r.segments[3].data = state[0].data; }, pointer, "'second'");
  with([](Request& r) { r.segments[3].device = 1; }, pointer, "'second'");
  with([](Request& r) { r.segments[3].device = 2; }, ErrorCode::kUnavailable, "'second'");
  with([](Request& r) { r.segments[3].device = -3; }, invalid, "'second'");
  with([](Request& r) { r.segments[1].bytes = UINT64_MAX; }, invalid, "'first'");
  with([](Request& r) { r.segments[1].offset = UINT64_MAX - 5; }, invalid, "'first'");
  with([](Request& r) { r.segments[3].offset = r.segments[1].offset + 99; }, invalid, "overlaps");
  with([](Request& r) { r.segments[3].name = r.segments[1].name; }, invalid, "two tensors");
  with([](Request& r) { r.segments[3].name = ""; }, invalid, "name");
  with([](Request& r) { r.segments[0].kind = 9; }, invalid, "segment 0");
  with([](Request& r) { r.request.file_bytes = UINT64_MAX; }, invalid, "file_bytes");
  with([](Request& r) { r.request.mode = 010000; }, invalid, "mode");
  with([](Request& r) { r.request.segments = nullptr; }, invalid, "segments");
  void* freed = mmap(nullptr, 3 * kBlock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(static_cast<std::byte*>(freed) + kBlock, kBlock);
  with(
      [&](Request& r) {
        r.segments[1].data = freed;
        r.segments[1].bytes = 2 * kBlock;
        r.segments[1].offset = 10'000;
        r.request.file_bytes = 3 * kBlock;
      },
      pointer, "freed");
  mprotect(static_cast<std::byte*>(freed) + kBlock - 4096, 4096, PROT_NONE);
  with(
      [&](Request& r) {
        r.segments[1].data = freed;
        r.segments[1].bytes = kBlock;
        r.segments[1].offset = 10'000;
        r.request.file_bytes = 3 * kBlock;
      },
      pointer, "'first'): its memory of 1048576 bytes may not be read");
  munmap(freed, kBlock);
  munmap(static_cast<std::byte*>(freed) + 2 * kBlock, kBlock);
  Request made;
  Build(state, 1, made);
  Refused(made, Path("none/x"), ErrorCode::kNotFound, Path("none"));
  Refused(made, Path("x") + "/", invalid, "'/'");
  Refused(made, "", invalid, "path");
  Refused(made, Path(std::string(256, 'n')), ErrorCode::kNameTooLong, "nnn");
  std::filesystem::create_directory(Path("folder"));
  Refused(made, Path("folder"), ErrorCode::kIsDirectory, "folder");
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  Refused(made, Path("pipe"), ErrorCode::kIo, "no regular file");
}

TEST_F(SaveTrouble, RingsThatCannotBeHad) {
  std::vector<TestTensor> state{NewTensor("a", 0, 100)};
  cairnfs_saver_options options = {};
  options.ring_bytes = 1000;
  EXPECT_FALSE(Saver::Open(options, devices_).ok());
  options.ring_bytes = 64 * kBlock;
  devices_.pinned_max = 40 * kBlock;
  auto saver = OpenSaver(options);
  Request made;
  Build(state, 1, made);
  EXPECT_EQ(Save(*saver, made, Path("x"), nullptr).error().code, ErrorCode::kExhausted);
  EXPECT_TRUE(Names().empty());
  // One that nobody asked for is as large as can be had.
  auto modest = OpenSaver();
  EXPECT_EQ(SaveRight(*modest, state, Path("x"), nullptr).ring_bytes, 32 * kBlock + 4096);
}

// Host tensors alone need no pinned memory, and no context of a device.
TEST_F(SaveTrouble, TheRingIsPinnedWithTheFirstDevice) {
  cairnfs_saver_options options = {};
  options.ring_bytes = 4 * kBlock;
  auto saver = OpenSaver(options);
  devices_.pins = false;
  std::vector<TestTensor> state{NewTensor("h", CAIRNFS_HOST, 100)};
  SaveRight(*saver, state, Path("x"), nullptr);
  EXPECT_EQ(devices_.pinned_bytes, 0);
  devices_.pins = true;
  state.push_back(NewTensor("d", 0, 100));
  SaveRight(*saver, state, Path("x"), nullptr);
  EXPECT_GE(devices_.pinned_bytes, static_cast<int64_t>(4 * kBlock));
  const int64_t pinned = devices_.pinned_bytes;
  SaveRight(*saver, state, Path("x"), nullptr);
  EXPECT_EQ(devices_.pinned_bytes, pinned);
}

TEST_F(SaveTrouble, ADeviceThatFailsInTheMiddle) {
  cairnfs_saver_options options = {};
  options.ring_bytes = 4 * kBlock;
  auto saver = OpenSaver(options);
  std::vector<TestTensor> state{NewTensor("a", 0, 12 * kBlock), NewTensor("h", CAIRNFS_HOST, 9 * kBlock)};
  SaveRight(*saver, state, Path("one"), nullptr);
  const auto one = Read(Path("one"));
  for (auto& tensor : state) Fill(tensor, 0, tensor.bytes);
  Request made;
  Build(state, 64, made);
  for (int copies = 0; copies < 8; copies++) {
    devices_.devices[0].copies_until_failure = copies;
    const auto result = Save(*saver, made, Path("two"), Path("one").c_str());
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kFailed);
    EXPECT_EQ(Names(), std::vector<std::string>{"one"});
    EXPECT_TRUE(Read(Path("one")) == one);
  }
  // What is known of the base is still right.
  devices_.devices[0].copies_until_failure = -1;
  Fill(state[0], 0, 1);
  EXPECT_EQ(SaveRight(*saver, state, Path("two"), Path("one").c_str()).base_use,
            static_cast<uint32_t>(CAIRNFS_BASE_USED));
}

// In a child: limits and kills are a process's.
template <typename Run>
int InChild(Run run) {
  const pid_t child = fork();
  if (child == 0) {
    run();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST_F(SaveTrouble, NoRoomForTheFile) {
  std::vector<TestTensor> state{NewTensor("a", CAIRNFS_HOST, 3 * kBlock), NewTensor("b", 0, 3 * kBlock)};
  const int status = InChild([&] {
    auto saver = OpenSaver();
    std::vector<TestTensor> small{state[0]};
    SaveRight(*saver, small, Path("one"), nullptr);
    const auto one = Read(Path("one"));
    const rlimit limit{5 * kBlock, 5 * kBlock};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    Request made;
    Build(state, 64, made);
    const auto result = Save(*saver, made, Path("two"), Path("one").c_str());
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kNoSpace) << result.error().message;
    EXPECT_EQ(Names(), std::vector<std::string>{"one"});
    EXPECT_TRUE(Read(Path("one")) == one);
  });
  EXPECT_EQ(status, 0);
}

TEST_F(SaveTrouble, NoThreads) {
  std::vector<TestTensor> state{NewTensor("a", CAIRNFS_HOST, 3 * kBlock), NewTensor("b", 0, 2 * kBlock)};
  auto saver = OpenSaver();
  SaveRight(*saver, state, Path("one"), nullptr);
  const int64_t handles = devices_.devices[0].handles;
  {
    Request made;
    Build(state, 64, made);
    const NoThreads no_threads;
    const auto result = Save(*saver, made, Path("two"), Path("one").c_str());
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kExhausted);
  }
  EXPECT_EQ(devices_.devices[0].handles, handles);
  EXPECT_EQ(SaveRight(*saver, state, Path("two"), Path("one").c_str()).base_use,
            static_cast<uint32_t>(CAIRNFS_BASE_USED));
}

TEST_F(SaveTrouble, FewThreads) {
  if (!MayLimitThreads()) GTEST_SKIP() << "needs root";
  std::vector<TestTensor> state{NewTensor("a", CAIRNFS_HOST, 3 * kBlock), NewTensor("b", 0, 2 * kBlock)};
  std::filesystem::permissions(folder_, std::filesystem::perms::all);
  int failed = 0;
  for (rlim_t threads = 1; threads <= 8; threads++) {
    const int got = WithFewThreads(threads, [&] {
      auto saver = OpenSaver();
      Request made;
      Build(state, 64, made);
      const auto result = Save(*saver, made, Path("one"), nullptr);
      if (result.ok()) return Read(Path("one")) == made.expected ? 0 : 2;
      return result.error().code == ErrorCode::kExhausted && Names().empty() ? 1 : 2;
    });
    ASSERT_TRUE(got == 0 || got == 1) << threads << " threads: " << got;
    failed += got;
    if (got == 0) break;
  }
  EXPECT_GE(failed, 2);  // without a thread for the save, and without one for its crew
  EXPECT_LT(failed, 8);
}

// A write that fails when nothing else is left to do: the limit comes after the file got its size.
TEST_F(SaveTrouble, TheLastWriteFails) {
  std::vector<TestTensor> state{NewTensor("d", 0, kBlock)};
  const int status = InChild([&] {
    cairnfs_saver_options options = {};
    options.writers = 1;
    auto saver = OpenSaver(options);
    SaveRight(*saver, state, Path("one"), nullptr);
    devices_.devices[0].before_copy = [] {
      const rlimit limit{kBlock / 2, RLIM_INFINITY};
      EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    };
    Request made;
    Build(state, 64, made);
    for (int round = 0; round < 20; round++) {
      const rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
      ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
      const auto result = Save(*saver, made, Path("two"), nullptr);
      ASSERT_FALSE(result.ok()) << round;
      EXPECT_EQ(result.error().code, ErrorCode::kNoSpace) << result.error().message;
      EXPECT_EQ(Names(), std::vector<std::string>{"one"});
    }
  });
  EXPECT_EQ(status, 0);
}

// A saver that dies leaves the old file or the new one, whole.
TEST_F(SaveTrouble, KilledAtEachStep) {
  std::vector<TestTensor> state{NewTensor("a", CAIRNFS_HOST, 3 * kBlock), NewTensor("b", 0, 2 * kBlock)};
  auto saver = OpenSaver();
  SaveRight(*saver, state, Path("file"), nullptr);
  saver.reset();
  for (const char* point : {"client.before_sync", "client.before_rename", "client.after_rename"}) {
    const auto old = Read(Path("file"));
    Fill(state[0], 5, 6);
    Fill(state[1], 5, 6);
    Request made;
    Build(state, 64, made);
    const int status = InChild([&] {
      ASSERT_TRUE(Failpoint::Arm(std::string(point) + "=kill").ok());
      auto dying = OpenSaver();
      (void)Save(*dying, made, Path("file"), nullptr);
    });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << point;
    EXPECT_TRUE(Read(Path("file")) == (std::string(point) == "client.after_rename" ? made.expected : old)) << point;
  }
}

// What they left is removed by the next save of the same file, by whatever saver.
TEST_F(SaveTrouble, TheNextSaveRemovesWhatKilledOnesLeft) {
  const std::vector<TestTensor> state{NewTensor("a", CAIRNFS_HOST, 3 * kBlock)};
  Request made;
  Build(state, 64, made);
  for (const std::string& name : {std::string("file"), std::string(255, 'n')}) {
    for (int killed = 0; killed < 2; killed++) {
      EXPECT_TRUE(WIFSIGNALED(InChild([&] {
        ASSERT_TRUE(Failpoint::Arm("client.before_rename=kill").ok());
        auto dying = OpenSaver();
        (void)Save(*dying, made, Path(name), nullptr);
      })));
      EXPECT_EQ(Names().size(), 1U);
    }
    auto saver = OpenSaver();
    SaveRight(*saver, state, Path(name), nullptr);
    EXPECT_EQ(Names(), std::vector<std::string>{name});
    std::filesystem::remove(Path(name));
  }
}

// Anything else of such a name stays: one that is being written, what is no file, other people's, other names.
TEST_F(SaveTrouble, OnlyAbandonedFilesAreRemoved) {
  const auto temporary = [this](char digit) { return Path("file.tmp-" + std::string(16, digit)); };
  const auto make = [](const std::string& path) { return open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0400); };
  const int locked = make(temporary('1'));
  ASSERT_EQ(flock(locked, LOCK_SH), 0);
  ASSERT_EQ(mkfifo(temporary('2').c_str(), 0600), 0);
  std::filesystem::create_directory(temporary('3'));
  close(make(Path("other")));
  std::filesystem::create_symlink("other", temporary('4'));
  close(make(temporary('5')));
  EXPECT_TRUE(chown(temporary('5').c_str(), 12345, 12345) == 0 || geteuid() != 0);
  close(make(temporary('g')));
  close(make(temporary('6') + "0"));
  close(make(Path("file.tmp-")));
  close(make(Path("file2.tmp-1111111111111111")));
  auto expected = Names();
  if (geteuid() != 0) std::erase(expected, "file.tmp-5555555555555555");
  expected.push_back("file");
  std::sort(expected.begin(), expected.end());
  close(make(temporary('a')));
  close(make(temporary('0')));
  auto saver = OpenSaver();
  SaveRight(*saver, {NewTensor("a", CAIRNFS_HOST, 100)}, Path("file"), nullptr);
  EXPECT_EQ(Names(), expected);
  close(locked);
}

// Savers that make files of the same name at once do not take each other's for abandoned ones.
TEST_F(SaveTrouble, SaversOfOneFileAtOnce) {
  const std::vector<TestTensor> state{NewTensor("a", CAIRNFS_HOST, 100)};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++) {
    threads.emplace_back([&] {
      auto saver = OpenSaver();
      for (int round = 0; round < 20; round++) {
        Request made;
        Build(state, 64, made);
        const auto result = Save(*saver, made, Path("file"), nullptr);
        EXPECT_TRUE(result.ok()) << result.error().message;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Names(), std::vector<std::string>{"file"});
}

// Two names for the same bytes: the C ABI only reads them.
TEST_F(SaveTrouble, TensorsThatOverlapInMemory) {
  const TestTensor whole = NewTensor("whole", CAIRNFS_HOST, 3 * kBlock);
  TestTensor part{.name = "part", .data = whole.data + 5, .bytes = 2 * kBlock};
  auto saver = OpenSaver();
  SaveRight(*saver, {whole, part}, Path("1"), nullptr);
  part.data[kBlock + 7] ^= std::byte{1};
  SaveRight(*saver, {whole, part}, Path("2"), Path("1").c_str());
}

TEST_F(SaveTrouble, KilledAtAnyTime) {
  std::vector<TestTensor> state{NewTensor("a", CAIRNFS_HOST, 2 * kBlock), NewTensor("b", 0, kBlock)};
  auto saver = OpenSaver();
  SaveRight(*saver, state, Path("file"), nullptr);
  saver.reset();
  auto old = Read(Path("file"));
  Fill(state[0], 5, 6);
  Request made;
  Build(state, 64, made);
  for (int round = 0; round < 15; round++) {
    const pid_t child = fork();
    if (child == 0) {
      auto dying = OpenSaver();
      (void)Save(*dying, made, Path("file"), nullptr);
      _exit(0);
    }
    usleep(static_cast<useconds_t>(random_() % 20'000));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const auto now = Read(Path("file"));
    ASSERT_TRUE(now == old || now == made.expected) << "round " << round;
  }
}

// As `rsync --times` and the like do, and at once: within the tick of the rename's ctime, if that were the last look.
TEST_F(SaveTrouble, ABaseThatIsOverwrittenAndGetsItsTimeBack) {
  auto saver = OpenSaver();
  const std::vector<TestTensor> state{NewTensor("a", CAIRNFS_HOST, 3 * kBlock)};
  for (int round = 0; round < 30; round++) {
    const std::string base = Path("base" + std::to_string(round));
    Request made;
    Build(state, 64, made);
    ASSERT_TRUE(Save(*saver, made, base, nullptr).ok());
    const int file = open(base.c_str(), O_WRONLY | O_CLOEXEC);
    struct stat found {};
    fstat(file, &found);
    EXPECT_EQ(pwrite(file, "spoiled", 7, static_cast<off_t>(2 * kBlock)), 7);
    const timespec times[] = {found.st_atim, found.st_mtim};
    EXPECT_EQ(futimens(file, times), 0);
    close(file);
    SaveRight(*saver, state, Path("next"), base.c_str());
    ASSERT_FALSE(HasFailure()) << "round " << round;
    std::filesystem::remove(base);
  }
}

// Somebody writes to the base while it is copied from.
TEST_F(SaveTrouble, ABaseThatChangesDuringTheSave) {
  auto saver = OpenSaver();
  std::vector<TestTensor> state{NewTensor("a", CAIRNFS_HOST, 9 * kBlock), NewTensor("b", 0, 9 * kBlock)};
  int used = 0;
  for (int round = 0; round < 12; round++) {
    const std::string base = Path("base" + std::to_string(round));
    SaveRight(*saver, state, base, nullptr);
    std::thread spoiler([&, wait = random_() % 4000] {
      usleep(static_cast<useconds_t>(wait));
      const int file = open(base.c_str(), O_WRONLY);
      for (off_t at = 0; at < static_cast<off_t>(18 * kBlock); at += 4096) EXPECT_EQ(pwrite(file, "x", 1, at), 1);
      close(file);
    });
    used += SaveRight(*saver, state, Path("next"), base.c_str()).base_use == CAIRNFS_BASE_USED ? 1 : 0;
    spoiler.join();
    std::filesystem::remove(base);
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
  RecordProperty("bases_used", used);
}

}  // namespace
}  // namespace cairnfs::client
