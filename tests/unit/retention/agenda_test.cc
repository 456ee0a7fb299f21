// When a policy is applied, and whose turn it is.
#include "retention/agenda.h"

#include <gtest/gtest.h>

namespace cairnfs::retention {
namespace {

Timestamp At(int64_t seconds) { return {.seconds = seconds, .nanoseconds = 0}; }
constexpr int64_t kBegin = 1'700'000'000;

TEST(AgendaTest, ItIsDueWhenSomethingChangedOrEnded) {
  EXPECT_TRUE(IsDue(5, std::nullopt, At(kBegin)));
  const LastTime last = After(5, std::nullopt, Report(), At(kBegin));
  EXPECT_EQ(last.revision, 5u);
  EXPECT_FALSE(IsDue(6, last, At(kBegin + 19))) << "it rests";
  EXPECT_TRUE(IsDue(6, last, At(kBegin + 20)));
  EXPECT_TRUE(IsDue(4, last, At(kBegin + 20))) << "of names that were loaded from a dump";
  EXPECT_FALSE(IsDue(5, last, At(kBegin + 3599)));
  EXPECT_TRUE(IsDue(5, last, At(kBegin + 3600))) << "not everything is told";
}

TEST(AgendaTest, TheEndOfAHoldIsNotMissed) {
  Report report;
  report.next = kBegin + 40;
  const LastTime last = After(5, std::nullopt, report, At(kBegin));
  EXPECT_FALSE(IsDue(5, last, At(kBegin + 40)));
  EXPECT_TRUE(IsDue(5, last, At(kBegin + 41)));
  report.next = INT64_MAX;
  EXPECT_EQ(After(5, std::nullopt, report, At(kBegin)).next, At(kBegin + 3600)) << "whatever a process says";
  report.next = kBegin - 5;
  EXPECT_TRUE(IsDue(5, After(5, std::nullopt, report, At(kBegin)), At(kBegin + 20)));
}

TEST(AgendaTest, WhatIsInVainIsTriedLessAndLessOften) {
  Report open;
  open.stays_for_now = true;
  Timestamp now = At(kBegin);
  std::optional<LastTime> last;
  std::vector<int64_t> pauses;
  for (int look = 0; look < 8; ++look) {
    last = After(5, last, open, now);
    pauses.push_back(last->next.seconds - now.seconds);
    now = last->next;
  }
  EXPECT_EQ(pauses, (std::vector<int64_t>{20, 40, 80, 160, 320, 600, 600, 600}));
  const LastTime changed = After(6, last, open, now);
  EXPECT_EQ(changed.next.seconds - now.seconds, 20) << "another commit";
  Report failed;
  failed.error = "no";
  EXPECT_EQ(After(6, changed, failed, now).next.seconds - now.seconds, 40);
}

TEST(AgendaTest, AClockThatWasSetBackStopsNothing) {
  const LastTime ahead{.revision = 5, .at = At(kBegin + 1000), .next = At(kBegin + 4600), .looks_in_vain = 0};
  EXPECT_TRUE(IsDue(5, ahead, At(kBegin)));
  const LastTime far{.revision = 5, .at = At(kBegin), .next = At(kBegin + 1'000'000), .looks_in_vain = 0};
  EXPECT_TRUE(IsDue(5, far, At(kBegin + 20)));
}

Agenda::Item ItemOf(uint32_t owner, uint64_t directory) {
  return {.directory = InodeId{directory}, .owner = owner, .revision = 1};
}

TEST(AgendaTest, WhoHasManyHoldsUpNobody) {
  Agenda agenda;
  std::vector<Agenda::Item> due;
  for (uint64_t directory = 100; directory < 200; ++directory) due.push_back(ItemOf(7, directory));
  due.push_back(ItemOf(8, 10));
  due.push_back(ItemOf(8, 11));
  agenda.Set(due);
  const auto first = agenda.Take(), second = agenda.Take();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->owner + second->owner, 15u);
  EXPECT_FALSE(agenda.Take()) << "one of each owner at once";
  agenda.End(*first);
  agenda.End(*second);
  const auto third = agenda.Take(), fourth = agenda.Take();
  ASSERT_TRUE(third && fourth);
  EXPECT_EQ(third->owner, first->owner) << "who was served longest ago";
  EXPECT_EQ(fourth->owner, second->owner);
  agenda.Set({ItemOf(8, 12), ItemOf(9, 20)});
  EXPECT_EQ(agenda.Take()->owner, 9u) << "the other's runs yet";
  EXPECT_FALSE(agenda.Take());
  agenda.End(ItemOf(8, 11));
  EXPECT_EQ(agenda.Take()->directory, InodeId{12});
}

}  // namespace
}  // namespace cairnfs::retention
