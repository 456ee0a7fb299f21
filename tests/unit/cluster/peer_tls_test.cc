// Who may call a node whose cluster has certificates: each method, as each kind of stranger.
#include <set>

#include "../../support/eventually.h"
#include "../../support/own_address.h"
#include "../../support/raw_call.h"
#include "../../support/test_authority.h"
#include "cluster/peer_client.h"
#include "cluster/peer_server.h"
#include "fake_membership.h"

namespace cairnfs::cluster {
namespace {

NodeId IdOf(uint8_t number) {
  NodeId id;
  id.bytes.fill(std::byte{number});
  return id;
}

class PeerTlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const NodeId& id : {self_, member_, removed_}) Add(id);
    PeerServer::Options options;
    options.listen = OwnAddress() + ":0";
    options.tls = authority_.TlsOf(self_.ToHex());
    auto server = PeerServer::Start(
        options, membership_, counters_,
        [this](PeerMethod method, const NodeId& caller, PeerMessage, const PeerServer::Respond& respond) {
          served_.insert(method);
          EXPECT_EQ(caller, member_);
          respond(PeerMessage{"done", {}});
        });
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = *std::move(server);
    cluster_.Remove(removed_);
  }

  void Add(const NodeId& id) {
    NodeInfo node;
    node.id = id;
    node.state = NodeState::kUp;
    cluster_.Add(node);
  }

  grpc::Status Call(PeerMethod method, const rpc::Tls& caller, const NodeId& says_it_is) {
    const std::string head = EncodeEnvelope({self_, says_it_is});
    std::string bytes = {static_cast<char>(head.size()), 0, 0, 0};
    return RawCall({server_->address(), rpc::CertificateName(self_.ToHex()), PeerMethodPath(method)}, caller,
                   bytes + head);
  }

  TestAuthority authority_, other_authority_;
  const NodeId self_ = IdOf(1), member_ = IdOf(2), removed_ = IdOf(3);
  FakeCluster cluster_;
  FakeMembership membership_{cluster_, self_};
  WireCounters counters_;
  std::set<PeerMethod> served_;
  std::unique_ptr<PeerServer> server_;
};

TEST_F(PeerTlsTest, StrangersAreRefusedAtEachMethodAndCounted) {
  const rpc::Tls nobody = authority_.TlsOfNobody(),
                 foreigner = authority_.TlsOfForeigner(other_authority_, member_.ToHex()),
                 expired = authority_.TlsOf(member_.ToHex(), std::chrono::hours(24 * 400)),
                 removed = authority_.TlsOf(removed_.ToHex()), member = authority_.TlsOf(member_.ToHex());
  uint64_t refused = 0;
  for (size_t i = 0; i < kPeerMethodCount; ++i) {
    const auto method = static_cast<PeerMethod>(i);
    SCOPED_TRACE(PeerMethodPath(method));
    // The connection itself is refused: there is nothing that the server would have answered.
    for (const rpc::Tls* stranger : {&nobody, &foreigner, &expired}) {
      EXPECT_EQ(Call(method, *stranger, member_).error_code(), grpc::StatusCode::UNAVAILABLE);
    }
    EXPECT_EQ(Call(method, rpc::Tls(), member_).error_code(), grpc::StatusCode::UNAVAILABLE);
    const grpc::Status of_removed = Call(method, removed, removed_);
    EXPECT_NE(of_removed.error_message().find("is not in the cluster"), std::string::npos)
        << of_removed.error_message();
    const grpc::Status of_liar = Call(method, member, self_);
    EXPECT_EQ(of_liar.error_code(), grpc::StatusCode::PERMISSION_DENIED) << of_liar.error_message();
    EXPECT_NE(of_liar.error_message().find("says that it is of node"), std::string::npos);
    EXPECT_TRUE(served_.empty());
    refused += 6;
  }
  EXPECT_TRUE(Eventually([&] { return server_->refused_total() >= refused; })) << server_->refused_total();
  for (size_t i = 0; i < kPeerMethodCount; ++i) {
    EXPECT_TRUE(Call(static_cast<PeerMethod>(i), member, member_).ok());
  }
  EXPECT_EQ(served_.size(), kPeerMethodCount);
  EXPECT_EQ(server_->refused_total(), refused);
}

TEST_F(PeerTlsTest, ANodeThatIsRemovedIsRefusedOnTheConnectionThatItHas) {
  cluster_.Edit(self_, [&](NodeInfo& node) { node.address = server_->address(); });
  FakeMembership as_member(cluster_, member_);
  PeerClient client(as_member, 1, counters_, std::chrono::seconds(10), authority_.TlsOf(member_.ToHex()));
  const auto call = [&] {
    auto answer = std::make_shared<std::promise<Result<PeerMessage>>>();
    client.Call(self_, PeerMethod::kHas, {}, std::chrono::seconds(60),
                [answer](Result<PeerMessage> reply) { answer->set_value(std::move(reply)); });
    return answer->get_future().get();
  };
  EXPECT_TRUE(call().ok());
  cluster_.Remove(member_);
  const auto refused = call();
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("is not in the cluster"), std::string::npos) << refused.error().message;
  client.Close();
}

// An address may have got a new owner: a member all the same, but another one than is meant.
TEST_F(PeerTlsTest, AnotherMemberAtTheAddressIsNotTheNode) {
  Add(IdOf(4));
  cluster_.Edit(IdOf(4), [&](NodeInfo& node) { node.address = server_->address(); });
  FakeMembership as_member(cluster_, member_);
  PeerClient client(as_member, 1, counters_, std::chrono::seconds(10), authority_.TlsOf(member_.ToHex()));
  std::promise<Result<PeerMessage>> answer;
  client.Call(IdOf(4), PeerMethod::kHas, {}, std::chrono::seconds(60),
              [&](Result<PeerMessage> reply) { answer.set_value(std::move(reply)); });
  const auto reply = answer.get_future().get();
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(served_.empty());
  client.Close();
}

}  // namespace
}  // namespace cairnfs::cluster
