#include "daemon/offline_check.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <system_error>
#include <thread>

#include "base/answer.h"
#include "base/log.h"
#include "daemon/data_directory.h"
#include "daemon/preflight.h"
#include "daemon/storage.h"
#include "daemon/volume.h"
#include "fs/maintenance.h"
#include "kv/engine.h"

namespace cairnfs::daemon {
namespace {

constexpr auto kProgressEvery = std::chrono::milliseconds(200);

using OnProgress = std::function<void(const fs::CheckProgress&)>;

Result<fs::CheckReport> CheckAndWait(fs::FileSystem& filesystem, const OnProgress& on_progress) {
  const auto checked = std::make_shared<Answer<Result<fs::CheckReport>>>();
  filesystem.maintenance().Check({}, [checked](Result<fs::CheckReport> report) { checked->Set(std::move(report)); });
  while (!checked->Wait(Context().WithTimeout(kProgressEvery))) {
    if (on_progress) on_progress(filesystem.maintenance().GetCheckProgress());
  }
  return checked->Take();
}

// Checks a store alone.
Status CheckChunks(store::LocalChunkStore& chunks, const std::function<void(const store::CheckProblem&)>& report,
                   const OnProgress& on_progress) {
  std::atomic<uint64_t> bytes_done{0};
  const uint64_t bytes_total = chunks.Stats().unique_bytes;
  Answer<Status> checked;
  const std::jthread checker([&] { checked.Set(chunks.Check({}, report, &bytes_done)); });
  while (!checked.Wait(Context().WithTimeout(kProgressEvery))) {
    if (on_progress) on_progress({"chunks", bytes_done, bytes_total});
  }
  return checked.Take();
}

// The names of a cluster's node are elsewhere. Only its own chunks can be checked without the others.
Result<fs::CheckReport> CheckNode(DataDirectory& directory, const Config& config, const OnProgress& on_progress) {
  CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage,
                           Storage::Open(directory, config, Storage::WhenFull::kOpenForReading));
  CAIRNFS_RETURN_IF_ERROR(storage->OpenChunks(Storage::Purpose::kCheck));
  fs::CheckReport report;
  auto add = [&report](const store::CheckProblem& problem) {
    ++report.problem_count;
    if (report.problems.size() < fs::CheckReport::kProblemsMax) report.problems.push_back(problem.what);
  };
  const Status tables = storage->engine().Verify({});
  if (!tables.ok() && tables.error().code != ErrorCode::kCorrupt) return tables.error();
  if (!tables.ok()) add({tables.error().message});
  // The names of the cluster, where this node serves them.
  const Status served = kv::VerifyRocksChecksums(directory.shared_path());
  if (!served.ok() && served.error().code == ErrorCode::kCorrupt) add({served.error().message});
  CAIRNFS_RETURN_IF_ERROR(CheckChunks(storage->chunks(), add, on_progress));
  const store::StoreStats stats = storage->chunks().Stats();
  report.chunks = stats.chunk_count;
  report.bytes = stats.unique_bytes;
  return report;
}

Result<fs::CheckReport> CheckOpened(DataDirectory& directory, const Config& config, const OnProgress& on_progress) {
  if (!directory.filesystem().empty()) return CheckNode(directory, config, on_progress);
  CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<Volume> volume, Volume::Open(directory, config, Volume::Purpose::kCheck));
  fs::FsOptions fs_options = volume->FileSystemOptions();
  fs_options.collect_by_itself = false;  // damaged files may yet be put back from a copy
  CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<fs::FileSystem> filesystem,
                           fs::FileSystem::Start(volume->Parts(), fs_options));
  auto report = CheckAndWait(*filesystem, on_progress);
  CAIRNFS_RETURN_IF_ERROR(filesystem->Stop());
  return report;
}

}  // namespace

static Status VerifyMetadata(const DataDirectory& directory) {
  Status verified = kv::VerifyRocksChecksums(directory.metadata_path());
  if (verified.ok() || verified.error().code != ErrorCode::kNotFound) return verified;
  return ExplainOpening(verified.error(), "cannot open the metadata", directory.metadata_path());
}

static Result<OfflineCheckResult> CheckClosed(const OfflineCheckOptions& options) {
  CAIRNFS_RETURN_IF_ERROR(RaiseFileLimit(options.config));
  CAIRNFS_ASSIGN_OR_RETURN(const std::unique_ptr<DataDirectory> directory,
                           DataDirectory::Open({.path = options.config.data, .create = false, .purpose = "checking"}));
  for (const std::string& note : directory->notes()) spdlog::warn("{}", note);
  OfflineCheckResult result;
  result.last_end = directory->lock().previous();
  store::RebuildResult rebuilt;
  if (options.rebuild_index) {
    Status verified = VerifyMetadata(*directory);
    if (!verified.ok()) return verified.error().WithContext("cannot verify the metadata");
    CAIRNFS_ASSIGN_OR_RETURN(rebuilt, Volume::RebuildIndex(*directory, options.config));
    result.chunks_found = rebuilt.chunk_count;
  }
  auto report = CheckOpened(*directory, options.config, options.on_progress);
  if (!report.ok()) {
    // When the metadata is damaged, the rest cannot be checked, and that is why.
    Status verified = VerifyMetadata(*directory);
    return !verified.ok() && verified.error().code == ErrorCode::kCorrupt ? verified.error() : report.error();
  }
  result.report = std::move(*report);
  auto& problems = result.report.problems;
  problems.insert(problems.begin(), rebuilt.problems.begin(), rebuilt.problems.end());
  result.report.problem_count += rebuilt.problems.size();
  return result;
}

Result<OfflineCheckResult> CheckOffline(const OfflineCheckOptions& options) {
  try {
    return CheckClosed(options);
  } catch (const std::system_error& error) {
    return MakeError(ErrorCode::kFailed, std::string("cannot start the threads of a check: ") + error.what() +
                                             "; raise the limit on threads (ulimit -u, pids.max)");
  }
}

}  // namespace cairnfs::daemon
