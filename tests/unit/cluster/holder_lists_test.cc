#include "cluster/holder_lists.h"

#include <gtest/gtest.h>

#include "base/hex.h"

namespace cairnfs::cluster {
namespace {

NodeId NodeOf(uint8_t number) {
  NodeId id;
  id.bytes.fill(std::byte{number});
  return id;
}

Digest DigestOf(uint8_t number) {
  Digest digest;
  digest.bytes.fill(std::byte{number});
  return digest;
}

// As docs/formats/cluster.md has them.
TEST(HolderLists, Bytes) {
  EXPECT_EQ(ToHex(EncodeHolders({NodeOf(0x11), NodeOf(0x22)})),
            "01"
            "02"
            "11111111111111111111111111111111"
            "22222222222222222222222222222222");
  EXPECT_EQ(HolderKey(DigestOf(0x33)), "H" + std::string(Digest::kBytes, '\x33'));
}

TEST(HolderLists, WhatIsCutShortOrTooLongIsRefused) {
  const Holders holders{NodeOf(1), NodeOf(2), NodeOf(3)};
  const std::string text = EncodeHolders(holders);
  auto decoded = DecodeHolders(text);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(*decoded, holders);
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(DecodeHolders(std::string_view(text).substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(DecodeHolders(text + '\0').ok());
  EXPECT_FALSE(DecodeHolders("\x02" + text.substr(1)).ok()) << "another version";
  EXPECT_FALSE(DecodeHolders("\x01\xff\xff\xff\xff\xff\xff\xff\xff\x7f").ok()) << "more than there can be";
}

TEST(HolderLists, KeysOfOtherThingsAreNone) {
  const std::string key = HolderKey(DigestOf(1));
  EXPECT_EQ(ParseHolderKey(key), DigestOf(1));
  for (size_t size = 0; size < key.size(); ++size)
    EXPECT_FALSE(ParseHolderKey(key.substr(0, size)).has_value()) << size;
  EXPECT_FALSE(ParseHolderKey(key + "x").has_value());
  EXPECT_FALSE(ParseHolderKey("G" + key.substr(1)).has_value());
}

// One that cannot be read is told when it is asked for, and keeps nobody from the others.
TEST(HolderLists, ADamagedOneIsLeftOutOfAScan) {
  auto engine = kv::OpenMemoryEngine();
  std::vector<kv::EngineWrite> writes;
  for (uint8_t number : {1, 2, 3}) writes.push_back({HolderKey(DigestOf(number)), EncodeHolders({NodeOf(number)})});
  writes[1].value->pop_back();
  ASSERT_TRUE(engine->Write(writes, kv::WriteMode::kSynced).ok());
  auto damaged = ReadHolders(*engine, DigestOf(2));
  ASSERT_FALSE(damaged.ok());
  EXPECT_EQ(damaged.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(damaged.error().message.find(DigestOf(2).ToHex()), std::string::npos) << damaged.error().message;
  auto none = ReadHolders(*engine, DigestOf(9));
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
  auto entries = ScanHolders(*engine, std::nullopt, 10);
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].digest, DigestOf(1));
  EXPECT_EQ((*entries)[1].digest, DigestOf(3));
  entries = ScanHolders(*engine, DigestOf(1), 1);
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), 1u);
  EXPECT_EQ((*entries)[0].digest, DigestOf(3));
}

}  // namespace
}  // namespace cairnfs::cluster
