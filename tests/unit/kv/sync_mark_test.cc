#include "kv/sync_mark.h"

#include <fstream>

#include "support.h"

namespace cairnfs::kv {
namespace {

SyncMarkRecord Example() {
  return SyncMarkRecord{.sequence = 1027, .manifest_number = 5, .manifest_bytes = 271, .manifest_crc32c = 0x89abcdef};
}

TEST(Crc32c, KnownAnswers) {  // RFC 3720, appendix B.4
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(SyncMarkRecord, RoundTrip) {
  std::string text = Example().Encode();
  ASSERT_EQ(text.size(), SyncMarkRecord::kBytes);
  std::optional<SyncMarkRecord> record = SyncMarkRecord::Decode(text);
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->sequence, 1027u);
  EXPECT_EQ(record->manifest_number, 5u);
  EXPECT_EQ(record->manifest_bytes, 271u);
  EXPECT_EQ(record->manifest_crc32c, 0x89abcdefu);
}

// The worked example of docs/formats/kv.md.
TEST(SyncMarkRecord, BytesAreAsDocumented) {
  std::string hex;
  for (unsigned char byte : Example().Encode()) {
    char digits[3];
    snprintf(digits, sizeof digits, "%02x", byte);
    hex += digits;
  }
  EXPECT_EQ(hex,
            "436169726e4b56310304000000000000"
            "05000000000000000f01000000000000"
            "efcdab8900000000000000003f58d027");
}

TEST(SyncMarkRecord, EveryTruncationAndEveryFlippedByteIsRefused) {
  std::string text = Example().Encode();
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(SyncMarkRecord::Decode(text.substr(0, size)).has_value()) << size;
  }
  EXPECT_FALSE(SyncMarkRecord::Decode(text + "x").has_value());
  for (size_t position = 0; position < text.size(); ++position) {
    for (int mask = 1; mask < 256; ++mask) {
      std::string flipped = text;
      flipped[position] = static_cast<char>(flipped[position] ^ mask);
      EXPECT_FALSE(SyncMarkRecord::Decode(flipped).has_value()) << position;
    }
  }
}

TEST(SyncMark, NeverGoesBack) {
  TemporaryDirectory directory;
  EXPECT_FALSE(SyncMark::Read(directory.path()).has_value());
  SyncMark mark;
  mark.RaiseSequence(9);  // not open yet: nothing happens
  MustSucceed(mark.Open(directory.path()));
  EXPECT_EQ(SyncMark::Read(directory.path())->sequence, 0u);
  mark.RaiseSequence(7);
  mark.RaiseSequence(3);
  mark.SetManifest(4, 100, 1);
  mark.SetManifest(4, 90, 2);
  mark.SetManifest(3, 900, 3);
  SyncMarkRecord record = *SyncMark::Read(directory.path());
  EXPECT_EQ(record.sequence, 7u);
  EXPECT_EQ(record.manifest_number, 4u);
  EXPECT_EQ(record.manifest_bytes, 100u);

  SyncMark again;
  MustSucceed(again.Open(directory.path()));
  again.RaiseSequence(5);
  EXPECT_EQ(SyncMark::Read(directory.path())->sequence, 7u);
}

TEST(SyncMark, DamagedMarkIsMadeAnew) {
  TemporaryDirectory directory;
  std::ofstream(directory.path() + "/" + SyncMark::kFileName) << "nonsense";
  SyncMark mark;
  MustSucceed(mark.Open(directory.path()));
  mark.RaiseSequence(2);
  EXPECT_EQ(SyncMark::Read(directory.path())->sequence, 2u);
}

}  // namespace
}  // namespace cairnfs::kv
