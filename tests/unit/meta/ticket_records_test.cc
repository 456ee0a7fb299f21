// The records of deferred commits: golden bytes pin the format, and broken input never crashes a decoder.
#include "meta/ticket_records.h"

#include <gtest/gtest.h>

#include "base/hex.h"

namespace cairnfs::meta {
namespace {

TicketRecord Sample() {
  TicketRecord record;
  record.state = TicketRecord::State::kFailed;
  record.taken = {1700000000, 1};
  record.ended = {1700000002, 3};
  record.uid = 1000;
  record.gid = 100;
  record.groups = {4, 27};
  record.directory = InodeId{12};
  record.from_parent = InodeId{7};
  record.to_parent = InodeId{1};
  record.from_name = "a.tmp";
  record.to_name = "a";
  record.reason = "why";
  return record;
}

TEST(TicketRecordsTest, GoldenBytes) {
  EXPECT_EQ(ToHex(Sample().Encode()),
            "0102"
            "00f1536500000000"
            "01000000"
            "02f1536500000000"
            "03000000"
            "e8030000"
            "64000000"
            "02"
            "04000000"
            "1b000000"
            "0c00000000000000"
            "0700000000000000"
            "0100000000000000"
            "05612e746d70"
            "0161"
            "03776879");
  EXPECT_EQ(ToHex(TicketsPrefix()), "5754");
  EXPECT_EQ(ToHex(TicketKey(258)), "57540000000000000102");
  EXPECT_EQ(ToHex(TicketClaimKey(258)), "5754000000000000010263");
}

TEST(TicketRecordsTest, DecodesWhatWasEncodedAndNothingElse) {
  const std::string bytes = Sample().Encode();
  const auto decoded = TicketRecord::Decode(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->Encode(), bytes);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(TicketRecord::Decode(bytes.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(TicketRecord::Decode(bytes + "x").ok());
  for (const size_t offset : {0u, 1u}) {
    std::string other = bytes;
    other[offset] = 3;  // a later version; no state
    EXPECT_FALSE(TicketRecord::Decode(other).ok()) << offset;
  }
  TicketRecord many = Sample();
  many.groups.assign(TicketRecord::kGroupsMax, 1);
  EXPECT_TRUE(TicketRecord::Decode(many.Encode()).ok());
}

TEST(TicketRecordsTest, KeysAreToldApart) {
  EXPECT_EQ(TicketOfKey(TicketKey(77)), std::optional<TicketId>(77));
  EXPECT_EQ(TicketOfClaimKey(TicketClaimKey(77)), std::optional<TicketId>(77));
  EXPECT_FALSE(TicketOfKey(TicketClaimKey(77)));
  EXPECT_FALSE(TicketOfClaimKey(TicketKey(77)));
  EXPECT_FALSE(TicketOfKey(TicketsPrefix()));
  EXPECT_FALSE(TicketOfKey("WR"));
  EXPECT_FALSE(TicketOfKey(""));
  EXPECT_FALSE(TicketOfClaimKey(""));
}

TEST(TicketRecordsTest, TextOfATicket) {
  EXPECT_EQ(TicketText(0x1234), "0000000000001234");
  const auto parsed = ParseTicket("00000000000012AB");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed, 0x12abU);
  for (const char* wrong : {"", "12", "0000000000000000", "000000000000123g", "00000000000012345", "../etc/passwd\n"}) {
    const auto refused = ParseTicket(wrong);
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.error().message.find("16 hexadecimal digits"), std::string::npos);
  }
}

}  // namespace
}  // namespace cairnfs::meta
