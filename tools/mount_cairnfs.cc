// mount.cairnfs: what mount(8) calls for a line of fstab. mount.cairnfs DATA DIR [-sfnvr] [-N NAMESPACE] [-t TYPE] [-o
// OPTIONS] Exit codes are those of mount(8): 0, 1 (wrong call or no permission), 32 (the mount failed).

#include <fmt/format.h>
#include <unistd.h>

#include <optional>
#include <string_view>

#include "base/comma_list.h"
#include "commands.h"
#include "remount.h"
#include "spawn.h"

namespace cairnfs::tools {
namespace {

constexpr int kWrongCall = 1;
constexpr int kMountFailed = 32;

// -o "config=FILE,a,b" -> the file, and "a,b".
std::string TakeConfig(std::string_view options, std::optional<std::string>& config) {
  std::string rest;
  for (std::string_view word : SplitAtCommas(options)) {
    if (word.starts_with("config=")) {
      config = word.substr(7);
    } else if (!word.empty()) {
      rest += (rest.empty() ? "" : ",") + std::string(word);
    }
  }
  return rest;
}

int Main(int argc, char** argv) {
  // mount(8) may put the two names before the options; getopt gathers them at the end.
  MountCommand command;
  std::optional<std::string> config;
  bool fake = false;
  for (int option; (option = getopt(argc, argv, "sfnvrwN:t:o:h")) != -1;) {
    switch (option) {
      case 'f': fake = true; break;
      case 'r': command.options.emplace_back("ro"); break;
      case 'o': command.options.push_back(TakeConfig(optarg, config)); break;
      case 's':
      case 'n':
      case 'v':
      case 'w':
      case 't': break;
      case 'N':
        fmt::print(stderr, "mount.cairnfs: -N is not supported; enter the namespace with nsenter first\n");
        return kWrongCall;
      default: fmt::print(stderr, "mount.cairnfs: use: mount.cairnfs DATA DIR [-o OPTIONS]\n"); return kWrongCall;
    }
  }
  if (argc - optind != 2) {
    fmt::print(stderr, "mount.cairnfs: use: mount.cairnfs DATA DIR [-o OPTIONS]\n");
    return kWrongCall;
  }
  command.data = argv[optind];
  command.mount_point = argv[optind + 1];
  // Left empty they would mean the default ones.
  if (command.data.empty() || command.mount_point.empty() || (config && config->empty())) {
    fmt::print(stderr, "mount.cairnfs: DATA, DIR and the FILE of -o config=FILE must not be empty\n");
    return kWrongCall;
  }
  command.config = config.value_or("");
  if (fake) return 0;
  if (IsRemount(command)) {
    const Status remounted = Remount(command);
    if (remounted.ok()) return 0;
    fmt::print(stderr, "mount.cairnfs: {}\n", remounted.error().message);
    return kMountFailed;
  }
  auto report = StartInBackground(DaemonArguments(command));
  if (report.ok() && report->ready) return 0;
  fmt::print(stderr, "mount.cairnfs: {}\n", report.ok() ? report->message : report.error().message);
  return kMountFailed;
}

}  // namespace
}  // namespace cairnfs::tools

int main(int argc, char** argv) { return cairnfs::tools::Main(argc, argv); }
