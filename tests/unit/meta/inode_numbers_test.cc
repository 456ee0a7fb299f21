// Inode numbers of several hosts on one store, also after a backup of it was restored: none is used again.
#include <chrono>
#include <future>
#include <set>
#include <stop_token>

#include "../../support/eventually.h"
#include "fixture.h"
#include "kv/hosted_store.h"

namespace cairnfs::meta {
namespace {

class InodeNumbersTest : public testing::Test {
 protected:
  struct Host {
    Host(kv::KvStore& below, uint64_t inode_batch) : store(below) {
      NamespaceOptions options;
      options.remote = true;
      options.inode_batch = inode_batch;
      names = std::make_unique<Namespace>(store, nullptr, options);
    }
    InodeId Create(const std::string& name) {
      CreateParams params;
      params.mode = S_IFREG | 0644;
      auto attr = names->Create({}, kRootInode, name, params);
      EXPECT_OK(attr);
      return attr.ok() ? attr->inode : InodeId{};
    }
    InterferingStore store;
    std::unique_ptr<Namespace> names;
  };

  InodeNumbersTest() : engine_(kv::OpenMemoryEngine()), store_(*kv::HostedStore::Open(*engine_)) {
    FilesystemHeader header;
    header.uuid = "0123456789abcdef";
    EXPECT_OK(Host(*store_, 1).names->Format({}, header, 0, 0));
    backup_ = (*store_->Get({}, NextInodeKey()))->value;
  }
  // As it was when it was formatted: without these files.
  void Restore(const std::vector<std::pair<std::string, InodeId>>& files) {
    kv::Transaction transaction;
    transaction.Put(NextInodeKey(), backup_);
    for (const auto& [name, inode] : files) transaction.Delete(DentryKey(kRootInode, name)).Delete(InodeKey(inode));
    ASSERT_TRUE(store_->Commit({}, transaction).ok());
  }

  std::unique_ptr<kv::KvEngine> engine_;
  std::unique_ptr<kv::HostedStore> store_;
  std::string backup_;
};

TEST_F(InodeNumbersTest, NumbersThatAnotherHostHasUsedAreGivenUp) {
  Host first(*store_, 65536), second(*store_, 65536);
  Restore({{"lost", first.Create("lost")}});
  std::set<InodeId> others;
  for (int i = 0; i < 500; i++) others.insert(second.Create("other-" + std::to_string(i)));
  const uint64_t commits = first.store.commits;
  EXPECT_FALSE(others.contains(first.Create("file")));
  EXPECT_LE(first.store.commits - commits, 10U);
  EXPECT_FALSE(others.contains(first.Create("next")));
  for (InodeId inode : others) EXPECT_OK(second.names->GetAttr({}, inode));
}

TEST_F(InodeNumbersTest, WhoeverIsToldOfANumberIsToldOfTheOneThatTookItsPlace) {
  Host first(*store_, 65536), second(*store_, 65536);
  Restore({{"lost", first.Create("lost")}});
  for (int i = 0; i < 3; i++) second.Create("other-" + std::to_string(i));
  std::vector<InodeId> told;
  CreateParams params;
  params.mode = S_IFREG | 0644;
  auto attr = first.names->Create({}, kRootInode, "file", params, [&](InodeId inode) { told.push_back(inode); });
  ASSERT_TRUE(attr.ok()) << attr.error().message;
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told.back(), attr->inode);
}

TEST_F(InodeNumbersTest, AHostReservesNothingBelowWhatItReservedBefore) {
  Host host(*store_, 1);
  const InodeId one = host.Create("one"), two = host.Create("two");
  Restore({{"one", one}, {"two", two}});
  EXPECT_GT(host.Create("three").value, two.value);
}

TEST_F(InodeNumbersTest, AfterALossOthersReserveNothingThatThisHostMayHaveUsed) {
  Host first(*store_, 100), second(*store_, 100);
  const InodeId lost = first.Create("lost");
  Restore({{"lost", lost}});
  EXPECT_OK(first.names->ForgetReservedInodes({}));
  const InodeId others = second.Create("other");
  EXPECT_GE(others.value, lost.value + 100);
  EXPECT_GE(first.Create("file").value, others.value + 100);
  // Nothing went back: the record stays as it is.
  const uint64_t commits = first.store.commits;
  EXPECT_OK(first.names->ForgetReservedInodes({}));
  EXPECT_EQ(first.store.commits, commits);
}

// The store may be away: who is killed, or stops, goes although another waits for its numbers.
TEST_F(InodeNumbersTest, WhoeverWaitsForAnothersNumbersCanGiveUp) {
  Host host(*store_, 65536);
  std::promise<void> asks, answers;
  host.store.before_commit = [&] {
    asks.set_value();
    answers.get_future().wait();
  };
  auto first = std::async(std::launch::async, [&] { return host.Create("first"); });
  asks.get_future().wait();
  auto second = std::async(std::launch::async, [&] {
    std::stop_source killed;
    killed.request_stop();
    CreateParams params;
    params.mode = S_IFREG | 0644;
    return host.names->Create(Context(killed.get_token()), kRootInode, "second", params).ok();
  });
  EXPECT_TRUE(IsReadyWithin(second, std::chrono::seconds(20)));
  answers.set_value();
  EXPECT_NE(first.get().value, 0U);
  EXPECT_FALSE(second.get());
  EXPECT_NE(host.Create("third").value, 0U);
}

}  // namespace
}  // namespace cairnfs::meta
