#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "base/hex.h"
#include "cluster/records.h"
#include "cluster_setup_fixture.h"
#include "daemon/cluster_setup.h"
#include "daemon/data_directory.h"
#include "daemon/joining.h"
#include "kv/engine.h"
#include "kv/hosted_store.h"
#include "kvnet/kv_service.h"

namespace cairnfs::daemon {
namespace {

namespace stdfs = std::filesystem;

class ClusterJoinTest : public ClusterSetupFixture {
 protected:
  // Makes a filesystem with the options' settings, and serves its metadata.
  void Serve() {
    auto store = kv::HostedStore::Open(*engine_);
    ASSERT_TRUE(store.ok());
    store_ = *std::move(store);
    auto made = MakeOrReadCluster(*store_, options_.config);
    ASSERT_TRUE(made.ok()) << made.error().message;
    filesystem_ = ToHex(made->header.uuid);
    auto server = kvnet::KvServer::Start(*store_, "127.0.0.1:0");
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = *std::move(server);
  }

  // The options' data directory, as a node of `filesystem`. Its uuid.
  std::string MakeDirectory(const std::string& filesystem) {
    auto directory = DataDirectory::Open({options_.config.data, true, "testing"});
    EXPECT_TRUE(directory.ok());
    EXPECT_TRUE((*directory)->JoinFilesystem(filesystem).ok());
    EXPECT_TRUE((*directory)->FinishMaking().ok());
    return (*directory)->uuid();
  }

  Result<SetupResult> Join() { return JoinCluster(options_, server_->address()); }

  std::unique_ptr<kv::KvEngine> engine_ = kv::OpenMemoryEngine();
  std::unique_ptr<kv::HostedStore> store_;
  std::unique_ptr<kvnet::KvServer> server_;
  std::string filesystem_;
};

TEST_F(ClusterJoinTest, RefusesAnAddressOfAnotherHost) {
  options_.config.trusted_network = {"127.0.0.0/8", "192.0.2.0/24"};
  options_.config.trust_public_network = true;
  ASSERT_NO_FATAL_FAILURE(Serve());
  options_.config.listen = "192.0.2.1:7401";
  auto joined = Join();
  ASSERT_FALSE(joined.ok());
  EXPECT_EQ(joined.error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(Has(joined.error(), "is no address of this host")) << joined.error().message;
  EXPECT_FALSE(stdfs::exists(options_.file));
}

TEST_F(ClusterJoinTest, RefusesTheAddressOfANodeThatIsUp) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  const auto id = *cluster::NodeId::FromHex(MakeDirectory(filesystem_));
  const std::string node = cluster::KeyOf(cluster::MemberKey::kNode, id), session = cluster::SessionKey(id);
  const std::string record = cluster::NodeRecord{"other", options_.config.listen, "", 1}.Encode();
  ASSERT_TRUE(store_->Commit({}, kv::Transaction().Put(node, record).Put(session, "")).ok());
  const std::string its_data = options_.config.data;
  options_.config.data = folder_ + "/another";
  auto joined = Join();
  ASSERT_FALSE(joined.ok());
  EXPECT_EQ(joined.error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(Has(joined.error(), options_.config.listen + " is the address of node other")) << joined.error().message;
  EXPECT_FALSE(stdfs::exists(options_.file));

  options_.overwrite = true;
  Config with_its_own = options_.config;
  with_its_own.advertise = "127.0.0.2:7401";
  joined = JoinCluster({with_its_own, options_.file, true, {}}, server_->address());
  EXPECT_TRUE(joined.ok()) << joined.error().message;
  // The node's own directory, which joins once more.
  Config the_node = options_.config;
  the_node.data = its_data;
  joined = JoinCluster({the_node, options_.file, true, {}}, server_->address());
  EXPECT_TRUE(joined.ok()) << joined.error().message;
  // Once that node is down, its host may have lost its disk.
  ASSERT_TRUE(store_->Commit({}, kv::Transaction().Delete(session)).ok());
  joined = Join();
  EXPECT_TRUE(joined.ok()) << joined.error().message;
}

// Its next start is refused; who joins says that it is to come back.
TEST_F(ClusterJoinTest, LetsANodeBackThatWasRemoved) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  const auto id = *cluster::NodeId::FromHex(MakeDirectory(filesystem_));
  const std::string removed = cluster::KeyOf(cluster::MemberKey::kRemoved, id);
  ASSERT_TRUE(store_->Commit({}, kv::Transaction().Put(removed, "")).ok());
  auto joined = Join();
  ASSERT_TRUE(joined.ok()) << joined.error().message;
  auto left = store_->Get({}, removed);
  ASSERT_TRUE(left.ok());
  EXPECT_FALSE(*left);
  // Not beside a daemon that runs as it.
  ASSERT_TRUE(store_->Commit({}, kv::Transaction().Put(cluster::SessionKey(id), "")).ok());
  EXPECT_EQ(AllowBack(*store_, id.ToHex()).error().code, ErrorCode::kBusy);
  EXPECT_EQ(AllowBack(*store_, "nonsense").error().code, ErrorCode::kInvalidArgument);
}

// With a token: who has one is not yet the node that he says he is.
TEST_F(ClusterJoinTest, ANodeOfTheClusterShowsThatItIsThatNode) {
  using admission::Identity;
  ASSERT_NO_FATAL_FAILURE(Serve());
  const auto id = *cluster::NodeId::FromHex("00112233445566778899aabbccddeeff");
  const cluster::NodeRecord record{"down", "10.0.0.7:7401", "", 1};
  const std::string node = cluster::KeyOf(cluster::MemberKey::kNode, id);
  const std::string removed = cluster::KeyOf(cluster::MemberKey::kRemoved, id);
  const auto is_there = [&](const std::string& key) { return (*store_->Get({}, key)).has_value(); };
  EXPECT_TRUE(NoteJoined(*store_, id.ToHex(), record, Identity::kClaimed).ok());
  EXPECT_TRUE(NoteJoined(*store_, id.ToHex(), record, Identity::kClaimed).ok()) << "a join that was cut short";
  ASSERT_TRUE(store_->Commit({}, kv::Transaction().Put(node, record.Encode())).ok());
  const Status claimed = NoteJoined(*store_, id.ToHex(), record, Identity::kClaimed);
  ASSERT_FALSE(claimed.ok());
  EXPECT_EQ(claimed.error().code, ErrorCode::kPermission);
  EXPECT_TRUE(Has(claimed.error(), "node replace down")) << claimed.error().message;
  EXPECT_TRUE(NoteJoined(*store_, id.ToHex(), record, Identity::kProven).ok());
  // Once an operator has taken it out, its directory may come back.
  ASSERT_TRUE(store_->Commit({}, kv::Transaction().Delete(node).Put(removed, "")).ok());
  EXPECT_TRUE(NoteJoined(*store_, id.ToHex(), record, Identity::kClaimed).ok());
  EXPECT_FALSE(is_there(removed));
}

TEST_F(ClusterJoinTest, SaysThatNobodyAnswers) {
  options_.config.metadata_wait_ms = 1000;
  auto joined = JoinCluster(options_, "127.0.0.1:1");
  ASSERT_FALSE(joined.ok());
  EXPECT_TRUE(Has(joined.error(), "must be mounted")) << joined.error().message;
  EXPECT_FALSE(stdfs::exists(options_.file));
}

TEST_F(ClusterJoinTest, SaysWhatMayBeJoined) {
  for (const char* address : {"http://127.0.0.1:2379", "127.0.0.1", "etcd://", ""}) {
    auto joined = JoinCluster(options_, address);
    ASSERT_FALSE(joined.ok()) << address;
    EXPECT_EQ(joined.error().code, ErrorCode::kInvalidArgument) << address;
    EXPECT_TRUE(Has(joined.error(), "is no address to join: give etcd://")) << joined.error().message;
  }
  EXPECT_FALSE(stdfs::exists(options_.file));
}

TEST_F(ClusterJoinTest, SaysThatTheDirectoryIsAnothersBeforeItWritesAnything) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  MakeDirectory(std::string(32, '1'));
  auto joined = Join();
  ASSERT_FALSE(joined.ok());
  EXPECT_TRUE(Has(joined.error(), "belongs to filesystem " + std::string(32, '1'))) << joined.error().message;
  EXPECT_FALSE(stdfs::exists(options_.file));
  options_.config.data = folder_ + "/not-there-yet";
  joined = Join();
  EXPECT_TRUE(joined.ok()) << joined.error().message;
  EXPECT_TRUE(stdfs::exists(options_.file));
  EXPECT_FALSE(stdfs::exists(options_.config.data));
}

// The daemon runs as that user. Its mount looks at the directory.
TEST_F(ClusterJoinTest, TakesADirectoryThatBelongsToAnotherUser) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  const std::string& data = options_.config.data;
  MakeDirectory(filesystem_);
  if (geteuid() == 0) {
    constexpr uid_t kAnother = 12345;
    ASSERT_EQ(chown((data + "/format").c_str(), kAnother, kAnother), 0);
  } else {
    ASSERT_EQ(chmod((data + "/LOCK").c_str(), 0), 0);
  }
  auto opened = DataDirectory::Open({data, false, "testing"});
  ASSERT_FALSE(opened.ok());
  ASSERT_EQ(opened.error().code, ErrorCode::kPermission) << opened.error().message;
  auto joined = Join();
  EXPECT_TRUE(joined.ok()) << joined.error().message;
  EXPECT_TRUE(stdfs::exists(options_.file));
}

}  // namespace
}  // namespace cairnfs::daemon
