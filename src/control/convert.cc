#include "control/convert.h"

#include <array>
#include <utility>

namespace cairnfs::control {
namespace {

void ToMessage(const ClusterActivityReport& report, ClusterActivity& activity) {
  const cluster::ClusterChunkStats& chunks = report.chunks;
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
  activity.set_repair_bytes_total(chunks.repair_bytes_total);
  activity.set_repair_chunks_left(chunks.repair_chunks_left);
  activity.set_repair_phase(chunks.repair_phase);
  activity.set_nodes_up(report.nodes_up);
  activity.set_nodes_down(report.nodes_down);
  activity.set_nodes_out(report.nodes_out);
  activity.set_session_holds(report.session_holds);
  activity.set_copies(report.replicas.copies);
  activity.set_min_replicas(report.replicas.min_replicas);
  activity.set_metadata_reads_total(report.names.read_total);
  activity.set_metadata_commits_total(report.names.commits_total);
  activity.set_metadata_answers_total(report.names.answered_total);
  activity.set_delegations(report.names.held);
  activity.set_delegations_recalled_total(report.names.recalled_total);
}

ClusterActivityReport FromMessage(const ClusterActivity& activity) {
  ClusterActivityReport report;
  cluster::ClusterChunkStats& chunks = report.chunks;
  chunks.sent_bytes_total = activity.sent_bytes_total();
  chunks.received_bytes_total = activity.received_bytes_total();
  chunks.wire_sent_bytes_total = activity.wire_sent_bytes_total();
  chunks.wire_received_bytes_total = activity.wire_received_bytes_total();
  chunks.new_in_cluster_bytes_total = activity.new_in_cluster_bytes_total();
  chunks.known_in_cluster_bytes_total = activity.known_in_cluster_bytes_total();
  chunks.remote_reads_total = activity.remote_reads_total();
  chunks.remote_read_bytes_total = activity.remote_read_bytes_total();
  chunks.unacknowledged_bytes = activity.unacknowledged_bytes();
  chunks.missing_copies = activity.missing_copies();
  chunks.repair_bytes_total = activity.repair_bytes_total();
  chunks.repair_chunks_left = activity.repair_chunks_left();
  chunks.repair_phase = activity.repair_phase();
  report.nodes_up = activity.nodes_up();
  report.nodes_down = activity.nodes_down();
  report.nodes_out = activity.nodes_out();
  report.session_holds = activity.session_holds();
  report.replicas = {activity.copies(), activity.min_replicas()};
  report.names.read_total = activity.metadata_reads_total();
  report.names.commits_total = activity.metadata_commits_total();
  report.names.answered_total = activity.metadata_answers_total();
  report.names.held = activity.delegations();
  report.names.recalled_total = activity.delegations_recalled_total();
  return report;
}

constexpr std::array<std::pair<cluster::NodeState, const char*>, 3> kStates = {{
    {cluster::NodeState::kUp, "up"},
    {cluster::NodeState::kDown, "down"},
    {cluster::NodeState::kOut, "out"},
}};

cluster::NodeState StateOf(const std::string& name) {
  for (const auto& [state, text] : kStates) {
    if (text == name) return state;
  }
  return cluster::NodeState::kDown;
}

void ToMessage(const NodeUsage& usage, UsageMessage& message) {
  message.set_session_age_seconds(usage.session_age_seconds);
  message.set_total_bytes(usage.total_bytes);
  message.set_available_bytes(usage.available_bytes);
  message.set_stored_bytes(usage.stored_bytes);
  message.set_missing_copies(usage.missing_copies);
  message.set_unacknowledged_bytes(usage.unacknowledged_bytes);
  message.set_repair_phase(usage.repair_phase);
  message.set_repair_chunks_left(usage.repair_chunks_left);
  message.set_repair_bytes_per_second(usage.repair_bytes_per_second);
  message.set_repair_chunks_per_second(usage.repair_chunks_per_second);
}

NodeUsage FromMessage(const UsageMessage& message) {
  NodeUsage usage;
  usage.session_age_seconds = message.session_age_seconds();
  usage.total_bytes = message.total_bytes();
  usage.available_bytes = message.available_bytes();
  usage.stored_bytes = message.stored_bytes();
  usage.missing_copies = message.missing_copies();
  usage.unacknowledged_bytes = message.unacknowledged_bytes();
  usage.repair_phase = message.repair_phase();
  usage.repair_chunks_left = message.repair_chunks_left();
  usage.repair_bytes_per_second = message.repair_bytes_per_second();
  usage.repair_chunks_per_second = message.repair_chunks_per_second();
  return usage;
}

}  // namespace

void ToMessage(const StatusReport& report, StatusReply& reply) {
  reply.set_version(report.daemon.version);
  reply.set_data(report.daemon.data);
  reply.set_mount_point(report.daemon.mount_point);
  reply.set_uuid(report.daemon.uuid);
  reply.set_pid(report.daemon.pid);
  reply.set_log(report.daemon.log);
  reply.set_dedup(report.daemon.dedup);
  reply.set_uptime_seconds(report.uptime_seconds);
  reply.set_last_error(report.fs.last_error);
  reply.set_failing(report.fs.failing);
  if (report.cluster) ToMessage(*report.cluster, *reply.mutable_cluster());
  for (const std::string& failure : report.failures) reply.add_failures(failure);
  for (const fs::MetadataOwner& owner : report.owners) {
    MetadataOwner& message = *reply.add_metadata_owners();
    message.set_uid(owner.uid);
    message.set_bytes(owner.bytes);
    message.set_xattr_bytes(owner.xattr_bytes);
    message.set_inode_count(owner.inode_count);
  }

  const store::StoreStats& store = report.fs.store;
  Space& space = *reply.mutable_space();
  space.set_logical_bytes(report.fs.logical_bytes);
  space.set_unique_bytes(store.unique_bytes);
  space.set_on_disk_bytes(report.OnDiskBytes());
  space.set_free_segment_bytes(store.free_segment_bytes);
  space.set_dead_bytes(store.dead_bytes);
  space.set_available_bytes(report.available_bytes);
  space.set_inode_count(report.fs.inode_count);
  space.set_chunk_count(store.chunk_count);
  space.set_segment_count(store.segment_count);
  space.set_metadata_bytes(report.metadata_bytes);
  if (report.live) {
    Live& live = *space.mutable_live();
    live.set_live_bytes(report.live->totals.live_bytes);
    live.set_live_chunk_count(report.live->totals.live_chunks);
    live.set_unreferenced_bytes(report.live->totals.unreferenced_bytes);
    live.set_unreferenced_chunk_count(report.live->totals.unreferenced_chunks);
    live.set_counted_seconds_ago(report.live->counted_seconds_ago);
  }
  if (report.fs.metadata_room_bytes) space.set_metadata_room_bytes(*report.fs.metadata_room_bytes);

  Activity& activity = *reply.mutable_activity();
  activity.set_dirty_bytes(report.fs.dirty_bytes);
  activity.set_open_files(report.fs.open_files);
  activity.set_write_bytes_total(report.fs.write_bytes_total);
  activity.set_read_bytes_total(report.fs.read_bytes_total);
  activity.set_new_bytes_total(store.new_bytes_total);
  activity.set_known_bytes_total(store.known_bytes_total);
  activity.set_disk_read_bytes_total(store.disk_read_bytes_total);
  activity.set_disk_write_bytes_total(store.disk_write_bytes_total);
  activity.set_cache_hits_total(store.cache_hits_total);
  activity.set_cache_misses_total(store.cache_misses_total);
  activity.set_corrupt_chunks_total(store.corrupt_chunks_total);
  activity.set_sync_rounds_total(report.fs.sync_rounds_total);
  activity.set_sync_points_total(report.fs.sync_points_total);
  activity.set_pool_buffers(report.fs.pool_buffers);
  activity.set_pool_buffers_free(report.fs.pool_buffers_free);
  activity.set_pool_buffers_touched(report.fs.pool_buffers_touched);
  activity.set_collecting(report.fs.collecting);
  activity.set_collection_failed(report.fs.collection_failed);
  activity.set_write_bytes_per_second(report.write_bytes_per_second);
  activity.set_read_bytes_per_second(report.read_bytes_per_second);
}

const char* StateName(cluster::NodeState state) {
  for (const auto& [value, text] : kStates) {
    if (value == state) return text;
  }
  return "down";
}

StatusReport FromMessage(const StatusReply& reply) {
  StatusReport report;
  report.daemon = {reply.version(), reply.data(), reply.mount_point(), reply.uuid(),
                   reply.log(),     reply.pid(),  reply.dedup()};
  report.uptime_seconds = reply.uptime_seconds();
  report.available_bytes = reply.space().available_bytes();
  report.metadata_bytes = reply.space().metadata_bytes();
  if (reply.space().has_live()) {
    const Live& live = reply.space().live();
    report.live = {
        {live.live_chunk_count(), live.live_bytes(), live.unreferenced_chunk_count(), live.unreferenced_bytes()},
        live.counted_seconds_ago()};
  }
  const Activity& activity = reply.activity();
  report.write_bytes_per_second = activity.write_bytes_per_second();
  report.read_bytes_per_second = activity.read_bytes_per_second();

  if (reply.has_cluster()) report.cluster = FromMessage(reply.cluster());
  report.failures.assign(reply.failures().begin(), reply.failures().end());
  for (const MetadataOwner& owner : reply.metadata_owners()) {
    report.owners.push_back({owner.uid(), owner.bytes(), owner.xattr_bytes(), owner.inode_count()});
  }

  fs::FsStatus& fs = report.fs;
  fs.logical_bytes = reply.space().logical_bytes();
  fs.inode_count = reply.space().inode_count();
  if (reply.space().has_metadata_room_bytes()) fs.metadata_room_bytes = reply.space().metadata_room_bytes();
  fs.dirty_bytes = activity.dirty_bytes();
  fs.open_files = activity.open_files();
  fs.write_bytes_total = activity.write_bytes_total();
  fs.read_bytes_total = activity.read_bytes_total();
  fs.sync_rounds_total = activity.sync_rounds_total();
  fs.sync_points_total = activity.sync_points_total();
  fs.pool_buffers = activity.pool_buffers();
  fs.pool_buffers_free = activity.pool_buffers_free();
  fs.pool_buffers_touched = activity.pool_buffers_touched();
  fs.collecting = activity.collecting();
  fs.collection_failed = activity.collection_failed();
  fs.last_error = reply.last_error();
  fs.failing = reply.failing();

  store::StoreStats& store = fs.store;
  store.chunk_count = reply.space().chunk_count();
  store.unique_bytes = reply.space().unique_bytes();
  store.segment_count = reply.space().segment_count();
  store.free_segment_bytes = reply.space().free_segment_bytes();
  store.segment_bytes = reply.space().on_disk_bytes() - reply.space().metadata_bytes() + store.free_segment_bytes;
  store.dead_bytes = reply.space().dead_bytes();
  store.new_bytes_total = activity.new_bytes_total();
  store.known_bytes_total = activity.known_bytes_total();
  store.disk_read_bytes_total = activity.disk_read_bytes_total();
  store.disk_write_bytes_total = activity.disk_write_bytes_total();
  store.cache_hits_total = activity.cache_hits_total();
  store.cache_misses_total = activity.cache_misses_total();
  store.corrupt_chunks_total = activity.corrupt_chunks_total();
  return report;
}

void ToMessage(const ClusterReport& report, ClusterReply& reply) {
  reply.set_filesystem(report.filesystem);
  reply.set_metadata(report.metadata);
  reply.set_copies(report.replicas.copies);
  reply.set_min_replicas(report.replicas.min_replicas);
  reply.set_session(report.session);
  for (const NodeReport& node : report.nodes) {
    Node& message = *reply.add_nodes();
    message.set_id(node.info.id.ToHex());
    message.set_name(node.info.name);
    message.set_address(node.info.address);
    message.set_domain(node.info.domain);
    message.set_weight(node.info.weight);
    message.set_state(StateName(node.info.state));
    message.set_full(node.info.full);
    message.set_is_self(node.is_self);
    if (node.usage) ToMessage(*node.usage, *message.mutable_usage());
  }
}

ClusterReport FromMessage(const ClusterReply& reply) {
  ClusterReport report;
  report.filesystem = reply.filesystem();
  report.metadata = reply.metadata();
  report.replicas = {reply.copies(), reply.min_replicas()};
  report.session = reply.session();
  for (const Node& message : reply.nodes()) {
    NodeReport node;
    node.info.id = cluster::NodeId::FromHex(message.id()).value_or(cluster::NodeId());
    node.info.name = message.name();
    node.info.address = message.address();
    node.info.domain = message.domain();
    node.info.weight = message.weight();
    node.info.state = StateOf(message.state());
    node.info.full = message.full();
    node.is_self = message.is_self();
    if (message.has_usage()) node.usage = FromMessage(message.usage());
    report.nodes.push_back(std::move(node));
  }
  return report;
}

void ToMessage(const GateCall& call, CommitArrival& arrival) {
  arrival.set_directory(call.directory.value);
  arrival.set_final_parent(call.final_parent.value);
  arrival.set_final_name(call.final_name);
  arrival.set_ranks(call.ranks);
  if (call.rank) arrival.set_rank(*call.rank);
  arrival.set_id(call.id);
  arrival.set_timeout_ms(static_cast<uint64_t>(call.timeout.count()));
}

GateCall FromMessage(const CommitArrival& arrival) {
  GateCall call;
  call.directory.value = arrival.directory();
  call.final_parent.value = arrival.final_parent();
  call.final_name = arrival.final_name();
  call.ranks = arrival.ranks();
  if (arrival.has_rank()) call.rank = arrival.rank();
  call.id = arrival.id();
  call.timeout = std::chrono::milliseconds(arrival.timeout_ms());
  return call;
}

void ToMessage(const GcReport& report, GcProgress& progress) {
  progress.set_running(report.running);
  progress.set_phase(report.phase);
  progress.set_inodes_marked(report.inodes_marked);
  progress.set_chunks_seen(report.chunks_seen);
  progress.set_chunks_total(report.chunks_total);
  progress.set_chunks_freed(report.chunks_freed);
  progress.set_bytes_freed(report.bytes_freed);
  progress.set_segments_compacted(report.segments_compacted);
  progress.set_segments_freed(report.segments_freed);
  progress.set_bytes_moved(report.bytes_moved);
}

GcReport FromMessage(const GcProgress& progress) {
  GcReport report;
  report.running = progress.running();
  report.phase = progress.phase();
  report.inodes_marked = progress.inodes_marked();
  report.chunks_seen = progress.chunks_seen();
  report.chunks_total = progress.chunks_total();
  report.chunks_freed = progress.chunks_freed();
  report.bytes_freed = progress.bytes_freed();
  report.segments_compacted = progress.segments_compacted();
  report.segments_freed = progress.segments_freed();
  report.bytes_moved = progress.bytes_moved();
  return report;
}

void ToMessage(const CheckReport& report, CheckReply& reply) {
  reply.set_files(report.files);
  reply.set_directories(report.directories);
  reply.set_chunks(report.chunks);
  reply.set_bytes(report.bytes);
  for (const std::string& problem : report.problems) reply.add_problems(problem);
  reply.set_problem_count(report.problem_count);
  for (const std::string& repaired : report.repaired) reply.add_repaired(repaired);
  reply.set_repaired_count(report.repaired_count);
  for (const std::string& path : report.damaged_files) reply.add_damaged_files(path);
  reply.set_damaged_file_count(report.damaged_file_count);
}

CheckReport FromMessage(const CheckReply& reply) {
  CheckReport report;
  report.files = reply.files();
  report.directories = reply.directories();
  report.chunks = reply.chunks();
  report.bytes = reply.bytes();
  report.problems.assign(reply.problems().begin(), reply.problems().end());
  report.problem_count = reply.problem_count();
  report.repaired.assign(reply.repaired().begin(), reply.repaired().end());
  report.repaired_count = reply.repaired_count();
  report.damaged_files.assign(reply.damaged_files().begin(), reply.damaged_files().end());
  report.damaged_file_count = reply.damaged_file_count();
  return report;
}

}  // namespace cairnfs::control
