#include "control/convert.h"

namespace cairnfs::control {

void ToMessage(const StatusReport& report, StatusReply& reply) {
  reply.set_version(report.daemon.version);
  reply.set_data(report.daemon.data);
  reply.set_mount_point(report.daemon.mount_point);
  reply.set_uuid(report.daemon.uuid);
  reply.set_pid(report.daemon.pid);
  reply.set_log(report.daemon.log);
  reply.set_uptime_seconds(report.uptime_seconds);
  reply.set_last_error(report.fs.last_error);
  reply.set_failing(report.fs.failing);

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
  activity.set_collecting(report.fs.collecting);
  activity.set_write_bytes_per_second(report.write_bytes_per_second);
  activity.set_read_bytes_per_second(report.read_bytes_per_second);
}

StatusReport FromMessage(const StatusReply& reply) {
  StatusReport report;
  report.daemon = {reply.version(), reply.data(), reply.mount_point(), reply.uuid(), reply.log(), reply.pid()};
  report.uptime_seconds = reply.uptime_seconds();
  report.available_bytes = reply.space().available_bytes();
  report.metadata_bytes = reply.space().metadata_bytes();
  const Activity& activity = reply.activity();
  report.write_bytes_per_second = activity.write_bytes_per_second();
  report.read_bytes_per_second = activity.read_bytes_per_second();

  fs::FsStatus& fs = report.fs;
  fs.logical_bytes = reply.space().logical_bytes();
  fs.inode_count = reply.space().inode_count();
  fs.dirty_bytes = activity.dirty_bytes();
  fs.open_files = activity.open_files();
  fs.write_bytes_total = activity.write_bytes_total();
  fs.read_bytes_total = activity.read_bytes_total();
  fs.sync_rounds_total = activity.sync_rounds_total();
  fs.sync_points_total = activity.sync_points_total();
  fs.pool_buffers = activity.pool_buffers();
  fs.pool_buffers_free = activity.pool_buffers_free();
  fs.collecting = activity.collecting();
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
  report.damaged_files.assign(reply.damaged_files().begin(), reply.damaged_files().end());
  report.damaged_file_count = reply.damaged_file_count();
  return report;
}

}  // namespace cairnfs::control
