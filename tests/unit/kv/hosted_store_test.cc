// What HostedStore promises beside what the conformance suites ask: group commit, and what failures and crashes leave.
#include "kv/hosted_store.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "../../support/eventually.h"
#include "../../support/no_threads.h"
#include "base/clock.h"
#include "kv/hosted_batch.h"
#include "support.h"

namespace cairnfs::kv {
namespace {

Transaction LeasedPut(const std::string& key, LeaseId lease) {
  Transaction transaction;
  transaction.writes.push_back(KvWrite{key, "", lease});
  return transaction;
}

TEST(HostedStore, AWatchWithoutAThreadIsAnError) {
  const auto memory = OpenMemoryEngine();
  auto store = Must(HostedStore::Open(*memory));
  std::atomic<int> told{0};
  const WatchCallbacks callbacks{[&](auto, auto) { ++told; }, [](auto) {}};
  {
    const NoThreads none;
    for (uint64_t after : {0, 1}) {
      auto watch = store->Watch({}, "", "", after, callbacks);
      ASSERT_FALSE(watch.ok());
      EXPECT_EQ(watch.error().code, ErrorCode::kUnavailable);
    }
    auto other = HostedStore::Open(*memory);
    ASSERT_FALSE(other.ok());
    EXPECT_EQ(other.error().code, ErrorCode::kUnavailable);
  }
  // What could not start is in nobody's way.
  const auto watch = Must(store->Watch({}, "", "", 0, callbacks));
  Must(store->Commit({}, Transaction().Put("a", "1")));
  while (told == 0) Clock::SleepFor(std::chrono::milliseconds(1));
}

TEST(HostedStore, AReadThatFailsIsNoStateThatWasLost) {
  const auto memory = OpenMemoryEngine();
  FailingEngine engine(*memory);
  auto store = Must(HostedStore::Open(engine));
  const uint64_t revision = Must(store->Commit({}, Transaction().Put("a", "1")));
  engine.fail_reads = true;
  for (const uint64_t opening : {uint64_t{0}, store->opening()}) {
    const Result<bool> was = store->WasAt(opening, revision);
    ASSERT_FALSE(was.ok());
    EXPECT_EQ(was.error().code, ErrorCode::kIo);
  }
  engine.fail_reads = false;
  EXPECT_TRUE(Must(store->WasAt(store->opening(), revision)));
}

// The process is stopped while the end of a lease is being written. Others, which nobody could hear, do not end by it.
TEST(HostedStore, APauseInTheEndOfALeaseIsNoticed) {
  constexpr std::chrono::seconds kTerm{5};
  const auto memory = OpenMemoryEngine();
  FailingEngine engine(*memory);
  const auto test_thread = std::this_thread::get_id();
  std::atomic<bool> armed{false};
  std::promise<void> paused;
  engine.before_write = [&] {
    if (std::this_thread::get_id() == test_thread || !armed.exchange(false)) return;
    Clock::SleepFor(kTerm + std::chrono::milliseconds(500));
    paused.set_value();
  };
  auto store = Must(HostedStore::Open(engine));
  const LeaseId kept = Must(store->GrantLease({}, kTerm));
  armed = true;
  Must(store->GrantLease({}, std::chrono::milliseconds(1)));
  paused.get_future().wait();
  Clock::SleepFor(std::chrono::milliseconds(500));  // it is looked which are over, several times
  EXPECT_TRUE(store->KeepLeaseAlive({}, kept).ok());
}

TEST(HostedStore, ConcurrentCommitsShareASync) {
  const auto memory = OpenMemoryEngine();
  FailingEngine engine(*memory);
  auto store = Must(HostedStore::Open(engine));
  constexpr int kThreads = 16, kCommits = 20;
  std::atomic<int> syncs{0}, committing{0}, working{kThreads};
  engine.before_write = [&] {
    ++syncs;
    // However slow the machine is: whoever is not in this write has come to wait for the next one.
    while (committing < working) Clock::SleepFor(std::chrono::milliseconds(1));
    Clock::SleepFor(std::chrono::milliseconds(2));
  };
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kCommits; ++i) {
          const std::string key = std::to_string(t) + "/" + std::to_string(i);
          ++committing;
          const uint64_t revision = Must(store->Commit({}, Transaction().IfAbsent(key).Put(key, "")));
          --committing;
          EXPECT_EQ(Must(store->Get({}, key))->revision, revision);
        }
        --working;
      });
    }
  }
  EXPECT_EQ(Must(store->Range({}, "", "", 0)).revision, static_cast<uint64_t>(kThreads * kCommits));
  EXPECT_LT(syncs, kThreads * kCommits / 4);
}

TEST(HostedStore, OpeningsTellWhichStatesWereItsOwn) {
  const auto engine = OpenMemoryEngine();
  auto put = [](HostedStore& store, int count) {
    for (int i = 0; i < count; ++i) Must(store.Commit({}, Transaction().Put("a", "")));
  };
  auto store = Must(HostedStore::Open(*engine));
  const uint64_t first = store->opening();
  put(*store, 3);
  EXPECT_TRUE(Must(store->WasAt(first, 3)) && Must(store->WasAt(0, 3)));
  EXPECT_FALSE(Must(store->WasAt(first, 4)) || Must(store->WasAt(0, 4)) || Must(store->WasAt(first + 1, 1)));
  store.reset();
  store = Must(HostedStore::Open(*engine));
  EXPECT_NE(store->opening(), first);
  put(*store, 3);
  EXPECT_TRUE(Must(store->WasAt(first, 3)));
  EXPECT_FALSE(Must(store->WasAt(first, 4))) << "the first opening ended at 3";
  EXPECT_TRUE(Must(store->WasAt(store->opening(), 6)));
  for (size_t i = 0; i < Openings::kKept; ++i) {
    store.reset();
    store = Must(HostedStore::Open(*engine));
  }
  EXPECT_FALSE(Must(store->WasAt(first, 3))) << "it is forgotten";
  EXPECT_EQ(Must(engine->Get("O"))->size(), Openings::kKept * 16);
  store.reset();
  MustSucceed(engine->Write({EngineWrite{"O", "short"}}, WriteMode::kSynced));
  auto damaged = HostedStore::Open(*engine);
  ASSERT_FALSE(damaged.ok());
  EXPECT_EQ(damaged.error().code, ErrorCode::kCorrupt);
}

TEST(HostedStore, APieceIsHandedOverBeforeTheNextIsRead) {
  const auto memory = OpenMemoryEngine();
  FailingEngine engine(*memory);
  auto store = Must(HostedStore::Open(engine));
  Transaction transaction;
  for (int i = 10; i < 90; ++i) transaction.Put("k" + std::to_string(i), std::string(100, 'x'));
  const uint64_t revision = Must(store->Commit({}, transaction));
  engine.visits = 0;
  std::vector<std::string> seen;
  const std::vector<KvSpan> spans{{"k2", "k21", 0}, {"k3", "k4", 2}, {"k5", "", 0}, {"k6", "", 0}};
  auto take = [&](HostedStore::Piece piece) {
    EXPECT_EQ(piece.revision, revision);
    seen.push_back(std::to_string(piece.span) + (piece.entry ? piece.entry->key : " and more"));
    EXPECT_EQ(engine.visits, seen.size()) << "it read ahead";
    return seen.size() < 6;
  };
  EXPECT_EQ(Must(store->ReadPieces(spans, take)), revision);
  EXPECT_EQ(seen, (std::vector<std::string>{"0k20", "1k30", "1k31", "1 and more", "2k50", "2k51"}));
  EXPECT_EQ(engine.visits, 6);
}

TEST(HostedStore, NothingIsSeenBeforeItIsDurable) {
  const auto memory = OpenMemoryEngine();
  FailingEngine engine(*memory);
  auto store = Must(HostedStore::Open(engine));
  std::atomic<bool> is_writing{false}, go_on{false};
  engine.before_write = [&] {
    is_writing = true;
    while (!go_on) Clock::SleepFor(std::chrono::milliseconds(1));
  };
  std::atomic<int> told{0};
  const auto watch = Must(store->Watch({}, "", "", 0, {[&](auto, auto) { ++told; }, [](auto) {}}));
  std::jthread writer([&] { Must(store->Commit({}, Transaction().Put("a", "1"))); });
  while (!is_writing) Clock::SleepFor(std::chrono::milliseconds(1));
  EXPECT_FALSE(Must(store->Get({}, "a")).has_value());
  EXPECT_TRUE(Must(store->Range({}, "", "", 0)).entries.empty());
  EXPECT_EQ(told, 0);
  go_on = true;
  writer.join();
  EXPECT_TRUE(Must(store->Get({}, "a")).has_value());
  while (told == 0) Clock::SleepFor(std::chrono::milliseconds(1));
}

TEST(HostedStore, FailedWriteChangesNothingAndLaterOnesGoOn) {
  const auto memory = OpenMemoryEngine();
  FailingEngine engine(*memory);
  const auto test_thread = std::this_thread::get_id();
  std::atomic<int> ends_tried{0};  // while writes fail
  engine.before_write = [&] {
    if (engine.fail_writes && std::this_thread::get_id() != test_thread) ++ends_tried;
  };
  auto store = Must(HostedStore::Open(engine));
  constexpr std::chrono::milliseconds kLease{2000};  // it outlasts the commit, also on a busy machine
  const LeaseId lease = Must(store->GrantLease({}, kLease));
  const uint64_t revision = Must(store->Commit({}, LeasedPut("leased", lease)));
  engine.fail_writes = true;
  Transaction create = Transaction().IfAbsent("a").Put("a", "1");
  create.operation_id = "create";
  Result<uint64_t> refused = store->Commit({}, create);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_FALSE(store->GrantLease({}, std::chrono::seconds(1)).ok());
  EXPECT_FALSE(Must(store->Get({}, "a")).has_value());
  ASSERT_TRUE(Eventually([&] { return ends_tried > 1; }));  // so the first has failed
  EXPECT_TRUE(Must(store->Get({}, "leased")).has_value()) << "its end could not be made durable";
  EXPECT_FALSE(store->KeepLeaseAlive({}, lease).ok());
  engine.fail_writes = false;
  EXPECT_GT(Must(store->Commit({}, create)), revision);
  for (int i = 0; i < 6000 && Must(store->Get({}, "leased")); ++i) {
    Clock::SleepFor(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(Must(store->Get({}, "leased")).has_value());
}

// It may be in the engine's log: these codes would say that it did not run.
TEST(HostedStore, FailedWriteIsNotToldAsARefusal) {
  const auto memory = OpenMemoryEngine();
  FailingEngine engine(*memory);
  auto store = Must(HostedStore::Open(engine));
  engine.fail_writes = true;
  for (ErrorCode code : {ErrorCode::kCorrupt, ErrorCode::kPermission, ErrorCode::kIo, ErrorCode::kFailed}) {
    engine.write_error = code;
    EXPECT_TRUE(MayHaveRun(store->Commit({}, Transaction().Put("a", "1")).error().code)) << ErrorCodeName(code);
  }
}

TEST(HostedStore, RestartGivesLeasesTheirFullTime) {
  const auto engine = OpenMemoryEngine();
  constexpr std::chrono::milliseconds kLease{2000};  // it outlasts a few calls, also on a busy machine
  LeaseId lease = 0;
  {
    auto store = Must(HostedStore::Open(*engine));
    lease = Must(store->GrantLease({}, kLease));
    Must(store->Commit({}, LeasedPut("leased", lease)));
  }
  Clock::SleepFor(kLease + std::chrono::milliseconds(200));
  auto store = Must(HostedStore::Open(*engine));
  Clock::SleepFor(std::chrono::milliseconds(200));
  EXPECT_TRUE(Must(store->Get({}, "leased")).has_value());
  MustSucceed(store->RevokeLease({}, lease));
  store.reset();
  size_t records = 0;
  for (const char* begin : {"A", "L"}) {
    MustSucceed(engine->Scan(begin, std::string(1, static_cast<char>(begin[0] + 1)), nullptr,
                             [&](std::string_view, std::string_view) { return ++records > 0; }));
  }
  EXPECT_EQ(records, 0u) << "nothing is left of a lease that ended";
}

TEST(HostedStore, WatchOverARestartIsLostUnlessNothingChanged) {
  const auto engine = OpenMemoryEngine();
  auto store = Must(HostedStore::Open(*engine));
  const uint64_t first = Must(store->Commit({}, Transaction().Put("a", "1")));
  const uint64_t second = Must(store->Commit({}, Transaction().Put("a", "2")));
  store = nullptr;
  store = Must(HostedStore::Open(*engine));
  std::atomic<uint64_t> lost_first{0}, lost_second{0}, told{0};
  const auto behind = Must(store->Watch({}, "", "", first, {[](auto, auto) {}, [&](uint64_t at) { lost_first = at; }}));
  const auto level = Must(store->Watch(
      {}, "", "", second, {[&](auto, uint64_t at) { told = at; }, [&](uint64_t at) { lost_second = at; }}));
  const uint64_t third = Must(store->Commit({}, Transaction().Put("a", "3")));
  while (told == 0 || lost_first == 0) Clock::SleepFor(std::chrono::milliseconds(1));
  EXPECT_EQ(told, third);
  EXPECT_GE(lost_first, second);
  EXPECT_EQ(lost_second, 0u);
}

TEST(HostedStore, DamagedRecordsAreNamed) {
  const auto engine = OpenMemoryEngine();
  for (const auto& [key, value] : {std::pair<std::string, std::string>{"Lshort", ""},
                                   {"L\0\0\0\0\0\0\0\1" + std::string(), "short"},
                                   {"A" + std::string(8, '\7') + "Kx", ""},
                                   {"R", "short"}}) {
    MustSucceed(engine->Write({{key, value}}, WriteMode::kSynced));
    Result<std::unique_ptr<HostedStore>> opened = HostedStore::Open(*engine);
    ASSERT_FALSE(opened.ok()) << key;
    EXPECT_EQ(opened.error().code, ErrorCode::kCorrupt);
    MustSucceed(engine->Write({{key, std::nullopt}}, WriteMode::kSynced));
  }
}

constexpr const char* kChildDirectory = "CAIRNFS_TEST_HOSTED_STORE";
constexpr int kChildPipe = 3;

// Not a test of its own: the process that the next one kills. It writes each key to a pipe once it was acknowledged.
TEST(HostedStore, DISABLED_CommitsUntilItIsKilled) {
  const char* directory = getenv(kChildDirectory);
  ASSERT_NE(directory, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto engine = MustOpenRocks(directory);
  auto store = Must(HostedStore::Open(*engine));
  const std::string begin = std::to_string(getpid()) + "/";
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0;; ++i) {
        const std::string key = begin + std::to_string(t) + "/" + std::to_string(i);
        if (!store->Commit({}, Transaction().IfAbsent(key).Put(key, key)).ok()) _exit(1);
        const std::string line = key + "\n";
        if (write(kChildPipe, line.data(), line.size()) < 0) _exit(1);
      }
    });
  }
}

TEST(HostedStore, KilledProcessKeepsEveryAcknowledgedCommit) {
  TemporaryDirectory directory;
  setenv(kChildDirectory, (directory.path() + "/db").c_str(), 1);
  for (int round = 0; round < 3; ++round) {
    int pipes[2];
    ASSERT_EQ(pipe(pipes), 0);
    const pid_t child = fork();
    if (child == 0) {
      dup2(pipes[1], kChildPipe);
      const int quiet = open("/dev/null", O_WRONLY);
      dup2(quiet, STDOUT_FILENO);
      execl("/proc/self/exe", "child", "--gtest_also_run_disabled_tests",
            "--gtest_filter=HostedStore.DISABLED_CommitsUntilItIsKilled", nullptr);
      _exit(127);
    }
    close(pipes[1]);
    std::string acknowledged;
    const auto take = [&] {
      char buffer[1 << 16];
      const ssize_t size = read(pipes[0], buffer, sizeof buffer);
      if (size > 0) acknowledged.append(buffer, static_cast<size_t>(size));
      return size > 0;
    };
    while (acknowledged.size() < 2000) ASSERT_TRUE(take());
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    while (take()) continue;
    close(pipes[0]);
    auto engine = MustOpenRocks(directory.path() + "/db");
    auto store = Must(HostedStore::Open(*engine));
    size_t count = 0;
    for (size_t begin = 0, end; (end = acknowledged.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const std::string key = acknowledged.substr(begin, end - begin);
      std::optional<KvEntry> entry = Must(store->Get({}, key));
      ASSERT_TRUE(entry.has_value()) << key;
      EXPECT_EQ(entry->value, key);
      ++count;
    }
    EXPECT_GT(count, 0u);
  }
}

// Lets in whom it does not refuse, and notes what it was asked.
class ToldRoom final : public NameRoom {
 public:
  Status Judge(NameChange change, uint32_t uid, uint64_t unwritten_bytes) override {
    unwritten.push_back(unwritten_bytes);
    if (change == NameChange::kMakes ? uid != refused : !refuses_longer) return {};
    return MakeError(ErrorCode::kNoSpace, "planted");
  }
  uint64_t BytesForUsers(uint64_t /*unwritten_bytes*/) const override { return 1234; }

  std::atomic<uint32_t> refused{7};
  std::atomic<bool> refuses_longer{false};
  std::vector<uint64_t> unwritten;  // of the thread that commits
};

Transaction NameOf(uint32_t uid, const std::string& key) {
  Transaction transaction = Transaction().IfAbsent(key).Put(key, "value");
  transaction.makes_names_for = uid;
  return transaction;
}

// nullopt: it was committed.
std::optional<ErrorCode> CodeOf(const Result<uint64_t>& committed) {
  return committed.ok() ? std::nullopt : std::optional(committed.error().code);
}

std::unique_ptr<HostedStore> OpenWithRoom(KvEngine& engine) {
  HostedStoreOptions options;
  options.keeps_room = true;
  return Must(HostedStore::Open(engine, options));
}

TEST(HostedStore, NamesNeedARoomThatLetsThemIn) {
  const auto memory = OpenMemoryEngine();
  const auto store = OpenWithRoom(*memory);
  // Of a node that starts.
  EXPECT_EQ(CodeOf(store->Commit({}, NameOf(8, "a"))), ErrorCode::kUnavailable);
  EXPECT_EQ(store->RoomForNames(), std::nullopt);
  Must(store->Commit({}, Transaction().Put("none", "made")));
  ToldRoom room;
  store->SetNameRoom(&room);
  EXPECT_EQ(store->RoomForNames(), 1234u);
  Must(store->Commit({}, NameOf(8, "a")));
  EXPECT_EQ(CodeOf(store->Commit({}, NameOf(7, "b"))), ErrorCode::kNoSpace);
  EXPECT_EQ(Must(store->Get({}, "b")), std::nullopt);
  EXPECT_EQ(room.unwritten.size(), 2u);
  Must(store->Commit({}, Transaction().Delete("a")));
  EXPECT_EQ(room.unwritten.size(), 2u) << "a removal makes no name";
  store->SetNameRoom(nullptr);
  EXPECT_EQ(CodeOf(store->Commit({}, NameOf(8, "a"))), ErrorCode::kUnavailable);
}

TEST(HostedStore, ANameThatCouldNotBeMadeAnywayIsNotJudged) {
  const auto memory = OpenMemoryEngine();
  const auto store = OpenWithRoom(*memory);
  ToldRoom room;
  store->SetNameRoom(&room);
  Must(store->Commit({}, NameOf(8, "a")));
  EXPECT_EQ(CodeOf(store->Commit({}, NameOf(7, "a"))), ErrorCode::kConflict);
}

TEST(HostedStore, WhatMayLengthenIsJudgedIfItDoes) {
  const auto memory = OpenMemoryEngine();
  const auto store = OpenWithRoom(*memory);
  const auto put = [&](const std::string& value) {
    Transaction transaction = Transaction().Put("a", value);
    transaction.may_lengthen = true;
    return CodeOf(store->Commit({}, transaction));
  };
  EXPECT_EQ(put("12345"), std::nullopt) << "of a node that starts";
  ToldRoom room;
  store->SetNameRoom(&room);
  room.refuses_longer = true;
  EXPECT_EQ(put("123456"), ErrorCode::kNoSpace);
  EXPECT_EQ(put("54321"), std::nullopt);
  EXPECT_EQ(put(""), std::nullopt);
  EXPECT_EQ(put("1"), ErrorCode::kNoSpace);
  Transaction moved = Transaction().Delete("a").Put("bb", "");
  moved.may_lengthen = true;
  EXPECT_EQ(CodeOf(store->Commit({}, moved)), ErrorCode::kNoSpace);
  Must(store->Commit({}, Transaction().Put("a", "1")));
  EXPECT_EQ(CodeOf(store->Commit({}, moved)), std::nullopt);
}

// As when its answer was lost: the attempt comes again, and there is no room any more.
TEST(HostedStore, ANameThatIsMadeIsNotRefusedAfterwards) {
  const auto memory = OpenMemoryEngine();
  const auto store = OpenWithRoom(*memory);
  ToldRoom room;
  store->SetNameRoom(&room);
  const SlotClaim claim{
      .slot = "slot", .value = "attempt", .lease = Must(store->GrantLease({}, std::chrono::hours(1)))};
  const Transaction name = NameOf(8, "a");
  EXPECT_TRUE(Must(store->CommitSlotted(name, claim)).committed);
  room.refused = 8;
  const SlottedAnswer again = Must(store->CommitSlotted(name, claim));
  EXPECT_FALSE(again.committed);
  EXPECT_EQ(again.slot_value, "attempt");
}

TEST(HostedStore, WhatABatchHoldsAlreadyTakesOfTheRoom) {
  const auto memory = OpenMemoryEngine();
  const LeaseTable leases;
  std::vector<uint64_t> unwritten;
  HostedBatch batch(*memory, leases, {}, [&](NameChange, uint32_t, uint64_t bytes) -> Status {
    unwritten.push_back(bytes);
    return {};
  });
  for (const char* key : {"a", "b", "c"}) EXPECT_TRUE(Must(batch.Commit(NameOf(7, key), nullptr)).committed);
  EXPECT_EQ(unwritten, (std::vector<uint64_t>{0, 6, 12}));  // of a key and its value each
}

}  // namespace
}  // namespace cairnfs::kv
