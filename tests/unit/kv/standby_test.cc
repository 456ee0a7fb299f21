// A standby of the names, under lost, doubled and late messages: what follows, what is promoted, and what no longer
// answers.
#include <climits>
#include <deque>
#include <map>
#include <set>
#include <thread>

#include "../../support/eventually.h"
#include "base/clock.h"
#include "kv/names_host.h"
#include "standby_hosts.h"
#include "support.h"

namespace cairnfs::kv {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Standby = Register::Standby;

// Three hosts, and the messages between them.
class World {
 public:
  explicit World(uint64_t seed = 1) : random_(seed) {
    for (auto& engine : engines) engine = OpenMemoryEngine();
    Must(HostedStore::Open(*engines[0]));  // there are names on the first
  }
  ~World() {
    for (size_t i = 0; i < kHosts; ++i) Kill(i);
  }

  // To be called before the host starts.
  FailingEngine& MakeFail(size_t i) {
    working_ = std::move(engines[i]);
    auto failing = std::make_unique<FailingEngine>(*working_);
    FailingEngine& engine = *failing;
    engines[i] = std::move(failing);
    return engine;
  }
  void Start(size_t i) {
    NamesHost::Options options;
    options.self = MemberOf(i);
    options.has_names_at_first = i == 0;
    options.log_bytes_max = log_bytes_max;
    options.tick = milliseconds(500);
    options.append_wait = milliseconds(1000);
    options.reach = [this, i](const Member& member) {
      auto link = std::make_shared<Link>(*this, i, member.node.back() - '0');
      return NamesHost::Options::Remote{link, link};
    };
    auto started = std::shared_ptr<NamesHost>(Must(NamesHost::Open(*engines[i], std::move(options))));
    MutexLock lock(mutex_);
    hosts_[i] = std::move(started);
  }
  // What it had in memory is gone, and messages that are under way reach nobody.
  void Kill(size_t i) {
    std::shared_ptr<NamesHost> host;
    {
      MutexLock lock(mutex_);
      host = std::move(hosts_[i]);
      late_.clear();
    }
    while (host.use_count() > 1) Clock::SleepFor(milliseconds(1));
  }
  void Cut(size_t a, size_t b, bool is_cut = true) {
    MutexLock lock(mutex_);
    cut_[a][b] = cut_[b][a] = is_cut;
  }
  bool HasEnded(size_t i) {
    MutexLock lock(mutex_);
    return hosts_[i] == nullptr;
  }
  NamesHost& host(size_t i) {
    MutexLock lock(mutex_);
    return *hosts_[i];
  }
  HostedStore& store(size_t i) { return *host(i).serving(); }
  bool Serves(size_t i) { return host(i).Describe().is_serving; }
  Standby StateAt(size_t i) {
    const auto value = host(i).voter().vote().value;
    return value ? value->state : Standby::kNone;
  }
  void AwaitWhole(size_t primary) {
    ASSERT_TRUE(Eventually([&] { return StateAt(primary) == Standby::kWhole; }));
  }
  void StartAll() {
    for (size_t i = 0; i < kHosts; ++i) Start(i);
    ASSERT_TRUE(Eventually([&] { return Serves(0); }));
  }
  // All of them, with the second as the standby of the first.
  void StartFollowing() {
    StartAll();
    MustSucceed(host(0).SetStandby({}, MemberOf(1), MemberOf(2)));
    AwaitWhole(0);
  }

  std::unique_ptr<KvEngine> working_;  // below the one that fails
  std::array<std::unique_ptr<KvEngine>, kHosts> engines;
  size_t log_bytes_max = 1 << 20;
  std::atomic<int> lose_request{0}, lose_answer{0}, come_twice{0}, come_late{0};  // percent
  std::atomic<int> pieces{0}, pieces_max{INT_MAX};                                // of copies; those past it are lost

 private:
  class Link final : public Voter, public FollowerCalls {
   public:
    Link(World& world, size_t from, size_t to) : world_(world), from_(from), to_(to) {}
    Result<VoteReply> Prepare(const Context& context, const Ballot& ballot) override {
      return Send<Result<VoteReply>>(context, [=](NamesHost& host) { return host.voter().Prepare({}, ballot); });
    }
    Result<VoteReply> Accept(const Context& context, const Ballot& ballot, const Register& value,
                             uint64_t revision) override {
      return Send<Result<VoteReply>>(context,
                                     [=](NamesHost& host) { return host.voter().Accept({}, ballot, value, revision); });
    }
    Result<Position> Append(const Context& context, const Ballot& ballot,
                            const std::vector<LogEntry>& entries) override {
      return Send<Result<Position>>(context,
                                    [=](NamesHost& host) { return host.follower().Append({}, ballot, entries); });
    }
    Status Copy(const Context& context, const Ballot& ballot, const CopyPiece& piece) override {
      if (++world_.pieces > world_.pieces_max) return Lost();
      return Send<Status>(context, [=](NamesHost& host) { return host.follower().Copy({}, ballot, piece); });
    }

   private:
    template <typename Reply>
    Reply Send(const Context& context, const std::function<Reply(NamesHost&)>& call) {
      const std::shared_ptr<NamesHost> host = world_.Reach(from_, to_);
      if (host == nullptr || world_.Draw(world_.lose_request)) {
        context.Sleep(milliseconds(100));
        return Lost();
      }
      if (world_.Draw(world_.come_late)) {
        world_.Delay(to_, [call](NamesHost& late) { (void)call(late).ok(); });
        context.Sleep(milliseconds(100));
        return Lost();
      }
      if (world_.Draw(world_.come_twice)) (void)call(*host).ok();
      Reply reply = call(*host);
      world_.DeliverLate();
      if (world_.Draw(world_.lose_answer)) return Lost();
      return reply;
    }
    World& world_;
    const size_t from_, to_;
  };

  std::shared_ptr<NamesHost> Reach(size_t from, size_t to) {
    MutexLock lock(mutex_);
    return cut_[from][to] ? nullptr : hosts_[to];
  }
  bool Draw(int percent) {
    MutexLock lock(mutex_);
    return static_cast<int>(random_() % 100) < percent;
  }
  void Delay(size_t to, std::function<void(NamesHost&)> call) {
    MutexLock lock(mutex_);
    late_.emplace_back(to, std::move(call));
  }
  void DeliverLate() {
    MutexLock lock(mutex_);
    if (late_.empty() || random_() % 3 != 0) return;
    const auto [to, call] = std::move(late_.front());
    late_.pop_front();
    const std::shared_ptr<NamesHost> host = hosts_[to];
    lock.Unlock();
    if (host != nullptr) call(*host);
  }

  Mutex mutex_;
  std::mt19937_64 random_ GUARDED_BY(mutex_);
  std::array<std::shared_ptr<NamesHost>, kHosts> hosts_ GUARDED_BY(mutex_);
  bool cut_[kHosts][kHosts] GUARDED_BY(mutex_) = {};
  std::deque<std::pair<size_t, std::function<void(NamesHost&)>>> late_ GUARDED_BY(mutex_);
};

Status Put(HostedStore& store, const std::string& key, const std::string& value = "") {
  const auto committed = store.Commit({}, Transaction().Put(key, value));
  return committed.ok() ? Status() : Status(committed.error());
}

std::map<std::string, std::string> NamesOf(KvEngine& engine) {
  std::map<std::string, std::string> names;
  MustSucceed(engine.Scan("", kNamesEnd, nullptr, [&](std::string_view key, std::string_view value) {
    names.emplace(key, value);
    return true;
  }));
  return names;
}

TEST(Standby, NothingAcknowledgedIsLostWithThePrimary) {
  World world;
  world.StartFollowing();
  std::map<std::string, uint64_t> acknowledged;
  for (int i = 0; i < 50; ++i) {
    acknowledged[Counted(i)] = Must(world.store(0).Commit({}, Transaction().Put(Counted(i), "x")));
  }
  const LeaseId lease = Must(world.store(0).GrantLease({}, seconds(30)));
  Transaction leased;
  leased.writes.push_back({"leased", "", lease});
  Must(world.store(0).Commit({}, leased));
  const uint64_t opening = world.store(0).opening();
  world.Kill(0);
  const auto promotion = Must(world.host(1).Promote({}, false));
  EXPECT_TRUE(promotion.was_whole);
  HostedStore& store = world.store(1);
  for (const auto& [key, revision] : acknowledged) EXPECT_EQ(Must(store.Get({}, key))->revision, revision);
  EXPECT_TRUE(store.KeepLeaseAlive({}, lease).ok());
  EXPECT_TRUE(Must(store.WasAt(opening, acknowledged.rbegin()->second))) << "watches go on";
  MustSucceed(Put(store, "later"));
  Must(world.host(1).Promote({}, false));  // once more
  world.Kill(1);
  world.Start(1);
  ASSERT_TRUE(Eventually([&] { return world.Serves(1); })) << "it goes alone, and asks nobody";
  EXPECT_TRUE(Must(world.store(1).Get({}, "later")).has_value());
}

TEST(Standby, BothHoldTheSame) {
  World world;
  world.StartFollowing();
  for (int i = 0; i < 20; ++i) MustSucceed(Put(world.store(0), Counted(i)));
  const LeaseId lease = Must(world.store(0).GrantLease({}, seconds(1)));
  MustSucceed(world.store(0).RevokeLease({}, lease));
  Must(world.store(0).Commit({}, Transaction().Delete(Counted(3))));
  EXPECT_EQ(NamesOf(*world.engines[0]), NamesOf(*world.engines[1]));
  EXPECT_EQ(Must(ReadPosition(*world.engines[0])), Must(ReadPosition(*world.engines[1])));
}

TEST(Standby, APrimaryThatIsUpIsNotReplaced) {
  World world;
  world.StartFollowing();
  const auto promoted = world.host(1).Promote({}, true);
  ASSERT_FALSE(promoted.ok());
  EXPECT_EQ(promoted.error().code, ErrorCode::kBusy);
  MustSucceed(Put(world.store(0), "a"));
  EXPECT_EQ(world.StateAt(0), Standby::kWhole);
  EXPECT_EQ(world.host(2).Promote({}, true).error().code, ErrorCode::kInvalidArgument) << "the witness";
  EXPECT_EQ(world.host(1).SetStandby({}, MemberOf(2), MemberOf(0)).error().code, ErrorCode::kInvalidArgument);
}

TEST(Standby, OneThatLagsIsPromotedOnlyWithLoss) {
  World world;
  world.StartFollowing();
  MustSucceed(Put(world.store(0), "a"));
  world.Cut(0, 1);
  MustSucceed(Put(world.store(0), "b"));  // once the witness knows that the standby lacks it
  EXPECT_EQ(world.StateAt(0), Standby::kDetached);
  EXPECT_EQ(world.StateAt(2), Standby::kDetached);
  const uint64_t revision = Must(world.store(0).Range({}, "", "", 0)).revision;
  ASSERT_TRUE(Eventually([&] { return Must(world.host(2).voter().Prepare({}, {})).heard_revision == revision; }));
  world.Kill(0);
  const auto refused = world.host(1).Promote({}, false);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << refused.error().message;
  EXPECT_NE(refused.error().message.find("--lose"), std::string::npos);
  const auto promotion = Must(world.host(1).Promote({}, true));
  EXPECT_FALSE(promotion.was_whole);
  EXPECT_EQ(promotion.own_revision + 1, revision);
  EXPECT_EQ(promotion.known_revision, revision);
  EXPECT_TRUE(Must(world.store(1).Get({}, "a")).has_value());
  EXPECT_FALSE(Must(world.store(1).Get({}, "b")).has_value());
  // The one that was cut off serves nothing, and what it alone has stays there.
  world.Cut(0, 1, false);
  world.Start(0);
  ASSERT_TRUE(Eventually([&] { return world.host(0).voter().vote().value->Primary() == MemberOf(1); }));
  EXPECT_EQ(world.host(0).serving(), nullptr);
}

TEST(Standby, APrimaryThatIsCutOffAnswersNothing) {
  World world;
  world.StartFollowing();
  world.Cut(0, 1);
  world.Cut(0, 2);
  ASSERT_TRUE(Eventually([&] { return !world.store(0).Get({}, "a").ok(); }));
  EXPECT_EQ(world.store(0).Get({}, "a").error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(Put(world.store(0), "lost").error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(world.store(0).Range({}, "", "", 0).error().code, ErrorCode::kUnavailable);
  Must(world.host(1).Promote({}, false));
  MustSucceed(Put(world.store(1), "b"));
  world.Cut(0, 1, false);
  world.Cut(0, 2, false);
  ASSERT_TRUE(Eventually([&] { return world.host(0).voter().vote().value->Primary() == MemberOf(1); }));
  EXPECT_EQ(world.store(0).Get({}, "b").error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(Put(world.store(0), "lost").error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(Must(world.store(1).Get({}, "lost")).has_value());
}

TEST(Standby, APrimaryThatRestartsAsksFirst) {
  World world;
  world.StartFollowing();
  MustSucceed(Put(world.store(0), "a"));
  world.Kill(0);
  world.Cut(0, 1);
  world.Cut(0, 2);
  world.Start(0);
  Clock::SleepFor(3 * kPrimaryLease);
  EXPECT_EQ(world.host(0).serving(), nullptr);
  world.Cut(0, 2, false);
  ASSERT_TRUE(Eventually([&] { return world.Serves(0); })) << "the witness is enough, for the standby is detached";
  EXPECT_EQ(world.StateAt(0), Standby::kDetached);
  world.Cut(0, 1, false);
  world.AwaitWhole(0);
  EXPECT_EQ(NamesOf(*world.engines[0]), NamesOf(*world.engines[1]));
}

TEST(Standby, CatchesUpByTheLogWhereThatReachesBack) {
  World world;
  world.StartFollowing();
  for (const bool is_long : {false, true}) {
    world.Kill(1);
    const int count = is_long ? 3000 : 20;
    for (int i = 0; i < count; ++i) MustSucceed(Put(world.store(0), Counted(i), std::string(is_long ? 600 : 6, 'x')));
    Must(world.store(0).Commit({}, Transaction().Delete(Counted(1))));
    EXPECT_EQ(world.StateAt(0), Standby::kDetached);
    const int pieces = world.pieces;
    world.Start(1);
    world.AwaitWhole(0);
    EXPECT_EQ(world.pieces > pieces, is_long);
    EXPECT_EQ(NamesOf(*world.engines[0]), NamesOf(*world.engines[1]));
  }
}

// The first copy, and one in place of names that were whole once.
TEST(Standby, AHalfCopyIsNotPromoted) {
  for (const bool was_whole : {false, true}) {
    World world;
    world.log_bytes_max = 1000;
    world.StartAll();
    if (was_whole) {
      MustSucceed(world.host(0).SetStandby({}, MemberOf(1), MemberOf(2)));
      world.AwaitWhole(0);
      world.Cut(0, 1);
    }
    world.pieces_max = world.pieces + 1;
    for (int i = 0; i < 30; ++i) MustSucceed(Put(world.store(0), Counted(i), std::string(100'000, 'x')));
    if (was_whole) world.Cut(0, 1, false);
    if (!was_whole) MustSucceed(world.host(0).SetStandby({}, MemberOf(1), MemberOf(2)));
    ASSERT_TRUE(Eventually([&] { return world.pieces > world.pieces_max; }));
    world.Kill(0);
    const auto refused = world.host(1).Promote({}, true);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.error().message.find("no whole copy"), std::string::npos) << refused.error().message;
    world.pieces_max = INT_MAX;
    world.Start(0);
    world.AwaitWhole(0);
    EXPECT_EQ(NamesOf(*world.engines[0]), NamesOf(*world.engines[1]));
  }
}

// The standby has what the primary could not write: it is detached, and gets a copy. Where not even that can be
// written, the answer is that the write may have happened.
TEST(Standby, AWriteThatFailsLeavesBothTheSame) {
  for (const bool all_fail : {false, true}) {
    World world;
    FailingEngine& engine = world.MakeFail(0);
    world.StartFollowing();
    std::atomic<int> writes{0};
    engine.before_write = [&] { engine.fail_writes = all_fail || writes++ == 0; };
    const ErrorCode code = Put(world.store(0), "refused").error().code;
    EXPECT_EQ(code, all_fail ? ErrorCode::kUnavailable : ErrorCode::kNoSpace);
    EXPECT_TRUE(all_fail || world.StateAt(2) != Standby::kWhole);
    engine.before_write = [&] { engine.fail_writes = false; };
    MustSucceed(Put(world.store(0), "a"));
    EXPECT_FALSE(Must(world.store(0).Get({}, "refused")).has_value());
    world.AwaitWhole(0);
    EXPECT_EQ(NamesOf(*world.engines[0]), NamesOf(*world.engines[1]));
    world.Kill(0);
  }
}

// The standby has a batch that the primary could not write. What the primary writes next, and acknowledges without the
// standby, is not taken for it, also where the primary has ended before it could copy.
TEST(Standby, WhatTookThePlaceOfAFailedWriteIsNotTakenForIt) {
  World world;
  FailingEngine& engine = world.MakeFail(0);
  world.StartFollowing();
  std::atomic<int> writes{0};
  engine.before_write = [&] {
    engine.fail_writes = writes++ == 0;
    world.Cut(0, 1);
  };
  EXPECT_EQ(Put(world.store(0), "refused").error().code, ErrorCode::kNoSpace);
  MustSucceed(Put(world.store(0), "acknowledged"));
  world.Kill(0);
  engine.before_write = nullptr;
  world.Cut(0, 1, false);
  world.Start(0);
  ASSERT_TRUE(Eventually([&] { return world.Serves(0); }));
  world.AwaitWhole(0);
  EXPECT_EQ(NamesOf(*world.engines[0]), NamesOf(*world.engines[1]));
  world.Kill(0);
  EXPECT_FALSE(Must(world.host(1).Promote({}, false)).was_primary);
  EXPECT_TRUE(Must(world.store(1).Get({}, "acknowledged")).has_value());
  EXPECT_TRUE(Must(world.host(1).Promote({}, false)).was_primary) << "and says no more of what is lost";
}

TEST(Standby, IsDroppedAndSetAnew) {
  World world;
  world.StartFollowing();
  MustSucceed(world.host(0).DropStandby({}));
  MustSucceed(Put(world.store(0), "a"));
  EXPECT_EQ(world.host(1).Promote({}, true).error().code, ErrorCode::kInvalidArgument);
  world.Kill(1);
  world.Kill(2);
  MustSucceed(Put(world.store(0), "b"));
  EXPECT_EQ(world.host(0).SetStandby({}, MemberOf(1), MemberOf(2)).error().code, ErrorCode::kUnavailable);
  world.Start(1);
  world.Start(2);
  MustSucceed(world.host(0).SetStandby({}, MemberOf(2), MemberOf(1)));  // the other way round
  world.AwaitWhole(0);
  world.Kill(0);
  Must(world.host(2).Promote({}, false));
  EXPECT_TRUE(Must(world.store(2).Get({}, "b")).has_value());
  // The old primary, started anew, follows by an operator's word.
  world.Start(0);
  MustSucceed(world.host(2).SetStandby({}, MemberOf(0), MemberOf(1)));
  world.AwaitWhole(2);
  EXPECT_EQ(NamesOf(*world.engines[0]), NamesOf(*world.engines[2]));
}

// Writers, a network that does all it can, and hosts that end; then the primary is lost.
TEST(Standby, NothingAcknowledgedIsLostWhateverTheNetworkDoes) {
  const uint64_t seed = TestSeed();
  for (uint64_t round = 0; round < 12; ++round) {
    World world(seed + round);
    std::mt19937_64 random(seed + round);
    world.log_bytes_max = 20'000;
    world.StartFollowing();
    world.lose_request = world.lose_answer = world.come_late = 3;
    world.come_twice = 10;
    std::set<std::string> acknowledged;
    int written = 0;
    auto write_some = [&](int count) {
      for (int i = 0; i < count; ++i) {
        const std::string key = Counted(written++);
        if (Put(world.store(0), key, std::string(random() % 300, 'v')).ok()) acknowledged.insert(key);
      }
    };
    for (int step = 0; step < 6; ++step) {
      write_some(20);
      const size_t other = 1 + random() % 2;
      switch (random() % 3) {
        case 0: world.Cut(0, other); break;
        case 1: world.Kill(other); break;
        default: break;
      }
      write_some(20);
      world.Cut(0, 1, false);
      world.Cut(0, 2, false);
      if (world.HasEnded(other)) world.Start(other);
      if (random() % 2 == 0) {
        world.Kill(0);
        world.Start(0);
      }
      ASSERT_TRUE(Eventually([&] { return world.Serves(0); }));
    }
    const bool ends_whole = round % 2 == 0;
    if (ends_whole) {
      world.lose_request = world.lose_answer = world.come_late = 0;
      world.AwaitWhole(0);
      write_some(20);
    }
    world.Kill(0);
    world.lose_request = world.lose_answer = world.come_late = world.come_twice = 0;
    const auto promoted = world.host(1).Promote({}, false);
    if (!promoted.ok()) {
      EXPECT_FALSE(ends_whole);
      // Then it was said that it lacks some, before any of these was acknowledged.
      EXPECT_EQ(promoted.error().code, ErrorCode::kInvalidArgument) << promoted.error().message;
      EXPECT_TRUE(world.StateAt(1) != Standby::kWhole || world.StateAt(2) != Standby::kWhole);
      continue;
    }
    for (const std::string& key : acknowledged) {
      ASSERT_TRUE(Must(world.store(1).Get({}, key)).has_value()) << key << ", seed " << seed + round;
    }
  }
}

}  // namespace
}  // namespace cairnfs::kv
