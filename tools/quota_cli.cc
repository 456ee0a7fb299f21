#include "quota_cli.h"

namespace cairnfs::tools {

void AddQuota(CLI::App& app, QuotaCommand& command, int& exit_code) {
  auto* quota = app.add_subcommand("quota", "bound what a directory holds");
  quota->require_subcommand(1);
  auto* set = quota->add_subcommand("set", "give a directory a quota, or change it");
  set->add_option("DIR", command.directory, "the directory; all that lies below counts")->required()->check(NotEmpty());
  set->add_option("--logical", command.logical,
                  "bytes of files without their holes, before deduplication, as 2T; none: no limit")
      ->check(NotEmpty());
  set->add_option("--unique", command.unique,
                  "bytes that were stored nowhere when they were written, as 500G; none: no limit")
      ->check(NotEmpty());
  set->add_flag("--force", command.force, "also below what is used: then nothing can be written until less is");
  set->add_flag("--json", command.json, "print JSON");
  set->callback([&] { exit_code = RunQuotaSet(command); });
  auto* show = quota->add_subcommand("show", "what of a quota is used");
  show->add_option("DIR", command.directory, "a file or directory that falls under it; the mount point, or none: all")
      ->check(NotEmpty());
  show->add_flag("--json", command.json, "print JSON");
  show->callback([&] { exit_code = RunQuotaShow(command); });
  auto* off = quota->add_subcommand("off", "take the quota of a directory off");
  off->add_option("DIR", command.directory, "the directory that has it")->required()->check(NotEmpty());
  off->add_flag("--json", command.json, "print JSON");
  off->callback([&] { exit_code = RunQuotaOff(command); });
}

}  // namespace cairnfs::tools
