#include "checkpoint_cli.h"

namespace cairnfs::tools {
namespace {

void AddLooks(CLI::App& app, CheckpointCommands& commands, int& exit_code) {
  constexpr const char* kMatch =
      "a regular expression for whole names, with one group, which finds the step (default: the last number in the "
      "name)";
  auto* ls = app.add_subcommand("ls", "the checkpoints in a directory, and what each cost");
  ls->add_option("DIR", commands.ls.directory, "the directory of a run")->required()->check(NotEmpty());
  ls->add_option("--match", commands.ls.match, kMatch)->check(NotEmpty());
  ls->callback([&] { exit_code = RunLs(commands.ls); });
  ls->add_flag("--json", commands.ls.json, "print JSON");

  auto* latest = app.add_subcommand("latest", "the path of the newest whole checkpoint in a directory");
  latest->add_option("DIR", commands.latest.directory, "the directory of a run")->required()->check(NotEmpty());
  latest->add_option("--match", commands.latest.match, kMatch)->check(NotEmpty());
  latest->add_option("--before", commands.latest.before, "only of steps below this one")->check(WholeNumber(0));
  latest->add_flag("--verify", commands.latest.verify, "read all of it first");
  latest->add_option("--hold", commands.latest.hold, "keep retention from it for so long, as 2h")->check(NotEmpty());
  latest->add_flag("--json", commands.latest.json, "print JSON");
  latest->callback([&] { exit_code = RunLatest(commands.latest); });

  WatchCommand& watch = commands.watch;
  auto* watched = app.add_subcommand("watch", "print a line for each checkpoint that is committed from now on");
  watched->add_option("DIR", watch.directory, "the directory of a run")->required()->check(NotEmpty());
  watched->add_option("--match", watch.match, kMatch)->check(NotEmpty());
  watched->add_option("--since", watch.since, "also those after this revision, as a line before said")
      ->check(WholeNumber(0));
  watched
      ->add_option("--exec", watch.exec,
                   "run this by sh for each, one after the other; {} is its path, or $1 inside \"...\"")
      ->check(NotEmpty());
  watched
      ->add_option("--hold", watch.hold, "keep retention from each for so long, once it is seen and once --exec begins")
      ->check(NotEmpty());
  watched->add_option("--count", watch.count, "end after so many")->check(WholeNumber(1));
  watched->add_flag("--json", watch.json, "print JSON, a line for each");
  watched->callback([&] { exit_code = RunWatch(commands.watch); });
}

void AddPins(CLI::App& app, CheckpointCommands& commands, int& exit_code) {
  constexpr const char* kPath = "the directory of a checkpoint";
  auto* pin = app.add_subcommand("pin", "keep retention from a checkpoint, until unpin");
  pin->add_option("PATH", commands.pin.path, kPath)->required()->check(NotEmpty());
  pin->add_flag("--json", commands.pin.json, "print JSON");
  pin->callback([&] { exit_code = RunPin(commands.pin); });
  auto* unpin = app.add_subcommand("unpin", "take a pin away");
  unpin->add_option("PATH", commands.unpin.path, kPath)->required()->check(NotEmpty());
  unpin->add_flag("--json", commands.unpin.json, "print JSON");
  unpin->callback([&] { exit_code = RunUnpin(commands.unpin); });
  auto* hold = app.add_subcommand("hold", "keep retention from a checkpoint for some time");
  hold->add_option("PATH", commands.hold.path, kPath)->required()->check(NotEmpty());
  auto* how = hold->add_option_group("how")->require_option(1);
  how->add_option("--for", commands.hold.time, "for so long from now on, as 2h; a hold that ends later stays")
      ->check(NotEmpty());
  how->add_flag("--release", commands.hold.release, "end the hold, whoever asked for it");
  hold->add_flag("--json", commands.hold.json, "print JSON");
  hold->callback([&] { exit_code = RunHold(commands.hold); });
}

void AddSeals(CLI::App& app, CheckpointCommands& commands, int& exit_code) {
  auto* seal = app.add_subcommand("seal", "let nothing below a directory be changed or removed, until unseal");
  seal->footer("Refused while any process on any host has a file below open for writing.");
  seal->add_option("DIR", commands.seal.path, "the directory")->required()->check(NotEmpty());
  seal->add_flag("--commits", commands.seal.commits,
                 "seal each directory that is renamed into DIR from now on, by that rename, and not DIR itself");
  seal->add_flag("--json", commands.seal.json, "print JSON");
  seal->callback([&] { exit_code = RunSeal(commands.seal); });
  auto* unseal = app.add_subcommand("unseal", "end a seal, or what seal --commits has begun");
  unseal->add_option("DIR", commands.unseal.path, "the directory")->required()->check(NotEmpty());
  unseal->add_flag("--json", commands.unseal.json, "print JSON");
  unseal->callback([&] { exit_code = RunUnseal(commands.unseal); });
}

void AddRetain(CLI::App& app, RetainCommand& command, int& exit_code) {
  auto* retain = app.add_subcommand("retain", "say which checkpoints of a run stay, and remove the others");
  retain->footer(
      "What one rule keeps stays; so do the newest durable one, and what is pinned, held, open or not matched.\n"
      "The policy is an attribute of DIR. The daemons apply it by themselves; --now does so at once.");
  retain->add_option("DIR", command.directory, "the directory of a run")->required()->check(NotEmpty());
  const auto add = [&](const char* option, std::string& value, const char* what) {
    retain->add_option(option, value, what)->check(NotEmpty());
  };
  add("--keep-last", command.keep_last, "keep so many of the newest");
  add("--keep-every", command.keep_every, "keep those whose step it divides");
  retain->add_option("--keep-best", command.keep_best, "METRIC:min:N or METRIC:max:N: keep the N best by a metric")
      ->allow_extra_args(false);
  add("--keep-for", command.keep_for, "keep each for so long after its commit, as 30d");
  add("--match", command.match, "which names are checkpoints, as for ls");
  add("--metrics-file", command.metrics_file, "where the metrics of a checkpoint lie in it (default metrics.json)");
  retain->add_flag("--keep-without-metric", command.keep_without_metric,
                   "keep those that lack a metric of --keep-best");
  retain
      ->add_option("--keep-inside", command.keep_inside,
                   "leave what has a name like this, as 'train_ds*', in those that go")
      ->allow_extra_args(false);
  retain
      ->add_option("--abandoned", command.abandoned,
                   "PATTERN:TIME, as '*.tmp*:24h': remove temporary directories once nothing was written below them "
                   "for so long")
      ->allow_extra_args(false);
  auto* what = retain->add_option_group("what")->require_option(0, 1);
  what->add_flag("--show", command.show, "print the policy, and how it was last applied");
  what->add_flag("--off", command.off, "take the policy away");
  what->add_flag("--dry-run", command.dry_run, "print what goes and what stays, and why");
  what->add_flag("--now", command.now, "remove what goes, once");
  retain->add_flag("--json", command.json, "print JSON");
  retain->callback([&] { exit_code = RunRetain(command); });
}

// For daemons alone: no page has it.
void AddApplyPolicy(CLI::App& app, ApplyPolicyCommand& command, int& exit_code) {
  auto* apply = app.add_subcommand("apply-policy", "apply a policy, for a daemon")->group("");
  apply->add_option("--mount", command.mount_point)->required()->check(NotEmpty());
  apply->add_option("--inode", command.inode)->required();
  apply->add_option("--owner", command.owner)->required();
  apply->add_option("PATH", command.path)->required()->check(NotEmpty());
  apply->callback([&] { exit_code = RunApplyPolicy(command); });
}

}  // namespace

void AddCheckpoints(CLI::App& app, CheckpointCommands& commands, int& exit_code) {
  AddLooks(app, commands, exit_code);
  AddPins(app, commands, exit_code);
  AddSeals(app, commands, exit_code);
  AddApplyPolicy(app, commands.apply, exit_code);
  AddRetain(app, commands.retain, exit_code);
}

}  // namespace cairnfs::tools
