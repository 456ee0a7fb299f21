#include "base/printable.h"

#include <gtest/gtest.h>

namespace cairnfs {
namespace {

TEST(Printable, ControlCharactersAreEscaped) {
  EXPECT_EQ(Printable("step-1/weights.pt"), "step-1/weights.pt");
  EXPECT_EQ(Printable("a\nb\x1b[31m\x7f"), "a\\x0ab\\x1b[31m\\x7f");
  EXPECT_EQ(Printable("\xc2\x9b\x33\x31m"), "\\xc2\\x9b31m") << "the terminal's other way to say ESC [";
  EXPECT_EQ(Printable(std::string_view("\0", 1)), "\\x00");
}

TEST(Printable, AllElseStays) {
  EXPECT_EQ(Printable("Gewi\xc3\x9f\xc2\xa0\xe2\x82\xac"), "Gewi\xc3\x9f\xc2\xa0\xe2\x82\xac");
  EXPECT_EQ(Printable("\xff\xc2"), "\xff\xc2") << "no UTF-8";
  EXPECT_EQ(Printable(""), "");
}

TEST(Printable, OfKeysOnlyAsciiStays) {
  EXPECT_EQ(PrintableAscii("E ~\x7f\n"), "E ~\\x7f\\x0a");
  EXPECT_EQ(PrintableAscii("\xc3\x9f\xff"), "\\xc3\\x9f\\xff");
}

TEST(Printable, PlainTextIsUtf8WithoutControlCharacters) {
  for (const char* text : {"", "a/b \"c\"", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    EXPECT_TRUE(IsPlainText(text)) << text;
  }
  for (const char* text : {"a\n", "\x7f", "\xff", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    EXPECT_FALSE(IsPlainText(text)) << PrintableAscii(text);
  }
}

}  // namespace
}  // namespace cairnfs
