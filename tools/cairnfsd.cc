// cairnfsd: the daemon of one mount. `cairnfs mount` starts it in the background, systemd in the foreground.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "base/failpoint.h"
#include "base/log.h"
#include "command_line.h"
#include "daemon/cluster_config.h"
#include "daemon/config.h"
#include "daemon/daemon.h"
#include "daemon/environment.h"
#include "daemon/exit_codes.h"
#include "daemon/notify.h"
#include "daemon/privileges.h"

namespace cairnfs {
namespace {

struct Arguments {
  std::string mount_point, data, config;
  std::vector<std::string> options;
  int ready_fd = -1;
  bool list_failpoints = false;
};

// The configuration file, then -o, then the command line. The default file is read only when neither a file nor a data
// directory was named: it describes one filesystem, the default one.
Status Configure(const Arguments& arguments, daemon::Config& config) {
  std::string file = arguments.config;
  if (file.empty() && arguments.data.empty() && access(daemon::kDefaultConfigFile, F_OK) == 0) {
    file = daemon::kDefaultConfigFile;
  }
  if (!file.empty()) CAIRNFS_RETURN_IF_ERROR(daemon::ReadConfigFile(file, config));
  for (const std::string& options : arguments.options) {
    CAIRNFS_RETURN_IF_ERROR(daemon::ApplyMountOptions(options, config));
  }
  if (!arguments.data.empty()) config.data = arguments.data;
  if (!arguments.mount_point.empty()) config.mount_point = arguments.mount_point;
  CAIRNFS_RETURN_IF_ERROR(daemon::CheckCluster(config));
  return daemon::MakePathsAbsolute(config);
}

void ListFailpoints() {
  for (const Failpoint* point : Failpoint::All()) {
    std::cout << point->name() << ' ' << (point->kind() == Failpoint::Kind::kKill ? "kill" : "skip") << '\n';
  }
}

int Main(int argc, char** argv) {
  CLI::App app("cairnfsd: serves one CairnFS mount. See cairnfsd(8).", "cairnfsd");
  app.failure_message(&tools::ParseFailure);
  Arguments arguments;
  app.add_option("DIR", arguments.mount_point, "mount point")->check(tools::NotEmpty());
  app.add_option("--data", arguments.data, "data directory")->check(tools::NotEmpty());
  app.add_option("--config", arguments.config, "configuration file")->check(tools::NotEmpty());
  app.add_option("-o", arguments.options, "options: key=value of the configuration, or noexec, suid, ...")
      ->allow_extra_args(false);
  app.add_option("--ready-fd", arguments.ready_fd, "a pipe that is told when the mount is ready, and why it is not");
  app.add_flag("--list-failpoints", arguments.list_failpoints, "print the failpoints for tests, and end");
  app.set_version_flag("--version", "cairnfsd " CAIRNFS_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? daemon::kExitDone : daemon::kExitUsage;
  }
  if (arguments.list_failpoints) {
    ListFailpoints();
    return daemon::kExitDone;
  }
  daemon::RunOptions options;
  options.ready_fd = arguments.ready_fd;
  options.background = arguments.ready_fd >= 0;
  // First, because it says whether the mount point is to be guarded, which takes a right of its own.
  const Status configured = Configure(arguments, options.config);
  const auto guarding = options.config.guard ? daemon::Guarding::kYes : daemon::Guarding::kNo;
  if (auto dropped = daemon::DropPrivileges(argv, guarding); !dropped.ok()) {
    spdlog::error("{}", dropped.error().message);
    daemon::Notifier(arguments.ready_fd).Failed(dropped.error(), daemon::kExitFailed);
    return daemon::kExitFailed;
  }
  if (!configured.ok()) {
    spdlog::error("{}", configured.error().message);
    // This exit code also for a file that is missing or closed to the daemon.
    daemon::Notifier(arguments.ready_fd).Failed(configured.error(), daemon::kExitUsage);
    return daemon::kExitUsage;
  }
  // So that the daemon keeps no directory in use. It never fails where a process can start at all.
  if (options.background) static_cast<void>(chdir("/") == 0);
  return daemon::Run(options);
}

}  // namespace
}  // namespace cairnfs

int main(int argc, char** argv) {
  cairnfs::daemon::CleanEnvironment();
  if (auto ready = cairnfs::InitLog({}); !ready.ok()) return cairnfs::daemon::kExitFailed;
  return cairnfs::Main(argc, argv);
}
