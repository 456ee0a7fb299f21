#include "daemon/daemon.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <systemd/sd-journal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/context.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/thread_annotations.h"
#include "control/metrics.h"
#include "control/service.h"
#include "daemon/any_volume.h"
#include "daemon/data_directory.h"
#include "daemon/dedup.h"
#include "daemon/exit_codes.h"
#include "daemon/last_end.h"
#include "daemon/live_config.h"
#include "daemon/network.h"
#include "daemon/notify.h"
#include "daemon/policy_runner.h"
#include "daemon/preflight.h"
#include "daemon/signal_waiter.h"
#include "daemon/stop_deadline.h"
#include "daemon/stop_record.h"
#include "daemon/ticket_runner.h"
#include "fs/maintenance.h"
#include "fs/policies.h"
#include "fs/tickets.h"
#include "fuse/server.h"

namespace cairnfs::daemon {
namespace {

constexpr std::chrono::seconds kCallerGrace{1};
constexpr std::chrono::milliseconds kPoliciesPatience{3000};  // for a process that applies one
constexpr std::chrono::seconds kTellUnsavedMax{2};  // of a stop that fails: to find what is lost, and to tell it

bool SendStderrToJournal() {
  int fd = sd_journal_stream_fd("cairnfs", 6 /* LOG_INFO */, /* level_prefix */ 1);
  if (fd < 0) return false;
  bool redirected = dup2(fd, STDERR_FILENO) >= 0;
  close(fd);
  return redirected;
}

// Explains the usual reason, in the words that errors of other addresses have.
Error ExplainMetrics(const Error& error, const std::string& address_text) {
  auto address = ParseHostPort(address_text);
  if (!address.ok()) return error;
  auto ip = ParseIp(address->host);
  if (!ip.ok() || MayBeOfThisHost(*ip)) return error;
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("cannot serve metrics on {}, which {}", address_text, kNoAddressHere));
}

class Daemon {
 public:
  Daemon(const RunOptions& options, Notifier& notifier, SignalWaiter& signals)
      : config_(options.config), background_(options.background), notifier_(notifier), signals_(signals) {}
  ~Daemon() { signals_.WhileStarting({}); }
  Daemon(const Daemon&) = delete;

  // Everything up to a mount that is ready.
  Status Start();
  // Serves, then drains. Returns the first error that cost data, or may have.
  Status Serve();

 private:
  Status TakeWhatIsNamed();  // the mount point, the log's directory, the data directory
  Status StartLog();
  fuse::MountOptions MountOptions() const;
  Status StartServing();
  Status MountIt();
  Status StartControl();
  // Any thread, until everything is durable: the stop that begins is to end by then, unless that is 0; and unmounts, so
  // that Serve ends.
  control::StopEstimate BeginStop(std::chrono::milliseconds deadline);
  void StartRunners();
  Status StopFileSystem();
  void TellWhatTheStopWaitsFor(const Context& context);
  [[noreturn]] void GiveUp(const Context& until, const StopOutcome& outcome);

  const Config config_;
  const bool background_;
  Notifier& notifier_;
  SignalWaiter& signals_;
  std::string log_name_;
  std::vector<std::string> left_mounts_;  // of the data directory, before this start
  // Destroyed from the last to the first.
  std::unique_ptr<DataDirectory> directory_;
  std::unique_ptr<StopRecord> stop_record_;
  std::unique_ptr<StopDeadline> stop_deadline_;  // it counts until all below is gone
  std::unique_ptr<AnyVolume> volume_;
  std::unique_ptr<PolicyRunner> policy_runner_;  // used by the filesystem
  std::unique_ptr<TicketRunner> ticket_runner_;  // the same
  std::unique_ptr<fs::FileSystem> filesystem_;
  std::unique_ptr<fuse::Server> server_;
  std::unique_ptr<LiveConfig> live_config_;
  std::unique_ptr<control::Service> service_;
  std::unique_ptr<control::Metrics> metrics_;
  std::atomic<bool> can_stop_{false};  // what BeginStop uses is there
  std::once_flag unmounts_;
  std::jthread unmounter_;
};

Status Daemon::StartLog() {
  LogOptions options;
  options.level = config_.log_level;
  options.file = config_.log_file;
  if (options.file == kLogToJournal) {
    if (!SendStderrToJournal()) {
      return MakeError(ErrorCode::kUnavailable, "log_file = \"journal\", but no systemd-journald runs; give a file");
    }
    options.file.clear();
    options.to_journal = true;
    log_name_ = "journal";
  } else if (options.file.empty() && background_) {
    options.file = directory_->log_path();
  }
  if (!options.file.empty()) log_name_ = options.file;
  if (log_name_.empty()) log_name_ = StderrIsJournal() ? "journal" : "stderr";
  return InitLog(options);
}

Status Daemon::TakeWhatIsNamed() {
  std::error_code unknown;
  const std::string data = std::filesystem::weakly_canonical(config_.data, unknown).string();
  left_mounts_ = fuse::MountPointsOf(data);  // before the check takes a dead one away
  if (auto checked = fuse::Server::Check(MountOptions()); !checked.ok()) return AsWrongConfiguration(checked.error());
  CAIRNFS_RETURN_IF_ERROR(CheckNothingIsHidden(config_));
  if (config_.log_file != kLogToJournal) {
    if (auto found = CheckLogFile(config_.log_file); !found.ok()) return AsWrongConfiguration(found.error());
  }
  auto directory = DataDirectory::Open({.path = config_.data, .purpose = "starting"});
  if (!directory.ok()) return AsWrongConfiguration(directory.error());
  directory_ = *std::move(directory);
  stop_record_ = std::make_unique<StopRecord>(directory_->lock());
  stop_deadline_ = std::make_unique<StopDeadline>(StopDeadline::Parts{
      .list = [this](const auto& until, const auto& tell) { filesystem_->maintenance().ListUnsaved(until, tell); },
      .give_up = [this](const auto& until, const auto& outcome) { GiveUp(until, outcome); },
      .end = [this](const auto& until, const auto& outcome) { stop_record_->EndProcess(until, outcome); }});
  return {};
}

Status Daemon::Start() {
  // A mount that cannot be leaves no data directory behind.
  CAIRNFS_RETURN_IF_ERROR(CheckPoolSuffices(config_));
  CAIRNFS_RETURN_IF_ERROR(RaiseFileLimit(config_));
  CAIRNFS_RETURN_IF_ERROR(CheckThreadsCanStart(config_));
  CAIRNFS_RETURN_IF_ERROR(TakeWhatIsNamed());
  // Nothing was served, so the next start is told what the last daemon that served had left.
  signals_.WhileStarting([directory = directory_.get()] { directory->lock().Restore(); });
  CAIRNFS_RETURN_IF_ERROR(StartLog());
  spdlog::info("cairnfsd {} starts: data {}, mount point {}", CAIRNFS_VERSION, directory_->path(), config_.mount_point);
  for (const std::string& note : directory_->notes()) spdlog::warn("{}", note);
  if (!directory_->lock().previous().empty()) {
    spdlog::warn("{}", DescribeLastEnd(LookAtLastEnd(directory_->path(), directory_->lock().previous(), left_mounts_)));
  }
  notifier_.Starting(config_.metadata.empty() ? "opening " + directory_->path()
                                              : "joining the cluster at " + config_.metadata);
  CAIRNFS_ASSIGN_OR_RETURN(volume_, OpenVolume(*directory_, config_));
  Status serves = StartServing();
  if (!serves.ok()) {
    volume_->StartFailed();
    return serves;
  }
  directory_->lock().SetState("running");
  notifier_.StartWatchdog([server = server_.get()] { return server->Alive(); });
  return {};
}

Status Daemon::StartServing() {
  CAIRNFS_ASSIGN_OR_RETURN(filesystem_, fs::FileSystem::Start(volume_->Parts(), volume_->FileSystemOptions()));
  signals_.Hold();
  Status mounted = MountIt();
  if (mounted.ok()) mounted = StartControl();
  if (mounted.ok()) {
    StartRunners();
    return {};
  }
  volume_->Stopping();
  metrics_.reset();
  service_.reset();
  server_.reset();
  // The error to report is the mount's; one of the stop would hide it.
  if (auto stopped = filesystem_->Stop(); !stopped.ok()) directory_->lock().MarkFailed(stopped.error().message);
  return mounted;
}

fuse::MountOptions Daemon::MountOptions() const {
  fuse::MountOptions options;
  options.mount_point = config_.mount_point;
  options.allow_other = config_.allow_other;
  options.read_only = config_.read_only;
  options.guard = config_.guard;
  options.kernel_options = config_.mount_options;
  options.receive_threads = static_cast<unsigned>(config_.receive_threads);
  options.max_background = static_cast<unsigned>(config_.max_background);
  options.read_ahead_bytes = config_.mmap_read_ahead;
  options.passthrough = config_.passthrough;
  options.passthrough_descriptors_max = FilesToSpare(config_);
  return options;
}

Status Daemon::MountIt() {
  fuse::MountOptions options = MountOptions();
  options.source = directory_->path();
  CAIRNFS_ASSIGN_OR_RETURN(server_, fuse::Server::Mount(options, volume_->pool()));
  return {};
}

// Lets other users pass to the socket for ranks. All else in the directory is closed to them by its own mode, and they
// cannot list the directory.
void LetOthersPass(const std::string& data) {
  struct stat info;
  if (stat(data.c_str(), &info) == 0 && chmod(data.c_str(), (info.st_mode & 07777) | S_IXGRP | S_IXOTH) == 0) return;
  spdlog::warn("{}: ranks of other users cannot reach its socket: {}", data, std::strerror(errno));
}

Status Daemon::StartControl() {
  control::Service::Options options;
  CAIRNFS_ASSIGN_OR_RETURN(options.socket_path, ControlSocketPath(directory_->path()));
  std::error_code ignored;
  std::string mount_point = std::filesystem::absolute(config_.mount_point, ignored).lexically_normal().string();
  options.daemon.set_version(CAIRNFS_VERSION);
  options.daemon.set_data(directory_->path());
  options.daemon.set_mount_point(mount_point);
  options.daemon.set_uuid(directory_->uuid());
  options.daemon.set_log(log_name_);
  options.daemon.set_pid(static_cast<uint64_t>(getpid()));
  options.daemon.set_dedup(NameOf(volume_->dedup()));
  options.gate = &volume_->gate();
  live_config_ = std::make_unique<LiveConfig>(config_, *volume_, *filesystem_);
  options.remount = live_config_.get();
  options.cluster = volume_->cluster();
  options.stop = [this](std::chrono::milliseconds deadline) -> Result<control::StopEstimate> {
    if (!can_stop_) return MakeError(ErrorCode::kBusy, "the daemon starts, and cannot be stopped so yet");
    return BeginStop(deadline);
  };
  options.drain_log = {.estimate = LogEstimate, .unsaved = LogUnsaved};
  options.dump_names = [volume = volume_.get()](const Context& context, std::chrono::seconds hold,
                                                const control::DumpSink& sink) {
    return volume->DumpNames(context, hold, sink);
  };
  CAIRNFS_ASSIGN_OR_RETURN(service_, control::Service::Start(options, *filesystem_));
  if (config_.allow_other) LetOthersPass(directory_->path());
  if (!config_.metrics_address.empty()) {
    auto metrics =
        control::Metrics::Start(config_.metrics_address, [service = service_.get()] { return service->Report(); });
    if (!metrics.ok()) return ExplainMetrics(metrics.error(), config_.metrics_address);
    metrics_ = *std::move(metrics);
    spdlog::info("metrics on http://{}/metrics", config_.metrics_address);
  }
  can_stop_ = true;
  signals_.OnStop([this] { BeginStop(std::chrono::milliseconds(config_.stop_deadline_ms)); });
  return {};
}

control::StopEstimate Daemon::BeginStop(std::chrono::milliseconds deadline) {
  const bool has_deadline = deadline.count() > 0;
  const auto time = Clock::Now() + deadline;
  if (has_deadline) stop_deadline_->Set(time);
  if (has_deadline) filesystem_->EndBy(time);
  const auto patience = has_deadline ? std::min(deadline / 10, kPoliciesPatience) : kPoliciesPatience;
  // Beside: the kernel may have pages to write yet, and a stuck disk may hold up what follows.
  std::call_once(unmounts_, [this, patience] {
    unmounter_ = std::jthread([this, patience] {
      volume_->Stopping();
      // What renames and removes by itself would keep the mount busy.
      const auto until = Clock::Now() + patience;
      filesystem_->policies().Pause(std::chrono::hours(24), patience);
      filesystem_->tickets().Pause(std::chrono::hours(24), until - Clock::Now());
      server_->Stop();
    });
  });
  if (!has_deadline) return {};
  control::StopEstimate estimate = service_->EstimateStop();
  const double seconds = std::chrono::duration<double>(deadline).count();
  LogEstimate(fmt::format("the stop ends after {} s at the latest", seconds), estimate);
  return estimate;
}

// Once it is mounted: the runners go through the mount.
void Daemon::StartRunners() {
  auto program = FindCairnfs();
  if (!program.ok()) {
    spdlog::warn("no policies of retention are applied, and no commits deferred: {}", program.error().message);
    filesystem_->tickets().Start(program.error().WithContext("no commit can be deferred here"));
    return;
  }
  std::error_code ignored;
  const RunnerOptions options{.mount_point = std::filesystem::absolute(config_.mount_point, ignored).string(),
                              .program = *std::move(program)};
  policy_runner_ = std::make_unique<PolicyRunner>(options);
  ticket_runner_ = std::make_unique<TicketRunner>(options);
  filesystem_->tickets().Start(
      fs::TicketRunner([runner = ticket_runner_.get()](const Context& context, const fs::TicketJob& job) {
        return runner->Run(context, job);
      }),
      geteuid() == 0 && config_.allow_other ? std::nullopt : std::optional<uint32_t>(geteuid()));
  filesystem_->policies().Start([runner = policy_runner_.get()](const Context& context, const fs::PolicyJob& job) {
    return runner->Run(context, job);
  });
}

void Daemon::GiveUp(const Context& until, const StopOutcome& outcome) {
  stop_record_->EndProcess(until, outcome, [&] {
    // The machine may be busy, and who called for the stop has not asked yet.
    const Context told_by = Context().WithDeadline(until.deadline() + kCallerGrace);
    if (!outcome.is_durable()) service_->TellUnsaved(told_by, MessageOf(outcome));
  });
}

// In the log and to systemd. `cairnfs umount` and others ask for the status.
void Daemon::TellWhatTheStopWaitsFor(const Context& context) {
  constexpr std::chrono::milliseconds kLookEvery{500};
  constexpr std::chrono::minutes kTellEvery{1};
  auto tell_at = Clock::Now();
  while (context.Sleep(kLookEvery)) {
    const fs::FsStatus status = filesystem_->maintenance().GetStatus();
    if (!status.stop || status.stop->waits_for.empty() || Clock::Now() < tell_at) continue;
    tell_at = Clock::Now() + kTellEvery;
    const std::string text = fmt::format("the stop waits for copies, for {} s at most (commit_wait_max): {}",
                                         status.stop->left_max.count(), status.stop->waits_for);
    spdlog::warn("{}", text);
    notifier_.Stopping(text);
  }
}

Status Daemon::StopFileSystem() {
  metrics_.reset();
  if (Status answers = service_->AnswerStatusOnly(); !answers.ok()) {
    spdlog::warn("nobody is told what the stop waits for: {}", answers.error().message);
  }
  std::jthread teller([this](std::stop_token stop) { TellWhatTheStopWaitsFor(Context(std::move(stop))); });
  StopOutcome outcome;
  const Status stopped = filesystem_->Stop([&](const Status& synced) {
    signals_.End();
    outcome = stop_deadline_->NoteSynced(synced);
    const Context told_by = Context().WithTimeout(kTellUnsavedMax);
    if (outcome.is_listing) GiveUp(told_by, outcome);
    if (!outcome.is_durable()) {
      stop_record_->NoteLost(outcome);
      service_->TellUnsaved(told_by, MessageOf(outcome));
    }
    unmounter_ = {};
    teller = {};
    service_.reset();
  });
  if (!stopped.ok() || outcome.is_durable()) return stopped;
  return MakeError(ErrorCode::kIo, outcome.reason);
}

Status Daemon::Serve() {
  Status served = server_->Serve(*filesystem_);
  filesystem_->policies().Stop();
  filesystem_->tickets().Stop();
  volume_->Stopping();  // unmounted by somebody, perhaps without a signal
  spdlog::info("unmounted; making everything durable");
  notifier_.StopWatchdog();
  notifier_.StartWatchdog([] { return true; });  // draining may take longer than systemd's patience
  stop_record_->NoteStopping();
  notifier_.Stopping("draining");
  Status stopped = StopFileSystem();
  if (!stopped.ok()) {
    return stopped.error().WithContext("stopped, but not everything became durable");
  }
  filesystem_.reset();
  server_.reset();
  volume_.reset();
  stop_record_->NoteClean();
  spdlog::info("stopped; everything is durable");
  return served;
}

// Explains a start that found no thread. Their number was tried before, but another process may have used them up
// since.
Status StartOrExplain(Daemon& daemon) {
  try {
    return daemon.Start();
  } catch (const std::system_error& error) {
    return MakeError(ErrorCode::kIo,
                     fmt::format("cannot start: {}; lower the number of threads in the configuration, or "
                                 "raise the limit (pids.max, TasksMax=, ulimit -u)",
                                 error.what()));
  }
}

}  // namespace

int Run(const RunOptions& options) {
  umask(0077);  // everything in the data directory is the daemon's alone
  SignalWaiter signals;
  Notifier notifier(options.ready_fd);
  auto fail = [&](const Error& error) {
    int exit_code = ExitCodeOf(error);
    spdlog::error("{}", error.message);
    notifier.Failed(error, exit_code);
    return exit_code;
  };
  if (const char* failpoints = std::getenv("CAIRNFS_FAILPOINTS"); failpoints != nullptr && *failpoints != '\0') {
    if (auto armed = Failpoint::Arm(failpoints); !armed.ok()) return fail(armed.error());
  }
  signals.Start();
  Daemon daemon(options, notifier, signals);
  if (auto started = StartOrExplain(daemon); !started.ok()) return fail(started.error());
  notifier.Ready("serving " + options.config.mount_point);
  if (auto served = daemon.Serve(); !served.ok()) {
    spdlog::error("{}", served.error().message);
    return ExitCodeOf(served.error());
  }
  return kExitDone;
}

}  // namespace cairnfs::daemon
