#include "base/hex.h"

#include <gtest/gtest.h>

namespace cairnfs {
namespace {

TEST(Hex, ThereAndBack) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  EXPECT_EQ(ToHex(bytes).substr(0, 8), "00010203");
  EXPECT_EQ(ToHex(bytes).substr(506), "fdfeff");
  EXPECT_EQ(FromHex(ToHex(bytes)), bytes);
  EXPECT_EQ(FromHex("fFAa"), "\xff\xaa");
  EXPECT_EQ(FromHex(""), "");
}

TEST(Hex, RefusesWhatIsNone) {
  for (const char* text : {"f", "fg", "0x", " 1", "1-"}) EXPECT_FALSE(FromHex(text).has_value()) << text;
}

}  // namespace
}  // namespace cairnfs
