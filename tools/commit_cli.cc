#include "commit_cli.h"

#include "control/rank_gate.h"
#include "fs/tickets.h"

namespace cairnfs::tools {
namespace {

void AddCommit(CLI::App& app, CommitCommand& commit, int& exit_code) {
  auto* command = app.add_subcommand("commit", "rename a directory once all ranks of a job have called this, or later");
  command->add_option("TMP", commit.from,
                      "the directory that was written into; with --wait, any path in the mount, where there are "
                      "several");
  command->add_option("FINAL", commit.to, "its final name");
  auto* ranks = command->add_option("--ranks", commit.ranks, "how many ranks call")
                    ->check(CLI::Range(1U, control::GateCall::kRanksMax));
  auto* rank = command
                   ->add_option("--rank", commit.rank,
                                "the number of this one, from 0 on (default: RANK, OMPI_COMM_WORLD_RANK, PMI_RANK "
                                "or SLURM_PROCID of the environment)")
                   ->needs(ranks);
  command->add_option("--id", commit.id, "a name of its own in place of a number")->excludes(rank)->needs(ranks);
  command
      ->add_option("--at-least", commit.at_least,
                   "so many ranks do once the time is up, if what is required is there (default: all must come)")
      ->check(CLI::Range(1U, control::GateCall::kRanksMax))
      ->needs(ranks);
  command
      ->add_option("--require", commit.required,
                   "files that must lie below TMP: a pattern of names, perhaps with =COUNT; may be repeated")
      ->check(NotEmpty())
      ->allow_extra_args(false)
      ->needs(ranks);
  auto* is_async =
      command->add_flag("--async", commit.is_async, "return a ticket, and rename once all is durable")->excludes(ranks);
  command
      ->add_option("--under-way", commit.under_way_max,
                   "with --async: wait while so many tickets are under way for the directory that FINAL lies in "
                   "(default 1)")
      ->check(CLI::Range(1U, fs::Tickets::kOfDirectoryMax))
      ->needs(is_async);
  auto* ticket = command->add_option("--wait", commit.ticket, "wait for this ticket's commit, and print what it gave")
                     ->check(NotEmpty())
                     ->excludes(ranks)
                     ->excludes(is_async);
  command
      ->add_option("--timeout", commit.timeout,
                   "how long to wait for the other ranks (default 10min), or with --wait for the ticket's commit "
                   "(default: until it has ended)")
      ->check(NotEmpty())
      ->excludes(is_async);
  command
      ->add_flag("--seal", commit.seal, "by the same rename, let nothing below be changed or removed (cairnfs unseal)")
      ->excludes(ticket);
  command->add_flag("--json", commit.json, "print JSON");
  command->callback([&commit, ticket, &exit_code] {
    if (ticket->count() > 0 && !commit.to.empty()) throw CLI::ExcludesError("--wait", "FINAL");
    if (ticket->count() == 0 && commit.from.empty()) throw CLI::RequiredError("TMP");
    exit_code = RunCommit(commit);
  });
}

// For daemons alone: no page has it.
void AddApplyCommit(CLI::App& app, ApplyCommitCommand& command, int& exit_code) {
  auto* apply = app.add_subcommand("apply-commit", "make a deferred commit, for a daemon")->group("");
  apply->add_option("--mount", command.mount_point)->required()->check(NotEmpty());
  apply->add_option("--inode", command.inode)->required();
  apply->add_option("--from-inode", command.from.inode)->required();
  apply->add_option("--to-inode", command.to.inode)->required();
  apply->add_option("--user", command.user)->required();
  apply->add_option("--group", command.group)->required();
  apply->add_option("--other-group", command.groups);
  apply->add_option("FROM_PARENT", command.from.parent)->required()->check(NotEmpty());
  apply->add_option("FROM_NAME", command.from.name)->required()->check(NotEmpty());
  apply->add_option("TO_PARENT", command.to.parent)->required()->check(NotEmpty());
  apply->add_option("TO_NAME", command.to.name)->required()->check(NotEmpty());
  apply->callback([&] { exit_code = RunApplyCommit(command); });
}

}  // namespace

void AddCommits(CLI::App& app, CommitCommands& commands, int& exit_code) {
  AddCommit(app, commands.commit, exit_code);
  AddApplyCommit(app, commands.apply, exit_code);
}

}  // namespace cairnfs::tools
