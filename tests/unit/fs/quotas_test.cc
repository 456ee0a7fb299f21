// Quotas of a whole filesystem on one host: what is accepted, and that the sums are those of the records.
#include "fs/quotas.h"

#include "quotas_fixture.h"

namespace cairnfs::fs {
namespace {

TEST_F(QuotasTest, WhatIsPastTheLimitIsRefused) {
  ASSERT_TRUE(Set(4 * kSomeBytes).ok());
  auto file = Create("a");
  for (uint64_t i = 0; i < 4; i++) {
    ASSERT_TRUE(world_.Write(file, i * kSomeBytes, RandomText(i, kSomeBytes)).ok()) << i;
  }
  EXPECT_EQ(world_.Write(file, 4 * kSomeBytes, "x").error().code, ErrorCode::kQuotaExceeded);
  EXPECT_TRUE(world_.Write(file, kSomeBytes, RandomText(9, kSomeBytes)).ok()) << "what is there is written over";
  EXPECT_EQ(world_.Read(file, kSomeBytes, kSomeBytes).value(), RandomText(9, kSomeBytes));
  ASSERT_TRUE(world_.Fsync(file).ok());
  EXPECT_EQ(Used().logical, 4 * kSomeBytes);
  auto created = world_.fs->open_files().Create({}, run_, "b", WithMode(S_IFREG | 0644), {.write = true});
  EXPECT_EQ(created.error().code, ErrorCode::kQuotaExceeded);
  ASSERT_TRUE(world_.Truncate(file, kSomeBytes).ok());
  EXPECT_TRUE(world_.Write(file, kSomeBytes, RandomText(10, 2 * kSomeBytes)).ok()) << "what was cut off is free";
  EXPECT_TRUE(world_.Write(world_.Create("outside"), 0, RandomText(11, 8 * kSomeBytes)).ok());
  Close(file);
}

// Small holes before them are filled with zeros, which take room as well.
TEST_F(QuotasTest, TinyWritesCountWithTheZerosBesideThem) {
  constexpr uint64_t kLimit = 256 * kKiB;
  ASSERT_TRUE(Set(kLimit).ok());
  auto file = Create("a");
  uint64_t accepted = 0;
  for (; accepted < 2 * kLimit / kPageBytes; accepted++) {
    const uint64_t pair = accepted / 2 * 2 * kPageBytes;  // the first and the last byte of each two pages
    if (!world_.Write(file, accepted % 2 == 0 ? pair : pair + 2 * kPageBytes - 1, "x").ok()) break;
  }
  EXPECT_LE(accepted, kLimit / kPageBytes + 1);
  ASSERT_TRUE(world_.Fsync(file).ok());
  EXPECT_LE(Used().logical, kLimit);
  EXPECT_GE(Used().logical, kLimit / 100 * 95);
  Close(file);
}

// Of stores through a mapping nobody else is told.
TEST_F(QuotasTest, AnErrorOfBytesThatItRefusedIsNotTakenForALackOfRoom) {
  ASSERT_TRUE(Set(kSomeBytes).ok());
  auto file = Create("a");
  Save("full", RandomText(1, kSomeBytes));
  EXPECT_EQ(world_.WriteBackPages(file, 0, RandomText(2, kPageBytes)).error().code, ErrorCode::kQuotaExceeded);
  ASSERT_TRUE(world_.fs->names().Unlink({}, run_, "full").ok());
  EXPECT_EQ(world_.Write(file, kPageBytes, "x").error().code, ErrorCode::kQuotaExceeded) << "told once";
  EXPECT_TRUE(world_.Write(file, kPageBytes, "x").ok());
  Close(file);
}

// Whoever is refused has a round once, and is told at once after that for a while.
TEST_F(QuotasTest, RefusedWritesHaveNoRoundEach) {
  ASSERT_TRUE(Set(kSomeBytes).ok());
  auto file = Create("a");
  ASSERT_TRUE(world_.Write(file, 0, RandomText(1, kSomeBytes)).ok());
  const std::string text = RandomText(2, kSomeBytes);
  EXPECT_EQ(world_.Write(file, kSomeBytes, text).error().code, ErrorCode::kQuotaExceeded);
  const uint64_t rounds = world_.engine->writes_total;
  const auto other = world_.Create("outside");
  for (int i = 0; i < 20; i++) {
    ASSERT_TRUE(world_.Write(other, static_cast<uint64_t>(i) * 10, "0123456789").ok());
    EXPECT_EQ(world_.Write(file, kSomeBytes, text).error().code, ErrorCode::kQuotaExceeded);
  }
  EXPECT_LE(world_.engine->writes_total - rounds, 4u);
  Close(file);
  world_.CloseFile(other);
}

TEST_F(QuotasTest, ManyWritersOfAFullOneShareItsLooks) {
  ASSERT_TRUE(Set(kSomeBytes).ok());
  auto file = Create("a");
  ASSERT_TRUE(world_.Write(file, 0, RandomText(1, kSomeBytes / 2)).ok());
  std::atomic<uint64_t> accepted{0};
  std::vector<FileSystem::Created> files;  // made before there is no room for one
  for (uint64_t i = 0; i < 8; i++) files.push_back(Create("of" + std::to_string(i)));
  std::vector<std::thread> writers;
  for (uint64_t i = 0; i < 8; i++) {
    writers.emplace_back([&, i, own = files[i]] {
      for (uint64_t at = 0; world_.Write(own, at, RandomText(i + at, 16 * kKiB)).ok(); at += 16 * kKiB) {
        accepted += 16 * kKiB;
      }
      Close(own);
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(accepted, kSomeBytes / 2) << "each byte that there is room for is taken";
  Close(file);
}

TEST_F(QuotasTest, WhatIsKnownIsNotUnique) {
  ASSERT_TRUE(Set({}, 6 * kSomeBytes).ok());
  const std::string text = RandomText(1, 3 * kSomeBytes);
  for (const char* name : {"a", "b", "c"}) Save(name, text);
  EXPECT_EQ(Used().logical, 9 * kSomeBytes);
  EXPECT_EQ(Used().unique, 3 * kSomeBytes);
  auto file = Create("d");
  EXPECT_EQ(world_.Write(file, 0, RandomText(2, 4 * kSomeBytes)).error().code, ErrorCode::kQuotaExceeded);
  Close(file);
}

// What is new of a file is never more than what it has.
TEST_F(QuotasTest, ManyRewritesCountOnce) {
  ASSERT_TRUE(Set({}, 64 * kMiB).ok());
  auto file = Create("a");
  for (uint64_t i = 0; i < 5; i++) {
    ASSERT_TRUE(world_.Write(file, 0, RandomText(i, kSomeBytes)).ok());
    ASSERT_TRUE(world_.Fsync(file).ok());
  }
  EXPECT_EQ(Used().unique, kSomeBytes);
  ASSERT_TRUE(world_.Truncate(file, kSomeBytes / 2).ok());
  ASSERT_TRUE(world_.Fsync(file).ok());
  EXPECT_EQ(Used().unique, kSomeBytes / 2);
  EXPECT_EQ(Used(), Recorded());
  Close(file);
}

TEST_F(QuotasTest, AnUnlinkedFileCountsWhileItIsOpen) {
  ASSERT_TRUE(Set(2 * kSomeBytes).ok());
  auto file = Create("a");
  ASSERT_TRUE(world_.Write(file, 0, RandomText(1, 2 * kSomeBytes)).ok());
  ASSERT_TRUE(world_.Fsync(file).ok());
  ASSERT_TRUE(world_.fs->names().Unlink({}, run_, "a").ok());
  auto other = Create("b");
  EXPECT_EQ(world_.Write(other, 0, RandomText(2, kSomeBytes)).error().code, ErrorCode::kQuotaExceeded);
  Close(file);
  Clock::SleepFor(std::chrono::seconds(2));
  EXPECT_TRUE(world_.Write(other, 0, RandomText(2, kSomeBytes)).ok());
  Close(other);
}

TEST_F(QuotasTest, ItIsSetOnWhatIsThereAndTakenOff) {
  Save("a", RandomText(1, kSomeBytes));
  auto open = Create("open");
  ASSERT_TRUE(world_.Write(open, 0, RandomText(2, kSomeBytes)).ok());
  const InodeId below = world_.fs->names().MakeNode({}, run_, "below", WithMode(S_IFDIR | 0755))->inode;
  EXPECT_EQ(Set(kSomeBytes / 2).error().code, ErrorCode::kInvalidArgument) << "below what is used";
  ASSERT_TRUE(Set(4 * kSomeBytes).ok());
  ASSERT_TRUE(world_.Fsync(open).ok());
  EXPECT_EQ(Used().logical, 2 * kSomeBytes);
  EXPECT_EQ(Used(), Recorded());
  EXPECT_EQ(world_.names->GetAttr({}, below)->quota, run_);
  world_.Close();
  world_.Open(false);
  EXPECT_EQ(Used(), Recorded());
  EXPECT_EQ(Set(kSomeBytes).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(Set(kSomeBytes, {}, true).ok());
  ASSERT_TRUE(TakeOff().ok());
  EXPECT_TRUE(world_.fs->quotas().All({}).empty());
  EXPECT_EQ(world_.names->GetAttr({}, below)->quota, InodeId{});
  EXPECT_EQ(Recorded(), meta::QuotaBytes{});
  EXPECT_EQ(TakeOff().error().code, ErrorCode::kNotFound);
}

// Names come in their order, so one that is given an earlier name must not get away.
TEST_F(QuotasTest, WhatIsRenamedWhileItIsSetFallsUnderItToo) {
  for (int i = 0; i < 600; i++) Close(Create("m" + std::to_string(i)));
  Save("z", RandomText(1, kSomeBytes));
  bool is_renamed = false;
  const auto rename = [&](uint64_t) {
    meta::RenameParams params{run_, "z", run_, "a", meta::RenameMode::kReplace};
    if (!std::exchange(is_renamed, true)) {
      EXPECT_TRUE(world_.names->Rename({}, params).ok());
    }
    return true;
  };
  // The first look has all names too: the second time it is called the walk is under way.
  int calls = 0;
  ASSERT_TRUE(world_.fs->quotas()
                  .Set({}, {run_, 8 * kSomeBytes, {}, false}, [&](uint64_t) { return ++calls < 3 || rename(0); })
                  .ok());
  ASSERT_TRUE(is_renamed);
  EXPECT_EQ(world_.names->Lookup({}, run_, "a")->quota, run_);
  EXPECT_EQ(Used().logical, kSomeBytes);
}

TEST_F(QuotasTest, ADirectoryWithAQuotaThatComesMeanwhileKeepsIt) {
  const InodeId other = MakeDirectory("other");
  const InodeId below = world_.fs->names().MakeNode({}, run_, "below", WithMode(S_IFDIR | 0755))->inode;
  auto& quotas = world_.fs->quotas();
  ASSERT_TRUE(quotas.Set({}, {other, kSomeBytes, {}, false}, [](uint64_t) { return true; }).ok());
  int calls = 0;
  const auto move = [&](uint64_t) {
    meta::RenameParams params{kRootInode, "other", below, "other", meta::RenameMode::kReplace};
    if (++calls == 2) {
      EXPECT_TRUE(world_.names->Rename({}, params).ok());
    }
    return true;
  };
  EXPECT_EQ(quotas.Set({}, {run_, kSomeBytes, {}, false}, move).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(world_.names->GetAttr({}, other)->quota, other);
  ASSERT_TRUE(TakeOff().ok());
  EXPECT_EQ(world_.names->GetAttr({}, other)->quota, other);
  EXPECT_EQ(world_.names->GetAttr({}, below)->quota, InodeId{});
}

// A walk that was cut short leaves what the same command goes on with.
TEST_F(QuotasTest, WhatWasCutShortIsGoneOnWith) {
  for (int i = 0; i < 3; i++) Save("file" + std::to_string(i), RandomText(static_cast<uint64_t>(i), kSomeBytes));
  int calls = 0;
  const auto one_call = [&](uint64_t) { return ++calls < 2; };
  const Status cut = world_.fs->quotas().Set({}, {run_, 8 * kSomeBytes, {}, false}, one_call);
  EXPECT_EQ(cut.error().code, ErrorCode::kInterrupted);
  ASSERT_TRUE(Set(8 * kSomeBytes).ok());
  EXPECT_EQ(Used().logical, 3 * kSomeBytes);
  calls = 1;
  EXPECT_EQ(world_.fs->quotas().TakeOff({}, run_, one_call).error().code, ErrorCode::kInterrupted);
  EXPECT_EQ(Set(8 * kSomeBytes).error().code, ErrorCode::kBusy) << "it is being taken off";
  world_.Reopen();
  ASSERT_TRUE(Eventually([&] { return world_.fs->quotas().All({}).empty(); })) << "the next start goes on";
}

TEST_F(QuotasTest, AFileThatCannotBeReadHoldsUpNoOther) {
  for (const char* name : {"a", "b", "c"}) Save(name, RandomText(name[0], kSomeBytes));
  const InodeId damaged = world_.names->Lookup({}, run_, "a")->inode;
  std::string record = DamageContentOf(damaged);
  const std::string its_name = "inode " + std::to_string(damaged.value);
  const Status refused = Set(4 * kSomeBytes);
  EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(refused.error().message.find(its_name), std::string::npos) << refused.error().message;
  EXPECT_TRUE(world_.fs->quotas().All({}).empty()) << "it is told before anything is done";

  meta::QuotaRecord begun;  // as one that was damaged since
  begun.state = meta::QuotaRecord::State::kGiving;
  Put(meta::QuotaKey(run_), begun.Encode());
  const Status told = Set(4 * kSomeBytes);
  EXPECT_EQ(told.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(told.error().message.find(its_name), std::string::npos) << told.error().message;
  EXPECT_EQ(Used().logical, 2 * kSomeBytes);
  EXPECT_EQ(world_.fs->quotas().All({})[0].record.state, begun.state);
  Put(meta::FileKey(damaged), record);
  ASSERT_TRUE(Set(4 * kSomeBytes).ok());
  EXPECT_EQ(Used().logical, 3 * kSomeBytes);

  record = DamageContentOf(damaged);
  ASSERT_TRUE(TakeOff().ok()) << "that always ends";
  EXPECT_TRUE(world_.fs->quotas().All({}).empty());
  EXPECT_EQ(meta::InodeRecord::Decode((*world_.kv->Get({}, meta::InodeKey(damaged)))->value)->quota, InodeId{});
  EXPECT_EQ(Recorded(), meta::QuotaBytes{});
  Put(meta::FileKey(damaged), record);
}

// Small steps of what is free on the disk would tell who writes something whether it was there already.
TEST_F(QuotasTest, DfTellsOfTheDiskInRoundNumbersAlone) {
  ASSERT_TRUE(Set(uint64_t{2} << 40).ok());
  FsSpace space{.total_bytes = uint64_t{1} << 40, .free_bytes = uint64_t{1} << 39};
  space.available_bytes = space.free_bytes += 3 * kPageBytes;
  const FsSpace told = world_.fs->quotas().Bounded({}, run_, space);
  EXPECT_EQ(told.total_bytes, uint64_t{2} << 40);
  EXPECT_EQ(told.available_bytes, uint64_t{1} << 39);
  EXPECT_EQ(world_.fs->quotas().Bounded({}, kRootInode, space).free_bytes, uint64_t{1} << 39);
}

TEST_F(QuotasTest, WrongInput) {
  const InodeId below = world_.fs->names().MakeNode({}, run_, "below", WithMode(S_IFDIR | 0755))->inode;
  auto& quotas = world_.fs->quotas();
  const auto set = [&](InodeId directory, std::optional<uint64_t> logical) {
    const Status done = quotas.Set({}, {directory, logical, {}, false}, [](uint64_t) { return true; });
    return done.ok() ? ErrorCode::kNoData : done.error().code;
  };
  EXPECT_EQ(set(run_, {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(set(run_, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(set(run_, uint64_t{1} << 63), ErrorCode::kInvalidArgument);
  EXPECT_EQ(set(kRootInode, 1000), ErrorCode::kInvalidArgument);
  EXPECT_EQ(set(InodeId{99999}, 1000), ErrorCode::kNotFound);
  auto file = world_.Create("file");
  EXPECT_EQ(set(file.attr.inode, 1000), ErrorCode::kNotDirectory);
  Close(file);
  ASSERT_EQ(set(below, 1000), ErrorCode::kNoData);
  EXPECT_EQ(set(run_, 1000), ErrorCode::kInvalidArgument) << "one below has one";
  ASSERT_TRUE(quotas.TakeOff({}, below, [](uint64_t) { return true; }).ok());
  ASSERT_EQ(set(run_, 1000), ErrorCode::kNoData);
  EXPECT_EQ(set(below, 1000), ErrorCode::kInvalidArgument) << "one above has one";
}

TEST_F(QuotasTest, OneOfTwoLimitsIsTakenOff) {
  constexpr uint64_t kNoLimit = meta::QuotaRecord::kNoLimit;
  EXPECT_EQ(Set(kNoLimit).error().code, ErrorCode::kInvalidArgument) << "none would be left";
  ASSERT_TRUE(Set(kSomeBytes, 2 * kSomeBytes).ok());
  ASSERT_TRUE(Set(kNoLimit).ok());
  const auto limit = [&] { return world_.fs->quotas().All({}).at(0).record.limit; };
  EXPECT_EQ(limit(), (meta::QuotaBytes{kNoLimit, 2 * kSomeBytes}));
  EXPECT_EQ(Set({}, kNoLimit).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(limit(), (meta::QuotaBytes{kNoLimit, 2 * kSomeBytes}));
  ASSERT_TRUE(Set(kSomeBytes, kNoLimit).ok());
  EXPECT_EQ(limit(), (meta::QuotaBytes{kSomeBytes, kNoLimit}));
}

// Without a quota nothing is read or written for one.
TEST_F(QuotasTest, WithoutOneNothingIsKept) {
  Save("a", RandomText(1, kSomeBytes));
  size_t keys = 0;
  ASSERT_TRUE(ScanPrefix({}, *world_.kv, meta::QuotasPrefix(), [&](const kv::KvEntry&) {
                keys++;
                return true;
              }).ok());
  EXPECT_EQ(keys, 0u);
}

TEST_F(QuotasTest, TheSumsAreThoseOfTheRecords) {
  std::mt19937_64 random(3);
  ASSERT_TRUE(Set(8 * kMiB, 6 * kMiB).ok());
  std::map<std::string, FileSystem::Created> open;
  for (int i = 0; i < 150; i++) {
    const std::string name = std::to_string(random() % 5);
    if (!open.contains(name)) {
      auto created =
          world_.fs->open_files().Create({}, run_, name, WithMode(S_IFREG | 0644), {.read = true, .write = true});
      if (!created.ok()) continue;
      open[name] = *created;
    }
    const FileSystem::Created& file = open[name];
    switch (random() % 6) {
      case 0: EXPECT_TRUE(world_.Truncate(file, random() % (4 * kMiB)).ok()); break;
      case 1: EXPECT_TRUE(world_.Fsync(file).ok()); break;
      case 2: EXPECT_TRUE(world_.Punch(file, random() % kMiB, 1 + random() % kMiB).ok()); break;
      case 3:
        EXPECT_TRUE(world_.fs->names().Unlink({}, run_, name).ok());
        Close(file);
        open.erase(name);
        break;
      default:
        static_cast<void>(world_.Write(file, random() % (3 * kMiB), RandomText(random() % 8, random() % kMiB)).ok());
    }
    EXPECT_EQ(Used(), Recorded()) << i;
    EXPECT_LE(Used().logical, 8 * kMiB);
    EXPECT_LE(Used().unique, 6 * kMiB);
  }
  for (const auto& [name, file] : open) Close(file);
}

}  // namespace
}  // namespace cairnfs::fs
