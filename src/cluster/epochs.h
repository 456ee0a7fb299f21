// Epochs: how hosts agree on a collection of chunks. docs/cluster/collection.md has the protocol,
// docs/formats/cluster.md the bytes.
//
//   W A             announcement: every node is to record who counts on its chunks
//   W E             epoch: every node with a session records. A publish compares this key
//   W H             hold: nothing is collected until an operator allows it
//   W N <node id>   how far the node is, under its session's lease
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/context.h"
#include "cluster/types.h"
#include "kv/store.h"

namespace cairnfs::cluster {

class Membership;

// What a node tells of its part in a collection.
struct CollectionPart {
  enum class Phase : uint8_t {
    kRecording = 1,  // it records who counts on its chunks
    kBegun = 2,      // it has begun the epoch: what it saves was asked for anew
    kDone = 3,       // its part is over, whether it has freed anything or not
    kFailed = 4,     // it could not begin the epoch: nobody may free anything
  };
  Phase phase = Phase::kRecording;
  uint64_t announcement = 0;  // revision of it
  uint64_t chunks_freed = 0, bytes_freed = 0;
  uint64_t ended_seconds = 0;  // since 1970 UTC, by the node's clock; 0: not yet
  std::string error;           // why it freed nothing, or not all; empty: none
  bool operator==(const CollectionPart&) const = default;
  bool has_ended() const { return phase == Phase::kDone || phase == Phase::kFailed; }
  std::string Encode() const;
  static Result<CollectionPart> Decode(std::string_view value);
};

struct EpochState {
  struct Announcement {
    uint64_t number = 0;  // rises; microseconds since 1970 UTC where clocks allow
    uint64_t revision = 0;
  };
  struct Epoch {
    uint64_t revision = 0;      // of its key
    uint64_t announcement = 0;  // revision of that
  };
  std::optional<Announcement> announced;
  std::optional<Epoch> epoch;
  std::optional<std::string> hold;         // why
  std::map<NodeId, CollectionPart> parts;  // of nodes with a session
  std::set<NodeId> sessions;
  uint64_t revision = 0;  // of the store

  bool HasEpoch() const { return announced && epoch && epoch->announcement == announced->revision; }
  // A node with a session whose part in the announced collection does not fulfil this. nullopt: all do.
  std::optional<NodeId> FindUnless(const std::function<bool(const CollectionPart&)>& fulfils) const;
  // Some node may be freeing chunks.
  bool IsSwept() const;
  // The announced collection has ended on all nodes, or none was announced.
  bool IsOver() const;
};

class Epochs {
 public:
  // Both outlive it. `store` compares the session of this host in each commit, and reads what is there now.
  Epochs(kv::KvStore& store, Membership& membership) : store_(store), membership_(membership) {}

  // Any thread; each is one round trip. At one revision.
  Result<EpochState> Read(const Context& context);
  // The announcement, the epoch and the hold alone: costs the same however many nodes there are.
  Result<EpochState> ReadAnnounced(const Context& context);
  // The revision of the epoch's key; 0: there is none.
  Result<uint64_t> ReadEpoch(const Context& context);
  static const std::string& EpochKey();
  // Exists while collections are held up, and has the reason for people.
  static const std::string& HoldKey();
  // Each writes if nothing has changed of what was read; kConflict: it has.
  Status Announce(const Context& context, const EpochState& seen);
  // REQUIRES: announced, and all nodes with a session record.
  Status Begin(const Context& context, const EpochState& seen);
  // Returns the revision.
  Result<uint64_t> Tell(const Context& context, const CollectionPart& part);
  Status Hold(const Context& context, const std::string& why);
  Status Release(const Context& context);

 private:
  kv::KvStore& store_;
  Membership& membership_;
};

}  // namespace cairnfs::cluster
