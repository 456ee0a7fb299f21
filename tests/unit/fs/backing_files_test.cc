#include "fs/backing_files.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../support/draw_text.h"
#include "../../support/eventually.h"
#include "backing_fixture.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kBufferBytes = io::BufferPool::kBufferBytes;

class BackingFilesTest : public testing::Test {
 protected:
  // 32 of its buffers may be lent.
  BackingFilesTest() : pool_(*io::BufferPool::Create({.size_bytes_max = 64 * kBufferBytes, .reserved_count = 4})) {
    std::mt19937_64 random(1);
    chunk_ = DrawText(random, kMiB);
    files_ = std::make_unique<BackingFiles>(
        BackingFiles::Parts{.pool = *pool_,
                            .chunks = chunks_,
                            .table = table_,
                            .make_room = [this](uint64_t) { rooms_made_++; },
                            .load = [](const Context&, const InodePtr&) -> Status { return {}; },
                            .drop_if_unused = [](const InodePtr&) {},
                            .post = [](std::function<void()> task) { task(); }});
  }
  void Begin(uint64_t files_max = BackingFiles::kFilesMax) {
    ASSERT_TRUE(files_->Begin({memory_, registry_, files_max}).ok());
  }

  InodePtr Make(uint64_t number, size_t chunks) {
    const InodePtr inode = table_.AddLookup(InodeId{number});
    MutexLock lock(inode->mutex);
    inode->content = std::make_unique<Content>(chunking::ChunkParams());
    for (size_t i = 0; i < chunks; i++) {
      const Extent extent{i * kMiB, kMiB, chunks_.Add(chunk_), 0, kMiB};
      inode->content->extents.Replace(extent.offset, extent.length, &extent);
    }
    inode->content->size = chunks * kMiB;
    return inode;
  }
  // A file that is filled, with its bytes in memory.
  struct Filled {
    InodePtr inode;
    MemoryBacking* memory;
  };
  Filled MakeFilled(uint64_t number, size_t chunks, uint32_t uid = 0) {
    const InodePtr inode = Make(number, chunks);
    const Status filled = files_->Fill({}, inode->id, uid);
    EXPECT_TRUE(filled.ok()) << filled.error().message;
    return {inode, memory_.last};
  }
  BackingId Open(const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    return files_->NoteOpened(inode);
  }
  void Release(const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    files_->NoteReleased(inode);
  }
  template <typename Act>
  void With(const InodePtr& inode, Act act) {
    MutexLock lock(inode->mutex);
    ASSERT_NE(inode->backing, nullptr);
    act(*inode->backing);
  }
  static bool IsBacked(const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    return inode->backing != nullptr;
  }
  ErrorCode CodeOfFill(const InodePtr& inode) {
    const Status filled = files_->Fill({}, inode->id, 0);
    EXPECT_FALSE(filled.ok());
    return filled.ok() ? ErrorCode{} : filled.error().code;
  }

  std::unique_ptr<io::BufferPool> pool_;
  HeldChunks chunks_;
  MemoryBackings memory_{kGiB};
  CountingRegistry registry_;
  InodeTable table_{[](const InodePtr&) {}};
  std::string chunk_;
  int rooms_made_ = 0;
  std::unique_ptr<BackingFiles> files_;
};

TEST_F(BackingFilesTest, AFilledFileIsOpenedPastTheDaemon) {
  Begin();
  const InodePtr inode = Make(1, 3);
  EXPECT_EQ(Open(inode), 0);
  ASSERT_TRUE(files_->Fill({}, inode->id, 0).ok());
  EXPECT_TRUE(memory_.last->text() == chunk_ + chunk_ + chunk_);
  const BackingId id = Open(inode);
  EXPECT_NE(id, 0);
  EXPECT_EQ(Open(inode), id);
  EXPECT_EQ(files_->status().files, 1U);
  EXPECT_GE(files_->status().bytes, 3 * kMiB);
  EXPECT_EQ(pool_->lent_count(), 3U);
  EXPECT_EQ(registry_.forgotten, 1) << "the kernel asks for its attributes anew";
  Release(inode);
  Release(inode);
  EXPECT_TRUE(IsBacked(inode));
  ASSERT_TRUE(files_->Fill({}, inode->id, 0).ok());
  EXPECT_EQ(files_->status().filled_total, 1U);
  EXPECT_EQ(files_->status().opens_total, 2U);
}

TEST_F(BackingFilesTest, WithoutTheKernelNothingIsFilled) {
  const InodePtr inode = Make(1, 3);
  EXPECT_EQ(CodeOfFill(inode), ErrorCode::kNotSupported);
  files_->FillSoon(inode->id, 0);
  EXPECT_EQ(Open(inode), 0);
  EXPECT_EQ(pool_->lent_count(), 0U);
}

TEST_F(BackingFilesTest, SmallFilesAreNotWorthIt) {
  Begin();
  EXPECT_EQ(CodeOfFill(Make(1, 0)), ErrorCode::kNotSupported);
}

TEST_F(BackingFilesTest, NorIsWhatIsMostlyHolesOrWasOpenedForUpdate) {
  Begin();
  const InodePtr sparse = Make(1, 3), updated = Make(2, 3);
  {
    MutexLock lock(sparse->mutex);
    sparse->content->size = 7 * kMiB;
  }
  EXPECT_EQ(CodeOfFill(sparse), ErrorCode::kNotSupported);
  {
    MutexLock lock(updated->mutex);
    updated->opened_for_update = true;
  }
  EXPECT_EQ(CodeOfFill(updated), ErrorCode::kNotSupported);
  EXPECT_EQ(files_->status().failed_total, 0U) << "none was begun";
}

TEST_F(BackingFilesTest, WhatIsStoredIsFilledWhileAThreadStillLooksForCuts) {
  Begin();
  const InodePtr inode = Make(1, 3);
  {
    MutexLock lock(inode->mutex);
    inode->content->cutting = true;
  }
  EXPECT_TRUE(files_->Fill({}, inode->id, 0).ok());
}

TEST_F(BackingFilesTest, AFileIsToBeReadThroughAgainBeforeItIsTriedAgain) {
  Begin();
  const InodePtr inode = Make(1, 3);
  const auto is_read_through = [&] {
    MutexLock lock(inode->mutex);
    return std::exchange(inode->is_read_through, true);
  };
  is_read_through();
  registry_.Refuse(MakeError(ErrorCode::kPermission, "not now"));
  EXPECT_EQ(CodeOfFill(inode), ErrorCode::kPermission);
  EXPECT_FALSE(is_read_through());
}

TEST_F(BackingFilesTest, AUserHasHalfOfIt) {
  Begin();
  constexpr uint32_t kOne = 1000, kOther = 1001;
  const Filled a = MakeFilled(1, 8, kOne), b = MakeFilled(2, 8, kOne);
  EXPECT_NE(Open(a.inode), 0);
  b.memory->SetUsed(true);
  const InodePtr more = Make(3, 2);
  EXPECT_EQ(files_->Fill({}, more->id, kOne).error().code, ErrorCode::kNoSpace);
  const Filled others = MakeFilled(4, 8, kOther);
  EXPECT_EQ(files_->Fill({}, more->id, kOne).error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(IsBacked(others.inode)) << "nobody makes room for what is beyond a share";
  b.memory->SetUsed(false);
  EXPECT_TRUE(files_->Fill({}, more->id, kOne).ok());
  EXPECT_FALSE(IsBacked(b.inode)) << "but his own files do";
  EXPECT_EQ(files_->Fill({}, Make(5, 17)->id, kOther).error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(IsBacked(others.inode));
}

TEST_F(BackingFilesTest, APoolThatRunsDryGetsMemoryBack) {
  Begin();
  const Filled open = MakeFilled(1, 9), other = MakeFilled(2, 9);
  EXPECT_NE(Open(open.inode), 0);
  files_->NotePressure();
  EXPECT_FALSE(IsBacked(other.inode));
  EXPECT_EQ(rooms_made_, 0);
  files_->NotePressure();
  EXPECT_TRUE(IsBacked(open.inode));
  EXPECT_EQ(rooms_made_, 1) << "of chunks";
  EXPECT_EQ(pool_->lent_count(), 9U);
}

TEST_F(BackingFilesTest, WhoNeedsMemoryWaitsForNobodysLock) {
  Begin();
  const Filled held = MakeFilled(1, 9), other = MakeFilled(2, 9);
  MutexLock lock(held.inode->mutex);
  files_->NotePressure();  // on this thread
  EXPECT_FALSE(IsBacked(other.inode));
  files_->NotePressure();
  EXPECT_NE(held.inode->backing, nullptr);
  EXPECT_EQ(rooms_made_, 1);
}

TEST_F(BackingFilesTest, TheStatusSaysWhyNoneIsPassed) {
  EXPECT_NE(files_->status().why_not, "");
  files_->NoteOff("an old kernel");
  EXPECT_EQ(files_->status().why_not, "an old kernel");
  Begin();
  EXPECT_EQ(files_->status().why_not, "");
  files_->End();
  EXPECT_NE(files_->status().why_not, "");
}

TEST_F(BackingFilesTest, AFailedFillTakesNothing) {
  Begin();
  const InodePtr inode = Make(1, 3);
  registry_.Refuse(MakeError(ErrorCode::kPermission, "not now"));
  EXPECT_EQ(CodeOfFill(inode), ErrorCode::kPermission);
  chunks_.errors.emplace(chunks_.Add(chunk_), MakeError(ErrorCode::kCorrupt, "damaged"));
  EXPECT_EQ(CodeOfFill(inode), ErrorCode::kCorrupt);
  EXPECT_EQ(files_->status().failed_total, 2U);
  EXPECT_EQ(registry_.count(), 0U);
  EXPECT_EQ(pool_->lent_count(), 0U);
  EXPECT_EQ(Open(inode), 0);
}

TEST_F(BackingFilesTest, WhoWasOpenedLongestAgoMakesRoom) {
  Begin();
  const Filled a = MakeFilled(1, 9), b = MakeFilled(2, 9), c = MakeFilled(3, 9);
  EXPECT_EQ(rooms_made_, 0);
  Clock::SleepFor(std::chrono::seconds(1));
  EXPECT_NE(Open(a.inode), 0);
  Release(a.inode);
  const Filled d = MakeFilled(4, 9);
  EXPECT_EQ(rooms_made_, 0) << "chunks cannot: so much is lent at most";
  EXPECT_TRUE(IsBacked(a.inode));
  EXPECT_NE(IsBacked(b.inode), IsBacked(c.inode)) << "one of those that were filled first";
  EXPECT_EQ(pool_->lent_count(), 27U);
}

TEST_F(BackingFilesTest, NoMoreFilesAreInMemoryThanThereAreDescriptorsFor) {
  Begin(2);
  const Filled first = MakeFilled(1, 1), second = MakeFilled(2, 1);
  EXPECT_EQ(files_->status().files, 2U);
  Clock::SleepFor(std::chrono::milliseconds(1));
  EXPECT_NE(Open(first.inode), 0);
  const Filled third = MakeFilled(3, 1);
  EXPECT_FALSE(IsBacked(second.inode)) << "it was used longest ago";
  EXPECT_EQ(files_->status().files, 2U);
  EXPECT_NE(Open(third.inode), 0);
  EXPECT_EQ(CodeOfFill(second.inode), ErrorCode::kNoSpace);
  Release(first.inode);
  EXPECT_TRUE(files_->Fill({}, second.inode->id, 0).ok());
  EXPECT_EQ(files_->status().files, 2U);
  Release(third.inode);
}

TEST_F(BackingFilesTest, WhatIsOpenOrMappedStays) {
  Begin();
  const Filled open = MakeFilled(1, 14), mapped = MakeFilled(2, 14);
  EXPECT_NE(Open(open.inode), 0);
  mapped.memory->SetUsed(true);
  const InodePtr other = Make(3, 14);
  EXPECT_EQ(CodeOfFill(other), ErrorCode::kNoSpace);
  EXPECT_TRUE(IsBacked(open.inode) && IsBacked(mapped.inode));
  mapped.memory->SetUsed(false);
  EXPECT_TRUE(files_->Fill({}, other->id, 0).ok());
  EXPECT_TRUE(IsBacked(open.inode));
  EXPECT_FALSE(IsBacked(mapped.inode));
}

TEST_F(BackingFilesTest, WhatCanNeverFitTakesNoRoomFromOthers) {
  Begin();
  const Filled file = MakeFilled(1, 10);
  EXPECT_EQ(CodeOfFill(Make(2, 40)), ErrorCode::kNoSpace);
  EXPECT_TRUE(IsBacked(file.inode));
  EXPECT_EQ(rooms_made_, 0);
}

TEST_F(BackingFilesTest, AFileInUseFollowsItsChanges) {
  Begin();
  const Filled file = MakeFilled(1, 2);
  EXPECT_NE(Open(file.inode), 0);
  std::string text = chunk_ + chunk_;
  With(file.inode, [&](Backing& backing) {
    backing.NoteWritten(5, AsBytes("written"));
    text.replace(5, 7, "written");
    backing.NotePunched(100, 200);
    text.replace(100, 100, 100, '\0');
    backing.NoteTruncated(kMiB + 10);
    text.resize(kMiB + 10);
    backing.NoteTruncated(2 * kMiB);
    text.resize(2 * kMiB);
    backing.NoteWritten(text.size(), AsBytes(chunk_));
    text += chunk_;
  });
  EXPECT_TRUE(file.memory->text() == text);
  EXPECT_GE(pool_->lent_count() * kBufferBytes, text.size()) << "what it grows by is borrowed too";
  EXPECT_NE(Open(file.inode), 0);
}

TEST_F(BackingFilesTest, WithoutMemoryToGrowItFallsBehindAndNobodyGetsItAnyMore) {
  Begin();
  const Filled file = MakeFilled(1, 20);
  EXPECT_NE(Open(file.inode), 0);
  With(file.inode, [&](Backing& backing) {
    for (uint64_t at = 20 * kMiB; at < 40 * kMiB; at += kMiB) backing.NoteWritten(at, AsBytes(chunk_));
    EXPECT_TRUE(backing.is_behind());
  });
  EXPECT_LE(pool_->lent_count(), 32U);
  EXPECT_LE(file.memory->text().size(), 33 * kMiB);
  EXPECT_EQ(Open(file.inode), 0);
  EXPECT_TRUE(IsBacked(file.inode)) << "who has it open goes on";
  Release(file.inode);
  EXPECT_FALSE(IsBacked(file.inode));
  EXPECT_EQ(pool_->lent_count(), 0U);
}

// A mapping takes memory for a hole that it only reads.
TEST_F(BackingFilesTest, AHoleAtTheEndTakesItsMemoryAtOnce) {
  Begin();
  const Filled file = MakeFilled(1, 4);
  EXPECT_NE(Open(file.inode), 0);
  With(file.inode, [&](Backing& backing) {
    backing.NoteTruncated(8 * kMiB);
    EXPECT_GE(backing.bytes(), 8 * kMiB);
    EXPECT_FALSE(backing.is_behind());
    for (const uint64_t size : {uint64_t{1} << 40, kFileSizeMax}) {
      backing.NoteTruncated(size);
      EXPECT_TRUE(backing.is_behind());
    }
    EXPECT_EQ(file.memory->text().size(), 8 * kMiB) << "who has it open keeps what he had";
    EXPECT_LE(pool_->lent_count() * kBufferBytes, pool_->lendable_bytes());
  });
  Release(file.inode);
}

TEST_F(BackingFilesTest, AFailedWriteIntoMemoryLeavesItBehind) {
  Begin();
  const Filled file = MakeFilled(1, 2);
  file.memory->SetRoom(0);
  With(file.inode, [&](Backing& backing) { backing.NoteWritten(0, AsBytes("x")); });
  EXPECT_EQ(Open(file.inode), 0);
}

TEST_F(BackingFilesTest, WhatNobodyUsesGoesBeforeAChange) {
  Begin();
  const Filled unused = MakeFilled(1, 2), open = MakeFilled(2, 2), mapped = MakeFilled(3, 2);
  EXPECT_NE(Open(open.inode), 0);
  mapped.memory->SetUsed(true);
  for (const Filled& file : {unused, open, mapped}) {
    MutexLock lock(file.inode->mutex);
    BackingFiles::NoteChanging(file.inode);
  }
  EXPECT_FALSE(IsBacked(unused.inode));
  EXPECT_TRUE(IsBacked(open.inode));
  EXPECT_TRUE(IsBacked(mapped.inode));
}

TEST_F(BackingFilesTest, AFileIsFilledBesideAndOnce) {
  Begin();
  const InodePtr inode = Make(1, 3);
  for (int i = 0; i < 3; i++) files_->FillSoon(inode->id, 0);
  EXPECT_TRUE(Eventually([&] { return Open(inode) != 0; }));
  EXPECT_EQ(files_->status().filled_total, 1U);
}

TEST_F(BackingFilesTest, AForgottenInodeGivesItsMemoryBack) {
  Begin();
  {
    const Filled file = MakeFilled(1, 3);
    table_.Forget(InodeId{1}, 1);
  }
  EXPECT_EQ(registry_.count(), 0U);
  EXPECT_EQ(pool_->lent_count(), 0U);
  EXPECT_EQ(files_->status().files, 0U);
}

TEST_F(BackingFilesTest, TheEndWaitsForAFillThatRuns) {
  Begin();
  const InodePtr inode = Make(1, 3);
  chunks_.holds = true;
  std::thread fill([&] { EXPECT_FALSE(files_->Fill({}, inode->id, 0).ok()); });
  EXPECT_TRUE(Eventually([&] { return chunks_.held() > 0; }));
  files_->End();
  EXPECT_EQ(pool_->lent_count(), 0U) << "nobody uses the kernel's parts any more";
  fill.join();
  EXPECT_EQ(CodeOfFill(inode), ErrorCode::kNotSupported);
}

TEST_F(BackingFilesTest, TheEndTakesAllAndFillsNoMore) {
  Begin();
  const Filled open = MakeFilled(1, 3), other = MakeFilled(2, 3);
  EXPECT_NE(Open(open.inode), 0);
  files_->End();
  EXPECT_EQ(registry_.count(), 0U);
  EXPECT_EQ(pool_->lent_count(), 0U);
  Release(open.inode);
  files_->FillSoon(other.inode->id, 0);
  EXPECT_FALSE(IsBacked(other.inode));
}

}  // namespace
}  // namespace cairnfs::fs
