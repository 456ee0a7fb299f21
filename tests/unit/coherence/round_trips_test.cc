// How many round trips to a shared store each operation takes: what docs/performance.md ("Several hosts") promises.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "coherence/delegated_store.h"
#include "fake_session.h"
#include "kv/engine.h"
#include "kv/hosted_store.h"
#include "meta/namespace.h"

namespace cairnfs::coherence {
namespace {

using namespace meta;  // what is counted

// Each call is a round trip.
class CountingStore final : public kv::KvStore {
 public:
  explicit CountingStore(kv::KvStore& inner) : inner_(inner) {}
  Result<std::optional<kv::KvEntry>> Get(const Context& context, std::string_view key) override {
    reads++;
    return inner_.Get(context, key);
  }
  Result<kv::KvRange> Range(const Context& context, std::string_view begin, std::string_view end,
                            size_t limit) override {
    reads++;
    return inner_.Range(context, begin, end, limit);
  }
  Result<kv::KvSnapshot> Read(const Context& context, std::span<const kv::KvSpan> spans) override {
    reads++;
    auto snapshot = inner_.Read(context, spans);
    if (after_read) after_read();
    return snapshot;
  }
  Result<uint64_t> Commit(const Context& context, const kv::Transaction& transaction) override {
    commits++;
    return inner_.Commit(context, transaction);
  }
  Status Sync(const Context& context) override { return inner_.Sync(context); }
  kv::KvLimits limits() const override { return inner_.limits(); }

  int reads = 0, commits = 0;
  std::function<void()> after_read;

 private:
  kv::KvStore& inner_;
};

struct Host {
  Host(kv::SharedKvStore& shared, int number)
      : session(shared, number, std::chrono::minutes(10)), counted(shared), delegated(shared, counted, session) {
    NamespaceOptions options;
    options.remote = true;
    names = std::make_unique<Namespace>(
        delegated, [](const auto&) { return Status(); }, options);
  }
  FakeSession session;
  CountingStore counted;
  DelegatedStore delegated;
  std::unique_ptr<Namespace> names;
};

class RoundTripsTest : public ::testing::Test {
 protected:
  RoundTripsTest() : engine_(kv::OpenMemoryEngine()), shared_(*kv::HostedStore::Open(*engine_)) {
    maker_ = std::make_unique<Host>(*shared_, 1);
    user_ = std::make_unique<Host>(*shared_, 2);
    FilesystemHeader header;
    header.uuid = "0123456789abcdef";
    EXPECT_TRUE(maker_->names->Format({}, header, 0, 0).ok());
    CreateParams params;
    params.mode = S_IFDIR | 0755;
    directory_ = maker_->names->Create({}, kRootInode, "d", params)->inode;
    // Inode numbers are reserved once in 65,536.
    EXPECT_TRUE(Create("first").ok());
  }

  Result<Attr> Create(const std::string& name) { return CreateIn(directory_, name); }
  Result<Attr> CreateIn(InodeId directory, const std::string& name) {
    CreateParams params;
    params.mode = S_IFREG | 0644;
    return user_->names->Create({}, directory, name, params);
  }
  // The round trips of the host that did not make the directory.
  template <typename Function>
  std::string Count(Function function) {
    user_->counted.reads = user_->counted.commits = 0;
    function();
    return std::to_string(user_->counted.reads) + " reads, " + std::to_string(user_->counted.commits) + " commits";
  }
  // What reads of the directory until this host holds it.
  void Hold() { Hold(directory_); }
  void Hold(InodeId directory) {
    const size_t before = user_->delegated.Stats().held;
    for (int i = 0; i < 100 && user_->delegated.Stats().held == before; i++) {
      static_cast<void>(user_->names->Lookup({}, directory, "absent" + std::to_string(i)));
    }
    ASSERT_EQ(user_->delegated.Stats().held, before + 1);
  }
  void ExpectBothSeeTheSame(InodeId directory, const std::string& name) {
    const auto here = user_->names->Lookup({}, directory, name), there = maker_->names->Lookup({}, directory, name);
    ASSERT_TRUE(here.ok() && there.ok()) << name;
    EXPECT_EQ(here->inode, there->inode) << name;
    EXPECT_EQ(here->mode, there->mode) << name;
    EXPECT_EQ(here->nlink, there->nlink) << name;
    EXPECT_EQ(here->mtime, there->mtime) << name;
    EXPECT_EQ(here->ctime, there->ctime) << name;
  }
  void LookUp(const std::string& name) { static_cast<void>(user_->names->Lookup({}, directory_, name)); }

  std::unique_ptr<kv::KvEngine> engine_;
  std::unique_ptr<kv::HostedStore> shared_;
  std::unique_ptr<Host> maker_, user_;
  InodeId directory_;
};

TEST_F(RoundTripsTest, WithoutADelegation) {
  EXPECT_EQ(Count([&] { LookUp("a"); }), "1 reads, 0 commits") << "look-up of what is not there";
  InodeId a;
  EXPECT_EQ(Count([&] { a = Create("a")->inode; }), "0 reads, 1 commits") << "create";
  EXPECT_EQ(Count([&] { LookUp("a"); }), "1 reads, 0 commits") << "look-up";
  EXPECT_EQ(Count([&] { EXPECT_TRUE(user_->names->GetAttr({}, a).ok()); }), "1 reads, 0 commits") << "stat";
  EXPECT_EQ(Count([&] { EXPECT_TRUE(user_->names->Unlink({}, directory_, "a").ok()); }), "0 reads, 1 commits")
      << "unlink";
  EXPECT_EQ(Count([&] { EXPECT_TRUE(user_->names->RemoveOrphans({}, {a}).ok()); }), "1 reads, 1 commits");
}

TEST_F(RoundTripsTest, UnderADelegation) {
  InodeId a = Create("a")->inode;
  Hold();
  LookUp("a");
  EXPECT_EQ(Count([&] { LookUp("a"); }), "0 reads, 0 commits") << "look-up";
  EXPECT_EQ(Count([&] { EXPECT_TRUE(user_->names->GetAttr({}, a).ok()); }), "0 reads, 0 commits") << "stat";
  EXPECT_EQ(Count([&] { LookUp("b"); }), "0 reads, 0 commits") << "look-up of what is not there";
  EXPECT_EQ(Count([&] { EXPECT_TRUE(Create("b").ok()); }), "0 reads, 1 commits") << "create";
  EXPECT_EQ(Count([&] { LookUp("b"); }), "0 reads, 0 commits") << "look-up of what was made here";
  EXPECT_EQ(Count([&] { EXPECT_TRUE(user_->names->Unlink({}, directory_, "a").ok()); }), "0 reads, 1 commits")
      << "unlink";
}

TEST_F(RoundTripsTest, RenamesUnderDelegations) {
  CreateParams params;
  params.mode = S_IFDIR | 0755;
  const InodeId other = maker_->names->Create({}, kRootInode, "other", params)->inode;
  for (const char* name : {"a", "b"}) ASSERT_TRUE(Create(name).ok());
  for (InodeId directory : {directory_, other, kRootInode}) Hold(directory);
  for (const char* name : {"a", "b"}) LookUp(name);
  static_cast<void>(user_->names->Lookup({}, kRootInode, "d"));
  static_cast<void>(user_->names->Lookup({}, kRootInode, "other"));
  auto rename = [&](const char* name, InodeId to) {
    RenameParams rename_params;
    rename_params.from_parent = directory_;
    rename_params.from_name = name;
    rename_params.to_parent = to;
    rename_params.to_name = std::string(name) + "2";
    EXPECT_TRUE(user_->names->Rename({}, rename_params).ok());
  };
  EXPECT_EQ(Count([&] { rename("a", directory_); }), "0 reads, 1 commits");
  EXPECT_EQ(Count([&] { rename("b", other); }), "0 reads, 1 commits");
  // What this host has changed it knows, the times of both directories among it.
  const std::vector<std::pair<InodeId, const char*>> names = {
      {kRootInode, "d"}, {kRootInode, "other"}, {directory_, "c"}, {other, "b"}, {other, "b2"}};
  for (const auto& name : names) {
    auto look_up = [&] { static_cast<void>(user_->names->Lookup({}, name.first, name.second)); };
    EXPECT_EQ(Count(look_up), "0 reads, 0 commits") << name.second;
  }
  for (const auto& [directory, name] : {std::pair(kRootInode, "d"), {kRootInode, "other"}, {other, "b2"}}) {
    ExpectBothSeeTheSame(directory, name);
  }
  EXPECT_FALSE(user_->names->Lookup({}, directory_, "b").ok());
  // What another host changes then is not what this one remembers.
  const InodeId moved = user_->names->Lookup({}, other, "b2")->inode;
  AttrChanges changes;
  changes.mode = 0600;
  ASSERT_TRUE(maker_->names->SetAttr({}, moved, changes).ok());
  ExpectBothSeeTheSame(other, "b2");
}

// A file that was moved is removed without a look at what this host knew of it before.
TEST_F(RoundTripsTest, RemovalsAfterAMoveUnderDelegations) {
  CreateParams params;
  params.mode = S_IFDIR | 0755;
  const InodeId other = maker_->names->Create({}, kRootInode, "other", params)->inode;
  const InodeId file = Create("a")->inode;
  for (InodeId directory : {directory_, other}) Hold(directory);
  LookUp("a");
  ASSERT_TRUE(user_->names->Rename({}, {directory_, "a", other, "b", RenameMode::kReplace}).ok());
  EXPECT_EQ(Count([&] { EXPECT_TRUE(user_->names->Lookup({}, other, "b").ok()); }), "0 reads, 0 commits") << "look-up";
  EXPECT_EQ(Count([&] { EXPECT_TRUE(user_->names->GetAttr({}, file).ok()); }), "0 reads, 0 commits") << "stat";
  EXPECT_EQ(Count([&] { EXPECT_TRUE(user_->names->Unlink({}, other, "b").ok()); }), "0 reads, 1 commits") << "unlink";
  EXPECT_FALSE(maker_->names->Lookup({}, other, "b").ok());
}

// Whoever must not wait is told what is in memory, and nothing is asked for on its behalf.
TEST_F(RoundTripsTest, WhoDoesNotWaitIsToldWhatIsInMemory) {
  const InodeId a = Create("a")->inode;
  auto ask = [&](const char* name) {
    std::optional<ErrorCode> refused;
    EXPECT_EQ(Count([&] {
                auto found = user_->names->Lookup(Context::Over(), directory_, name);
                if (!found.ok()) refused = found.error().code;
              }),
              "0 reads, 0 commits");
    return refused;
  };
  EXPECT_EQ(ask("a"), ErrorCode::kUnavailable) << "the directory is not held";
  Hold();
  EXPECT_EQ(ask("a"), ErrorCode::kUnavailable) << "nobody has read the file's own records yet";
  LookUp("a");
  EXPECT_EQ(ask("a"), std::nullopt);
  EXPECT_EQ(ask("b"), ErrorCode::kNotFound);
  EXPECT_EQ(Count([&] { EXPECT_TRUE(user_->names->GetAttr(Context::Over(), a).ok()); }), "0 reads, 0 commits");
  // Another host's change is not hidden by what was told before.
  AttrChanges changes;
  changes.mode = 0600;
  ASSERT_TRUE(maker_->names->SetAttr({}, a, changes).ok());
  EXPECT_EQ(ask("a"), ErrorCode::kUnavailable);
}

// A file that this host has seen was replaced by a directory, and while that is moved, another host moves what it is
// moved into below it: one of both must fail, or each would be below the other.
TEST_F(RoundTripsTest, AFileThatIsADirectoryByNowMovesAsOne) {
  CreateParams params;
  params.mode = S_IFDIR | 0755;
  for (int when = 1; when < 6; when++) {
    const std::string a = "a" + std::to_string(when), b = "b" + std::to_string(when);
    ASSERT_TRUE(CreateIn(kRootInode, a).ok());
    const InodeId into = maker_->names->Create({}, kRootInode, b, params)->inode;
    ASSERT_TRUE(maker_->names->Create({}, into, "x", params).ok());
    ASSERT_TRUE(user_->names->Lookup({}, kRootInode, a).ok());
    ASSERT_TRUE(user_->names->Lookup({}, into, "x").ok());
    ASSERT_TRUE(maker_->names->Unlink({}, kRootInode, a).ok());
    const InodeId directory = maker_->names->Create({}, kRootInode, a, params)->inode;
    bool moved_there = false;
    user_->counted.after_read = [&, reads = 0]() mutable {
      if (++reads != when) return;
      moved_there = maker_->names->Rename({}, {kRootInode, b, directory, b, RenameMode::kReplace}).ok();
    };
    const bool moved_here = user_->names->Rename({}, {kRootInode, a, into, "x", RenameMode::kReplace}).ok();
    user_->counted.after_read = nullptr;
    EXPECT_TRUE(moved_here || moved_there);
    EXPECT_FALSE(moved_here && moved_there) << "after read " << when;
  }
}

}  // namespace
}  // namespace cairnfs::coherence
