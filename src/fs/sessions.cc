// A filesystem's life among other hosts: what they ask, and what happens when this host's session is lost.
#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "coherence/cluster_locks.h"
#include "fs/impl.h"
#include "kv/patience.h"

namespace cairnfs::fs {
namespace {

constexpr auto kSessionLook = std::chrono::milliseconds(10);
constexpr auto kRejoinEvery = std::chrono::seconds(1);
constexpr int kStartTriesMax = 10;
constexpr auto kStartWaitMax = std::chrono::seconds(5);  // for word of the session

}  // namespace

class FileSystem::Impl::Answers final : public cluster::PeerHandler {
 public:
  explicit Answers(Impl& impl) : impl_(impl) {}

  std::vector<bool> HoldOrphans(const std::vector<InodeId>& inodes) override { return impl_.HoldOrphans(inodes); }

 private:
  Impl& impl_;
};

std::vector<bool> FileSystem::Impl::HoldOrphans(const std::vector<InodeId>& inodes) {
  std::vector<bool> held;
  for (InodeId id : inodes) {
    // Refused first: whoever opens it counts itself in first, and then asks whether that is refused.
    orphans->Refuse(id);
    InodePtr inode = table.Find(id);
    bool is_open = false;
    if (inode) {
      MutexLock lock(inode->mutex);
      is_open = inode->open_count > 0;
    }
    if (is_open) {
      orphans->Allow(id);
      table.MarkUnlinked(id, 0);  // asks again once it is closed
    }
    held.push_back(is_open);
  }
  return held;
}

// On a machine that stands still as it starts the session may have ended since it was taken. Nothing rests on it yet.
Status FileSystem::Impl::StartSession() {
  const auto wait_max =
      std::min<std::chrono::milliseconds>(std::chrono::milliseconds(options.metadata_wait_ms), kStartWaitMax);
  for (int tries = 1;; ++tries) {
    (void)host->membership().WaitForSession(wait_max).ok();
    const Status begun = host->BeginSession();
    if (begun.ok() || begun.error().code != ErrorCode::kStale || tries == kStartTriesMax) return begun;
    CAIRNFS_RETURN_IF_ERROR(host->membership().Rejoin());
    CAIRNFS_RETURN_IF_ERROR(parts.names.ForgetReservedInodes());
  }
}

Status FileSystem::Impl::StartShared() {
  CAIRNFS_RETURN_IF_ERROR(StartSession());
  auto holds = [this](const std::vector<InodeId>& inodes) { return HoldOrphans(inodes); };
  orphans = std::make_unique<Orphans>(*host, parts.names, std::move(holds),
                                      std::chrono::milliseconds(options.orphan_sweep_every_ms));
  answers = std::make_unique<Answers>(*this);
  host->peers().SetHandler(answers.get());
  session_guard = std::make_shared<SessionGuard>();
  {
    MutexLock lock(session_guard->mutex);
    session_guard->impl = this;
  }
  host->membership().OnLost([guard = session_guard] {
    MutexLock lock(guard->mutex);
    if (guard->impl != nullptr) guard->impl->LoseSession();
  });
  return {};
}

void FileSystem::Impl::StopShared() {
  if (session_guard == nullptr) return;
  stop.request_stop();
  host->membership().OnLost({});
  {
    MutexLock lock(session_guard->mutex);
    session_guard->impl = nullptr;
  }
  host->peers().SetHandler(nullptr);
  orphans->Stop();
}

// Whatever was accepted under the session that was lost can never be published: nobody knows what others have done to
// these files since. Only when all of it is given up a new session is taken.
void FileSystem::Impl::LoseSession() {
  // Two losses in quick succession are told twice, and the first time may have been enough.
  const auto now = host->membership().session();
  if (now.ok() && now->revision == host->session()) return;
  host->EndSession();
  const Error why = SessionLost("what was not published is lost");
  size_t files = 0;
  table.ForEach([&](const InodePtr& inode) {
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
    error_names->Note(inode->id);
    SyncRounds::Forsake(*streams, inode, why);
  });
  spdlog::error(
      "the session with the cluster was lost, and with it changes of {} files; files that are open for "
      "writing get errors",
      files);
  if (parts.locks != nullptr) parts.locks->ForgetAll();
  while (!stop.stop_requested()) {
    Status status = host->membership().Rejoin();
    // Before a file is made in the new session: the store may have gone back to before its number was given out.
    if (status.ok()) status = parts.names.ForgetReservedInodes();
    if (status.ok()) status = host->BeginSession();
    if (status.ok()) {
      spdlog::info("this host has a new session with the cluster");
      return;
    }
    spdlog::warn("no new session with the cluster yet: {}", status.error().message);
    Clock::SleepFor(kRejoinEvery);
  }
}

Status FileSystem::Impl::AwaitSession() const {
  const auto deadline = Clock::Now() + std::chrono::milliseconds(options.metadata_wait_ms);
  while (host->session() == 0) {
    if (waits_ended || stop.stop_requested() || Clock::Now() >= deadline) return NoSession();
    if (!kv::Patience::Sleep(nullptr, kSessionLook)) return NoSession();
  }
  return {};
}

bool FileSystem::Impl::GivesUpOn(const Content& content) const {
  if (host == nullptr) return false;
  return kv::Patience::IsWaitOver(nullptr) || (waits_ended && content.shared().is_unanswered);
}

Status FileSystem::Impl::CheckSameSession(uint64_t session) const {
  if (session == host->session()) return {};
  return SessionLost("what was not published is lost, try again");
}

Status FileSystem::Impl::CheckSameStore(const Handle& handle) const {
  if (host == nullptr || handle.store_state == host->store_state()) return {};
  return MakeError(ErrorCode::kIo,
                   "the cluster's store went back to an older state, in which the file may be another: open it again");
}

Status FileSystem::Impl::CheckSession(const Handle& handle) const {
  CAIRNFS_RETURN_IF_ERROR(CheckSameStore(handle));
  if (host == nullptr || !handle.flags.write || handle.session == host->session()) return {};
  return SessionLost("what was not published is lost, open the file again");
}

}  // namespace cairnfs::fs
