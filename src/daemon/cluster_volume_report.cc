// Reports of a cluster's host: its own activity, and the space and usage of all nodes.
#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "daemon/cluster_config.h"
#include "daemon/cluster_volume.h"

namespace cairnfs::daemon {
namespace {

constexpr auto kSpaceReadEvery = std::chrono::seconds(2);

// The usage of this moment, with the rates that were worked out last.
control::NodeUsage Newer(control::NodeUsage now, const std::optional<control::NodeUsage>& told) {
  if (!told) return now;
  now.repair_bytes_per_second = told->repair_bytes_per_second;
  now.repair_chunks_per_second = told->repair_chunks_per_second;
  return now;
}

uint64_t WallClockSeconds() {
  auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

}  // namespace

fs::FileSystem::Parts::Space SpaceOf(const control::ClusterReport& report) {
  fs::FileSystem::Parts::Space space;
  for (const control::NodeReport& node : report.nodes) {
    if (!node.usage) {
      space.has_silent_nodes = space.has_silent_nodes || node.info.state != cluster::NodeState::kOut;
      continue;
    }
    space.missing_copies += node.usage->missing_copies;
    const uint64_t available = node.info.weight > 0 ? node.usage->available_bytes : 0;
    space.available_bytes += available;
    space.total_bytes += node.usage->stored_bytes + available;
  }
  const uint64_t copies = std::max<uint32_t>(1, report.replicas.copies);
  space.total_bytes /= copies;
  space.available_bytes /= copies;
  return space;
}

control::NodeUsage ClusterVolume::OwnUsage() const {
  const store::StoreStats store = storage_->chunks().Stats();
  const cluster::ClusterChunkStats chunks = chunks_->ClusterStats();
  control::NodeUsage usage;
  usage.total_bytes = directory_.DiskBytes();
  usage.available_bytes = store.available_bytes;
  usage.stored_bytes = store.unique_bytes;
  usage.missing_copies = chunks.missing_copies;
  usage.unacknowledged_bytes = chunks.unacknowledged_bytes;
  usage.repair_phase = chunks.repair_phase;
  usage.repair_chunks_left = chunks.repair_chunks_left;
  usage.session_began_seconds = SessionBegan();
  return usage;
}

// For df: the space that all nodes tell, no newer than they tell it.
std::optional<fs::FileSystem::Parts::Space> ClusterVolume::SpaceOfAll() {
  const auto now = std::chrono::steady_clock::now();
  {
    MutexLock lock(space_mutex_);
    if (space_ && now - space_read_at_ < kSpaceReadEvery) return space_;
  }
  // Without a session nobody can save; what was known last is told at once.
  std::optional<fs::FileSystem::Parts::Space> space;
  if (membership_->session().ok()) {
    auto report = Report();
    if (report.ok()) space = SpaceOf(*report);
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

control::ClusterActivityReport ClusterVolume::Activity() const {
  control::ClusterActivityReport report;
  report.chunks = chunks_->ClusterStats();
  report.names = delegated_->Stats();
  report.replicas = Replicas();
  report.session_holds = membership_->LeaseHolds();
  const auto view = membership_->view();
  for (const cluster::NodeInfo& node : view->nodes) {
    report.nodes_up += node.state == cluster::NodeState::kUp ? 1 : 0;
    report.nodes_down += node.state == cluster::NodeState::kDown ? 1 : 0;
    report.nodes_out += node.state == cluster::NodeState::kOut ? 1 : 0;
  }
  return report;
}

Result<control::ClusterReport> ClusterVolume::Report() {
  control::ClusterReport report;
  report.filesystem = filesystem_;
  report.metadata = MetadataUrl(config_);
  report.replicas = Replicas();
  if (auto session = membership_->session(); !session.ok()) report.session = session.error().message;
  // Without its session the host tells what it saw last, since the store may not answer for long.
  std::map<cluster::NodeId, control::NodeUsage> usages;
  if (report.session.empty()) {
    CAIRNFS_ASSIGN_OR_RETURN(usages, ReadUsage(*fenced_));
  }
  const auto view = membership_->view();
  const uint64_t now = WallClockSeconds();
  for (const cluster::NodeInfo& info : view->nodes) {
    control::NodeReport node;
    node.info = info;
    node.is_self = info.id == membership_->self();
    if (auto usage = usages.find(info.id); usage != usages.end()) node.usage = usage->second;
    if (node.is_self) node.usage = Newer(OwnUsage(), node.usage);
    if (info.state != cluster::NodeState::kUp) node.usage.reset();
    if (node.usage) node.usage->session_age_seconds = now - std::min(now, node.usage->session_began_seconds);
    report.nodes.push_back(std::move(node));
  }
  return report;
}

}  // namespace cairnfs::daemon
