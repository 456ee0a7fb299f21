#include "admission/join_messages.h"

#include <gtest/gtest.h>

#include <random>

namespace cairnfs::admission {
namespace {

const JoinWelcome kWelcome{"f00d", "node:10.0.0.1:7402", std::string("\0\1settings", 10)};
const JoinRequest kRequest{"aa",
                           "host2",
                           "10.0.0.2:7401",
                           "-----BEGIN CERTIFICATE REQUEST-----",
                           {"-----BEGIN CERTIFICATE-----", std::string("\0\1signature", 11)}};
const JoinGrant kGrant{"authority", "chain"};

JoinHello SomeHello() {
  JoinHello hello;
  hello.secret.fill(7);
  return hello;
}

// Every message, cut short at each length, grown, and with bytes changed: an error, or another message; never a crash.
template <typename Message>
void ExpectBearsDamage(const Message& message) {
  const std::string bytes = message.Encode();
  EXPECT_TRUE(Message::Decode(bytes).ok());
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(Message::Decode(bytes.substr(0, size)).ok()) << size;
  EXPECT_FALSE(Message::Decode(bytes + "x").ok());
  std::minstd_rand random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string damaged = bytes;
    for (int change = 0; change < 3; ++change) damaged[random() % damaged.size()] = static_cast<char>(random());
    static_cast<void>(Message::Decode(damaged).ok());
  }
}

TEST(JoinMessages, AreReadBackAndBearDamage) {
  ExpectBearsDamage(SomeHello());
  ExpectBearsDamage(kWelcome);
  ExpectBearsDamage(kRequest);
  ExpectBearsDamage(kGrant);
  const auto request = JoinRequest::Decode(kRequest.Encode());
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->node, kRequest.node);
  EXPECT_EQ(request->name, kRequest.name);
  EXPECT_EQ(request->address, kRequest.address);
  EXPECT_EQ(request->certificate, kRequest.certificate);
  EXPECT_EQ(request->proof.chain, kRequest.proof.chain);
  EXPECT_EQ(request->proof.signature, kRequest.proof.signature);
  EXPECT_EQ(JoinWelcome::Decode(kWelcome.Encode())->settings, kWelcome.settings);
}

TEST(JoinMessages, TheOlderVersionIsNamed) {
  std::string hello = SomeHello().Encode();
  hello[hello.find("join") + 4] = 0;
  EXPECT_NE(JoinHello::Decode(hello).error().message.find("host that joins has the older"), std::string::npos);
  hello[hello.find("join") + 4] = 9;
  EXPECT_NE(JoinHello::Decode(hello).error().message.find("cluster has the older"), std::string::npos);
}

TEST(JoinMessages, AnAnswerIsAMessageOrAnError) {
  EXPECT_EQ(*DecodeAnswer(EncodeAnswer(std::string("message"))), "message");
  const auto error = DecodeAnswer(EncodeAnswer(MakeError(ErrorCode::kBusy, "not now")));
  EXPECT_EQ(error.error().code, ErrorCode::kBusy);
  EXPECT_EQ(error.error().message, "not now");
  for (const char* wrong : {"", "\2", "\1", "\1\3abc"}) EXPECT_FALSE(DecodeAnswer(wrong).ok());
}

}  // namespace
}  // namespace cairnfs::admission
