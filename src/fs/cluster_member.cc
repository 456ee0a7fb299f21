#include "fs/cluster_member.h"

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "coherence/cluster_locks.h"
#include "fs/publish_items.h"

namespace cairnfs::fs {
namespace {

constexpr auto kRejoinEvery = std::chrono::seconds(1);
constexpr int kStartTriesMax = 10;
constexpr auto kStartWaitMax = std::chrono::seconds(5);  // for word of the session

}  // namespace

// On a machine that stands still as it starts the session may have ended since it was taken. Nothing rests on it yet.
Status ClusterMember::BeginSession() {
  const auto wait_max =
      std::min<std::chrono::milliseconds>(std::chrono::milliseconds(at_.options.metadata_wait_ms), kStartWaitMax);
  for (int tries = 1;; ++tries) {
    (void)at_.host.membership().WaitForSession(Context().WithTimeout(wait_max)).ok();
    const Status begun = at_.host.BeginSession();
    if (begun.ok() || begun.error().code != ErrorCode::kStale || tries == kStartTriesMax) return begun;
    CAIRNFS_RETURN_IF_ERROR(at_.host.membership().Rejoin());
    CAIRNFS_RETURN_IF_ERROR(at_.parts.names.ForgetReservedInodes({}));
  }
}

Status ClusterMember::Start() {
  CAIRNFS_RETURN_IF_ERROR(BeginSession());
  orphans_ = std::make_unique<Orphans>(at_.host, at_.parts.names, at_.table,
                                       std::chrono::milliseconds(at_.options.orphan_sweep_every_ms));
  guard_ = std::make_shared<Guard>();
  {
    MutexLock lock(guard_->mutex);
    guard_->member = this;
  }
  at_.host.membership().OnLost([guard = guard_] {
    MutexLock lock(guard->mutex);
    if (guard->member != nullptr) guard->member->LoseSession();
  });
  return {};
}

void ClusterMember::Stop() {
  if (guard_ == nullptr) return;
  at_.stop.request_stop();
  at_.host.membership().OnLost({});
  {
    MutexLock lock(guard_->mutex);
    guard_->member = nullptr;
  }
  orphans_->Stop();
  guard_.reset();
}

// Nobody knows what others have done to these files since.
void ClusterMember::DropUnpublished() {
  const Error why = SessionLost("what was not published is lost");
  size_t files = 0;
  at_.table.ForEach([&](const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    // The store may have gone back to an older state: revisions that were read may come to mean something else.
    inode->published_revision = 0;
    if (!inode->content) return;
    if (!inode->content->changed) {
      inode->content->shared().is_void = !inode->unlinked;
      inode->content->shared().is_marked = false;  // it stays, of a session that has ended
      return;
    }
    files++;
    spdlog::error("inode {}: {}", inode->id.value, why.message);
    at_.error_names.Note(inode->id);
    at_.streams.NoteDropped(inode);
    fs::DropUnpublished(at_.streams, inode, why);
  });
  spdlog::error(
      "the session with the cluster was lost, and with it changes of {} files; files that are open for "
      "writing get errors",
      files);
}

// Whatever was accepted under the session that was lost can never be published. Only when all of it is given up a new
// session is taken.
void ClusterMember::LoseSession() {
  // Two losses in quick succession are told twice, and the first time may have been enough.
  const auto now = at_.host.membership().session();
  if (now.ok() && now->revision == at_.host.session()) return;
  at_.host.EndSession();
  DropUnpublished();
  at_.parts.cluster->locks.ForgetAll();
  const Context context(at_.stop.get_token());
  while (!context.IsStopped()) {
    Status status = at_.host.membership().Rejoin();
    // Before a file is made in the new session: the store may have gone back to before its number was given out.
    if (status.ok()) status = at_.parts.names.ForgetReservedInodes(context);
    if (status.ok()) at_.host.ForgetEpoch();
    if (status.ok()) status = at_.host.BeginSession();
    if (status.ok()) {
      spdlog::info("this host has a new session with the cluster");
      return;
    }
    spdlog::warn("no new session with the cluster yet: {}", status.error().message);
    static_cast<void>(context.Sleep(kRejoinEvery));
  }
}

}  // namespace cairnfs::fs
