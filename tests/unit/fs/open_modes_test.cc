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
    modes_.NoteOpened(*mode);
    if (*mode == OpenMode::kPassed) backing_->NoteOpened();
    return mode;
  }
  void Release(OpenMode mode) {
    modes_.NoteReleased(mode);
    if (mode == OpenMode::kPassed) backing_->NoteReleased();
  }
  bool NamesBeside() const { return modes_.NamesBeside(backing_.get()); }

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
    asked.is_beside = NamesBeside();
    auto mode = Open(asked);
    if (!mode) {
      sent++;
      while (!open.empty() && random() % 4 != 0) {  // others come and go meanwhile
        Release(open.back());
        open.pop_back();
      }
      if (const auto other = Open(kReads); other) open.push_back(*other);
      asked.is_beside = NamesBeside();
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
