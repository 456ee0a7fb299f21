// Reports of a cluster's host: its own activity, and the space and usage of all nodes.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cluster/epochs.h"
#include "cluster/records.h"
#include "daemon/cluster_config.h"
#include "daemon/cluster_volume.h"

namespace cairnfs::daemon {
namespace {

constexpr auto kSpaceReadEvery = std::chrono::seconds(2);
constexpr auto kUsageWaitMax = std::chrono::seconds(5);
constexpr const char* kOutText = "out";
constexpr const char* kJoinedText = "joined";

uint64_t WallClockSeconds() { return static_cast<uint64_t>(Clock::WallTime().seconds); }

const char* StateName(cluster::NodeState state) {
  switch (state) {
    case cluster::NodeState::kUp: return "up";
    case cluster::NodeState::kDown: return "down";
    case cluster::NodeState::kOut: break;
  }
  return kOutText;
}

}  // namespace

fs::FileSystem::Parts::Space SpaceOf(const control::ClusterReply& report) {
  fs::FileSystem::Parts::Space space;
  for (const control::Node& node : report.nodes()) {
    if (!node.has_usage()) {
      space.has_silent_nodes = space.has_silent_nodes || (node.state() != kOutText && node.state() != kJoinedText);
      continue;
    }
    space.missing_copies += node.usage().missing_copies();
    const uint64_t available = node.weight() > 0 ? node.usage().available_bytes() : 0;
    space.available_bytes += available;
    space.total_bytes += node.usage().stored_bytes() + available;
  }
  const uint64_t copies = std::max<uint32_t>(1, report.copies());
  space.total_bytes /= copies;
  space.available_bytes /= copies;
  return space;
}

NodeUsage ClusterVolume::OwnUsage() const {
  const store::StoreStats store = storage_->chunks().Stats();
  const cluster::ClusterChunkStats chunks = chunks_->ClusterStats();
  NodeUsage usage;
  usage.told.set_total_bytes(directory_.DiskBytes());
  usage.told.set_available_bytes(store.available_bytes);
  usage.told.set_stored_bytes(store.unique_bytes);
  usage.told.set_missing_copies(chunks.missing_copies);
  usage.told.set_unacknowledged_bytes(chunks.unacknowledged_bytes);
  usage.told.set_repair_phase(chunks.repair_phase);
  usage.told.set_repair_chunks_left(chunks.repair_chunks_left);
  usage.session_began_seconds = SessionBegan();
  return usage;
}

std::optional<cluster::StoredBytes> ClusterVolume::ReadStoredBytes(const Context& context) const {
  if (!membership_->session().ok()) return std::nullopt;
  const auto usages = ReadUsage(context.WithTimeout(kUsageWaitMax), *fenced_);
  if (!usages.ok()) return std::nullopt;
  cluster::StoredBytes stored;
  for (const auto& [node, usage] : *usages) stored[node] = usage.told.stored_bytes();
  return stored;
}

// For df: the space that all nodes tell, no newer than they tell it.
std::optional<fs::FileSystem::Parts::Space> ClusterVolume::SpaceOfAll() {
  const auto now = Clock::Now();
  {
    MutexLock lock(space_mutex_);
    if (space_ && now - space_read_at_ < kSpaceReadEvery) return space_;
  }
  // Without a session nobody can save; what was known last is told at once.
  std::optional<fs::FileSystem::Parts::Space> space;
  if (membership_->session().ok()) {
    const control::ClusterReply report = ReportNodes({});
    if (report.session().empty()) space = SpaceOf(report);
  }
  MutexLock lock(space_mutex_);
  if (space) {
    space_ = space;
    space_read_at_ = now;
  }
  return space_;
}

// This node knows at once of copies that its own commits left out. What other nodes know is some seconds old.
bool ClusterVolume::LacksCopies() {
  const cluster::ClusterChunkStats own = chunks_->ClusterStats();
  if (own.missing_copies > 0 || !own.knows_missing_copies) return true;
  const auto all = SpaceOfAll();
  return !all || all->has_silent_nodes || all->missing_copies > 0;
}

// When the session of this moment was first seen here.
uint64_t ClusterVolume::SessionBegan() const {
  auto session = membership_->session();
  MutexLock lock(session_mutex_);
  if (session.ok() && session->revision != session_revision_) {
    session_revision_ = session->revision;
    session_began_seconds_ = WallClockSeconds();
  }
  return session_began_seconds_;
}

control::ClusterActivity ClusterVolume::Activity() const {
  control::ClusterActivity activity;
  const cluster::ClusterChunkStats chunks = chunks_->ClusterStats();
  activity.set_sent_bytes_total(chunks.sent_bytes_total);
  activity.set_received_bytes_total(chunks.received_bytes_total);
  activity.set_wire_sent_bytes_total(chunks.wire_sent_bytes_total);
  activity.set_wire_received_bytes_total(chunks.wire_received_bytes_total);
  activity.set_new_in_cluster_bytes_total(chunks.new_in_cluster_bytes_total);
  activity.set_known_in_cluster_bytes_total(chunks.known_in_cluster_bytes_total);
  activity.set_remote_reads_total(chunks.remote_reads_total);
  activity.set_remote_read_bytes_total(chunks.remote_read_bytes_total);
  activity.set_unacknowledged_bytes(chunks.unacknowledged_bytes);
  activity.set_missing_copies(chunks.missing_copies);
  activity.set_repair_phase(chunks.repair_phase);
  activity.set_repair_bytes_total(chunks.repair_bytes_total);
  activity.set_repair_chunks_left(chunks.repair_chunks_left);
  const coherence::DelegationStats names = delegated_->Stats();
  activity.set_metadata_reads_total(names.read_total);
  activity.set_metadata_commits_total(names.commits_total);
  activity.set_metadata_answers_total(names.answered_total);
  activity.set_delegations(names.held);
  activity.set_delegations_recalled_total(names.recalled_total);
  activity.set_session_holds(membership_->LeaseHolds());
  activity.set_refused_total(peer_service_->refused_total() + cluster_store_->refused_total() +
                             (admission_ == nullptr ? 0 : admission_->refused_total()));
  if (credentials_ != nullptr) {
    const int64_t left = credentials_->validity().end.seconds - Clock::WallTime().seconds;
    activity.set_certificate_seconds_left(static_cast<uint64_t>(std::max<int64_t>(left, 0)));
  }
  activity.set_copies(static_cast<uint32_t>(config_.copies));
  activity.set_min_replicas(min_replicas_);
  const auto view = membership_->view();
  const auto count = [&](cluster::NodeState state) {
    return static_cast<uint64_t>(std::ranges::count(view->nodes, state, &cluster::NodeInfo::state));
  };
  activity.set_nodes_up(count(cluster::NodeState::kUp));
  activity.set_nodes_down(count(cluster::NodeState::kDown));
  activity.set_nodes_out(count(cluster::NodeState::kOut));
  return activity;
}

static void ToMessage(const cluster::CollectionPart& part, uint64_t now_seconds, control::NodeCollection& message) {
  using Phase = cluster::CollectionPart::Phase;
  switch (part.phase) {
    case Phase::kRecording: message.set_phase("recording"); break;
    case Phase::kBegun: message.set_phase("begun"); break;
    case Phase::kDone: message.set_phase("done"); break;
    case Phase::kFailed: message.set_phase("failed"); break;
  }
  message.set_chunks_freed(part.chunks_freed);
  message.set_bytes_freed(part.bytes_freed);
  if (part.has_ended()) message.set_ended_seconds_ago(now_seconds - std::min(now_seconds, part.ended_seconds));
  message.set_error(part.error);
}

// What the store alone knows of the nodes.
struct NodesInStore {
  std::map<cluster::NodeId, NodeUsage> usages;
  cluster::EpochState epochs;
  std::vector<cluster::NodeInfo> joined;
};

static Result<NodesInStore> ReadNodesInStore(const Context& context, kv::KvStore& store,
                                             cluster::Membership& membership) {
  if (auto session = membership.session(); !session.ok())
    return session.error();  // without one the store may not answer for long
  NodesInStore nodes;
  CAIRNFS_ASSIGN_OR_RETURN(nodes.usages, ReadUsage(context, store));
  CAIRNFS_ASSIGN_OR_RETURN(nodes.epochs, cluster::Epochs(store, membership).Read(context));
  CAIRNFS_ASSIGN_OR_RETURN(nodes.joined, cluster::ReadJoined(context, store));
  return nodes;
}

Result<control::ClusterReply> ClusterVolume::Report(const Context& context) {
  control::ClusterReply report = ReportNodes(context);
  if (auto names = names_operations_->Report(context)) *report.mutable_names() = *std::move(names);
  return report;
}

// Where the store does not answer, the host tells what it saw last, and why.
control::ClusterReply ClusterVolume::ReportNodes(const Context& context) {
  control::ClusterReply report;
  report.set_filesystem(filesystem_);
  report.set_metadata(MetadataUrl(config_));
  report.set_copies(static_cast<uint32_t>(config_.copies));
  report.set_min_replicas(min_replicas_);
  auto read = ReadNodesInStore(context, *fenced_, *membership_);
  if (!read.ok()) report.set_session(read.error().message);
  auto [usages, epochs, joined] = read.ok() ? *std::move(read) : NodesInStore();
  report.set_collection_held_up(epochs.hold.value_or(""));
  // Its own usage is that of this moment, with the rates that it has told last.
  NodeUsage own = OwnUsage();
  control::UsageMessage& told = usages[membership_->self()].told;
  own.told.set_repair_bytes_per_second(told.repair_bytes_per_second());
  own.told.set_repair_chunks_per_second(told.repair_chunks_per_second());
  usages[membership_->self()] = std::move(own);
  const cluster::ViewPtr view = membership_->view();
  std::vector<cluster::NodeInfo> nodes = view->nodes;
  std::ranges::copy_if(joined, std::back_inserter(nodes),
                       [&](const auto& one) { return view->Find(one.id) == nullptr; });
  std::ranges::sort(nodes, [](const cluster::NodeInfo& a, const cluster::NodeInfo& b) {
    const int order = strverscmp(a.name.c_str(), b.name.c_str());  // host2 before host10
    return order != 0 ? order < 0 : a.id < b.id;
  });
  const uint64_t now = WallClockSeconds();
  for (const cluster::NodeInfo& info : nodes) {
    control::Node& node = *report.add_nodes();
    node.set_id(info.id.ToHex());
    node.set_name(info.name);
    node.set_address(info.address);
    node.set_domain(info.domain);
    node.set_weight(info.weight);
    node.set_state(view->Find(info.id) != nullptr ? StateName(info.state) : kJoinedText);
    node.set_full(info.full);
    if (info.is_drained()) node.set_drain(info.is_empty ? "drained" : "draining");
    node.set_is_self(info.id == membership_->self());
    if (const auto part = epochs.parts.find(info.id); part != epochs.parts.end()) {
      ToMessage(part->second, now, *node.mutable_collection());
    }
    const auto usage = usages.find(info.id);
    if (info.state != cluster::NodeState::kUp || usage == usages.end()) continue;
    *node.mutable_usage() = usage->second.told;
    node.mutable_usage()->set_session_age_seconds(now - std::min(now, usage->second.session_began_seconds));
  }
  return report;
}

}  // namespace cairnfs::daemon
