#include "fs/checker.h"

#include <pthread.h>

#include <memory>

#include "base/answer.h"
#include "cluster/cluster_chunk_store.h"
#include "fs/check_files.h"
#include "fs/check_names.h"
#include "fs/findings.h"
#include "fs/paths.h"
#include "kv/start_thread.h"

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
      auto started = kv::StartThread("the check", [this, context, done] { Run(context, done); });
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
  const auto round = std::make_shared<Answer<Status>>();
  rounds_.Request([round](Status status) { round->Set(std::move(status)); }, SyncRounds::Scope::kNames);
  if (!round->Wait(context)) return MakeError(ErrorCode::kInterrupted, "stopped");
  return round->Take();
}

// The check has told the cluster's chunk store of each damaged chunk, which is replacing them.
Status Checker::NoteRepaired(const Context& context, Findings& findings) {
  if (cluster_chunks_ == nullptr) return {};
  CAIRNFS_RETURN_IF_ERROR(cluster_chunks_->AwaitHealing(context));
  const std::vector<Digest> chunks = findings.DamagedChunks();
  const std::vector<bool> is_sound = local_chunks_.HasSound(chunks);
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "stopped");
    // Of very many damaged ones not all are known to be so: that it was replaced shows when it is read.
    if (is_sound[i] && store::GetBlocking(local_chunks_, chunks[i]).ok()) findings.NoteRepaired(chunks[i]);
  }
  return {};
}

// What the walk over names and recipes reads may come from memory, and what they lie in be damaged.
Status Checker::CheckTables(const Context& context, Findings& findings) {
  for (kv::KvEngine* engine : engines_) {
    if (engine == nullptr) continue;
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
  FilesCheck files(kv_, chunks_, findings);
  bytes_done_ = 0;
  bytes_total_ = local_chunks_.Stats().unique_bytes;
  phase_ = "names and recipes";
  CAIRNFS_RETURN_IF_ERROR(AwaitRound(context));
  CAIRNFS_RETURN_IF_ERROR(CheckTables(context, findings));
  CAIRNFS_RETURN_IF_ERROR(CheckNames(context, kv_, findings, report));
  CAIRNFS_RETURN_IF_ERROR(files.FindMissing(context, report));
  report.chunks = local_chunks_.Stats().chunk_count;
  const uint64_t live = files.live_chunks();
  // What only other nodes' files name may be here.
  report.unreferenced_chunks = cluster_chunks_ != nullptr ? 0 : report.chunks - std::min<uint64_t>(report.chunks, live);
  auto damaged = [&](const store::CheckProblem& problem) { findings.AddChunks(problem.what, problem.chunks); };
  phase_ = "chunks";
  CAIRNFS_RETURN_IF_ERROR(local_chunks_.Check(context, damaged, &bytes_done_));
  phase_ = "what is damaged";
  CAIRNFS_RETURN_IF_ERROR(NoteRepaired(context, findings));
  CAIRNFS_RETURN_IF_ERROR(files.NoteDamagedFiles(context));
  CAIRNFS_ASSIGN_OR_RETURN(auto paths, FindPaths(context, kv_, names_, findings.InodesToName()));
  findings.Report(paths, report);
  // Who stopped a check knows why it ends; half a report is none.
  if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "stopped");
  return report;
}

}  // namespace cairnfs::fs
