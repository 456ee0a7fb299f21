#include "control/convert.h"

#include <sys/stat.h>

#include <algorithm>

namespace cairnfs::control {
namespace {

void ToMessage(const store::StoreStats& store, Space& space, Activity& activity) {
  space.set_unique_bytes(store.unique_bytes);
  space.set_on_disk_bytes(store.segment_bytes - std::min(store.segment_bytes, store.free_segment_bytes));
  space.set_free_segment_bytes(store.free_segment_bytes);
  space.set_dead_bytes(store.dead_bytes);
  space.set_chunk_count(store.chunk_count);
  space.set_segment_count(store.segment_count);
  activity.set_new_bytes_total(store.new_bytes_total);
  activity.set_known_bytes_total(store.known_bytes_total);
  activity.set_disk_read_bytes_total(store.disk_read_bytes_total);
  activity.set_disk_write_bytes_total(store.disk_write_bytes_total);
  activity.set_cache_hits_total(store.cache_hits_total);
  activity.set_cache_misses_total(store.cache_misses_total);
  activity.set_corrupt_chunks_total(store.corrupt_chunks_total);
}

void ToMessage(const fs::Durations& durations, Durations& message) {
  for (size_t i = 0; i < durations.counts.size(); ++i) {
    Bucket& bucket = *message.add_buckets();
    bucket.set_seconds_max(fs::Durations::kBounds.at(i));
    bucket.set_count(durations.counts.at(i));
  }
  message.set_count(durations.count);
  message.set_sum_seconds(durations.sum_seconds);
}

}  // namespace

void ToMessage(const fs::RunReport& run, Run& message) {
  message.set_directory(run.directory);
  ToMessage(run.write, *message.mutable_write_seconds());
  ToMessage(run.wait, *message.mutable_wait_seconds());
  ToMessage(run.commit, *message.mutable_commit_seconds());
  ToMessage(run.training, *message.mutable_training_seconds());
  message.set_written_bytes_total(run.written_bytes);
  message.set_new_bytes_total(run.new_bytes);
  if (run.checkpoint_age_seconds) message.set_checkpoint_age_seconds(*run.checkpoint_age_seconds);
  if (run.checkpoint_step) message.set_checkpoint_step(*run.checkpoint_step);
}

void ToMessage(const fs::FsStatus& status, StatusReply& reply) {
  reply.set_failing(status.failing);
  reply.set_last_error(status.last_error);
  if (status.stop) {
    reply.mutable_stop()->set_waits_for(status.stop->waits_for);
    reply.mutable_stop()->set_seconds_left_max(static_cast<uint64_t>(status.stop->left_max.count()));
  }
  Space& space = *reply.mutable_space();
  Activity& activity = *reply.mutable_activity();
  ToMessage(status.store, space, activity);
  space.set_logical_bytes(status.logical_bytes);
  space.set_inode_count(status.inode_count);
  space.set_trash_entries(status.trash_entries);
  space.set_trash_bytes(status.trash_bytes);
  if (status.metadata_room_bytes) space.set_metadata_room_bytes(*status.metadata_room_bytes);
  if (status.live) {
    Live& live = *space.mutable_live();
    live.set_live_bytes(status.live->totals.live_bytes);
    live.set_live_chunk_count(status.live->totals.live_chunks);
    live.set_unreferenced_bytes(status.live->totals.unreferenced_bytes);
    live.set_unreferenced_chunk_count(status.live->totals.unreferenced_chunks);
  }
  activity.set_dirty_bytes(status.dirty_bytes);
  activity.set_open_files(status.open_files);
  activity.set_write_bytes_total(status.write_bytes_total);
  activity.set_read_bytes_total(status.read_bytes_total);
  activity.set_sync_rounds_total(status.sync_rounds_total);
  activity.set_sync_points_total(status.sync_points_total);
  activity.set_pool_buffers(status.pool_buffers);
  activity.set_pool_buffers_free(status.pool_buffers_free);
  activity.set_pool_buffers_touched(status.pool_buffers_touched);
  activity.set_collecting(status.collecting);
  activity.set_collection_failed(status.collection_failed);
  Passthrough& passthrough = *activity.mutable_passthrough();
  passthrough.set_why_not(status.passthrough.why_not);
  passthrough.set_files(status.passthrough.files);
  passthrough.set_bytes(status.passthrough.bytes);
  passthrough.set_opens_total(status.passthrough.opens_total);
  passthrough.set_fills_total(status.passthrough.filled_total);
  passthrough.set_fills_failed_total(status.passthrough.failed_total);
}

void ToMessage(const fs::Unsaved& unsaved, Unsaved& message) {
  message.set_file_count(unsaved.file_count);
  message.set_bytes(unsaved.bytes);
  message.set_names(unsaved.has_names);
  for (const fs::UnsavedFile& file : unsaved.files) {
    UnsavedFile& told = *message.add_files();
    told.set_path(file.path);
    told.set_bytes(file.bytes);
  }
}

void ToMessage(const fs::MetadataOwner& owner, MetadataOwner& message) {
  message.set_uid(owner.uid);
  message.set_bytes(owner.bytes);
  message.set_xattr_bytes(owner.xattr_bytes);
  message.set_inode_count(owner.inode_count);
}

void ToMessage(const fs::CollectionStatus& status, GcProgress& progress) {
  progress.set_running(status.running);
  progress.set_phase(status.phase);
  progress.set_inodes_marked(status.inodes_marked);
  progress.set_chunks_seen(status.chunks_seen);
  progress.set_chunks_total(status.chunks_total);
  progress.set_chunks_freed(status.chunks_freed);
  progress.set_bytes_freed(status.bytes_freed);
  progress.set_segments_compacted(status.segments_compacted);
  progress.set_segments_freed(status.segments_freed);
  progress.set_bytes_moved(status.bytes_moved);
  progress.set_inodes_total(status.inodes_total);
}

void ToMessage(const fs::CheckProgress& at, CheckProgress& progress) {
  progress.set_phase(at.phase);
  progress.set_bytes_done(at.bytes_done);
  progress.set_bytes_total(at.bytes_total);
}

void ToMessage(const fs::CheckReport& report, CheckReply& reply) {
  reply.set_files(report.files);
  reply.set_directories(report.directories);
  reply.set_chunks(report.chunks);
  reply.set_bytes(report.bytes);
  reply.mutable_problems()->Assign(report.problems.begin(), report.problems.end());
  reply.set_problem_count(report.problem_count);
  reply.mutable_repaired()->Assign(report.repaired.begin(), report.repaired.end());
  reply.set_repaired_count(report.repaired_count);
  reply.mutable_damaged_files()->Assign(report.damaged_files.begin(), report.damaged_files.end());
  reply.set_damaged_file_count(report.damaged_file_count);
}

static const char* TypeName(uint32_t type) {
  if (type == S_IFREG) return "file";
  if (type == S_IFDIR) return "directory";
  return type == S_IFLNK ? "symlink" : "special";
}

void ToMessage(const fs::TrashItem& item, TrashEntry& message) {
  const meta::TrashRecord& record = item.entry.record;
  message.set_id(item.entry.parts.inode.value);
  message.set_parent(record.parent.value);
  message.set_path(item.path);
  message.set_type(TypeName(record.type));
  message.set_owner(record.owner);
  message.set_removed_by(record.removed_by);
  message.set_by_retention(record.by_retention);
  message.set_removed_seconds(meta::TimeOfTrashKey(item.entry.parts).seconds);
  message.set_expires_seconds(record.expires.seconds);
  message.set_files(record.files);
  message.set_bytes(record.bytes);
}

void ToMessage(const GateCall& call, CommitArrival& arrival) {
  arrival.set_directory(call.directory.value);
  arrival.set_final_parent(call.final_parent.value);
  arrival.set_final_name(call.final_name);
  arrival.set_ranks(call.ranks);
  if (call.rank) arrival.set_rank(*call.rank);
  arrival.set_id(call.id);
  arrival.set_timeout_ms(static_cast<uint64_t>(call.timeout.count()));
  arrival.set_at_least(call.at_least);
  for (const std::string& requirement : call.required) arrival.add_required(requirement);
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
  call.at_least = arrival.at_least();
  call.required.assign(arrival.required().begin(), arrival.required().end());
  return call;
}

}  // namespace cairnfs::control
