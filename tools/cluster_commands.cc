#include "cluster_commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <functional>

#include "cluster_output.h"
#include "commands.h"
#include "daemon/cluster_setup.h"
#include "daemon/exit_codes.h"
#include "output.h"

namespace cairnfs::tools {
namespace {

Status Apply(std::string_view key, const std::string& value, daemon::Config& config) {
  return value.empty() ? Status() : daemon::ApplyKey(key, value, config);
}

Result<daemon::SetupOptions> OptionsOf(const ClusterHostOptions& host) {
  daemon::SetupOptions options;
  options.file = host.config.empty() ? daemon::kDefaultConfigFile : host.config;
  options.overwrite = host.force;
  daemon::Config& config = options.config;
  config.trust_public_network = host.i_know;
  CAIRNFS_RETURN_IF_ERROR(Apply("data", host.data, config));
  CAIRNFS_RETURN_IF_ERROR(Apply("mount_point", host.mount_point, config));
  CAIRNFS_RETURN_IF_ERROR(Apply("listen", host.listen, config));
  CAIRNFS_RETURN_IF_ERROR(Apply("advertise", host.advertise, config));
  CAIRNFS_RETURN_IF_ERROR(Apply("node_name", host.name, config));
  CAIRNFS_RETURN_IF_ERROR(Apply("failure_domain", host.domain, config));
  return options;
}

std::string MountWords(const daemon::SetupOptions& options) {
  return options.file == daemon::kDefaultConfigFile ? "cairnfs mount" : "cairnfs mount --config " + options.file;
}

Result<daemon::SetupResult> Init(const ClusterInitCommand& command, daemon::SetupOptions& options) {
  CAIRNFS_ASSIGN_OR_RETURN(options, OptionsOf(command.host));
  CAIRNFS_RETURN_IF_ERROR(Apply("metadata", command.metadata, options.config));
  CAIRNFS_RETURN_IF_ERROR(Apply("serve_metadata", command.serve_metadata, options.config));
  CAIRNFS_RETURN_IF_ERROR(daemon::ApplyKey("copies", fmt::format("{}", command.copies), options.config));
  CAIRNFS_RETURN_IF_ERROR(daemon::ApplyKey("min_replicas", fmt::format("{}", command.min_replicas), options.config));
  CAIRNFS_RETURN_IF_ERROR(Apply("lease", command.lease, options.config));
  CAIRNFS_RETURN_IF_ERROR(Apply("out_after", command.out_after, options.config));
  CAIRNFS_RETURN_IF_ERROR(Apply("dedup", command.dedup, options.config));
  options.config.trusted_network = command.trusted_networks;
  return daemon::InitCluster(options);
}

// 0: all copies.
Result<uint32_t> ParseMinReplicas(const std::string& text) {
  if (text == "default") return 0;
  uint32_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() && number != 0) return number;
  return MakeError(
      ErrorCode::kInvalidArgument,
      fmt::format("min-replicas = \"{}\" is no number of copies: give 1 to copies, or default for all of them", text));
}

// Asks the daemon, and prints what `text` makes of its answer.
int Show(const Target& target, const std::function<std::string(const control::ClusterReply&)>& text) {
  auto located = LocateDaemon(target);
  if (!located.ok()) return Fail(located.error());
  auto report = located->client.GetCluster();
  if (!report.ok()) return Fail(report.error());
  Print(text(*report));
  return daemon::kExitDone;
}

}  // namespace

int RunClusterInit(const ClusterInitCommand& command) {
  daemon::SetupOptions options;
  auto made = Init(command, options);
  if (!made.ok()) return Fail(made.error());
  const bool serves = !made->config.serve_metadata.empty();
  Print(fmt::format(
      "made filesystem {}; {} is written\n"
      "mount it here:       {}\n"
      "on every other host: cairnfs cluster join {}\n"
      "                     cairnfs mount\n{}"
      "Until nodes have certificates, whoever reaches {}{} from {}, and any local user of a host there, is "
      "obeyed as a node:\nhe can read and replace what is stored. Of its own host's users a node refuses all "
      "but root{}, of other hosts' none.{}\n",
      made->filesystem, options.file, MountWords(options), made->join_address,
      serves ? "This host keeps the metadata: mount it here first, the others ask it.\n" : "", made->config.listen,
      serves ? " or " + made->config.serve_metadata : "", fmt::join(made->config.trusted_network, ", "),
      geteuid() == 0 ? "" : " and this one",
      serves ? "" : " So is whoever reaches that etcd, unless it asks for certificates."));
  return daemon::kExitDone;
}

int RunClusterJoin(const ClusterJoinCommand& command) {
  auto options = OptionsOf(command.host);
  if (!options.ok()) return Fail(options.error());
  auto joined = daemon::JoinCluster(*options, command.address);
  if (!joined.ok()) return Fail(joined.error());
  Print(fmt::format("filesystem {}; {} is written, this host listens on {}\nmount it: {}\n", joined->filesystem,
                    options->file, joined->config.listen, MountWords(*options)));
  return daemon::kExitDone;
}

int RunClusterStatus(const Target& target, bool json) { return Show(target, json ? ClusterJson : ClusterText); }
int RunNodeList(const Target& target, bool json) { return Show(target, json ? NodesJson : NodesText); }

int RunSetMinReplicas(const Target& target, const std::string& number, bool json) {
  auto min_replicas = ParseMinReplicas(number);
  if (!min_replicas.ok()) return Fail(min_replicas.error());
  auto located = LocateDaemon(target);
  if (!located.ok()) return Fail(located.error());
  auto set = located->client.SetMinReplicas(*min_replicas);
  if (!set.ok()) return Fail(set.error());
  Print(json ? ReplicasJson(*set) : ReplicasText(*set));
  return daemon::kExitDone;
}

int RunNodeForget(const Target& target, const std::string& node, bool json) {
  auto located = LocateDaemon(target);
  if (!located.ok()) return Fail(located.error());
  auto forgotten = located->client.Forget(node);
  if (!forgotten.ok()) return Fail(forgotten.error());
  if (json) Print(ForgottenJson(*forgotten));
  return daemon::kExitDone;
}

}  // namespace cairnfs::tools
