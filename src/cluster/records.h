// Keys and values of membership in the shared store: docs/formats/cluster.md.
//
//   M N <node id>   node record, for as long as the node is known
//   M S <node id>   session, under its lease: the node is up
//   M F <node id>   the node takes no new chunks, under the session's lease
//   M O <node id>   the node is out
//   M R <node id>   the node was removed, and may not come back by itself
//   M D <node id>   the node is to give away what it has, and then has nothing
//   M P <node id>   the node took the place of another one
//   M J <node id>   node record of one that may come, and was never there
//
// All lie in one range, so that one watch tells of all of them in the order in which they happened.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/context.h"
#include "base/result.h"
#include "cluster/types.h"
#include "kv/store.h"

namespace cairnfs::cluster {

struct NodeRecord {
  std::string name, address, domain;
  double weight = 1;
  bool operator==(const NodeRecord&) const = default;
  std::string Encode() const;
  static Result<NodeRecord> Decode(std::string_view value);
};

struct SessionRecord {
  uint64_t incarnation = 0;  // random, of the process that made it
  kv::LeaseId lease = 0;
  std::string place;  // where that process ran: MembershipOptions::place
  std::string Encode() const;
  static Result<SessionRecord> Decode(std::string_view value);
};

struct OutRecord {
  Timestamp since;  // by the clock of the node that found it out; for people
  NodeId found_by;
  std::string Encode() const;
  static Result<OutRecord> Decode(std::string_view value);
};

struct DrainRecord {
  bool is_empty = false;  // the node has found that it has nothing any more, and takes nothing
  std::string Encode() const;
  static Result<DrainRecord> Decode(std::string_view value);
};

// What of a node nobody has configured is as it was at the node whose place it took.
struct PlaceRecord {
  NodeId of;                // that node, which was removed
  bool takes_name = false;  // else only failure domain and weight
  std::string name, domain;
  double weight = 1;
  bool operator==(const PlaceRecord&) const = default;
  std::string Encode() const;
  static Result<PlaceRecord> Decode(std::string_view value);
};

enum class MemberKey : char {
  kNode = 'N',
  kSession = 'S',
  kFull = 'F',
  kOut = 'O',
  kDrain = 'D',
  kRemoved = 'R',
  kPlace = 'P',
  kJoined = 'J',
};

std::string KeyOf(MemberKey kind, const NodeId& id);
// Who depends on another node's session (its locks, its delegations) compares this key with NodeInfo::session.
inline std::string SessionKey(const NodeId& id) { return KeyOf(MemberKey::kSession, id); }
inline std::string MembersBegin() { return "M"; }
inline std::string MembersEnd() { return "N"; }

// What a node is told that was removed. kPermission.
Error WasRemoved(const NodeId& id);

struct ParsedMemberKey {
  MemberKey kind;
  NodeId id;
};
std::optional<ParsedMemberKey> ParseMemberKey(std::string_view key);

// Those that joined and have taken no session yet: id, name, address, and weight 0. What does not decode is left out.
Result<std::vector<NodeInfo>> ReadJoined(const Context& context, kv::KvStore& store);

}  // namespace cairnfs::cluster
