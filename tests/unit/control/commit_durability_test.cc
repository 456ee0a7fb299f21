// A commit is done once the directory's new name is durable, whoever gave it that name.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "../fs/fixture.h"
#include "control/client.h"
#include "control/rank_gate_records.h"
#include "control/service.h"
#include "fs/attributes.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "kv/hosted_store.h"
#include "only_rank.h"

namespace cairnfs::control {
namespace {

// A host alone, whose directory "tmp" was renamed to "final" by a rank that was killed before that was durable; and the
// disk is full.
class CommitDurabilityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(folder_), nullptr);
    auto store = kv::HostedStore::Open(*gate_engine_);
    ASSERT_TRUE(store.ok());
    store_ = *std::move(store);
    auto lease = [](const Context&) -> Result<kv::LeaseId> { return kv::LeaseId{0}; };
    gate_ = std::make_unique<RankGate>(RankGate::Options{*store_, *store_, lease, "host"});
    Service::Options options;
    options.socket_path = std::string(folder_) + "/control.sock";
    options.gate = gate_.get();
    auto service = Service::Start(options, *world_.fs);
    ASSERT_TRUE(service.ok()) << service.error().message;
    service_ = *std::move(service);

    fs::SetAttrRequest open_to_all;
    open_to_all.mode = 0777;
    auto set = fs::World::Await<meta::Attr>(
        [&](fs::Done<meta::Attr> done) { world_.fs->attributes().SetAttr(kRootInode, open_to_all, std::move(done)); });
    ASSERT_TRUE(set.ok());
    auto made = world_.fs->names().MakeNode({}, kRootInode, "tmp", fs::WithMode(S_IFDIR | 0755));
    ASSERT_TRUE(made.ok());
    directory_ = made->inode;
    ASSERT_TRUE(
        fs::World::Await<void>([&](fs::Done<void> done) { world_.fs->maintenance().Sync(std::move(done)); }).ok());
    world_.engine->full = true;
    ASSERT_TRUE(world_.names->Rename({}, {kRootInode, "tmp", kRootInode, "final"}).ok());
  }
  void TearDown() override {
    world_.engine->full = false;
    service_.reset();
    gate_.reset();
    std::filesystem::remove_all(folder_);
  }

  Status Commit() {
    return Client(std::string(folder_) + "/control.sock").Commit(CallOfTheOnlyRank(directory_), [this]() -> Status {
      was_asked_ = true;
      return {};
    });
  }
  void ExpectThatItIsDoneOnceItIsDurable() {
    EXPECT_FALSE(Commit().ok());
    world_.engine->full = false;
    Status status = Commit();
    EXPECT_TRUE(status.ok()) << status.error().message;
    EXPECT_FALSE(was_asked_);
  }

  char folder_[32] = "/tmp/cairnfs-commit-XXXXXX";
  fs::World world_;
  std::unique_ptr<kv::KvEngine> gate_engine_ = kv::OpenMemoryEngine();
  std::unique_ptr<kv::HostedStore> store_;
  std::unique_ptr<RankGate> gate_;
  std::unique_ptr<Service> service_;
  InodeId directory_;
  bool was_asked_ = false;
};

TEST_F(CommitDurabilityTest, OfARankThatComesLater) { ExpectThatItIsDoneOnceItIsDurable(); }

TEST_F(CommitDurabilityTest, OfARankThatTakesOver) {
  GateState renaming;
  renaming.try_id = 5;
  renaming.ranks = 1;
  renaming.phase = GatePhase::kRenaming;
  renaming.final_parent = kRootInode;
  renaming.final_name = "final";
  kv::Transaction transaction;
  ASSERT_TRUE(store_->Commit({}, transaction.Put(GateStateKey(directory_), renaming.Encode())).ok());
  ExpectThatItIsDoneOnceItIsDurable();
}

}  // namespace
}  // namespace cairnfs::control
