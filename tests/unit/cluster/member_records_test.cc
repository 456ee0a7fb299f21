// Pins every byte of docs/formats/cluster.md.
#include <gtest/gtest.h>

#include <cmath>

#include "cluster/node_table.h"
#include "cluster/records.h"

namespace cairnfs::cluster {
namespace {

NodeId SampleId() { return *NodeId::FromHex("00112233445566778899aabbccddeeff"); }

std::string Hex(std::string_view bytes) {
  std::string hex;
  for (unsigned char byte : bytes) {
    char digits[3];
    snprintf(digits, sizeof digits, "%02x", byte);
    hex += digits;
  }
  return hex;
}

TEST(MemberRecords, Bytes) {
  EXPECT_EQ(Hex(NodeRecord({"gpu7", "10.0.0.7:7431", "r2", 3.5}).Encode()),
            "01"
            "0000000000000c40"
            "0467707537"
            "0d31302e302e302e373a37343331"
            "027232");
  EXPECT_EQ(Hex(SessionRecord({0x0102030405060708, 0x11, "7f0c1f5e-2f0a-4c53-9a59-7a2a7fd4c3d1 fd00:2a0001"}).Encode()),
            "01"
            "0807060504030201"
            "1100000000000000"
            "3037663063316635652d326630612d346335332d396135392d37613261376664346333643120666430303a326130303031");
  EXPECT_EQ(Hex(OutRecord({{1, 2}, SampleId()}).Encode()),
            "01"
            "010000000000000002000000"
            "00112233445566778899aabbccddeeff");
  EXPECT_EQ(Hex(DrainRecord{false}.Encode()), "0100");
  EXPECT_EQ(Hex(DrainRecord{true}.Encode()), "0101");
  EXPECT_EQ(Hex(PlaceRecord{SampleId(), true, "gpu7", "r2", 3.5}.Encode()),
            "01"
            "01"
            "00112233445566778899aabbccddeeff"
            "0000000000000c40"
            "0467707537"
            "027232");
  EXPECT_EQ(Hex(KeyOf(MemberKey::kJoined, SampleId())), "4d4a00112233445566778899aabbccddeeff");
  EXPECT_EQ(Hex(KeyOf(MemberKey::kPlace, SampleId())), "4d5000112233445566778899aabbccddeeff");
  EXPECT_EQ(Hex(KeyOf(MemberKey::kDrain, SampleId())), "4d4400112233445566778899aabbccddeeff");
  EXPECT_EQ(Hex(KeyOf(MemberKey::kNode, SampleId())), "4d4e00112233445566778899aabbccddeeff");
  EXPECT_EQ(Hex(KeyOf(MemberKey::kSession, SampleId())), "4d5300112233445566778899aabbccddeeff");
  EXPECT_EQ(Hex(KeyOf(MemberKey::kFull, SampleId())), "4d4600112233445566778899aabbccddeeff");
  EXPECT_EQ(Hex(KeyOf(MemberKey::kOut, SampleId())), "4d4f00112233445566778899aabbccddeeff");
}

TEST(MemberRecords, KeysAndBack) {
  for (MemberKey kind : {MemberKey::kNode, MemberKey::kSession, MemberKey::kFull, MemberKey::kOut, MemberKey::kDrain,
                         MemberKey::kRemoved, MemberKey::kPlace, MemberKey::kJoined}) {
    const std::string key = KeyOf(kind, SampleId());
    EXPECT_GE(key, MembersBegin());
    EXPECT_LT(key, MembersEnd());
    auto parsed = ParseMemberKey(key);
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(parsed->kind, kind);
    EXPECT_EQ(parsed->id, SampleId());
    for (size_t size = 0; size < key.size(); size++) EXPECT_FALSE(ParseMemberKey(key.substr(0, size)).has_value());
    EXPECT_FALSE(ParseMemberKey(key + "x").has_value());
  }
  EXPECT_FALSE(ParseMemberKey("MZ" + std::string(SampleId().AsKey())).has_value());
  EXPECT_FALSE(ParseMemberKey("NN" + std::string(SampleId().AsKey())).has_value());
}

// Every truncation, one byte too many, and another version are refused; the whole comes back.
template <typename Record>
void CheckDecoding(const std::string& bytes) {
  auto whole = Record::Decode(bytes);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->Encode(), bytes);
  for (size_t size = 0; size < bytes.size(); size++) {
    const std::vector<char> exact(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_FALSE(Record::Decode({exact.data(), exact.size()}).ok()) << size;
  }
  EXPECT_FALSE(Record::Decode(bytes + "x").ok());
  std::string newer = bytes;
  newer[0] = 2;
  EXPECT_FALSE(Record::Decode(newer).ok());
}

TEST(MemberRecords, BrokenInput) {
  CheckDecoding<NodeRecord>(NodeRecord{"name", "address", "domain", 0}.Encode());
  CheckDecoding<SessionRecord>(SessionRecord{7, 8, "place"}.Encode());
  CheckDecoding<OutRecord>(OutRecord{{5, 6}, SampleId()}.Encode());
  CheckDecoding<DrainRecord>(DrainRecord{true}.Encode());
  EXPECT_FALSE(DrainRecord::Decode(std::string("\x01\x02", 2)).ok());
  CheckDecoding<PlaceRecord>(PlaceRecord{SampleId(), false, "name", "domain", 2}.Encode());
  std::string wrong = PlaceRecord{SampleId(), false, "", "", 2}.Encode();
  wrong[1] = 2;
  EXPECT_FALSE(PlaceRecord::Decode(wrong).ok());
  for (double weight : {-1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    EXPECT_FALSE(NodeRecord::Decode(NodeRecord{"", "", "", weight}.Encode()).ok());
    EXPECT_FALSE(PlaceRecord::Decode(PlaceRecord{SampleId(), false, "", "", weight}.Encode()).ok());
  }
}

// --- The table that events keep up. ---

kv::KvEvent Event(MemberKey kind, std::optional<std::string> value, uint64_t revision) {
  return {KeyOf(kind, SampleId()), std::move(value), revision};
}
std::string SomeNode() { return NodeRecord{"n", "a", "", 1}.Encode(); }

TEST(NodeTable, EventsThatAReadHasSeenChangeNothing) {
  NodeTable table;
  kv::KvRange range;
  range.entries = {{KeyOf(MemberKey::kNode, SampleId()), SomeNode(), 3},
                   {KeyOf(MemberKey::kSession, SampleId()), "", 9}};
  range.revision = 10;
  table.Reset(range);
  table.Apply({Event(MemberKey::kSession, "", 5), Event(MemberKey::kSession, std::nullopt, 7)}, 10);
  EXPECT_EQ(table.SessionRevision(SampleId()), 9u);
  table.Apply({Event(MemberKey::kSession, std::nullopt, 11)}, 12);
  EXPECT_EQ(table.SessionRevision(SampleId()), 0u);
  EXPECT_EQ(table.revision(), 12u);
  EXPECT_EQ(table.MakeView()->nodes[0].state, NodeState::kDown);
}

TEST(NodeTable, ANodeThatDoesNotDecodeIsLeftOut) {
  NodeTable table;
  table.Apply({Event(MemberKey::kNode, "?", 1), Event(MemberKey::kSession, "?", 1)}, 1);
  EXPECT_EQ(table.MakeView()->nodes.size(), 0u);
  EXPECT_EQ(table.SessionRevision(SampleId()), 1u);
  table.Apply({Event(MemberKey::kNode, SomeNode(), 2)}, 2);
  EXPECT_EQ(table.MakeView()->nodes[0].state, NodeState::kUp);
}

TEST(NodeTable, ADrainedNodeHasNoWeight) {
  NodeTable table;
  table.Apply({Event(MemberKey::kNode, SomeNode(), 1), Event(MemberKey::kDrain, DrainRecord().Encode(), 2)}, 2);
  EXPECT_EQ(table.MakeView()->nodes[0].weight, 0);
  EXPECT_EQ(table.MakeView()->nodes[0].drain, 2u);
  EXPECT_FALSE(table.MakeView()->nodes[0].is_empty);
  table.Apply({Event(MemberKey::kDrain, DrainRecord{true}.Encode(), 3)}, 3);
  EXPECT_TRUE(table.MakeView()->nodes[0].is_empty);
  table.Apply({Event(MemberKey::kDrain, "?", 4)}, 4);
  EXPECT_TRUE(table.MakeView()->nodes[0].is_drained() && !table.MakeView()->nodes[0].is_empty);
  table.Apply({Event(MemberKey::kDrain, std::nullopt, 5)}, 5);
  EXPECT_EQ(table.MakeView()->nodes[0].weight, 1);
  EXPECT_FALSE(table.MakeView()->nodes[0].is_drained());
}

TEST(NodeTable, ASessionOutweighsOut) {
  NodeTable table;
  table.Apply({Event(MemberKey::kNode, SomeNode(), 1), Event(MemberKey::kOut, "", 1)}, 1);
  EXPECT_EQ(table.MakeView()->nodes[0].state, NodeState::kOut);
  table.Apply({Event(MemberKey::kSession, "", 2)}, 2);
  EXPECT_EQ(table.MakeView()->nodes[0].state, NodeState::kUp);
}

}  // namespace
}  // namespace cairnfs::cluster
