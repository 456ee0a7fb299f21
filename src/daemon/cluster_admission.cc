#include "daemon/cluster_admission.h"

#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/cluster_settings.h"
#include "daemon/joining.h"
#include "kvnet/store_address.h"

namespace cairnfs::daemon {
namespace {

constexpr auto kLookInterval = std::chrono::minutes(1);
constexpr auto kAskTime = std::chrono::seconds(10);
constexpr auto kWarnInterval = std::chrono::hours(1);

}  // namespace

Result<std::unique_ptr<admission::Credentials>> OpenCredentials(const DataDirectory& directory, const Config& config) {
  if (!config.HasCertificates()) return std::unique_ptr<admission::Credentials>();
  const std::string folder = admission::Credentials::FolderOf(directory.path());
  auto opened = admission::Credentials::Open(folder, directory.uuid(), Clock::WallTime());
  if (opened.ok() || opened.error().code != ErrorCode::kNotFound) return opened;
  return InvalidArgument(fmt::format(
      "this host has no certificate in {}: make the cluster with cairnfs cluster init, or join it with cairnfs cluster "
      "join ADDRESS --token TOKEN; if the cluster has none, set trusted_network ({})",
      folder, opened.error().message));
}

Result<std::unique_ptr<ClusterAdmission>> ClusterAdmission::Start(const Parts& parts) {
  auto started = std::unique_ptr<ClusterAdmission>(new ClusterAdmission(parts));
  if (!parts.config.serve_join.empty()) CAIRNFS_RETURN_IF_ERROR(started->OpenPort());
  started->thread_ =
      std::jthread([admission = started.get()](const std::stop_token& stop) { admission->LookAfter(Context(stop)); });
  return started;
}

ClusterAdmission::~ClusterAdmission() = default;

Status ClusterAdmission::OpenPort() {
  if (!parts_.credentials.Issues()) {
    return InvalidArgument(
        "serve_join is set, but this host has no issuer.pem to sign certificates with: leave serve_join out, or copy "
        "DATA/tls/issuer.pem from the host that made the cluster");
  }
  admission::JoinPort::Cluster cluster;
  cluster.welcome = [this] { return Welcome(); };
  cluster.admit = [this](const admission::JoinRequest& request, admission::Identity identity) {
    return Admit(request, identity);
  };
  auto opened = admission::JoinPort::Start(parts_.config.serve_join, parts_.credentials, tokens_, std::move(cluster));
  if (!opened.ok()) return opened.error().WithContext("serve_join");
  port_ = *std::move(opened);
  spdlog::info("hosts with a token may join at {}", port_->address());
  return {};
}

Result<ClusterAdmission::GivenToken> ClusterAdmission::MakeToken(std::chrono::seconds life) {
  if (port_ == nullptr) {
    return InvalidArgument(
        "no host joins the cluster by this one: ask the host that made the cluster, or one whose configuration has "
        "serve_join");
  }
  CAIRNFS_ASSIGN_OR_RETURN(const admission::Fingerprint authority,
                           admission::FingerprintOf(parts_.credentials.authority()));
  CAIRNFS_ASSIGN_OR_RETURN(const admission::Token token, tokens_.Make(authority, life));
  return GivenToken{token.Text(), port_->address()};
}

Result<admission::JoinWelcome> ClusterAdmission::Welcome() const {
  CAIRNFS_ASSIGN_OR_RETURN(const StoredSettings stored, ReadSettings({}, parts_.store));
  // Whoever joins is to believe this host alone, where it serves the names.
  const bool is_here = parts_.config.metadata.empty();
  const std::string metadata =
      is_here ? kvnet::StoreAddress::TextOfNode(parts_.config.serve_metadata, parts_.membership.self().ToHex())
              : parts_.config.metadata;
  return admission::JoinWelcome{parts_.filesystem, metadata, stored.settings.Encode()};
}

Status ClusterAdmission::Admit(const admission::JoinRequest& request, admission::Identity identity) {
  if (request.name.size() > cluster::kMemberTextBytesMax || request.address.size() > cluster::kMemberTextBytesMax) {
    return InvalidArgument(
        fmt::format("a node's name and address have {} bytes at most", cluster::kMemberTextBytesMax));
  }
  CAIRNFS_RETURN_IF_ERROR(CheckAddressIsFree(parts_.store, request.address, request.node, parts_.config.lease_ms));
  return NoteJoined(parts_.store, request.node, {request.name, request.address, "", 0}, identity);
}

void ClusterAdmission::LookAfter(const Context& context) {
  std::optional<Clock::time_point> warned_at;
  do {
    const Status good = LookOnce(context);
    if (good.ok() || context.IsStopped() || (warned_at && Clock::Now() - *warned_at < kWarnInterval)) continue;
    warned_at = Clock::Now();
    spdlog::error("{}", good.error().message);
  } while (context.Sleep(kLookInterval));
}

Status ClusterAdmission::LookOnce(const Context& context) {
  const Timestamp now = Clock::WallTime();
  if (parts_.credentials.IsRenewalDue(now)) {
    if (Status renewed = Renew(context); !renewed.ok()) {
      const int64_t left = parts_.credentials.validity().end.seconds - now.seconds;
      return renewed.error().WithContext(
          fmt::format("this node's certificate ends in {} days and cannot be renewed", left / (24 * 3600)));
    }
    spdlog::info("this node's certificate was renewed");
  }
  // New connections use the files as they are: somebody may have exchanged or opened them.
  const Status good = parts_.credentials.CheckFiles(now);
  return good.ok() ? good : Status(good.error().WithContext("other nodes will refuse this one, and it them"));
}

Status ClusterAdmission::Renew(const Context& context) {
  const Timestamp now = Clock::WallTime();
  return parts_.credentials.Renew(
      [&](const std::string& request) -> Result<std::string> {
        return parts_.credentials.Issues() ? parts_.credentials.Signing(now)(request) : AskOthers(context, request);
      },
      now);
}

Result<std::string> ClusterAdmission::AskOthers(const Context& context, const std::string& request) {
  Error last = MakeError(ErrorCode::kUnavailable, "no other node is up");
  const cluster::ViewPtr view = parts_.membership.view();
  for (const cluster::NodeInfo& node : view->nodes) {
    if (node.state != cluster::NodeState::kUp || node.id == parts_.membership.self()) continue;
    auto chain = parts_.peers.RequestCertificate(context.WithTimeout(kAskTime), node.id, request);
    if (chain.ok()) return chain;
    const bool tells_more = chain.error().code != ErrorCode::kNotSupported;
    if (tells_more || last.code == ErrorCode::kUnavailable) last = chain.error().WithContext(node.name);
  }
  return last;
}

}  // namespace cairnfs::daemon
