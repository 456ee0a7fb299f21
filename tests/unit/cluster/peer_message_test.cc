// The messages between nodes: what is encoded decodes to the same, and what is cut off or made up is refused.
#include "cluster/peer_message.h"

#include <gtest/gtest.h>

#include <random>

namespace cairnfs::cluster {
namespace {

Digest DigestFilledWith(uint8_t seed) {
  Digest digest;
  digest.bytes.fill(static_cast<std::byte>(seed));
  return digest;
}
NodeId NodeFilledWith(uint8_t seed) {
  NodeId id;
  id.bytes.fill(static_cast<std::byte>(seed));
  return id;
}

// Every strict prefix is refused, and so is a byte too many; random changes never read past the end.
template <typename Decode>
void ExpectRefusesDamage(const std::string& bytes, Decode decode) {
  ASSERT_TRUE(decode(bytes));
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string cut = bytes.substr(0, size);
    EXPECT_FALSE(decode(cut)) << "cut to " << size;
  }
  EXPECT_FALSE(decode(bytes + '\0'));
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string changed = bytes;
    for (int k = 0; k < 3; ++k) changed[random() % changed.size()] = static_cast<char>(random());
    static_cast<void>(decode(changed));
  }
}

TEST(PeerMessage, Has) {
  const HasRequest request{true, {DigestFilledWith(1), DigestFilledWith(2)}};
  auto decoded = HasRequest::Decode(request.Encode());
  ASSERT_TRUE(decoded);
  EXPECT_TRUE(decoded->hold);
  EXPECT_EQ(decoded->digests, request.digests);
  ExpectRefusesDamage(request.Encode(), [](std::string_view bytes) { return HasRequest::Decode(bytes).has_value(); });

  using Kind = HasAnswer::Kind;
  const std::vector<HasAnswer> answers = {{Kind::kClaim, {}},
                                          {Kind::kKnown, {NodeFilledWith(1), NodeFilledWith(2)}},
                                          {Kind::kWait, {}},
                                          {Kind::kKnownHere, {NodeFilledWith(2), NodeFilledWith(3)}}};
  auto reply = DecodeHasReply(EncodeHasReply(answers));
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->size(), answers.size());
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ((*reply)[i].kind, answers[i].kind);
    EXPECT_EQ((*reply)[i].holders, answers[i].holders);
  }
  ExpectRefusesDamage(EncodeHasReply(answers),
                      [](std::string_view bytes) { return DecodeHasReply(bytes).has_value(); });
}

TEST(PeerMessage, Put) {
  const std::vector<PutItem> items = {{DigestFilledWith(1), 300'000, {NodeFilledWith(1), NodeFilledWith(2)}},
                                      {DigestFilledWith(2), 0, {NodeFilledWith(3)}}};
  auto decoded = DecodePut(EncodePut(items));
  ASSERT_TRUE(decoded);
  ASSERT_EQ(decoded->size(), items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ((*decoded)[i].digest, items[i].digest);
    EXPECT_EQ((*decoded)[i].size, items[i].size);
    EXPECT_EQ((*decoded)[i].holders, items[i].holders);
  }
  ExpectRefusesDamage(EncodePut(items), [](std::string_view bytes) { return DecodePut(bytes).has_value(); });
  const std::vector<PutAnswer> answers = {PutAnswer::kDurable, PutAnswer::kNoSpace};
  ExpectRefusesDamage(EncodePutReply(answers),
                      [](std::string_view bytes) { return DecodePutReply(bytes).has_value(); });
}

TEST(PeerMessage, ListsAndChunksAreBounded) {
  std::vector<NodeId> many;
  for (int i = 0; i < 200; ++i) many.push_back(NodeFilledWith(static_cast<uint8_t>(i)));
  auto decoded = DecodePut(EncodePut({{DigestFilledWith(1), 1, many}}));
  ASSERT_TRUE(decoded);
  EXPECT_EQ((*decoded)[0].holders.size(), kHoldersMax);
  EXPECT_TRUE(DecodePut(EncodePut({{DigestFilledWith(1), kChunkBytesMax, {}}})));
  EXPECT_FALSE(DecodePut(EncodePut({{DigestFilledWith(1), kChunkBytesMax + 1, {}}})));
  GetAnswer answer;
  answer.kind = GetAnswer::Kind::kBytes;
  answer.size = kChunkBytesMax + 1;
  EXPECT_FALSE(DecodeGetReply(EncodeGetReply({answer})));
}

TEST(PeerMessage, Get) {
  using Kind = GetAnswer::Kind;
  const std::vector<GetAnswer> answers = {{Kind::kBytes, 5000, {}},
                                          {Kind::kNotHere, 0, {NodeFilledWith(1)}},
                                          {Kind::kDamaged, 0, {}},
                                          {Kind::kLater, 0, {}}};
  auto reply = DecodeGetReply(EncodeGetReply(answers));
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->size(), answers.size());
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ((*reply)[i].kind, answers[i].kind);
    EXPECT_EQ((*reply)[i].size, answers[i].size);
    EXPECT_EQ((*reply)[i].holders, answers[i].holders);
  }
  ExpectRefusesDamage(EncodeGetReply(answers),
                      [](std::string_view bytes) { return DecodeGetReply(bytes).has_value(); });
}

TEST(PeerMessage, ListsOfDigestsBitsAndInodes) {
  ExpectRefusesDamage(EncodeDigests({DigestFilledWith(1), DigestFilledWith(9)}),
                      [](std::string_view bytes) { return DecodeDigests(bytes).has_value(); });
  ExpectRefusesDamage(EncodeBits({true, false, true}),
                      [](std::string_view bytes) { return DecodeBits(bytes).has_value(); });
  std::string neither = EncodeBits({true});
  neither.back() = 2;
  EXPECT_FALSE(DecodeBits(neither));
  ExpectRefusesDamage(EncodeInodes({InodeId{1}, InodeId{77}}),
                      [](std::string_view bytes) { return DecodeInodes(bytes).has_value(); });
  // More digests than a message may have.
  EXPECT_FALSE(DecodeDigests(EncodeDigests(std::vector<Digest>(kDigestsPerMessageMax + 1))));
}

TEST(PeerMessage, EnvelopeOfAnotherVersionIsRefused) {
  std::string bytes = EncodeEnvelope({NodeFilledWith(1), NodeFilledWith(2)});
  ASSERT_EQ(bytes.size(), kEnvelopeBytes);
  auto envelope = DecodeEnvelope(bytes + "rest");
  ASSERT_TRUE(envelope);
  EXPECT_EQ(envelope->to, NodeFilledWith(1));
  EXPECT_EQ(envelope->from, NodeFilledWith(2));
  bytes[0] = 9;
  EXPECT_FALSE(DecodeEnvelope(bytes).ok());
}

TEST(PeerMessage, PayloadIsCutAcrossSlices) {
  const std::string bytes = "abcdefghij";
  auto slice = [&](size_t offset, size_t size) {
    io::Slice part;
    part.data = reinterpret_cast<const std::byte*>(bytes.data()) + offset;
    part.size = size;
    return part;
  };
  const std::vector<io::Slice> payload = {slice(0, 3), slice(3, 0), slice(3, 5), slice(8, 2)};
  PayloadReader reader(payload);
  auto text = [](const std::vector<io::Slice>& slices) {
    std::string joined;
    for (const io::Slice& part : slices) joined += AsText(part.bytes());
    return joined;
  };
  auto first = reader.Take(4);
  ASSERT_TRUE(first);
  EXPECT_EQ(text(*first), "abcd");
  auto second = reader.Take(6);
  ASSERT_TRUE(second);
  EXPECT_EQ(text(*second), "efghij");
  EXPECT_FALSE(reader.Take(1));
}

}  // namespace
}  // namespace cairnfs::cluster
