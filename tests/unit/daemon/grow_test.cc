// A host alone with files becomes the first of a cluster.
#include "daemon/grow.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>

#include "base/hex.h"
#include "chunking/digest.h"
#include "cluster/holder_lists.h"
#include "cluster_setup_fixture.h"
#include "daemon/cluster_store.h"
#include "daemon/storage.h"
#include "daemon/volume.h"
#include "kv/hosted_store.h"
#include "kv/local_store.h"
#include "kvnet/kv_service.h"
#include "meta/load.h"
#include "meta/ticket_records.h"

namespace cairnfs::daemon {
namespace {

namespace stdfs = std::filesystem;

// Names that go to the host itself, and to a store elsewhere.
class GrowTest : public ClusterSetupFixture, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    ClusterSetupFixture::SetUp();
    engine_ = kv::OpenMemoryEngine();
    store_ = std::move(*kv::HostedStore::Open(*engine_));
    server_ = std::move(*kvnet::KvServer::Start(*store_, "127.0.0.1:0"));
    if (!IsHere()) options_.config.metadata = "node:" + server_->address();
    MakeAlone();
  }
  bool IsHere() const { return GetParam(); }

  std::unique_ptr<DataDirectory> OpenDirectory(bool create = false) {
    auto directory = DataDirectory::Open({options_.config.data, create, "testing"});
    EXPECT_TRUE(directory.ok()) << directory.error().message;
    return *std::move(directory);
  }

  void MakeAlone() {
    const auto directory = OpenDirectory(true);
    Config alone = options_.config;
    alone.metadata.clear();
    {
      auto volume = Volume::Open(*directory, alone);
      ASSERT_TRUE(volume.ok()) << volume.error().message;
      const std::string bytes(5000, 'c');
      const ByteSpan span{reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
      chunk_ = chunking::ComputeDigest(span);
      const io::Slice slice = io::Slice{{}, span.data(), span.size()};
      ASSERT_TRUE((*volume)->chunks().Put(chunk_, {&slice, 1}).ok());
      ASSERT_TRUE((*volume)->chunks().Sync().ok());
    }
    uuid_ = directory->uuid();
    auto storage = Storage::Open(*directory, alone);
    ASSERT_TRUE(storage.ok());
    auto local = kv::LocalKvStore::Open((*storage)->engine());
    ASSERT_TRUE(local.ok());
    meta::Namespace names(**local, [&](const auto& writes) { return (*local)->CommitDurable(writes); });
    meta::CreateParams params;
    params.mode = S_IFDIR | 0755;
    folder_inode_ = names.Create({}, kRootInode, "folder", params)->inode;
    params.mode = S_IFREG | 0640;
    file_ = names.Create({}, folder_inode_, "file", params)->inode;
    linked_ = names.Create({}, kRootInode, "one name", params)->inode;
    ASSERT_TRUE(names.Link({}, linked_, folder_inode_, "another").ok());
    ASSERT_TRUE(names.SetXattr({}, file_, "user.a", "v", meta::Namespace::XattrMode::kSet).ok());
    ASSERT_TRUE((*local)->Sync({}).ok());
    directory->lock().MarkClean();
  }

  // What calls on the cluster's names see.
  template <typename Look>
  void WithCluster(const Look& look) {
    Config config;
    ASSERT_TRUE(ReadConfigFile(options_.file, config).ok());
    const auto directory = OpenDirectory();
    EXPECT_EQ(directory->filesystem(), uuid_);
    EXPECT_EQ(directory->growing(), "");
    auto opened = ClusterStore::Open(IsHere() ? directory.get() : nullptr, config, ClusterStore::Serve::kNo);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    look((*opened)->store());
  }

  std::unique_ptr<kv::KvEngine> engine_;
  std::unique_ptr<kv::HostedStore> store_;
  std::unique_ptr<kvnet::KvServer> server_;
  std::string uuid_;
  InodeId folder_inode_, file_, linked_;
  Digest chunk_;
};
INSTANTIATE_TEST_SUITE_P(Metadata, GrowTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Here" : "Elsewhere"; });

TEST_P(GrowTest, BringsNamesAndChunksAlong) {
  auto made = InitCluster(options_);
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made->filesystem, uuid_);
  WithCluster([&](kv::SharedKvStore& store) {
    auto names = MakeSharedNamespace(store);
    EXPECT_EQ(names->Lookup({}, folder_inode_, "file")->inode, file_);
    EXPECT_EQ(names->Lookup({}, folder_inode_, "another")->inode, linked_);
    EXPECT_EQ(names->GetAttr({}, linked_)->nlink, 2U);
    EXPECT_EQ(*names->GetXattr({}, file_, "user.a"), "v");
    EXPECT_EQ(meta::InodeRecord::Decode((*store.Get({}, meta::InodeKey(file_)))->value)->parent, folder_inode_);
    auto identity = ReadCluster(store);
    ASSERT_TRUE(identity.ok());
    EXPECT_TRUE(identity->settings_were_changed) << "chunks may lack copies";
    meta::CreateParams params;
    params.mode = S_IFREG | 0600;
    auto next = names->Create({}, kRootInode, "new", params);
    ASSERT_TRUE(next.ok());
    EXPECT_GT(next->inode.value, linked_.value);
  });
  const auto directory = OpenDirectory();
  auto storage = Storage::Open(*directory, options_.config);
  ASSERT_TRUE(storage.ok());
  auto holders = cluster::ReadHolders((*storage)->engine(), chunk_);
  ASSERT_TRUE(holders.ok() && holders->has_value());
  EXPECT_EQ(**holders, cluster::Holders{*cluster::NodeId::FromHex(uuid_)});
}

TEST_P(GrowTest, WaitsForDeferredCommits) {
  const auto put_ticket = [&](meta::TicketRecord::State state) {
    const auto directory = OpenDirectory();
    Config alone = options_.config;
    alone.metadata.clear();
    auto storage = Storage::Open(*directory, alone);
    ASSERT_TRUE(storage.ok());
    auto local = kv::LocalKvStore::Open((*storage)->engine());
    ASSERT_TRUE(local.ok());
    meta::TicketRecord record;
    record.state = state;
    ASSERT_TRUE((*local)->Commit({}, kv::Transaction().Put(meta::TicketKey(5), record.Encode())).ok());
    ASSERT_TRUE((*local)->Sync({}).ok());
    directory->lock().MarkClean();
  };
  put_ticket(meta::TicketRecord::State::kUnderWay);
  const auto refused = InitCluster(options_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kBusy);
  EXPECT_NE(refused.error().message.find("1 deferred commits are under way"), std::string::npos);
  put_ticket(meta::TicketRecord::State::kDone);
  EXPECT_TRUE(InitCluster(options_).ok());
}

TEST_P(GrowTest, IsFinishedByTheSameCall) {
  ASSERT_TRUE(InitCluster(options_).ok());
  stdfs::remove(options_.file);  // as a crash before it was written leaves it
  auto again = InitCluster(options_);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again->filesystem, uuid_);
  WithCluster([&](kv::SharedKvStore& store) {
    EXPECT_EQ(MakeSharedNamespace(store)->Lookup({}, folder_inode_, "file")->inode, file_);
  });
  stdfs::remove(options_.file);
  options_.config.copies = 2;
  auto other = InitCluster(options_);
  ASSERT_FALSE(other.ok()) << "with other settings it is another cluster";
  EXPECT_EQ(other.error().code, ErrorCode::kAlreadyExists) << other.error().message;
}

TEST_P(GrowTest, AHostWithAnotherDedupIsLeftAsItIs) {
  options_.config.dedup = "owner";
  auto made = InitCluster(options_);
  ASSERT_FALSE(made.ok());
  EXPECT_TRUE(Has(made.error(), "was made with \"mount\"")) << made.error().message;
  EXPECT_EQ(OpenDirectory()->filesystem(), "");
}

// It was cut short between the note in `format` and what the store says.
class SettleTest : public GrowTest {
 protected:
  void CutShort(bool is_decided) {
    const auto directory = OpenDirectory();
    ASSERT_TRUE(directory->NoteGrowing(options_.config.metadata).ok());
    meta::FilesystemHeader header;
    header.uuid = *FromHex(uuid_);
    meta::NamesLoader loader(*store_);
    ASSERT_TRUE(loader.Begin({}).ok());
    ASSERT_TRUE(loader.Put({}, meta::HeaderKey(), header.Encode()).ok());
    ASSERT_TRUE(loader.Flush({}).ok());
    if (is_decided) {
      ASSERT_TRUE(loader.Finish({}, {{SettingsKey(), SettingsOf(options_.config).Encode()}}).ok());
      return;
    }
    loader_ = std::make_unique<meta::NamesLoader>(std::move(loader));
  }
  std::unique_ptr<meta::NamesLoader> loader_;
};
INSTANTIATE_TEST_SUITE_P(Metadata, SettleTest, ::testing::Values(false));

TEST_P(SettleTest, WhatWasNotDecidedStaysAlone) {
  CutShort(false);
  {
    const auto directory = OpenDirectory();
    EXPECT_EQ(directory->growing(), options_.config.metadata);
    Config alone = options_.config;
    alone.metadata.clear();
    auto volume = Volume::Open(*directory, alone);
    ASSERT_TRUE(volume.ok()) << volume.error().message;
    EXPECT_EQ(directory->growing(), "");
  }
  auto late = loader_->Finish({}, {{SettingsKey(), SettingsOf(options_.config).Encode()}});
  ASSERT_FALSE(late.ok()) << "a transaction that was under way makes no cluster any more";
  EXPECT_EQ(late.error().code, ErrorCode::kConflict);
  EXPECT_TRUE(InitCluster(options_).ok());
}

TEST_P(SettleTest, WhatWasDecidedIsACluster) {
  CutShort(true);
  {
    const auto directory = OpenDirectory();
    Config alone = options_.config;
    alone.metadata.clear();
    auto volume = Volume::Open(*directory, alone);
    ASSERT_FALSE(volume.ok());
    EXPECT_EQ(volume.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(directory->filesystem(), uuid_);
  }
  auto made = InitCluster(options_);
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made->filesystem, uuid_);
}

TEST_P(SettleTest, AStoreThatDoesNotAnswerLeavesItOpen) {
  {
    const auto directory = OpenDirectory();
    ASSERT_TRUE(directory->NoteGrowing("node:127.0.0.1:1").ok());
  }
  const auto directory = OpenDirectory();
  Config alone = options_.config;
  alone.metadata.clear();
  auto volume = Volume::Open(*directory, alone);
  ASSERT_FALSE(volume.ok());
  EXPECT_EQ(volume.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(Has(volume.error(), "has to be asked whether they are there")) << volume.error().message;
  EXPECT_EQ(directory->growing(), "node:127.0.0.1:1");
}

}  // namespace
}  // namespace cairnfs::daemon
