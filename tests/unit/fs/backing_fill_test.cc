#include "fs/backing_fill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "../../support/draw_text.h"
#include "backing_fixture.h"
#include "base/clock.h"

namespace cairnfs::fs {
namespace {

class BackingFillTest : public testing::Test {
 protected:
  BackingFillTest() {
    MutexLock lock(inode_->mutex);
    inode_->content = std::make_unique<Content>(chunking::ChunkParams());
  }
  // A part of a chunk at `offset`, as extents have it.
  void Lay(uint64_t offset, const std::string& chunk, uint32_t from, uint64_t length) {
    const Digest digest = chunks_.Add(chunk);
    const Extent extent{offset, length, digest, from, static_cast<uint32_t>(chunk.size())};
    MutexLock lock(inode_->mutex);
    inode_->content->extents.Replace(offset, length, &extent);
    inode_->content->size = std::max(inode_->content->size, offset + length);
    if (text_.size() < offset + length) text_.resize(offset + length);
    text_.replace(offset, length, chunk, from, length);
  }
  void LaySome(int count) {
    std::mt19937_64 random(1);
    for (int i = 0; i < count; i++) Lay(text_.size(), DrawText(random, 1000 + 10 * i), 0, 1000 + 10 * i);
  }
  void Resize(uint64_t size) {
    MutexLock lock(inode_->mutex);
    inode_->content->size = size;
    text_.resize(size);
  }
  void Change(const std::function<void(Content&)>& change) {
    MutexLock lock(inode_->mutex);
    change(*inode_->content);
  }
  Status Fill(const Context& context = {}) {
    fill_ = std::make_unique<BackingFill>(chunks_, inode_, file_);
    return fill_->Run(context);
  }
  ErrorCode CodeOfFill() {
    const Status status = Fill();
    EXPECT_FALSE(status.ok());
    return status.ok() ? ErrorCode{} : status.error().code;
  }
  bool IsCurrent() {
    MutexLock lock(inode_->mutex);
    return fill_->IsCurrent(inode_);
  }

  HeldChunks chunks_;
  const InodePtr inode_ = std::make_shared<Inode>(InodeId{7});
  MemoryBacking file_{kGiB};
  std::string text_;  // what the file has
  std::unique_ptr<BackingFill> fill_;
};

TEST_F(BackingFillTest, AllBytesAreFilledHolesAndPartsOfChunksToo) {
  std::mt19937_64 random(2);
  const std::string chunk = DrawText(random, 3000);
  Lay(100, chunk, 0, 3000);
  Lay(5000, chunk, 1, 2998);
  Lay(8000, chunk, 2999, 1);
  Lay(9000, DrawText(random, 10), 4, 6);
  Resize(20'000);
  ASSERT_TRUE(Fill().ok());
  EXPECT_TRUE(file_.text() == text_);
  EXPECT_EQ(fill_->size(), 20'000U);
  EXPECT_TRUE(IsCurrent());
}

TEST_F(BackingFillTest, AFileOfManyLeavesIsFilledPieceByPiece) {
  std::mt19937_64 random(3);
  Lay(kLeafBytes - 2000, DrawText(random, 2000), 0, 2000);
  Lay(kLeafBytes, DrawText(random, 2000), 0, 2000);
  Lay(kLeafBytes + 5000, DrawText(random, 2000), 0, 2000);
  ASSERT_TRUE(Fill().ok());
  EXPECT_TRUE(file_.text() == text_);
}

TEST_F(BackingFillTest, AnEmptyFileIsFilled) {
  ASSERT_TRUE(Fill().ok());
  EXPECT_EQ(file_.text(), "");
  EXPECT_EQ(chunks_.gets, 0);
}

TEST_F(BackingFillTest, ChunksMayComeInAnyOrderAndFewAreOnTheirWay) {
  LaySome(40);
  chunks_.holds = true;
  std::jthread deliverer([&] {
    std::mt19937_64 random(4);
    for (size_t delivered = 0; delivered < 40;) {
      if (chunks_.held() < std::min<size_t>(8, 40 - delivered)) {
        Clock::SleepFor(std::chrono::milliseconds(1));
        continue;
      }
      chunks_.Deliver(random());
      delivered++;
    }
  });
  ASSERT_TRUE(Fill().ok());
  EXPECT_TRUE(file_.text() == text_);
  EXPECT_EQ(chunks_.held_max(), 8U);
}

TEST_F(BackingFillTest, AFileThatIsChangedMeanwhileIsGivenUp) {
  LaySome(20);
  chunks_.on_get = [this](int number) {
    if (number != 15) return;
    Change([](Content& content) { content.changes++; });  // changed, and published since
  };
  EXPECT_EQ(CodeOfFill(), ErrorCode::kBusy);
}

TEST_F(BackingFillTest, AChangeAfterwardsIsNoticed) {
  LaySome(3);
  ASSERT_TRUE(Fill().ok());
  EXPECT_TRUE(IsCurrent());
  Change([](Content& content) { content.changed = true; });
  EXPECT_FALSE(IsCurrent());
  Change([](Content& content) { content.changed = false; });
  EXPECT_TRUE(IsCurrent());
  Change([](Content& content) { content.changes++; });
  EXPECT_FALSE(IsCurrent());
}

TEST_F(BackingFillTest, WhatIsNotAsItsRecordIsNotFilled) {
  LaySome(3);
  const auto expect_busy = [this](const char* what) {
    EXPECT_EQ(CodeOfFill(), ErrorCode::kBusy) << what;
    EXPECT_EQ(chunks_.gets, 0) << what;
  };
  Change([](Content& content) { content.changed = true; });
  expect_busy("changed");
  Change([](Content& content) {
    content.changed = false;
    content.unrecorded = true;
  });
  expect_busy("its record cannot be read yet");
  Change([](Content& content) {
    content.unrecorded = false;
    content.AddLost({0, 1, 1});
  });
  expect_busy("bytes are lost");
  Change([](Content& content) { content.ForgetLost(0, 1); });
  {
    MutexLock lock(inode_->mutex);
    inode_->write_open_count = 1;
  }
  expect_busy("open for writing");
  {
    MutexLock lock(inode_->mutex);
    inode_->write_open_count = 0;
  }
  EXPECT_TRUE(Fill().ok());
}

TEST_F(BackingFillTest, ShortMemoryEndsIt) {
  LaySome(20);
  file_.SetRoom(10'000);
  EXPECT_EQ(CodeOfFill(), ErrorCode::kNoSpace);
}

TEST_F(BackingFillTest, ADamagedChunkEndsIt) {
  LaySome(20);
  const std::string bad = "not what its digest says";
  chunks_.errors.emplace(chunks_.Add(bad), MakeError(ErrorCode::kCorrupt, "a chunk fails its digest"));
  Lay(text_.size(), bad, 0, bad.size());
  EXPECT_EQ(CodeOfFill(), ErrorCode::kCorrupt);
}

TEST_F(BackingFillTest, AChunkThatIsNowhereIsDamage) {
  const std::string gone = "gone";
  chunks_.errors.emplace(chunks_.Add(gone), MakeError(ErrorCode::kNotFound, "no such chunk"));
  Lay(0, gone, 0, gone.size());
  EXPECT_EQ(CodeOfFill(), ErrorCode::kCorrupt);
}

TEST_F(BackingFillTest, AChunkThatIsTooShortIsDamage) {
  const Extent extent{0, 100, chunks_.Add("short"), 0, 100};
  Change([&](Content& content) {
    content.extents.Replace(0, 100, &extent);
    content.size = 100;
  });
  EXPECT_EQ(CodeOfFill(), ErrorCode::kCorrupt);
}

TEST_F(BackingFillTest, ItEndsWhenNobodyWaitsForItAnyMore) {
  LaySome(3);
  chunks_.holds = true;
  std::stop_source stop;
  std::jthread stopper([&] {
    while (chunks_.gets < 3) Clock::SleepFor(std::chrono::milliseconds(1));
    stop.request_stop();
  });
  const Status status = Fill(Context(stop.get_token()));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInterrupted);
  while (chunks_.held() > 0) chunks_.Deliver(0);  // to nobody
}

}  // namespace
}  // namespace cairnfs::fs
