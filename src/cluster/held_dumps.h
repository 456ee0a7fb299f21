// Held dumps: what a dump names stays on the nodes until the hold is released or its time is over.
// docs/cluster/collection.md says why that holds, docs/formats/cluster.md has the bytes.
//
//   W P                   a dump that holds is being taken: no collection is announced. Under its host's session
//   R <hold id>           a hold: of what, and until when
//   R <hold id> <inode>   the record that the file had when the dump was taken
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/context.h"
#include "base/types.h"
#include "kv/store.h"

namespace cairnfs::cluster {

class Membership;

struct HeldDump {
  uint64_t id = 0;  // of a hold among all; 0: none
  Timestamp taken;  // by the clock of the host that took the dump
  Timestamp until;  // of a dump that is still being taken: when it is given up
  uint64_t records = 0;
  bool is_complete = false;  // the dump was taken to its end
  std::string host;          // that took it
  std::string Encode() const;
  // kCorrupt: the entry is none of a hold, or does not decode.
  static Result<HeldDump> Decode(const kv::KvEntry& entry);
};

// Below it lie all holds and their records, which collections mark as those of files.
inline constexpr std::string_view kHeldPrefix = "R";
bool IsHold(std::string_view key);
bool IsHeldRecord(std::string_view key);
uint64_t HoldOfKey(std::string_view key);  // REQUIRES: IsHeldRecord
// Exists while a dump that holds is being taken.
const std::string& HoldingKey();

// A hold while its dump is taken. Of one thread.
class HoldInTheMaking {
 public:
  // Both outlive it. `store` compares the session of this host in each commit.
  HoldInTheMaking(kv::KvStore& store, Membership& membership) : store_(store), membership_(membership) {}
  ~HoldInTheMaking();  // without Finish: takes the hold back, as far as the store answers
  HoldInTheMaking(const HoldInTheMaking&) = delete;

  // Returns once no collection is under way, and none begins before Finish: what the store names then is there, and is
  // kept if it is added. kBusy: another dump that holds is being taken, or a collection does not end.
  Status Begin(const Context& context, const std::string& host);
  // The record of a file, which the store has had since Begin returned, by its key.
  Status Add(const Context& context, std::string_view key, std::string_view value);
  // kStale: this host's session was lost meanwhile, and nothing is held.
  Result<HeldDump> Finish(const Context& context, Clock::duration hold);

 private:
  Status AwaitCollections(const Context& context);
  Status Flush(const Context& context);
  Status TakeBack(const Context& context);

  kv::KvStore& store_;
  Membership& membership_;
  HeldDump hold_;
  uint64_t revision_ = 0;  // of the holding key
  kv::Transaction pending_;
  size_t pending_bytes_ = 0;
};

// From the oldest on.
Result<std::vector<HeldDump>> ListHolds(const Context& context, kv::KvStore& store);
// kNotFound: there is no such hold. After another error it is to be called again.
Status ReleaseHold(const Context& context, kv::KvStore& store, uint64_t id);
// Of those whose time is over by this host's clock.
Status ReleaseEndedHolds(const Context& context, kv::KvStore& store);

}  // namespace cairnfs::cluster
