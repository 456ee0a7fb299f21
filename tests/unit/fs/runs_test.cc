// What the metrics tell of the saves of each directory that has a retention policy.
#include "fs/runs.h"

#include "../../support/passing_store.h"
#include "cairnfs/cairnfs.h"
#include "cluster_fixture.h"
#include "fixture.h"
#include "retention/values.h"

namespace cairnfs::fs {
namespace {

constexpr uint32_t kRunOwner = 1000;
const std::string kRunPolicy = R"json({"keep_last":2,"match":"step-(\\d+)"})json";

InodeId MakeBelow(meta::Namespace& names, InodeId parent, std::string_view name, uint32_t mode = 0755,
                  uint32_t uid = kRunOwner) {
  meta::CreateParams params;
  params.mode = S_IFDIR | mode;
  params.uid = uid;
  auto made = names.Create({}, parent, name, params);
  EXPECT_TRUE(made.ok());
  return made->inode;
}

InodeId MakeRun(meta::Namespace& names, InodeId parent, std::string_view name, uint32_t uid = kRunOwner) {
  const InodeId run = MakeBelow(names, parent, name, 0700, uid);
  EXPECT_TRUE(names
                  .SetXattr({}, run, CAIRNFS_XATTR_RETAIN, kRunPolicy, meta::Namespace::XattrMode::kSet, uid, {},
                            {.own = meta::PolicyEffect::Own::kHasOne})
                  .ok());
  return run;
}

Timestamp SecondsAgo(int64_t seconds) { return {.seconds = Clock::WallTime().seconds - seconds, .nanoseconds = 0}; }

constexpr uint64_t NsOf(uint64_t seconds) { return seconds * 1'000'000'000; }

meta::CommitPart PartOf(const Timestamp& first_write, uint64_t write_seconds, uint64_t wait_seconds) {
  meta::CommitPart part;
  part.first_write = first_write;
  part.write_ns = NsOf(write_seconds);
  part.wait_ns = NsOf(wait_seconds);
  part.written_bytes = 100;
  part.new_bytes = 60;
  return part;
}

TEST(DurationsTest, EachCountsInTheFirstBucketThatHasIt) {
  Durations durations;
  for (const double seconds : {0.0, 0.01, 0.02, 5.0, 1e9}) durations.Add(seconds);
  EXPECT_EQ(durations.counts[0], 2U);
  EXPECT_EQ(durations.counts[1], 1U);
  EXPECT_EQ(durations.counts[6], 1U) << "10 s";
  EXPECT_EQ(durations.count, 5U);
  EXPECT_DOUBLE_EQ(durations.sum_seconds, 1e9 + 5.03);
}

class RunsTest : public testing::Test {
 protected:
  World world;
  meta::Namespace& names = *world.names;
  Runs runs{names, *world.kv};
};

TEST_F(RunsTest, SavesCountForTheRunOfTheirCheckpoints) {
  const InodeId run = MakeRun(names, kRootInode, "run");
  runs.Note({}, MakeBelow(names, run, "step-7"),
            {.at = SecondsAgo(90), .own = PartOf(SecondsAgo(100), 4, 2), .renamed_ns = NsOf(1)});
  auto told = runs.Tell();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].directory, "/run");
  EXPECT_EQ(told[0].checkpoint_step, 7U);
  EXPECT_NEAR(static_cast<double>(*told[0].checkpoint_age_seconds), 90, 2);
  EXPECT_DOUBLE_EQ(told[0].write.sum_seconds, 4);
  EXPECT_DOUBLE_EQ(told[0].wait.sum_seconds, 2);
  EXPECT_DOUBLE_EQ(told[0].commit.sum_seconds, 1);
  EXPECT_EQ(told[0].training.count, 0U) << "nothing is known of the save before";

  // The next began 60 s later. Another host has renamed it.
  const InodeId next = MakeBelow(names, run, "step-8");
  runs.Note({}, next, {.at = SecondsAgo(30), .own = PartOf(SecondsAgo(40), 3, 0)});
  runs.NoteNewBytes({}, next, 5);
  told = runs.Tell();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].checkpoint_step, 8U);
  EXPECT_EQ(told[0].write.count, 2U);
  EXPECT_EQ(told[0].wait.count, 1U);
  EXPECT_EQ(told[0].commit.count, 1U);
  EXPECT_EQ(told[0].training.count, 1U);
  EXPECT_DOUBLE_EQ(told[0].training.sum_seconds, 60 - 6);
  EXPECT_EQ(told[0].written_bytes, 200U);
  EXPECT_EQ(told[0].new_bytes, 125U);

  // Threads that wrote at once were in calls for longer than there was time.
  runs.Note({}, MakeBelow(names, run, "step-9"), {.at = SecondsAgo(20), .own = PartOf(SecondsAgo(25), 100, 100)});
  runs.Note({}, MakeBelow(names, run, "step-10"), {.at = SecondsAgo(10), .own = PartOf(SecondsAgo(15), 1, 1)});
  told = runs.Tell();
  EXPECT_EQ(told[0].training.count, 3U);
  EXPECT_DOUBLE_EQ(told[0].training.sum_seconds, 54 + 12);
}

TEST_F(RunsTest, WhatIsNoCheckpointOfARunDoesNotCount) {
  const InodeId plain = MakeBelow(names, kRootInode, "plain"), run = MakeRun(names, kRootInode, "run");
  const Runs::News news{.at = SecondsAgo(5), .own = PartOf(SecondsAgo(10), 1, 1)};
  for (const InodeId directory : {MakeBelow(names, plain, "step-1"), MakeBelow(names, run, "logs"),
                                  MakeBelow(names, run, "step-99999999999999999999"), plain, run, kRootInode}) {
    runs.Note({}, directory, news);
  }
  EXPECT_TRUE(runs.Tell().empty());
}

TEST_F(RunsTest, AnOlderCommitTakesNothingBack) {
  const InodeId run = MakeRun(names, kRootInode, "run");
  const InodeId newer = MakeBelow(names, run, "step-3"), older = MakeBelow(names, run, "step-2");
  runs.Note({}, newer, {.at = SecondsAgo(10)});
  runs.Note({}, older, {.at = SecondsAgo(50)});
  runs.Note({}, older, {.at = SecondsAgo(50), .own = PartOf(SecondsAgo(60), 1, 1)});
  const auto told = runs.Tell();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].checkpoint_step, 3U);
  EXPECT_LT(*told[0].checkpoint_age_seconds, 20U);
  EXPECT_EQ(told[0].write.count, 1U);
}

// As by a rename that commits it.
InodeId Commit(meta::Namespace& names, InodeId run, const std::string& name) {
  const InodeId made = MakeBelow(names, run, name + ".tmp");
  meta::RenameParams params{run, name + ".tmp", run, name};
  params.commit.emplace();
  params.commit->node = std::string(meta::kNodeIdBytes, '\0');
  EXPECT_TRUE(names.Rename({}, params).ok());
  return made;
}

// The time of a change tells whether there was one.
void Tick() { Clock::SleepFor(std::chrono::milliseconds(1)); }

TEST_F(RunsTest, WhatIsRemovedIsTheNewestNoMore) {
  const InodeId run = MakeRun(names, kRootInode, "run");
  for (const char* name : {"step-1", "step-2"}) runs.Note({}, Commit(names, run, name), {.at = Clock::WallTime()});
  runs.Refresh({});
  EXPECT_EQ(runs.Tell()[0].checkpoint_step, 2U);
  Tick();
  ASSERT_TRUE(names.Rmdir({}, run, "step-2").ok());
  runs.Refresh({});
  EXPECT_EQ(runs.Tell()[0].checkpoint_step, 1U);
  EXPECT_TRUE(runs.Tell()[0].checkpoint_age_seconds.has_value());
  Tick();
  // By its own name it would be the newest; retention is about to remove it.
  ASSERT_TRUE(names.Rename({}, {run, "step-1", run, retention::GoingName("abcdefghijklmnop", "step-1")}).ok());
  runs.Refresh({});
  ASSERT_EQ(runs.Tell().size(), 1U) << "what its saves cost is told still";
  EXPECT_EQ(runs.Tell()[0].checkpoint_step, std::nullopt);
  EXPECT_EQ(runs.Tell()[0].checkpoint_age_seconds, std::nullopt);
  runs.Note({}, Commit(names, run, "step-1"), {.at = Clock::WallTime()});
  EXPECT_EQ(runs.Tell()[0].checkpoint_step, 1U);
}

// Nothing notes one that no rename has published.
TEST_F(RunsTest, OneMadeInPlaceIsFound) {
  const InodeId run = MakeRun(names, kRootInode, "run");
  MakeRun(names, kRootInode, "empty");
  runs.Refresh({});
  EXPECT_TRUE(runs.Tell().empty());
  const InodeId first = MakeBelow(names, run, "step-4");
  MakeBelow(names, run, "logs");
  meta::AttrChanges changes;
  changes.mtime = SecondsAgo(100);
  ASSERT_TRUE(names.SetAttr({}, first, changes).ok());
  runs.Refresh({});
  ASSERT_EQ(runs.Tell().size(), 1U);
  EXPECT_EQ(runs.Tell()[0].directory, "/run");
  EXPECT_EQ(runs.Tell()[0].checkpoint_step, 4U);
  EXPECT_NEAR(static_cast<double>(*runs.Tell()[0].checkpoint_age_seconds), 100, 2);
  MakeBelow(names, first, "more");
  runs.Refresh({});
  EXPECT_LT(*runs.Tell()[0].checkpoint_age_seconds, 90U) << "it is still being written";
  Tick();
  // It matches the pattern, so it counts beside what was committed.
  runs.Note({}, Commit(names, run, "step-3"), {.at = Clock::WallTime()});
  runs.Refresh({});
  EXPECT_EQ(runs.Tell()[0].checkpoint_step, 4U);
  Tick();
  // Without a pattern it would be one that is being written.
  ASSERT_TRUE(
      names.SetXattr({}, run, CAIRNFS_XATTR_RETAIN, R"({"keep_last":2})", meta::Namespace::XattrMode::kSet).ok());
  runs.Refresh({});
  EXPECT_EQ(runs.Tell()[0].checkpoint_step, 3U);
}

// However many policies there are, a refresh is short, and each has its turn.
TEST_F(RunsTest, ARefreshLooksAtSoManyPolicies) {
  for (size_t i = 0; i < 2 * Runs::kPoliciesPerRefresh; ++i) MakeRun(names, kRootInode, "empty" + std::to_string(i));
  MakeBelow(names, MakeRun(names, kRootInode, "run"), "step-1");
  runs.Refresh({});
  runs.Refresh({});
  EXPECT_TRUE(runs.Tell().empty());
  runs.Refresh({});
  ASSERT_EQ(runs.Tell().size(), 1U);
  EXPECT_EQ(runs.Tell()[0].checkpoint_step, 1U);
}

class StoreThatCounts final : public PassingOn<kv::KvStore> {
 public:
  using PassingOn::PassingOn;
  Result<std::optional<kv::KvEntry>> Get(const Context& context, std::string_view key) override {
    ++reads;
    return PassingOn::Get(context, key);
  }
  Result<kv::KvRange> Range(const Context& context, std::string_view begin, std::string_view end,
                            size_t limit) override {
    ++reads;
    return PassingOn::Range(context, begin, end, limit);
  }
  Result<kv::KvSnapshot> Read(const Context& context, std::span<const kv::KvSpan> spans) override {
    ++reads;
    return PassingOn::Read(context, spans);
  }
  size_t reads = 0;
};

// What a scrape costs the store does not grow with what a user makes.
TEST_F(RunsTest, ManyThatWereMadeInPlaceCostFewReads) {
  constexpr size_t kSteps = 256;
  StoreThatCounts store(*world.kv);
  meta::Namespace counted(store, [](const std::vector<kv::KvWrite>&) { return Status(); });
  Runs looked_for(counted, store);
  std::vector<InodeId> made_runs;
  for (size_t i = 0; i < 16; ++i) made_runs.push_back(MakeRun(names, kRootInode, "run" + std::to_string(i)));
  for (const InodeId run : made_runs) {
    for (size_t step = 0; step < kSteps; ++step) MakeBelow(names, run, "step-" + std::to_string(step));
  }
  looked_for.Refresh({});
  ASSERT_EQ(looked_for.Tell().size(), made_runs.size());
  for (const RunReport& told : looked_for.Tell()) EXPECT_EQ(told.checkpoint_step, kSteps - 1);
  EXPECT_LT(store.reads, 16 * made_runs.size()) << "those of the largest step are looked at alone";
  store.reads = 0;
  looked_for.Refresh({});
  EXPECT_LE(store.reads, 8 * made_runs.size()) << "and then the newest alone";

  // Where no pattern says that they are checkpoints, any of them may be one that was committed.
  Tick();
  for (const InodeId run : made_runs) {
    ASSERT_TRUE(
        names.SetXattr({}, run, CAIRNFS_XATTR_RETAIN, R"({"keep_last":2})", meta::Namespace::XattrMode::kSet).ok());
  }
  store.reads = 0;
  looked_for.Refresh({});
  EXPECT_GT(store.reads, 2 * kSteps);
  EXPECT_LT(store.reads, 5 * (Runs::kCandidatesPerRefresh + kSteps))
      << "some for each, and as many as one run has more";
}

TEST_F(RunsTest, OneThatLosesItsPolicyIsForgotten) {
  const InodeId run = MakeRun(names, kRootInode, "run"), kept = MakeRun(names, kRootInode, "kept");
  for (const InodeId each : {run, kept}) runs.Note({}, MakeBelow(names, each, "step-1"), {.at = SecondsAgo(1)});
  ASSERT_TRUE(names.RemoveXattr({}, run, CAIRNFS_XATTR_RETAIN).ok());
  runs.Refresh({});
  const auto told = runs.Tell();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].directory, "/kept");
}

// Who reads the metrics learns no name that he could not list, and no name spoils what Prometheus reads.
TEST_F(RunsTest, APathIsToldWhereEverybodyMayListIt) {
  const InodeId open = MakeBelow(names, kRootInode, "open"), closed = MakeBelow(names, kRootInode, "closed", 0711);
  const InodeId deep = MakeBelow(names, closed, "deep");
  const auto label_of = [&](InodeId parent, const std::string& name) {
    Runs one(names, *world.kv);
    const InodeId run = MakeRun(names, parent, name);
    one.Note({}, MakeBelow(names, run, "step-1"), {.at = SecondsAgo(1)});
    const auto told = one.Tell();
    EXPECT_EQ(told.size(), 1U);
    return told[0].directory == "#" + std::to_string(run.value) ? "#" : told[0].directory;
  };
  EXPECT_EQ(label_of(open, "a run \"of\" \\mine, \xc3\xa4"), "/open/a run \"of\" \\mine, \xc3\xa4");
  EXPECT_EQ(label_of(closed, "run"), "#");
  EXPECT_EQ(label_of(deep, "run"), "#");
  EXPECT_EQ(label_of(open, "two\nlines"), "#");
  EXPECT_EQ(label_of(open, "no \xff text"), "#");
  EXPECT_EQ(label_of(open, std::string(Runs::kLabelBytesMax - 6, 'x')), "/open/" + std::string(250, 'x'));
  EXPECT_EQ(label_of(open, std::string(Runs::kLabelBytesMax - 5, 'x')), "#");
}

TEST_F(RunsTest, NoTwoHaveOneLabel) {
  const InodeId first = MakeRun(names, kRootInode, "run");
  runs.Note({}, MakeBelow(names, first, "step-1"), {.at = SecondsAgo(9)});
  ASSERT_TRUE(names.Rename({}, {kRootInode, "run", kRootInode, "moved"}).ok());
  const InodeId second = MakeRun(names, kRootInode, "run");
  runs.Note({}, MakeBelow(names, second, "step-1"), {.at = SecondsAgo(8)});
  auto told = runs.Tell();
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[0].directory, "#" + std::to_string(first.value));
  EXPECT_EQ(told[1].directory, "/run");
  runs.Note({}, MakeBelow(names, first, "step-2"), {.at = SecondsAgo(7)});
  EXPECT_EQ(runs.Tell()[0].directory, "/moved");
}

// However many policies a user sets, there are places for others.
TEST_F(RunsTest, ThereAreSoManyAndOthersAreAddedUp) {
  const auto save_in_new = [&](const std::string& name, uint32_t uid, int64_t seconds_ago) {
    const InodeId run = MakeRun(names, kRootInode, name, uid);
    runs.Note({}, MakeBelow(names, run, "step-1"),
              {.at = SecondsAgo(seconds_ago), .own = PartOf(SecondsAgo(seconds_ago + 1), 1, 1)});
  };
  constexpr size_t kOfOne = Runs::kRunsMax * 2 / 3;
  for (size_t i = 0; i < kOfOne + 10; ++i) save_in_new("run" + std::to_string(i), kRunOwner, i < kOfOne ? 10 : 5);
  auto told = runs.Tell();
  ASSERT_EQ(told.size(), kOfOne + 1);
  EXPECT_EQ(told.back().directory, "others");
  EXPECT_EQ(told.back().write.count, 10U);
  EXPECT_FALSE(told.back().checkpoint_age_seconds.has_value());
  save_in_new("other", kRunOwner + 1, 10);
  told = runs.Tell();
  ASSERT_EQ(told.size(), kOfOne + 2);
  EXPECT_EQ(told[kOfOne].directory, "/other");
  for (uint32_t uid = 2000; uid < 2100; ++uid) save_in_new("of" + std::to_string(uid), uid, 10);
  EXPECT_EQ(runs.Tell().size(), Runs::kRunsMax + 1);
}

TEST_F(RunsTest, OneWithoutACommitForADayGivesItsPlace) {
  const auto save_in_new = [&](const std::string& name, int64_t seconds_ago) {
    const InodeId run = MakeRun(names, kRootInode, name);
    runs.Note({}, MakeBelow(names, run, "step-1"), {.at = SecondsAgo(seconds_ago)});
  };
  constexpr size_t kOfOne = Runs::kRunsMax * 2 / 3;
  for (size_t i = 0; i < kOfOne; ++i) save_in_new("run" + std::to_string(i), Runs::kIdleSecondsMax + 100);
  EXPECT_EQ(runs.Tell().size(), kOfOne);
  save_in_new("new", 1);
  const auto told = runs.Tell();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].directory, "/new");
}

// A database that reads the metrics keeps each label for ever.
TEST_F(RunsTest, NobodyMakesEndlessLabels) {
  const InodeId run = MakeRun(names, kRootInode, "run0");
  std::set<std::string> labels;
  for (size_t i = 0; i < Runs::kLabelsPerHourMax; ++i) {
    const Timestamp at = SecondsAgo(1000 - static_cast<int64_t>(i));
    const std::string name = "run" + std::to_string(i), next = "run" + std::to_string(i + 1);
    runs.Note({}, MakeBelow(names, run, "step-" + std::to_string(i)), {.at = at});
    Tick();
    ASSERT_TRUE(names.Rename({}, {kRootInode, name, kRootInode, next}).ok());
    const InodeId brief = MakeRun(names, kRootInode, "brief" + std::to_string(i));
    runs.Note({}, MakeBelow(names, brief, "step-1"), {.at = at});
    for (const RunReport& told : runs.Tell()) labels.insert(told.directory);
    ASSERT_TRUE(names.RemoveXattr({}, brief, CAIRNFS_XATTR_RETAIN).ok());
    runs.Refresh({});
  }
  EXPECT_EQ(labels.size(), Runs::kLabelsPerHourMax * 2 / 3 + 1) << "and the number";
  EXPECT_EQ(runs.Tell()[0].directory, "#" + std::to_string(run.value));
  // Others have theirs.
  const InodeId other = MakeRun(names, kRootInode, "other", kRunOwner + 1);
  runs.Note({}, MakeBelow(names, other, "step-1"), {.at = SecondsAgo(1)});
  EXPECT_EQ(runs.Tell().back().directory, "/other");
}

void SetPolicy(FileSystem& fs, InodeId run) {
  ASSERT_TRUE(
      fs.attributes().SetXattr({}, run, CAIRNFS_XATTR_RETAIN, kRunPolicy, meta::Namespace::XattrMode::kSet).ok());
}

// Once the condition is met, which what follows a rename brings about.
template <typename Condition>
std::vector<RunReport> RunsOnce(FileSystem& fs, const Condition& condition) {
  for (;;) {
    auto told = fs.maintenance().GetRuns();
    if (condition(told)) return told;
    Clock::SleepFor(std::chrono::milliseconds(10));
  }
}

TEST(RunsOfAHost, AreToldAfterACommitAndAfterARestart) {
  World world;
  auto run = world.fs->names().MakeNode({}, kRootInode, "run", WithMode(S_IFDIR | 0755));
  ASSERT_TRUE(run.ok());
  SetPolicy(*world.fs, run->inode);
  auto directory = world.fs->names().MakeNode({}, run->inode, "step-5.tmp", WithMode(S_IFDIR | 0755));
  ASSERT_TRUE(directory.ok());
  auto file = world.fs->open_files().Create({}, directory->inode, "file", WithMode(S_IFREG | 0644),
                                            {.read = true, .write = true});
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(world.Write(*file, 0, RandomText(1, 3 * kMiB)).ok());
  world.CloseFile(*file);
  const meta::RenameParams rename{run->inode, "step-5.tmp", run->inode, "step-5"};
  ASSERT_TRUE(World::Await<void>([&](Done<void> done) { world.fs->names().Rename(rename, {}, std::move(done)); }).ok());
  const auto is_told = [](const auto& told) { return !told.empty(); };
  auto told = RunsOnce(*world.fs, is_told);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].directory, "/run");
  EXPECT_EQ(told[0].checkpoint_step, 5U);
  EXPECT_EQ(told[0].write.count, 1U);
  EXPECT_EQ(told[0].written_bytes, 3 * kMiB);
  EXPECT_EQ(told[0].new_bytes, 3 * kMiB);

  world.Reopen();
  told = RunsOnce(*world.fs, is_told);
  EXPECT_EQ(told[0].checkpoint_step, 5U);
  EXPECT_EQ(told[0].write.count, 0U);
  // It is looked at now and then whether there is a policy still.
  ASSERT_TRUE(world.fs->attributes().RemoveXattr({}, run->inode, CAIRNFS_XATTR_RETAIN).ok());
  EXPECT_TRUE(RunsOnce(*world.fs, [](const auto& left) { return left.empty(); }).empty());
}

class ClusterRunsTest : public ClusterTest {};

TEST_F(ClusterRunsTest, EachHostTellsItsCostsAndTheLastCommitOfAny) {
  MakeHosts(3);
  const InodeId run = host(0).MakeDirectory("run");
  SetPolicy(*host(0).fs, run);
  const InodeId directory = host(0).MakeDirectory("tmp");
  host(0).Put("shard-0", TextOf(1, 1000), directory);
  host(1).Put("shard-1", TextOf(2, 2000), directory);
  ASSERT_TRUE(host(0).Rename(kRootInode, "tmp", run, "step-3").ok());
  const std::vector<uint64_t> written = {1000, 2000, 0};
  for (size_t i = 0; i < written.size(); ++i) {
    const auto told = RunsOnce(*host(i).fs, [&](const auto& known) {
      return known.size() == 1 && known[0].written_bytes == written[i] && (i != 0 || known[0].commit.count == 1);
    });
    EXPECT_EQ(told[0].directory, "/run") << i;
    EXPECT_EQ(told[0].checkpoint_step, 3U) << i;
    EXPECT_EQ(told[0].commit.count, i == 0 ? 1U : 0U) << i;
    EXPECT_EQ(told[0].write.count, written[i] > 0 ? 1U : 0U) << i;
  }
}

}  // namespace
}  // namespace cairnfs::fs
