#include "output.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>

#include "base/printable.h"
#include "base/result.h"
#include "base/user.h"
#include "base/utc_text.h"
#include "daemon/size_text.h"
#include "json_text.h"
#include "meta/refused_commit.h"
#include "progress.h"
#include "quota_command.h"

namespace cairnfs::tools {
namespace {

using daemon::FormatSize;

std::atomic<bool> has_output_failed = false;

constexpr int kFailuresTold = 16;  // to people
constexpr int kCausesTold = 16;    // of one

// Of a host alone: in a cluster the files are those of all hosts, and the chunks those of this one.
double DedupRatio(const control::Space& space) {
  const bool is_counted_now = space.has_live() && space.live().counted_seconds_ago() == 0;
  const uint64_t unique = is_counted_now ? space.live().live_bytes() : space.unique_bytes();
  return unique == 0 ? 1.0 : static_cast<double>(space.logical_bytes()) / static_cast<double>(unique);
}

std::string WrittenText(const control::StatusReply& status) {
  const control::Activity& activity = status.activity();
  const std::string written = FormatSize(activity.write_bytes_total());
  if (!status.has_cluster()) {
    return fmt::format("{} written ({} stored anew, {} known)", written, FormatSize(activity.new_bytes_total()),
                       FormatSize(activity.known_bytes_total()));
  }
  const control::ClusterActivity& cluster = status.cluster();
  return fmt::format("{} written ({} new to the cluster, {} known)", written,
                     FormatSize(cluster.new_in_cluster_bytes_total()),
                     FormatSize(cluster.known_in_cluster_bytes_total()));
}

std::string LiveText(const control::Space& space) {
  if (!space.has_live()) return "not counted yet (--exact counts)";
  const control::Live& live = space.live();
  const std::string when = live.counted_seconds_ago() == 0
                               ? "counted now"
                               : fmt::format("counted {} s ago; --exact counts now", live.counted_seconds_ago());
  return fmt::format("{} in {} chunks that files need; dead, until collected: {} in {} ({})",
                     FormatSize(live.live_bytes()), live.live_chunk_count(), FormatSize(live.unreferenced_bytes()),
                     live.unreferenced_chunk_count(), when);
}

std::string RoomForNamesText(uint64_t bytes) {
  if (bytes == 0) return "full: the metadata has no room for more names and attributes (status --metadata: whose)";
  return fmt::format("room for {} more of names and attributes", FormatSize(bytes));
}

std::string OwnerText(const control::MetadataOwner& owner) {
  return fmt::format("{}: {} in {} inodes ({} of it attributes)", UserName(owner.uid()), FormatSize(owner.bytes()),
                     owner.inode_count(), FormatSize(owner.xattr_bytes()));
}

// A line of a table.
std::string Line(std::string_view name, const std::string& value) {
  return fmt::format("{:<14}{}\n", name, Printable(value));
}

std::string SpaceText(const control::StatusReply& status) {
  const control::Space& space = status.space();
  const bool is_alone = !status.has_cluster();
  std::string text = Line("logical", fmt::format("{} in {} inodes{}", FormatSize(space.logical_bytes()),
                                                 space.inode_count(), is_alone ? "" : ", of all hosts"));
  text += Line("unique", fmt::format("{} in {} chunks{}", FormatSize(space.unique_bytes()), space.chunk_count(),
                                     is_alone ? "" : ", on this host"));
  text += Line("live", LiveText(space));
  text += Line("on disk", fmt::format("{} ({} of it metadata; {} wasted in segments; {} more kept for reuse)",
                                      FormatSize(space.on_disk_bytes()), FormatSize(space.metadata_bytes()),
                                      FormatSize(space.dead_bytes()), FormatSize(space.free_segment_bytes())));
  if (is_alone) text += Line("dedup ratio", fmt::format("{:.2f}", DedupRatio(space)));
  text += Line("available", FormatSize(space.available_bytes()));
  if (space.trash_entries() > 0) {
    text += Line("trash", fmt::format("{} in {} {}, which counts as free", FormatSize(space.trash_bytes()),
                                      space.trash_entries(), space.trash_entries() == 1 ? "entry" : "entries"));
  }
  if (space.has_metadata_room_bytes()) text += Line("names", RoomForNamesText(space.metadata_room_bytes()));
  return text;
}

std::string PassthroughText(const control::Passthrough& passthrough) {
  if (!passthrough.why_not().empty()) return fmt::format("no: {}", passthrough.why_not());
  return fmt::format("{} {} in memory, {}; {} opens, {} fills, {} that failed", passthrough.files(),
                     passthrough.files() == 1 ? "file" : "files", FormatSize(passthrough.bytes()),
                     passthrough.opens_total(), passthrough.fills_total(), passthrough.fills_failed_total());
}

std::string ActivityText(const control::StatusReply& status) {
  const control::Activity& activity = status.activity();
  std::string text = Line("not durable", FormatSize(activity.dirty_bytes()));
  text += Line("rates", fmt::format("{}/s written, {}/s read",
                                    FormatSize(static_cast<uint64_t>(activity.write_bytes_per_second())),
                                    FormatSize(static_cast<uint64_t>(activity.read_bytes_per_second()))));
  text += Line("since start", fmt::format("{}, {} read", WrittenText(status), FormatSize(activity.read_bytes_total())));
  text += Line("pool", fmt::format("{} of {} buffers free, {} in memory", activity.pool_buffers_free(),
                                   activity.pool_buffers(), activity.pool_buffers_touched()));
  text += Line("passthrough", PassthroughText(activity.passthrough()));
  text += Line("open files", fmt::format("{}", activity.open_files()));
  text += Line("collecting",
               activity.collecting() ? "yes" : (activity.collection_failed() ? "no, the last one failed" : "no"));
  return text;
}

std::string ClusterActivityText(const control::ClusterActivity& cluster) {
  return Line("cluster",
              fmt::format("{} nodes up, {} down, {} out; session {}", cluster.nodes_up(), cluster.nodes_down(),
                          cluster.nodes_out(), cluster.session_holds() ? "good" : "not certain")) +
         Line("network",
              fmt::format("{} sent, {} received; {} lack copies yet; {} copies missing",
                          FormatSize(cluster.wire_sent_bytes_total()), FormatSize(cluster.wire_received_bytes_total()),
                          FormatSize(cluster.unacknowledged_bytes()), cluster.missing_copies())) +
         Line("metadata", fmt::format("{} reads, {} transactions; {} answers from memory under {} delegations",
                                      cluster.metadata_reads_total(), cluster.metadata_commits_total(),
                                      cluster.metadata_answers_total(), cluster.delegations()));
}

// The first thousand of `count`, each on a line.
std::string ListText(std::string_view what, const google::protobuf::RepeatedPtrField<std::string>& list, uint64_t count,
                     std::string_view more) {
  std::string text;
  for (const std::string& each : list) text += fmt::format("{}: {}\n", what, Printable(each));
  const auto listed = static_cast<uint64_t>(list.size());
  if (count > listed) text += fmt::format("... and {} more{}\n", count - listed, more);
  return text;
}

std::string StopText(const control::Stop& stop) {
  if (stop.waits_for().empty()) return "unmounted, and makes everything durable";
  return fmt::format("unmounted, and waits for copies, for {} s at most: {}", stop.seconds_left_max(),
                     Printable(stop.waits_for()));
}

// "2026-11-21 20:41:25 UTC: DIRECTORY was not renamed on HOST: 'FILE': host HOST: WHY; ..."
std::string FailureText(const control::RefusedCommit& failure) {
  std::string text = UtcText({static_cast<int64_t>(failure.at()), 0}) + ": " + failure.directory() + " was not renamed";
  if (!failure.host().empty()) text += " on " + failure.host();
  const int told = std::min(failure.causes_size(), kCausesTold);
  for (int i = 0; i < told; ++i) {
    const auto& cause = failure.causes(i);
    text += (i == 0 ? ": " : "; ") + meta::RefusalCause{cause.file(), cause.host(), cause.cause()}.Sentence();
  }
  const uint64_t more = failure.left_out() + static_cast<uint64_t>(failure.causes_size() - told);
  return more == 0 ? text : text + fmt::format("; and {} more", more);
}

}  // namespace

void Print(const std::string& text) {
  const bool is_written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (is_written) return;
  const Error error = ErrnoError(errno, "cannot write the output");
  if (!has_output_failed.exchange(true)) fmt::print(stderr, "cairnfs: {}\n", error.message);
}

bool HasOutputFailed() { return has_output_failed; }

std::string StatusText(const control::StatusReply& status) {
  std::string text = Line("mount point", status.mount_point());
  text += Line("data", status.data());
  text += Line("daemon", fmt::format("cairnfsd {}, process {}, up {} s, log {}", status.version(), status.pid(),
                                     status.uptime_seconds(), status.log()));
  text += Line("dedup", status.dedup() == "owner" ? "owner: each user's equal data is stored once"
                                                  : "mount: equal data is stored once, whoever wrote it");
  text += SpaceText(status);
  for (const control::MetadataOwner& owner : status.metadata_owners()) text += Line("metadata of", OwnerText(owner));
  if (status.has_quota()) text += Line("quota", QuotaText(status.quota()));
  text += ActivityText(status);
  text += Line("state", status.failing() ? "failing: nothing becomes durable" : "good");
  if (status.has_stop()) text += Line("stop", StopText(status.stop()));
  if (status.has_cluster()) text += ClusterActivityText(status.cluster());
  const int told = std::min(status.failures_size(), kFailuresTold);
  for (int i = 0; i < told; ++i) text += Line("failure", FailureText(status.failures(i)));
  if (const int more = status.failures_size() - told; more > 0) {
    text += Line("failure", fmt::format("and {} earlier ones (--json)", more));
  }
  return text + Line("last error", status.last_error().empty() ? "none" : status.last_error());
}

std::string StatusLine(std::string_view name, const std::string& value) { return Line(name, value); }

nlohmann::ordered_json StatusJson(const control::StatusReply& status) {
  nlohmann::ordered_json json = FieldsOf(status);
  if (status.metadata_owners().empty()) json.erase("metadata_owners");
  if (!status.has_cluster()) json["dedup_ratio"] = DedupRatio(status.space());
  return json;
}

std::string GcLine(const control::GcProgress& progress, const control::GcProgress& first, Clock::duration elapsed) {
  if (progress.phase() == "mark") {
    const uint64_t marked = progress.inodes_marked(), before = first.inodes_marked();
    if (progress.inodes_total() <= marked) return fmt::format("mark: {} inodes; the sweep follows", marked);
    return fmt::format("mark: {} of about {} inodes{}; the sweep follows", marked, progress.inodes_total(),
                       LeftText(marked - before, progress.inodes_total() - before, elapsed));
  }
  if (progress.phase() == "sweep") {
    const uint64_t seen = progress.chunks_seen(), chunks = progress.chunks_total(), before = first.chunks_seen();
    return fmt::format("sweep: {} of {} chunks{}; {} freed ({}), {} moved", seen, chunks,
                       LeftText(seen - before, chunks - std::min(before, chunks), elapsed), progress.chunks_freed(),
                       FormatSize(progress.bytes_freed()), FormatSize(progress.bytes_moved()));
  }
  return progress.phase();
}

std::string GcText(const control::GcProgress& progress) {
  return fmt::format("collected: {} chunks freed ({}), {} segments compacted ({} moved), {} segments freed\n",
                     progress.chunks_freed(), FormatSize(progress.bytes_freed()), progress.segments_compacted(),
                     FormatSize(progress.bytes_moved()), progress.segments_freed());
}

std::string GcJson(const control::GcProgress& progress) { return JsonText(FieldsOf(progress)); }

std::string CheckText(const control::CheckReply& reply, const std::optional<std::string>& last_end) {
  std::string text = ListText("problem", reply.problems(), reply.problem_count(), "");
  text += ListText("repaired", reply.repaired(), reply.repaired_count(), " repaired");
  text += ListText("damaged", reply.damaged_files(), reply.damaged_file_count(), " files");
  if (last_end && !last_end->empty()) {
    text += fmt::format("not closed cleanly (\"{}\"): what no sync point covered may be lost\n", Printable(*last_end));
  }
  text += fmt::format("{} files, {} directories, {} chunks ({}) read: {}{}\n", reply.files(), reply.directories(),
                      reply.chunks(), FormatSize(reply.bytes()),
                      reply.problem_count() == 0 ? "clean" : fmt::format("{} problems", reply.problem_count()),
                      reply.repaired_count() == 0 ? "" : fmt::format(", {} repaired", reply.repaired_count()));
  return text;
}

std::string CheckJson(const control::CheckReply& reply, const std::optional<std::string>& last_end) {
  nlohmann::ordered_json json = {{"clean", reply.problem_count() == 0}};
  json.update(FieldsOf(reply));
  if (last_end) {
    json["closed_cleanly"] = last_end->empty();
    json["last_end"] = *last_end;
  }
  return JsonText(json);
}

}  // namespace cairnfs::tools
