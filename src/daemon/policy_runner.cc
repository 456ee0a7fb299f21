#include "daemon/policy_runner.h"

#include <utility>

#include "base/log.h"
#include "base/printable.h"
#include "base/user.h"

namespace cairnfs::daemon {
namespace {

using retention::Report;

constexpr uint64_t kRemovalsLoggedMax = 1000;  // of one run

void TakeLine(const fs::PolicyJob& job, const std::string& line, Report& report) {
  const auto told = report.Add(line);
  if (!told.ok() || !*told || report.removed_count > kRemovalsLoggedMax) return;
  spdlog::info("retention removed '{}/{}' of {}: {}", Printable(job.path), Printable((*told)->name),
               UserName(job.owner), Printable((*told)->reason));
  if (report.removed_count == kRemovalsLoggedMax) spdlog::info("what it removes next is not named here");
}

}  // namespace

Report PolicyRunner::Run(const Context& context, const fs::PolicyJob& job) {
  // Until its last line says otherwise.
  Report report{.error = "it was ended before it was done, and goes on the next time"};
  const auto has_told =
      processes_.Run(context,
                     {options_.program, "apply-policy", "--mount", options_.mount_point, "--inode",
                      std::to_string(job.directory.value), "--owner", std::to_string(job.owner), "--", job.path},
                     [&](const std::string& line) { TakeLine(job, line, report); });
  if (!has_told.ok()) report.error = has_told.error().message;
  if (has_told.ok() && !*has_told) report.error = "it took too long, and goes on the next time";
  return report;
}

}  // namespace cairnfs::daemon
