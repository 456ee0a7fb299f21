#include "fuse/packer.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace cairnfs::fuse {
namespace {

class PackerTest : public testing::Test {
 protected:
  void SetUp() override {
    io::BufferPool::Options options;
    options.size_bytes_max = 8 * io::BufferPool::kBufferBytes;
    options.reserved_count = 1;
    auto pool = io::BufferPool::Create(options);
    ASSERT_TRUE(pool.ok()) << pool.error().message;
    pool_ = std::move(*pool);
  }
  std::unique_ptr<io::BufferPool> pool_;
};

TEST_F(PackerTest, NeedsABufferFirst) {
  Packer packer;
  EXPECT_FALSE(packer.Fits(1));
}

TEST_F(PackerTest, PayloadsLieOneAfterAnother) {
  Packer packer;
  packer.Refill(pool_->Acquire());
  io::Slice first = packer.Add(AsBytes("hello "));
  io::Slice second = packer.Add(AsBytes("world"));
  EXPECT_EQ(second.data, first.data + first.size);
  EXPECT_EQ(AsText({first.data, 11}), "hello world");
}

TEST_F(PackerTest, AFullBufferTakesNoMoreUntilItsPayloadsAreGone) {
  Packer packer;
  packer.Refill(pool_->Acquire());
  const std::string most(io::BufferPool::kPayloadBytes, 'x');
  std::optional<io::Slice> slice = packer.Add(AsBytes(most));
  EXPECT_FALSE(packer.Fits(1));
  slice.reset();
  EXPECT_TRUE(packer.Fits(1));
}

TEST_F(PackerTest, SlicesOutliveThePacker) {
  io::Slice slice;
  {
    Packer packer;
    packer.Refill(pool_->Acquire());
    slice = packer.Add(AsBytes("kept"));
  }
  EXPECT_EQ(AsText(slice.bytes()), "kept");
  const size_t before = pool_->free_count();
  slice = {};
  EXPECT_EQ(pool_->free_count(), before + 1);
}

}  // namespace
}  // namespace cairnfs::fuse
