#include "kv/follower.h"

#include <map>

#include "kv/local_store_format.h"
#include "kv/openings.h"

namespace cairnfs::kv {

Result<Position> ReadPosition(KvEngine& engine, const EngineSnapshot* snapshot) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::optional<std::string> copying, engine.Get(kCopyingKey, snapshot));
  if (copying) return Position();
  CAIRNFS_ASSIGN_OR_RETURN(const Openings openings, Openings::Read(engine, snapshot));
  CAIRNFS_ASSIGN_OR_RETURN(const std::optional<uint64_t> revision, ReadRevision(engine, snapshot));
  return Position{openings.current(), revision.value_or(0)};
}

Status Follower::Admit(const Ballot& ballot) const {
  if (is_closed_) {
    return MakeError(ErrorCode::kStale, "this host serves the names, or has: mount it anew before it follows another");
  }
  const Vote vote = voter_.vote();
  const bool follows = vote.value && !vote.value->IsAlone() && vote.value->Primary().node == ballot.node;
  if (follows && voter_.Allows(ballot)) return {};
  return MakeError(ErrorCode::kStale, "this host does not follow node " + ballot.node + " (any more)");
}

Result<Position> Follower::Append(const Context&, const Ballot& ballot, const std::vector<LogEntry>& entries) {
  MutexLock lock(mutex_);
  CAIRNFS_RETURN_IF_ERROR(Admit(ballot));
  CAIRNFS_ASSIGN_OR_RETURN(Position position, ReadPosition(engine_));
  std::vector<EngineWrite> writes;
  for (const LogEntry& entry : entries) {
    if (entry.before != position) continue;
    writes.insert(writes.end(), entry.writes.begin(), entry.writes.end());
    position = entry.after;
  }
  if (!writes.empty()) CAIRNFS_RETURN_IF_ERROR(engine_.Write(writes, WriteMode::kSynced));
  return position;
}

// Only what differs is written, so that a copy to a host that has most of it already costs little of its disk.
Status Follower::Copy(const Context&, const Ballot& ballot, const CopyPiece& piece) {
  MutexLock lock(mutex_);
  CAIRNFS_RETURN_IF_ERROR(Admit(ballot));
  const std::pair copy(ballot, piece.copy);
  const bool begins = piece.number == 0 && copy > copy_;
  const bool goes_on = is_copying_ && copy == copy_ && piece.number == next_piece_;
  if ((!begins && !goes_on) || piece.end > kNamesEnd) {
    return MakeError(ErrorCode::kStale, "a copy of the names comes out of order: it is to begin anew");
  }
  if (begins) {
    CAIRNFS_RETURN_IF_ERROR(engine_.Write({EngineWrite{std::string(kCopyingKey), ""}}, WriteMode::kSynced));
    copy_ = copy;
    is_copying_ = true;
    next_piece_ = 0;
  }
  std::map<std::string_view, std::string_view> wanted(piece.entries.begin(), piece.entries.end());
  std::vector<EngineWrite> writes;
  auto compare = [&](std::string_view key, std::string_view value) {
    const auto found = wanted.find(key);
    if (found == wanted.end()) {
      writes.push_back({std::string(key), std::nullopt});
    } else if (found->second == value) {
      wanted.erase(found);
    }
    return true;
  };
  CAIRNFS_RETURN_IF_ERROR(engine_.Scan(piece.begin, piece.end, nullptr, compare));
  for (const auto& [key, value] : wanted) {
    if (key < piece.begin || key >= piece.end) return MakeError(ErrorCode::kInvalidArgument, "a key past its piece");
    writes.push_back({std::string(key), std::string(value)});
  }
  const bool is_last = piece.end == kNamesEnd;
  if (is_last) writes.push_back({std::string(kCopyingKey), std::nullopt});
  if (!writes.empty()) CAIRNFS_RETURN_IF_ERROR(engine_.Write(writes, SyncedIf(is_last)));
  ++next_piece_;
  is_copying_ = !is_last;
  return {};
}

void Follower::Close() {
  MutexLock lock(mutex_);
  is_closed_ = true;
}

}  // namespace cairnfs::kv
