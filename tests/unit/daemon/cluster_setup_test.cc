#include "daemon/cluster_setup.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/hex.h"
#include "cluster_setup_fixture.h"
#include "daemon/cluster_store.h"
#include "daemon/cluster_volume.h"
#include "daemon/node_usage.h"
#include "daemon/storage.h"
#include "kv/engine.h"
#include "kv/hosted_store.h"
#include "kv/local_store.h"
#include "kvnet/kv_service.h"

namespace cairnfs::daemon {
namespace {

namespace stdfs = std::filesystem;

// The host that serves the metadata itself: all of init can run here. Port 0 is never listened on by init.
class ClusterSetupTest : public ClusterSetupFixture {};

TEST_F(ClusterSetupTest, InitMakesAFilesystemAndAConfiguration) {
  auto made = InitCluster(options_);
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made->join_address, "127.0.0.1:7402");
  Config config;
  ASSERT_TRUE(ReadConfigFile(options_.file, config).ok());
  EXPECT_EQ(config.data, folder_ + "/data");
  EXPECT_EQ(config.serve_metadata, "127.0.0.1:7402");
  EXPECT_EQ(config.listen, "127.0.0.1:7401");
  EXPECT_EQ(config.copies, 3U);
  EXPECT_EQ(config.trusted_network, std::vector<std::string>{"127.0.0.0/8"});

  auto directory = DataDirectory::Open({config.data, false, "testing"});
  ASSERT_TRUE(directory.ok()) << directory.error().message;
  EXPECT_FALSE((*directory)->is_new());
  EXPECT_EQ((*directory)->filesystem(), made->filesystem);
  auto store = ClusterStore::Open(directory->get(), config, ClusterStore::Serve::kNo);
  ASSERT_TRUE(store.ok()) << store.error().message;
  auto identity = ReadCluster((*store)->store());
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(ToHex(identity->header.uuid), made->filesystem);
  EXPECT_TRUE(CheckAgreement(identity->settings, config).ok());
  config.copies = 2;
  EXPECT_TRUE(
      Has(CheckAgreement(identity->settings, config).error(), "copies = 2 here, but the cluster was made with 3"));
}

TEST_F(ClusterSetupTest, InitMakesNothingTwice) {
  ASSERT_TRUE(InitCluster(options_).ok());
  EXPECT_TRUE(Has(InitCluster(options_).error(), "there is a configuration"));
  options_.overwrite = true;
  auto again = InitCluster(options_);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, ErrorCode::kAlreadyExists);
  EXPECT_TRUE(Has(again.error(), "already: for a new one give an empty directory with --data"))
      << again.error().message;
}

// Of the host that serves the metadata, and of one that keeps it elsewhere.
class InitDataTest : public ClusterSetupTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    ClusterSetupTest::SetUp();
    engine_ = kv::OpenMemoryEngine();
    auto store = kv::HostedStore::Open(*engine_);
    ASSERT_TRUE(store.ok());
    store_ = *std::move(store);
    auto server = kvnet::KvServer::Start(*store_, "127.0.0.1:0");
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = *std::move(server);
    if (!GetParam()) options_.config.metadata = "node:" + server_->address();
  }
  // A data directory of this filesystem; empty: of a host alone, with so many inodes, one of which is the root.
  void MakeData(const std::string& filesystem, uint64_t inodes) {
    auto directory = DataDirectory::Open({options_.config.data, true, "testing"});
    ASSERT_TRUE(directory.ok()) << directory.error().message;
    if (!filesystem.empty()) {
      ASSERT_TRUE((*directory)->JoinFilesystem(filesystem).ok());
    }
    {
      auto storage = Storage::Open(**directory, options_.config);
      ASSERT_TRUE(storage.ok()) << storage.error().message;
      auto kv = kv::LocalKvStore::Open((*storage)->engine());
      ASSERT_TRUE(kv.ok());
      kv::Transaction made;
      for (uint64_t i = 1; i <= inodes; ++i) made.Put(meta::InodeKey(InodeId{i}), meta::InodeRecord().Encode());
      ASSERT_TRUE((*kv)->Commit({}, made).ok());
      ASSERT_TRUE((*kv)->Sync({}).ok());
      ASSERT_TRUE((*storage)->OpenChunks(Storage::Purpose::kMount).ok());
    }
    ASSERT_TRUE((*directory)->FinishMaking().ok());
    (*directory)->lock().MarkClean();
  }
  // The directory belongs to `filesystem` as before, and nothing was made anywhere.
  void ExpectNothingChanged(const std::string& filesystem) {
    EXPECT_FALSE(stdfs::exists(options_.file));
    auto directory = DataDirectory::Open({options_.config.data, false, "testing"});
    ASSERT_TRUE(directory.ok()) << directory.error().message;
    EXPECT_EQ((*directory)->filesystem(), filesystem);
    EXPECT_EQ((*directory)->lock().previous(), "");
    EXPECT_FALSE(stdfs::exists((*directory)->shared_path()));
    auto all = store_->Range({}, "", "\xff", 0);
    ASSERT_TRUE(all.ok());
    EXPECT_TRUE(all->entries.empty());
  }

  std::unique_ptr<kv::KvEngine> engine_;
  std::unique_ptr<kv::HostedStore> store_;
  std::unique_ptr<kvnet::KvServer> server_;
};
INSTANTIATE_TEST_SUITE_P(Metadata, InitDataTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Here" : "Elsewhere"; });

TEST_P(InitDataTest, RefusesTheDirectoryOfAnotherCluster) {
  const std::string other(32, '1');
  MakeData(other, 0);
  auto made = InitCluster(options_);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kAlreadyExists);
  EXPECT_TRUE(Has(made.error(), "belongs to filesystem " + other + " already")) << made.error().message;
  EXPECT_TRUE(Has(made.error(), "give an empty directory with --data")) << made.error().message;
  ExpectNothingChanged(other);
}

TEST_P(InitDataTest, RefusesADamagedHostAlone) {
  MakeData("", 2);  // without a header
  auto made = InitCluster(options_);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(Has(made.error(), "has no filesystem header")) << made.error().message;
  EXPECT_FALSE(stdfs::exists(options_.file));
  auto directory = DataDirectory::Open({options_.config.data, false, "testing"});
  ASSERT_TRUE(directory.ok()) << directory.error().message;
  EXPECT_EQ((*directory)->filesystem(), "");
}

TEST_P(InitDataTest, RefusesADirectoryInUse) {
  MakeData("", 1);
  {
    auto holder = DataDirectory::Open({options_.config.data, false, "testing"});
    ASSERT_TRUE(holder.ok()) << holder.error().message;
    auto made = InitCluster(options_);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, ErrorCode::kBusy) << made.error().message;
  }
  ExpectNothingChanged("");
}

TEST_P(InitDataTest, TakesThatOfAHostAloneWithoutFiles) {
  MakeData("", 1);
  auto made = InitCluster(options_);
  EXPECT_TRUE(made.ok()) << made.error().message;
  EXPECT_TRUE(stdfs::exists(options_.file));
}

TEST_F(ClusterSetupTest, InitSaysThatTheStoreHoldsTheFilesystemOfTheDirectory) {
  auto engine = kv::OpenMemoryEngine();
  auto store = kv::HostedStore::Open(*engine);
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE(MakeOrReadCluster(**store, options_.config).ok());
  auto server = kvnet::KvServer::Start(**store, "127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.error().message;
  options_.config.metadata = "node:" + (*server)->address();
  auto made = InitCluster(options_);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kAlreadyExists);
  EXPECT_TRUE(made.error().message.starts_with("there is a filesystem at")) << made.error().message;
}

// So nobody else can end such an init, and it may be called again.
TEST_F(ClusterSetupTest, WithCertificatesTheFilesystemElsewhereHasTheIdOfTheDirectory) {
  auto engine = kv::OpenMemoryEngine();
  auto store = kv::HostedStore::Open(*engine);
  ASSERT_TRUE(store.ok());
  auto server = kvnet::KvServer::Start(**store, "127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.error().message;
  options_.config.metadata = "node:" + (*server)->address();
  options_.config.trusted_network.clear();
  auto made = InitCluster(options_);
  ASSERT_TRUE(made.ok()) << made.error().message;
  const auto uuid = DataDirectory::ReadUuid(options_.config.data);
  ASSERT_TRUE(uuid.ok());
  EXPECT_EQ(made->filesystem, *uuid);
  auto identity = ReadCluster(**store);
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_FALSE(identity->settings_were_changed);
  // As when it was killed before the configuration was written.
  stdfs::remove(options_.file);
  made = InitCluster(options_);
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made->filesystem, *uuid);
  // From another directory it is another host's.
  options_.config.data = folder_ + "/other";
  options_.file = folder_ + "/other.toml";
  made = InitCluster(options_);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kAlreadyExists);
  EXPECT_FALSE(stdfs::exists(options_.config.data));
}

TEST_F(ClusterSetupTest, SharedMetadataThatIsGoneIsDamage) {
  ASSERT_TRUE(InitCluster(options_).ok());
  Config config;
  ASSERT_TRUE(ReadConfigFile(options_.file, config).ok());
  auto directory = DataDirectory::Open({config.data, false, "testing"});
  ASSERT_TRUE(directory.ok()) << directory.error().message;
  for (const auto& entry : stdfs::directory_iterator((*directory)->shared_path())) stdfs::remove_all(entry.path());
  auto store = ClusterStore::Open(directory->get(), config, ClusterStore::Serve::kNo);
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(Has(store.error(), "restore the data directory from a copy")) << store.error().message;
}

TEST_F(ClusterSetupTest, SharedMetadataThatWasNeverMadeIsMade) {
  {
    auto directory = DataDirectory::Open({options_.config.data, true, "testing"});
    ASSERT_TRUE(directory.ok()) << directory.error().message;
    ASSERT_TRUE((*directory)->FinishMaking().ok());
    stdfs::create_directory((*directory)->shared_path());  // as a crash leaves it
  }
  options_.config.serve_metadata = "127.0.0.1:7402";
  auto directory = DataDirectory::Open({options_.config.data, false, "testing"});
  ASSERT_TRUE(directory.ok()) << directory.error().message;
  auto store = ClusterStore::Open(directory->get(), options_.config, ClusterStore::Serve::kNo);
  EXPECT_TRUE(store.ok()) << store.error().message;
}

TEST_F(ClusterSetupTest, RefusesAnUntrustedAddressBeforeItMakesAnything) {
  options_.config.trusted_network = {"10.0.0.0/8"};
  EXPECT_TRUE(Has(InitCluster(options_).error(), "does not lie in trusted_network"));
  EXPECT_FALSE(stdfs::exists(options_.config.data));
  EXPECT_FALSE(stdfs::exists(options_.file));
}

// 192.0.2.0/24 is for documentation, and no host's.
TEST_F(ClusterSetupTest, InitRefusesAnAddressOfAnotherHostBeforeItMakesAnything) {
  options_.config.trusted_network = {"127.0.0.0/8", "192.0.2.0/24"};
  options_.config.trust_public_network = true;
  options_.config.serve_metadata = "192.0.2.1:7402";
  auto made = InitCluster(options_);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(Has(made.error(), "serve_metadata = \"192.0.2.1:7402\" is no address of this host"))
      << made.error().message;
  options_.config.serve_metadata.clear();
  options_.config.listen = "192.0.2.1:7401";
  made = InitCluster(options_);
  ASSERT_FALSE(made.ok());
  EXPECT_TRUE(Has(made.error(), "listen = \"192.0.2.1:7401\" is no address of this host")) << made.error().message;
  EXPECT_FALSE(stdfs::exists(options_.config.data));
  EXPECT_FALSE(stdfs::exists(options_.file));
}

TEST_F(ClusterSetupTest, InitRefusesToAdvertiseWhatLeadsOthersNowhere) {
  auto refuses = [&](const std::string& advertise, const std::string& why) {
    options_.config.advertise = advertise;
    auto made = InitCluster(options_);
    ASSERT_FALSE(made.ok()) << advertise;
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(Has(made.error(), why)) << made.error().message;
    EXPECT_FALSE(stdfs::exists(options_.file));
  };
  refuses("no-such-host.invalid:7401", "advertise = \"no-such-host.invalid:7401\": cannot resolve");
  refuses("0.0.0.0:7401", "leads other hosts nowhere");
  refuses("[::]:7401", "leads other hosts nowhere");
}

// Each of them would be written and then refused by the next mount.
TEST_F(ClusterSetupTest, RefusesTextsThatNoConfigurationHolds) {
  for (const char* name : {"two\nlines", "tab\t", "\x7f", "latin\xe4", "cut\xc3", "long\xe0\x80\x80",
                           "half\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    options_.config.node_name = name;
    auto made = InitCluster(options_);
    ASSERT_FALSE(made.ok()) << name;
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(Has(made.error(), "node_name holds a control character or is no UTF-8")) << made.error().message;
  }
  options_.config.node_name = "node1";
  options_.config.failure_domain = "rack\r1";
  EXPECT_TRUE(Has(InitCluster(options_).error(), "failure_domain holds"));
  EXPECT_FALSE(stdfs::exists(options_.config.data));
  EXPECT_FALSE(stdfs::exists(options_.file));
}

TEST_F(ClusterSetupTest, WritesQuotesAndLettersOfAnyScript) {
  const std::string name = "n\"o\\d\u00e9 \u7bc0\U0001f4be";
  options_.config.node_name = name;
  ASSERT_TRUE(InitCluster(options_).ok());
  Config config;
  auto read = ReadConfigFile(options_.file, config);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(config.node_name, name);
}

TEST_F(ClusterSetupTest, SaysThatWhatAnswersServesNoMetadata) {
  grpc::CallbackGenericService none;  // answers every call with gRPC's UNIMPLEMENTED
  grpc::ServerBuilder builder;
  int port = 0;
  builder.RegisterCallbackGenericService(&none);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  const auto server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const std::string address = "127.0.0.1:" + std::to_string(port);
  auto expect_refused = [&](const auto& result, std::string_view why) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(Has(result.error(), why)) << result.error().message;
  };
  auto mount = [&] {
    auto directory = DataDirectory::Open({options_.config.data, true, "testing"});
    EXPECT_TRUE(directory.ok());
    return ClusterVolume::Open(**directory, options_.config);
  };
  const std::string no_node = "serves no metadata: give the serve_metadata address";
  const std::string no_etcd = "is no etcd: a host that serves the metadata itself is named HOST:PORT";
  expect_refused(JoinCluster(options_, address), no_node);
  expect_refused(JoinCluster(options_, "etcd://" + address), no_etcd);
  options_.config.metadata = "node:" + address;
  expect_refused(InitCluster(options_), no_node);
  expect_refused(mount(), no_node);
  options_.config.metadata = "etcd://" + address;
  expect_refused(InitCluster(options_), no_etcd);
  expect_refused(mount(), no_etcd);
  EXPECT_FALSE(stdfs::exists(options_.file));
}

// What answers is right, and this program is old: that is not taken for a wrong address.
TEST_F(ClusterSetupTest, SaysThatTheFilesystemIsOfANewerFormat) {
  auto engine = kv::OpenMemoryEngine();
  auto store = kv::HostedStore::Open(*engine);
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE(MakeOrReadCluster(**store, options_.config).ok());
  meta::FilesystemHeader header = *meta::FilesystemHeader::Decode((*(*store)->Get({}, meta::HeaderKey()))->value);
  header.format_version = meta::FilesystemHeader::kFormatVersion + 1;
  ASSERT_TRUE((*store)->Commit({}, kv::Transaction().Put(meta::HeaderKey(), header.Encode())).ok());
  auto server = kvnet::KvServer::Start(**store, "127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.error().message;
  auto expect_refused = [&](const Result<SetupResult>& result) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kNotSupported);
    EXPECT_TRUE(Has(result.error(), "use a newer program")) << result.error().message;
  };
  expect_refused(JoinCluster(options_, (*server)->address()));
  options_.config.metadata = "node:" + (*server)->address();
  expect_refused(InitCluster(options_));
}

// Also a host that says nothing, or was about to make the filesystem itself, takes what there is.
TEST_F(ClusterSetupTest, DedupIsAsTheFilesystemWasMade) {
  auto engine = kv::OpenMemoryEngine();
  auto store = kv::HostedStore::Open(*engine);
  ASSERT_TRUE(store.ok());
  for (const char* dedup : {"owner", "", "mount"}) {
    options_.config.dedup = dedup;
    auto identity = MakeOrReadCluster(**store, options_.config);
    ASSERT_TRUE(identity.ok()) << identity.error().message;
    EXPECT_EQ(identity->header.dedup, meta::Dedup::kOwner) << dedup;
  }
  auto server = kvnet::KvServer::Start(**store, "127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.error().message;
  options_.config.metadata = "node:" + (*server)->address();
  options_.config.serve_metadata.clear();
  auto directory = DataDirectory::Open({options_.config.data, true, "testing"});
  ASSERT_TRUE(directory.ok()) << directory.error().message;
  auto opened = ClusterVolume::Open(**directory, options_.config);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(Has(opened.error(), "was made with \"owner\", which cannot be changed")) << opened.error().message;
}

TEST_F(ClusterSetupTest, HostsThatStartAtOnceAgree) {
  auto engine = kv::OpenMemoryEngine();
  auto store = kv::HostedStore::Open(*engine);
  ASSERT_TRUE(store.ok());
  auto first = MakeOrReadCluster(**store, options_.config);
  auto second = MakeOrReadCluster(**store, options_.config);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->header.uuid, second->header.uuid);
  EXPECT_EQ(first->header.uuid.size(), 16U);
}

TEST_F(ClusterSetupTest, WhatAnInitThatWasCutShortLeftDoesNotCount) {
  auto engine = kv::OpenMemoryEngine();
  auto store = kv::HostedStore::Open(*engine);
  ASSERT_TRUE(store.ok());
  // An init puts its settings first, and then makes the filesystem.
  ClusterSettings left;
  left.copies = 2;
  left.min_replicas = 1;
  left.lease_ms = 1000;
  left.out_after_ms = 2000;
  left.trusted_network = {"10.0.0.0/8"};
  ASSERT_TRUE((*store)->Commit({}, kv::Transaction().Put(SettingsKey(), left.Encode())).ok());
  auto made = MakeOrReadCluster(**store, options_.config);
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_TRUE(CheckAgreement(made->settings, options_.config).ok());
  EXPECT_EQ(made->settings.min_replicas, 0U);
  EXPECT_EQ(made->settings.trusted_network, options_.config.trusted_network);
  EXPECT_FALSE(made->settings_were_changed);
  // Those of a filesystem that is there stay.
  Config other = options_.config;
  other.copies = 2;
  auto read = MakeOrReadCluster(**store, other);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->settings.copies, 3U);
  EXPECT_EQ(read->header.uuid, made->header.uuid);
}

TEST_F(ClusterSetupTest, ADirectoryKeepsToItsFilesystem) {
  const std::string one(32, '1'), other(32, '2');
  auto directory = DataDirectory::Open({options_.config.data, true, "testing"});
  ASSERT_TRUE(directory.ok());
  EXPECT_TRUE(Adopt(**directory, options_.config, one).ok());
  EXPECT_TRUE(Adopt(**directory, options_.config, one).ok());
  Config config = options_.config;
  config.metadata = "node:10.0.0.1:7402";
  EXPECT_TRUE(Has(Adopt(**directory, config, other).error(), "belongs to filesystem " + one));
}

TEST(NodeUsageTest, RefusesEveryTruncation) {
  NodeUsage usage;
  usage.told.set_available_bytes(7);
  usage.told.set_repair_phase("copying");
  usage.told.set_repair_bytes_per_second(1.5);
  const std::string text = EncodeUsage(usage);
  auto decoded = DecodeUsage(text);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->told.available_bytes(), 7U);
  EXPECT_EQ(decoded->told.repair_phase(), "copying");
  EXPECT_EQ(decoded->told.repair_bytes_per_second(), 1.5);
  for (size_t size = 0; size < text.size(); ++size) EXPECT_FALSE(DecodeUsage(text.substr(0, size)).ok());
}

}  // namespace
}  // namespace cairnfs::daemon
