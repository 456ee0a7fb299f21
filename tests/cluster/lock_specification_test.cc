#include "lock_specification.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "random.h"

namespace cairnfs::testing {
namespace {

LockOperation Lock(LockAct act, const std::string& owner, int64_t begin, int64_t end, std::optional<int> error) {
  LockOperation operation;
  operation.act = act;
  operation.space = "f:record";
  operation.owner = operation.session = owner;
  operation.interval = {begin, end};
  operation.error = error;
  return operation;
}

LockOperation Try(const std::string& owner, int64_t begin, int64_t end, int error) {
  return Lock(LockAct::kTry, owner, begin, end, error);
}
LockOperation Unlock(const std::string& owner, int64_t begin, int64_t end) {
  return Lock(LockAct::kUnlock, owner, begin, end, 0);
}
LockOperation Lose(const std::string& session, int64_t begin, int64_t end) {
  LockOperation operation;
  operation.act = LockAct::kLoseSession;
  operation.session = session;
  operation.interval = {begin, end};
  operation.error = 0;
  return operation;
}
LockOperation MaybeLose(const std::string& session, int64_t begin, int64_t end) {
  LockOperation operation = Lose(session, begin, end);
  operation.error = std::nullopt;
  return operation;
}
LockOperation Open(const std::string& owner, int64_t begin, int64_t end) {
  return Lock(LockAct::kOpen, owner, begin, end, 0);
}
// Another open file of a session.
LockOperation Of(const std::string& session, LockOperation operation) {
  operation.session = session;
  return operation;
}
LockOperation Range(LockOperation operation, int64_t start, int64_t end, bool shared = false) {
  operation.start = start;
  operation.end = end;
  operation.shared = shared;
  return operation;
}

bool IsLegal(std::vector<LockOperation> operations) {
  LockSpecification specification(std::move(operations));
  for (const std::vector<size_t>& part : specification.PartsOf()) {
    SearchReport report = CheckLinearizability(specification, specification.calls(), part);
    EXPECT_NE(report.verdict, Linearizability::kUnknown);
    if (report.verdict != Linearizability::kYes) return false;
  }
  return true;
}

TEST(LockSpecificationTest, ALockExcludesOthers) {
  EXPECT_TRUE(IsLegal({Try("a", 0, 1, 0), Try("b", 2, 3, EAGAIN), Unlock("a", 4, 5), Try("b", 6, 7, 0)}));
  EXPECT_FALSE(IsLegal({Try("a", 0, 1, 0), Try("b", 2, 3, 0)}));
  EXPECT_FALSE(IsLegal({Try("a", 0, 1, EAGAIN)}));
  EXPECT_FALSE(IsLegal({Try("a", 0, 1, 0), Unlock("a", 2, 3), Try("b", 4, 5, EAGAIN)}));
}

TEST(LockSpecificationTest, OfTwoThatTryAtOnceOneHasIt) {
  EXPECT_TRUE(IsLegal({Try("a", 0, 5, 0), Try("b", 1, 6, EAGAIN)}));
  EXPECT_FALSE(IsLegal({Try("a", 0, 5, 0), Try("b", 1, 6, 0)}));
  EXPECT_FALSE(IsLegal({Try("a", 0, 5, EAGAIN), Try("b", 1, 6, EAGAIN)}));
}

TEST(LockSpecificationTest, SharedLocksGoTogether) {
  auto shared = [](LockOperation operation) { return Range(operation, 0, kNever, true); };
  EXPECT_TRUE(IsLegal({shared(Try("a", 0, 1, 0)), shared(Try("b", 2, 3, 0)), Try("c", 4, 5, EAGAIN)}));
  EXPECT_FALSE(IsLegal({shared(Try("a", 0, 1, 0)), Try("c", 4, 5, 0)}));
  EXPECT_FALSE(IsLegal({shared(Try("a", 0, 1, 0)), shared(Try("b", 2, 3, EAGAIN))}));
}

TEST(LockSpecificationTest, RangesAreCutAndJoined) {
  std::vector<LockOperation> split = {Range(Try("a", 0, 1, 0), 0, 30), Range(Unlock("a", 2, 3), 10, 20)};
  auto with = [&split](LockOperation last) {
    std::vector<LockOperation> operations = split;
    operations.push_back(std::move(last));
    return operations;
  };
  EXPECT_TRUE(IsLegal(with(Range(Try("b", 4, 5, 0), 10, 20))));
  EXPECT_TRUE(IsLegal(with(Range(Try("b", 4, 5, EAGAIN), 9, 20))));
  EXPECT_FALSE(IsLegal(with(Range(Try("b", 4, 5, 0), 10, 21))));
  EXPECT_FALSE(IsLegal(with(Range(Try("b", 4, 5, EAGAIN), 10, 20))));
  // The same owner turns a part of its lock into a shared one.
  EXPECT_TRUE(IsLegal(with(Range(Try("a", 4, 5, 0), 5, 10, true))));
}

TEST(LockSpecificationTest, WhoWaitsGetsItAfterTheUnlockBegan) {
  EXPECT_TRUE(IsLegal({Try("a", 0, 1, 0), Lock(LockAct::kWait, "b", 2, 9, 0), Unlock("a", 7, 8)}));
  EXPECT_FALSE(IsLegal({Try("a", 0, 1, 0), Lock(LockAct::kWait, "b", 2, 6, 0), Unlock("a", 7, 8)}));
  EXPECT_TRUE(IsLegal({Try("a", 0, 1, 0), Lock(LockAct::kWait, "b", 2, kNever, std::nullopt)}));
}

TEST(LockSpecificationTest, LocksEndWithTheirSession) {
  EXPECT_TRUE(IsLegal({Try("a", 0, 1, 0), Lose("a", 10, 20), Try("b", 12, 13, EAGAIN), Try("b", 14, 15, 0)}));
  // Not before the host was cut off, and no later than its lease.
  EXPECT_FALSE(IsLegal({Try("a", 0, 1, 0), Try("b", 5, 6, 0), Lose("a", 10, 20)}));
  EXPECT_FALSE(IsLegal({Try("a", 0, 1, 0), Lose("a", 10, 20), Try("b", 21, 22, EAGAIN)}));
  // Once freed it does not come back.
  EXPECT_FALSE(IsLegal(
      {Try("a", 0, 1, 0), Lose("a", 10, 20), Try("b", 12, 13, 0), Unlock("b", 14, 15), Try("c", 16, 17, EAGAIN)}));
}

TEST(LockSpecificationTest, AnOwnerEndsWithTheSessionInWhichItWasOpened) {
  std::vector<LockOperation> taken_over = {Try("a", 0, 1, 0), Lose("a", 10, 20), Try("b", 12, 13, 0),
                                           Unlock("b", 14, 15)};
  auto with = [&taken_over](std::vector<LockOperation> more) {
    more.insert(more.begin(), taken_over.begin(), taken_over.end());
    return more;
  };
  EXPECT_FALSE(IsLegal(with({Try("a", 16, 17, 0)})));
  EXPECT_FALSE(IsLegal(with({Open("a", 0, 0), Try("a", 16, 17, 0)})));
  EXPECT_FALSE(IsLegal(with({Of("a", Open("a2", 3, 4)), Of("a", Try("a2", 16, 17, 0))})));
  // What was opened later belongs to the host's next session; so perhaps does what was opened around the loss.
  EXPECT_TRUE(IsLegal(with({Of("a", Open("a2", 16, 16)), Of("a", Try("a2", 16, 17, 0))})));
  EXPECT_TRUE(IsLegal(with({Of("a", Open("a2", 3, 14)), Of("a", Try("a2", 16, 17, 0))})));
  EXPECT_FALSE(IsLegal(with({Of("a", Open("a2", 3, 11)), Of("a", Try("a2", 11, 12, 0)), Try("b", 12, 13, 0)})));
  // To unlock what it does not hold any more does nothing, and is no error.
  EXPECT_TRUE(IsLegal(with({Unlock("a", 16, 17)})));
  EXPECT_FALSE(IsLegal(with({Try("b", 16, 17, 0), Unlock("a", 18, 19), Try("c", 20, 21, 0)})));
}

TEST(LockSpecificationTest, AHostMayLoseSeveralSessions) {
  std::vector<LockOperation> twice = {
      Open("a", 0, 0),     Try("a", 0, 1, 0),           MaybeLose("a", 10, 40),        Try("b", 12, 13, 0),
      Unlock("b", 14, 15), Of("a", Open("a2", 16, 17)), Of("a", Try("a2", 17, 18, 0)), Try("b", 20, 21, 0)};
  EXPECT_FALSE(IsLegal(twice));
  twice.push_back(MaybeLose("a", 10, 40));
  EXPECT_TRUE(IsLegal(twice));
}

TEST(LockSpecificationTest, ALossThatIsNotCertainNeedNotBe) {
  EXPECT_TRUE(IsLegal({Try("a", 0, 1, 0), MaybeLose("a", 10, 20), Try("b", 12, 13, 0)}));
  EXPECT_TRUE(IsLegal({Try("a", 0, 1, 0), MaybeLose("a", 10, 20), Try("b", 22, 23, EAGAIN)}));
  EXPECT_FALSE(IsLegal({Try("a", 0, 1, 0), MaybeLose("a", 10, 20), Try("b", 2, 3, 0)}));
}

TEST(LockSpecificationTest, AnUnknownLockMayBeHeldUntilTheSessionEnds) {
  LockOperation unknown = Lock(LockAct::kTry, "a", 0, kNever, std::nullopt);
  EXPECT_TRUE(IsLegal({unknown, Lose("a", 10, 20), Try("b", 12, 13, EAGAIN)}));
  EXPECT_TRUE(IsLegal({unknown, Lose("a", 10, 20), Try("b", 12, 13, 0)}));
  EXPECT_FALSE(IsLegal({unknown, Lose("a", 10, 20), Try("b", 21, 22, EAGAIN)}));
}

TEST(LockSpecificationTest, DifferentFilesAreIndependentParts) {
  std::vector<LockOperation> operations = {Try("a", 0, 1, 0), Try("b", 2, 3, 0), Lose("a", 4, 5)};
  operations[1].space = "g:record";
  LockSpecification specification(operations);
  EXPECT_EQ(specification.PartsOf(), (std::vector<std::vector<size_t>>{{0, 2}, {1, 2}}));
  EXPECT_TRUE(IsLegal(operations));
}

}  // namespace
}  // namespace cairnfs::testing
