#include "output.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/user.h"
#include "daemon/size_text.h"
#include "json_text.h"

namespace cairnfs::tools {
namespace {

using daemon::FormatSize;

// For a host alone: in a cluster the files are those of all hosts, and the chunks those of this one.
double DedupRatio(const control::StatusReport& report) {
  const bool is_counted_now = report.live && report.live->counted_seconds_ago == 0;
  const uint64_t unique = is_counted_now ? report.live->totals.live_bytes : report.fs.store.unique_bytes;
  return unique == 0 ? 1.0 : static_cast<double>(report.fs.logical_bytes) / static_cast<double>(unique);
}

std::string WrittenText(const control::StatusReport& report) {
  const store::StoreStats& store = report.fs.store;
  const std::string written = FormatSize(report.fs.write_bytes_total);
  if (!report.cluster) {
    return fmt::format("{} written ({} stored anew, {} known)", written, FormatSize(store.new_bytes_total),
                       FormatSize(store.known_bytes_total));
  }
  const cluster::ClusterChunkStats& chunks = report.cluster->chunks;
  return fmt::format("{} written ({} new to the cluster, {} known)", written,
                     FormatSize(chunks.new_in_cluster_bytes_total), FormatSize(chunks.known_in_cluster_bytes_total));
}

std::string LiveText(const std::optional<control::LiveReport>& live) {
  if (!live) return "not counted yet (--exact counts)";
  const store::LiveTotals& totals = live->totals;
  const std::string when = live->counted_seconds_ago == 0
                               ? "counted now"
                               : fmt::format("counted {} s ago; --exact counts now", live->counted_seconds_ago);
  return fmt::format("{} in {} chunks that files need; dead, until collected: {} in {} ({})",
                     FormatSize(totals.live_bytes), totals.live_chunks, FormatSize(totals.unreferenced_bytes),
                     totals.unreferenced_chunks, when);
}

std::string RoomForNamesText(uint64_t bytes) {
  if (bytes == 0) return "full: the metadata has no room for more names and attributes (status --metadata: whose)";
  return fmt::format("room for {} more of names and attributes", FormatSize(bytes));
}

std::string OwnerText(const fs::MetadataOwner& owner) {
  return fmt::format("{}: {} in {} inodes ({} of it attributes)", UserName(owner.uid), FormatSize(owner.bytes),
                     owner.inode_count, FormatSize(owner.xattr_bytes));
}

nlohmann::ordered_json OwnerObject(const fs::MetadataOwner& owner) {
  return {{"uid", owner.uid},
          {"bytes", owner.bytes},
          {"xattr_bytes", owner.xattr_bytes},
          {"inode_count", owner.inode_count}};
}

nlohmann::ordered_json ClusterObject(const control::ClusterActivityReport& report) {
  const cluster::ClusterChunkStats& chunks = report.chunks;
  return {{"nodes_up", report.nodes_up},
          {"nodes_down", report.nodes_down},
          {"nodes_out", report.nodes_out},
          {"session_holds", report.session_holds},
          {"copies", report.replicas.copies},
          {"min_replicas", report.replicas.min_replicas},
          {"metadata_reads_total", report.names.read_total},
          {"metadata_commits_total", report.names.commits_total},
          {"metadata_answers_total", report.names.answered_total},
          {"delegations", report.names.held},
          {"delegations_recalled_total", report.names.recalled_total},
          {"sent_bytes_total", chunks.sent_bytes_total},
          {"received_bytes_total", chunks.received_bytes_total},
          {"wire_sent_bytes_total", chunks.wire_sent_bytes_total},
          {"wire_received_bytes_total", chunks.wire_received_bytes_total},
          {"new_in_cluster_bytes_total", chunks.new_in_cluster_bytes_total},
          {"known_in_cluster_bytes_total", chunks.known_in_cluster_bytes_total},
          {"remote_reads_total", chunks.remote_reads_total},
          {"remote_read_bytes_total", chunks.remote_read_bytes_total},
          {"unacknowledged_bytes", chunks.unacknowledged_bytes},
          {"missing_copies", chunks.missing_copies},
          {"repair_phase", chunks.repair_phase},
          {"repair_bytes_total", chunks.repair_bytes_total},
          {"repair_chunks_left", chunks.repair_chunks_left}};
}

nlohmann::ordered_json GcObject(const control::GcReport& report) {
  return {{"running", report.running},
          {"phase", report.phase},
          {"inodes_marked", report.inodes_marked},
          {"chunks_seen", report.chunks_seen},
          {"chunks_total", report.chunks_total},
          {"chunks_freed", report.chunks_freed},
          {"bytes_freed", report.bytes_freed},
          {"segments_compacted", report.segments_compacted},
          {"segments_freed", report.segments_freed},
          {"bytes_moved", report.bytes_moved}};
}

}  // namespace

void Print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string OneLine(const std::string& text) {
  std::string line;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  return line;
}

std::string StatusText(const control::StatusReport& report) {
  const store::StoreStats& store = report.fs.store;
  std::string text;
  auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("{:<14}{}\n", name, OneLine(value));
  };
  line("mount point", report.daemon.mount_point);
  line("data", report.daemon.data);
  line("daemon", fmt::format("cairnfsd {}, process {}, up {} s, log {}", report.daemon.version, report.daemon.pid,
                             report.uptime_seconds, report.daemon.log));
  line("dedup", report.daemon.dedup == "owner" ? "owner: each user's equal data is stored once"
                                               : "mount: equal data is stored once, whoever wrote it");
  line("logical", fmt::format("{} in {} inodes{}", FormatSize(report.fs.logical_bytes), report.fs.inode_count,
                              report.cluster ? ", of all hosts" : ""));
  line("unique", fmt::format("{} in {} chunks{}", FormatSize(store.unique_bytes), store.chunk_count,
                             report.cluster ? ", on this host" : ""));
  if (!report.cluster) line("live", LiveText(report.live));
  line("on disk", fmt::format("{} ({} of it metadata; {} wasted in segments; {} more kept for reuse)",
                              FormatSize(report.OnDiskBytes()), FormatSize(report.metadata_bytes),
                              FormatSize(store.dead_bytes), FormatSize(store.free_segment_bytes)));
  if (!report.cluster) line("dedup ratio", fmt::format("{:.2f}", DedupRatio(report)));
  line("available", FormatSize(report.available_bytes));
  if (report.fs.metadata_room_bytes) line("names", RoomForNamesText(*report.fs.metadata_room_bytes));
  for (const fs::MetadataOwner& owner : report.owners) line("metadata of", OwnerText(owner));
  line("not durable", FormatSize(report.fs.dirty_bytes));
  line("rates", fmt::format("{}/s written, {}/s read", FormatSize(static_cast<uint64_t>(report.write_bytes_per_second)),
                            FormatSize(static_cast<uint64_t>(report.read_bytes_per_second))));
  line("since start", fmt::format("{}, {} read", WrittenText(report), FormatSize(report.fs.read_bytes_total)));
  line("pool", fmt::format("{} of {} buffers free, {} in memory", report.fs.pool_buffers_free, report.fs.pool_buffers,
                           report.fs.pool_buffers_touched));
  line("open files", fmt::format("{}", report.fs.open_files));
  line("collecting", report.fs.collecting ? "yes" : (report.fs.collection_failed ? "no, the last one failed" : "no"));
  line("state", report.fs.failing ? "failing: nothing becomes durable" : "good");
  if (report.cluster) {
    const auto& cluster = *report.cluster;
    line("cluster", fmt::format("{} nodes up, {} down, {} out; session {}", cluster.nodes_up, cluster.nodes_down,
                                cluster.nodes_out, cluster.session_holds ? "good" : "not certain"));
    line("network", fmt::format("{} sent, {} received; {} lack copies yet; {} copies missing",
                                FormatSize(cluster.chunks.wire_sent_bytes_total),
                                FormatSize(cluster.chunks.wire_received_bytes_total),
                                FormatSize(cluster.chunks.unacknowledged_bytes), cluster.chunks.missing_copies));
    line("metadata",
         fmt::format("{} reads, {} transactions; {} answers from memory under {} delegations", cluster.names.read_total,
                     cluster.names.commits_total, cluster.names.answered_total, cluster.names.held));
  }
  for (const std::string& failure : report.failures) line("failure", failure);
  line("last error", report.fs.last_error.empty() ? "none" : report.fs.last_error);
  return text;
}

std::string StatusJson(const control::StatusReport& report) {
  const store::StoreStats& store = report.fs.store;
  nlohmann::ordered_json json = {
      {"version", report.daemon.version},
      {"mount_point", report.daemon.mount_point},
      {"data", report.daemon.data},
      {"uuid", report.daemon.uuid},
      {"pid", report.daemon.pid},
      {"log", report.daemon.log},
      {"dedup", report.daemon.dedup},
      {"uptime_seconds", report.uptime_seconds},
      {"logical_bytes", report.fs.logical_bytes},
      {"unique_bytes", store.unique_bytes},
      {"on_disk_bytes", report.OnDiskBytes()},
      {"metadata_bytes", report.metadata_bytes},
      {"free_segment_bytes", store.free_segment_bytes},
      {"dead_bytes", store.dead_bytes},
      {"available_bytes", report.available_bytes},
      {"inode_count", report.fs.inode_count},
      {"chunk_count", store.chunk_count},
      {"segment_count", store.segment_count},
      {"dirty_bytes", report.fs.dirty_bytes},
      {"open_files", report.fs.open_files},
      {"write_bytes_per_second", report.write_bytes_per_second},
      {"read_bytes_per_second", report.read_bytes_per_second},
      {"write_bytes_total", report.fs.write_bytes_total},
      {"read_bytes_total", report.fs.read_bytes_total},
      {"new_bytes_total", store.new_bytes_total},
      {"known_bytes_total", store.known_bytes_total},
      {"disk_read_bytes_total", store.disk_read_bytes_total},
      {"disk_write_bytes_total", store.disk_write_bytes_total},
      {"cache_hits_total", store.cache_hits_total},
      {"cache_misses_total", store.cache_misses_total},
      {"corrupt_chunks_total", store.corrupt_chunks_total},
      {"sync_rounds_total", report.fs.sync_rounds_total},
      {"sync_points_total", report.fs.sync_points_total},
      {"pool_buffers", report.fs.pool_buffers},
      {"pool_buffers_free", report.fs.pool_buffers_free},
      {"pool_buffers_touched", report.fs.pool_buffers_touched},
      {"collecting", report.fs.collecting},
      {"collection_failed", report.fs.collection_failed},
      {"failing", report.fs.failing},
      {"last_error", report.fs.last_error},
      {"failures", report.failures},
  };
  if (report.live) {
    json["live_bytes"] = report.live->totals.live_bytes;
    json["live_chunk_count"] = report.live->totals.live_chunks;
    json["unreferenced_bytes"] = report.live->totals.unreferenced_bytes;
    json["unreferenced_chunk_count"] = report.live->totals.unreferenced_chunks;
    json["counted_seconds_ago"] = report.live->counted_seconds_ago;
  }
  if (report.fs.metadata_room_bytes) json["metadata_room_bytes"] = *report.fs.metadata_room_bytes;
  for (const fs::MetadataOwner& owner : report.owners) json["metadata_owners"].push_back(OwnerObject(owner));
  if (report.cluster) {
    json["cluster"] = ClusterObject(*report.cluster);
  } else {
    json["dedup_ratio"] = DedupRatio(report);
  }
  return JsonText(json);
}

std::string GcLine(const control::GcReport& report) {
  return fmt::format("{}: {} inodes marked, {} of {} chunks seen, {} freed ({}), {} moved", report.phase,
                     report.inodes_marked, report.chunks_seen, report.chunks_total, report.chunks_freed,
                     FormatSize(report.bytes_freed), FormatSize(report.bytes_moved));
}

std::string GcText(const control::GcReport& report) {
  return fmt::format("collected: {} chunks freed ({}), {} segments compacted ({} moved), {} segments freed\n",
                     report.chunks_freed, FormatSize(report.bytes_freed), report.segments_compacted,
                     FormatSize(report.bytes_moved), report.segments_freed);
}

std::string GcJson(const control::GcReport& report) { return JsonText(GcObject(report)); }

std::string CheckText(const control::CheckReport& report, const std::optional<std::string>& last_end) {
  std::string text;
  for (const std::string& problem : report.problems) text += "problem: " + OneLine(problem) + "\n";
  if (report.problem_count > report.problems.size()) {
    text += fmt::format("... and {} more\n", report.problem_count - report.problems.size());
  }
  for (const std::string& repaired : report.repaired) text += "repaired: " + OneLine(repaired) + "\n";
  if (report.repaired_count > report.repaired.size()) {
    text += fmt::format("... and {} more repaired\n", report.repaired_count - report.repaired.size());
  }
  for (const std::string& path : report.damaged_files) text += "damaged: " + OneLine(path) + "\n";
  if (report.damaged_file_count > report.damaged_files.size()) {
    text += fmt::format("... and {} more files\n", report.damaged_file_count - report.damaged_files.size());
  }
  if (last_end && !last_end->empty()) {
    text += fmt::format("not closed cleanly (\"{}\"): what no sync point covered may be lost\n", OneLine(*last_end));
  }
  text += fmt::format("{} files, {} directories, {} chunks ({}) read: {}{}\n", report.files, report.directories,
                      report.chunks, FormatSize(report.bytes),
                      report.problem_count == 0 ? "clean" : fmt::format("{} problems", report.problem_count),
                      report.repaired_count == 0 ? "" : fmt::format(", {} repaired", report.repaired_count));
  return text;
}

std::string CheckJson(const control::CheckReport& report, const std::optional<std::string>& last_end) {
  nlohmann::ordered_json json = {
      {"clean", report.problem_count == 0},
      {"files", report.files},
      {"directories", report.directories},
      {"chunks", report.chunks},
      {"bytes", report.bytes},
      {"problem_count", report.problem_count},
      {"problems", report.problems},
      {"repaired_count", report.repaired_count},
      {"repaired", report.repaired},
      {"damaged_file_count", report.damaged_file_count},
      {"damaged_files", report.damaged_files},
  };
  if (last_end) {
    json["closed_cleanly"] = last_end->empty();
    json["last_end"] = *last_end;
  }
  return JsonText(json);
}

}  // namespace cairnfs::tools
