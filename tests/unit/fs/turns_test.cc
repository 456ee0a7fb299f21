#include "fs/turns.h"

#include <gtest/gtest.h>

namespace cairnfs::fs {
namespace {

TEST(Turns, UsersAreServedInTurnsAndEachInOrder) {
  Turns<int> turns(10, 5);
  for (const int item : {1, 2, 3}) turns.Add(7, item);
  turns.Add(9, 4);
  turns.Add(0, 5);
  std::vector<int> served;
  for (int i = 0; i < 5; ++i) served.push_back(turns.Take()->item);
  EXPECT_EQ(served, (std::vector<int>{1, 4, 5, 2, 3}));
}

TEST(Turns, OneUserHasSoManyUnderWay) {
  Turns<int> turns(10, 2);
  for (const int item : {1, 2, 3}) turns.Add(7, item);
  EXPECT_EQ(turns.Take()->item, 1);
  EXPECT_EQ(turns.Take()->item, 2);
  EXPECT_FALSE(turns.Take().has_value());
  turns.Add(9, 4);
  EXPECT_EQ(turns.Take()->item, 4);
  turns.NoteDone(7);
  EXPECT_EQ(turns.Take()->item, 3);
  EXPECT_FALSE(turns.Take().has_value());
}

TEST(Turns, TheNewestOfWhoHasMostGivesWay) {
  Turns<int> turns(3, 3);
  for (const int item : {1, 2, 3}) EXPECT_EQ(turns.Add(7, item), std::nullopt);
  EXPECT_EQ(turns.Add(7, 4), 4);
  EXPECT_EQ(turns.Add(9, 5), 3);
  EXPECT_EQ(turns.Add(9, 6), 6) << "who comes gives way to who has as much";
  EXPECT_EQ(turns.Add(0, 8), 2);
  EXPECT_EQ(turns.Add(3, 10), 10);
  std::vector<int> served;
  for (int i = 0; i < 3; ++i) served.push_back(turns.Take()->item);
  EXPECT_EQ(served, (std::vector<int>{1, 5, 8}));
}

}  // namespace
}  // namespace cairnfs::fs
