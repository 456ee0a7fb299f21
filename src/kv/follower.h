// Follower: the standby's side. It takes the batches of the primary in their order, or a copy of all that the primary
// has, into an engine of its own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "kv/engine.h"
#include "kv/names_register.h"
#include "kv/store_log.h"

namespace cairnfs::kv {

// Of an engine that holds a hosted store. {0, 0}: none, or a copy that is not whole. kCorrupt.
Result<Position> ReadPosition(KvEngine& engine, const EngineSnapshot* snapshot = nullptr);

// The names lie in front of what each host keeps for itself.
inline constexpr std::string_view kNamesEnd = "V";
inline constexpr std::string_view kCopyingKey = "W";  // there while a copy is under way

// A part of a copy: in [begin, end) there is this and nothing else. The last one ends with kNamesEnd.
struct CopyPiece {
  uint64_t copy = 0;    // of all pieces of one copy; a later one of the same primary has a larger number
  uint64_t number = 0;  // from 0 on, without a gap
  std::string begin, end;
  std::vector<std::pair<std::string, std::string>> entries;  // in the order of the keys
};

// What a primary calls at its standby. Any thread.
class FollowerCalls {
 public:
  virtual ~FollowerCalls() = default;
  // Takes those of the entries that follow on its position, durably, and returns where it is then. No entries: asks
  // that. kStale: it does not follow the one who calls under that ballot.
  virtual Result<Position> Append(const Context& context, const Ballot& ballot,
                                  const std::vector<LogEntry>& entries) = 0;
  // kStale also: not the piece that is to come.
  virtual Status Copy(const Context& context, const Ballot& ballot, const CopyPiece& piece) = 0;
};

class Follower final : public FollowerCalls {
 public:
  // Both outlive it. Nobody else writes names to the engine.
  Follower(KvEngine& engine, LocalVoter& voter) : engine_(engine), voter_(voter) {}

  Result<Position> Append(const Context& context, const Ballot& ballot, const std::vector<LogEntry>& entries) override;
  Status Copy(const Context& context, const Ballot& ballot, const CopyPiece& piece) override;
  // Takes nothing any more: this host comes to serve the names itself. Returns once no call is under way.
  void Close();

 private:
  Status Admit(const Ballot& ballot) const REQUIRES_LOCK(mutex_);

  KvEngine& engine_;
  LocalVoter& voter_;
  Mutex mutex_;
  bool is_closed_ GUARDED_BY(mutex_) = false;
  // The copy that came last. One that comes late, of a call that nobody waits for, is smaller.
  std::pair<Ballot, uint64_t> copy_ GUARDED_BY(mutex_);
  bool is_copying_ GUARDED_BY(mutex_) = false;
  uint64_t next_piece_ GUARDED_BY(mutex_) = 0;
};

}  // namespace cairnfs::kv
