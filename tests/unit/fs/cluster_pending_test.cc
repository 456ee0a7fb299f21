// Pending records of files that are closed while they are published, and what counts as lost when their host dies then.
#include <algorithm>
#include <future>

#include "cluster_fixture.h"
#include "fs/extent_map.h"

namespace cairnfs::fs {
namespace {

// The second host has made "file" in "dir" and written "bytes" to it.
class ClusterPendingTest : public ClusterTest {
 protected:
  using Ranges = std::vector<meta::PendingRecord::Range>;

  void SetUp() override {
    ClusterTest::SetUp();
    MakeHosts(2);
    directory_ = host(0).MakeDirectory("dir");
    file_ = host(1).Create("file", directory_);
    ASSERT_TRUE(host(1).Write(file_, 0, "bytes").ok());
  }
  // What the second host's pending record of the file tells.
  std::optional<meta::PendingRecord> Told() {
    auto entry = store_->Get(meta::PendingKey(file_.attr.inode, host(1).membership->self().AsKey()));
    EXPECT_TRUE(entry.ok());
    if (!entry.ok() || !*entry) return std::nullopt;
    auto record = meta::PendingRecord::Decode((*entry)->value);
    EXPECT_TRUE(record.ok());
    return *record;
  }
  Ranges ToldRanges() {
    const auto told = Told();
    return told ? told->ranges : Ranges();
  }
  // A close of another descriptor, which has gone as far as it does by itself on return.
  std::future<Status> BeginClose() {
    auto closed = std::async(std::launch::async, [this] { return host(1).Flush(file_); });
    EXPECT_TRUE(Eventually([&] {
      return host(1).fs->waiting_puts() == 1 || closed.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    }));
    return closed;
  }
  void LoseSecondHost() {
    const cluster::NodeId gone = host(1).membership->self();
    host(1).Die();
    ASSERT_TRUE(Eventually([&] {
      const cluster::ViewPtr view = host(0).membership->view();
      return view->Find(gone) == nullptr || view->Find(gone)->session == 0;
    }));
  }
  void ExpectWholeWithoutItsHost(const std::string& bytes) {
    LoseSecondHost();
    EXPECT_NE(*host(0).Durability(file_.attr.inode), "lost");
    EXPECT_NE(*host(0).Durability(directory_), "lost");
    Status renamed = host(0).Rename(kRootInode, "dir", kRootInode, "final");
    EXPECT_TRUE(renamed.ok()) << renamed.error().message;
    EXPECT_EQ(host(0).Cat("file", directory_), bytes);
  }

  InodeId directory_;
  FileSystem::Created file_;
};

TEST_F(ClusterPendingTest, ACloseBetweenTheMakingOfARecordAndItsPublication) {
  host(1).chunks->before_sync = [this] {
    EXPECT_TRUE(host(1).Flush(file_).ok());
    EXPECT_EQ(ToldRanges(), (Ranges{{0, 5}}));
  };
  ASSERT_TRUE(host(1).Fsync(file_).ok());
  EXPECT_FALSE(Told().has_value());
  ExpectWholeWithoutItsHost("bytes");
}

TEST_F(ClusterPendingTest, ACloseThatCameBeforeTheRound) {
  ASSERT_TRUE(host(1).Flush(file_).ok());
  host(1).chunks->before_sync = [this] { EXPECT_TRUE(host(1).Flush(file_).ok()); };
  ASSERT_TRUE(host(1).Fsync(file_).ok());
  EXPECT_FALSE(Told().has_value());
  ExpectWholeWithoutItsHost("bytes");
}

TEST_F(ClusterPendingTest, ACloseWhileTheRecordIsOnItsWay) {
  std::future<Status> closed;
  host(1).gate->before_commit = [&] { closed = BeginClose(); };
  ASSERT_TRUE(host(1).Fsync(file_).ok());
  EXPECT_TRUE(closed.get().ok());
  EXPECT_FALSE(Told().has_value());
  ExpectWholeWithoutItsHost("bytes");
}

TEST_F(ClusterPendingTest, ACloseWhileTheAnswerIsOnItsWay) {
  std::future<Status> closed;
  host(1).gate->after_commit = [&] { closed = BeginClose(); };
  ASSERT_TRUE(host(1).Fsync(file_).ok());
  EXPECT_TRUE(closed.get().ok());
  EXPECT_FALSE(Told().has_value());
  ExpectWholeWithoutItsHost("bytes");
}

TEST_F(ClusterPendingTest, ARecordThatIsMadeWhileAPutIsOnItsWay) {
  std::future<Status> synced;
  host(1).gate->before_commit = [&] {
    const uint64_t before = host(1).chunks->syncs;
    synced = std::async(std::launch::async, [this] { return host(1).Fsync(file_); });
    EXPECT_TRUE(Eventually([&] { return host(1).chunks->syncs > before; }));
    // Time for a publish that does not wait; one that does gives the same however long this is.
    static_cast<void>(synced.wait_for(std::chrono::milliseconds(300)));
  };
  ASSERT_TRUE(host(1).Flush(file_).ok());
  ASSERT_TRUE(synced.get().ok());
  EXPECT_FALSE(Told().has_value());
  ExpectWholeWithoutItsHost("bytes");
}

TEST_F(ClusterPendingTest, WhatWasClosedSinceTheRecordWasMadeIsALoss) {
  host(1).chunks->before_sync = [this] {
    EXPECT_TRUE(host(1).Write(file_, 5, "more").ok());
    EXPECT_TRUE(host(1).Flush(file_).ok());
    EXPECT_EQ(ToldRanges(), (Ranges{{0, 9}}));
  };
  ASSERT_TRUE(host(1).Fsync(file_).ok());
  EXPECT_EQ(ToldRanges(), (Ranges{{5, 9}})) << "the first are published";
  EXPECT_EQ(Told()->size, 9u);
  EXPECT_EQ(host(0).fs->GetAttr(file_.attr.inode)->size, 9u);
  LoseSecondHost();
  EXPECT_EQ(*host(0).Durability(file_.attr.inode), "lost");
  EXPECT_FALSE(host(0).Rename(kRootInode, "dir", kRootInode, "final").ok());
  // Until that is written again, and no more.
  auto again = host(0).Open("file", {.read = true, .write = true}, directory_);
  ASSERT_TRUE(again.ok());
  ASSERT_TRUE(host(0).Write(*again, 5, "MORE").ok());
  ASSERT_TRUE(host(0).CloseFile(*again).ok());
  EXPECT_TRUE(host(0).Rename(kRootInode, "dir", kRootInode, "final").ok());
  EXPECT_EQ(host(0).Cat("file", directory_), "bytesMORE");
}

// Of an answer that is waited for too.
TEST_F(ClusterPendingTest, WhatIsClosedWhileTheRecordIsOnItsWayIsALoss) {
  std::future<Status> closed;
  host(1).gate->before_commit = [&] {
    EXPECT_TRUE(host(1).Write(file_, 5, "more").ok());
    closed = BeginClose();
  };
  ASSERT_TRUE(host(1).Fsync(file_).ok());
  ASSERT_TRUE(closed.get().ok());
  EXPECT_EQ(ToldRanges(), (Ranges{{5, 9}}));
  LoseSecondHost();
  EXPECT_EQ(*host(0).Durability(file_.attr.inode), "lost");
  EXPECT_FALSE(host(0).Rename(kRootInode, "dir", kRootInode, "final").ok());
}

TEST_F(ClusterPendingTest, WhatWasWrittenSinceAndIsNotClosedIsNone) {
  host(1).chunks->before_sync = [this] {
    EXPECT_TRUE(host(1).Flush(file_).ok());
    EXPECT_TRUE(host(1).Write(file_, 5, "more").ok());
  };
  ASSERT_TRUE(host(1).Fsync(file_).ok());
  EXPECT_FALSE(Told().has_value());
  ExpectWholeWithoutItsHost("bytes");
}

TEST_F(ClusterPendingTest, WhatLacksCopiesStaysTold) {
  ASSERT_TRUE(host(1).Fsync(file_).ok());
  ASSERT_TRUE(host(1).Write(file_, 5, "more").ok());
  ASSERT_TRUE(host(1).Flush(file_).ok());
  host(1).chunks->syncs_fail = true;
  EXPECT_FALSE(host(1).Fsync(file_).ok());
  EXPECT_EQ(ToldRanges(), (Ranges{{5, 9}}));
  LoseSecondHost();
  EXPECT_EQ(*host(0).Durability(file_.attr.inode), "lost");
}

TEST_F(ClusterPendingTest, APutWhoseAnswerWasLost) {
  host(1).gate->lose_answer = true;
  EXPECT_FALSE(host(1).Flush(file_).ok());
  EXPECT_EQ(ToldRanges(), (Ranges{{0, 5}}));
  ASSERT_TRUE(host(1).Fsync(file_).ok());
  EXPECT_FALSE(Told().has_value());
  ExpectWholeWithoutItsHost("bytes");
}

// Nothing is published that it would tell of, should it run yet.
TEST_F(ClusterPendingTest, APutThatMayRunYet) {
  auto is_put = [this](const kv::Transaction& transaction) {
    return std::any_of(transaction.writes.begin(), transaction.writes.end(), [this](const kv::KvWrite& write) {
      return write.value && write.key == meta::PendingKey(file_.attr.inode, host(1).membership->self().AsKey());
    });
  };
  std::optional<kv::Transaction> late;
  host(1).gate->refuse = [&](const kv::Transaction& transaction) -> std::optional<Error> {
    if (!is_put(transaction)) return std::nullopt;
    late = transaction;
    return Gate::Away();
  };
  EXPECT_FALSE(host(1).Flush(file_).ok());
  const Status synced = host(1).Fsync(file_);
  ASSERT_FALSE(synced.ok());
  EXPECT_EQ(synced.error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(HasKey(meta::FileKey(file_.attr.inode)));
  host(1).gate->refuse = nullptr;
  ASSERT_TRUE(late && !late->operation_id.empty());
  ASSERT_TRUE(host(1).Fsync(file_).ok());
  EXPECT_TRUE(host(1).gate->Commit(*late).ok()) << "what became of it is known";
  EXPECT_FALSE(Told().has_value());
  ExpectWholeWithoutItsHost("bytes");
}

TEST_F(ClusterPendingTest, ACloseWaitsUntilItIsKnownWhatIsPublished) {
  host(1).gate->lose_answer = true;
  EXPECT_FALSE(host(1).Fsync(file_).ok());
  auto closed = BeginClose();
  EXPECT_FALSE(Told().has_value());
  EXPECT_TRUE(host(1).Fsync(file_).ok());
  EXPECT_TRUE(closed.get().ok());
  EXPECT_FALSE(Told().has_value());
  ExpectWholeWithoutItsHost("bytes");
}

TEST_F(ClusterPendingTest, ACloseThatWaitsForALostAnswerGivesUpAtAStop) {
  host(1).gate->lose_answer = true;
  EXPECT_FALSE(host(1).Fsync(file_).ok());
  auto closed = BeginClose();
  host(1).fs->EndWaits();
  EXPECT_FALSE(closed.get().ok());
  EXPECT_TRUE(host(1).Fsync(file_).ok());
}

TEST_F(ClusterPendingTest, ACloseWhoseSessionIsLostWhileItWaitsFails) {
  std::future<Status> closed;
  host(1).gate->before_commit = [&] {
    closed = BeginClose();
    LoseSession(1);
  };
  EXPECT_FALSE(host(1).Fsync(file_).ok());
  EXPECT_FALSE(closed.get().ok());
  EXPECT_FALSE(HasKey(meta::FileKey(file_.attr.inode)));
}

// Another host publishes first, with what this one has of it laid over that at the second try.
TEST_F(ClusterPendingTest, ACloseWhileAnotherHostIsQuicker) {
  ASSERT_TRUE(host(1).Fsync(file_).ok());
  ASSERT_TRUE(host(1).Write(file_, 0, "BY").ok());
  host(1).gate->before_commit = [&] {
    auto other = host(0).Open("file", {.read = true, .write = true}, directory_);
    ASSERT_TRUE(other.ok());
    ASSERT_TRUE(host(0).Write(*other, 5, "more").ok());
    ASSERT_TRUE(host(0).Fsync(*other).ok());
    ASSERT_TRUE(host(0).CloseFile(*other).ok());
    host(1).chunks->before_sync = [&] { EXPECT_TRUE(host(1).Flush(file_).ok()); };
  };
  ASSERT_TRUE(host(1).Fsync(file_).ok());
  EXPECT_FALSE(Told().has_value());
  ExpectWholeWithoutItsHost("BYtesmore");
}

// A file that was published, and allocated once more in place: its pending record tells of nothing.
class ClusterLeftRecordTest : public ClusterPendingTest {
 protected:
  void SetUp() override {
    ClusterPendingTest::SetUp();
    ASSERT_TRUE(host(1).Fsync(file_).ok());
    FallocateRequest in_place;
    in_place.length = 5;
    in_place.keep_size = true;
    ASSERT_TRUE(Host::Await<void>([&](Done<void> done) {
                  host(1).fs->Fallocate(file_.handle, file_.attr.inode, in_place, std::move(done));
                }).ok());
    ASSERT_TRUE(host(1).Flush(file_).ok());
    ASSERT_TRUE(Told() && Told()->TellsOfNothing());
  }
};

TEST_F(ClusterLeftRecordTest, TellsOfNoLoss) {
  ExpectWholeWithoutItsHost("bytes");
  // Who publishes the file next takes it away.
  auto again = host(0).Open("file", {.read = true, .write = true}, directory_);
  ASSERT_TRUE(again.ok());
  ASSERT_TRUE(host(0).Write(*again, 5, "more").ok());
  ASSERT_TRUE(host(0).CloseFile(*again).ok());
  ASSERT_TRUE(host(0).Sync().ok());
  EXPECT_EQ(KeyCount("P"), 0u);
  EXPECT_EQ(host(0).Cat("file", directory_), "bytesmore");
}

TEST_F(ClusterLeftRecordTest, IsReplacedUnderTheNextSession) {
  LoseSession(1);
  EXPECT_NE(*host(0).Durability(file_.attr.inode), "lost");
  EXPECT_NE(*host(1).Durability(file_.attr.inode), "lost");
  static_cast<void>(host(1).CloseFile(file_).ok());  // it was open as the session was lost
  auto again = host(1).Open("file", {.read = true, .write = true}, directory_);
  ASSERT_TRUE(again.ok());
  const Status written = host(1).Write(*again, 5, "more");
  ASSERT_TRUE(written.ok()) << written.error().message;
  ASSERT_TRUE(host(1).CloseFile(*again).ok());
  EXPECT_EQ(KeyCount("P"), 1u);
  EXPECT_NE(*host(0).Durability(file_.attr.inode), "lost");
  ASSERT_TRUE(host(1).Sync().ok());
  EXPECT_EQ(KeyCount("P"), 0u);
  EXPECT_EQ(host(0).Cat("file", directory_), "bytesmore");
}

TEST_F(ClusterLeftRecordTest, WithWhatWasClosedSinceIsALoss) {
  auto again = host(1).Open("file", {.read = true, .write = true}, directory_);
  ASSERT_TRUE(again.ok());
  ASSERT_TRUE(host(1).Write(*again, 0, "BYTES").ok());
  ASSERT_TRUE(host(1).CloseFile(*again).ok());
  host(1).Die();
  EXPECT_TRUE(Eventually([&] { return *host(0).Durability(file_.attr.inode) == "lost"; }));
  EXPECT_FALSE(host(0).Rename(kRootInode, "dir", kRootInode, "final").ok());
}

TEST_F(ClusterLeftRecordTest, WithTimesThatWereSetSinceIsALoss) {
  SetAttrRequest times;
  times.mtime = Timestamp{1'000'000'000, 0};
  ASSERT_TRUE(host(1).SetAttr(file_.attr.inode, times).ok());
  host(1).Die();
  EXPECT_TRUE(Eventually([&] { return *host(0).Durability(file_.attr.inode) == "lost"; }));
}

// Many that write, close and sync one file at once, each in a part of its own where it appends, on a store whose
// answers come late or not at all. Whenever the host died, all that was closed would be published or told, and nothing
// both.
class ClusterClosersTest : public ClusterTest {
 protected:
  static constexpr size_t kWriters = 6;
  static constexpr uint64_t kPart = kMiB;

  struct Found {
    RangeSet published{SIZE_MAX}, told{SIZE_MAX};
  };

  // Late for a random time; then one of ten is not made, and one of ten is without an answer.
  void Disturb(Host& host) {
    host.gate->refuse = [this, &host](const kv::Transaction&) -> std::optional<Error> {
      if (!is_disturbed_) return std::nullopt;
      unsigned fate = 0;
      {
        std::lock_guard lock(random_mutex_);
        fate = static_cast<unsigned>(random_());
      }
      std::this_thread::sleep_for(std::chrono::microseconds(fate % 3000));
      if (fate / 3000 % 10 == 0) return Gate::Away();
      if (fate / 3000 % 10 == 1) host.gate->lose_answer = true;
      return std::nullopt;
    };
  }
  void Append(Host& host, size_t number, bool syncs) {
    auto file = host.Open("file");
    ASSERT_TRUE(file.ok());
    uint64_t end = 0;
    for (unsigned i = 0; !must_stop_; i++) {
      const uint64_t size = 100 + (number * 7919 + i * 104'729) % 9000;
      if (end + size > kPart || !host.Write(*file, number * kPart + end, std::string(size, 'x')).ok()) break;
      end += size;
      if (i % 4 == 3) continue;
      if ((syncs && i % 3 == 0 ? host.Fsync(*file) : host.Flush(*file)).ok()) closed_[number] = end;
    }
    host.fs->Release(file->handle, file->attr.inode);
  }
  Found Look(Host& of, InodeId inode) {
    Found found;
    const std::string key = meta::FileKey(inode);
    const std::string pending = meta::PendingKey(inode, of.membership->self().AsKey());
    const std::vector<kv::KvSpan> spans{{key, "", 0}, {pending, "", 0}};
    auto read = store_->Read(spans);
    EXPECT_TRUE(read.ok());
    for (const kv::KvEntry& entry : read->ranges[0].entries) {
      auto record = meta::FileRecord::Decode(entry.value);
      auto recipe = Recipe::Decode(record->recipe);
      ExtentMap extents;
      EXPECT_TRUE(recipe.ok() && extents.Load(*recipe, *of.chunks).ok());
      EXPECT_TRUE(extents.EnsureLoaded(0, record->size, *of.chunks).ok());
      extents.ForEach(0, record->size, [&](const Extent& each) { found.published.Add(each.offset, each.end()); });
    }
    for (const kv::KvEntry& entry : read->ranges[1].entries) {
      auto record = meta::PendingRecord::Decode(entry.value);
      for (const auto& range : record->ranges) found.told.Add(range.begin, range.end);
    }
    return found;
  }

  std::mutex random_mutex_;
  std::mt19937 random_{1};
  std::atomic<bool> is_disturbed_{false}, must_stop_{false};
  // Of each part, by the calls that have returned well. The last writer is on another host.
  std::array<std::atomic<uint64_t>, kWriters + 1> closed_{};
};

TEST_F(ClusterClosersTest, WhatIsClosedIsPublishedOrToldAndNotBoth) {
  options_.flush_interval_ms = 3;
  MakeHosts(2);
  for (size_t i = 0; i < 2; i++) Disturb(host(i));
  const InodeId inode = host(0).Put("file", "");
  is_disturbed_ = true;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kWriters; i++) threads.emplace_back([this, i] { Append(host(0), i, i % 2 == 0); });
  threads.emplace_back([this] { Append(host(1), kWriters, true); });
  size_t looks = 0, told = 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto until = begin + std::chrono::seconds(1), until_max = begin + std::chrono::seconds(60);
  auto goes_on = [&] {
    const auto now = std::chrono::steady_clock::now();
    return now < until || (told == 0 && now < until_max);
  };
  while (goes_on() && !HasFailure()) {
    std::array<uint64_t, kWriters> closed;
    for (size_t i = 0; i < kWriters; i++) closed[i] = closed_[i];
    const Found found = Look(host(0), inode);
    RangeSet known = found.told;
    known.Add(found.published);
    for (size_t i = 0; i < kWriters; i++) {
      known.ForEachGap(i * kPart, i * kPart + closed[i], [&](uint64_t begin, uint64_t end) {
        ADD_FAILURE() << "closed and neither published nor told: " << begin << " to " << end << ", look " << looks;
      });
    }
    found.told.ForEach([&](uint64_t begin, uint64_t end) {
      EXPECT_FALSE(found.published.Touches(begin, end)) << begin << " to " << end << ", look " << looks;
    });
    looks++;
    told += found.told.empty() ? 0 : 1;
  }
  must_stop_ = true;
  for (std::thread& thread : threads) thread.join();
  is_disturbed_ = false;
  EXPECT_TRUE(Eventually([&] { return host(0).Sync().ok() && host(1).Sync().ok(); }));
  EXPECT_TRUE(Eventually([&] { return KeyCount("P") == 0; }));
  EXPECT_GT(told, 0u);
}

}  // namespace
}  // namespace cairnfs::fs
