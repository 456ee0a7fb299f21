// Files that appear whole: which names, what each process finds, on a host alone and among several. The process is the
// test's own, and others have numbers that nobody has.
#include "fs/atomic_files.h"

#include <unistd.h>

#include "cairnfs/cairnfs.h"
#include "cluster_fixture.h"
#include "fixture.h"

namespace cairnfs::fs {
namespace {

constexpr auto kSet = meta::Namespace::XattrMode::kSet;
constexpr std::string_view kFiles = CAIRNFS_XATTR_ATOMIC_FILES, kComplete = CAIRNFS_XATTR_ATOMIC_COMPLETE;
constexpr OpenFlags kNew{.write = true, .truncate = true};
constexpr uint32_t kOtherThread = 1 << 30;  // past the largest number of a thread

Caller Self() {
  Caller caller;
  caller.pid = static_cast<uint32_t>(gettid());
  return caller;
}

Caller Of(uint32_t thread) {
  Caller caller;
  caller.pid = thread;
  return caller;
}

Status SetRule(FileSystem& fs, InodeId directory, std::string_view value, std::string_view name = kFiles) {
  return fs.attributes().SetXattr({}, directory, name, value, kSet);
}

meta::CreateParams FileParams() {
  meta::CreateParams params;
  params.mode = S_IFREG | 0644;
  return params;
}

InodeId MakeDirectory(FileSystem& fs, InodeId parent, std::string_view name) {
  meta::CreateParams params;
  params.mode = S_IFDIR | 0755;
  return fs.names().MakeNode({}, parent, name, params)->inode;
}

Result<HandleId> Open(FileSystem& fs, InodeId inode, const OpenFlags& flags, const Caller& caller) {
  return World::Await<HandleId>(
      [&](Done<HandleId> done) { fs.atomic_files().Open(inode, flags, std::move(done), caller); });
}

Result<meta::Attr> LookUpSentBack(FileSystem& fs, const AtomicFiles::Opener& opener, InodeId directory,
                                  std::string_view name) {
  return World::Await<meta::Attr>(
      [&](const Done<meta::Attr>& done) { fs.atomic_files().LookUpSentBack(opener, directory, name, done); });
}

// open(2) with O_CREAT and O_TRUNC, as the kernel asks for it.
Result<FileSystem::Created> OpenByName(FileSystem& fs, InodeId directory, std::string_view name, const Caller& caller) {
  AtomicFiles& files = fs.atomic_files();
  const AtomicFiles::Opener opener{caller, {}};
  FileSystem::Created opened{};
  auto found = files.Lookup({}, caller.pid, directory, name);
  if (!found.ok()) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto made, files.Create(opener, directory, name, FileParams(), kNew));
    if (!made) return fs.open_files().Create({}, directory, name, FileParams(), kNew);
    opened.attr = *made;
  } else {
    const auto handle = Open(fs, found->inode, kNew, caller);
    if (handle.ok()) return FileSystem::Created{*found, *handle};
    if (handle.error().code != ErrorCode::kStale) return handle.error();
    EXPECT_TRUE(files.IsSentBack(caller.pid));
    CAIRNFS_ASSIGN_OR_RETURN(opened.attr, LookUpSentBack(fs, opener, directory, name));
    fs.names().Forget(found->inode, 1);
  }
  CAIRNFS_ASSIGN_OR_RETURN(opened.handle, Open(fs, opened.attr.inode, kNew, caller));
  EXPECT_FALSE(files.IsSentBack(caller.pid));
  return opened;
}

Status CloseAs(FileSystem& fs, const FileSystem::Created& file, const Caller& caller) {
  Status closed = World::Await<void>(
      [&](Done<void> done) { fs.atomic_files().Flush(file.attr.inode, {file.handle}, std::move(done), caller); });
  fs.atomic_files().Release(file.attr.inode, file.handle);
  fs.names().Forget(file.attr.inode, 1);
  return closed;
}

// What another process finds.
InodeId Found(FileSystem& fs, InodeId directory, std::string_view name) {
  auto found = fs.atomic_files().Lookup({}, kOtherThread, directory, name);
  if (!found.ok()) return {};
  fs.names().Forget(found->inode, 1);
  return found->inode;
}

// --- Which names.

TEST(AtomicRulesTest, TheNearestDirectoryThatHasSomeCounts) {
  World world;
  FileSystem& fs = *world.fs;
  const InodeId run = MakeDirectory(fs, kRootInode, "run"), step = MakeDirectory(fs, run, "step"),
                below = MakeDirectory(fs, step, "below"), plain = MakeDirectory(fs, kRootInode, "plain");
  EXPECT_FALSE(fs.atomic_files().IsAskedEachTime(below, "a.pt"));
  ASSERT_TRUE(SetRule(fs, run, "*.pt  latest\t.metadata").ok());
  for (const InodeId directory : {run, step, below}) {
    for (const char* name : {"a.pt", "latest", ".metadata"}) {
      EXPECT_TRUE(fs.atomic_files().IsAskedEachTime(directory, name)) << name;
    }
    for (const char* name : {"a.pt2", "Latest", "pt"}) {
      EXPECT_FALSE(fs.atomic_files().IsAskedEachTime(directory, name)) << name;
    }
  }
  EXPECT_FALSE(fs.atomic_files().IsAskedEachTime(plain, "a.pt"));
  ASSERT_TRUE(SetRule(fs, step, "*.index").ok());
  EXPECT_FALSE(fs.atomic_files().IsAskedEachTime(below, "a.pt"));
  EXPECT_TRUE(fs.atomic_files().IsAskedEachTime(below, "a.index"));
  ASSERT_TRUE(SetRule(fs, step, "*").ok());
  EXPECT_TRUE(fs.atomic_files().IsAskedEachTime(below, "any"));
  EXPECT_FALSE(fs.atomic_files().IsAskedEachTime(below, ".cairnfs-going-abcdefghijklmnop"));  // what retention removes
  ASSERT_TRUE(SetRule(fs, step, "").ok());
  EXPECT_FALSE(fs.atomic_files().IsAskedEachTime(below, "a.index"));
  ASSERT_TRUE(fs.attributes().RemoveXattr({}, step, kFiles).ok());
  // A rule of completeness alone takes no patterns away.
  ASSERT_TRUE(SetRule(fs, below, "1", kComplete).ok());
  EXPECT_TRUE(fs.atomic_files().IsAskedEachTime(below, "a.pt"));
  // Moves, removals and restarts count.
  meta::RenameParams move{run, "step", plain, "step"};
  ASSERT_TRUE(World::Await<void>([&](Done<void> done) { fs.names().Rename(move, {}, std::move(done)); }).ok());
  EXPECT_FALSE(fs.atomic_files().IsAskedEachTime(below, "a.pt"));
  world.Reopen();
  EXPECT_TRUE(world.fs->atomic_files().IsAskedEachTime(run, "a.pt"));
  ASSERT_TRUE(world.fs->attributes().RemoveXattr({}, run, kFiles).ok());
  EXPECT_FALSE(world.fs->atomic_files().IsAskedEachTime(run, "a.pt"));
}

TEST(AtomicRulesTest, OneUserLeavesRoomForOthers) {
  World world;
  const auto set = [&](uint32_t uid, size_t number) {
    meta::CreateParams params;
    params.mode = S_IFDIR | 0755;
    params.uid = uid;
    const auto made =
        world.fs->names().MakeNode({}, kRootInode, std::to_string(uid) + "." + std::to_string(number), params);
    Caller caller;
    caller.uid = uid;
    return world.fs->attributes().SetXattr(caller, made->inode, kFiles, "*.pt", kSet);
  };
  size_t count = 0;
  Status last;
  while (count <= AtomicRules::kRulesMax && (last = set(5, count)).ok()) count++;
  ASSERT_FALSE(last.ok());
  EXPECT_EQ(last.error().code, ErrorCode::kBusy);
  EXPECT_GT(count, AtomicRules::kRulesMax / 2);
  EXPECT_LT(count, AtomicRules::kRulesMax * 3 / 4);
  EXPECT_TRUE(set(6, 0).ok());
  EXPECT_FALSE(set(5, count + 1).ok());
}

// A start does not fail for it, nor do others.
TEST(AtomicRulesTest, ABadRuleCountsForNothing) {
  World world;
  const InodeId run = MakeDirectory(*world.fs, kRootInode, "run"), bad = MakeDirectory(*world.fs, kRootInode, "bad");
  ASSERT_TRUE(SetRule(*world.fs, run, "*.pt").ok());
  ASSERT_TRUE(world.kv->Commit({}, kv::Transaction().Put(meta::AtomicKey(bad), "?")).ok());
  world.Reopen();
  EXPECT_TRUE(world.fs->atomic_files().IsAskedEachTime(run, "a.pt"));
  EXPECT_FALSE(world.fs->atomic_files().IsAskedEachTime(bad, "a.pt"));
}

TEST(AtomicRulesTest, ARuleGoesWithItsDirectory) {
  World world;
  const InodeId run = MakeDirectory(*world.fs, kRootInode, "run");
  ASSERT_TRUE(SetRule(*world.fs, run, "*.pt").ok());
  ASSERT_TRUE(world.kv->Get({}, meta::AtomicKey(run))->has_value());
  ASSERT_TRUE(world.fs->names().Rmdir({}, kRootInode, "run").ok());
  world.Reopen();
  world.Reopen();
  EXPECT_FALSE(world.kv->Get({}, meta::AtomicKey(run))->has_value());
}

TEST(AtomicRulesTest, PatternsAreChecked) {
  EXPECT_TRUE(ParseAtomicPatterns(" \n")->empty());
  EXPECT_EQ(ParseAtomicPatterns("a b\tc\nd")->size(), 4u);
  std::string many;
  for (size_t i = 0; i < AtomicRules::kPatternsMax; i++) many += "a" + std::to_string(i) + " ";
  EXPECT_TRUE(ParseAtomicPatterns(many).ok());
  for (const std::string& wrong : {many + "z", std::string("a/b"), std::string("[a"), std::string(256, 'x'),
                                   std::string("{a,b}"), std::string(100'000, ' ')}) {
    const auto parsed = ParseAtomicPatterns(wrong);
    ASSERT_FALSE(parsed.ok()) << wrong.substr(0, 20);
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
  }
}

// --- What a process finds.

class AtomicFilesTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(SetRule(*world_.fs, kRootInode, "*.pt").ok()); }
  FileSystem& fs() { return *world_.fs; }
  FileSystem::Created Begin(std::string_view name) {
    auto opened = OpenByName(fs(), kRootInode, name, Self());
    EXPECT_TRUE(opened.ok()) << (opened.ok() ? "" : opened.error().message);
    return *opened;
  }
  InodeId OwnFound(std::string_view name) {
    auto found = fs().atomic_files().Lookup({}, Self().pid, kRootInode, name);
    if (!found.ok()) return {};
    fs().names().Forget(found->inode, 1);
    return found->inode;
  }

  World world_;
};

TEST_F(AtomicFilesTest, TakesItsNameAtItsClose) {
  const auto first = Begin("a.pt");
  EXPECT_EQ(OwnFound("a.pt"), first.attr.inode);
  EXPECT_EQ(Found(fs(), kRootInode, "a.pt"), InodeId{});
  ASSERT_TRUE(world_.Write(first, 0, "one").ok());
  ASSERT_TRUE(CloseAs(fs(), first, Self()).ok());
  EXPECT_EQ(Found(fs(), kRootInode, "a.pt"), first.attr.inode);
  const auto second = Begin("a.pt");
  EXPECT_NE(second.attr.inode, first.attr.inode);
  EXPECT_EQ(Found(fs(), kRootInode, "a.pt"), first.attr.inode);
  // The same process again: the same file, until its last close.
  const auto again = Begin("a.pt");
  EXPECT_EQ(again.attr.inode, second.attr.inode);
  ASSERT_TRUE(CloseAs(fs(), second, Self()).ok());
  EXPECT_EQ(Found(fs(), kRootInode, "a.pt"), second.attr.inode);
  ASSERT_TRUE(CloseAs(fs(), again, Self()).ok());
  EXPECT_EQ(fs().open_files().count(), 0u);
  EXPECT_TRUE(Eventually([&] { return world_.names->ListOrphans({})->empty(); }));
}

// An open by a descriptor looks nothing up in between.
TEST_F(AtomicFilesTest, IsOpenedInPlaceWhereNoNameIsLookedUp) {
  const auto first = Begin("a.pt");
  ASSERT_TRUE(CloseAs(fs(), first, Self()).ok());
  EXPECT_EQ(Open(fs(), first.attr.inode, kNew, Self()).error().code, ErrorCode::kStale);
  const auto handle = Open(fs(), first.attr.inode, kNew, Self());
  ASSERT_TRUE(handle.ok());
  fs().atomic_files().Release(first.attr.inode, *handle);
  EXPECT_FALSE(fs().atomic_files().IsSentBack(Self().pid));
  // Where another name was looked up in between that is none of these.
  ASSERT_TRUE(World::Await<meta::Attr>([&](Done<meta::Attr> done) {
                fs().names().Link(first.attr.inode, kRootInode, "plain", std::move(done));
              }).ok());
  EXPECT_EQ(Open(fs(), first.attr.inode, kNew, Self()).error().code, ErrorCode::kStale);
  const auto found = LookUpSentBack(fs(), {Self(), {}}, kRootInode, "plain");
  EXPECT_EQ(found->inode, first.attr.inode);
  EXPECT_TRUE(Open(fs(), first.attr.inode, kNew, Self()).ok());
}

// Another one has put another file there between the look-up and the open.
TEST_F(AtomicFilesTest, IsMadeInPlaceOfWhatTheNameLeadsToByThen) {
  const auto first = Begin("a.pt");
  ASSERT_TRUE(CloseAs(fs(), first, Self()).ok());
  ASSERT_TRUE(fs().atomic_files().Lookup({}, Self().pid, kRootInode, "a.pt").ok());
  EXPECT_EQ(Open(fs(), first.attr.inode, kNew, Self()).error().code, ErrorCode::kStale);
  ASSERT_TRUE(fs().names().Unlink({}, kRootInode, "a.pt").ok());
  const auto second = fs().open_files().Create({}, kRootInode, "a.pt", FileParams(), {.write = true});
  const auto found = LookUpSentBack(fs(), {Self(), {}}, kRootInode, "a.pt");
  ASSERT_TRUE(found.ok());
  EXPECT_NE(found->inode, second->attr.inode);
  const auto handle = Open(fs(), found->inode, kNew, Self());
  ASSERT_TRUE(handle.ok());
  ASSERT_TRUE(CloseAs(fs(), {*found, *handle}, Self()).ok());
  EXPECT_EQ(Found(fs(), kRootInode, "a.pt"), found->inode);
  fs().names().Forget(first.attr.inode, 1);
  fs().atomic_files().Release(second->attr.inode, second->handle);
}

TEST_F(AtomicFilesTest, IsMadeAlsoWhereTheOldFileWasMovedAside) {
  const auto first = Begin("a.pt");
  ASSERT_TRUE(CloseAs(fs(), first, Self()).ok());
  ASSERT_TRUE(fs().atomic_files().Lookup({}, Self().pid, kRootInode, "a.pt").ok());
  EXPECT_EQ(Open(fs(), first.attr.inode, kNew, Self()).error().code, ErrorCode::kStale);
  meta::RenameParams aside{kRootInode, "a.pt", kRootInode, "a.1"};
  ASSERT_TRUE(World::Await<void>([&](Done<void> done) { fs().names().Rename(aside, {}, std::move(done)); }).ok());
  const auto second = fs().open_files().Create({}, kRootInode, "a.pt", FileParams(), {.write = true});
  const auto found = LookUpSentBack(fs(), {Self(), {}}, kRootInode, "a.pt");
  ASSERT_TRUE(found.ok());
  EXPECT_NE(found->inode, second->attr.inode);
  const auto handle = Open(fs(), found->inode, kNew, Self());
  ASSERT_TRUE(handle.ok());
  ASSERT_TRUE(CloseAs(fs(), {*found, *handle}, Self()).ok());
  EXPECT_EQ(Found(fs(), kRootInode, "a.1"), first.attr.inode);
  fs().names().Forget(first.attr.inode, 1);
  fs().atomic_files().Release(second->attr.inode, second->handle);
}

// The kernel may look a name up twice, and others make and remove files there meanwhile.
TEST_F(AtomicFilesTest, IsSentBackOnceWhateverComesBetweenTwoLookUps) {
  const auto first = Begin("a.pt");
  ASSERT_TRUE(CloseAs(fs(), first, Self()).ok());
  const auto look_up = [&](const std::string& name) { return LookUpSentBack(fs(), {Self(), {}}, kRootInode, name); };
  const auto make = [&](const std::string& name) {
    const auto made = fs().open_files().Create({}, kRootInode, name, FileParams(), {.write = true});
    fs().open_files().Release(made->handle);
    return made->attr.inode;
  };
  make("replaced");
  for (const std::string name : {"late.pt", "late", "replaced"}) {
    EXPECT_EQ(Open(fs(), first.attr.inode, kNew, Self()).error().code, ErrorCode::kStale);
    EXPECT_EQ(look_up(name).ok(), name == "replaced");
    static_cast<void>(fs().names().Unlink({}, kRootInode, name).ok());
    const InodeId old = make(name);
    const InodeId found = name == "late.pt" ? look_up(name)->inode : old;
    EXPECT_EQ(found != old, name == "late.pt");
    const auto handle = Open(fs(), found, kNew, Self());
    ASSERT_TRUE(handle.ok()) << name << ": " << handle.error().message;
    fs().atomic_files().Release(found, *handle);
  }
}

// A later look-up of the thread is no part of its open.
TEST_F(AtomicFilesTest, WhoWasSentBackLooksUpOnce) {
  const auto first = Begin("a.pt");
  ASSERT_TRUE(CloseAs(fs(), first, Self()).ok());
  const auto is_sent_back = [&] { return fs().atomic_files().IsSentBack(Self().pid); };
  const auto send_back = [&] {
    EXPECT_TRUE(Open(fs(), first.attr.inode, kNew, Self()).error().code == ErrorCode::kStale && is_sent_back());
  };
  const auto look_up = [&](std::string_view name) { return LookUpSentBack(fs(), {Self(), {}}, kRootInode, name); };
  // What was absent is looked up again at once; another name is not part of it.
  send_back();
  EXPECT_TRUE(!look_up("gone.pt").ok() && is_sent_back());
  EXPECT_TRUE(look_up("a.pt")->inode == first.attr.inode && !is_sent_back());
  send_back();
  EXPECT_FALSE(look_up("gone.pt").ok() || look_up("gone.pt").ok() || !is_sent_back());
  Clock::SleepFor(std::chrono::seconds(2));
  EXPECT_FALSE(look_up("gone.pt").ok() || is_sent_back());
  // Directories are on the way.
  send_back();
  MakeDirectory(fs(), kRootInode, "way");
  EXPECT_TRUE(look_up("way").ok());
  EXPECT_TRUE(is_sent_back());
  // Too late.
  Clock::SleepFor(std::chrono::seconds(11));
  EXPECT_EQ(look_up("a.pt")->inode, first.attr.inode);
  EXPECT_FALSE(is_sent_back());
  // Another thread of the process has made one meanwhile.
  const auto own = Begin("a.pt");
  send_back();
  EXPECT_EQ(look_up("a.pt")->inode, own.attr.inode);
  EXPECT_FALSE(is_sent_back());
  // A thread that opens such a one without a look-up.
  send_back();
  const auto again = Open(fs(), own.attr.inode, kNew, Self());
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(is_sent_back());
  fs().atomic_files().Release(own.attr.inode, *again);
  ASSERT_TRUE(CloseAs(fs(), own, Self()).ok());
  EXPECT_EQ(OwnFound("a.pt"), own.attr.inode);
}

// By the open alone, once: the kernel would look the name up once more after an error of the look-up.
TEST_F(AtomicFilesTest, TheOpenIsToldWhyNoNewFileCanBeMade) {
  const InodeId run = MakeDirectory(fs(), kRootInode, "run");
  const auto first = OpenByName(fs(), run, "a.pt", Self());
  ASSERT_TRUE(CloseAs(fs(), *first, Self()).ok());
  const auto seal = [&] {
    return World::Await<void>([&](Done<void> done) { fs().attributes().Seal({}, run, std::move(done)); });
  };
  ASSERT_TRUE(seal().ok());
  EXPECT_EQ(OpenByName(fs(), run, "a.pt", Self()).error().code, ErrorCode::kSealed);
  EXPECT_EQ(Found(fs(), run, "a.pt"), first->attr.inode);
  EXPECT_EQ(OpenByName(fs(), run, "a.pt", Self()).error().code, ErrorCode::kSealed);
  ASSERT_TRUE(fs().attributes().RemoveXattr({}, run, CAIRNFS_XATTR_SEALED).ok());
  const auto second = OpenByName(fs(), run, "a.pt", Self());
  ASSERT_TRUE(second.ok()) << second.error().message;
  ASSERT_TRUE(CloseAs(fs(), *second, Self()).ok());
  EXPECT_EQ(Found(fs(), run, "a.pt"), second->attr.inode);
  EXPECT_EQ(fs().open_files().count(), 0u);
}

TEST_F(AtomicFilesTest, OneWhoCannotBeSeenIsRefused) {
  const auto first = Begin("a.pt");
  ASSERT_TRUE(CloseAs(fs(), first, Self()).ok());
  for (const char* name : {"a.pt", "b.pt"}) {
    EXPECT_EQ(OpenByName(fs(), kRootInode, name, Of(0)).error().code, ErrorCode::kNotSupported) << name;
  }
  EXPECT_TRUE(OpenByName(fs(), kRootInode, "plain", Of(0)).ok());
  // One who went out of sight counts as killed.
  const auto gone = Begin("a.pt");
  EXPECT_EQ(CloseAs(fs(), gone, Of(kOtherThread)).error().code, ErrorCode::kNotSupported);
  EXPECT_EQ(Found(fs(), kRootInode, "a.pt"), first.attr.inode);
  EXPECT_EQ(OwnFound("a.pt"), first.attr.inode);
}

TEST_F(AtomicFilesTest, AFailedWriteLeavesTheOldFile) {
  const auto first = Begin("a.pt");
  ASSERT_TRUE(CloseAs(fs(), first, Self()).ok());
  const auto second = Begin("a.pt");
  fs().atomic_files().NoteWriteFailed(second.attr.inode, MakeError(ErrorCode::kNoSpace, "full"));
  EXPECT_EQ(CloseAs(fs(), second, Self()).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(Found(fs(), kRootInode, "a.pt"), first.attr.inode);
  EXPECT_EQ(fs().open_files().count(), 0u);
}

TEST_F(AtomicFilesTest, OneWhoWasKilledLeavesNothingToItsLaterNamesake) {
  const auto first = Begin("a.pt");
  ASSERT_TRUE(CloseAs(fs(), first, Self()).ok());
  const auto half = Begin("a.pt");
  Status seen = World::Await<void>(
      [&](Done<void> done) { fs().atomic_files().Flush(half.attr.inode, {half.handle}, std::move(done), Of(0)); });
  EXPECT_EQ(seen.error().code, ErrorCode::kNotSupported);
  EXPECT_EQ(OwnFound("a.pt"), first.attr.inode);
  const auto next = Begin("a.pt");
  EXPECT_NE(next.attr.inode, half.attr.inode);
  ASSERT_TRUE(CloseAs(fs(), next, Self()).ok());
  EXPECT_EQ(OwnFound("a.pt"), next.attr.inode);
  // What goes on to write the other one is told.
  EXPECT_EQ(CloseAs(fs(), half, Self()).error().code, ErrorCode::kIo);
  EXPECT_EQ(OwnFound("a.pt"), next.attr.inode);
}

TEST_F(AtomicFilesTest, OneThatIsMadeForReadingAppearsAtOnce) {
  const auto made = fs().atomic_files().Create({Self(), {}}, kRootInode, "a.pt", FileParams(), {.read = true});
  ASSERT_TRUE(made.ok());
  EXPECT_FALSE(made->has_value());
}

TEST_F(AtomicFilesTest, OneThatWasNeverOpenedGoes) {
  const auto first = Begin("a.pt");
  ASSERT_TRUE(CloseAs(fs(), first, Self()).ok());
  ASSERT_FALSE(Open(fs(), first.attr.inode, kNew, Self()).ok());
  const auto made = LookUpSentBack(fs(), {Self(), {}}, kRootInode, "a.pt");
  ASSERT_TRUE(made.ok());
  fs().names().Forget(made->inode, 1);
  EXPECT_EQ(OwnFound("a.pt"), made->inode);
  Clock::SleepFor(std::chrono::seconds(11));
  EXPECT_EQ(OwnFound("a.pt"), first.attr.inode);
  Clock::SleepFor(std::chrono::minutes(1));
  const auto other = Begin("b.pt");
  EXPECT_EQ(OwnFound("a.pt"), first.attr.inode);
  ASSERT_TRUE(CloseAs(fs(), other, Self()).ok());
  EXPECT_EQ(fs().open_files().count(), 0u);
}

TEST_F(AtomicFilesTest, AnEarlierProcessLeavesNothing) {
  const auto first = Begin("a.pt");
  ASSERT_TRUE(world_.Write(first, 0, "half").ok());
  ASSERT_TRUE(world_.Fsync(first).ok());
  world_.Reopen();
  EXPECT_EQ(Found(fs(), kRootInode, "a.pt"), InodeId{});
  EXPECT_TRUE(world_.names->ListOrphans({})->empty());
}

// --- Among several hosts.

class SharedAtomicFilesTest : public ClusterTest {};

TEST_F(SharedAtomicFilesTest, ASweepLeavesWhatIsToGetAName) {
  options_.orphan_sweep_every_ms = 50;
  MakeHosts(2);
  ASSERT_TRUE(SetRule(*host(0).fs, kRootInode, "*.pt").ok());
  ASSERT_TRUE(Eventually([&] {
    return (*host(1).fs->attributes().ListXattrs({}, kRootInode)).empty() &&
           host(1).fs->atomic_files().IsAskedEachTime(kRootInode, "a.pt");
  }));
  for (int round = 0; round < 3; round++) {
    const auto file = OpenByName(*host(0).fs, kRootInode, "a.pt", Self());
    ASSERT_TRUE(file.ok());
    const std::string text = "round " + std::to_string(round);
    ASSERT_TRUE(host(0).Write(*file, 0, text).ok());
    Clock::SleepFor(std::chrono::seconds(2));  // sweeps ask both hosts
    ASSERT_TRUE(CloseAs(*host(0).fs, *file, Self()).ok());
    EXPECT_EQ(host(1).Cat("a.pt"), text);
    Clock::SleepFor(std::chrono::seconds(2));
    EXPECT_EQ(host(0).Cat("a.pt"), text);
    EXPECT_EQ(host(1).Cat("a.pt"), text);
  }
  EXPECT_TRUE(Eventually([&] { return host(0).names->ListOrphans({})->empty(); }));
}

TEST_F(SharedAtomicFilesTest, AHostThatDiesLeavesTheOldFileAndNoMark) {
  options_.orphan_sweep_every_ms = 50;
  MakeHosts(2);
  const InodeId run = host(0).MakeDirectory("run.tmp");
  ASSERT_TRUE(SetRule(*host(0).fs, kRootInode, "*.pt").ok());
  const auto old = OpenByName(*host(0).fs, run, "a.pt", Self());
  ASSERT_TRUE(host(0).Write(*old, 0, "old").ok());
  ASSERT_TRUE(CloseAs(*host(0).fs, *old, Self()).ok());
  for (const char* name : {"a.pt", "b.pt"}) {
    const auto half = OpenByName(*host(0).fs, run, name, Self());
    ASSERT_TRUE(half.ok());
    ASSERT_TRUE(host(0).Write(*half, 0, "half").ok());
  }
  host(0).Die();
  EXPECT_TRUE(Eventually([&] { return host(1).Rename(kRootInode, "run.tmp", kRootInode, "run").ok(); }));
  EXPECT_EQ(host(1).Cat("a.pt", run), "old");
  EXPECT_FALSE(host(1).Open("b.pt", {.read = true}, run).ok());
  EXPECT_TRUE(Eventually([&] { return host(1).names->ListOrphans({})->empty(); }));
}

}  // namespace
}  // namespace cairnfs::fs
