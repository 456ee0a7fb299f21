#include "cluster/peer_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/coding.h"

namespace cairnfs::cluster {
namespace {

constexpr uint8_t kVersion = 1;
constexpr size_t kNodesPerMessageMax = 65536;
constexpr size_t kInodesPerMessageMax = 1 << 20;

constexpr std::array<const char*, kPeerMethodCount> kPaths = {
    "/cairnfs.Peer/Has",         "/cairnfs.Peer/Confirm", "/cairnfs.Peer/Put",       "/cairnfs.Peer/Get",
    "/cairnfs.Peer/HoldOrphans", "/cairnfs.Peer/Sign",    "/cairnfs.Peer/OpenPlaces"};

// Node ids are written once in front of a message, and then by their place in that table.
class HolderTable {
 public:
  // Of all that `elements` name, and writes it.
  template <typename Elements>
  HolderTable(const Elements& elements, Encoder& out) {
    for (const auto& element : elements) {
      for (size_t i = 0; i < std::min(element.holders.size(), kHoldersMax); ++i) {
        if (PlaceOf(element.holders[i]) == ids_.size()) ids_.push_back(element.holders[i]);
      }
    }
    out.Varint(ids_.size());
    for (const NodeId& id : ids_) out.Text(id.AsKey());
  }
  // Nullopt: malformed.
  static std::optional<HolderTable> Decode(Decoder& in) {
    const uint64_t count = in.Varint();
    if (!in.ok() || count > kNodesPerMessageMax || count * NodeId::kBytes > in.remaining()) return std::nullopt;
    HolderTable table;
    for (uint64_t i = 0; i < count; ++i) table.ids_.push_back(*NodeId::FromKey(in.Text(NodeId::kBytes)));
    return table;
  }
  void EncodeList(const std::vector<NodeId>& nodes, Encoder& out) const {
    const size_t count = std::min(nodes.size(), kHoldersMax);
    out.Varint(count);
    for (size_t i = 0; i < count; ++i) out.Varint(PlaceOf(nodes[i]));
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
  HolderTable() = default;
  size_t PlaceOf(const NodeId& id) const {
    return static_cast<size_t>(std::find(ids_.begin(), ids_.end(), id) - ids_.begin());
  }

  std::vector<NodeId> ids_;
};

// A count, and so many elements. `write` takes an element and the encoder.
template <typename Elements, typename Write>
void EncodeList(const Elements& elements, Encoder& out, const Write& write) {
  out.Varint(elements.size());
  for (const auto& element : elements) write(element, out);
}

// The rest of a message: a count, and so many elements of at least `bytes_each_min`. `read` takes the decoder and an
// element; false: it is malformed.
template <typename Element, typename Read>
std::optional<std::vector<Element>> DecodeRest(Decoder& in, size_t count_max, size_t bytes_each_min, const Read& read) {
  const uint64_t count = in.Varint();
  if (!in.ok() || count > count_max || count * bytes_each_min > in.remaining()) return std::nullopt;
  std::vector<Element> elements;
  elements.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    Element element{};
    if (!read(in, element) || !in.ok()) return std::nullopt;
    elements.push_back(std::move(element));
  }
  if (!in.Finished()) return std::nullopt;
  return elements;
}

// One of an enum whose values are 0 to `last`.
template <typename Enum>
bool DecodeEnum(Decoder& in, Enum last, Enum& value) {
  const uint8_t number = in.U8();
  value = static_cast<Enum>(number);
  return number <= static_cast<uint8_t>(last);
}

// Of a chunk whose bytes are in the payload.
bool DecodeSize(Decoder& in, uint32_t& size) {
  const uint64_t number = in.Varint();
  size = static_cast<uint32_t>(number);
  return number <= kChunkBytesMax;
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

Result<Envelope> DecodeEnvelope(std::string_view bytes) {
  Decoder in(bytes);
  const uint8_t version = in.U8();
  if (in.ok() && version != kVersion) {
    return MakeError(
        ErrorCode::kNotSupported,
        fmt::format("the node that calls speaks version {} of what nodes say, and the one that answers {}: "
                    "upgrade the one that {}",
                    version, kVersion, version < kVersion ? "calls" : "answers"));
  }
  auto to = NodeId::FromKey(in.Text(NodeId::kBytes));
  auto from = NodeId::FromKey(in.Text(NodeId::kBytes));
  if (!in.ok() || !to || !from) return InvalidArgument("the message has no envelope");
  return Envelope{*to, *from};
}

std::string EncodeDigests(const std::vector<Digest>& digests) {
  Encoder out;
  EncodeList(digests, out, [](const Digest& digest, Encoder& to) { to.Id(digest); });
  return out.Take();
}

static std::optional<std::vector<Digest>> DecodeDigestsFrom(Decoder& in) {
  return DecodeRest<Digest>(in, kDigestsPerMessageMax, Digest::kBytes, [](Decoder& from, Digest& digest) {
    digest = from.Id();
    return true;
  });
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
  Encoder out;
  const HolderTable table(answers, out);
  EncodeList(answers, out, [&](const HasAnswer& answer, Encoder& to) {
    to.U8(static_cast<uint8_t>(answer.kind));
    if (answer.is_known()) table.EncodeList(answer.holders, to);
  });
  return out.Take();
}

std::optional<std::vector<HasAnswer>> DecodeHasReply(std::string_view head) {
  Decoder in(head);
  const auto table = HolderTable::Decode(in);
  if (!table) return std::nullopt;
  return DecodeRest<HasAnswer>(in, kDigestsPerMessageMax, 1, [&](Decoder& from, HasAnswer& answer) {
    if (!DecodeEnum(from, HasAnswer::Kind::kKnownHere, answer.kind)) return false;
    return !answer.is_known() || table->DecodeList(from, &answer.holders);
  });
}

std::string EncodeBits(const std::vector<bool>& bits) {
  Encoder out;
  EncodeList(bits, out, [](bool bit, Encoder& to) { to.U8(bit ? 1 : 0); });
  return out.Take();
}

std::optional<std::vector<bool>> DecodeBits(std::string_view head) {
  Decoder in(head);
  return DecodeRest<bool>(in, kInodesPerMessageMax, 1, [](Decoder& from, bool& bit) {
    const uint8_t number = from.U8();
    bit = number == 1;
    return number <= 1;
  });
}

std::string EncodePut(const std::vector<PutItem>& items) {
  Encoder out;
  const HolderTable table(items, out);
  EncodeList(items, out, [&](const PutItem& item, Encoder& to) {
    to.Id(item.digest).Varint(item.size);
    table.EncodeList(item.holders, to);
  });
  return out.Take();
}

std::optional<std::vector<PutItem>> DecodePut(std::string_view head) {
  Decoder in(head);
  const auto table = HolderTable::Decode(in);
  if (!table) return std::nullopt;
  return DecodeRest<PutItem>(in, kDigestsPerMessageMax, Digest::kBytes + 2, [&](Decoder& from, PutItem& item) {
    item.digest = from.Id();
    return DecodeSize(from, item.size) && table->DecodeList(from, &item.holders);
  });
}

std::string EncodePutReply(const std::vector<PutAnswer>& answers) {
  Encoder out;
  EncodeList(answers, out, [](PutAnswer answer, Encoder& to) { to.U8(static_cast<uint8_t>(answer)); });
  return out.Take();
}

std::optional<std::vector<PutAnswer>> DecodePutReply(std::string_view head) {
  Decoder in(head);
  return DecodeRest<PutAnswer>(in, kDigestsPerMessageMax, 1, [](Decoder& from, PutAnswer& answer) {
    return DecodeEnum(from, PutAnswer::kFailed, answer);
  });
}

std::string EncodeGetReply(const std::vector<GetAnswer>& answers) {
  Encoder out;
  const HolderTable table(answers, out);
  EncodeList(answers, out, [&](const GetAnswer& answer, Encoder& to) {
    to.U8(static_cast<uint8_t>(answer.kind));
    if (answer.kind == GetAnswer::Kind::kBytes) to.Varint(answer.size);
    if (answer.kind == GetAnswer::Kind::kNotHere) table.EncodeList(answer.holders, to);
  });
  return out.Take();
}

std::optional<std::vector<GetAnswer>> DecodeGetReply(std::string_view head) {
  Decoder in(head);
  const auto table = HolderTable::Decode(in);
  if (!table) return std::nullopt;
  return DecodeRest<GetAnswer>(in, kDigestsPerMessageMax, 1, [&](Decoder& from, GetAnswer& answer) {
    if (!DecodeEnum(from, GetAnswer::Kind::kLater, answer.kind)) return false;
    if (answer.kind == GetAnswer::Kind::kBytes) return DecodeSize(from, answer.size);
    return answer.kind != GetAnswer::Kind::kNotHere || table->DecodeList(from, &answer.holders);
  });
}

std::string EncodeInodes(const std::vector<InodeId>& inodes) {
  Encoder out;
  EncodeList(inodes, out, [](InodeId inode, Encoder& to) { to.U64(inode.value); });
  return out.Take();
}

std::optional<std::vector<InodeId>> DecodeInodes(std::string_view head) {
  Decoder in(head);
  return DecodeRest<InodeId>(in, kInodesPerMessageMax, sizeof(uint64_t), [](Decoder& from, InodeId& inode) {
    inode.value = from.U64();
    return true;
  });
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
