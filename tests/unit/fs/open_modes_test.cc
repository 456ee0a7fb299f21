#include "fs/open_modes.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "backing_fixture.h"

namespace cairnfs::fs {
namespace {

constexpr OpenModes::Asked kReads{.may_pass = true}, kWrites{}, kBesideIt{.is_beside = true};

class OpenModesTest : public testing::Test {
 protected:
  OpenModesTest() : pool_(*io::BufferPool::Create({.size_bytes_max = 64 * kMiB, .reserved_count = 4})) {}
  void Back() {
    backing_ = *Backing::Make({.file = *memory_.MakeFile(),
                               .loan = *pool_->Borrow(kMiB),
                               .size = kMiB,
                               .pool = *pool_,
                               .registry = registry_,
                               .count = count_});
  }
  // nullopt: it is sent beside.
  std::optional<OpenMode> Open(const OpenModes::Asked& asked) {
    const auto mode = modes_.Decide(asked, backing_.get());
    if (!mode) return mode;
    modes_.NoteOpened(*mode, asked.thread);
    if (*mode == OpenMode::kPassed) backing_->NoteOpened();
    return mode;
  }
  void Release(OpenMode mode) {
    modes_.NoteReleased(mode);
    if (mode == OpenMode::kPassed) backing_->NoteReleased();
  }
  bool NamesBeside(uint32_t thread = 0) { return modes_.NamesBeside(backing_.get(), thread); }

  std::unique_ptr<io::BufferPool> pool_;
  MemoryBackings memory_{kGiB};
  CountingRegistry registry_;
  std::atomic<uint64_t> count_{0};
  std::unique_ptr<Backing> backing_;
  OpenModes modes_;
};

TEST_F(OpenModesTest, WithoutAFileInMemoryAllIsOrdinary) {
  EXPECT_EQ(Open(kReads), OpenMode::kOrdinary);
  EXPECT_EQ(Open(kWrites), OpenMode::kOrdinary);
  EXPECT_FALSE(NamesBeside());
}

TEST_F(OpenModesTest, TheFirstOpenDecidesUntilTheLastIsReleased) {
  Back();
  EXPECT_EQ(Open(kWrites), OpenMode::kOrdinary);
  EXPECT_EQ(Open(kReads), OpenMode::kOrdinary);
  Release(OpenMode::kOrdinary);
  EXPECT_EQ(Open(kReads), OpenMode::kOrdinary);
  Release(OpenMode::kOrdinary);
  Release(OpenMode::kOrdinary);
  EXPECT_EQ(Open(kReads), OpenMode::kPassed);
  EXPECT_EQ(Open(kReads), OpenMode::kPassed);
}

TEST_F(OpenModesTest, AWriterIsSentBesideWhileReadersArePassed) {
  Back();
  EXPECT_EQ(Open(kReads), OpenMode::kPassed);
  EXPECT_FALSE(NamesBeside());
  EXPECT_EQ(Open(kWrites), std::nullopt);
  EXPECT_TRUE(NamesBeside());
  EXPECT_EQ(Open(kBesideIt), OpenMode::kBeside);
  Clock::SleepFor(2 * OpenModes::kSentFor);
  EXPECT_TRUE(NamesBeside()) << "as long as somebody has it open there";
  EXPECT_EQ(Open(kReads), OpenMode::kPassed) << "by the file's own id";
  Release(OpenMode::kBeside);
  EXPECT_FALSE(NamesBeside());
}

TEST_F(OpenModesTest, WhoWasSentFindsTheIdBesideForAMoment) {
  Back();
  EXPECT_EQ(Open(kReads), OpenMode::kPassed);
  EXPECT_EQ(Open(kWrites), std::nullopt);
  EXPECT_TRUE(NamesBeside());
  Clock::SleepFor(OpenModes::kSentFor);
  EXPECT_FALSE(NamesBeside());
}

TEST_F(OpenModesTest, WhenTheReadersHaveGoneTheFilesOwnIdWillDoOnceNobodyIsOnHisWay) {
  Back();
  EXPECT_EQ(Open(kReads), OpenMode::kPassed);
  EXPECT_EQ(Open(kWrites), std::nullopt);
  Release(OpenMode::kPassed);
  EXPECT_TRUE(NamesBeside()) << "should readers be passed again before he comes";
  EXPECT_EQ(Open(kWrites), std::nullopt) << "ordinary opens are by one id at a time";
  Clock::SleepFor(OpenModes::kSentFor);
  EXPECT_FALSE(NamesBeside());
  EXPECT_EQ(Open(kWrites), OpenMode::kOrdinary);
}

TEST_F(OpenModesTest, OrdinaryOpensAreByOneIdAtATime) {
  Back();
  EXPECT_EQ(Open(kReads), OpenMode::kPassed);
  EXPECT_EQ(Open(kWrites), std::nullopt);
  EXPECT_EQ(Open(kBesideIt), OpenMode::kBeside);
  Release(OpenMode::kPassed);
  Clock::SleepFor(2 * OpenModes::kSentFor);
  EXPECT_TRUE(NamesBeside());
  EXPECT_EQ(Open(kWrites), std::nullopt);
  EXPECT_EQ(Open(kReads), OpenMode::kPassed) << "which follows what is written";
  Release(OpenMode::kPassed);
  Release(OpenMode::kBeside);
  Clock::SleepFor(OpenModes::kSentFor);
  EXPECT_EQ(Open(kWrites), OpenMode::kOrdinary);
  EXPECT_EQ(Open(kBesideIt), std::nullopt) << "he comes late, and is sent back";
  EXPECT_FALSE(NamesBeside());
  Release(OpenMode::kOrdinary);
  EXPECT_EQ(Open(kReads), OpenMode::kOrdinary) << "so that he need not be sent again";
}

// As by a mount of the file alone.
TEST_F(OpenModesTest, AReaderWhoComesAgainWithoutALookUpIsPassedWhileOthersAre) {
  Back();
  EXPECT_EQ(Open(kReads), OpenMode::kPassed);
  const OpenModes::Asked stranger{.only_reads = true, .thread = 7}, writer{.thread = 8};
  EXPECT_EQ(Open(stranger), std::nullopt);
  EXPECT_EQ(Open({.only_reads = true, .thread = 9}), std::nullopt) << "another one has a look-up before him";
  EXPECT_EQ(Open(stranger), OpenMode::kPassed);
  EXPECT_EQ(Open(stranger), std::nullopt) << "the next open is another one";
  Clock::SleepFor(OpenModes::kSentFor);
  EXPECT_EQ(Open(stranger), std::nullopt);
  EXPECT_EQ(Open(writer), std::nullopt);
  EXPECT_EQ(Open(writer), std::nullopt) << "who writes cannot be passed";
  backing_->FallBehind(MakeError(ErrorCode::kNoSpace, "no memory"));
  EXPECT_EQ(Open(stranger), std::nullopt) << "its bytes are old";
}

TEST_F(OpenModesTest, WhoComesAgainOnceTheReadersHaveGoneHasTheFilesOwnId) {
  Back();
  EXPECT_EQ(Open(kReads), OpenMode::kPassed);
  EXPECT_EQ(Open({.thread = 7}), std::nullopt);
  Release(OpenMode::kPassed);
  const OpenModes::Asked other{.thread = 8};
  EXPECT_EQ(Open(other), std::nullopt) << "thread 7 may be on its way to the id beside";
  EXPECT_EQ(Open(other), OpenMode::kOrdinary);
}

TEST_F(OpenModesTest, WhoComesLateIsNotSentAgain) {
  Back();
  const OpenModes::Asked writer{.thread = 7};
  EXPECT_EQ(Open(kReads), OpenMode::kPassed);
  EXPECT_EQ(Open(writer), std::nullopt);
  Clock::SleepFor(std::chrono::minutes(1));
  EXPECT_FALSE(NamesBeside());
  EXPECT_TRUE(NamesBeside(7));
  EXPECT_EQ(Open({.is_beside = true, .thread = 7}), OpenMode::kBeside);
  Release(OpenMode::kBeside);
  Clock::SleepFor(std::chrono::minutes(1));
  EXPECT_FALSE(NamesBeside(7)) << "what it opens next is another thing";
}

TEST_F(OpenModesTest, AFileIsCutByTheIdOfItsOrdinaryOpens) {
  Back();
  const auto must_cut_elsewhere = [&] {
    return std::pair(modes_.MustCutElsewhere(false), modes_.MustCutElsewhere(true));
  };
  EXPECT_EQ(must_cut_elsewhere(), std::pair(false, false));
  EXPECT_EQ(Open(kReads), OpenMode::kPassed);
  EXPECT_EQ(must_cut_elsewhere(), std::pair(false, false)) << "the file in memory is cut too";
  EXPECT_EQ(Open(kWrites), std::nullopt);
  EXPECT_EQ(Open(kBesideIt), OpenMode::kBeside);
  EXPECT_EQ(must_cut_elsewhere(), std::pair(true, false));
  EXPECT_TRUE(NamesBeside()) << "so who is sent there finds it";
  Release(OpenMode::kBeside);
  Release(OpenMode::kPassed);
  Clock::SleepFor(OpenModes::kSentFor);
  EXPECT_EQ(Open(kWrites), OpenMode::kOrdinary);
  EXPECT_EQ(must_cut_elsewhere(), std::pair(false, true));
  EXPECT_FALSE(NamesBeside());
}

TEST_F(OpenModesTest, WhatIsBehindIsReadBeside) {
  Back();
  EXPECT_EQ(Open(kReads), OpenMode::kPassed);
  backing_->FallBehind(MakeError(ErrorCode::kNoSpace, "no memory"));
  EXPECT_TRUE(NamesBeside());
  EXPECT_EQ(Open(kReads), std::nullopt);
  EXPECT_EQ(Open(kBesideIt), OpenMode::kBeside);
  Release(OpenMode::kBeside);
  Release(OpenMode::kPassed);
  Clock::SleepFor(OpenModes::kSentFor);
  EXPECT_EQ(Open(kReads), OpenMode::kOrdinary);
}

// The kernel's rule, and that everybody gets an answer at the second try at the latest.
TEST_F(OpenModesTest, NoIdEverHasBothModesAndNobodyIsSentTwice) {
  Back();
  std::mt19937_64 random(1);
  std::vector<OpenMode> open;
  size_t passed = 0, sent = 0;
  for (int i = 0; i < 20'000; i++) {
    if (i % 100 == 0) Clock::SleepFor(OpenModes::kSentFor);
    if (!open.empty() && random() % 2 == 0) {
      std::swap(open[random() % open.size()], open.back());
      Release(open.back());
      open.pop_back();
      continue;
    }
    OpenModes::Asked asked = random() % 3 == 0 ? kWrites : kReads;
    asked.thread = 1 + random() % 5;
    asked.is_beside = NamesBeside(asked.thread);
    auto mode = Open(asked);
    if (!mode) {
      sent++;
      while (!open.empty() && random() % 4 != 0) {  // others come and go meanwhile
        Release(open.back());
        open.pop_back();
      }
      if (const auto other = Open(kReads); other) open.push_back(*other);
      if (random() % 4 == 0) Clock::SleepFor(OpenModes::kSentFor * (random() % 4));
      if (const auto other = Open(random() % 2 == 0 ? kWrites : kReads); other) open.push_back(*other);
      asked.is_beside = NamesBeside(asked.thread);
      mode = Open(asked);
    }
    ASSERT_TRUE(mode.has_value());
    if (*mode == OpenMode::kPassed) {
      ASSERT_TRUE(asked.may_pass);
      passed++;
    }
    open.push_back(*mode);
    std::set<OpenMode> modes(open.begin(), open.end());
    ASSERT_FALSE(modes.contains(OpenMode::kPassed) && modes.contains(OpenMode::kOrdinary));
    ASSERT_FALSE(modes.contains(OpenMode::kBeside) && modes.contains(OpenMode::kOrdinary));
  }
  EXPECT_GT(passed, 50U);
  EXPECT_GT(sent, 10U);
  for (const OpenMode mode : open) Release(mode);
}

}  // namespace
}  // namespace cairnfs::fs
