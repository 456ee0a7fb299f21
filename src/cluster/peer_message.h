// What nodes say to each other, and its bytes. docs/formats/cluster.md has the tables.
//
// A message is a head, which is small and decoded here, and a payload: the bytes of chunks one after the other, which
// are sent from the buffers they lie in and are received as they came. Every decoder takes what comes from the network:
// it refuses what is malformed and never reads past the end.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/types.h"
#include "cluster/types.h"
#include "io/buffer_pool.h"

namespace cairnfs::cluster {

enum class PeerMethod { kHas, kConfirm, kPut, kGet, kHoldOrphans, kSign, kOpenPlaces };
inline constexpr size_t kPeerMethodCount = 7;
const char* PeerMethodPath(PeerMethod method);  // of the gRPC call
std::optional<PeerMethod> PeerMethodOfPath(std::string_view path);

inline constexpr size_t kDigestsPerMessageMax = 1024;
// A message is closed once its payload has reached this; the chunk that reaches it may be of any size.
inline constexpr size_t kPayloadBytesFull = 4 * kMiB;
inline constexpr size_t kMessageBytesMax = 12 * kMiB;
inline constexpr size_t kChunkBytesMax = kPayloadBytesFull;
// Of one chunk, in a message. Who encodes a longer list leaves out the rest, which repair finds to be copies too many.
inline constexpr size_t kHoldersMax = 64;

struct PeerMessage {
  std::string head;
  std::vector<io::Slice> payload;
};

// In front of each request's head.
struct Envelope {
  NodeId to;    // whom the caller means: an address may have got a new owner
  NodeId from;  // the caller
};
inline constexpr size_t kEnvelopeBytes = 1 + 2 * NodeId::kBytes;
std::string EncodeEnvelope(const Envelope& envelope);
// kNotSupported: the caller speaks another version; the message says which of the two is too old. kInvalidArgument:
// malformed.
Result<Envelope> DecodeEnvelope(std::string_view bytes);

struct HasRequest {
  bool hold = false;  // wait a while for those on which another node has the claim
  std::vector<Digest> digests;
  std::string Encode() const;
  static std::optional<HasRequest> Decode(std::string_view head);
};

// One per digest, in their order.
struct HasAnswer {
  enum class Kind : uint8_t {
    kClaim = 0,  // nobody has it: the asker has the claim now
    kWait = 1,   // another node has the claim
    kKnown = 2,
    kKnownHere = 3,  // and the node that answers has it durably itself
  };
  Kind kind = Kind::kClaim;
  std::vector<NodeId> holders = {};  // of a known one; each but the one of kKnownHere is still to confirm
  bool is_known() const { return kind == Kind::kKnown || kind == Kind::kKnownHere; }
};
std::string EncodeHasReply(const std::vector<HasAnswer>& answers);
std::optional<std::vector<HasAnswer>> DecodeHasReply(std::string_view head);

std::string EncodeDigests(const std::vector<Digest>& digests);  // requests of Confirm and Get
std::optional<std::vector<Digest>> DecodeDigests(std::string_view head);
std::string EncodeBits(const std::vector<bool>& bits);  // replies of Confirm and HoldOrphans
std::optional<std::vector<bool>> DecodeBits(std::string_view head);

// A chunk with its bytes in the payload, or (size 0) only the news of who holds it.
struct PutItem {
  Digest digest;
  uint32_t size = 0;
  std::vector<NodeId> holders;  // who has it, or will have when this save is done; the whole list
};
std::string EncodePut(const std::vector<PutItem>& items);
std::optional<std::vector<PutItem>> DecodePut(std::string_view head);

// One per item, in their order.
enum class PutAnswer : uint8_t {
  kDurable = 0,  // it was stored or was there, and was synced
  kNoSpace = 1,
  kCorrupt = 2,  // the bytes did not match the digest: to be sent again
  kFailed = 3,   // the node's store refuses
};
std::string EncodePutReply(const std::vector<PutAnswer>& answers);
std::optional<std::vector<PutAnswer>> DecodePutReply(std::string_view head);

// One per digest, in their order.
struct GetAnswer {
  enum class Kind : uint8_t {
    kBytes = 0,    // `size` bytes in the payload
    kNotHere = 1,  // `holders` is whom this node knows to have it
    kDamaged = 2,  // it has it and cannot read it
    kLater = 3,    // no room in this reply: ask again
  };
  Kind kind = Kind::kNotHere;
  uint32_t size = 0;
  std::vector<NodeId> holders = {};
};
std::string EncodeGetReply(const std::vector<GetAnswer>& answers);
std::optional<std::vector<GetAnswer>> DecodeGetReply(std::string_view head);

std::string EncodeInodes(const std::vector<InodeId>& inodes);  // a request of HoldOrphans, a reply of OpenPlaces
std::optional<std::vector<InodeId>> DecodeInodes(std::string_view head);

// Cuts slices of `size` bytes off the front of a payload.
class PayloadReader {
 public:
  explicit PayloadReader(const std::vector<io::Slice>& payload) : payload_(payload) {}
  // Nullopt when fewer are left.
  std::optional<std::vector<io::Slice>> Take(size_t size);

 private:
  const std::vector<io::Slice>& payload_;
  size_t index_ = 0;
  size_t offset_ = 0;  // in payload_[index_]
};

}  // namespace cairnfs::cluster
