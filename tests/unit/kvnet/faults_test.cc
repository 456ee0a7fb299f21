// Lost answers, servers that die in the middle, leaders that change.
#include <map>
#include <set>

#include "support.h"

namespace cairnfs::kvnet {
namespace {

// Adds one to a counter. False: the store could not be reached, or the outcome is not known.
bool Increment(kv::KvStore& store, const std::string& key) {
  for (;;) {
    Result<std::optional<kv::KvEntry>> entry = store.Get({}, key);
    if (!entry.ok()) return false;
    const uint64_t revision = *entry ? (*entry)->revision : 0;
    const int value = *entry ? std::stoi((*entry)->value) : 0;
    Result<uint64_t> result =
        store.Commit({}, Transaction().IfRevision(key, revision).Put(key, std::to_string(value + 1)));
    if (result.ok()) return true;
    if (result.error().code != ErrorCode::kConflict) {
      ADD_FAILURE() << result.error().message;
      return false;
    }
  }
}

int Counter(kv::KvStore& store, const std::string& key) {
  std::optional<kv::KvEntry> entry = Must(store.Get({}, key));
  return entry ? std::stoi(entry->value) : 0;
}

// Several stores, as of several hosts, behind a proxy that cuts connections.
void CountThroughCuts(const std::vector<std::unique_ptr<kv::SharedKvStore>>& stores, CuttingProxy& proxy) {
  constexpr int kThreads = 3, kIncrements = 60;
  proxy.cut_per_mille = 60;
  std::vector<std::jthread> threads;
  for (size_t s = 0; s < stores.size(); ++s) {
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, s, t] {
        const std::string own = "own" + std::to_string(s) + "/" + std::to_string(t);
        for (int i = 0; i < kIncrements; ++i) {
          EXPECT_TRUE(Increment(*stores[s], i % 4 == 0 ? "all" : own));
        }
      });
    }
  }
  threads.clear();
  proxy.cut_per_mille = 0;
  EXPECT_GT(proxy.cuts, 3);
  int sum = Counter(*stores[0], "all");
  for (size_t s = 0; s < stores.size(); ++s) {
    for (int t = 0; t < kThreads; ++t) {
      sum += Counter(*stores[0], "own" + std::to_string(s) + "/" + std::to_string(t));
    }
  }
  EXPECT_EQ(sum, static_cast<int>(stores.size()) * kThreads * kIncrements);
}

TEST(LostAnswers, NodeCountsEachIncrementOnce) {
  Node node;
  CuttingProxy proxy(node.address(), kv::TestSeed());
  std::vector<std::unique_ptr<kv::SharedKvStore>> stores;
  for (int i = 0; i < 2; ++i) stores.push_back(Must(MakeNodeStore(proxy.address(), {})));
  CountThroughCuts(stores, proxy);
}

TEST(LostAnswers, EtcdCountsEachIncrementOnce) {
  EtcdCluster etcd(1);
  etcd.WaitUntilReady();
  CuttingProxy proxy(etcd.Address(0), kv::TestSeed());
  EtcdOptions options;
  options.endpoints = {proxy.address()};
  std::vector<std::unique_ptr<kv::SharedKvStore>> stores;
  for (int i = 0; i < 2; ++i) stores.push_back(Must(EtcdStore::Create(options)));
  CountThroughCuts(stores, proxy);
}

// etcd runs what it has let in when its quota is used up, and answers that there is no space.
TEST(LostAnswers, WhatEtcdHasNoSpaceForDidNotRun) {
  EtcdCluster etcd(1, /*quota_bytes=*/8 << 20);
  etcd.WaitUntilReady();
  EtcdOptions options;
  options.endpoints = etcd.Addresses();
  auto store = Must(EtcdStore::Create(options));
  constexpr int kThreads = 24;
  std::vector<std::set<std::string>> accepted(kThreads);
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const std::string value(20'000, 'v');
      for (int i = 0;; ++i) {
        const std::string key = std::to_string(t) + "/" + std::to_string(i);
        const Result<uint64_t> result = store->Commit({}, Transaction().Put(key, value));
        if (!result.ok()) {
          EXPECT_EQ(result.error().code, ErrorCode::kNoSpace) << result.error().message;
          return;
        }
        accepted[static_cast<size_t>(t)].insert(key);
      }
    });
  }
  threads.clear();
  std::set<std::string> expected, stored;
  for (const std::set<std::string>& keys : accepted) expected.insert(keys.begin(), keys.end());
  for (const kv::KvEntry& entry : Must(store->Range({}, "", "", 0)).entries) stored.insert(entry.key);
  EXPECT_EQ(stored, expected);
}

// Creates key after key; those that were acknowledged, and no others, must be there at the end.
class Creator {
 public:
  Creator(kv::KvStore& store, std::string name) : store_(store), name_(std::move(name)) {}
  void Run(const std::atomic<bool>& done) {
    for (int i = 0; !done; ++i) {
      const std::string key = name_ + "/" + std::to_string(i);
      Result<uint64_t> result = store_.Commit({}, Transaction().IfAbsent(key).Put(key, key));
      ASSERT_TRUE(result.ok()) << result.error().message;  // a conflict would be its own write that was applied twice
      created_[key] = *result;
      ++count_;
    }
  }
  // Waits until it has created as many more.
  void WaitFor(int more) const {
    const int from = count_;
    EXPECT_TRUE(Eventually([&] { return count_ >= from + more; })) << name_ << " created " << count_ - from;
  }
  void Check(kv::KvStore& store) const {
    EXPECT_FALSE(created_.empty());
    std::map<std::string, uint64_t> stored;
    for (const kv::KvEntry& entry : Must(store.Range({}, name_ + "/", name_ + "0", 0)).entries) {
      stored[entry.key] = entry.revision;
    }
    EXPECT_EQ(stored, created_);
  }

 private:
  kv::KvStore& store_;
  const std::string name_;
  std::map<std::string, uint64_t> created_;
  std::atomic<int> count_{0};  // of created_
};

// Several of them, each with a thread.
class Creators {
 public:
  void Add(kv::KvStore& store) {
    creators_.push_back(std::make_unique<Creator>(store, std::to_string(creators_.size())));
    threads_.emplace_back([this, creator = creators_.back().get()] { creator->Run(done_); });
  }
  void WaitForMore() const {
    for (const auto& creator : creators_) creator->WaitFor(20);
  }
  void End() {
    done_ = true;
    threads_.clear();
  }
  // REQUIRES: it has ended.
  void Check(kv::KvStore& store) const {
    for (const auto& creator : creators_) creator->Check(store);
  }

 private:
  std::atomic<bool> done_{false};
  std::vector<std::unique_ptr<Creator>> creators_;
  std::vector<std::jthread> threads_;
};

// What a watch was told, put together: with `lost` the range is read anew, as a user would.
class Mirror {
 public:
  explicit Mirror(kv::SharedKvStore& store) : store_(store) {
    kv::WatchCallbacks callbacks;
    callbacks.changed = [this](std::vector<kv::KvEvent> events, uint64_t revision) {
      MutexLock lock(mutex_);
      for (const kv::KvEvent& event : events) {
        if (event.value) {
          keys_[event.key] = *event.value;
        } else {
          keys_.erase(event.key);
        }
      }
      revision_ = revision;
    };
    callbacks.lost = [this](uint64_t /*revision*/) {
      ++times_lost;
      ReadAnew();
    };
    callbacks.went_back = [this](uint64_t /*revision*/) {
      ++times_gone_back;
      ReadAnew();
    };
    watch_ = Must(store.Watch({}, "", "", 0, callbacks));
  }
  // Whether it becomes what the store holds.
  bool BecomesEqual() {
    std::map<std::string, std::string> expected;
    for (kv::KvEntry& entry : Must(store_.Range({}, "", "", 0)).entries) expected[entry.key] = entry.value;
    return Eventually([&] {
      MutexLock lock(mutex_);
      return keys_ == expected;
    });
  }
  std::atomic<int> times_lost{0}, times_gone_back{0};

 private:
  void ReadAnew() {
    kv::KvRange range = Must(store_.Range({}, "", "", 0));
    MutexLock lock(mutex_);
    keys_.clear();
    for (kv::KvEntry& entry : range.entries) keys_[entry.key] = entry.value;
  }

  kv::SharedKvStore& store_;
  Mutex mutex_;
  std::map<std::string, std::string> keys_ GUARDED_BY(mutex_);
  uint64_t revision_ GUARDED_BY(mutex_) = 0;
  std::unique_ptr<kv::KvWatch> watch_;
};

TEST(Restart, NodeKeepsEveryAcknowledgedCommitAndWatchesGoOn) {
  kv::TemporaryDirectory directory;
  Node node(directory.path() + "/db");
  auto store = Must(MakeNodeStore(node.address(), {}));
  auto other = Must(MakeNodeStore(node.address(), {}));
  Mirror mirror(*other);
  const kv::LeaseId lease = Must(store->GrantLease({}, std::chrono::seconds(60)));
  Creators creators;
  for (int t = 0; t < 4; ++t) creators.Add(*store);
  for (int round = 0; round < 3; ++round) {
    creators.WaitForMore();
    node.Stop();
    node.Start();
  }
  creators.WaitForMore();
  creators.End();
  creators.Check(node.store());
  EXPECT_TRUE(mirror.BecomesEqual());
  EXPECT_EQ(mirror.times_gone_back, 0);
  EXPECT_TRUE(store->KeepLeaseAlive({}, lease).ok());
}

// A backup is restored, and by the time that a watch is connected again the store has come further than it was: the
// revision alone says nothing. With one more start in between the process that serves does not know it either.
TEST(Restart, AWatchIsToldThatTheStoreWentBack) {
  for (const int starts_between : {0, 1}) {
    kv::TemporaryDirectory directory;
    const std::string path = directory.path() + "/db", backup = directory.path() + "/backup";
    Node node(path);
    auto store = Must(MakeNodeStore(node.address(), {}));
    Mirror mirror(*store);
    auto put = [](kv::KvStore& to, const std::string& prefix, int count) {
      for (int i = 0; i < count; ++i) Must(to.Commit({}, Transaction().Put(prefix + std::to_string(i), "")));
    };
    put(node.store(), "a", 5);
    EXPECT_TRUE(mirror.BecomesEqual());
    node.Stop();
    std::filesystem::copy(path, backup, std::filesystem::copy_options::recursive);
    node.Start();
    put(node.store(), "lost", 5);
    EXPECT_TRUE(mirror.BecomesEqual());
    EXPECT_EQ(mirror.times_gone_back, 0) << "a node that starts again is as it was";
    node.Stop();
    std::filesystem::remove_all(path);
    std::filesystem::rename(backup, path);
    for (int i = 0; i < starts_between; ++i) {
      const auto engine = kv::MustOpenRocks(path);
      put(*Must(kv::HostedStore::Open(*engine)), "unseen", 20);
    }
    node.before_serving = [&](kv::HostedStore& restored) { put(restored, "new", 20); };
    node.Start();
    EXPECT_TRUE(mirror.BecomesEqual());
    EXPECT_EQ(mirror.times_gone_back, 1);
    node.before_serving = nullptr;
    put(node.store(), "later", 5);
    EXPECT_TRUE(mirror.BecomesEqual());
    node.Stop();
    node.Start();
    put(node.store(), "last", 5);
    EXPECT_TRUE(mirror.BecomesEqual());
    EXPECT_EQ(mirror.times_gone_back, 1);
  }
}

TEST(Restart, WatchesSeeThroughCuts) {
  Node node;
  CuttingProxy proxy(node.address(), kv::TestSeed());
  auto store = Must(MakeNodeStore(proxy.address(), {}));
  Mirror mirror(*store);
  proxy.cut_per_mille = 200;
  for (int i = 0; proxy.cuts < 10; ++i) {
    Must(node.store().Commit({}, Transaction().Put("k" + std::to_string(i % 50), "v" + std::to_string(i))));
    ASSERT_TRUE(mirror.BecomesEqual());
  }
  proxy.cut_per_mille = 0;
  Must(node.store().Commit({}, Transaction().Put("last", "")));
  EXPECT_TRUE(mirror.BecomesEqual());
  EXPECT_EQ(mirror.times_lost, 0) << "the history covers it";
}

// Each call tries each member once, and they may have a leader to elect.
bool IsKeptAlive(kv::SharedKvStore& store, kv::LeaseId lease) {
  bool is_kept = false;
  for (int i = 0; !is_kept && i < 15; ++i) is_kept = store.KeepLeaseAlive({}, lease).ok();
  return is_kept;
}

TEST(Etcd, ThreeMembersLoseTheirLeader) {
  EtcdCluster etcd(3);
  etcd.WaitUntilReady();
  EtcdOptions options;
  options.endpoints = etcd.Addresses();
  options.remote.retry.try_timeout = std::chrono::seconds(2);
  auto store = Must(EtcdStore::Create(options));
  auto other = Must(EtcdStore::Create(options));
  Mirror mirror(*other);
  const kv::LeaseId lease = Must(store->GrantLease({}, std::chrono::seconds(30)));
  Transaction leased;
  leased.writes.push_back(kv::KvWrite{"leased", "", lease});
  Must(store->Commit({}, leased));
  Creators creators;
  for (int t = 0; t < 4; ++t) creators.Add(t % 2 == 0 ? *store : *other);
  // One of them is the leader, and each but the last comes back.
  for (size_t member = 0; member < etcd.size(); ++member) {
    creators.WaitForMore();
    etcd.Kill(member);
    creators.WaitForMore();
    EXPECT_TRUE(Must(store->Get({}, "leased")).has_value());
    if (member + 1 == etcd.size()) break;
    etcd.Start(member);
    etcd.WaitUntilReady(member);
  }
  creators.End();
  creators.Check(*store);
  EXPECT_TRUE(mirror.BecomesEqual());
  EXPECT_TRUE(IsKeptAlive(*store, lease));
}

TEST(Etcd, StoppedMemberIsLeftForAnother) {
  EtcdCluster etcd(3);
  etcd.WaitUntilReady();
  EtcdOptions options;
  options.endpoints = etcd.Addresses();
  options.remote.retry.try_timeout = milliseconds(700);
  options.remote.lease_timeout = milliseconds(500);
  auto store = Must(EtcdStore::Create(options));
  const kv::LeaseId lease = Must(store->GrantLease({}, std::chrono::seconds(30)));
  etcd.Pause(0);  // the store is connected with it, and nothing says that it is gone
  EXPECT_TRUE(IsKeptAlive(*store, lease));
  Must(store->Commit({}, Transaction().Put("a", "1")));
  EXPECT_EQ(Must(store->Get({}, "a"))->value, "1");
  etcd.Resume(0);
}

}  // namespace
}  // namespace cairnfs::kvnet
