#include "fs/file_error.h"

#include <gtest/gtest.h>

namespace cairnfs::fs {
namespace {

const Error kLost = MakeError(ErrorCode::kIo, "lost");
const Error kNoSpace = MakeError(ErrorCode::kNoSpace, "no space");

ErrorCode Take(FileError& error, uint64_t& seen) {
  const Status taken = error.Take(seen);
  return taken.ok() ? ErrorCode::kNotFound : taken.error().code;
}

TEST(FileError, EachDescriptorIsToldOnce) {
  FileError error;
  uint64_t first = error.SeenAtOpen(true), second = error.SeenAtOpen(false);
  error.Set(kLost);
  EXPECT_EQ(Take(error, first), ErrorCode::kIo);
  EXPECT_EQ(Take(error, first), ErrorCode::kNotFound);
  EXPECT_EQ(Take(error, second), ErrorCode::kIo);
  uint64_t later = error.SeenAtOpen(true);
  EXPECT_EQ(Take(error, later), ErrorCode::kNotFound) << "somebody was told";
}

TEST(FileError, OneThatNobodyWasToldIsForTheNextWriter) {
  FileError error;
  error.Set(kLost);
  uint64_t reader = error.SeenAtOpen(false), writer = error.SeenAtOpen(true);
  EXPECT_EQ(Take(error, reader), ErrorCode::kNotFound);
  EXPECT_EQ(Take(error, writer), ErrorCode::kIo);
  EXPECT_TRUE(error.TakeUnreported().ok());
}

TEST(FileError, OneThatHealsIsNoneAnyMoreWhereNobodyWasTold) {
  FileError error;
  uint64_t seen = error.SeenAtOpen(true);
  error.SetThatHeals(kNoSpace);
  error.Heal();
  EXPECT_EQ(Take(error, seen), ErrorCode::kNotFound);
  error.SetThatHeals(kNoSpace);
  EXPECT_FALSE(error.TakeUnreported().ok());
  error.Heal();
  EXPECT_EQ(Take(error, seen), ErrorCode::kNoSpace);
}

TEST(FileError, TheOneBeforeIsBackOnceALaterOneHasHealed) {
  FileError error;
  uint64_t told = error.SeenAtOpen(true), untold = told;
  error.Set(kLost);
  EXPECT_EQ(Take(error, told), ErrorCode::kIo);
  error.SetThatHeals(kNoSpace);
  error.Heal();
  EXPECT_EQ(Take(error, told), ErrorCode::kNotFound);
  EXPECT_EQ(Take(error, untold), ErrorCode::kIo);
}

TEST(FileError, OneThatDoesNotHealAndNobodyWasToldIsKept) {
  FileError error;
  uint64_t seen = error.SeenAtOpen(true);
  error.Set(kLost);
  error.SetThatHeals(kNoSpace);
  error.Heal();
  EXPECT_EQ(Take(error, seen), ErrorCode::kNoSpace) << "an error all the same";
}

}  // namespace
}  // namespace cairnfs::fs
