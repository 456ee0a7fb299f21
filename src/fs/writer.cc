#include "fs/writer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "fs/open_files.h"

namespace cairnfs::fs {
namespace {

// Nobody knows who stored into the pages that the kernel writes back.
Kills KillsOf(const FileSystem::WriteRequest& request) {
  return request.kill_suid_sgid || request.from_page_cache ? Kills::kSetIdToo : Kills::kCapability;
}

// The kernel does not tell of these whether the caller keeps the bits.
Kills KillsOf(const Caller& caller) { return caller.uid != 0 ? Kills::kSetIdToo : Kills::kCapability; }

}  // namespace

void Writer::Write(Request request, Done<size_t> done) {
  HandlePtr handle = request.handle == 0 ? nullptr : at_.handles.Find(request.handle);
  InodePtr inode = handle ? handle->inode : at_.table.Find(request.inode);
  if (!inode) return done(MakeError(ErrorCode::kStale, "the file is not open"));
  if (request.data.size == 0) return done(size_t{0});
  if (handle && handle->tally != nullptr) {
    done = [tally = handle->tally, begun = Clock::Now(), done = std::move(done)](const Result<size_t>& written) {
      if (written.ok()) tally->NoteWrite(*written, Clock::Now() - begun);
      done(written);
    };
  }
  if (request.offset > kFileSizeMax || request.data.size > kFileSizeMax - request.offset) {
    return done(MakeError(ErrorCode::kTooLarge, "write past the largest file size"));
  }
  Target target{handle, inode};
  if (!request.append || at_.sharing.ContinuesAppends(inode)) {
    return ReserveAndWrite(std::move(request), target, std::move(done));
  }
  // What others have appended comes before it.
  const Caller caller = request.caller;
  auto write = [this, request = std::move(request), target, done](const Status& seen) {
    if (!seen.ok()) return done(seen.error());
    ReserveAndWrite(request, target, done);
  };
  at_.sharing.LookForOthers(inode, caller, std::move(write));
}

// Nearly full, the answer waits until it is known how much of what was accepted needs room at all.
void Writer::ReserveAndWrite(Request request, const Target& target, Done<size_t> done) {
  // The kernel drops pages that are refused.
  const NameChange change = request.from_page_cache ? NameChange::kAlters : NameChange::kMakes;
  const Room::Wanted wanted{.change = change, .uid = request.caller.uid, .bytes = request.data.size};
  if (at_.room.Reserve(wanted)) return Finish(request, target, std::move(done));
  auto write = [this, request = std::move(request), target, done = std::move(done)](const Status& reserved) {
    if (reserved.ok()) return Finish(request, target, done);
    if (request.from_page_cache) LosePages(request, target.inode, reserved.error());
    done(reserved.error());
  };
  at_.room.WaitForSpace(wanted, std::move(write));
}

void Writer::GiveUp(const Request& request, const InodePtr& inode, const Error& why, const Done<size_t>& done) {
  if (request.from_page_cache) LosePages(request, inode, why);
  at_.parts.local_chunks.ReleaseReservation(request.data.size);
  done(why);
}

void Writer::Finish(const Request& request, const Target& target, Done<size_t> done) {
  const Kills what = KillsOf(request);
  if (!Privileges::MayHave(target.inode, what)) return FinishPlain(request, target, std::move(done));
  Caller caller = request.caller;
  if (request.from_page_cache) caller.is_in_group = {};
  auto write = [this, request, target, what, caller = std::move(caller), done = std::move(done)] {
    const Status killed = at_.privileges.Kill(target.inode, what, caller);
    if (!killed.ok()) return GiveUp(request, target.inode, killed.error(), done);
    FinishPlain(request, target, done);
  };
  // What has to be asked of the shared store holds up this write alone.
  if (!at_.calls.Run(write)) write();
}

void Writer::FinishPlain(const Request& request, const Target& target, Done<size_t> done) {
  const Result<Accepted> accepted = Accept(request, target, Charge::kAsIfNew);
  if (!accepted.ok() || *accepted != Accepted::kLacksCredit) {
    return FinishAccepted(request, target, accepted, std::move(done));
  }
  // The answer waits until it is known how much of what was accepted counts at all.
  auto attempt = [this, request, target, done] {
    const Result<Accepted> taken = Accept(request, target, Charge::kWhatGrows);
    if (taken.ok() && *taken == Accepted::kLacksCredit) return false;
    FinishAccepted(request, target, taken, done);
    return true;
  };
  auto refused = [this, request, target, done](const Error& why) {
    if (!request.from_page_cache || why.code == ErrorCode::kQuotaExceeded) {
      return GiveUp(request, target.inode, why, done);
    }
    // It is only not known, and the kernel would drop the page: the next one that settles counts it.
    FinishAccepted(request, target, Accept(request, target, Charge::kNothing), done);
  };
  const uint64_t most = ChargedMost(request, target.inode);
  at_.quotas.Settle(request.caller.context,
                    {QuotaOf(target.inode), {most, most}, std::move(attempt), std::move(refused)});
}

void Writer::FinishAccepted(const Request& request, const Target& target, const Result<Accepted>& accepted,
                            Done<size_t> done) {
  const auto& [handle, inode] = target;
  if (!accepted.ok()) return GiveUp(request, inode, accepted.error(), done);
  const bool cuts = *accepted == Accepted::kTakenAndCutIsDue;
  bytes_total_ += request.data.size;
  const bool is_synced = request.sync || (handle && handle->flags.sync);
  const bool marks = request.from_page_cache && at_.closing.MustMark(inode);
  auto finish = [this, target, is_synced, size = request.data.size, caller = request.caller, done = std::move(done)] {
    if (!is_synced) return done(size);
    at_.rounds.Request(at_.waits.Within(caller.context, [this, target, done, size](Status synced) {
      const HandlePtr& through = target.handle;
      if (!synced.ok() && synced.error().code == ErrorCode::kInterrupted) return done(synced.error());
      if (through && (synced.ok() || at_.closing.IsDurableHere(target.inode))) {
        synced = CheckSynced(at_.session, *through);
      }
      if (!synced.ok()) return done(synced.error());
      done(size);
    }));
  };
  // The answer goes first where nothing else holds it up: a worker that wakes may take the writer's processor.
  const bool answers_first = !marks && !is_synced;
  if (cuts && !answers_first) at_.streams.BeginCut(inode);
  if (marks) {
    at_.closing.AnswerOnceMarked(inode, finish);
  } else {
    finish();
  }
  if (cuts && answers_first) at_.streams.BeginCut(inode);
}

InodeId Writer::QuotaOf(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  return inode->content ? inode->content->quota : InodeId{};
}

uint64_t Writer::ChargedMost(const Request& request, const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  return request.data.size + (inode->content ? ZerosBefore(request, inode) : 0);
}

uint64_t Writer::ZerosBefore(const Request& request, const InodePtr& inode) {
  const uint64_t offset = request.append ? inode->content->size : request.offset;  // nearly always where it goes
  return offset - Streams::BeginOfSmallHole(inode, offset);
}

// Whether it is new is known only once it is stored.
Result<bool> Writer::ChargeQuota(const Request& request, const InodePtr& inode, Charge charge) {
  const InodeId quota = inode->content->quota;
  if (quota.value == 0 || charge == Charge::kNothing) return true;
  const uint64_t zeros = ZerosBefore(request, inode), size = request.data.size + zeros;
  meta::QuotaBytes bytes{size, size};
  if (charge == Charge::kWhatGrows && !request.append) {
    const uint64_t begin = request.offset - zeros, end = request.offset + request.data.size;
    CAIRNFS_ASSIGN_OR_RETURN(bytes.logical, at_.contents.BytesMissingIn(inode, begin, end));
  }
  return at_.quotas.TakeCredit(quota, bytes);
}

Result<Writer::Accepted> Writer::Accept(const Request& request, const Target& target, Charge charge) {
  const auto& [handle, inode] = target;
  if (handle) {
    if (!request.from_page_cache) at_.closing.NoteWriter(*handle, request.caller);
    const Status holds = at_.session.Check(*handle);
    // The loss that the inode remembers is told with that, and to nobody who opens the file later.
    if (!holds.ok() && !request.from_page_cache) static_cast<void>(TakeErrorLocked(*handle).ok());
    CAIRNFS_RETURN_IF_ERROR(holds);
  }
  std::optional<SyncRounds::Operation> operation;
  for (;;) {
    MutexLock lock(inode->mutex);
    CAIRNFS_RETURN_IF_ERROR(at_.contents.Load(request.caller.context, inode));
    if (!inode->content->changed && !operation) {
      lock.Unlock();
      operation.emplace(at_.rounds);
      continue;
    }
    // The kernel would drop a page whose writeback is refused: an older error is no reason to.
    if (handle && !request.from_page_cache) CAIRNFS_RETURN_IF_ERROR(TakeError(inode, *handle));
    // Once more, for that may have been lost since: a loss from here on finds the content changed, and gives it up.
    if (handle) CAIRNFS_RETURN_IF_ERROR(at_.session.Check(*handle));
    CAIRNFS_ASSIGN_OR_RETURN(const bool has_credit, ChargeQuota(request, inode, charge));
    if (!has_credit) return Accepted::kLacksCredit;
    at_.contents.MarkChanged(inode);
    if (handle && handle->tally != nullptr) inode->content->tally = handle->tally;
    if (request.sync || (handle && handle->flags.sync)) inode->content->publish->NoteAskedFor();
    CAIRNFS_ASSIGN_OR_RETURN(const bool cuts, AcceptInto(request, inode));
    return cuts ? Accepted::kTakenAndCutIsDue : Accepted::kTaken;
  }
}

Result<bool> Writer::AcceptInto(const Request& request, const InodePtr& inode) {
  Content& content = *inode->content;
  // Stores through a mapping count from msync, munmap or close on, which come here as such writes: no names after
  // them may be durable before, though somebody still has the file open.
  if (request.from_page_cache) {
    content.must_publish = true;
    content.publish->NotePages();
  } else {
    content.writer = request.caller.uid;
  }
  const uint64_t offset = request.append ? at_.sharing.PlaceAppend(inode, request) : request.offset;
  if (request.data.size > kFileSizeMax - offset) {
    return MakeError(ErrorCode::kTooLarge, "write past the largest file size");
  }
  const uint64_t end = offset + request.data.size;
  // Of pages that the kernel writes back not all bytes may count.
  if (inode->backing && request.from_page_cache && end > content.size) inode->backing->NoteTruncated(end);
  content.size = std::max(content.size, end);
  content.publish->NoteSizeMin(end);
  content.publish->NoteKills(KillsOf(request));
  Contents::Touch(content);
  if (request.from_page_cache) return at_.contents.AcceptPages(inode, offset, request.data);
  at_.contents.NoteUnderPages(inode, offset, end);
  return at_.streams.Accept(inode, offset, request.data);
}

void Writer::NoteRefused(const Request& request, const Error& why) {
  if (!request.from_page_cache) return;
  HandlePtr handle = request.handle == 0 ? nullptr : at_.handles.Find(request.handle);
  InodePtr inode = handle ? handle->inode : at_.table.Find(request.inode);
  if (inode) LosePages(request, inode, why);
}

// Pages that the kernel wrote back are refused. It drops them, and tells at most one descriptor: nobody but us
// remembers.
void Writer::LosePages(const Request& request, const InodePtr& inode, const Error& why) {
  SyncRounds::Operation operation(at_.rounds);
  MutexLock lock(inode->mutex);
  const bool counts = at_.closing.CountsAsLost(why) && at_.contents.Load({}, inode).ok();
  // Of each file once, until it has what was lost again: whoever maps it makes as many refusals as they like.
  if (!counts || inode->content->lost.empty()) {
    spdlog::error("inode {}: stores through a mapping at {} (+{}) are lost: {}", inode->id.value, request.offset,
                  request.data.size, why.message);
  }
  if (counts) {
    at_.contents.MarkChanged(inode);
    inode->content->must_publish = true;
  }
  at_.streams.SetError(inode, why);
  if (counts) at_.contents.LosePages(inode, request.offset, request.data.size);
}

// What there is for so many bytes. What the trash holds goes once somebody writes: fallocate promises no room, so it
// makes none.
uint64_t Writer::AvailableFor(uint64_t bytes) {
  const uint64_t available = at_.parts.local_chunks.AvailableBytes();
  if (bytes <= available) return available;
  const store::StoreStats stats = at_.parts.local_chunks.Stats();
  const uint64_t stored = stats.segment_bytes - std::min(stats.segment_bytes, stats.free_segment_bytes);
  return available + at_.trash.BytesStored(at_.totals, stored);
}

void Writer::Fallocate(HandleId handle_id, const FallocateRequest& request, Done<void> done, const Caller& caller) {
  HandlePtr handle = at_.handles.Find(handle_id);
  if (!handle) return done(MakeError(ErrorCode::kStale, "the file is not open"));
  if (request.length == 0 || request.offset > kFileSizeMax || request.length > kFileSizeMax - request.offset) {
    return done(MakeError(request.length == 0 ? ErrorCode::kInvalidArgument : ErrorCode::kTooLarge,
                          "fallocate past the largest file size, or of nothing"));
  }
  if (auto session = at_.session.Check(*handle); !session.ok()) return done(session);
  at_.closing.NoteWriter(*handle, caller);
  const InodePtr& inode = handle->inode;
  const Kills kills = KillsOf(caller);
  if (Status killed = at_.privileges.Kill(inode, kills, caller); !killed.ok()) return done(killed);
  const bool allocates = !request.punch_hole && !request.zero_range;
  const uint64_t available = allocates ? AvailableFor(request.length) : 0;
  auto apply = [this, inode, request, allocates, available](Content& content) -> Status {
    inode->mutex.AssertHeld();
    const uint64_t end = request.offset + request.length;
    if (allocates && request.length > available) {
      CAIRNFS_ASSIGN_OR_RETURN(const uint64_t missing, at_.contents.BytesMissingIn(inode, request.offset, end));
      if (missing > available) {
        return MakeError(ErrorCode::kNoSpace, "no space for " + std::to_string(missing) + " bytes");
      }
    }
    if (!allocates) {
      CAIRNFS_RETURN_IF_ERROR(at_.contents.Punch(inode, request.offset, request.length));
      // The kernel keeps the pages at the edges, and clears a part of them.
      at_.contents.NoteUnderPages(inode, AlignUp(request.offset, kPageBytes), AlignDown(end, kPageBytes));
    }
    if (!request.keep_size && !request.punch_hole) {
      if (inode->backing && end > content.size) inode->backing->NoteTruncated(end);
      content.size = std::max(content.size, end);
      content.publish->NoteSizeMin(end);
    }
    Contents::Touch(content);
    content.must_publish = true;
    return {};
  };
  FileChange change{.inode = inode,
                    .apply = std::move(apply),
                    .adds = !request.punch_hole && !request.zero_range,
                    .session = handle->session,
                    .kills = kills,
                    .caller = caller};
  at_.sharing.Change(std::move(change), std::move(done));
}

Result<std::vector<Extent>> Writer::FindExtents(const Context& context, Copy& copy,
                                                std::vector<store::ChunkPin>& pins) {
  constexpr int kTriesMax = 8;
  const InodePtr& from = copy.from->inode;
  std::optional<Error> last;
  for (int tries = 0; tries < kTriesMax; tries++) {
    pins.clear();
    uint64_t length = copy.length;
    auto extents = at_.contents.StoredExtents(context, from, copy.from_offset, length, &pins);
    if (extents.ok()) {
      copy.length = length;
      return extents;
    }
    // One that the source had when it was loaded may be gone since another host changed the source.
    if (extents.error().code != ErrorCode::kNotFound) return extents.error();
    last = extents.error();
  }
  const Error why = OfNamedChunk(*std::move(last));
  spdlog::error("inode {}: bytes at {} (+{}) cannot be copied: {}", from->id.value, copy.from_offset, copy.length,
                why.message);
  at_.error_names.Note(from->id);
  return why;
}

Result<std::optional<size_t>> Writer::CopyNow(const Copy& asked, const Caller& caller) {
  Copy copy = asked;
  std::vector<store::ChunkPin> pins;
  CAIRNFS_ASSIGN_OR_RETURN(std::vector<Extent> extents, FindExtents(caller.context, copy, pins));
  if (copy.length == 0) return std::optional<size_t>(0);
  const InodePtr& to = copy.to->inode;
  for (Extent& extent : extents) extent.offset = extent.offset - copy.from_offset + copy.to_offset;
  bool lacks_credit = false;
  auto apply = [&](Content& content) -> Status {
    to->mutex.AssertHeld();
    CAIRNFS_RETURN_IF_ERROR(at_.contents.CheckMayLay(to));  // before it takes credit
    if (content.quota.value != 0) {
      uint64_t grows = copy.length;
      if (asked.charge == Charge::kWhatGrows) {
        CAIRNFS_ASSIGN_OR_RETURN(grows, at_.contents.BytesMissingIn(to, copy.to_offset, copy.to_offset + copy.length));
      }
      lacks_credit = !at_.quotas.TakeCredit(content.quota, {grows, 0});
      if (lacks_credit) return at_.quotas.Exceeded(content.quota);
    }
    CAIRNFS_RETURN_IF_ERROR(at_.contents.Lay(to, copy.to_offset, copy.length, extents, std::move(pins)));
    content.accepted_bytes += copy.length;
    return {};
  };
  const Status copied = at_.contents.Change({.inode = to,
                                             .apply = apply,
                                             .adds = true,
                                             .session = copy.to->session,
                                             .kills = KillsOf(caller),
                                             .caller = caller});
  if (lacks_credit) return std::optional<size_t>();
  if (!copied.ok()) return copied.error();
  return std::optional<size_t>(copy.length);
}

void Writer::CopyRange(const CopyRequest& request, Done<size_t> done, const Caller& caller) {
  const Copy asked{at_.handles.Find(request.from), at_.handles.Find(request.to), request.from_offset, request.to_offset,
                   request.length};
  if (!asked.from || !asked.to) return done(MakeError(ErrorCode::kStale, "the file is not open"));
  if (asked.to_offset > kFileSizeMax || asked.length > kFileSizeMax - asked.to_offset ||
      asked.from_offset > kFileSizeMax || asked.length > kFileSizeMax - asked.from_offset) {
    return done(MakeError(ErrorCode::kTooLarge, "copy past the largest file size"));
  }
  auto copy = [this, asked, caller, done] {
    Handle& to = *asked.to;
    Status error = TakeErrorLocked(to);
    if (error.ok()) error = at_.session.Check(to);
    if (error.ok()) error = at_.session.CheckRead(*asked.from);
    if (error.ok()) error = at_.privileges.Kill(to.inode, KillsOf(caller), caller);
    if (!error.ok()) return done(error.error());
    at_.closing.NoteWriter(to, caller);
    const auto copied = CopyNow(asked, caller);
    if (!copied.ok()) return done(copied.error());
    if (*copied) return done(**copied);
    Copy again = asked;
    again.charge = Charge::kWhatGrows;
    auto attempt = [this, again, caller, done] {
      const auto copied_now = CopyNow(again, caller);
      if (copied_now.ok() && !*copied_now) return false;
      done(copied_now.ok() ? Result<size_t>(**copied_now) : Result<size_t>(copied_now.error()));
      return true;
    };
    at_.quotas.Settle(caller.context, {QuotaOf(to.inode), {asked.length, 0}, std::move(attempt), done});
  };
  const InodePtr& from = asked.from->inode;
  at_.sharing.WhenCurrent(from, caller, [this, copy, caller, done](const Status& current) {
    if (!current.ok()) return done(current.error());
    at_.calls.RunToWait(caller, copy, [done](const Status& refused) { done(refused.error()); });
  });
}

}  // namespace cairnfs::fs
