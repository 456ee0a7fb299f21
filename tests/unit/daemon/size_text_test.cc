#include "daemon/size_text.h"

#include <gtest/gtest.h>

#include "base/types.h"

namespace cairnfs::daemon {
namespace {

TEST(ParseSize, TakesBinaryUnits) {
  EXPECT_EQ(ParseSize("0").value(), 0U);
  EXPECT_EQ(ParseSize("65536").value(), 65536U);
  EXPECT_EQ(ParseSize("64K").value(), 64 * kKiB);
  EXPECT_EQ(ParseSize("256MiB").value(), 256 * kMiB);
  EXPECT_EQ(ParseSize("2 GiB").value(), 2 * kGiB);
  EXPECT_EQ(ParseSize("1T").value(), 1024 * kGiB);
}

TEST(ParseSize, RefusesTheRestAndSaysWhatIsRight) {
  for (const char* text : {"", "MiB", "256MB", "1.5GiB", "-1", "12x", "0x10", "99999999999999999999", "20000000T"}) {
    auto size = ParseSize(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_NE(size.error().message.find("256MiB"), std::string::npos);
  }
}

TEST(ParseDuration, NeedsAUnit) {
  EXPECT_EQ(ParseDurationMs("250ms").value(), 250U);
  EXPECT_EQ(ParseDurationMs("5s").value(), 5000U);
  EXPECT_EQ(ParseDurationMs("10min").value(), 600'000U);
  EXPECT_EQ(ParseDurationMs("1h").value(), 3'600'000U);
  EXPECT_EQ(ParseDurationMs("7d").value(), 7U * 24 * 3'600'000);
  for (const char* text : {"", "5", "s", "1.5s", "-1s", "5 days", "99999999999999999999s"}) {
    EXPECT_FALSE(ParseDurationMs(text).ok()) << text;
  }
}

TEST(FormatSize, ReadsWell) {
  EXPECT_EQ(FormatSize(0), "0 B");
  EXPECT_EQ(FormatSize(1023), "1023 B");
  EXPECT_EQ(FormatSize(1536), "1.5 KiB");
  EXPECT_EQ(FormatSize(3 * kGiB), "3.0 GiB");
  EXPECT_EQ(FormatSizeExact(256 * kMiB), "256MiB");
  EXPECT_EQ(FormatSizeExact(1000), "1000");
  EXPECT_EQ(FormatDurationMs(5000), "5s");
  EXPECT_EQ(FormatDurationMs(250), "250ms");
}

}  // namespace
}  // namespace cairnfs::daemon
