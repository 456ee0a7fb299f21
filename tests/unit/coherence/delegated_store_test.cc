// What a host remembers under a delegation, and when it does not.
#include <stdlib.h>

#include <random>

#include "base/clock.h"
#include "base/failpoint.h"
#include "delegated_fixture.h"

namespace cairnfs::coherence {
namespace {

TEST_F(DelegatedStoreTest, ReadsOfAMuchReadDirectoryComeFromMemory) {
  ASSERT_TRUE(store_->Commit({}, kv::Transaction().Put(DentryKey(kDirectory, "c"), "old")).ok());
  Host host(*store_, 1);
  ReadUntilHeld(host, DentryKey(kDirectory, "a"), 1);
  const uint64_t before = host.names->Stats().read_total;
  for (int i = 0; i < 10; i++) EXPECT_EQ(ValueOf(*host.names, DentryKey(kDirectory, "a")), std::nullopt);
  // Names are known that were never asked for, and so are those that are not there.
  EXPECT_EQ(ValueOf(*host.names, DentryKey(kDirectory, "b")), std::nullopt);
  EXPECT_EQ(ValueOf(*host.names, DentryKey(kDirectory, "c")), "old");
  EXPECT_EQ(host.names->Stats().read_total, before);
  // What is no name is read once.
  EXPECT_EQ(ValueOf(*host.names, DirectoryTimesKey(kDirectory)), std::nullopt);
  EXPECT_EQ(host.names->Stats().read_total, before + 1);
}

// The reader is held up after it asked for its session.
TEST_F(DelegatedStoreTest, WhatWasHeldInTheSessionBeforeIsNotAnswered) {
  const std::string key = DentryKey(kDirectory, "latest");
  ASSERT_TRUE(store_->Commit({}, kv::Transaction().Put(key, "old")).ok());
  Host reader(*store_, 1), writer(*store_, 2);
  ReadUntilHeld(reader, key, 1);
  bool is_asked = false;  // the first call is the one before the look at what is held
  reader.membership.between_calls = [&] {
    is_asked = true;
    reader.membership.between_calls = [&] {
      ASSERT_TRUE(store_->RevokeLease({}, reader.membership.lease()).ok());
      ASSERT_TRUE(writer.names->Commit({}, kv::Transaction().Put(key, "new")).ok());
      reader.membership.Begin(*store_, std::chrono::minutes(10));
    };
  };
  EXPECT_EQ(ValueOf(*reader.names, key), "new");
  EXPECT_TRUE(is_asked);
}

TEST_F(DelegatedStoreTest, ANameMadeElsewhereIsNoLongerAbsent) {
  Host reader(*store_, 1), writer(*store_, 2);
  ReadUntilHeld(reader, DentryKey(kDirectory, "a"), 1);
  EXPECT_EQ(ValueOf(*reader.names, DentryKey(kDirectory, "b")), std::nullopt);
  ASSERT_TRUE(writer.names->Commit({}, kv::Transaction().Put(DentryKey(kDirectory, "b"), "new")).ok());
  EXPECT_EQ(ValueOf(*reader.names, DentryKey(kDirectory, "b")), "new");
}

TEST_F(DelegatedStoreTest, ADirectoryWithTooManyNamesIsReadNameByName) {
  constexpr int kNames = 5000;
  for (int first = 0; first < kNames; first += 1000) {
    kv::Transaction transaction;
    for (int i = first; i < first + 1000; i++) transaction.Put(DentryKey(kDirectory, std::to_string(i)), "x");
    ASSERT_TRUE(store_->Commit({}, transaction).ok());
  }
  Host host(*store_, 1);
  ReadUntilHeld(host, DentryKey(kDirectory, "0"), 1);
  const uint64_t before = host.names->Stats().read_total;
  EXPECT_EQ(ValueOf(*host.names, DentryKey(kDirectory, "4999")), "x");
  EXPECT_EQ(ValueOf(*host.names, DentryKey(kDirectory, "none")), std::nullopt);
  EXPECT_EQ(host.names->Stats().read_total, before + 2);
}

// Between a commit and its answer others may have seen the new value.
TEST_F(DelegatedStoreTest, AnOwnChangeIsSeenBeforeItsAnswer) {
  Host host(*store_, 1);
  const std::string key = DentryKey(kDirectory, "a"), absent = DentryKey(kDirectory, "b");
  ReadUntilHeld(host, key, 1);
  host.fenced.before_answer = [&] {
    EXPECT_EQ(ValueOf(*host.names, key), "1");
    EXPECT_EQ(ValueOf(*host.names, absent), "2");
    // Whose answer comes last is not known here to be whose value stays.
    ASSERT_TRUE(host.names->Commit({}, kv::Transaction().Put(key, "3")).ok());
    EXPECT_EQ(ValueOf(*host.names, key), "3");
  };
  ASSERT_TRUE(host.names->Commit({}, kv::Transaction().Put(key, "1").Put(absent, "2")).ok());
  EXPECT_EQ(ValueOf(*host.names, key), "3");
  EXPECT_EQ(ValueOf(*host.names, absent), "2");
}

TEST_F(DelegatedStoreTest, RangesFollowOwnChanges) {
  MakeDirectory(kDirectory);
  MakeFile(kFile, kDirectory);
  Host host(*store_, 1);
  const std::string begin = MarkPrefix(kFile), end = kv::PrefixEnd(begin);
  ReadUntilHeld(host, InodeKey(kFile), 1);
  EXPECT_TRUE(host.names->Range({}, begin, end, 0)->entries.empty());
  const std::string first = begin + std::string(16, 'a'), second = begin + std::string(16, 'b');
  const uint64_t before = host.names->Stats().read_total;
  ASSERT_TRUE(host.names->Commit({}, kv::Transaction().Put(second, "2")).ok());
  ASSERT_TRUE(host.names->Commit({}, kv::Transaction().Put(first, "1")).ok());
  ASSERT_TRUE(host.names->Commit({}, kv::Transaction().Put(second, "3")).ok());
  auto range = host.names->Range({}, begin, end, 0);
  const auto there = store_->Range({}, begin, end, 0);
  ASSERT_EQ(range->entries.size(), 2U);
  for (size_t i = 0; i < 2; i++) {
    EXPECT_EQ(range->entries[i].key, there->entries[i].key);
    EXPECT_EQ(range->entries[i].value, there->entries[i].value);
    EXPECT_EQ(range->entries[i].revision, there->entries[i].revision);
  }
  ASSERT_TRUE(host.names->Commit({}, kv::Transaction().Delete(first).Delete(begin + "none")).ok());
  EXPECT_EQ(host.names->Range({}, begin, end, 0)->entries.size(), 1U);
  EXPECT_EQ(host.names->Stats().read_total, before);
}

// A host that holds both directories, and knows the file's content record, moves the file.
class MoveTest : public DelegatedStoreTest {
 protected:
  void SetUp() override {
    for (InodeId directory : {kDirectory, kOther}) MakeDirectory(directory);
    MakeFile(kFile, kDirectory);
    ASSERT_TRUE(store_->Commit({}, kv::Transaction().Put(FileKey(kFile), "old")).ok());
    ReadUntilHeld(mover_, DentryKey(kDirectory, "a"), 1);
    ReadUntilHeld(mover_, DentryKey(kOther, "a"), 2);
    ASSERT_TRUE(mover_.names->Get({}, InodeKey(kFile)).ok());
    ASSERT_EQ(ValueOf(*mover_.names, FileKey(kFile)), "old");
  }
  Result<uint64_t> Move() {
    return mover_.names->Commit({}, kv::Transaction().Put(InodeKey(kFile), RecordOf(S_IFREG, kOther)));
  }

  Host mover_{*store_, 1}, other_{*store_, 2};
};

TEST_F(MoveTest, WhatIsKnownOfTheFileStaysKnown) {
  const uint64_t before = mover_.names->Stats().read_total;
  ASSERT_TRUE(Move().ok());
  EXPECT_EQ(ValueOf(*mover_.names, FileKey(kFile)), "old");
  EXPECT_EQ(ValueOf(*mover_.names, InodeKey(kFile)), RecordOf(S_IFREG, kOther));
  EXPECT_EQ(mover_.names->Stats().read_total, before);
  ASSERT_TRUE(other_.names->Commit({}, kv::Transaction().Put(FileKey(kFile), "new")).ok());
  EXPECT_EQ(ValueOf(*mover_.names, FileKey(kFile)), "new");
}

TEST_F(MoveTest, WhatAnotherHostWroteBeforeTheAnswerIsSeen) {
  mover_.fenced.before_answer = [&] {
    ASSERT_TRUE(other_.names->Commit({}, kv::Transaction().Put(FileKey(kFile), "new")).ok());
  };
  ASSERT_TRUE(Move().ok());
  EXPECT_EQ(ValueOf(*mover_.names, FileKey(kFile)), "new");
}

TEST_F(MoveTest, WhatThisHostWroteBeforeTheAnswerIsSeen) {
  mover_.fenced.before_answer = [&] {
    ASSERT_TRUE(mover_.names->Commit({}, kv::Transaction().Put(FileKey(kFile), "new")).ok());
  };
  ASSERT_TRUE(Move().ok());
  EXPECT_EQ(ValueOf(*mover_.names, FileKey(kFile)), "new");
}

// The answer to a change that ran before the move comes after the move's.
TEST_F(MoveTest, AnOwnChangeWhoseAnswerIsLateIsSeen) {
  mover_.fenced.before_answer = [&] { ASSERT_TRUE(Move().ok()); };
  ASSERT_TRUE(mover_.names->Commit({}, kv::Transaction().Put(FileKey(kFile), "new")).ok());
  EXPECT_EQ(ValueOf(*mover_.names, FileKey(kFile)), "new");
}

TEST_F(DelegatedStoreTest, ARefusalIsNoReasonToRest) {
  Host host(*store_, 1);
  const std::string key = DentryKey(kDirectory, "a");
  for (ErrorCode refusal : {ErrorCode::kTooLarge, ErrorCode::kNotFound}) {
    ReadUntilHeld(host, key, 1);
    host.fenced.commits_fail_with = refusal;
    EXPECT_FALSE(host.names->Commit({}, kv::Transaction().Put(key, "1")).ok());
    host.fenced.commits_fail_with.reset();
    EXPECT_EQ(host.names->Stats().held, 1U);
  }
  host.fenced.commits_fail_with = ErrorCode::kUnavailable;
  EXPECT_FALSE(host.names->Commit({}, kv::Transaction().Put(key, "1")).ok());
  host.fenced.commits_fail_with.reset();
  EXPECT_EQ(host.names->Stats().held, 0U) << "it may run yet";
  for (int i = 0; i < 20; i++) EXPECT_EQ(ValueOf(*host.names, key), std::nullopt);
  EXPECT_EQ(host.names->Stats().held, 0U);
}

TEST_F(DelegatedStoreTest, AChangeElsewhereIsSeenAtOnce) {
  Host reader(*store_, 1), writer(*store_, 2);
  const std::string key = DentryKey(kDirectory, "a");
  for (int i = 0; i < 5; i++) {
    ReadUntilHeld(reader, key, 1);
    ASSERT_TRUE(writer.names->Commit({}, kv::Transaction().Put(key, std::to_string(i))).ok());
    EXPECT_EQ(ValueOf(*reader.names, key), std::to_string(i));
  }
  EXPECT_GE(writer.names->Stats().recalled_total, 5U);
  EXPECT_TRUE(store_->Range({}, "Q", "R", 0)->entries.empty());  // no recall is left behind
}

TEST_F(DelegatedStoreTest, OwnChangesAreSeenWithoutARead) {
  Host host(*store_, 1);
  const std::string key = DentryKey(kDirectory, "a");
  ReadUntilHeld(host, key, 1);
  ASSERT_TRUE(host.names->Commit({}, kv::Transaction().Put(key, "x")).ok());
  const uint64_t before = host.names->Stats().read_total;
  auto entry = host.names->Get({}, key);
  ASSERT_TRUE(entry.ok() && *entry);
  EXPECT_EQ((*entry)->value, "x");
  EXPECT_EQ((*entry)->revision, (*store_->Get({}, key))->revision);
  EXPECT_EQ(host.names->Stats().read_total, before);
  EXPECT_EQ(host.names->Stats().held, 1U);
  ASSERT_TRUE(host.names->Commit({}, kv::Transaction().Delete(key)).ok());
  EXPECT_EQ(ValueOf(*host.names, key), std::nullopt);
}

TEST_F(DelegatedStoreTest, ListingsAreForgottenWithTheirEntries) {
  Host reader(*store_, 1), writer(*store_, 2);
  const std::string begin = DentryPrefix(kDirectory), end = kv::PrefixEnd(begin);
  ReadUntilHeld(reader, DentryKey(kDirectory, "a"), 1);
  EXPECT_TRUE(reader.names->Range({}, begin, end, 10)->entries.empty());
  ASSERT_TRUE(reader.names->Commit({}, kv::Transaction().Put(DentryKey(kDirectory, "a"), "1")).ok());
  EXPECT_EQ(reader.names->Range({}, begin, end, 10)->entries.size(), 1U);
  ASSERT_TRUE(writer.names->Commit({}, kv::Transaction().Put(DentryKey(kDirectory, "b"), "2")).ok());
  EXPECT_EQ(reader.names->Range({}, begin, end, 10)->entries.size(), 2U);
}

TEST_F(DelegatedStoreTest, RecordsOfAFileAreCoveredByItsDirectory) {
  MakeDirectory(kDirectory);
  MakeFile(kFile, kDirectory);
  Host reader(*store_, 1), writer(*store_, 2);
  ReadUntilHeld(reader, InodeKey(kFile), 1);
  EXPECT_EQ(ValueOf(*reader.names, FileKey(kFile)), std::nullopt);
  EXPECT_EQ(ValueOf(*reader.names, FileKey(kFile)), std::nullopt);
  ASSERT_TRUE(writer.names->Commit({}, kv::Transaction().Put(FileKey(kFile), "content")).ok());
  EXPECT_EQ(ValueOf(*reader.names, FileKey(kFile)), "content");
}

TEST_F(DelegatedStoreTest, AFileThatMovesTakesItsRecordsAlong) {
  MakeDirectory(kDirectory);
  MakeDirectory(kOther);
  MakeFile(kFile, kDirectory);
  Host reader(*store_, 1), writer(*store_, 2);
  ReadUntilHeld(reader, InodeKey(kFile), 1);
  ReadUntilHeld(reader, DentryKey(kOther, "x"), 2);
  // The writer knows it in the first directory, and moves it; then changes it where it is.
  auto before = writer.names->Get({}, InodeKey(kFile));
  ASSERT_TRUE(before.ok() && *before);
  ASSERT_TRUE(writer.names
                  ->Commit({}, kv::Transaction()
                                   .IfRevision(InodeKey(kFile), (*before)->revision)
                                   .Put(InodeKey(kFile), RecordOf(S_IFREG, kOther)))
                  .ok());
  EXPECT_EQ(ValueOf(*reader.names, InodeKey(kFile)), RecordOf(S_IFREG, kOther));
  ReadUntilHeld(reader, InodeKey(kFile), 1);
  Host third(*store_, 3);
  ASSERT_TRUE(third.names->Commit({}, kv::Transaction().Put(FileKey(kFile), "new")).ok());
  EXPECT_EQ(ValueOf(*reader.names, FileKey(kFile)), "new");
}

// Of the file itself nothing was read since the directory is held again.
TEST_F(DelegatedStoreTest, WhereAFileLayBeforeTheDirectoryWasHeldIsNotTrusted) {
  MakeDirectory(kDirectory);
  MakeDirectory(kOther);
  MakeFile(kFile, kDirectory);
  Host reader(*store_, 1), writer(*store_, 2);
  ReadUntilHeld(reader, InodeKey(kFile), 1);
  auto before = writer.names->Get({}, InodeKey(kFile));
  ASSERT_TRUE(before.ok() && *before);
  ASSERT_TRUE(writer.names
                  ->Commit({}, kv::Transaction()
                                   .IfRevision(InodeKey(kFile), (*before)->revision)
                                   .Put(InodeKey(kFile), RecordOf(S_IFREG, kOther)))
                  .ok());
  ReadUntilHeld(reader, DentryKey(kDirectory, "x"), 1);
  EXPECT_EQ(ValueOf(*reader.names, FileKey(kFile)), std::nullopt);
  Host third(*store_, 3);
  ASSERT_TRUE(third.names->Commit({}, kv::Transaction().Put(FileKey(kFile), "new")).ok());
  EXPECT_EQ(ValueOf(*reader.names, FileKey(kFile)), "new");
}

TEST_F(DelegatedStoreTest, WhatComesBackIsNotAsItWasRemembered) {
  MakeDirectory(kDirectory);
  MakeDirectory(kOther);
  MakeFile(kFile, kDirectory);
  Host host(*store_, 1);
  ReadUntilHeld(host, InodeKey(kFile), 1);
  ReadUntilHeld(host, DentryKey(kOther, "x"), 2);
  EXPECT_EQ(ValueOf(*host.names, FileKey(kFile)), std::nullopt);
  for (InodeId to : {kOther, kDirectory}) {
    ASSERT_TRUE(host.names->Commit({}, kv::Transaction().Put(InodeKey(kFile), RecordOf(S_IFREG, to))).ok());
    ASSERT_TRUE(host.names->Commit({}, kv::Transaction().Put(FileKey(kFile), "in " + std::to_string(to.value))).ok());
  }
  EXPECT_EQ(ValueOf(*host.names, FileKey(kFile)), "in 100");
  EXPECT_EQ(ValueOf(*host.names, InodeKey(kFile)), RecordOf(S_IFREG, kDirectory));
}

TEST_F(DelegatedStoreTest, TheTimesThatAFileHasNotAreRemembered) {
  MakeDirectory(kDirectory);
  MakeFile(kFile, kDirectory);
  Host host(*store_, 1);
  ReadUntilHeld(host, InodeKey(kFile), 1);
  EXPECT_EQ(ValueOf(*host.names, DirectoryTimesKey(kFile)), std::nullopt);
  const uint64_t before = host.names->Stats().read_total;
  EXPECT_EQ(ValueOf(*host.names, DirectoryTimesKey(kFile)), std::nullopt);
  EXPECT_EQ(host.names->Stats().read_total, before);
}

TEST_F(DelegatedStoreTest, AConflictOfTheCallersOwnIsOne) {
  Host reader(*store_, 1), writer(*store_, 2);
  const std::string key = DentryKey(kDirectory, "a");
  ReadUntilHeld(reader, key, 1);
  ASSERT_TRUE(writer.names->Commit({}, kv::Transaction().IfAbsent(key).Put(key, "1")).ok());
  auto again = writer.names->Commit({}, kv::Transaction().IfAbsent(key).Put(key, "2"));
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, ErrorCode::kConflict);
}

TEST_F(DelegatedStoreTest, AHolderThatIsGoneDelaysAChangeByItsLeaseAtMost) {
  const std::string key = DentryKey(kDirectory, "a");
  {
    Host reader(*store_, 1, milliseconds(3000));
    ReadUntilHeld(reader, key, 1);
  }
  Host writer(*store_, 2);
  ASSERT_TRUE(writer.names->Commit({}, kv::Transaction().Put(key, "1")).ok());
  EXPECT_TRUE(store_->Range({}, "L", "M", 0)->entries.empty());
  EXPECT_TRUE(store_->Range({}, "Q", "R", 0)->entries.empty());
}

TEST_F(DelegatedStoreTest, PastItsLeaseAHostAnswersNothingFromMemory) {
  Host reader(*store_, 1);
  const std::string key = DentryKey(kDirectory, "a");
  ReadUntilHeld(reader, key, 1);
  reader.membership.LetLeaseEnd();
  const uint64_t before = reader.names->Stats().read_total;
  EXPECT_EQ(ValueOf(*reader.names, key), std::nullopt);
  EXPECT_EQ(reader.names->Stats().read_total, before + 1);
}

// Hosts write numbers that grow and read each other's; the number of reads that were older than what its writer had
// been told before the read began.
int CountStaleReads(kv::SharedKvStore& store, int operations_per_host) {
  constexpr int kHosts = 3, kNames = 4;
  std::vector<std::unique_ptr<Host>> hosts;
  for (int i = 0; i < kHosts; i++) hosts.push_back(std::make_unique<Host>(store, i + 1));
  std::array<std::atomic<uint64_t>, kNames> told{};  // the number that a commit which returned has written
  std::atomic<int> stale{0};
  auto key_of = [](int name) { return DentryKey(kDirectory, "n" + std::to_string(name)); };
  auto raise = [](std::atomic<uint64_t>& value, uint64_t to) {
    uint64_t seen = value.load();
    while (seen < to && !value.compare_exchange_weak(seen, to)) {
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kHosts; i++) {
    threads.emplace_back([&, i] {
      std::mt19937 random(i);
      DelegatedStore& names = *hosts[i]->names;
      for (int operation = 0; operation < operations_per_host; operation++) {
        if (random() % 100 == 0) Clock::SleepFor(milliseconds(1));
        const int name = static_cast<int>(random() % kNames);
        if (random() % 20 == 0) {
          auto entry = names.Get({}, key_of(name));
          if (!entry.ok()) continue;
          const uint64_t number = *entry ? std::stoull((*entry)->value) + 1 : 1;
          auto done = names.Commit({}, kv::Transaction()
                                           .IfRevision(key_of(name), *entry ? (*entry)->revision : 0)
                                           .Put(key_of(name), std::to_string(number)));
          if (done.ok()) raise(told[name], number);
        } else {
          const uint64_t least = told[name].load();
          auto entry = names.Get({}, key_of(name));
          if (!entry.ok()) continue;
          if ((*entry ? std::stoull((*entry)->value) : 0) < least) stale++;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t answered = 0;
  for (const auto& host : hosts) answered += host->names->Stats().answered_total;
  EXPECT_GT(answered, 0U);
  return stale;
}

TEST_F(DelegatedStoreTest, NoReadIsOlderThanAChangeThatWasTold) { EXPECT_EQ(CountStaleReads(*store_, 5000), 0); }

// A failpoint stays armed for the life of a process: the build runs this one in a process of its own.
TEST_F(DelegatedStoreTest, PlantedWithoutRecallsOldReadsAreFound) {
  if (getenv("CAIRNFS_PLANTED") == nullptr) GTEST_SKIP();
  ASSERT_TRUE(Failpoint::Arm("meta.skip_delegation_recall=skip").ok());
  int stale = 0;
  for (int tries = 0; stale == 0 && tries < 10; tries++) stale = CountStaleReads(*store_, 5000);
  EXPECT_GT(stale, 0);
}

}  // namespace
}  // namespace cairnfs::coherence
