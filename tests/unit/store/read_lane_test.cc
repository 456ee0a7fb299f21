// Reads ahead of need: a few on their way, the others in line, and nobody waits longer than needed.
#include "store/read_lane.h"

#include "store_fixture.h"

namespace cairnfs::store {
namespace {

// A file whose reads come back when the test says so.
class HeldFile final : public io::File {
 public:
  void ReadAsync(uint64_t offset, MutableByteSpan data, io::IoCallback done) override {
    reads_.push_back({offset, data.size(), std::move(done)});
  }
  void WriteAsync(uint64_t, ByteSpan, io::IoCallback done) override { done(Refused()); }
  Status DataSync() override { return Refused(); }
  Status Allocate(uint64_t) override { return Refused(); }
  Status Truncate(uint64_t) override { return Refused(); }
  Result<uint64_t> Size() override { return Refused(); }
  bool direct() const override { return true; }
  const std::string& path() const override { return path_; }

  std::vector<uint64_t> offsets() const {
    std::vector<uint64_t> offsets;
    for (const HeldRead& read : reads_) offsets.push_back(read.offset);
    return offsets;
  }
  void Complete(size_t index) {
    HeldRead read = std::move(reads_[index]);
    reads_.erase(reads_.begin() + static_cast<ptrdiff_t>(index));
    read.done(read.size);
  }

 private:
  struct HeldRead {
    uint64_t offset;
    size_t size;
    io::IoCallback done;
  };
  static Error Refused() { return MakeError(ErrorCode::kNotSupported, "this file is only read"); }
  const std::string path_ = "held";
  std::vector<HeldRead> reads_;
};

class ReadLaneTest : public ::testing::Test {
 protected:
  static constexpr size_t kReadBytes = 64 * kKiB;
  static uint64_t At(uint64_t number) { return number * kReadBytes; }

  // Starts the read of the bytes At(number), and remembers in `ended_` that it came back.
  ReadLane::Ticket Start(uint64_t number) {
    auto read = std::make_shared<SegmentRead>(OpenSegment{segment_, file_}, At(number), At(number + 1));
    EXPECT_TRUE(read->TakeBuffers(*pool_));
    const ReadLane::Ticket ticket = lane_.NewTicket();
    lane_.Start(ticket, read, [this, number, read] { ended_.push_back(number); });
    return ticket;
  }
  using Offsets = std::vector<uint64_t>;

  std::unique_ptr<io::BufferPool> pool_ = MakePool();
  SegmentPtr segment_ = std::make_shared<Segment>(SegmentHeader{});
  std::shared_ptr<HeldFile> file_ = std::make_shared<HeldFile>();
  std::vector<uint64_t> ended_;
  ReadLane lane_{2 * kReadBytes};
};

TEST_F(ReadLaneTest, StartsUpToItsBoundAndTheOthersInOrderAsReadsComeBack) {
  for (uint64_t number = 0; number < 5; ++number) Start(number);
  EXPECT_EQ(file_->offsets(), (Offsets{At(0), At(1)}));
  file_->Complete(1);
  EXPECT_EQ(file_->offsets(), (Offsets{At(0), At(2)}));
  file_->Complete(0);
  file_->Complete(0);
  EXPECT_EQ(file_->offsets(), (Offsets{At(3), At(4)}));
  file_->Complete(0);
  file_->Complete(0);
  EXPECT_EQ(ended_, (Offsets{1, 0, 2, 3, 4}));
  Start(5);
  EXPECT_EQ(file_->offsets(), (Offsets{At(5)}));
  file_->Complete(0);
}

TEST_F(ReadLaneTest, WhatSomebodyWaitsForLeavesTheLine) {
  std::vector<ReadLane::Ticket> tickets;
  for (uint64_t number = 0; number < 5; ++number) tickets.push_back(Start(number));
  lane_.Hurry(tickets[4]);
  lane_.Hurry(tickets[4]);  // on its way by now
  lane_.Hurry(tickets[0]);
  EXPECT_EQ(file_->offsets(), (Offsets{At(0), At(1), At(4)}));
  file_->Complete(0);
  EXPECT_EQ(file_->offsets(), (Offsets{At(1), At(4)}));  // still as many as may be
  file_->Complete(0);
  EXPECT_EQ(file_->offsets(), (Offsets{At(4), At(2)}));
  file_->Complete(1);
  file_->Complete(1);
  file_->Complete(0);
  EXPECT_EQ(ended_, (Offsets{0, 1, 2, 3, 4}));
}

TEST_F(ReadLaneTest, OneThatIsLargerThanTheBoundIsStartedAllTheSame) {
  auto read = std::make_shared<SegmentRead>(OpenSegment{segment_, file_}, 0, 4 * kReadBytes);
  ASSERT_TRUE(read->TakeBuffers(*pool_));
  lane_.Start(lane_.NewTicket(), read, [read] {});
  Start(4);
  EXPECT_EQ(file_->offsets(), (Offsets{0}));
  file_->Complete(0);
  EXPECT_EQ(file_->offsets(), (Offsets{At(4)}));
  file_->Complete(0);
}

// A reader that comes to what is still in line has it read at once, before what was asked for earlier.
TEST_F(StoreTest, AReaderDoesNotStandInLine) {
  pool_ = MakePool(96 * kMiB);
  StoreOptions options = SmallOptions();
  Open(options);
  std::vector<TestChunk> chunks;
  std::vector<Digest> digests;
  for (uint64_t i = 0; i < 60; ++i) {
    chunks.push_back(MakeChunk(i, 700'000));
    digests.push_back(chunks.back().digest);
    Put(chunks.back());
  }
  ASSERT_OK(store_->Sync());
  Open(options);
  io::Faults slow;
  slow.delay_max = std::chrono::milliseconds(20);
  disk_.SetFaults(slow);
  store_->Prefetch(digests);
  for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk) ExpectReads(*chunk);
  disk_.SetFaults(io::Faults());
}

}  // namespace
}  // namespace cairnfs::store
