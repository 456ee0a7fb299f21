// What the store keeps of deferred commits (docs/commits.md, "Deferred commits"): a ticket for each that is under way,
// or whose result nobody has asked for yet. docs/formats/namespace.md has the byte tables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::meta {

struct TicketRecord {
  static constexpr size_t kGroupsMax = 1024, kReasonBytesMax = 256;
  enum class State : uint8_t { kUnderWay = 0, kDone = 1, kFailed = 2 };

  State state = State::kUnderWay;
  Timestamp taken, ended;          // by the clocks of the hosts that took and ended it; `ended` 0: it has not
  uint32_t uid = 0, gid = 0;       // who renames
  std::vector<uint32_t> groups;    // supplementary, of the process that asked for it
  InodeId directory;               // what is to be renamed
  InodeId from_parent, to_parent;  // from where, and where to
  std::string from_name, to_name;
  std::string reason;  // why it failed; else empty

  bool is_under_way() const { return state == State::kUnderWay; }

  std::string Encode() const;
  static Result<TicketRecord> Decode(std::string_view value);
};

// Never 0.
using TicketId = uint64_t;

// Of the records and claims of all tickets. The key that is nothing but this is put by each transaction that takes a
// ticket, so that two do not count the same ones.
std::string TicketsPrefix();
std::string TicketKey(TicketId id);
// In a cluster: the id of the node that works on it, held under its session.
std::string TicketClaimKey(TicketId id);
std::optional<TicketId> TicketOfKey(std::string_view key);       // nullopt for another key
std::optional<TicketId> TicketOfClaimKey(std::string_view key);  // the same

// Of a host alone: there once bytes that were accepted have found no room, or are lost, since its daemon began. Put no
// later than the records of what was to come after these bytes.
std::string BytesLackKey();

// As people and programs see it: 16 hexadecimal digits.
std::string TicketText(TicketId id);
// kInvalidArgument: it is none, and how one looks.
Result<TicketId> ParseTicket(std::string_view text);

}  // namespace cairnfs::meta
