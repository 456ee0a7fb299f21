// Quotas in the namespace: golden bytes pin the format, broken input never crashes a decoder; what is made falls under
// the quota of its directory, and no name lies in another one.
#include "meta/quota_records.h"

#include <gtest/gtest.h>

#include "base/coding.h"
#include "base/hex.h"
#include "fixture.h"

namespace cairnfs::meta {
namespace {

TEST(QuotaRecordsTest, GoldenBytes) {
  EXPECT_EQ(ToHex(QuotaRecord{{2, 3}, QuotaRecord::State::kTaking}.Encode()),
            "0102"
            "0200000000000000"
            "0300000000000000");
  EXPECT_EQ(ToHex(UsageRecord{InodeId{7}, {2, 1}}.Encode()),
            "01"
            "0700000000000000"
            "0200000000000000"
            "0100000000000000");
  EXPECT_EQ(ToHex(QuotaShare{{5, 4}}.Encode()),
            "01"
            "0500000000000000"
            "0400000000000000");
  EXPECT_EQ(ToHex(QuotaKey(InodeId{258})), "5755710000000000000102");
  EXPECT_EQ(ToHex(UsageKey(InodeId{258})), "5755750000000000000102");
  EXPECT_EQ(ToHex(QuotaShareKey(InodeId{258}, "n")), "57556800000000000001026e");
}

TEST(QuotaRecordsTest, KeysComeBack) {
  EXPECT_EQ(InodeOfQuotaKey(QuotaKey(InodeId{9})), InodeId{9});
  EXPECT_EQ(InodeOfUsageKey(UsageKey(InodeId{9})), InodeId{9});
  EXPECT_EQ(InodeOfQuotaKey(UsageKey(InodeId{9})), std::nullopt);
  EXPECT_EQ(InodeOfQuotaKey("WUq123"), std::nullopt);
  const auto share = DecodeQuotaShareKey(QuotaShareKey(InodeId{9}, std::string(kNodeIdBytes, 'n')));
  ASSERT_TRUE(share.has_value());
  EXPECT_EQ(share->directory, InodeId{9});
  EXPECT_EQ(share->node, std::string(kNodeIdBytes, 'n'));
  EXPECT_FALSE(DecodeQuotaShareKey(QuotaShareKey(InodeId{9}, "short")).has_value());
}

TEST(QuotaRecordsTest, BrokenInput) {
  const std::string quota = QuotaRecord{{2, 3}, QuotaRecord::State::kOn}.Encode();
  const std::string usage = UsageRecord{InodeId{7}, {2, 1}}.Encode(), share = QuotaShare{{5, 4}}.Encode();
  for (size_t size = 0; size < quota.size(); size++) EXPECT_FALSE(QuotaRecord::Decode(quota.substr(0, size)).ok());
  for (size_t size = 0; size < usage.size(); size++) EXPECT_FALSE(UsageRecord::Decode(usage.substr(0, size)).ok());
  for (size_t size = 0; size < share.size(); size++) EXPECT_FALSE(QuotaShare::Decode(share.substr(0, size)).ok());
  EXPECT_FALSE(QuotaRecord::Decode(quota + '\0').ok());
  EXPECT_FALSE(QuotaRecord::Decode("\1\3" + quota.substr(2)).ok()) << "an unknown state";
  EXPECT_FALSE(UsageRecord::Decode(UsageRecord{InodeId{0}, {}}.Encode()).ok());
}

// Before there were quotas nobody counted what was new.
TEST(QuotaRecordsTest, OldFileRecordsCountAsNew) {
  Encoder old;
  old.U8(1).U64(10).U64(8).Time({1, 2}).Time({3, 4}).LengthPrefixed("recipe");
  const auto record = FileRecord::Decode(old.Take());
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->unique_bytes, 8u);
  EXPECT_EQ(record->quota, InodeId{});
  EXPECT_EQ(record->recipe, "recipe");
  EXPECT_EQ(record->Encode()[0], '\1') << "programs that know no quotas read it";
  FileRecord more_than_there_is;
  more_than_there_is.quota = InodeId{7};
  EXPECT_TRUE(FileRecord::Decode(more_than_there_is.Encode()).ok());
  more_than_there_is.unique_bytes = 1;
  EXPECT_FALSE(FileRecord::Decode(more_than_there_is.Encode()).ok());
}

TEST(QuotaRecordsTest, InodesNameTheirQuota) {
  InodeRecord record;
  record.mode = S_IFREG | 0644;
  record.quota = InodeId{7};
  for (const InodeId parent : {InodeId{0}, InodeId{5}}) {
    record.parent = parent;
    const auto again = InodeRecord::Decode(record.Encode());
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->quota, InodeId{7});
    EXPECT_EQ(again->parent, parent);
  }
  record.mode = S_IFIFO | 0644;
  EXPECT_FALSE(InodeRecord::Decode(record.Encode()).ok()) << "only files and directories";
  record.mode = S_IFDIR | 0755;
  record.seal = SealState::kSealed;
  const auto sealed = InodeRecord::Decode(record.Encode());
  ASSERT_TRUE(sealed.ok());
  EXPECT_TRUE(sealed->seal == SealState::kSealed && sealed->quota == InodeId{7});
}

class QuotaNamesTest : public ::testing::Test {
 protected:
  QuotaNamesTest() {
    store_ = *kv::LocalKvStore::Open(*engine_);
    names_ = std::make_unique<Namespace>(
        *store_, [this](const std::vector<kv::KvWrite>& writes) { return store_->CommitDurable(writes); });
    FilesystemHeader header;
    header.uuid = std::string(16, 'u');
    EXPECT_TRUE(names_->Format({}, header, 0, 0).ok());
    run_ = Make(kRootInode, "run", S_IFDIR | 0755);
    other_ = Make(kRootInode, "other", S_IFDIR | 0755);
    kv::Transaction transaction;
    transaction.Put(QuotaKey(run_), QuotaRecord{}.Encode());
    EXPECT_TRUE(store_->Commit({}, transaction).ok());
    EXPECT_TRUE(names_->SetQuota({}, run_, run_).ok());
    names_->SetHasQuotas(true);
  }
  InodeId Make(InodeId parent, std::string_view name, uint32_t mode) {
    CreateParams params;
    params.mode = mode;
    auto made = names_->Create({}, parent, name, params);
    EXPECT_TRUE(made.ok());
    return made->inode;
  }
  ErrorCode RenameCode(InodeId from, std::string_view name, InodeId to, std::string_view to_name,
                       RenameMode mode = RenameMode::kReplace) {
    RenameParams params;
    params.from_parent = from;
    params.from_name = name;
    params.to_parent = to;
    params.to_name = to_name;
    params.mode = mode;
    auto renamed = names_->Rename({}, params);
    return renamed.ok() ? ErrorCode{} : renamed.error().code;
  }
  // And leaves its number in what lies below it.
  void RemoveQuota() {
    kv::Transaction transaction;
    transaction.Delete(QuotaKey(run_));
    EXPECT_TRUE(store_->Commit({}, transaction).ok());
  }
  bool Counts(InodeId inode) { return (*store_->Get({}, UsageKey(inode))).has_value(); }
  void Count(InodeId inode) {
    kv::Transaction transaction;
    transaction.Put(UsageKey(inode), UsageRecord{run_, {1, 1}}.Encode());
    EXPECT_TRUE(store_->Commit({}, transaction).ok());
  }

  std::unique_ptr<kv::KvEngine> engine_ = kv::OpenMemoryEngine();
  std::unique_ptr<kv::LocalKvStore> store_;
  std::unique_ptr<Namespace> names_;
  InodeId run_, other_;
};

TEST_F(QuotaNamesTest, WhatIsMadeFallsUnderIt) {
  const InodeId below = Make(run_, "below", S_IFDIR | 0755), file = Make(below, "file", S_IFREG | 0644);
  EXPECT_EQ(names_->GetAttr({}, below)->quota, run_);
  EXPECT_EQ(names_->GetAttr({}, file)->quota, run_);
  EXPECT_EQ(names_->GetAttr({}, Make(below, "fifo", S_IFIFO | 0644))->quota, InodeId{});
  EXPECT_EQ(names_->GetAttr({}, Make(other_, "file", S_IFREG | 0644))->quota, InodeId{});
}

TEST_F(QuotaNamesTest, NoNameLiesInAnotherQuota) {
  const InodeId file = Make(run_, "file", S_IFREG | 0644);
  Make(run_, "below", S_IFDIR | 0755);
  Make(other_, "there", S_IFREG | 0644);
  for (const char* name : {"file", "below"}) {
    EXPECT_EQ(RenameCode(run_, name, other_, "new"), ErrorCode::kOtherQuota);
  }
  EXPECT_EQ(RenameCode(other_, "there", run_, "new"), ErrorCode::kOtherQuota);
  EXPECT_EQ(RenameCode(other_, "there", run_, "file"), ErrorCode::kOtherQuota) << "also over what is there";
  EXPECT_EQ(RenameCode(run_, "file", other_, "there", RenameMode::kExchange), ErrorCode::kOtherQuota);
  EXPECT_EQ(RenameCode(run_, "file", run_, "renamed"), ErrorCode{});
  EXPECT_EQ(names_->Link({}, file, other_, "link").error().code, ErrorCode::kOtherQuota);
  EXPECT_TRUE(names_->Link({}, file, run_, "link").ok());
  EXPECT_EQ(RenameCode(kRootInode, "run", other_, "run"), ErrorCode{}) << "the directory goes with its quota";
}

// As where a walk was cut short.
TEST_F(QuotaNamesTest, ANumberWithoutAQuotaHoldsUpNoName) {
  const InodeId file = Make(run_, "file", S_IFREG | 0644);
  Make(other_, "there", S_IFREG | 0644);
  RemoveQuota();
  EXPECT_TRUE(names_->Link({}, file, other_, "link").ok());
  EXPECT_EQ(RenameCode(run_, "file", other_, "new"), ErrorCode{});
  EXPECT_EQ(RenameCode(other_, "there", run_, "new"), ErrorCode{});
}

TEST_F(QuotaNamesTest, WhatIsRemovedCountsNoMore) {
  const InodeId file = Make(run_, "file", S_IFREG | 0644);
  ASSERT_TRUE(names_->Link({}, file, run_, "link").ok());
  Count(file);
  ASSERT_TRUE(names_->Unlink({}, run_, "file").ok());
  EXPECT_TRUE(Counts(file)) << "it has a name left";
  ASSERT_TRUE(names_->Unlink({}, run_, "link").ok());
  EXPECT_FALSE(Counts(file));
  Count(file);  // published by somebody who has it open
  ASSERT_TRUE(names_->RemoveOrphans({}, {file}).ok());
  EXPECT_FALSE(Counts(file));
}

TEST_F(QuotaNamesTest, WhatLiesInTheTrashCountsNoMore) {
  const InodeId file = Make(run_, "file", S_IFREG | 0644);
  FileRecord content;
  content.size = content.allocated_bytes = 8;
  content.unique_bytes = 5;
  content.quota = run_;
  kv::Transaction transaction;
  transaction.Put(FileKey(file), content.Encode());
  transaction.writes.push_back(*UsageOf(file, content));
  ASSERT_TRUE(store_->Commit({}, transaction).ok());
  ASSERT_TRUE(names_->Unlink({}, run_, "file", TrashParams{.keep = std::chrono::hours(1)}).ok());
  EXPECT_FALSE(Counts(file));
  const auto trash = names_->ListTrash({}, "", 0);
  ASSERT_TRUE(trash.ok());
  ASSERT_EQ(trash->size(), 1u);
  RestoreParams restore{.entry = trash->front(), .to_parent = run_, .to_name = "file"};
  NamespaceOptions options;
  options.remote = true;
  Namespace among_hosts(*store_, nullptr, options);
  ASSERT_TRUE(among_hosts.Restore({}, restore).ok());
  const auto usage = store_->Get({}, UsageKey(file));
  ASSERT_TRUE(usage.ok() && usage->has_value());
  EXPECT_EQ(UsageRecord::Decode((*usage)->value)->bytes, (QuotaBytes{8, 5}));
  ASSERT_TRUE(names_->Unlink({}, run_, "file", TrashParams{.keep = std::chrono::hours(1)}).ok());
  restore = {.entry = names_->ListTrash({}, "", 0)->front(), .to_parent = other_, .to_name = "file"};
  ASSERT_TRUE(among_hosts.Restore({}, restore).ok());
  EXPECT_FALSE(Counts(file)) << "it falls under none there";
  EXPECT_EQ(names_->GetAttr({}, file)->quota, InodeId{});
  EXPECT_EQ(FileRecord::Decode((*store_->Get({}, FileKey(file)))->value)->quota, InodeId{});
  // A directory that has a quota lies under none itself.
  ASSERT_TRUE(names_->Rmdir({}, kRootInode, "run", TrashParams{.keep = std::chrono::hours(1)}).ok());
  restore = {.entry = names_->ListTrash({}, "", 0)->front(), .to_parent = kRootInode, .to_name = "run"};
  EXPECT_TRUE(names_->Restore({}, restore).ok());
}

// What a round publishes late lies below what was committed meanwhile.
TEST_F(QuotaNamesTest, WhatARoundPublishesAfterARestoreIsSeen) {
  const InodeId file = Make(run_, "file", S_IFREG | 0644);
  store_->BeginFrozen();
  ASSERT_TRUE(names_->Unlink({}, run_, "file", TrashParams{.keep = std::chrono::hours(1)}).ok());
  const RestoreParams restore{.entry = names_->ListTrash({}, "", 0)->front(), .to_parent = run_, .to_name = "file"};
  ASSERT_TRUE(names_->Restore({}, restore).ok());
  FileRecord content;
  content.size = content.allocated_bytes = content.unique_bytes = 8;
  content.quota = run_;
  store_->CommitLate({{FileKey(file), content.Encode(), 0}});
  ASSERT_TRUE(store_->FlushFrozen().ok());
  EXPECT_EQ(FileRecord::Decode((*store_->Get({}, FileKey(file)))->value)->size, 8u);
}

// What lies below it has the number of its quota.
TEST_F(QuotaNamesTest, ADirectoryOfTheTrashComesBackToWhereItsQuotaIsOrOnceThatIsOff) {
  const InodeId whole = Make(run_, "whole", S_IFDIR | 0755);
  Make(whole, "file", S_IFREG | 0644);
  ASSERT_TRUE(names_->Rmdir({}, run_, "whole", TrashParams{.keep = std::chrono::hours(1), .whole = true}).ok());
  RestoreParams restore{.entry = names_->ListTrash({}, "", 0)->front(), .to_parent = other_, .to_name = "whole"};
  EXPECT_EQ(names_->Restore({}, restore).error().code, ErrorCode::kOtherQuota);
  RemoveQuota();
  ASSERT_TRUE(names_->Restore({}, restore).ok());
  EXPECT_EQ(names_->GetAttr({}, whole)->quota, InodeId{});
  // An empty one goes anywhere.
  Make(run_, "empty", S_IFDIR | 0755);
  ASSERT_TRUE(names_->Rmdir({}, run_, "empty", TrashParams{.keep = std::chrono::hours(1)}).ok());
  restore = {.entry = names_->ListTrash({}, "", 0)->front(), .to_parent = other_, .to_name = "empty"};
  EXPECT_EQ(names_->Restore({}, restore)->quota, InodeId{});
}

// Also of one whose record does not name it, as where the command that set it was killed at once.
TEST_F(QuotaNamesTest, TheQuotaOfARemovedDirectoryGoes) {
  ASSERT_TRUE(names_->SetQuota({}, run_, {}).ok());
  ASSERT_TRUE(names_->Rmdir({}, kRootInode, "run").ok());
  ASSERT_TRUE(names_->RemoveOrphans({}, {run_}).ok());
  EXPECT_FALSE((*store_->Get({}, QuotaKey(run_))).has_value());
  EXPECT_EQ(names_->SetQuota({}, run_, run_).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cairnfs::meta
