// Joining, over real sockets.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "../../support/eventually.h"
#include "../../support/own_address.h"
#include "../../support/test_authority.h"
#include "admission/join_port.h"

namespace cairnfs::admission {
namespace {

const JoinWelcome kWelcome{"f00d", "node:10.0.0.1:7402", "settings"};

class JoinTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(Credentials::Found(folder_.path(), "f00d", "5e", "", Clock::WallTime()).ok());
    credentials_ = MustHave(Credentials::Open(folder_.path(), "5e", Clock::WallTime()));
    JoinPort::Cluster cluster;
    cluster.welcome = []() -> Result<JoinWelcome> { return kWelcome; };
    cluster.admit = [this](const JoinRequest& request, Identity identity) -> Status {
      if (request.address == "taken") return InvalidArgument("that address is another node's");
      proven_ += identity == Identity::kProven ? 1 : 0;
      ++admitted_;
      return {};
    };
    port_ = MustHave(JoinPort::Start(OwnAddress() + ":0", *credentials_, tokens_, cluster));
  }
  Token NewToken() {
    return MustHave(tokens_.Make(MustHave(FingerprintOf(credentials_->authority())), std::chrono::hours(1)));
  }
  Result<JoinGrant> JoinAs(const std::string& node, const Token& token, const std::string& at = "10.0.0.2:7401") {
    return Join(port_->address(), token, [&](const JoinWelcome& welcome) -> Result<JoinRequest> {
      EXPECT_EQ(welcome.metadata, kWelcome.metadata);
      JoinRequest request{node, "host2", at, MustHave(MakeRequest(key_)), {}};
      if (!known_.empty()) request.proof = MustHave(ProveNode(known_, request.certificate));
      return request;
    });
  }

  const TestFolder folder_;
  const std::string key_ = MustHave(MakeKey());
  std::unique_ptr<Credentials> credentials_;
  Tokens tokens_;
  std::string known_;  // key and certificate of who joins anew
  std::atomic<int> admitted_{0}, proven_{0};
  std::unique_ptr<JoinPort> port_;
};

TEST_F(JoinTest, ATokenGivesOneNodeACertificate) {
  const Token token = NewToken();
  const auto grant = JoinAs("aa", token);
  ASSERT_TRUE(grant.ok()) << grant.error().message;
  EXPECT_TRUE(Check(grant->authority, grant->chain, key_, "aa", Clock::WallTime()).ok());
  EXPECT_EQ(admitted_, 1);
  const auto again = JoinAs("bb", token);
  EXPECT_EQ(again.error().code, ErrorCode::kPermission);
  EXPECT_NE(again.error().message.find("was used"), std::string::npos) << again.error().message;
  EXPECT_EQ(admitted_, 1);
  EXPECT_TRUE(Eventually([&] { return port_->refused_total() == 1; }));
}

TEST_F(JoinTest, OfTwoHostsWithOneTokenOneIsLetIn) {
  const Token token = NewToken();
  std::atomic<int> joined = 0;
  std::vector<std::thread> hosts;
  for (const char* node : {"aa", "bb"}) hosts.emplace_back([&, node] { joined += JoinAs(node, token).ok() ? 1 : 0; });
  for (std::thread& host : hosts) host.join();
  EXPECT_EQ(joined, 1);
  EXPECT_EQ(admitted_, 1);
}

// The cluster is told whether who joins has shown that it is that node.
TEST_F(JoinTest, AHostThatJoinsAnewShowsThatItIsTheNode) {
  const auto first = JoinAs("aa", NewToken());
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_EQ(proven_, 0);
  known_ = key_ + first->chain;
  ASSERT_TRUE(JoinAs("aa", NewToken()).ok());
  EXPECT_EQ(proven_, 1);
  ASSERT_TRUE(JoinAs("bb", NewToken()).ok());
  EXPECT_EQ(proven_, 1);
}

TEST_F(JoinTest, ARefusedRequestDoesNotUseTheTokenUp) {
  const Token token = NewToken();
  EXPECT_EQ(JoinAs("aa", token, "taken").error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(JoinAs("aa", token).ok());
}

TEST_F(JoinTest, AnotherClustersTokenIsNotShownToTheHost) {
  Token foreign = NewToken();
  foreign.authority[0] ^= 1;
  const auto refused = JoinAs("aa", foreign);
  EXPECT_EQ(refused.error().code, ErrorCode::kPermission);
  EXPECT_NE(refused.error().message.find("not of the token's cluster"), std::string::npos);
  EXPECT_TRUE(tokens_.IsGood(foreign.secret));
}

TEST_F(JoinTest, AGuessedSecretIsRefused) {
  Token guessed = NewToken();
  guessed.secret[3] ^= 1;
  EXPECT_EQ(JoinAs("aa", guessed).error().code, ErrorCode::kPermission);
  EXPECT_EQ(admitted_, 0);
}

TEST_F(JoinTest, WhereNobodyListensOrSpeaksOtherwiseIsAnErrorThatSaysSo) {
  const auto nobody = Join(OwnAddress() + ":1", NewToken(), {});
  EXPECT_EQ(nobody.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(nobody.error().message.find("serve_join"), std::string::npos) << nobody.error().message;
  EXPECT_EQ(Join("nonsense", NewToken(), {}).error().code, ErrorCode::kInvalidArgument);
}

// Who says nothing, or something else, takes a share that is bounded, and for some seconds.
TEST_F(JoinTest, SilentStrangersAreBoundedAndLeaveRoomAfterwards) {
  const size_t colon = port_->address().rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(port_->address().substr(colon + 1))));
  ASSERT_EQ(inet_pton(AF_INET, port_->address().substr(0, colon).c_str(), &address.sin_addr), 1);
  std::vector<int> silent;
  for (int i = 0; i < 20; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    if (i % 2 == 1) static_cast<void>(write(fd, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24));
    silent.push_back(fd);
  }
  EXPECT_TRUE(Eventually([&] { return port_->refused_total() >= 18; }));
  const Token token = NewToken();
  EXPECT_TRUE(Eventually([&] { return JoinAs("aa", token).ok(); }));  // they are told to go after five seconds
  for (const int fd : silent) close(fd);
}

}  // namespace
}  // namespace cairnfs::admission
