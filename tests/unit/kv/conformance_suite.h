// What every KvStore must do. A program that includes this, in one of its files, instantiates KvConformance with its
// stores, and KvConcurrency with those that several threads may use at once.
#pragma once

#include <algorithm>
#include <thread>

#include "support.h"

namespace cairnfs::kv {

// A store with what the suite must know of it.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual KvStore& store() = 0;
  virtual void Reopen() = 0;  // closes all and opens it again

  bool is_alone = true;              // nobody else changes the revision, which began at 0
  bool remembers_operations = true;  // Commit does not reopen
  bool syncs_each_commit = false;    // slow: the tests do less
};

struct ConformanceSetup {
  std::string name;
  std::function<std::unique_ptr<Subject>()> make;
};

inline std::string SetupNameOf(const testing::TestParamInfo<ConformanceSetup>& info) { return info.param.name; }

class KvConformance : public testing::TestWithParam<ConformanceSetup> {
 protected:
  void Commit(Transaction part, size_t count, const std::function<void(Transaction&, size_t)>& add) {
    // In as many transactions as the limits ask for.
    const size_t most = store_.limits().operations_per_transaction_max;
    for (size_t i = 0; i < count; ++i) {
      add(part, i);
      if (part.writes.size() < most && i + 1 < count) continue;
      Must(store_.Commit({}, part));
      part = Transaction();
    }
  }
  // `later` is the revision of the change after that of `revision`.
  void ExpectNext(uint64_t later, uint64_t revision) {
    if (subject_->is_alone) {
      EXPECT_EQ(later, revision + 1);
    } else {
      EXPECT_GT(later, revision);
    }
  }
  int Rounds(int count) const { return subject_->syncs_each_commit ? std::max(1, count / 10) : count; }
  uint64_t Put(const std::string& key, const std::string& value) {
    return Must(store_.Commit({}, Transaction().Put(key, value)));
  }
  ErrorCode CommitError(const Transaction& transaction) {
    Result<uint64_t> result = store_.Commit({}, transaction);
    EXPECT_FALSE(result.ok());
    return result.ok() ? ErrorCode::kIo : result.error().code;
  }
  std::string Keys(const std::string& begin, const std::string& end, size_t limit = 0) {
    std::string text;
    for (const KvEntry& entry : Must(store_.Range({}, begin, end, limit)).entries) text += entry.key + " ";
    return text;
  }
  const std::unique_ptr<Subject> subject_ = GetParam().make();
  KvStore& store_ = subject_->store();  // the suite's subjects keep the object when they reopen
};

TEST_P(KvConformance, EmptyStore) {
  EXPECT_FALSE(Must(store_.Get({}, "a")).has_value());
  KvRange range = Must(store_.Range({}, "", "", 0));
  EXPECT_TRUE(range.entries.empty());
  EXPECT_FALSE(range.more);
  if (subject_->is_alone) {
    EXPECT_EQ(range.revision, 0u);
  }
  EXPECT_EQ(Must(store_.Commit({}, Transaction())), range.revision);
}

TEST_P(KvConformance, PutGetDelete) {
  uint64_t first = Put("a", "1");
  KvEntry entry = *Must(store_.Get({}, "a"));
  EXPECT_EQ(entry.key, "a");
  EXPECT_EQ(entry.value, "1");
  EXPECT_EQ(entry.revision, first);
  uint64_t second = Put("a", "");
  ExpectNext(second, first);
  EXPECT_EQ(Must(store_.Get({}, "a"))->value, "");
  EXPECT_EQ(Must(store_.Get({}, "a"))->revision, second);
  const uint64_t third = Must(store_.Commit({}, Transaction().Delete("a")));
  ExpectNext(third, second);
  EXPECT_FALSE(Must(store_.Get({}, "a")).has_value());
  ExpectNext(Must(store_.Commit({}, Transaction().Delete("a"))), third);
  Put("a", "again");
  EXPECT_EQ(Must(store_.Get({}, "a"))->value, "again");
}

TEST_P(KvConformance, KeysAndValuesAreAnyBytes) {
  std::string key("\0\xff K\0", 5), value(100'000, '\0');
  Put(key, value);
  Put("", "the empty key");
  Put(std::string(3, '\xff'), "high");
  EXPECT_EQ(Must(store_.Get({}, key))->value, value);
  EXPECT_EQ(Must(store_.Get({}, ""))->value, "the empty key");
  KvRange range = Must(store_.Range({}, "", "", 0));
  ASSERT_EQ(range.entries.size(), 3u);
  EXPECT_EQ(range.entries[0].key, "");
  EXPECT_EQ(range.entries[1].key, key);
  EXPECT_EQ(range.entries[2].key, std::string(3, '\xff'));
}

TEST_P(KvConformance, TransactionIsAtomicAndHasOneRevision) {
  Put("gone", "x");
  uint64_t revision = Must(store_.Commit({}, Transaction().Put("a", "1").Put("b", "2").Delete("gone").Put("a", "3")));
  EXPECT_EQ(Must(store_.Get({}, "a"))->value, "3");
  EXPECT_EQ(Must(store_.Get({}, "a"))->revision, revision);
  EXPECT_EQ(Must(store_.Get({}, "b"))->revision, revision);
  EXPECT_FALSE(Must(store_.Get({}, "gone")).has_value());
  EXPECT_EQ(CommitError(Transaction().IfAbsent("a").Put("c", "1").Delete("b")), ErrorCode::kConflict);
  EXPECT_FALSE(Must(store_.Get({}, "c")).has_value());
  EXPECT_TRUE(Must(store_.Get({}, "b")).has_value());
  EXPECT_EQ(Must(store_.Range({}, "", "", 0)).revision, revision);
}

TEST_P(KvConformance, PointCompares) {
  EXPECT_EQ(CommitError(Transaction().IfExists("a").Put("x", "")), ErrorCode::kConflict);
  EXPECT_EQ(CommitError(Transaction().IfRevision("a", 1).Put("x", "")), ErrorCode::kConflict);
  uint64_t revision = Must(store_.Commit({}, Transaction().IfAbsent("a").Put("a", "1")));
  EXPECT_EQ(CommitError(Transaction().IfAbsent("a").Put("a", "2")), ErrorCode::kConflict);
  revision = Must(store_.Commit({}, Transaction().IfRevision("a", revision).IfExists("a").Put("a", "2")));
  EXPECT_EQ(CommitError(Transaction().IfRevision("a", revision - 1).Put("a", "3")), ErrorCode::kConflict);
  Must(store_.Commit({}, Transaction().Delete("a")));
  EXPECT_EQ(CommitError(Transaction().IfExists("a")), ErrorCode::kConflict);
  Must(store_.Commit({}, Transaction().IfAbsent("a").Put("a", "4")));
}

TEST_P(KvConformance, RangeEmptySeesDeletionsAndAdditions) {
  Must(store_.Commit({}, Transaction().IfRangeEmpty("d/", "d0").Put("d/1", "")));
  EXPECT_EQ(CommitError(Transaction().IfRangeEmpty("d/", "d0").Delete("d")), ErrorCode::kConflict);
  Put("d/2", "");
  Must(store_.Commit({}, Transaction().Delete("d/1")));
  EXPECT_EQ(CommitError(Transaction().IfRangeEmpty("d/", "d0")), ErrorCode::kConflict);
  Must(store_.Commit({}, Transaction().Delete("d/2")));
  Put("d.", "");
  Put("d0", "");
  Must(store_.Commit({}, Transaction().IfRangeEmpty("d/", "d0").Put("d", "removed")));
  EXPECT_EQ(CommitError(Transaction().IfRangeEmpty("d", "")), ErrorCode::kConflict);
  Must(store_.Commit({}, Transaction().IfRangeEmpty("e", "")));
  Must(store_.Commit({}, Transaction().IfRangeEmpty("d0", "d.")));  // an empty interval is empty
}

TEST_P(KvConformance, RangeUnchanged) {
  Put("d/1", "");
  uint64_t revision = Put("d/2", "");
  Put("other", "");
  Must(store_.Commit({}, Transaction().IfRangeUnchanged("d/", "d0", revision).Put("x", "1")));
  EXPECT_EQ(CommitError(Transaction().IfRangeUnchanged("d/", "d0", revision - 1)), ErrorCode::kConflict);
  Must(store_.Commit({}, Transaction().Delete("d/1")));  // a deletion does not show
  Must(store_.Commit({}, Transaction().IfRangeUnchanged("d/", "d0", revision)));
  Put("d/3", "");
  EXPECT_EQ(CommitError(Transaction().IfRangeUnchanged("d/", "d0", revision)), ErrorCode::kConflict);
}

TEST_P(KvConformance, RangesAndLimits) {
  for (int i = 0; i < 12; ++i) Put("k" + std::string(1, static_cast<char>('a' + i)), std::to_string(i));
  for (const char* key : {"kb", "kc", "ke"}) Must(store_.Commit({}, Transaction().Delete(key)));
  EXPECT_EQ(Keys("", ""), "ka kd kf kg kh ki kj kk kl ");
  EXPECT_EQ(Keys("kb", "kh"), "kd kf kg ");
  EXPECT_EQ(Keys("kd", "kd"), "");
  EXPECT_EQ(Keys("kz", "ka"), "");
  EXPECT_EQ(Keys("kk", ""), "kk kl ");
  for (size_t limit = 1; limit < 12; ++limit) {
    KvRange range = Must(store_.Range({}, "", "", limit));
    EXPECT_EQ(range.entries.size(), std::min<size_t>(limit, 9));
    EXPECT_EQ(range.more, limit < 9) << limit;
    EXPECT_EQ(range.entries[0].key, "ka");
  }
}

TEST_P(KvConformance, LimitedRangePastManyDeletions) {
  Put("z", "");
  Commit({}, 500, [](Transaction& puts, size_t i) { puts.Put("k" + std::to_string(1000 + i), ""); });
  for (size_t part = 0; part < 4; ++part) {
    Transaction deletes;
    for (size_t i = part; i < 499; i += 4) deletes.Delete("k" + std::to_string(1000 + i));
    Must(store_.Commit({}, deletes));
  }
  EXPECT_EQ(Keys("k", "", 1), "k1499 ");
  EXPECT_EQ(Keys("k", "", 2), "k1499 z ");
  EXPECT_FALSE(Must(store_.Range({}, "k", "", 2)).more);
  EXPECT_EQ(Keys("k", "l", 5), "k1499 ");
}

TEST_P(KvConformance, OperationIdsAreRemembered) {
  Transaction create = Transaction().IfAbsent("a").Put("a", "1");
  create.operation_id = "op-1";
  uint64_t revision = Must(store_.Commit({}, create));
  if (subject_->remembers_operations) {  // the memory lasts as long as the store is open
    EXPECT_EQ(Must(store_.Commit({}, create)), revision);
    for (int i = 0; i < 1023; ++i) {
      Transaction other = Transaction().IfExists("a");
      other.operation_id = "other-" + std::to_string(i);
      Must(store_.Commit({}, other));
    }
    EXPECT_EQ(Must(store_.Commit({}, create)), revision);
  }
  create.operation_id = "op-2";
  EXPECT_EQ(CommitError(create), ErrorCode::kConflict);
  Must(store_.Commit({}, Transaction().Delete("a")));
  EXPECT_TRUE(store_.Commit({}, create).ok()) << "a refused operation is not remembered";
}

TEST_P(KvConformance, TooLarge) {
  KvLimits limits = store_.limits();
  Transaction wide;
  for (size_t i = 0; i <= limits.operations_per_transaction_max; ++i) wide.Put(std::to_string(i), "");
  EXPECT_EQ(CommitError(wide), ErrorCode::kTooLarge);
  EXPECT_EQ(CommitError(Transaction().Put("a", std::string(limits.transaction_bytes_max + 1, 'x'))),
            ErrorCode::kTooLarge);
  EXPECT_EQ(Keys("", ""), "");
}

TEST_P(KvConformance, ReadsSeveralSpansAtOneRevision) {
  for (const char* key : {"a", "b/1", "b/2", "b/3", "c"}) Put(key, std::string("value of ") + key);
  const std::vector<KvSpan> spans = {{"a", "", 0}, {"absent", "", 0}, {"b/", "b0", 0}, {"b/", "b0", 2}, {"c", "b", 0}};
  KvSnapshot snapshot = Must(store_.Read({}, spans));
  ASSERT_EQ(snapshot.ranges.size(), spans.size());
  std::string text;
  for (const KvRange& range : snapshot.ranges) {
    EXPECT_EQ(range.revision, snapshot.revision);
    for (const KvEntry& entry : range.entries) {
      EXPECT_EQ(entry.value, "value of " + entry.key);
      text += entry.key + " ";
    }
    text += range.more ? "... | " : "| ";
  }
  EXPECT_EQ(text, "a | | b/1 b/2 b/3 | b/1 b/2 ... | | ");
  EXPECT_EQ(snapshot.revision, Must(store_.Range({}, "", "", 1)).revision);
  EXPECT_TRUE(Must(store_.Read({}, {})).ranges.empty());
}

// More of them than are read at once.
TEST_P(KvConformance, VisitsEveryKeyOfARangeOnce) {
  constexpr size_t kKeys = 9'000;
  Put("j", "before");
  Put("l", "after");
  Commit({}, kKeys, [](Transaction& puts, size_t i) { puts.Put("k" + std::to_string(10'000 + i), std::to_string(i)); });
  // As long a run of deleted ones among them as of those that stay.
  Commit({}, kKeys / 2, [](Transaction& deletes, size_t i) { deletes.Delete("k" + std::to_string(11'000 + i)); });
  std::string visited;
  auto visit = [&](const KvEntryView& entry) {
    visited.append(entry.key).append("=").append(entry.value).append(" ");
    EXPECT_GT(entry.revision, 0u);
    return true;
  };
  ASSERT_TRUE(store_.VisitRange({}, "k", "l", visit).ok());
  std::string expected;
  for (const KvEntry& entry : Must(store_.Range({}, "k", "l", 0)).entries)
    expected += entry.key + "=" + entry.value + " ";
  EXPECT_EQ(visited, expected);
  EXPECT_EQ(static_cast<size_t>(std::count(visited.begin(), visited.end(), '=')), kKeys / 2);

  size_t count = 0;
  ASSERT_TRUE(store_.VisitRange({}, "k", "", [&](const KvEntryView&) { return ++count < 5; }).ok());
  EXPECT_EQ(count, 5u) << "it ends when it is told to";
  ASSERT_TRUE(store_.VisitRange({}, "l", "k", visit).ok());
  ASSERT_TRUE(store_.VisitRange({}, "m", "", visit).ok());
  EXPECT_EQ(visited, expected) << "there is nothing more";
}

TEST_P(KvConformance, WhatIsDurableIsVisitedAsOfOneMoment) {
  constexpr size_t kKeys = 2400, kKeysOfTransaction = 100;
  auto key_of = [](size_t i) { return "k" + std::to_string(10'000 + i); };
  for (size_t i = 0; i < kKeys; i += kKeysOfTransaction) {
    Transaction puts;
    for (size_t j = i; j < i + kKeysOfTransaction; ++j) puts.Put(key_of(j), std::to_string(j));
    Must(store_.Commit({}, puts));
  }
  ASSERT_TRUE(store_.Sync({}).ok());
  const uint64_t before = Must(store_.Range({}, "k", "l", 1)).revision;
  size_t count = 0;
  auto visit = [&](const KvEntryView& entry) {
    if (count == 0) {
      Transaction changes;
      changes.Put(key_of(1), "changed").Delete(key_of(kKeys - 1)).Put("kz", "new");
      Must(store_.Commit({}, changes));
      EXPECT_TRUE(store_.Sync({}).ok());
    }
    EXPECT_EQ(entry.key, key_of(count));
    EXPECT_EQ(entry.value, std::to_string(count));
    EXPECT_GT(entry.revision, 0u);
    ++count;
    return true;
  };
  EXPECT_EQ(Must(store_.VisitDurable({}, "k", "l", visit)), before);
  EXPECT_EQ(count, kKeys);
  size_t few = 0;
  Must(store_.VisitDurable({}, "", "", [&](const KvEntryView&) { return ++few < 5; }));
  EXPECT_EQ(few, 5u) << "it ends when it is told to";
}

TEST_P(KvConformance, ManyKeysInOneRange) {
  // More than one message of 4 MiB holds, with keys between them that a page must not end on twice.
  const std::string value(20'000, 'v');
  constexpr size_t kKeys = 300;
  for (size_t i = 0; i < kKeys; i += 50) {
    Transaction puts;
    for (size_t j = i; j < i + 50; ++j) puts.Put("k" + std::to_string(1000 + j), value);
    Must(store_.Commit({}, puts));
  }
  KvRange range = Must(store_.Range({}, "k", "l", 0));
  ASSERT_EQ(range.entries.size(), kKeys);
  EXPECT_FALSE(range.more);
  for (size_t i = 0; i < kKeys; ++i) ASSERT_EQ(range.entries[i].key, "k" + std::to_string(1000 + i));
  range = Must(store_.Range({}, "k", "l", 250));
  EXPECT_EQ(range.entries.size(), 250u);
  EXPECT_TRUE(range.more);
  const std::vector<KvSpan> spans = {{"k", "l", 0}, {"k1005", "", 0}, {"k11", "l", 120}};
  KvSnapshot snapshot = Must(store_.Read({}, spans));
  EXPECT_EQ(snapshot.ranges[0].entries.size(), kKeys);
  EXPECT_EQ(snapshot.ranges[1].entries.size(), 1u);
  EXPECT_EQ(snapshot.ranges[2].entries.size(), 120u);
  EXPECT_TRUE(snapshot.ranges[2].more);
}

TEST_P(KvConformance, SyncedStateSurvivesReopening) {
  Put("a", "1");
  uint64_t revision = Put("b", "2");
  Must(store_.Commit({}, Transaction().Delete("a")));
  MustSucceed(store_.Sync({}));
  subject_->Reopen();
  EXPECT_EQ(Keys("", ""), "b ");
  EXPECT_EQ(Must(store_.Get({}, "b"))->revision, revision);
  const uint64_t now = Must(store_.Range({}, "", "", 0)).revision;
  ExpectNext(now, revision);
  ExpectNext(Put("c", "3"), now);
}

// The setups that several threads may use at once.
class KvConcurrency : public KvConformance {};

TEST_P(KvConcurrency, ConcurrentIncrementsLoseNothing) {
  constexpr int kThreads = 4;
  const int increments = Rounds(300);
  Put("counter", "0");
  std::atomic<bool> done{false};
  std::jthread flusher([&] {
    while (!done) MustSucceed(store_.Sync({}));
  });
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < increments;) {
          KvEntry entry = *Must(store_.Get({}, "counter"));
          Result<uint64_t> result = store_.Commit({}, Transaction()
                                                          .IfRevision("counter", entry.revision)
                                                          .Put("counter", std::to_string(std::stoi(entry.value) + 1)));
          if (result.ok()) ++i;
          if (!result.ok()) {
            EXPECT_EQ(result.error().code, ErrorCode::kConflict);
          }
        }
      });
    }
  }
  done = true;
  flusher.join();
  EXPECT_EQ(Must(store_.Get({}, "counter"))->value, std::to_string(kThreads * increments));
}

// rmdir against create: a name is never left in a directory that was removed.
TEST_P(KvConcurrency, RangeEmptyAgainstConcurrentPuts) {
  for (int round = 0; round < Rounds(200); ++round) {
    std::string dir = "dir" + std::to_string(round);
    std::string begin = dir + "/", end = dir + "0";
    Put(dir, "");
    std::atomic<int> created{0};
    bool removed = false;
    {
      std::jthread creator([&] {
        for (int i = 0; i < 3; ++i) {
          if (store_.Commit({}, Transaction().IfExists(dir).Put(begin + std::to_string(i), "")).ok()) ++created;
        }
      });
      std::jthread flusher([&] { MustSucceed(store_.Sync({})); });
      std::jthread remover(
          [&] { removed = store_.Commit({}, Transaction().IfExists(dir).IfRangeEmpty(begin, end).Delete(dir)).ok(); });
    }
    EXPECT_EQ(Must(store_.Range({}, begin, end, 0)).entries.size(), static_cast<size_t>(created));
    EXPECT_EQ(removed, created == 0);
    EXPECT_EQ(removed, !Must(store_.Get({}, dir)).has_value());
  }
}

// Two keys that always change together are never seen apart, whatever is frozen and flushed meanwhile.
TEST_P(KvConcurrency, RangesAreOfOneRevision) {
  Must(store_.Commit({}, Transaction().Put("p/1", "0").Put("p/2", "0")));
  std::atomic<bool> done{false};
  std::jthread writer([&] {
    for (int i = 1; i <= Rounds(3000); ++i) {
      Must(store_.Commit({}, Transaction().Put("p/1", std::to_string(i)).Put("p/2", std::to_string(i))));
    }
    done = true;
  });
  std::jthread flusher([&] {
    while (!done) MustSucceed(store_.Sync({}));
  });
  uint64_t last_revision = 0;
  while (!done) {
    KvRange range = Must(store_.Range({}, "p/", "p0", 0));
    ASSERT_EQ(range.entries.size(), 2u);
    ASSERT_EQ(range.entries[0].value, range.entries[1].value);
    ASSERT_EQ(range.entries[0].revision, range.revision);
    ASSERT_GE(range.revision, last_revision);
    last_revision = range.revision;
  }
}

}  // namespace cairnfs::kv
