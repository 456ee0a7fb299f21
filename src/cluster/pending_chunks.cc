#include "cluster/pending_chunks.h"

#include <algorithm>
#include <cassert>

namespace cairnfs::cluster {

ChunkPtr PendingChunks::Find(const Digest& digest) const {
  const auto found = chunks_.find(digest);
  return found != chunks_.end() ? found->second : nullptr;
}

void PendingChunks::Add(const ChunkPtr& chunk) {
  const bool is_new = chunks_.emplace(chunk->digest(), chunk).second;
  assert(is_new);
}

void PendingChunks::AwaitBySync(const ChunkPtr& chunk) {
  if (chunk->sequence() != 0) return;
  chunk->SetSequence(++last_sequence_);
  awaited_.emplace(last_sequence_, chunk);
  awaited_bytes_ += chunk->size();
  Update(chunk);
}

void PendingChunks::Update(const ChunkPtr& chunk) {
  const uint64_t sequence = chunk->sequence();
  if (chunk->is_under_replicated()) {
    under_replicated_.insert(chunk);
  } else {
    under_replicated_.erase(chunk);
  }
  if (!chunk->is_done()) {
    if (sequence != 0 && !chunk->bytes().empty()) in_memory_.insert(sequence);
    return;
  }
  const auto found = chunks_.find(chunk->digest());
  if (found == chunks_.end() || found->second != chunk) return;
  chunks_.erase(found);
  if (sequence == 0) return;
  awaited_bytes_ -= chunk->size();
  awaited_.erase(sequence);
  in_memory_.erase(sequence);
}

ChunksBySequence PendingChunks::AwaitedOf(std::span<const Digest> digests) const {
  ChunksBySequence chunks;
  for (const Digest& digest : digests) {
    const ChunkPtr chunk = Find(digest);
    if (chunk && chunk->sequence() != 0) chunks.emplace(chunk->sequence(), chunk);
  }
  return chunks;
}

void PendingChunks::DropBytes(Clock::time_point now, Clock::duration kept_for) {
  for (auto sequence = in_memory_.begin(); sequence != in_memory_.end();) {
    ChunkCopies& chunk = *awaited_.at(*sequence);
    if (now - chunk.put_at() < kept_for) break;
    sequence = chunk.DropBytes() ? in_memory_.erase(sequence) : std::next(sequence);
  }
}

ChunkPtr PendingChunks::NextUnderReplicated(const ChunkPtr& after) const {
  const auto next = after ? under_replicated_.upper_bound(after) : under_replicated_.begin();
  return next != under_replicated_.end() ? *next : nullptr;
}

// Those that are done go, so that they are not looked at again and again.
const ChunksBySequence& SyncPoint::Chunks() {
  if (!only_) return pending_.awaited();
  while (!only_->empty() && only_->begin()->second->is_done()) only_->erase(only_->begin());
  return *only_;
}

// Noted as it is passed over: a moment later it may be readable again, and on its way.
bool SyncPoint::LeavesOut(const ChunkCopies& chunk) {
  if (!chunk.failure() || !is_pinned_(chunk.digest())) return false;
  left_out_.insert_or_assign(chunk.digest(), *chunk.failure());
  return true;
}

bool SyncPoint::IsPlaced() {
  const ChunksBySequence& chunks = Chunks();
  for (auto at = chunks.upper_bound(placed_); at != chunks.end() && at->first <= last_; ++at) {
    const ChunkCopies& chunk = *at->second;
    // What was put elsewhere need not lie here. One for which there is no room here is not waited for twice.
    using Local = ChunkCopies::Local;
    const bool needs_no_other = scope_ == Scope::kThisNode || chunk.state() == ChunkCopies::State::kReplicating;
    const bool has_no_room = scope_ == Scope::kCopies && chunk.local() == Local::kNoRoom;
    const bool is_placed = (chunk.local() == Local::kStored && needs_no_other) || has_no_room;
    // Of a covered one, where copies are not waited for, some node has to say that it has it.
    const bool is_there = scope_ == Scope::kCopies || chunk.CountCopies() > 0;
    const bool may_go_on = chunk.is_done() || (chunk.is_covered() ? is_there : is_placed);
    if (!may_go_on && !LeavesOut(chunk)) return false;
    placed_ = at->first;
  }
  return true;
}

bool SyncPoint::HasCopies() {
  left_out_.clear();  // what was passed over before may have its copies by now
  for (const auto& [sequence, chunk] : Chunks()) {
    if (sequence > last_) break;
    if (!chunk->is_done() && !LeavesOut(*chunk)) return false;
  }
  return true;
}

bool SyncPoint::IsShort(Clock::time_point now, Clock::duration time) const {
  return std::any_of(pending_.under_replicated().begin(), pending_.under_replicated().end(),
                     [&](const ChunkPtr& chunk) {
                       const uint64_t sequence = chunk->sequence();
                       const bool is_awaited = only_ ? only_->contains(sequence) : sequence != 0 && sequence <= last_;
                       return is_awaited && !chunk->failure() && now - chunk->under_replicated_since() > time &&
                              (chunk->is_referenced() || is_pinned_(chunk->digest()));
                     });
}

}  // namespace cairnfs::cluster
