// What a killed process, a kill point or a torn log leaves of a RocksDB database.
//
// Every database is opened in a child process: the parent forks again and again, which RocksDB's threads would not
// survive.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "../../support/sanitizers.h"
#include "base/failpoint.h"
#include "support.h"

namespace cairnfs::kv {
namespace {

namespace fs = std::filesystem;

// Starts a child that writes Counted(0), Counted(1), ... and reports each synced write; kills it after `kill_after`
// reports. Returns how many were reported.
int KillAWriter(const std::string& path, int kill_after) {
  int reports[2];
  if (pipe(reports) != 0) abort();
  fflush(nullptr);
  pid_t child = fork();
  if (child == 0) {
    std::unique_ptr<KvEngine> engine = MustOpenRocks(path);
    for (int i = PrefixLength(*engine);; ++i) {
      bool sync = i % 3 == 0;
      MustSucceed(engine->Write({EngineWrite{Counted(i), std::string(3000, 'v')}}, SyncedIf(sync)));
      if (sync && write(reports[1], &i, sizeof i) != sizeof i) _exit(1);
    }
  }
  close(reports[1]);
  int last = -1;
  for (int count = 0; count < kill_after && read(reports[0], &last, sizeof last) == sizeof last; ++count) continue;
  kill(child, SIGKILL);
  int more;
  while (read(reports[0], &more, sizeof more) == sizeof more) last = more;
  close(reports[0]);
  waitpid(child, nullptr, 0);
  return last + 1;
}

// Runs `body` in a child, so that this process never starts RocksDB's threads before it forks again.
void InChild(const std::function<void()>& body) {
  fflush(nullptr);
  pid_t child = fork();
  if (child == 0) {
    body();
    fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(RocksCrash, KilledWriterLosesNoSyncedWrite) {
  std::mt19937_64 random(TestSeed());
  TemporaryDirectory directory;
  const std::string path = directory.path() + "/db";
  for (int round = 0; round < 24 / kSlowdown; ++round) {
    int synced = KillAWriter(path, static_cast<int>(random() % 200));
    InChild([&] {
      EXPECT_GE(PrefixLength(*MustOpenRocks(path)), synced);
      MustSucceed(VerifyRocksChecksums(path));
    });
  }
}

struct TornLog {
  std::string path;        // of a database whose log has synced writes, then others
  std::string log;         // name of the log
  uintmax_t synced_bytes;  // of the log
  static constexpr int kSynced = 20, kAll = 40;
};

TornLog MakeTornLog(const std::string& directory) {
  TornLog torn{directory + "/db", "", 0};
  InChild([&] {
    std::unique_ptr<KvEngine> engine = MustOpenRocks(torn.path);
    for (int i = 0; i < TornLog::kAll; ++i) {
      MustSucceed(
          engine->Write({EngineWrite{Counted(i), std::string(100 + 60 * i, 'v')}}, SyncedIf(i < TornLog::kSynced)));
      if (i + 1 == TornLog::kSynced) fs::copy(torn.path, directory + "/synced");
    }
    fflush(nullptr);
    _exit(0);  // without closing: the rest of the log stays unsynced
  });
  for (const auto& entry : fs::directory_iterator(directory + "/synced")) {
    if (entry.path().extension() != ".log") continue;
    torn.log = entry.path().filename();
    torn.synced_bytes = LogEnd(entry.path());
  }
  return torn;
}

// A power cut may leave of what was not synced any part, and zeros where sectors never arrived.
TEST(RocksCrash, TornLogRecoversToTheSyncedPrefixSilently) {
  std::mt19937_64 random(TestSeed());
  TemporaryDirectory directory;
  TornLog torn = MakeTornLog(directory.path());
  ASSERT_GT(torn.synced_bytes, 0u);
  const uintmax_t all_bytes = LogEnd(torn.path + "/" + torn.log);
  ASSERT_GT(all_bytes, torn.synced_bytes + 10'000);
  for (int round = 0; round < 60 / kSlowdown; ++round) {
    const std::string copy = directory.path() + "/copy";
    fs::remove_all(copy);
    fs::copy(torn.path, copy);
    uintmax_t size = torn.synced_bytes + random() % (all_bytes - torn.synced_bytes + 1);
    fs::resize_file(copy + "/" + torn.log, size);
    if (round % 2 == 1) {  // lose some sectors before the end
      std::fstream stream(copy + "/" + torn.log, std::ios::in | std::ios::out | std::ios::binary);
      for (uintmax_t sector = torn.synced_bytes / 512; sector * 512 < size; ++sector) {
        uintmax_t begin = std::max(sector * 512, torn.synced_bytes), end = std::min((sector + 1) * 512, size);
        if (random() % 3 != 0 || begin >= end) continue;
        stream.seekp(static_cast<std::streamoff>(begin));
        stream << std::string(end - begin, '\0');
      }
    }
    InChild([&] {
      EXPECT_GE(PrefixLength(*MustOpenRocks(copy)), TornLog::kSynced);
      std::unique_ptr<KvEngine> engine = MustOpenRocks(copy);  // and what was recovered stays
      MustSucceed(engine->Write({EngineWrite{Counted(PrefixLength(*engine)), "v"}}, WriteMode::kSynced));
      EXPECT_GT(PrefixLength(*engine), TornLog::kSynced);
    });
  }
}

TEST(RocksCrash, LogCutInsideTheSyncedPartIsAnErrorAndStaysAsItIs) {
  TemporaryDirectory directory;
  TornLog torn = MakeTornLog(directory.path());
  for (uintmax_t size : {uintmax_t{0}, torn.synced_bytes / 2, torn.synced_bytes - 1}) {
    const std::string copy = directory.path() + "/copy";
    fs::remove_all(copy);
    fs::copy(torn.path, copy);
    fs::resize_file(copy + "/" + torn.log, size);
    InChild([&] {
      for (int attempt = 0; attempt < 2; ++attempt) {
        RocksOptions options;
        options.path = copy;
        Result<std::unique_ptr<KvEngine>> engine = OpenRocksEngine(options);
        ASSERT_FALSE(engine.ok());
        EXPECT_EQ(engine.error().code, ErrorCode::kCorrupt);
        EXPECT_NE(engine.error().message.find("had been synced"), std::string::npos) << engine.error().message;
      }
    });
    EXPECT_EQ(fs::file_size(copy + "/" + torn.log), size);
  }
}

// With the sync left out (a planted bug) the mark does not claim that there was one.
TEST(RocksCrash, SkippedSyncLeavesTheMarkBehind) {
  TemporaryDirectory directory;
  InChild([&] {
    std::unique_ptr<KvEngine> engine = MustOpenRocks(directory.path());
    MustSucceed(engine->Write({EngineWrite{Counted(0), "v"}}, WriteMode::kSynced));
    std::string mark_file = directory.path() + "/cairnfs.synced";
    auto mark = [&] {
      std::ifstream stream(mark_file, std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(stream), {});
    };
    std::string before = mark();
    MustSucceed(Failpoint::Arm("kv.wal_sync=skip"));
    MustSucceed(engine->Write({EngineWrite{Counted(1), "v"}}, WriteMode::kSynced));
    EXPECT_EQ(mark(), before);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  });
}

TEST(RocksCrash, KillPointsLeaveAllOrNothing) {
  for (const char* point : {"kv.before_write", "kv.after_write", "kv.flush_begin", "kv.flush_done", "kv.wal_sync"}) {
    TemporaryDirectory directory;
    fflush(nullptr);
    pid_t child = fork();
    if (child == 0) {
      std::unique_ptr<KvEngine> engine = MustOpenRocks(directory.path());
      std::unique_ptr<LocalKvStore> store = Must(LocalKvStore::Open(*engine));
      Must(store->Commit({}, Transaction().Put("a", "1")));
      MustSucceed(store->Sync({}));
      MustSucceed(Failpoint::Arm(std::string(point) + "=kill"));
      Must(store->Commit({}, Transaction().Put("a", "2").Put("b", "2")));
      MustSucceed(store->Sync({}));
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << point;
    InChild([&] {
      std::unique_ptr<KvEngine> engine = MustOpenRocks(directory.path());
      std::unique_ptr<LocalKvStore> store = Must(LocalKvStore::Open(*engine));
      bool written = std::string(point) == "kv.after_write" || std::string(point) == "kv.flush_done";
      EXPECT_EQ(Must(store->Get({}, "a"))->value, written ? "2" : "1") << point;
      EXPECT_EQ(Must(store->Get({}, "b")).has_value(), written) << point;
    });
  }
}

}  // namespace
}  // namespace cairnfs::kv
