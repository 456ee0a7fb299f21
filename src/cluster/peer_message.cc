#include "cluster/peer_message.h"

#include <algorithm>
#include <array>

#include "base/coding.h"

namespace cairnfs::cluster {
namespace {

constexpr uint8_t kVersion = 1;
constexpr size_t kNodesPerMessageMax = 65536;
constexpr size_t kInodesPerMessageMax = 1 << 20;

constexpr std::array<const char*, kPeerMethodCount> kPaths = {"/cairnfs.Peer/Has", "/cairnfs.Peer/Confirm",
                                                              "/cairnfs.Peer/Put", "/cairnfs.Peer/Get",
                                                              "/cairnfs.Peer/HoldOrphans"};

// Node ids are written once in front of a message, and then by their place in that table.
class HolderTable {
 public:
  void Add(const std::vector<NodeId>& nodes) {
    for (size_t i = 0; i < std::min(nodes.size(), kHoldersMax); ++i) {
      if (std::find(ids_.begin(), ids_.end(), nodes[i]) == ids_.end()) ids_.push_back(nodes[i]);
    }
  }
  void EncodeTable(Encoder& out) const {
    out.Varint(ids_.size());
    for (const NodeId& id : ids_) out.Text(id.AsKey());
  }
  void EncodeList(const std::vector<NodeId>& nodes, Encoder& out) const {
    const size_t count = std::min(nodes.size(), kHoldersMax);
    out.Varint(count);
    for (size_t i = 0; i < count; ++i) {
      out.Varint(static_cast<uint64_t>(std::find(ids_.begin(), ids_.end(), nodes[i]) - ids_.begin()));
    }
  }
  bool DecodeTable(Decoder& in) {
    const uint64_t count = in.Varint();
    if (!in.ok() || count > kNodesPerMessageMax || count * NodeId::kBytes > in.remaining()) return false;
    for (uint64_t i = 0; i < count; ++i) {
      auto id = NodeId::FromKey(in.Text(NodeId::kBytes));
      if (!id) return false;
      ids_.push_back(*id);
    }
    return true;
  }
  bool DecodeList(Decoder& in, std::vector<NodeId>* nodes) const {
    const uint64_t count = in.Varint();
    if (!in.ok() || count > std::min(ids_.size(), kHoldersMax)) return false;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t index = in.Varint();
      if (!in.ok() || index >= ids_.size()) return false;
      if (std::find(nodes->begin(), nodes->end(), ids_[index]) != nodes->end()) return false;  // each counts once
      nodes->push_back(ids_[index]);
    }
    return true;
  }

 private:
  std::vector<NodeId> ids_;
};

bool DecodeCount(Decoder& in, size_t count_max, size_t bytes_each_min, uint64_t* count) {
  *count = in.Varint();
  return in.ok() && *count <= count_max && *count * bytes_each_min <= in.remaining();
}

}  // namespace

const char* PeerMethodPath(PeerMethod method) { return kPaths[static_cast<size_t>(method)]; }

std::optional<PeerMethod> PeerMethodOfPath(std::string_view path) {
  for (size_t i = 0; i < kPaths.size(); ++i) {
    if (path == kPaths[i]) return static_cast<PeerMethod>(i);
  }
  return std::nullopt;
}

std::string EncodeEnvelope(const Envelope& envelope) {
  return Encoder().U8(kVersion).Text(envelope.to.AsKey()).Text(envelope.from.AsKey()).Take();
}

std::optional<Envelope> DecodeEnvelope(std::string_view bytes) {
  Decoder in(bytes);
  const uint8_t version = in.U8();
  auto to = NodeId::FromKey(in.Text(NodeId::kBytes));
  auto from = NodeId::FromKey(in.Text(NodeId::kBytes));
  if (!in.ok() || version != kVersion || !to || !from) return std::nullopt;
  return Envelope{*to, *from};
}

std::string EncodeDigests(const std::vector<Digest>& digests) {
  Encoder out;
  out.Varint(digests.size());
  for (const Digest& digest : digests) out.Id(digest);
  return out.Take();
}

static std::optional<std::vector<Digest>> DecodeDigestsFrom(Decoder& in) {
  uint64_t count;
  if (!DecodeCount(in, kDigestsPerMessageMax, Digest::kBytes, &count)) return std::nullopt;
  std::vector<Digest> digests;
  digests.reserve(count);
  for (uint64_t i = 0; i < count; ++i) digests.push_back(in.Id());
  if (!in.Finished()) return std::nullopt;
  return digests;
}

std::optional<std::vector<Digest>> DecodeDigests(std::string_view head) {
  Decoder in(head);
  return DecodeDigestsFrom(in);
}

std::string HasRequest::Encode() const { return Encoder().U8(hold ? 1 : 0).Text(EncodeDigests(digests)).Take(); }

std::optional<HasRequest> HasRequest::Decode(std::string_view head) {
  Decoder in(head);
  const uint8_t flags = in.U8();
  if (!in.ok() || flags > 1) return std::nullopt;
  auto digests = DecodeDigestsFrom(in);
  if (!digests) return std::nullopt;
  return HasRequest{flags == 1, *std::move(digests)};
}

std::string EncodeHasReply(const std::vector<HasAnswer>& answers) {
  HolderTable table;
  for (const HasAnswer& answer : answers) table.Add(answer.holders);
  Encoder out;
  table.EncodeTable(out);
  out.Varint(answers.size());
  for (const HasAnswer& answer : answers) {
    out.U8(static_cast<uint8_t>(answer.kind));
    if (answer.is_known()) table.EncodeList(answer.holders, out);
  }
  return out.Take();
}

std::optional<std::vector<HasAnswer>> DecodeHasReply(std::string_view head) {
  Decoder in(head);
  HolderTable table;
  uint64_t count;
  if (!table.DecodeTable(in) || !DecodeCount(in, kDigestsPerMessageMax, 1, &count)) return std::nullopt;
  std::vector<HasAnswer> answers(count);
  for (HasAnswer& answer : answers) {
    const uint8_t kind = in.U8();
    if (!in.ok() || kind > static_cast<uint8_t>(HasAnswer::Kind::kKnownHere)) return std::nullopt;
    answer.kind = static_cast<HasAnswer::Kind>(kind);
    if (answer.is_known() && !table.DecodeList(in, &answer.holders)) return std::nullopt;
  }
  if (!in.Finished()) return std::nullopt;
  return answers;
}

std::string EncodeBits(const std::vector<bool>& bits) {
  Encoder out;
  out.Varint(bits.size());
  for (bool bit : bits) out.U8(bit ? 1 : 0);
  return out.Take();
}

std::optional<std::vector<bool>> DecodeBits(std::string_view head) {
  Decoder in(head);
  uint64_t count;
  if (!DecodeCount(in, kInodesPerMessageMax, 1, &count)) return std::nullopt;
  std::vector<bool> bits;
  for (uint64_t i = 0; i < count; ++i) {
    const uint8_t bit = in.U8();
    if (bit > 1) return std::nullopt;
    bits.push_back(bit == 1);
  }
  if (!in.Finished()) return std::nullopt;
  return bits;
}

std::string EncodePut(const std::vector<PutItem>& items) {
  HolderTable table;
  for (const PutItem& item : items) table.Add(item.holders);
  Encoder out;
  table.EncodeTable(out);
  out.Varint(items.size());
  for (const PutItem& item : items) {
    out.Id(item.digest).Varint(item.size);
    table.EncodeList(item.holders, out);
  }
  return out.Take();
}

std::optional<std::vector<PutItem>> DecodePut(std::string_view head) {
  Decoder in(head);
  HolderTable table;
  uint64_t count;
  if (!table.DecodeTable(in) || !DecodeCount(in, kDigestsPerMessageMax, Digest::kBytes + 2, &count)) {
    return std::nullopt;
  }
  std::vector<PutItem> items(count);
  for (PutItem& item : items) {
    item.digest = in.Id();
    const uint64_t size = in.Varint();
    if (!in.ok() || size > kChunkBytesMax) return std::nullopt;
    item.size = static_cast<uint32_t>(size);
    if (!table.DecodeList(in, &item.holders)) return std::nullopt;
  }
  if (!in.Finished()) return std::nullopt;
  return items;
}

std::string EncodePutReply(const std::vector<PutAnswer>& answers) {
  Encoder out;
  out.Varint(answers.size());
  for (const PutAnswer answer : answers) out.U8(static_cast<uint8_t>(answer));
  return out.Take();
}

std::optional<std::vector<PutAnswer>> DecodePutReply(std::string_view head) {
  Decoder in(head);
  uint64_t count;
  if (!DecodeCount(in, kDigestsPerMessageMax, 1, &count)) return std::nullopt;
  std::vector<PutAnswer> answers(count);
  for (PutAnswer& answer : answers) {
    const uint8_t number = in.U8();
    if (number > static_cast<uint8_t>(PutAnswer::kFailed)) return std::nullopt;
    answer = static_cast<PutAnswer>(number);
  }
  if (!in.Finished()) return std::nullopt;
  return answers;
}

std::string EncodeGetReply(const std::vector<GetAnswer>& answers) {
  HolderTable table;
  for (const GetAnswer& answer : answers) table.Add(answer.holders);
  Encoder out;
  table.EncodeTable(out);
  out.Varint(answers.size());
  for (const GetAnswer& answer : answers) {
    out.U8(static_cast<uint8_t>(answer.kind));
    if (answer.kind == GetAnswer::Kind::kBytes) out.Varint(answer.size);
    if (answer.kind == GetAnswer::Kind::kNotHere) table.EncodeList(answer.holders, out);
  }
  return out.Take();
}

std::optional<std::vector<GetAnswer>> DecodeGetReply(std::string_view head) {
  Decoder in(head);
  HolderTable table;
  uint64_t count;
  if (!table.DecodeTable(in) || !DecodeCount(in, kDigestsPerMessageMax, 1, &count)) return std::nullopt;
  std::vector<GetAnswer> answers(count);
  for (GetAnswer& answer : answers) {
    const uint8_t kind = in.U8();
    if (!in.ok() || kind > static_cast<uint8_t>(GetAnswer::Kind::kLater)) return std::nullopt;
    answer.kind = static_cast<GetAnswer::Kind>(kind);
    if (answer.kind == GetAnswer::Kind::kBytes) {
      const uint64_t size = in.Varint();
      if (!in.ok() || size > kChunkBytesMax) return std::nullopt;
      answer.size = static_cast<uint32_t>(size);
    }
    if (answer.kind == GetAnswer::Kind::kNotHere && !table.DecodeList(in, &answer.holders)) return std::nullopt;
  }
  if (!in.Finished()) return std::nullopt;
  return answers;
}

std::string EncodeInodes(const std::vector<InodeId>& inodes) {
  Encoder out;
  out.Varint(inodes.size());
  for (const InodeId& inode : inodes) out.U64(inode.value);
  return out.Take();
}

std::optional<std::vector<InodeId>> DecodeInodes(std::string_view head) {
  Decoder in(head);
  uint64_t count;
  if (!DecodeCount(in, kInodesPerMessageMax, sizeof(uint64_t), &count)) return std::nullopt;
  std::vector<InodeId> inodes;
  inodes.reserve(count);
  for (uint64_t i = 0; i < count; ++i) inodes.push_back(InodeId{in.U64()});
  if (!in.Finished()) return std::nullopt;
  return inodes;
}

std::optional<std::vector<io::Slice>> PayloadReader::Take(size_t size) {
  std::vector<io::Slice> taken;
  while (size > 0) {
    if (index_ == payload_.size()) return std::nullopt;
    const io::Slice& slice = payload_[index_];
    const size_t part = std::min(size, slice.size - offset_);
    if (part > 0) taken.push_back(slice.Sub(offset_, part));
    size -= part;
    offset_ += part;
    if (offset_ == slice.size) {
      ++index_;
      offset_ = 0;
    }
  }
  return taken;
}

}  // namespace cairnfs::cluster
