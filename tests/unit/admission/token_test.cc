#include "admission/token.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace cairnfs::admission {
namespace {

Fingerprint SomeAuthority() {
  Fingerprint print{};
  for (size_t i = 0; i < print.size(); ++i) print[i] = static_cast<uint8_t>(i * 7);
  return print;
}

TEST(Token, IsReadBack) {
  Tokens tokens;
  auto made = tokens.Make(SomeAuthority(), std::chrono::hours(1));
  ASSERT_TRUE(made.ok());
  auto read = Token::Parse(made->Text());
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->secret, made->secret);
  EXPECT_EQ(read->authority, SomeAuthority());
}

TEST(Token, CutOrMistypedIsRefusedAtEachPlace) {
  Tokens tokens;
  const std::string text = tokens.Make(SomeAuthority(), std::chrono::hours(1))->Text();
  for (size_t size = 0; size < text.size(); ++size) EXPECT_FALSE(Token::Parse(text.substr(0, size)).ok()) << size;
  for (size_t at = 0; at < text.size(); ++at) {
    std::string wrong = text;
    wrong[at] = wrong[at] == '0' ? '1' : '0';
    EXPECT_FALSE(Token::Parse(wrong).ok()) << at;
  }
  EXPECT_FALSE(Token::Parse(text + "0").ok());
  EXPECT_NE(Token::Parse("").error().message.find("cairnfs cluster token"), std::string::npos);
}

TEST(Tokens, AreGoodOnceAndForTheirLife) {
  Tokens tokens;
  const Secret used = tokens.Make(SomeAuthority(), std::chrono::hours(1))->secret;
  const Secret late = tokens.Make(SomeAuthority(), std::chrono::hours(1))->secret;
  EXPECT_FALSE(tokens.IsGood(Secret{}));
  EXPECT_TRUE(tokens.IsGood(used));
  const auto until = tokens.Use(used);
  ASSERT_TRUE(until);
  EXPECT_FALSE(tokens.IsGood(used));
  EXPECT_FALSE(tokens.Use(used));
  tokens.PutBack(used, *until);
  EXPECT_TRUE(tokens.IsGood(used));
  Clock::SleepFor(std::chrono::minutes(59));
  EXPECT_TRUE(tokens.IsGood(late));
  Clock::SleepFor(std::chrono::minutes(1));
  EXPECT_FALSE(tokens.IsGood(late));
  EXPECT_FALSE(tokens.Use(late));
}

TEST(Tokens, AreBounded) {
  Tokens tokens;
  for (size_t i = 0; i < Tokens::kTokensMax; ++i) {
    ASSERT_TRUE(tokens.Make(SomeAuthority(), std::chrono::hours(1)).ok());
  }
  EXPECT_EQ(tokens.Make(SomeAuthority(), std::chrono::hours(1)).error().code, ErrorCode::kExhausted);
  Clock::SleepFor(std::chrono::hours(1));
  EXPECT_TRUE(tokens.Make(SomeAuthority(), std::chrono::hours(1)).ok());
}

}  // namespace
}  // namespace cairnfs::admission
