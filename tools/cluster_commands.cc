#include "cluster_commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <functional>
#include <iostream>

#include "admission/credentials.h"
#include "base/clock.h"
#include "base/printable.h"
#include "cluster_output.h"
#include "commands.h"
#include "daemon/cluster_setup.h"
#include "daemon/exit_codes.h"
#include "daemon/size_text.h"
#include "output.h"
#include "progress.h"

namespace cairnfs::tools {
namespace {

constexpr std::chrono::seconds kLookEvery{1};

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
  CAIRNFS_RETURN_IF_ERROR(Apply("tls_ca", host.tls_ca, config));
  CAIRNFS_RETURN_IF_ERROR(Apply("tls_certificate", host.tls_certificate, config));
  CAIRNFS_RETURN_IF_ERROR(Apply("tls_key", host.tls_key, config));
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
  CAIRNFS_RETURN_IF_ERROR(Apply("serve_join", command.serve_join, options.config));
  options.config.trusted_network = command.trusted_networks;
  options.authority_out = command.authority_out;
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

// Until the node has nothing any more; says how far it is.
Status AwaitDrained(control::Client& client, const control::NodeReply& node, bool is_silent) {
  ProgressLine line(!is_silent);
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(const control::ClusterReply report, client.GetCluster());
    const auto found = std::ranges::find(report.nodes(), node.id(), &control::Node::id);
    const std::string name = Printable(node.name());
    if (found == report.nodes().end()) return MakeError(ErrorCode::kNotFound, name + " was removed");
    if (found->drain() == "drained") return {};
    if (found->drain().empty())
      return MakeError(ErrorCode::kInterrupted, name + " is drained no more: somebody took it back");
    line.Show(DrainText(*found));
    Clock::SleepFor(kLookEvery);
  }
}

}  // namespace

namespace {

// What the operator is to know of a cluster that trusts networks.
std::string TrustText(const daemon::SetupResult& made) {
  const daemon::Config& config = made.config;
  const bool serves = !config.serve_metadata.empty();
  return fmt::format(
      "on every other host: cairnfs cluster join {}\n"
      "                     cairnfs mount\n{}"
      "This cluster has no certificates: whoever reaches {}{} from {}, and any local user of a host there, is "
      "obeyed as a node:\nhe can read and replace what is stored. Of its own host's users a node refuses all "
      "but root{}, of other hosts' none.{}\n",
      made.join_address, serves ? "This host keeps the metadata: mount it here first, the others ask it.\n" : "",
      config.listen, serves ? " or " + config.serve_metadata : "", fmt::join(config.trusted_network, ", "),
      geteuid() == 0 ? "" : " and this one",
      serves ? "" : " So is whoever reaches that etcd, unless it asks for certificates.");
}

std::string CertificatesText(const daemon::SetupResult& made, const std::string& authority_out) {
  const bool is_etcd_open = made.config.serve_metadata.empty() && made.config.tls_ca.empty();
  return fmt::format(
      "Mount it here first. Then, for every other host: cairnfs cluster token, which gives what that host needs for\n"
      "                     cairnfs cluster join {} --token TOKEN\n"
      "                     cairnfs mount\n"
      "Nodes know each other by certificates. {} signs them: whoever reads it can make himself a node.\n{}{}",
      made.join_address, admission::Credentials::FolderOf(made.config.data) + "/issuer.pem",
      authority_out.empty() ? "" : fmt::format("Keep {} offline: the key of the cluster's authority.\n", authority_out),
      is_etcd_open
          ? "Whoever reaches that etcd reads and changes all names, unless it asks for certificates (--tls-ca).\n"
          : "");
}

// "-" stands for a line of the standard input.
Result<std::string> TokenOf(const std::string& text) {
  if (text != "-") return text;
  std::string line;
  if (std::getline(std::cin, line) && !line.empty()) return line;
  return InvalidArgument("there is no token on the standard input");
}

}  // namespace

int RunClusterInit(const ClusterInitCommand& command) {
  daemon::SetupOptions options;
  auto made = Init(command, options);
  if (!made.ok()) return Fail(made.error());
  Print(
      fmt::format("made filesystem {}; {} is written\nmount it here:       {}\n{}", made->filesystem, options.file,
                  MountWords(options),
                  made->config.HasCertificates() ? CertificatesText(*made, command.authority_out) : TrustText(*made)));
  return daemon::kExitDone;
}

int RunClusterJoin(const ClusterJoinCommand& command) {
  auto options = OptionsOf(command.host);
  if (!options.ok()) return Fail(options.error());
  auto token = TokenOf(command.token);
  if (!token.ok()) return Fail(token.error());
  auto joined = daemon::JoinCluster(*options, command.address, *token);
  if (!joined.ok()) return Fail(joined.error());
  Print(fmt::format("filesystem {}; {} is written, this host listens on {}\nmount it: {}\n", joined->filesystem,
                    options->file, joined->config.listen, MountWords(*options)));
  return daemon::kExitDone;
}

int RunClusterToken(const Target& target, const std::string& life, bool json) {
  auto life_ms = daemon::ParseDurationMs(life);
  if (!life_ms.ok()) return Fail(life_ms.error().WithContext("--life"));
  auto located = LocateDaemon(target);
  if (!located.ok()) return Fail(located.error());
  auto made = located->client.MakeToken(std::chrono::seconds(*life_ms / 1000));
  if (!made.ok()) return Fail(made.error());
  Print(json ? TokenJson(*made) : made->token() + "\n");
  if (!json) {
    std::cerr << fmt::format("good once, for {}: cairnfs cluster join {} --token TOKEN\n", life, made->address());
  }
  return daemon::kExitDone;
}

int RunClusterIssuer(const ClusterIssuerCommand& command) {
  const std::string data = command.data.empty() ? daemon::kDefaultData : command.data;
  const std::string folder = admission::Credentials::FolderOf(data);
  const Status made = admission::Credentials::AddIssuer(folder, command.authority, Clock::WallTime());
  if (!made.ok()) return Fail(made.error());
  Print(fmt::format(
      "{}/issuer.pem is made. Set serve_join = \"IP:PORT\" in the configuration of this host, and mount it anew: from "
      "then on hosts join by it.\nTake {} offline again.\n",
      folder, command.authority));
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

int RunNodeDrain(const NodeDrainCommand& command) {
  auto located = LocateDaemon(command.target);
  if (!located.ok()) return Fail(located.error());
  control::DrainNodeRequest request;
  request.set_node(command.node);
  request.set_cancel(command.cancel);
  auto node = located->client.DrainNode(request);
  if (!node.ok()) return Fail(node.error());
  if (!command.cancel && !command.no_wait) {
    if (const Status drained = AwaitDrained(located->client, *node, command.json); !drained.ok()) {
      return Fail(drained.error());
    }
  }
  const char* what = command.cancel ? "cancelled" : command.no_wait ? "draining" : "drained";
  if (command.json) {
    Print(NodeJson(*node, what));
  } else if (!command.cancel && !command.no_wait) {
    Print(fmt::format("{0} has nothing any more: unmount it there, then call cairnfs node remove {0}\n",
                      Printable(node->name())));
  }
  return daemon::kExitDone;
}

int RunNodeRemove(const NodeRemoveCommand& command) {
  auto located = LocateDaemon(command.target);
  if (!located.ok()) return Fail(located.error());
  control::RemoveNodeRequest request;
  request.set_node(command.node);
  request.set_lost(command.lost);
  auto removed = located->client.RemoveNode(request);
  if (!removed.ok()) return Fail(removed.error());
  if (command.json) Print(NodeJson(*removed, "removed"));
  return daemon::kExitDone;
}

int RunNodeReplace(const NodeReplaceCommand& command) {
  auto located = LocateDaemon(command.target);
  if (!located.ok()) return Fail(located.error());
  control::ReplaceNodeRequest request;
  request.set_node(command.node);
  request.set_lost(command.lost);
  request.set_take_name(command.take_name);
  auto replaced = located->client.ReplaceNode(request);
  if (!replaced.ok()) return Fail(replaced.error());
  Print(command.json
            ? NodeJson(*replaced, "replaced")
            : fmt::format("this node has the place of {} ({}); cairnfs cluster status tells how far repair is\n",
                          Printable(replaced->name()), replaced->id()));
  return daemon::kExitDone;
}

int RunClusterWait(const ClusterWaitCommand& command) {
  auto located = LocateDaemon(command.target);
  if (!located.ok()) return Fail(located.error());
  const auto timeout_ms = daemon::ParseDurationMs(command.timeout);
  if (!timeout_ms.ok()) return Fail(timeout_ms.error().WithContext("--timeout"));
  const auto deadline = Clock::Now() + std::chrono::milliseconds(*timeout_ms);
  ProgressLine line(true);
  for (;;) {
    auto report = located->client.GetCluster();
    if (!report.ok()) return Fail(report.error());
    const auto up = static_cast<uint64_t>(std::ranges::count(report->nodes(), "up", &control::Node::state));
    if (up >= command.nodes) return daemon::kExitDone;
    const std::string text = fmt::format("{} of {} nodes are up", up, command.nodes);
    if (Clock::Now() >= deadline) {
      return Fail(MakeError(ErrorCode::kUnavailable, fmt::format("after {} {}", command.timeout, text)));
    }
    line.Show(text);
    Clock::SleepFor(kLookEvery);
  }
}

}  // namespace cairnfs::tools
