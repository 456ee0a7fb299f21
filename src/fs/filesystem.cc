// Starting and stopping, and the way to the themes.
#include "fs/filesystem.h"

#include <algorithm>
#include <cassert>

#include "base/failpoint.h"
#include "base/log.h"
#include "fs/local_collection.h"
#include "fs/wiring.h"

namespace cairnfs::fs {
namespace {

Failpoint start_orphans("fs.start_orphans", Failpoint::Kind::kKill);

}  // namespace

FileSystem::FileSystem(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

FileSystem::~FileSystem() {
  if (impl_ != nullptr) static_cast<void>(Stop());
}

// A host alone: removes what was deleted while it was open.
static Result<uint64_t> PrepareStart(const FileSystem::Parts& parts, const FsOptions& options) {
  CAIRNFS_ASSIGN_OR_RETURN(std::vector<InodeId> orphans, parts.names.ListOrphans({}));
  if (!orphans.empty()) {
    spdlog::info("removing {} files that were deleted while open", orphans.size());
    CAIRNFS_RETURN_IF_ERROR(parts.names.RemoveOrphans({}, orphans));
    start_orphans.Pass();
  }
  CAIRNFS_ASSIGN_OR_RETURN(uint64_t uncollected_bytes, LocalCollection::TakeUncollected(parts.kv, options));
  return orphans.empty() ? uncollected_bytes : std::max(uncollected_bytes, options.collect_after_bytes);
}

Result<std::unique_ptr<FileSystem>> FileSystem::Start(const Parts& parts, const FsOptions& options) {
  std::unique_ptr<Impl> impl;
  if (parts.cluster) {
    impl = std::make_unique<SharedFileSystem>(parts, options);
  } else {
    CAIRNFS_ASSIGN_OR_RETURN(const uint64_t uncollected_bytes, PrepareStart(parts, options));
    impl = std::make_unique<LocalFileSystem>(parts, options, uncollected_bytes);
  }
  impl->collection->Start();
  if (Status started = impl->Start(); !started.ok()) {
    static_cast<void>(impl->rounds->Stop());
    return started.error();
  }
  Impl* raw = impl.get();
  parts.pool.SetPressureCallback([raw](auto without_release) {
    raw->contents->NotePressure(without_release);
    raw->backing_files->NotePressure();
  });
  return std::unique_ptr<FileSystem>(new FileSystem(std::move(impl)));
}

void FileSystem::EndBy(Clock::time_point time) {
  auto earliest = impl_->end_by.load();
  while (time < earliest && !impl_->end_by.compare_exchange_weak(earliest, time)) {
  }
  impl_->lost->NoteDroppedFromNow();
  impl_->rounds->TakeClosedFirst();
  impl_->maintenance->NoteStop(std::min(time, earliest));
}

Status FileSystem::Stop(const std::function<void(const Status&)>& on_synced) {
  if (impl_ == nullptr) return {};
  impl_->parts.pool.SetPressureCallback({});
  const auto waits_end = Clock::Now() + std::chrono::seconds(impl_->options.commit_wait_seconds_max);
  impl_->maintenance->NoteStop(std::min(waits_end, impl_->end_by.load()));
  impl_->policies->Stop();
  impl_->tickets->Stop();
  impl_->trash->StopExpiring();
  impl_->maintenance->SyncBeforeStop(std::min(waits_end, impl_->end_by.load()));
  impl_->trash->Stop();
  impl_->LeaveCluster(waits_end);
  impl_->stop.request_stop();  // whoever waits for the first count of records has what there is
  impl_->checker->Stop();
  impl_->collection->Stop();
  impl_->closing->AskForMarked();
  static_cast<void>(
      impl_->rounds->RequestAndWait(SyncRounds::Scope::kNames));  // which may replace stored bytes, and so free them
  if (auto left = impl_->collection->NoteUncollected(); !left.ok()) {
    spdlog::warn("what is to be collected is not noted, so the next start collects: {}", left.error().message);
  }
  // Nobody uses a file any more: what is open stayed so after a lazy unmount, and what was unlinked goes.
  Status status = impl_->rounds->Stop();
  if (on_synced) on_synced(status);
  impl_->End();  // what is still at work after its answer finds everything in place
  impl_.reset();
  return status;
}

bool FileSystem::owns_names() const { return impl_->sharing->owns_names(); }

void FileSystem::RunBlocking(std::function<void()> task) { static_cast<void>(impl_->calls->Run(std::move(task))); }

void FileSystem::RunBlocking(const Caller& caller, std::function<void()> task, Done<void> refused) {
  impl_->calls->Run(caller, std::move(task), std::move(refused));
}

void FileSystem::RunToWait(const Caller& caller, std::function<void()> task, Done<void> refused) {
  impl_->calls->RunToWait(caller, std::move(task), std::move(refused));
}

OpenFiles& FileSystem::open_files() { return *impl_->open_files; }
Writer& FileSystem::writer() { return *impl_->writer; }
Reader& FileSystem::reader() { return *impl_->reader; }
Names& FileSystem::names() { return *impl_->names; }
Attributes& FileSystem::attributes() { return *impl_->attributes; }
Directories& FileSystem::directories() { return *impl_->directories; }
Maintenance& FileSystem::maintenance() { return *impl_->maintenance; }
Policies& FileSystem::policies() { return *impl_->policies; }
Tickets& FileSystem::tickets() { return *impl_->tickets; }
Trash& FileSystem::trash() { return *impl_->trash; }
AtomicFiles& FileSystem::atomic_files() { return *impl_->atomic_files; }
QuotaSettings& FileSystem::quotas() { return *impl_->quota_settings; }
BackingFiles& FileSystem::backing_files() { return *impl_->backing_files; }

std::optional<Error> FileSystem::WhyNoBufferComes(std::chrono::milliseconds without_release,
                                                  Clock::time_point waits_since) {
  return impl_->room->WhyNoBufferComes(without_release, waits_since);
}

coherence::FileLocks& FileSystem::locks() const { return impl_->locks(); }

void FileSystem::EndWaits() {
  impl_->session->EndWaits();
  impl_->quotas->EndWaits();
  impl_->closing->EndWaits();
  impl_->parts.chunks.EndWaits();
}

Status FileSystem::CheckSession(HandleId handle_id) const {
  HandlePtr handle = impl_->handles.Find(handle_id);
  if (!handle) return MakeError(ErrorCode::kStale, "the file is not open");
  return impl_->session->CheckLocks(*handle);
}

void FileSystem::NoteLocked(HandleId handle_id) {
  HandlePtr handle = impl_->handles.Find(handle_id);
  if (!handle) return;
  handle->has_locked = true;
  impl_->sharing->NoteLocked(handle->inode);
}

void FileSystem::PublishBeforeUnlock(HandleId handle_id, std::function<void()> then, const Caller& caller) {
  HandlePtr handle = impl_->handles.Find(handle_id);
  if (!handle) return then();
  impl_->closing->PublishBeforeUnlock(handle, caller, std::move(then));
}

}  // namespace cairnfs::fs
