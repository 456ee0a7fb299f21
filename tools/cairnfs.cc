// cairnfs: the command line.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <sstream>

#include "base/failpoint.h"
#include "base/log.h"
#include "checkpoint_cli.h"
#include "cluster_commands.h"
#include "command_line.h"
#include "commands.h"
#include "commit_cli.h"
#include "daemon/config.h"
#include "daemon/exit_codes.h"
#include "metadata_commands.h"
#include "output.h"
#include "quota_cli.h"
#include "stop_commands.h"
#include "trash_commands.h"

namespace cairnfs::tools {
namespace {

void AddTarget(CLI::App& command, Target& target,
               const std::string& which = "the mount point, or any path in the mount") {
  auto* path = command.add_option("DIR", target.path, which)->check(NotEmpty());
  command.add_option("--data", target.data, "the data directory")->check(NotEmpty())->excludes(path);
}

// Lives as long as the parser refers to it.
struct ClusterCommands {
  ClusterInitCommand init;
  ClusterJoinCommand join;
  Target target;
  bool json = false;
  std::string min_replicas;
  std::string token_life = "1h";
  ClusterIssuerCommand issuer;
  NodeDrainCommand drain;
  NodeRemoveCommand remove;
  NodeReplaceCommand replace;
  ClusterWaitCommand wait;
};

void AddHostOptions(CLI::App& command, ClusterHostOptions& host) {
  command.add_option("--data", host.data, std::string("data directory (default ") + daemon::kDefaultData + ")")
      ->check(NotEmpty());
  command
      .add_option("--mount-point", host.mount_point,
                  std::string("mount point (default ") + daemon::kDefaultMountPoint + ")")
      ->check(NotEmpty());
  command
      .add_option("--config", host.config,
                  std::string("the configuration to write (default ") + daemon::kDefaultConfigFile + ")")
      ->check(NotEmpty());
  command.add_option("--name", host.name, "name of this node (default: the host's)");
  command.add_option("--domain", host.domain, "failure domain: what fails together with it");
  command.add_option("--advertise", host.advertise, "HOST:PORT at which others reach it (default: --listen)");
  command.add_flag("--force", host.force, "overwrite the configuration");
  command.add_option("--tls-ca", host.tls_ca, "file with the authority of an etcd that asks for TLS");
  command.add_option("--tls-certificate", host.tls_certificate, "file with this host's certificate for that etcd");
  command.add_option("--tls-key", host.tls_key, "file with the key of that certificate");
  command.add_flag("--i-know", host.i_know, "trust a network that is not private: whoever reaches it is a node");
}

void AddClusterSet(CLI::App& cluster, ClusterCommands& commands, int& exit_code) {
  auto* set = cluster.add_subcommand("set", "change a setting of the whole cluster");
  set->require_subcommand(1);
  auto* min_replicas =
      set->add_subcommand("min-replicas", "copies that suffice for a commit while nodes are missing, on every host");
  min_replicas->add_option("N", commands.min_replicas, "1 to copies, or default: all of them")
      ->required()
      ->check(NotEmpty());
  AddTarget(*min_replicas, commands.target);
  min_replicas->add_flag("--json", commands.json, "print JSON");
  min_replicas->callback([&] { exit_code = RunSetMinReplicas(commands.target, commands.min_replicas, commands.json); });
  for (const char* fixed : {"copies", "lease", "out-after"}) {
    auto* refused = set->add_subcommand(fixed)->group("");  // in no list
    refused->allow_extras();
    refused->callback([&exit_code, fixed] {
      exit_code = Fail(MakeError(ErrorCode::kInvalidArgument,
                                 fmt::format("{} is chosen by cairnfs cluster init and cannot be changed; cairnfs "
                                             "cluster set changes min-replicas alone",
                                             fixed)));
    });
  }
}

void AddCluster(CLI::App& app, ClusterCommands& commands, int& exit_code) {
  auto* cluster = app.add_subcommand("cluster", "make, join and look at a cluster of several hosts");
  cluster->require_subcommand(1);
  auto* init = cluster->add_subcommand("init", "make a filesystem for several hosts, and configure the first of them");
  init->add_option("--listen", commands.init.host.listen, "IP:PORT at which the other hosts reach this one")
      ->required();
  init->add_option("--trusted-network", commands.init.trusted_networks,
                   "do without certificates, and obey whoever is in this private network");
  auto* metadata = init->add_option("--metadata", commands.init.metadata,
                                    "an etcd that all hosts reach: etcd://HOST:PORT,HOST:PORT/prefix");
  init->add_option("--serve-metadata", commands.init.serve_metadata,
                   "IP:PORT at which this host serves the metadata itself (default: --listen, the next port)")
      ->excludes(metadata);
  init->add_option("--serve-join", commands.init.serve_join,
                   "IP:PORT at which hosts with a token join (default: --listen, two ports on)");
  init->add_option("--ca-out", commands.init.authority_out,
                   "a new file for the key of the cluster's authority, to be kept offline");
  init->add_option("--copies", commands.init.copies, "nodes that hold each chunk (default 2)")->check(WholeNumber(0));
  init->add_option("--min-replicas", commands.init.min_replicas,
                   "copies that suffice for a commit while nodes are missing (default: all)")
      ->check(WholeNumber(0));
  init->add_option("--lease", commands.init.lease, "a host that is not heard of for so long is down (default 5s)");
  init->add_option("--out-after", commands.init.out_after,
                   "a node that is down for so long has its copies made anew elsewhere (default 5min)");
  init->add_option("--dedup", commands.init.dedup,
                   "store equal data once for the mount, or once for each owner of files (default mount)");
  AddHostOptions(*init, commands.init.host);
  init->callback([&] { exit_code = RunClusterInit(commands.init); });

  auto* join = cluster->add_subcommand("join", "configure this host for a cluster that there is");
  join->add_option("ADDRESS", commands.join.address,
                   "where hosts join it, as cairnfs cluster token says; of a cluster that trusts networks where its "
                   "metadata is: etcd://HOST:PORT,..., or HOST:PORT of the host that serves it")
      ->required();
  join->add_option("--token", commands.join.token, "what cairnfs cluster token printed; - reads it from the input");
  join->add_option("--listen", commands.join.host.listen,
                   "IP:PORT at which the others reach this host (default: port 7401 at its address on "
                   "the way to the metadata)");
  AddHostOptions(*join, commands.join.host);
  join->callback([&] { exit_code = RunClusterJoin(commands.join); });

  auto* token = cluster->add_subcommand("token", "make a token, with which one host may join the cluster");
  token->add_option("--life", commands.token_life, "it can be used for so long (default 1h, at most 24h)");
  AddTarget(*token, commands.target);
  token->add_flag("--json", commands.json, "print JSON");
  token->callback([&] { exit_code = RunClusterToken(commands.target, commands.token_life, commands.json); });

  auto* issuer =
      cluster->add_subcommand("issuer", "have this host sign certificates, by the authority's key that was kept");
  issuer->add_option("--ca", commands.issuer.authority, "the file that cairnfs cluster init --ca-out wrote")
      ->required();
  issuer->add_option("--data", commands.issuer.data,
                     std::string("data directory (default ") + daemon::kDefaultData + ")");
  issuer->callback([&] { exit_code = RunClusterIssuer(commands.issuer); });

  auto* status = cluster->add_subcommand("status", "the hosts, missing copies and repair");
  AddTarget(*status, commands.target);
  status->add_flag("--json", commands.json, "print JSON");
  status->callback([&] { exit_code = RunClusterStatus(commands.target, commands.json); });
  auto* wait = cluster->add_subcommand("wait", "wait until so many nodes are up");
  wait->add_option("--nodes", commands.wait.nodes, "how many")->required()->check(WholeNumber(0));
  wait->add_option("--timeout", commands.wait.timeout, "how long to wait for them (default 10min)");
  AddTarget(*wait, commands.wait.target);
  wait->callback([&] { exit_code = RunClusterWait(commands.wait); });
  AddClusterSet(*cluster, commands, exit_code);
}

void AddNode(CLI::App& app, ClusterCommands& commands, int& exit_code) {
  auto* node = app.add_subcommand("node", "the nodes of the cluster");
  node->require_subcommand(1);
  auto* list = node->add_subcommand("list", "list them");
  AddTarget(*list, commands.target);
  list->add_flag("--json", commands.json, "print JSON");
  list->callback([&] { exit_code = RunNodeList(commands.target, commands.json); });
  constexpr const char* kWhichNode = "its name, or its id, or how that begins";
  auto* drain = node->add_subcommand("drain", "have a node give away what it has, so that it can be removed");
  drain->add_option("NAME", commands.drain.node, kWhichNode)->required();
  auto* cancel = drain->add_flag("--cancel", commands.drain.cancel, "take that back");
  drain->add_flag("--no-wait", commands.drain.no_wait, "do not wait until it has nothing any more")->excludes(cancel);
  AddTarget(*drain, commands.drain.target);
  drain->add_flag("--json", commands.drain.json, "print JSON");
  drain->callback([&] { exit_code = RunNodeDrain(commands.drain); });
  auto* remove = node->add_subcommand("remove", "take a node that was drained, or is lost, out of the cluster");
  remove->add_option("NAME", commands.remove.node, kWhichNode)->required();
  remove->add_flag("--lost", commands.remove.lost, "also one that was not drained: its disk is lost");
  AddTarget(*remove, commands.remove.target);
  remove->add_flag("--json", commands.remove.json, "print JSON");
  remove->callback([&] { exit_code = RunNodeRemove(commands.remove); });
  auto* replace = node->add_subcommand("replace", "have this host's node take the place of one whose disk is lost");
  replace->add_option("OLD", commands.replace.node, kWhichNode)->required();
  replace->add_flag("--take-name", commands.replace.take_name, "take its name too");
  replace->add_flag("--lost", commands.replace.lost, "also where it may have the only copies of something");
  AddTarget(*replace, commands.replace.target);
  replace->add_flag("--json", commands.replace.json, "print JSON");
  replace->callback([&] { exit_code = RunNodeReplace(commands.replace); });
}

void AddMetadata(CLI::App& app, MetadataCommand& command, int& exit_code) {
  auto* metadata = app.add_subcommand("metadata", "the names and records of a filesystem in a file");
  metadata->require_subcommand(1);
  auto* dump = metadata->add_subcommand("dump", "write them into a file, as of one moment, while everything goes on");
  dump->add_option("FILE", command.file, "the file; one that is there is replaced")->required()->check(NotEmpty());
  AddTarget(*dump, command.target);
  dump->add_option("--metadata", command.metadata, "read them where they lie: etcd://HOST:PORT,... or node:HOST:PORT")
      ->check(NotEmpty());
  dump->add_option("--hold", command.hold, "keep all chunks that the dump names for so long, as in 7d (of a cluster)")
      ->check(NotEmpty());
  dump->callback([&] { exit_code = RunMetadataDump(command); });
  auto* load = metadata->add_subcommand("load", "put those of a cluster into an empty store");
  load->add_option("FILE", command.file, "what cairnfs metadata dump wrote")->required()->check(NotEmpty());
  auto* into = load->add_option_group("into")->require_option(1);
  into->add_option("--metadata", command.metadata, "an etcd: etcd://HOST:PORT,HOST:PORT/prefix")->check(NotEmpty());
  into->add_option("--data", command.target.data, "the data directory of the host that is to serve them")
      ->check(NotEmpty());
  load->callback([&] { exit_code = RunMetadataLoad(command); });
  auto* show = metadata->add_subcommand("show", "say what a dump is, and verify all of it");
  show->add_option("FILE", command.file, "what cairnfs metadata dump wrote")->required()->check(NotEmpty());
  show->callback([&] { exit_code = RunMetadataShow(command); });
  auto* holds = metadata->add_subcommand("holds", "list the dumps whose chunks are held");
  AddTarget(*holds, command.target);
  holds->callback([&] { exit_code = RunMetadataHolds(command); });
  auto* release = metadata->add_subcommand("release", "hold the chunks of a dump no longer");
  release->add_option("ID", command.hold_id, "the hold, as cairnfs metadata holds lists it")
      ->required()
      ->check(WholeNumber(0));
  AddTarget(*release, command.target);
  release->callback([&] { exit_code = RunMetadataRelease(command); });
  auto* standby = metadata->add_subcommand("standby", "have another host follow this one, which serves the names");
  standby->add_option("NAME", command.node, "the node, which is one of the three hosts in metadata: its name or id")
      ->check(NotEmpty());
  standby->add_flag("--none", command.no_standby, "the names are to have no standby");
  standby->add_option("--data", command.target.data, "the data directory")->check(NotEmpty());
  standby->callback([&] { exit_code = RunMetadataStandby(command); });
  auto* promote = metadata->add_subcommand("promote", "have this host, the standby, serve the names");
  promote->add_flag("--lose", command.lose, "also where it lacks names: what was changed since is lost");
  AddTarget(*promote, command.target);
  promote->callback([&] { exit_code = RunMetadataPromote(command); });
  for (CLI::App* one : {dump, load, show, holds, release, standby, promote})
    one->add_flag("--json", command.json, "print JSON");
}

void AddTrash(CLI::App& app, TrashCommand& command, int& exit_code) {
  auto* trash = app.add_subcommand("trash", "what was removed and can be restored");
  trash->require_subcommand(1);
  constexpr const char* kWhich = "which: its number, as trash ls lists it";
  auto* ls = trash->add_subcommand("ls", "list what you may restore, the oldest first");
  AddTarget(*ls, command.target);
  ls->callback([&] { exit_code = RunTrashList(command); });
  auto* restore = trash->add_subcommand("restore", "give it its name back, or another one");
  restore->add_option("ID", command.id, kWhich)->required()->check(NotEmpty());
  restore->add_option("TO", command.to, "its new path (default: where it lay)")->check(NotEmpty());
  restore->add_option("--mount", command.target.path, "the mount point, where there are several and no TO")
      ->check(NotEmpty());
  restore->add_flag("--tree", command.tree, "also what lay below it, as far as the trash has it");
  restore->callback([&] { exit_code = RunTrashRestore(command); });
  auto* empty = trash->add_subcommand("empty", "remove all of it for good, or one entry");
  AddTarget(*empty, command.target);
  empty->add_option("--id", command.id, kWhich)->check(NotEmpty());
  empty->callback([&] { exit_code = RunTrashEmpty(command); });
  for (CLI::App* one : {ls, restore, empty}) one->add_flag("--json", command.json, "print JSON");
}

// These too live as long as the parser refers to them.
struct MountCommands {
  MountCommand mount;
  UmountCommand umount;
};
struct StoreCommands {
  GcCommand gc;
  std::string wait_path;
  bool wait_json = false;
  DrainCommand drain;
  CheckCommand check;
  StatusCommand status;
};

void AddMount(CLI::App& app, MountCommands& commands, int& exit_code) {
  MountCommand& mount = commands.mount;
  auto* mount_command = app.add_subcommand("mount", "mount a CairnFS; returns when it is ready");
  mount_command
      ->add_option("DIR", mount.mount_point, std::string("mount point (default ") + daemon::kDefaultMountPoint + ")")
      ->check(NotEmpty());
  mount_command->add_option("--data", mount.data, std::string("data directory (default ") + daemon::kDefaultData + ")")
      ->check(NotEmpty());
  mount_command->add_option("-o", mount.options, "options: key=value of the configuration, or noexec, suid, ...")
      ->allow_extra_args(false);
  mount_command->add_option("--config", mount.config, "configuration file")->check(NotEmpty());
  mount_command->add_flag("--foreground,-f", mount.foreground, "stay in the foreground, log to stderr");
  mount_command->callback([&] { exit_code = RunMount(commands.mount); });

  UmountCommand& umount = commands.umount;
  auto* umount_command =
      app.add_subcommand("umount", "unmount; returns when everything is durable and the daemon ended");
  umount_command->add_option("DIR", umount.mount_point, "the mount point")->required();
  auto* lazy =
      umount_command->add_flag("--lazy,-l", umount.lazy, "detach now, also when files are open; does not wait");
  auto* deadline = umount_command
                       ->add_option("--deadline", umount.deadline,
                                    "unmount also when files are open, and end within this time, as in 25s: what is "
                                    "not durable by then is lost, and listed")
                       ->check(NotEmpty())
                       ->excludes(lazy);
  umount_command->add_flag("--json", umount.json, "print JSON")->needs(deadline);
  umount_command->add_flag("--unguard", umount.unguard,
                           "let the directory be written into again; also where nothing is mounted");
  umount_command->callback([&] { exit_code = RunUmount(commands.umount); });
}

void AddStatusAndWait(CLI::App& app, StoreCommands& commands, int& exit_code) {
  auto* status_command = app.add_subcommand("status", "space, activity and health of a mount");
  AddTarget(*status_command, commands.status.target,
            "the mount point; or any path in the mount: of the failed commits, those at, above or below it");
  status_command->footer(
      "Commits that were refused are listed, of all hosts: the last 16, with --json the last 1,000.\n"
      "Only root and the user whom the daemon runs as may ask.");
  status_command->add_flag("--exact", commands.status.exact, "count what files need now, however long that takes");
  status_command->add_flag("--metadata", commands.status.metadata, "whose entries fill the metadata: reads all of it");
  status_command->add_flag("--json", commands.status.json, "print JSON");
  status_command->callback([&] { exit_code = RunStatus(commands.status); });

  auto* wait_command = app.add_subcommand("wait", "return once everything written so far is durable");
  wait_command->add_option("PATH", commands.wait_path, "a path in the mount")->required();
  wait_command->add_flag("--json", commands.wait_json, "print JSON");
  wait_command->callback([&] { exit_code = RunWait(commands.wait_path, commands.wait_json); });

  auto* drain = app.add_subcommand("drain", "make durable what can be in a given time, and list what is not");
  AddTarget(*drain, commands.drain.target);
  drain->add_option("--deadline", commands.drain.deadline, "the time, as in 25s")->required()->check(NotEmpty());
  drain->add_flag("--json", commands.drain.json, "print JSON");
  drain->callback([&] { exit_code = RunDrain(commands.drain); });
}

void AddGcAndCheck(CLI::App& app, StoreCommands& commands, int& exit_code) {
  auto* gc_command = app.add_subcommand("gc", "collect unreferenced chunks now");
  AddTarget(*gc_command, commands.gc.target);
  gc_command->add_flag("--after-restore", commands.gc.after_restore,
                       "allow collections again after the cluster's metadata went back to an older state");
  gc_command->add_flag("--json", commands.gc.json, "print JSON");
  gc_command->callback([&] { exit_code = RunGc(commands.gc); });

  CheckCommand& check = commands.check;
  auto* check_command = app.add_subcommand("check", "read and verify everything; works with and without a daemon");
  AddTarget(*check_command, check.target);
  check_command->add_flag("--rebuild-index", check.rebuild_index,
                          "first write the chunk index anew from the segments; only while unmounted");
  check_command->add_flag("--json", check.json, "print JSON");
  check_command->callback([&] { exit_code = RunCheck(commands.check); });
}

// What would be right, when the command line ends with a command that has commands of its own, or goes on with a word
// that is none of these. Else empty.
std::string AboutCommands(const CLI::App& app) {
  const CLI::App* last = &app;
  std::string words = app.get_name();
  while (!last->get_subcommands().empty()) {
    last = last->get_subcommands().front();
    words += " " + last->get_name();
  }
  if (last->get_require_subcommand_min() == 0) return {};
  std::string names;
  for (const CLI::App* command : last->get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); })) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  const std::vector<std::string> rest = last->remaining();
  if (rest.empty()) return fmt::format("{} needs one of its commands: {}", words, names);
  return fmt::format("{} has no command '{}'; it has {}", words, rest.front(), names);
}

int Main(int argc, char** argv) {
  CLI::App app("CairnFS: a filesystem for training checkpoints. See cairnfs(1).", "cairnfs");
  app.require_subcommand(1);
  app.failure_message(&ParseFailure);
  app.set_version_flag("--version", "cairnfs " CAIRNFS_VERSION);
  int exit_code = 0;

  MountCommands mounting;
  AddMount(app, mounting, exit_code);
  StoreCommands store;
  AddStatusAndWait(app, store, exit_code);
  AddGcAndCheck(app, store, exit_code);
  CommitCommands commits;
  AddCommits(app, commits, exit_code);
  CheckpointCommands checkpoints;
  AddCheckpoints(app, checkpoints, exit_code);
  QuotaCommand quota;
  AddQuota(app, quota, exit_code);
  ClusterCommands cluster;
  AddCluster(app, cluster, exit_code);
  AddNode(app, cluster, exit_code);
  MetadataCommand metadata;
  AddMetadata(app, metadata, exit_code);
  TrashCommand trash;
  AddTrash(app, trash, exit_code);

  app.add_subcommand("version", "print the version")->callback([] { Print("cairnfs " CAIRNFS_VERSION "\n"); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool lacks = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError);
    const std::string what = lacks ? AboutCommands(app) : "";
    if (!what.empty()) return Fail(MakeError(ErrorCode::kInvalidArgument, what));
    std::ostringstream help;
    const bool is_asked_for = app.exit(error, help) == 0;
    if (is_asked_for) Print(help.str());
    return is_asked_for ? daemon::kExitDone : daemon::kExitUsage;
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
  spdlog::default_logger()->set_pattern("cairnfs: %l: %v");
  if (const char* failpoints = std::getenv("CAIRNFS_FAILPOINTS"); failpoints != nullptr && *failpoints != '\0') {
    if (auto armed = cairnfs::Failpoint::Arm(failpoints); !armed.ok()) return cairnfs::tools::Fail(armed.error());
  }
  const int exit_code = cairnfs::tools::Main(argc, argv);
  // Whoever reads the output would take what is missing for what there is.
  const bool is_output_lost = exit_code == cairnfs::daemon::kExitDone && cairnfs::tools::HasOutputFailed();
  return is_output_lost ? int{cairnfs::daemon::kExitFailed} : exit_code;
}
