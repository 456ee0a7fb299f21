// cairnfs: the command line.

#include <CLI/CLI.hpp>
#include <iostream>

#include "base/log.h"
#include "commands.h"
#include "daemon/config.h"
#include "daemon/exit_codes.h"

namespace cairnfs::tools {
namespace {

void AddTarget(CLI::App& command, Target& target) {
  auto* path = command.add_option("DIR", target.path, "the mount point, or any path in the mount");
  command.add_option("--data", target.data, "the data directory")->excludes(path);
}

int Main(int argc, char** argv) {
  CLI::App app("CairnFS: a filesystem for training checkpoints. See cairnfs(1).", "cairnfs");
  app.require_subcommand(1);
  app.set_version_flag("--version", "cairnfs " CAIRNFS_VERSION);
  int exit_code = 0;

  MountCommand mount;
  auto* mount_command = app.add_subcommand("mount", "mount a CairnFS; returns when it is ready");
  mount_command->add_option("DIR", mount.mount_point,
                            std::string("mount point (default ") + daemon::kDefaultMountPoint + ")");
  mount_command->add_option("--data", mount.data, std::string("data directory (default ") + daemon::kDefaultData + ")");
  mount_command->add_option("-o", mount.options, "options: key=value of the configuration, or nosuid, nodev, ...")
      ->allow_extra_args(false);
  mount_command->add_option("--config", mount.config, "configuration file");
  mount_command->add_flag("--foreground,-f", mount.foreground, "stay in the foreground, log to stderr");
  mount_command->callback([&] { exit_code = RunMount(mount); });

  UmountCommand umount;
  auto* umount_command =
      app.add_subcommand("umount", "unmount; returns when everything is durable and the daemon ended");
  umount_command->add_option("DIR", umount.mount_point, "the mount point")->required();
  umount_command->add_flag("--lazy,-l", umount.lazy, "detach now, also when files are open; does not wait");
  umount_command->callback([&] { exit_code = RunUmount(umount); });

  Target target;
  bool json = false;
  auto* status_command = app.add_subcommand("status", "space, activity and health of a mount");
  AddTarget(*status_command, target);
  status_command->add_flag("--json", json, "print JSON");
  status_command->callback([&] { exit_code = RunStatus(target, json); });

  std::string path;
  auto* wait_command = app.add_subcommand("wait", "return once everything written so far is durable");
  wait_command->add_option("PATH", path, "a path in the mount")->required();
  bool wait_json = false;
  wait_command->add_flag("--json", wait_json, "print JSON");
  wait_command->callback([&] {
    exit_code = RunWait(path);
    if (wait_json && exit_code == 0) std::cout << "{\"durable\": true}" << std::endl;
  });

  auto* gc_command = app.add_subcommand("gc", "collect unreferenced chunks now");
  AddTarget(*gc_command, target);
  gc_command->add_flag("--json", json, "print JSON");
  gc_command->callback([&] { exit_code = RunGc(target, json); });

  CheckCommand check;
  auto* check_command = app.add_subcommand("check", "read and verify everything; works with and without a daemon");
  AddTarget(*check_command, check.target);
  check_command->add_flag("--rebuild-index", check.rebuild_index,
                          "first write the chunk index anew from the segments; only while unmounted");
  check_command->add_flag("--json", check.json, "print JSON");
  check_command->callback([&] { exit_code = RunCheck(check); });

  app.add_subcommand("version", "print the version")->callback([] {
    std::cout << "cairnfs " CAIRNFS_VERSION << std::endl;
  });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? daemon::kExitDone : daemon::kExitUsage;
  }
  return exit_code;
}

}  // namespace
}  // namespace cairnfs::tools

int main(int argc, char** argv) {
  // What the library would log goes to the caller as a message; only an offline check has warnings of its own.
  cairnfs::LogOptions log;
  log.level = "warning";
  if (auto ready = cairnfs::InitLog(log); !ready.ok()) return cairnfs::tools::Fail(ready.error());
  return cairnfs::tools::Main(argc, argv);
}
