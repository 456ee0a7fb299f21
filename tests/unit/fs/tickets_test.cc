// Deferred commits: who gets a ticket, when its commit is made, and by which host.
#include "fs/tickets.h"

#include "cluster_fixture.h"
#include "fixture.h"

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
    fs.tickets().Start([this, &fs](const Context& context, const TicketJob& job) { return Rename(fs, context, job); },
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
    const meta::RenameParams params{parent_of(job.from_parent), job.from_name, parent_of(job.to_parent), job.to_name};
    const Status renamed = Host::Await<void>([&](Done<void> done) { fs.names().Rename(params, {}, std::move(done)); });
    if (dies_after_rename) return {Kind::kLater, "its answer was lost"};
    return renamed.ok() ? TicketOutcome{Kind::kRenamed} : TicketOutcome{Kind::kRefused, renamed.error().message};
  }
  std::atomic<int> calls{0}, later{0};
  std::atomic<bool> holds{false}, refuses{false}, dies_after_rename{false};
};

Tickets::Request RequestFor(InodeId directory, std::string name, uint32_t uid = kTaker) {
  return {.who = {uid, uid, {}}, .directory = directory, .to_parent = {}, .to_name = std::move(name)};
}

Result<TicketId> Take(FileSystem& fs, const Tickets::Request& request, const Context& context = {}) {
  return Host::Await<TicketId>([&](Done<TicketId> done) { fs.tickets().Take(request, context, std::move(done)); });
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
  EXPECT_TRUE(fs().names().Lookup({}, run_, "a").ok());
  EXPECT_EQ(AwaitEnd(fs(), *ticket).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(fs().tickets().PathOf({}, *ended), "run/a");
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
  EXPECT_EQ(CodeOf(Take(fs(), RequestFor(second, "b"), Context().WithTimeout(kTicketEndsWithin))),
            ErrorCode::kInterrupted);
  const auto under_way = fs().tickets().Await(Context().WithTimeout(std::chrono::seconds(1)), *ticket, kTaker);
  ASSERT_TRUE(under_way.ok());
  EXPECT_EQ(under_way->state, State::kUnderWay);
  std::promise<Result<TicketId>> taken;
  fs().tickets().Take(RequestFor(second, "b"), {}, [&](const Result<TicketId>& result) { taken.set_value(result); });
  Tickets::Request beside = RequestFor(Make("c.tmp"), "c");
  beside.under_way_max = 2;
  EXPECT_TRUE(Take(fs(), beside).ok());
  EXPECT_TRUE(Take(fs(), RequestFor(MakeOwned(fs(), run_, "d.tmp", kNeighbour), "d", kNeighbour)).ok())
      << "other users hold up nobody";
  renamer_.holds = false;
  const auto next = taken.get_future().get();
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(AwaitEnd(fs(), *next)->state, State::kDone);
}

TEST_F(TicketsTest, AStopRefusesWhoWaits) {
  renamer_.holds = true;
  ASSERT_TRUE(Take(fs(), RequestFor(Make("a.tmp"), "a")).ok());
  std::promise<Result<TicketId>> taken;
  fs().tickets().Take(RequestFor(Make("b.tmp"), "b"), {}, [&](const Result<TicketId>& r) { taken.set_value(r); });
  fs().tickets().Stop();
  EXPECT_EQ(CodeOf(taken.get_future().get()), ErrorCode::kInterrupted);
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

}  // namespace
}  // namespace cairnfs::fs
