#include "fs/checker.h"

#include <pthread.h>

#include <memory>

#include "base/answer.h"
#include "base/start_thread.h"
#include "fs/check_files.h"
#include "fs/check_names.h"
#include "fs/findings.h"
#include "fs/paths.h"

namespace cairnfs::fs {

void Checker::Request(const Context& context, Done<CheckReport> done) {
  std::optional<Error> refused;
  {
    MutexLock lock(mutex_);
    if (stopping_) {
      refused = MakeError(ErrorCode::kUnavailable, "the filesystem is stopping");
    } else if (running_) {
      refused = MakeError(ErrorCode::kBusy, "a check runs already; one at a time");
    } else {
      if (thread_.joinable()) thread_.join();  // it has given its answer, or is about to
      auto started = StartThread("the check", [this, context, done] { Run(context, done); });
      if (started.ok()) {
        thread_ = *std::move(started);
        running_ = true;
      } else {
        refused = started.error();
      }
    }
  }
  if (refused) done(*refused);
}

void Checker::Stop() {
  stop_.request_stop();
  std::thread thread;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void Checker::Run(const Context& asker, const Done<CheckReport>& done) {
  pthread_setname_np(pthread_self(), "cairn-check");
  const Context context = asker.WithStop(stop_.get_token());
  Result<CheckReport> report = Check(context);
  phase_ = "";
  if (context.Expired() && !report.ok()) report = MakeError(ErrorCode::kInterrupted, "the check was stopped");
  {
    MutexLock lock(mutex_);
    running_ = false;
  }
  done(std::move(report));
}

// The check is about what was written before it. A round may take long; whoever asked need not wait for its end.
Status Checker::AwaitRound(const Context& context) {
  const auto round =
      AwaitStatus(context, [this](Done<void> done) { at_.rounds.Request(std::move(done), SyncRounds::Scope::kNames); });
  return round ? *round : Status(MakeError(ErrorCode::kInterrupted, "stopped"));
}

// What the walk over names and recipes reads may come from memory, and what they lie in be damaged.
Status Checker::CheckTables(const Context& context, Findings& findings) {
  for (kv::KvEngine* engine : at_.parts.engines) {
    Status verified = engine->Verify(context);
    if (verified.ok()) continue;
    if (verified.error().code != ErrorCode::kCorrupt) return verified;
    findings.Add(verified.error().message);
  }
  return {};
}

Result<CheckReport> Checker::Check(const Context& context) {
  CheckReport report;
  Findings findings;
  FilesCheck files(at_.parts.kv, at_.parts.chunks, findings);
  store::LocalChunkStore& stored = at_.parts.local_chunks;
  bytes_done_ = 0;
  bytes_total_ = stored.Stats().unique_bytes;
  phase_ = "names and recipes";
  CAIRNFS_RETURN_IF_ERROR(AwaitRound(context));
  CAIRNFS_RETURN_IF_ERROR(CheckTables(context, findings));
  CAIRNFS_RETURN_IF_ERROR(CheckNames(context, at_.parts.kv, findings, report));
  CAIRNFS_RETURN_IF_ERROR(files.FindMissing(context, report));
  report.chunks = stored.Stats().chunk_count;
  report.unreferenced_chunks = at_.collection.CountFree(report.chunks, files.live_chunks());
  auto damaged = [&](const store::CheckProblem& problem) { findings.AddChunks(problem.what, problem.chunks); };
  phase_ = "chunks";
  CAIRNFS_RETURN_IF_ERROR(stored.Check(context, damaged, &bytes_done_));
  phase_ = "what is damaged";
  CAIRNFS_ASSIGN_OR_RETURN(const auto replaced, at_.copies.AwaitReplaced(context, findings.DamagedChunks()));
  for (const Digest& chunk : replaced) findings.NoteRepaired(chunk);
  CAIRNFS_RETURN_IF_ERROR(files.NoteDamagedFiles(context));
  CAIRNFS_ASSIGN_OR_RETURN(auto paths, FindPaths(context, at_.parts.kv, at_.parts.names, findings.InodesToName()));
  findings.Report(paths, report);
  // Who stopped a check knows why it ends; half a report is none.
  if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "stopped");
  return report;
}

}  // namespace cairnfs::fs
