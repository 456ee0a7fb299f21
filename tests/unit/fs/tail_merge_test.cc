// Pieces at the end of a file become the chunks of one that is written at once.
#include "fs/tail_merge.h"

#include "fixture.h"

namespace cairnfs::fs {
namespace {

class TailMergeTest : public testing::Test {
 protected:
  // Adds a piece of the text, in a chunk of its own.
  void Add(size_t length) {
    ChunkSink sink = Sink();
    const auto digest = PutText(Text().substr(size_, length), sink);
    ASSERT_TRUE(digest.ok());
    const Extent extent{size_, length, *digest, 0, static_cast<uint32_t>(length)};
    extents_.Replace(size_, length, &extent);
    size_ += length;
  }
  // A later chunk begins within the last one.
  void AddOver(size_t overwritten, size_t length) {
    size_ -= overwritten;
    Add(length);
  }
  uint64_t Merge() {
    ChunkSink sink = Sink();
    return MergeTail(extents_, {.size = size_,
                                .params = params_,
                                .read = [&](const Extent& piece) -> Result<std::string> {
                                  if (piece.offset == unreadable_) return MakeError(ErrorCode::kIo, "unreadable");
                                  return store::GetText(*world_.chunks, piece.digest);
                                },
                                .put = [&](std::string_view text) { return PutText(text, sink); }});
  }
  std::vector<Extent> Extents() const {
    std::vector<Extent> all;
    extents_.ForEach(0, size_, [&](const Extent& extent) { all.push_back(extent); });
    return all;
  }
  std::string Stored() {
    std::string text;
    for (const Extent& extent : Extents()) {
      auto chunk = store::GetText(*world_.chunks, extent.digest);
      EXPECT_TRUE(chunk.ok());
      text += chunk->substr(extent.chunk_offset, extent.length);
    }
    return text;
  }
  // The lengths of the chunks of the same text, written at once.
  std::vector<uint64_t> AtOnce() const {
    std::vector<uint64_t> lengths;
    chunking::CutFinder finder(params_);
    for (size_t at = 0; at < size_;) {
      lengths.push_back(finder.Feed(AsBytes(Text().substr(at, size_ - at))).consumed);
      at += lengths.back();
    }
    return lengths;
  }
  std::vector<uint64_t> Lengths() const {
    std::vector<uint64_t> lengths;
    for (const Extent& extent : Extents()) lengths.push_back(extent.length);
    return lengths;
  }
  std::string_view Text() const { return text_; }

  World world_;
  uint64_t size_ = 0;
  uint64_t unreadable_ = UINT64_MAX;  // where a piece begins

 private:
  ChunkSink Sink() { return {*world_.chunks, {}, pins_}; }

  const chunking::ChunkParams params_{.size_bytes_min = 64 * kKiB, .size_bytes_max = 512 * kKiB, .mask_bits = 0};
  const std::string text_ = [] {
    std::mt19937_64 random(1);
    return DrawText(random, 4 * kMiB);
  }();
  std::vector<store::ChunkPin> pins_;
  ExtentMap extents_;
};

// As rounds leave them that come while the file is always being appended to.
TEST_F(TailMergeTest, EqualPiecesAreMergedThoughTheLastIsShort) {
  for (int i = 0; i < 40; ++i) Add(6000);
  Add(100);
  EXPECT_EQ(Merge(), size_);
  EXPECT_EQ(Lengths(), AtOnce());
  EXPECT_EQ(Stored(), Text().substr(0, size_));
  EXPECT_EQ(Merge(), 0U) << "once";
}

TEST_F(TailMergeTest, ALongPieceWaitsForAsMuchAsItIs) {
  Add(40'000);
  Add(30'000);
  EXPECT_EQ(Merge(), 0U);
  Add(10'000);
  EXPECT_EQ(Merge(), size_);
  EXPECT_EQ(Stored(), Text().substr(0, size_));
}

TEST_F(TailMergeTest, WhatEndsAtNoCutIsCutAnew) {
  Add(100'000);  // as the end of a file was
  Add(30'000);
  EXPECT_EQ(Merge(), 0U) << "too little";
  for (int i = 0; i < 40; ++i) Add(6000);
  EXPECT_EQ(Merge(), size_);
  EXPECT_EQ(Lengths(), AtOnce());
  EXPECT_EQ(Stored(), Text().substr(0, size_));
}

TEST_F(TailMergeTest, WhatEndsAtACutStays) {
  size_ = 300'000;
  const std::vector<uint64_t> cuts = AtOnce();
  size_ = 0;
  Add(cuts[0]);
  const Digest first = Extents()[0].digest;
  for (int i = 0; i < 20; ++i) Add(6000);
  EXPECT_EQ(Merge(), 20U * 6000);
  EXPECT_EQ(Extents()[0].digest, first);
  EXPECT_EQ(Lengths(), AtOnce());
}

TEST_F(TailMergeTest, WhatCannotBeReadStaysAndWhatLiesBeforeIt) {
  for (int i = 0; i < 8; ++i) Add(6000);
  unreadable_ = 3 * 6000;
  EXPECT_EQ(Merge(), 4U * 6000);
  EXPECT_EQ(Lengths(), (std::vector<uint64_t>{6000, 6000, 6000, 6000, 24'000}));
  EXPECT_EQ(Stored(), Text().substr(0, size_));
}

TEST_F(TailMergeTest, APieceThatALaterOneCutShortIsMerged) {
  Add(50'000);
  AddOver(20'000, 40'000);
  EXPECT_EQ(Merge(), size_);
  EXPECT_EQ(Stored(), Text().substr(0, size_));
}

}  // namespace
}  // namespace cairnfs::fs
