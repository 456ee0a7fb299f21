// Every decoder of the store at each truncation and with each byte flipped; names of files and keys.
#include "store/chunk_index_format.h"
#include "store/segment_format.h"
#include "store_fixture.h"

namespace cairnfs::store {
namespace {

std::string Block(const SegmentHeader& header) {
  std::string block(kSegmentHeaderBytes, 'x');
  EncodeSegmentHeader(header, {reinterpret_cast<std::byte*>(block.data()), block.size()});
  return block;
}

std::string Record(const RecordHeader& header, const Generation& generation, uint64_t offset) {
  std::string bytes(kRecordHeaderBytes, 'x');
  EncodeRecordHeader(header, generation, offset, {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()});
  return bytes;
}

TEST(SegmentFormat, HeaderRoundTrip) {
  SegmentHeader header{SegmentId{77}, RandomGeneration(), 123 * kPageBytes};
  std::string block = Block(header);
  auto decoded = DecodeSegmentHeader(AsBytes(block));
  ASSERT_OK(decoded);
  EXPECT_EQ(*decoded, header);
  for (size_t size = 0; size < block.size(); ++size) {
    EXPECT_EQ(DecodeSegmentHeader(AsBytes(block.substr(0, size))).error().code, ErrorCode::kCorrupt);
  }
  for (size_t at = 0; at < block.size(); ++at) {
    std::string flipped = block;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
    EXPECT_FALSE(DecodeSegmentHeader(AsBytes(flipped)).ok()) << at;
  }
}

// The worked example of docs/formats/segment.md.
TEST(SegmentFormat, WorkedExample) {
  Generation generation;
  for (size_t i = 0; i < generation.size(); ++i) generation[i] = static_cast<std::byte>(i);
  std::string block = Block({SegmentId{5}, generation, kMiB});
  auto hex = [](std::string_view bytes) {
    std::string out;
    for (unsigned char c : bytes) out += "0123456789abcdef"[c >> 4], out += "0123456789abcdef"[c & 15];
    return out;
  };
  EXPECT_EQ(hex(block.substr(0, 48)),
            "434149524e53454701000000000000000500000000000000"
            "000102030405060708090a0b0c0d0e0f0000100000000000");
  TestChunk chunk{"cairn", chunking::ComputeDigest(AsBytes("cairn"))};
  std::string record = Record({kCodecRaw, 5, 5, chunk.digest}, generation, 4096);
  EXPECT_EQ(hex(record.substr(0, 16)), "43526331000000000500000005000000");
  EXPECT_EQ(hex(record.substr(24)), chunk.digest.ToHex());
  EXPECT_EQ(hex(block.substr(48, 16)) + " " + hex(record.substr(16, 8)),
            "b0b2c67b9b13443e88cfdbe84571bc00 842af28897612a45");
}

TEST(SegmentFormat, RecordRoundTrip) {
  Generation generation = RandomGeneration();
  RecordHeader header{kCodecRaw, 1000, 1000, MakeChunk(1, 1000).digest};
  std::string bytes = Record(header, generation, 8192);
  auto decoded = DecodeRecordHeader(AsBytes(bytes), generation, 8192);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, header);
  EXPECT_FALSE(DecodeRecordHeader(AsBytes(bytes), generation, 8200));
  EXPECT_FALSE(DecodeRecordHeader(AsBytes(bytes), RandomGeneration(), 8192));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeRecordHeader(AsBytes(bytes.substr(0, size)), generation, 8192));
  }
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(DecodeRecordHeader(AsBytes(flipped), generation, 8192)) << bit;
  }
}

TEST(SegmentFormat, Names) {
  for (SegmentName kind : {SegmentName::kSegment, SegmentName::kFree, SegmentName::kNew}) {
    std::string name = MakeSegmentName(kind, SegmentId{0xabc});
    auto parsed = ParseSegmentName(name);
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->kind, kind);
    EXPECT_EQ(parsed->id.value, 0xabcu);
  }
  EXPECT_EQ(MakeSegmentName(SegmentName::kSegment, SegmentId{1}), "segment-0000000000000001");
  for (const char* wrong : {"", "segment-", "segment-1", "segment-000000000000000g", "segment-00000000000000012",
                            "damaged-segment-0000000000000001", "lost+found"}) {
    EXPECT_FALSE(ParseSegmentName(wrong)) << wrong;
  }
}

TEST(IndexFormat, LocationRoundTrip) {
  Location location{SegmentId{300}, 4096 + 8 * 1000, 70'000, 70'000, kCodecRaw};
  std::string value = EncodeLocation(location);
  auto decoded = DecodeLocation(value);
  ASSERT_OK(decoded);
  EXPECT_EQ(*decoded, location);
  for (size_t size = 0; size < value.size(); ++size) EXPECT_FALSE(DecodeLocation(value.substr(0, size)).ok());
  EXPECT_FALSE(DecodeLocation(value + "x").ok());
  for (size_t bit = 0; bit < value.size() * 8; ++bit) {
    std::string flipped = value;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    auto other = DecodeLocation(flipped);  // no checksum here, but nothing impossible comes out
    if (!other.ok()) continue;
    EXPECT_LE(other->stored_bytes, kChunkBytesMax);
    EXPECT_EQ(other->stored_bytes, other->raw_bytes);
    EXPECT_EQ(other->offset % kRecordAlignment, 0u);
  }
}

TEST(IndexFormat, CountersRoundTrip) {
  IndexCounters counters{1'000'000, uint64_t{1} << 50, 12, SegmentId{11}, 123'456};
  std::string value = EncodeCounters(counters);
  auto decoded = DecodeCounters(value);
  ASSERT_OK(decoded);
  EXPECT_EQ(*decoded, counters);
  for (size_t size = 0; size < value.size(); ++size) EXPECT_FALSE(DecodeCounters(value.substr(0, size)).ok());
  EXPECT_EQ(DecodeCounters(kRebuildingValue).error().code, ErrorCode::kCorrupt);
  std::string newer = value;
  newer[0] = 2;
  EXPECT_EQ(DecodeCounters(newer).error().code, ErrorCode::kNotSupported);
}

TEST(IndexFormat, KeysAreToldApart) {
  Digest digest = MakeChunk(1, 10).digest;
  EXPECT_EQ(ParseChunkKey(ChunkKey(digest)), digest);
  EXPECT_EQ(ParseSegmentKey(SegmentKey(SegmentId{9}))->value, 9u);
  EXPECT_FALSE(ParseChunkKey(SegmentKey(SegmentId{9})));
  EXPECT_FALSE(ParseSegmentKey(ChunkKey(digest)));
  EXPECT_FALSE(ParseChunkKey(kCountersKey));
  EXPECT_FALSE(ParseSegmentKey(kCountersKey));
  EXPECT_EQ(EncodeGeneration(*DecodeGeneration(std::string(16, 'g'))), std::string(16, 'g'));
  EXPECT_FALSE(DecodeGeneration("short").ok());
}

}  // namespace
}  // namespace cairnfs::store
