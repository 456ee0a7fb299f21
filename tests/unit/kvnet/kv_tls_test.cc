// Who may read and change the keys of a cluster that has certificates: each method, as each kind of stranger.
#include "../../support/raw_call.h"
#include "../../support/test_authority.h"
#include "support.h"

namespace cairnfs::kvnet {
namespace {

const std::string kServing = "5e", kMember = "aa", kRemoved = "bb";

class KvTlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KvServer::Guard guard;
    guard.tls = authority_.TlsOf(kServing);
    guard.check_member = [](const std::string& node) -> Status {
      return node == kMember ? Status() : MakeError(ErrorCode::kPermission, "node " + node + " was removed");
    };
    server_ = Must(KvServer::Start(*store_, OwnAddress() + ":0", guard));
  }
  grpc::Status Call(const std::string& method, const rpc::Tls& caller) {
    return RawCall({server_->address(), std::string(rpc::kAnyNodeName), "/cairnfs.kvnet.proto.Kv/" + method}, caller,
                   "");
  }
  std::unique_ptr<kv::SharedKvStore> StoreOf(const rpc::Tls& tls, const std::string& node = "") {
    RemoteOptions options;
    options.tls = tls;
    options.server_name = rpc::kAnyNodeName;
    options.retry.give_up_after = std::chrono::seconds(1);
    return Must(MakeNodeStore({server_->address()}, options, {node}));
  }

  TestAuthority authority_, other_authority_;
  std::unique_ptr<kv::KvEngine> engine_ = kv::OpenMemoryEngine();
  std::unique_ptr<kv::HostedStore> store_ = Must(kv::HostedStore::Open(*engine_));
  std::unique_ptr<KvServer> server_;
};

TEST_F(KvTlsTest, StrangersAreRefusedAtEachMethodAndCounted) {
  const rpc::Tls nobody = authority_.TlsOfNobody(), foreigner = authority_.TlsOfForeigner(other_authority_, kMember),
                 expired = authority_.TlsOf(kMember, std::chrono::hours(24 * 400)),
                 removed = authority_.TlsOf(kRemoved);
  uint64_t refused = 0;
  for (const char* method : {"Read", "Commit", "GrantLease", "KeepLeaseAlive", "RevokeLease", "Watch"}) {
    SCOPED_TRACE(method);
    for (const rpc::Tls* stranger : {&nobody, &foreigner, &expired}) {
      EXPECT_EQ(Call(method, *stranger).error_code(), grpc::StatusCode::UNAVAILABLE);
    }
    EXPECT_EQ(Call(method, rpc::Tls()).error_code(), grpc::StatusCode::UNAVAILABLE);
    const grpc::Status answer = Call(method, removed);
    EXPECT_EQ(answer.error_code(), grpc::StatusCode::PERMISSION_DENIED) << answer.error_message();
    EXPECT_NE(answer.error_message().find("node bb was removed"), std::string::npos) << answer.error_message();
    refused += 5;
  }
  EXPECT_TRUE(Eventually([&] { return server_->refused_total() >= refused; })) << server_->refused_total();
}

TEST_F(KvTlsTest, AMemberIsServedAndBelievesOnlyItsOwnCluster) {
  auto store = StoreOf(authority_.TlsOf(kMember));
  Must(store->Commit({}, kv::Transaction().Put("k", "v")));
  EXPECT_EQ(Must(store->Get({}, "k"))->value, "v");
  const uint64_t refused = server_->refused_total();
  EXPECT_EQ(refused, 0U);
  // A server of another cluster, at the same address, say.
  auto deceived = StoreOf(other_authority_.TlsOfForeigner(authority_, kMember));
  EXPECT_EQ(deceived->Get({}, "k").error().code, ErrorCode::kUnavailable);
}

// Another node of the cluster may come to have the address.
TEST_F(KvTlsTest, AMemberThatKnowsWhoServesBelievesNoOtherNode) {
  const rpc::Tls member = authority_.TlsOf(kMember);
  Must(StoreOf(member, kServing)->Commit({}, kv::Transaction().Put("k", "v")));
  const auto deceived = StoreOf(member, kMember);
  EXPECT_EQ(deceived->Get({}, "k").error().code, ErrorCode::kUnavailable);
  bool is_told = false;
  kv::WatchCallbacks callbacks;
  callbacks.changed = [&](const auto&, uint64_t) { is_told = true; };
  callbacks.lost = [](uint64_t) {};
  const auto watch = deceived->Watch({}, "a", "z", 0, std::move(callbacks));
  Must(StoreOf(member, kServing)->Commit({}, kv::Transaction().Put("k", "w")));
  EXPECT_FALSE(is_told);
}

}  // namespace
}  // namespace cairnfs::kvnet
