// The record that a rename leaves of the directory that it publishes.
#include "cairnfs/cairnfs.h"
#include "fixture.h"
#include "meta/commit_record.h"
#include "meta/policy_records.h"

namespace cairnfs::meta {
namespace {

const std::string kNode = std::string(kNodeIdBytes, 'n');

class CommitsTest : public NamespaceTest {
 protected:
  Result<RenameResult> Publish(std::string_view from, std::string_view to, bool was_written = false) {
    RenameParams params{kRootInode, std::string(from), kRootInode, std::string(to)};
    params.commit = CommitRecord{.at = {}, .node = kNode, .host = "host1", .uid = 7, .command = "python3"};
    params.was_written_below = [was_written](InodeId) { return was_written; };
    return names().Rename({}, params);
  }
  void PutPart(InodeId directory, std::string_view node, const CommitPart& part) {
    kv::Transaction transaction;
    transaction.Put(CommitPartKey(directory, node), part.Encode());
    ASSERT_TRUE(local_->Commit({}, transaction).ok());
  }
  std::optional<Commit> Read(InodeId directory) {
    auto commit = names().ReadCommit({}, directory);
    EXPECT_TRUE(commit.ok());
    return commit.ok() ? *commit : std::nullopt;
  }
};

TEST_F(CommitsTest, ARenameLeavesARecordOfTheDirectory) {
  const InodeId directory = MakeDirectory(kRootInode, "step-1.tmp");
  EXPECT_FALSE(Read(directory));
  const auto renamed = Publish("step-1.tmp", "step-1");
  ASSERT_TRUE(renamed.ok());
  EXPECT_EQ(renamed->committed, std::vector{directory});
  const auto commit = Read(directory);
  ASSERT_TRUE(commit);
  EXPECT_EQ(commit->record.host, "host1");
  EXPECT_EQ(commit->record.node, kNode);
  EXPECT_EQ(commit->record.uid, 7u);
  EXPECT_EQ(commit->record.command, "python3");
  EXPECT_EQ(commit->record.at, AttrNow(directory).ctime);
  EXPECT_FALSE(commit->sum.totals);
}

TEST_F(CommitsTest, AFileLeavesNone) {
  const InodeId file = MakeFile(kRootInode, "file");
  const auto renamed = Publish("file", "other");
  ASSERT_TRUE(renamed.ok());
  EXPECT_TRUE(renamed->committed.empty());
  EXPECT_FALSE(Read(file));
}

TEST_F(CommitsTest, AMoveCarriesTheRecordAlong) {
  const InodeId directory = MakeDirectory(kRootInode, "tmp");
  ASSERT_TRUE(Publish("tmp", "step-1").ok());
  const auto first = Read(directory);
  const auto moved = Publish("step-1", "archived-1");
  ASSERT_TRUE(moved.ok());
  EXPECT_TRUE(moved->committed.empty());
  EXPECT_EQ(Read(directory)->revision, first->revision);
}

TEST_F(CommitsTest, WhatWasWrittenToSinceIsCommittedAnew) {
  const InodeId directory = MakeDirectory(kRootInode, "tmp");
  ASSERT_TRUE(Publish("tmp", "step-1").ok());
  const auto first = Read(directory);
  PutPart(directory, kNode, {.commit_at = first->record.at, .first_write = {}, .written_bytes = 5});
  EXPECT_EQ(Read(directory)->sum.written_bytes, 5u);
  const auto again = Publish("step-1", "step-2", /*was_written=*/true);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->committed, std::vector{directory});
  const auto second = Read(directory);
  EXPECT_GT(second->revision, first->revision);
  EXPECT_EQ(second->sum.written_bytes, 0u) << "of the first commit";
}

TEST_F(CommitsTest, BothOfAnExchangeAreCommitted) {
  const InodeId first = MakeDirectory(kRootInode, "a"), second = MakeDirectory(kRootInode, "b");
  RenameParams params{kRootInode, "a", kRootInode, "b", RenameMode::kExchange};
  params.commit = CommitRecord{.at = {}, .node = kNode, .host = "", .uid = 0, .command = ""};
  const auto renamed = names().Rename({}, params);
  ASSERT_TRUE(renamed.ok());
  EXPECT_EQ(renamed->committed, (std::vector{first, second}));
  EXPECT_TRUE(Read(first) && Read(second));
}

TEST_F(CommitsTest, PartsOfHostsAreAddedUp) {
  const InodeId directory = MakeDirectory(kRootInode, "tmp");
  ASSERT_TRUE(Publish("tmp", "step-1").ok());
  const Timestamp at = Read(directory)->record.at;
  CommitPart own{.commit_at = at, .first_write = Timestamp{100, 0}, .written_bytes = 10, .new_bytes = 3};
  own.copied = Timestamp{200, 0};
  own.durable = Timestamp{150, 0};
  own.totals = CommitPart::Totals{.files = 2, .bytes = 30};
  CommitPart other{.commit_at = at, .first_write = Timestamp{90, 5}, .written_bytes = 20, .new_bytes = 4};
  other.write_ns = 7;
  PutPart(directory, kNode, own);
  PutPart(directory, std::string(kNodeIdBytes, 'm'), other);
  CommitPart sum = Read(directory)->sum;
  EXPECT_EQ(sum.first_write, (Timestamp{90, 5}));
  EXPECT_EQ(sum.written_bytes, 30u);
  EXPECT_EQ(sum.new_bytes, 7u);
  EXPECT_EQ(sum.write_ns, 7u);
  EXPECT_EQ(sum.durable, (Timestamp{150, 0}));
  ASSERT_TRUE(sum.totals);
  EXPECT_EQ(sum.totals->files, 2u);
  EXPECT_FALSE(sum.copied) << "the other host's are not there yet";
  other.copied = Timestamp{210, 0};
  PutPart(directory, std::string(kNodeIdBytes, 'm'), other);
  EXPECT_EQ(Read(directory)->sum.copied, (Timestamp{210, 0}));
}

TEST_F(CommitsTest, ARemovalEndsTheRecord) {
  const InodeId directory = MakeDirectory(kRootInode, "tmp");
  ASSERT_TRUE(Publish("tmp", "step-1").ok());
  PutPart(directory, kNode, {.commit_at = Read(directory)->record.at, .first_write = {}});
  ASSERT_TRUE(names().Rmdir({}, kRootInode, "step-1").ok());
  ASSERT_TRUE(names().RemoveOrphans({}, {directory}).ok());
  const auto left = local_->Range({}, CommitsPrefix(), kv::PrefixEnd(CommitsPrefix()), 0);
  ASSERT_TRUE(left.ok());
  EXPECT_TRUE(left->entries.empty());
}

class PoliciesKeysTest : public CommitsTest {
 protected:
  using Own = PolicyEffect::Own;
  static constexpr const char* kPolicy = CAIRNFS_XATTR_RETAIN;
  uint64_t RevisionOf(InodeId directory) {
    const auto entry = local_->Get({}, PolicyKey(directory));
    EXPECT_TRUE(entry.ok());
    return entry.ok() && *entry ? (*entry)->revision : 0;
  }
  Status SetPolicy(InodeId directory) {
    return names().SetXattr({}, directory, kPolicy, "p", Namespace::XattrMode::kSet, {}, {},
                            {.own = Own::kHasOne, .touches_above = true});
  }
};

TEST_F(PoliciesKeysTest, APolicyHasAKeyThatCommitsPutAnew) {
  const InodeId above = MakeDirectory(kRootInode, "above"), run = MakeDirectory(above, "run");
  ASSERT_TRUE(SetPolicy(above).ok());
  const uint64_t before = RevisionOf(above);
  ASSERT_TRUE(SetPolicy(run).ok());
  EXPECT_GT(RevisionOf(above), before);
  const uint64_t set = RevisionOf(run);
  ASSERT_GT(set, 0u);
  MakeDirectory(kRootInode, "tmp");
  MakeFile(run, "file");
  ASSERT_TRUE(Publish("tmp", "step-1").ok());
  EXPECT_EQ(RevisionOf(run), set) << "elsewhere";
  RenameParams params{kRootInode, "step-1", run, "step-1"};
  params.commit = CommitRecord{.at = {}, .node = kNode, .host = "", .uid = 0, .command = ""};
  ASSERT_TRUE(names().Rename({}, params).ok());
  const uint64_t moved = RevisionOf(run);
  EXPECT_GT(moved, set);
  RenameParams silent{run, "step-1", run, "step-2"};
  ASSERT_TRUE(names().Rename({}, silent).ok());
  EXPECT_EQ(RevisionOf(run), moved) << "one that is no commit";
}

// Who applies policies looks once more, for what a removal has left, and then takes the key away.
TEST_F(PoliciesKeysTest, TheEndOfAPolicyLeavesTheKey) {
  const InodeId run = MakeDirectory(kRootInode, "run"), other = MakeDirectory(kRootInode, "other");
  for (const InodeId directory : {run, other}) {
    ASSERT_TRUE(SetPolicy(directory).ok());
    kv::Transaction applied;
    applied.Put(AppliedKey(directory), AppliedRecord{}.Encode()).Put(AppliedReportKey(directory), "{}");
    ASSERT_TRUE(local_->Commit({}, applied).ok());
  }
  const uint64_t set = RevisionOf(other);
  ASSERT_TRUE(names().RemoveXattr({}, run, kPolicy, {.own = Own::kHasNone, .touches_above = true}).ok());
  AttrChanges changes;
  changes.uid = 77;
  ASSERT_TRUE(names().SetAttr({}, other, changes).ok());
  EXPECT_FALSE(names().GetXattr({}, other, kPolicy).ok()) << "the next owner has not given it";
  for (const InodeId directory : {run, other}) {
    EXPECT_GT(RevisionOf(directory), set) << "there is something to do";
    EXPECT_FALSE(*local_->Get({}, AppliedKey(directory)));
    EXPECT_FALSE(*local_->Get({}, AppliedReportKey(directory)));
  }
  const InodeId plain = MakeDirectory(kRootInode, "plain");
  ASSERT_TRUE(names().SetAttr({}, plain, changes).ok());
  EXPECT_EQ(RevisionOf(plain), 0u);
}

TEST_F(PoliciesKeysTest, ARemovalEndsThem) {
  const InodeId run = MakeDirectory(kRootInode, "run");
  ASSERT_TRUE(SetPolicy(run).ok());
  kv::Transaction applied;
  applied.Put(AppliedKey(run), AppliedRecord{}.Encode()).Put(AppliedReportKey(run), "{}");
  ASSERT_TRUE(local_->Commit({}, applied).ok());
  ASSERT_TRUE(names().Rmdir({}, kRootInode, "run").ok());
  ASSERT_TRUE(names().RemoveOrphans({}, {run}).ok());
  for (const std::string& key : {PolicyKey(run), AppliedKey(run), AppliedReportKey(run)}) {
    const auto entry = local_->Get({}, key);
    ASSERT_TRUE(entry.ok());
    EXPECT_FALSE(*entry);
  }
}

TEST(PolicyRecords, Encodings) {
  const AppliedRecord record{.revision = 7, .at = {1, 2}, .next = {3, 4}, .looks_in_vain = 5, .host = "h"};
  const std::string bytes = record.Encode();
  const auto decoded = AppliedRecord::Decode(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->revision + decoded->looks_in_vain, 12u);
  EXPECT_EQ(decoded->at, record.at);
  EXPECT_EQ(decoded->next, record.next);
  EXPECT_EQ(decoded->host, "h");
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(AppliedRecord::Decode(bytes.substr(0, size)).ok());
  EXPECT_FALSE(AppliedRecord::Decode(bytes + "x").ok());
  EXPECT_EQ(InodeOfPolicyKey(PolicyKey(InodeId{9})), InodeId{9});
  EXPECT_EQ(InodeOfAppliedKey(AppliedKey(InodeId{9})), InodeId{9});
  EXPECT_FALSE(InodeOfPolicyKey(AppliedKey(InodeId{9})) || InodeOfAppliedKey(PolicyKey(InodeId{9})));
}

TEST(CommitRecord, Encodings) {
  const CommitRecord record{.at = {1, 2}, .node = kNode, .host = "h", .uid = 3, .command = "c"};
  const auto decoded = CommitRecord::Decode(record.Encode());
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->at, record.at);
  EXPECT_EQ(decoded->node + decoded->host + decoded->command, kNode + "hc");
  CommitPart part{.commit_at = {1, 2}, .first_write = Timestamp{3, 4}};
  part.totals = CommitPart::Totals{.files = 1, .bytes = 2};
  const auto never_decodes_cut = [](const std::string& bytes, auto decode) {
    for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(decode(bytes.substr(0, size)).ok()) << size;
  };
  never_decodes_cut(record.Encode(), [](const std::string& cut) { return CommitRecord::Decode(cut); });
  never_decodes_cut(part.Encode(), [](const std::string& cut) { return CommitPart::Decode(cut); });
  EXPECT_EQ(InodeOfCommitPartKey(CommitPartKey(InodeId{9}, kNode), kNode), InodeId{9});
  EXPECT_FALSE(InodeOfCommitPartKey(CommitKey(InodeId{9}), kNode));
  EXPECT_EQ(InodeOfCommitKey(CommitKey(InodeId{9})), InodeId{9});
  EXPECT_FALSE(InodeOfCommitKey(CommitPartKey(InodeId{9}, kNode)));
}

}  // namespace
}  // namespace cairnfs::meta
