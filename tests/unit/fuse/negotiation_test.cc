#include "fuse/negotiation.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstring>

namespace cairnfs::fuse {
namespace {

// The body of an INIT request as Linux 6.18 sends it: 7.45, read-ahead 128 KiB, all flags of both halves.
const std::array<uint8_t, 64> kInitRequest = {
    0x07, 0, 0, 0, 0x2d, 0, 0, 0, 0, 0, 0x02, 0, 0xfb, 0xff, 0xff, 0x73, 0xff, 0x03, 0, 0,
};

// The answer that must come of it: the wanted flags, of the upper half bit 36 alone, 1 MiB, 256 pages.
std::array<uint8_t, 64> GoldenReply() {
  std::array<uint8_t, 64> bytes{};
  const std::array<uint8_t, 40> start = {
      0x07, 0,    0,    0,                 // major
      0x26, 0,    0,    0,                 // minor, as libfuse wrote it
      0,    0,    0x02, 0,                 // max_readahead, as libfuse wrote it
      0x39, 0xe0, 0xc4, 0x50,              // flags
      64,   0,    48,   0,                 // max_background, congestion_threshold, as libfuse wrote them
      0,    0,    0x10, 0,                 // max_write
      1,    0,    0,    0,                 // time_gran
      0,    4,    0,    0,                 // max_pages, map_alignment
      0x10, 0,    0,    0,    0, 0, 0, 0,  // flags2
  };
  std::copy(start.begin(), start.end(), bytes.begin());
  return bytes;
}

ByteSpan Span(const std::array<uint8_t, 64>& bytes, size_t size = 64) {
  return {reinterpret_cast<const std::byte*>(bytes.data()), size};
}

fuse_init_out ReplyOfLibfuse() {
  fuse_init_out reply{};
  reply.major = 7;
  reply.minor = 38;
  reply.max_readahead = 128 * 1024;
  reply.flags = FUSE_AUTO_INVAL_DATA | FUSE_HANDLE_KILLPRIV | FUSE_POSIX_LOCKS | FUSE_SPLICE_READ;
  reply.max_background = 64;
  reply.congestion_threshold = 48;
  reply.max_write = 4096;
  reply.time_gran = 1;
  return reply;
}

TEST(NegotiationTest, TheAnswerToACurrentKernelIsTheGoldenOne) {
  auto offer = DecodeInitRequest(Span(kInitRequest));
  ASSERT_TRUE(offer);
  EXPECT_EQ(offer->minor, 45U);
  fuse_init_out reply = ReplyOfLibfuse();
  PatchInitReply(*offer, reply);
  std::array<uint8_t, 64> bytes;
  static_assert(sizeof reply == bytes.size());
  std::memcpy(bytes.data(), &reply, sizeof reply);
  EXPECT_EQ(bytes, GoldenReply());
}

TEST(NegotiationTest, NothingIsClaimedThatWasNotOffered) {
  for (int bit = 0; bit < 64; ++bit) {
    KernelOffer offer{7, 45, ~(1ULL << bit)};
    EXPECT_EQ(AgreedFlags(offer) & (1ULL << bit), 0U) << bit;
  }
  EXPECT_EQ(AgreedFlags({7, 45, 0}), 0U);
}

TEST(NegotiationTest, AKernelWithoutTheSecondHalfGetsNone) {
  KernelOffer offer{7, 31, ~uint64_t{FUSE_INIT_EXT}};
  fuse_init_out reply = ReplyOfLibfuse();
  PatchInitReply(offer, reply);
  EXPECT_EQ(reply.flags2, 0U);
  EXPECT_EQ(reply.flags & FUSE_INIT_EXT, 0U);
}

TEST(NegotiationTest, AKernelWithoutMaxPagesGetsSmallRequests) {
  KernelOffer offer{7, 27, FUSE_ASYNC_READ | FUSE_BIG_WRITES};
  fuse_init_out reply = ReplyOfLibfuse();
  PatchInitReply(offer, reply);
  EXPECT_EQ(reply.max_write, 128U * 1024);
  EXPECT_EQ(reply.max_pages, 0U);
}

TEST(NegotiationTest, WhatWouldBeWrongHereIsNeverTaken) {
  const uint64_t agreed = AgreedFlags({7, 45, ~0ULL});
  const uint64_t never = FUSE_WRITEBACK_CACHE | FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS | FUSE_SPLICE_READ |
                         FUSE_SPLICE_WRITE | FUSE_SPLICE_MOVE | FUSE_AUTO_INVAL_DATA | FUSE_HANDLE_KILLPRIV |
                         FUSE_DONT_MASK | FUSE_POSIX_ACL | FUSE_SETXATTR_EXT;
  EXPECT_EQ(agreed & never, 0U);
}

TEST(NegotiationTest, LocksComeToTheDaemonWhereItKeepsThem) {
  constexpr uint64_t kLocks = FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS;
  EXPECT_EQ(AgreedFlags({7, 45, ~0ULL}, {.lock_keeper = LockKeeper::kDaemon}), AgreedFlags({7, 45, ~0ULL}) | kLocks);
  EXPECT_EQ(AgreedFlags({7, 45, 0}, {.lock_keeper = LockKeeper::kDaemon}), 0U);
  fuse_init_out reply = ReplyOfLibfuse();
  PatchInitReply({7, 45, ~0ULL}, reply, {.lock_keeper = LockKeeper::kDaemon});
  EXPECT_EQ(reply.flags & kLocks, kLocks);
}

TEST(NegotiationTest, PassthroughIsTakenWhereItIsWantedAndOffered) {
  constexpr Wishes kWanted{.passthrough = true};
  const KernelOffer all{7, 45, ~0ULL}, without{7, 39, ~kFusePassthrough};
  EXPECT_EQ(AgreedFlags(all, kWanted), AgreedFlags(all) | kFusePassthrough);
  EXPECT_EQ(AgreedFlags(without, kWanted), AgreedFlags(without));
  const auto depth_of = [](const fuse_init_out& reply) {
    uint32_t depth = 0;  // of bytes 36 to 39
    std::memcpy(&depth, reinterpret_cast<const char*>(&reply) + 36, sizeof depth);
    return depth;
  };
  fuse_init_out reply = ReplyOfLibfuse();
  PatchInitReply(all, reply, kWanted);
  EXPECT_EQ(reply.flags2, 0x30U);
  EXPECT_EQ(depth_of(reply), 1U);
  reply = ReplyOfLibfuse();
  PatchInitReply(without, reply, kWanted);
  EXPECT_EQ(depth_of(reply), 0U);
}

TEST(NegotiationTest, EveryTruncationOfTheRequestIsReadWithoutHarm) {
  for (size_t size = 0; size <= kInitRequest.size(); ++size) {
    auto offer = DecodeInitRequest(Span(kInitRequest, size));
    EXPECT_EQ(offer.has_value(), size >= offsetof(fuse_init_in, max_readahead)) << size;
  }
  // The request of a kernel before 5.17 ends here: the upper half is absent, not garbage.
  auto offer = DecodeInitRequest(Span(kInitRequest, 16));
  EXPECT_EQ(offer->flags >> 32, 0U);
}

}  // namespace
}  // namespace cairnfs::fuse
