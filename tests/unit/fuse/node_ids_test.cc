#include "fuse/node_ids.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace cairnfs::fuse {
namespace {

constexpr uint64_t kBeside = 7 | kBesideBit;

template <typename... Parts>
std::vector<std::byte> Message(uint32_t opcode, uint64_t node, const Parts&... parts) {
  fuse_in_header header{};
  header.opcode = opcode;
  header.nodeid = node;
  std::vector<std::byte> message;
  const auto add = [&](const auto& part) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&part);
    message.insert(message.end(), bytes, bytes + sizeof part);
  };
  add(header);
  (add(parts), ...);
  return message;
}

template <typename Part>
Part PartAt(const std::vector<std::byte>& message, size_t offset = 0) {
  Part part;
  std::memcpy(&part, message.data() + offset, sizeof part);
  return part;
}
constexpr size_t kBody = sizeof(fuse_in_header);

TEST(NodeIdsTest, AFileHasTwo) {
  EXPECT_EQ(NodeIdOf(InodeId{7}, false), 7U);
  EXPECT_EQ(NodeIdOf(InodeId{7}, true), kBeside);
}

TEST(NodeIdsTest, TheHeadersIsTold) {
  auto message = Message(FUSE_OPEN, kBeside, fuse_open_in{});
  EXPECT_TRUE(TakeBesideBits(message));
  EXPECT_EQ(PartAt<fuse_in_header>(message).nodeid, 7U);
  EXPECT_FALSE(TakeBesideBits(message));
  EXPECT_EQ(PartAt<fuse_in_header>(message).nodeid, 7U);
}

TEST(NodeIdsTest, ThoseInBodiesAreTakenToo) {
  auto link = Message(FUSE_LINK, 1, fuse_link_in{kBeside});
  EXPECT_FALSE(TakeBesideBits(link));
  EXPECT_EQ(PartAt<fuse_link_in>(link, kBody).oldnodeid, 7U);

  fuse_copy_file_range_in range{};
  range.fh_in = range.fh_out = range.len = kBeside;  // no node ids
  range.nodeid_out = kBeside;
  auto copy = Message(FUSE_COPY_FILE_RANGE, kBeside, range);
  EXPECT_TRUE(TakeBesideBits(copy));
  EXPECT_EQ(PartAt<fuse_copy_file_range_in>(copy, kBody).nodeid_out, 7U);
  EXPECT_EQ(PartAt<fuse_copy_file_range_in>(copy, kBody).fh_out, kBeside);
  EXPECT_EQ(PartAt<fuse_copy_file_range_in>(copy, kBody).len, kBeside);

  auto forget = Message(FUSE_BATCH_FORGET, 0, fuse_batch_forget_in{2, 0}, fuse_forget_one{kBeside, kBeside},
                        fuse_forget_one{9, 1});
  EXPECT_FALSE(TakeBesideBits(forget));
  const size_t first = kBody + sizeof(fuse_batch_forget_in);
  EXPECT_EQ(PartAt<fuse_forget_one>(forget, first).nodeid, 7U);
  EXPECT_EQ(PartAt<fuse_forget_one>(forget, first).nlookup, kBeside);
  EXPECT_EQ(PartAt<fuse_forget_one>(forget, first + sizeof(fuse_forget_one)).nodeid, 9U);
}

TEST(NodeIdsTest, BytesOfOtherBodiesStay) {
  auto write = Message(FUSE_WRITE, kBeside, kBeside, kBeside);
  EXPECT_TRUE(TakeBesideBits(write));
  EXPECT_EQ(PartAt<uint64_t>(write, kBody), kBeside);
  EXPECT_EQ(PartAt<uint64_t>(write, kBody + 8), kBeside);
}

TEST(NodeIdsTest, EveryTruncationIsReadWithoutHarm) {
  for (const uint32_t opcode : {FUSE_LINK, FUSE_COPY_FILE_RANGE, FUSE_BATCH_FORGET, FUSE_OPEN}) {
    const auto whole = Message(opcode, kBeside, fuse_copy_file_range_in{}, fuse_copy_file_range_in{});
    for (size_t size = 0; size <= whole.size(); size++) {
      std::vector<std::byte> part(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
      EXPECT_EQ(TakeBesideBits(part), size >= kBody) << opcode << " " << size;
    }
  }
}

}  // namespace
}  // namespace cairnfs::fuse
