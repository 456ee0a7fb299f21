// Deferred commits: who gets a ticket, when its commit is made, and by which host.
#include "fs/tickets.h"

#include <future>

#include "cluster_fixture.h"
#include "fixture.h"
#include "full_disk_fixture.h"
#include "retention/values.h"

namespace cairnfs::fs {
namespace {

using meta::TicketId;
using State = meta::TicketRecord::State;
using Kind = TicketOutcome::Kind;

constexpr uint32_t kTaker = 1000, kNeighbour = 1001;
constexpr std::chrono::seconds kTicketEndsWithin{60};

InodeId MakeOwned(FileSystem& fs, InodeId parent, std::string_view name, uint32_t owner = kTaker) {
  meta::CreateParams params;
  params.mode = S_IFDIR | 0777;
  params.uid = owner;
  auto made = fs.names().MakeNode({}, parent, name, params);
  EXPECT_TRUE(made.ok());
  return made->inode;
}

// Renames as the process of a daemon does, unless the test says otherwise.
struct FakeRenamer {
  void StartOn(FileSystem& fs, std::optional<uint32_t> only_user = {}) {
    fs.tickets().Start(
        TicketRunner([this, &fs](const Context& context, const TicketJob& job) { return Rename(fs, context, job); }),
        only_user);
  }
  TicketOutcome Rename(FileSystem& fs, const Context& context, const TicketJob& job) {
    ++calls;
    while (holds) {
      if (!context.Sleep(std::chrono::milliseconds(100))) return {Kind::kLater, "it was ended"};
    }
    if (refuses) return {Kind::kRefused, "no"};
    if (later > 0 && later-- > 0) return {Kind::kLater, "a host is away"};
    const auto parent_of = [&](const std::string& path) {
      return path == "." ? kRootInode : fs.names().Lookup({}, kRootInode, path)->inode;
    };
    const meta::RenameParams params{parent_of(job.from.parent_path), job.from.name, parent_of(job.to.parent_path),
                                    job.to.name};
    tells_of_it = fs.tickets().IsRenaming(job.directory) && !fs.tickets().IsRenaming(kRootInode);
    const Status renamed = Host::Await<void>([&](Done<void> done) { fs.names().Rename(params, {}, std::move(done)); });
    if (dies_after_rename) return {Kind::kLater, "its answer was lost"};
    return renamed.ok() ? TicketOutcome{Kind::kRenamed} : TicketOutcome{Kind::kRefused, renamed.error().message};
  }
  std::atomic<int> calls{0}, later{0};
  std::atomic<bool> holds{false}, refuses{false}, dies_after_rename{false}, tells_of_it{false};
};

Tickets::Request RequestFor(InodeId directory, std::string name, uint32_t uid = kTaker) {
  return {.who = {uid, uid, {}}, .directory = directory, .to_parent = {}, .to_name = std::move(name)};
}

Result<TicketId> Take(FileSystem& fs, const Tickets::Request& request, const Context& context = {}) {
  return fs.tickets().Take(request, context);
}

ErrorCode CodeOf(const Result<TicketId>& taken) { return taken.ok() ? ErrorCode::kFailed : taken.error().code; }

Result<meta::TicketRecord> AwaitEnd(FileSystem& fs, TicketId id, uint32_t uid = kTaker) {
  return fs.tickets().Await(Context().WithTimeout(kTicketEndsWithin), id, uid);
}

class TicketsTest : public testing::Test {
 protected:
  void SetUp() override {
    run_ = MakeOwned(*world_.fs, kRootInode, "run");
    renamer_.StartOn(*world_.fs);
  }
  void TearDown() override { world_.fs->tickets().Stop(); }
  FileSystem& fs() { return *world_.fs; }
  InodeId Make(std::string_view name) { return MakeOwned(fs(), run_, name); }

  FakeRenamer renamer_;
  World world_;
  InodeId run_;
};

TEST_F(TicketsTest, TheResultIsGivenOnce) {
  const auto ticket = Take(fs(), RequestFor(Make("a.tmp"), "a"));
  ASSERT_TRUE(ticket.ok()) << ticket.error().message;
  EXPECT_EQ(AwaitEnd(fs(), *ticket, kNeighbour).error().code, ErrorCode::kPermission);
  const auto ended = AwaitEnd(fs(), *ticket);
  ASSERT_TRUE(ended.ok());
  EXPECT_EQ(ended->state, State::kDone);
  EXPECT_TRUE(renamer_.tells_of_it) << "that it is renamed for a ticket";
  EXPECT_TRUE(fs().names().Lookup({}, run_, "a").ok());
  EXPECT_EQ(AwaitEnd(fs(), *ticket).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(fs().tickets().PathOf({}, *ended, {kTaker, kTaker, {}}), "run/a");
}

TEST_F(TicketsTest, WhatIsToldIsDurable) {
  const auto of_ticket = [&](TicketId id) {
    const std::string key = meta::TicketKey(id);
    return world_.kv->HasUnflushed(key, key + '\xff', [](std::string_view, const auto&) { return true; });
  };
  for (const bool fails : {false, true}) {
    renamer_.refuses = fails;
    const auto ticket = Take(fs(), RequestFor(Make(fails ? "a.tmp" : "b.tmp"), fails ? "a" : "b"));
    ASSERT_TRUE(ticket.ok());
    EXPECT_EQ(AwaitEnd(fs(), *ticket)->state, fails ? State::kFailed : State::kDone);
    EXPECT_FALSE(of_ticket(*ticket));
  }
}

TEST_F(TicketsTest, NobodyGoesPastWhatIsClosed) {
  meta::CreateParams closed;
  closed.mode = S_IFDIR | 0700;
  const auto secret = fs().names().MakeNode({}, kRootInode, "secret", closed);
  ASSERT_TRUE(secret.ok());
  const InodeId open = MakeOwned(fs(), secret->inode, "open");
  const auto refused = Take(fs(), RequestFor(MakeOwned(fs(), open, "a.tmp"), "a"));
  EXPECT_EQ(CodeOf(refused), ErrorCode::kPermission);
  EXPECT_EQ(refused.error().message.find("secret"), std::string::npos);
  meta::TicketRecord record;
  record.to_parent = open;
  record.to_name = "a";
  EXPECT_EQ(fs().tickets().PathOf({}, record, {kTaker, kTaker, {}}), std::nullopt);
  EXPECT_EQ(fs().tickets().PathOf({}, record, {0, 0, {}}), "secret/open/a");
}

TEST_F(TicketsTest, WhatCannotBeRenamedGetsNone) {
  const InodeId directory = Make("a.tmp");
  MakeOwned(fs(), MakeOwned(fs(), run_, "full"), "below");
  meta::CreateParams closed;
  closed.mode = S_IFDIR | 0755;
  const auto roots = fs().names().MakeNode({}, kRootInode, "roots", closed);
  ASSERT_TRUE(roots.ok());
  const auto code = [&](InodeId what, std::string name, std::optional<InodeId> to = {}, unsigned under_way_max = 1) {
    Tickets::Request request = RequestFor(what, std::move(name));
    request.to_parent = to;
    request.under_way_max = under_way_max;
    return CodeOf(Take(fs(), request));
  };
  EXPECT_EQ(code(directory, "full"), ErrorCode::kNotEmpty);
  EXPECT_EQ(code(directory, "a.tmp"), ErrorCode::kAlreadyExists);
  EXPECT_EQ(code(directory, "a/b"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(directory, ""), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(directory, std::string(256, 'x')), ErrorCode::kNameTooLong);
  EXPECT_EQ(code(directory, "below", directory), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(directory, "a", roots->inode), ErrorCode::kPermission);
  EXPECT_EQ(code(directory, "a", InodeId{99999}), ErrorCode::kNotFound);
  EXPECT_EQ(code(InodeId{99999}, "a"), ErrorCode::kNotFound);
  EXPECT_EQ(code(kRootInode, "a"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(roots->inode, "other"), ErrorCode::kPermission);
  EXPECT_EQ(code(directory, "a", {}, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(directory, "a", {}, 65), ErrorCode::kInvalidArgument);
  fs().tickets().SetReadOnly(true);
  EXPECT_EQ(code(directory, "a"), ErrorCode::kPermission);
  fs().tickets().SetReadOnly(false);
  Tickets::Request request = RequestFor(directory, "a");
  request.who.groups.assign(meta::TicketRecord::kGroupsMax + 1, 5);
  EXPECT_EQ(CodeOf(Take(fs(), request)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(renamer_.calls, 0);
}

TEST_F(TicketsTest, TheNextWaitsAndTheSameIsRefused) {
  renamer_.holds = true;
  const InodeId first = Make("a.tmp");
  const auto ticket = Take(fs(), RequestFor(first, "a"));
  ASSERT_TRUE(ticket.ok());
  EXPECT_EQ(CodeOf(Take(fs(), RequestFor(first, "b"))), ErrorCode::kBusy);
  const InodeId second = Make("b.tmp");
  EXPECT_EQ(CodeOf(Take(fs(), RequestFor(second, "b"), Context().WithTimeout(kTicketEndsWithin))), ErrorCode::kBusy);
  const auto under_way = fs().tickets().Await(Context().WithTimeout(std::chrono::seconds(1)), *ticket, kTaker);
  ASSERT_TRUE(under_way.ok());
  EXPECT_EQ(under_way->state, State::kUnderWay);
  auto taken = std::async(std::launch::async, [&] { return Take(fs(), RequestFor(second, "b")); });
  Tickets::Request beside = RequestFor(Make("c.tmp"), "c");
  beside.under_way_max = 2;
  EXPECT_TRUE(Take(fs(), beside).ok());
  EXPECT_TRUE(Take(fs(), RequestFor(MakeOwned(fs(), run_, "d.tmp", kNeighbour), "d", kNeighbour)).ok())
      << "other users hold up nobody";
  renamer_.holds = false;
  const auto next = taken.get();
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(AwaitEnd(fs(), *next)->state, State::kDone);
}

TEST_F(TicketsTest, AStopRefusesWhoWaits) {
  renamer_.holds = true;
  const auto ticket = Take(fs(), RequestFor(Make("a.tmp"), "a"));
  ASSERT_TRUE(ticket.ok());
  auto taken = std::async(std::launch::async, [&] { return Take(fs(), RequestFor(Make("b.tmp"), "b")); });
  auto awaited = std::async(std::launch::async, [&] { return fs().tickets().Await({}, *ticket, kTaker); });
  ASSERT_TRUE(Eventually([&] { return renamer_.calls == 1; }));
  fs().tickets().Stop();
  EXPECT_EQ(CodeOf(taken.get()), ErrorCode::kInterrupted);
  EXPECT_EQ(awaited.get().error().code, ErrorCode::kInterrupted);
}

// A process that its user has stopped holds its place no longer than that.
TEST_F(TicketsTest, ATryHasALimit) {
  renamer_.holds = true;
  ASSERT_TRUE(Take(fs(), RequestFor(Make("a.tmp"), "a")).ok());
  ASSERT_TRUE(Eventually([&] { return renamer_.calls == 1; }));
  Clock::SleepFor(std::chrono::seconds(world_.fs_options.commit_wait_seconds_max + 90));
  EXPECT_TRUE(Eventually([&] { return renamer_.calls == 2; }));
}

TEST_F(TicketsTest, RetentionLeavesWhatIsUnderWay) {
  renamer_.holds = true;
  ASSERT_TRUE(Take(fs(), RequestFor(Make("a.tmp"), "a")).ok());
  Make("b.tmp");
  const auto take_away = [&](const std::string& name) {
    const meta::RenameParams params{run_, name, run_, retention::GoingName("abcdefghijklmnop", name)};
    return Host::Await<void>([&](Done<void> done) { fs().names().Rename(params, {}, std::move(done)); });
  };
  const Status refused = take_away("a.tmp");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kBusy);
  EXPECT_TRUE(take_away("b.tmp").ok());
}

TEST_F(TicketsTest, ItIsTriedAgainUntilItIsKnown) {
  renamer_.later = 3;
  const auto ticket = Take(fs(), RequestFor(Make("a.tmp"), "a"));
  ASSERT_TRUE(ticket.ok());
  EXPECT_EQ(AwaitEnd(fs(), *ticket)->state, State::kDone);
  EXPECT_EQ(renamer_.calls, 4);
  renamer_.dies_after_rename = true;
  const auto second = Take(fs(), RequestFor(Make("b.tmp"), "b"));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(AwaitEnd(fs(), *second)->state, State::kDone);
  renamer_.dies_after_rename = false;
  renamer_.refuses = true;
  const auto third = Take(fs(), RequestFor(Make("c.tmp"), "c"));
  ASSERT_TRUE(third.ok());
  const auto failed = AwaitEnd(fs(), *third);
  EXPECT_EQ(failed->state, State::kFailed);
  EXPECT_EQ(failed->reason, "no");
}

TEST_F(TicketsTest, ItIsNotTriedForEver) {
  renamer_.later = 1'000'000;
  const auto ticket = Take(fs(), RequestFor(Make("a.tmp"), "a"));
  ASSERT_TRUE(ticket.ok());
  ASSERT_TRUE(Eventually([&] { return renamer_.calls >= 2; }));
  // As it is a week later.
  const auto entry = world_.kv->Get({}, meta::TicketKey(*ticket));
  ASSERT_TRUE(entry.ok() && *entry);
  auto record = meta::TicketRecord::Decode((*entry)->value);
  ASSERT_TRUE(record.ok());
  record->taken.seconds -= std::chrono::seconds(Tickets::kKeptFor + std::chrono::hours(1)).count();
  ASSERT_TRUE(world_.kv->Commit({}, kv::Transaction().Put(meta::TicketKey(*ticket), record->Encode())).ok());
  const auto failed = AwaitEnd(fs(), *ticket);
  ASSERT_TRUE(failed.ok());
  EXPECT_EQ(failed->state, State::kFailed);
  EXPECT_NE(failed->reason.find("7 days: a host is away"), std::string::npos) << failed->reason;
}

TEST_F(TicketsTest, ItGoesOnAfterARestart) {
  renamer_.holds = true;
  const auto ticket = Take(fs(), RequestFor(Make("a.tmp"), "a"));
  ASSERT_TRUE(ticket.ok());
  world_.Reopen();
  renamer_.holds = false;
  renamer_.StartOn(fs());
  EXPECT_EQ(AwaitEnd(fs(), *ticket)->state, State::kDone);
}

TEST_F(TicketsTest, APauseEndsWhatRuns) {
  renamer_.holds = true;
  const auto ticket = Take(fs(), RequestFor(Make("a.tmp"), "a"));
  ASSERT_TRUE(ticket.ok());
  ASSERT_TRUE(Eventually([&] { return renamer_.calls == 1; }));
  fs().tickets().Pause(std::chrono::seconds(30), std::chrono::seconds(10));
  renamer_.holds = false;
  Clock::SleepFor(std::chrono::seconds(25));
  EXPECT_EQ(renamer_.calls, 1);
  EXPECT_EQ(AwaitEnd(fs(), *ticket)->state, State::kDone);
}

TEST_F(TicketsTest, ResultsOfAUserAreBounded) {
  renamer_.refuses = true;
  std::vector<TicketId> tickets;
  for (size_t i = 0; i < Tickets::kResultsMax + 5; ++i) {
    const auto ticket = Take(fs(), RequestFor(Make("d" + std::to_string(i)), "e" + std::to_string(i)));
    ASSERT_TRUE(ticket.ok());
    tickets.push_back(*ticket);
    Clock::SleepFor(std::chrono::milliseconds(1));  // so that one is the oldest
  }
  EXPECT_EQ(AwaitEnd(fs(), tickets.back())->state, State::kFailed);
  EXPECT_EQ(AwaitEnd(fs(), tickets.front()).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(AwaitEnd(fs(), tickets[tickets.size() - Tickets::kResultsMax]).ok());
}

// As users leave them who never ask.
TEST_F(TicketsTest, ResultsOfOthersLockOutNobody) {
  kv::Transaction transaction;
  meta::TicketRecord record;
  record.state = State::kFailed;
  for (size_t i = 0; i < Tickets::kResultsOfAllMax; ++i) {
    record.taken = record.ended = Clock::WallTime();
    record.uid = static_cast<uint32_t>(2000 + i % 50);
    transaction.Put(meta::TicketKey(i + 1), record.Encode());
  }
  record.uid = kNeighbour;
  record.ended.seconds -= std::chrono::seconds(Tickets::kKeptFor).count() + 1;
  constexpr TicketId kExpired = 1'000'000;
  transaction.Put(meta::TicketKey(kExpired), record.Encode());
  ASSERT_TRUE(world_.kv->Commit({}, transaction).ok());
  EXPECT_EQ(AwaitEnd(fs(), kExpired, kNeighbour).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(Eventually([&] { return !*world_.kv->Get({}, meta::TicketKey(kExpired)); }));
  const auto ticket = Take(fs(), RequestFor(Make("a.tmp"), "a"));
  ASSERT_TRUE(ticket.ok()) << ticket.error().message;
  EXPECT_EQ(AwaitEnd(fs(), *ticket)->state, State::kDone);
  size_t left = 0;
  for (size_t i = 0; i < Tickets::kResultsOfAllMax; ++i)
    left += world_.kv->Get({}, meta::TicketKey(i + 1))->has_value();
  EXPECT_EQ(left, Tickets::kResultsOfAllMax - 1);
}

TEST_F(TicketsTest, AUserHasAShareOfThoseUnderWay) {
  renamer_.holds = true;
  size_t own = 0;
  for (ErrorCode code = ErrorCode::kFailed; code == ErrorCode::kFailed; ++own) {
    Tickets::Request request = RequestFor(MakeOwned(fs(), MakeOwned(fs(), run_, std::to_string(own)), "a.tmp"), "a");
    const auto taken = Take(fs(), request);
    code = CodeOf(taken);
    if (!taken.ok()) {
      EXPECT_EQ(code, ErrorCode::kBusy);
      EXPECT_NE(taken.error().message.find("try again"), std::string::npos);
    }
  }
  EXPECT_EQ(own - 1, 171u);
  EXPECT_TRUE(Take(fs(), RequestFor(MakeOwned(fs(), run_, "d.tmp", kNeighbour), "d", kNeighbour)).ok());
}

// A directory with a file that has no room, and a ticket for it.
class TicketsWithoutRoom : public NoRoomForAccepted {
 protected:
  void TearDown() override { world_.fs->tickets().Stop(); }
  FileSystem& fs() { return *world_.fs; }
  bool IsNoted() { return world_.kv->Get({}, meta::BytesLackKey())->has_value(); }
  FakeRenamer renamer_;
};

TEST_F(TicketsWithoutRoom, ATicketThatMayLackBytesEndsWithTheDaemon) {
  EXPECT_TRUE(IsNoted());
  renamer_.holds = true;
  renamer_.StartOn(fs());
  const auto ticket = Take(fs(), RequestFor(MakeOwned(fs(), kRootInode, "a.tmp"), "a", 0));
  const InodeId renamed = MakeOwned(fs(), kRootInode, "b.tmp");
  Tickets::Request beside = RequestFor(renamed, "b", 0);
  beside.under_way_max = 2;
  const auto other = Take(fs(), beside);
  ASSERT_TRUE(ticket.ok() && other.ok());
  disk_->SetFaults({});
  ASSERT_TRUE(Sync().ok());
  ASSERT_TRUE(Host::Await<void>([&](Done<void> done) {
                fs().names().Rename({kRootInode, "b.tmp", kRootInode, "b"}, {}, std::move(done));
              }).ok());
  EXPECT_TRUE(IsNoted()) << "whole rounds later do not tell which";
  world_.fs->open_files().Release(file_.handle);
  world_.Reopen();
  EXPECT_FALSE(IsNoted());
  renamer_.holds = false;
  renamer_.StartOn(fs());
  const auto failed = AwaitEnd(fs(), *ticket, 0);
  ASSERT_TRUE(failed.ok());
  EXPECT_EQ(failed->state, State::kFailed);
  EXPECT_NE(failed->reason.find("had found no room"), std::string::npos) << failed->reason;
  EXPECT_EQ(AwaitEnd(fs(), *other, 0)->state, State::kDone) << "it was made";
  EXPECT_TRUE(fs().names().Lookup({}, kRootInode, "a.tmp").ok());
  const auto next = Take(fs(), RequestFor(fs().names().Lookup({}, kRootInode, "a.tmp")->inode, "a", 0));
  EXPECT_EQ(AwaitEnd(fs(), *next, 0)->state, State::kDone);
  file_ = world_.OpenByName("file");
}

class ClusterTicketsTest : public ClusterTest {
 protected:
  void SetUp() override {
    ClusterTest::SetUp();
    MakeHosts(2);
    run_ = MakeOwned(*host(0).fs, kRootInode, "run");
  }
  void TearDown() override {
    for (size_t i = 0; i < 2; ++i) {
      if (host(i).fs) host(i).fs->tickets().Stop();
    }
    ClusterTest::TearDown();
  }
  InodeId run_;
  FakeRenamer renamers_[2];
};

TEST_F(ClusterTicketsTest, OneHostWorksOnItAndAnotherTakesOver) {
  renamers_[0].holds = renamers_[1].holds = true;
  renamers_[0].StartOn(*host(0).fs);
  const auto ticket = Take(*host(0).fs, RequestFor(MakeOwned(*host(0).fs, run_, "a.tmp"), "a"));
  ASSERT_TRUE(ticket.ok());
  ASSERT_TRUE(Eventually([&] { return renamers_[0].calls == 1; }));
  renamers_[1].StartOn(*host(1).fs);
  Clock::SleepFor(std::chrono::seconds(10));
  EXPECT_EQ(renamers_[1].calls, 0);
  host(0).Die();
  EXPECT_TRUE(Eventually([&] { return renamers_[1].calls == 1; }));
  renamers_[1].holds = false;
  const auto ended = AwaitEnd(*host(1).fs, *ticket);
  ASSERT_TRUE(ended.ok());
  EXPECT_EQ(ended->state, State::kDone);
}

TEST_F(ClusterTicketsTest, AHostOfOneUserLeavesTheTicketsOfOthersAlone) {
  renamers_[0].StartOn(*host(0).fs, kNeighbour);
  FileSystem& fs = *host(0).fs;
  EXPECT_EQ(CodeOf(Take(fs, RequestFor(MakeOwned(fs, run_, "a.tmp"), "a"))), ErrorCode::kPermission);
  const auto ticket = Take(*host(1).fs, RequestFor(MakeOwned(*host(1).fs, run_, "b.tmp"), "b"));
  ASSERT_TRUE(ticket.ok());
  Clock::SleepFor(std::chrono::seconds(10));
  EXPECT_EQ(renamers_[0].calls, 0);
  renamers_[1].StartOn(*host(1).fs);
  EXPECT_EQ(AwaitEnd(*host(1).fs, *ticket)->state, State::kDone);
}

TEST_F(ClusterTicketsTest, AnyHostGivesTheResultAndReadOnlyOnesDoNotWork) {
  host(0).fs->tickets().SetReadOnly(true);
  renamers_[0].StartOn(*host(0).fs);
  renamers_[1].StartOn(*host(1).fs);
  const auto ticket = Take(*host(1).fs, RequestFor(MakeOwned(*host(1).fs, run_, "a.tmp"), "a"));
  ASSERT_TRUE(ticket.ok());
  const auto ended = AwaitEnd(*host(0).fs, *ticket);
  ASSERT_TRUE(ended.ok());
  EXPECT_EQ(ended->state, State::kDone);
  EXPECT_EQ(renamers_[0].calls, 0);
}

// As one that is left of a run that could not begin, or of the daemon before.
TEST_F(ClusterTicketsTest, AClaimIsTakenOverByItsOwnHostAlone) {
  const auto claim = [&](TicketId id, size_t node) {
    const std::string name(host(node).membership->self().AsKey());
    EXPECT_TRUE(store_->Commit({}, kv::Transaction().Put(meta::TicketClaimKey(id), name)).ok());
  };
  const auto first = Take(*host(0).fs, RequestFor(MakeOwned(*host(0).fs, run_, "a.tmp"), "a"));
  Tickets::Request beside = RequestFor(MakeOwned(*host(0).fs, run_, "b.tmp"), "b");
  beside.under_way_max = 2;
  const auto second = Take(*host(0).fs, beside);
  ASSERT_TRUE(first.ok() && second.ok());
  claim(*first, 0);
  claim(*second, 1);
  renamers_[0].StartOn(*host(0).fs);
  EXPECT_EQ(AwaitEnd(*host(0).fs, *first)->state, State::kDone);
  Clock::SleepFor(std::chrono::seconds(10));
  EXPECT_EQ(renamers_[0].calls, 1);
  renamers_[1].StartOn(*host(1).fs);
  EXPECT_EQ(AwaitEnd(*host(1).fs, *second)->state, State::kDone);
}

// It comes back under another session, while the other host works on its ticket.
TEST_F(ClusterTicketsTest, AHostThatLosesItsSessionLeavesItsTickets) {
  renamers_[0].holds = renamers_[1].holds = true;
  renamers_[0].StartOn(*host(0).fs);
  const auto ticket = Take(*host(0).fs, RequestFor(MakeOwned(*host(0).fs, run_, "a.tmp"), "a"));
  ASSERT_TRUE(ticket.ok());
  ASSERT_TRUE(Eventually([&] { return renamers_[0].calls == 1; }));
  renamers_[1].StartOn(*host(1).fs);
  LoseSession(0);
  EXPECT_TRUE(Eventually([&] { return renamers_[1].calls == 1; }));
  renamers_[0].refuses = true;
  renamers_[0].holds = false;
  Clock::SleepFor(std::chrono::seconds(10));
  renamers_[1].holds = false;
  const auto ended = AwaitEnd(*host(1).fs, *ticket);
  ASSERT_TRUE(ended.ok());
  EXPECT_EQ(ended->state, State::kDone) << "what the host without a session found counts no more";
}

}  // namespace
}  // namespace cairnfs::fs
