#include "cluster_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "daemon/size_text.h"
#include "json_text.h"
#include "output.h"

namespace cairnfs::tools {
namespace {

using daemon::FormatSize;

constexpr size_t kColumns = 9;
using Row = std::array<std::string, kColumns>;

// Of all nodes together.
struct Repair {
  uint64_t missing_copies = 0, unacknowledged_bytes = 0, chunks_left = 0;
  double bytes_per_second = 0, chunks_per_second = 0;
  std::string phase;
  // Seconds until nothing is left, at the rate of the last seconds; negative: not known.
  double SecondsLeft() const {
    if (chunks_left == 0) return 0;
    return chunks_per_second > 0 ? static_cast<double>(chunks_left) / chunks_per_second : -1;
  }
};

Repair Sum(const control::ClusterReport& report) {
  Repair sum;
  for (const control::NodeReport& node : report.nodes) {
    if (!node.usage) continue;
    sum.missing_copies += node.usage->missing_copies;
    sum.unacknowledged_bytes += node.usage->unacknowledged_bytes;
    sum.chunks_left += node.usage->repair_chunks_left;
    sum.bytes_per_second += node.usage->repair_bytes_per_second;
    sum.chunks_per_second += node.usage->repair_chunks_per_second;
    if (sum.phase.empty() || node.usage->repair_phase == "copying") sum.phase = node.usage->repair_phase;
  }
  return sum;
}

size_t CountOf(const control::ClusterReport& report, cluster::NodeState state) {
  return static_cast<size_t>(std::count_if(report.nodes.begin(), report.nodes.end(),
                                           [&](const auto& node) { return node.info.state == state; }));
}

std::string DurationText(uint64_t seconds) {
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < 2 * 3600) return fmt::format("{} min", seconds / 60);
  if (seconds < 48 * 3600) return fmt::format("{} h", seconds / 3600);
  return fmt::format("{} d", seconds / 86400);
}

std::string RepairText(const Repair& repair) {
  if (repair.chunks_left == 0 && !repair.phase.empty()) return repair.phase;
  if (repair.chunks_left == 0) {
    return repair.missing_copies > 0 ? "waiting for nodes that can take the missing copies" : "nothing to do";
  }
  const double left = repair.SecondsLeft();
  return fmt::format(
      "{}, {} chunks left, {}/s, {}", repair.phase.empty() ? "waiting" : repair.phase, repair.chunks_left,
      FormatSize(static_cast<uint64_t>(repair.bytes_per_second)),
      left < 0 ? "end not known yet" : "about " + DurationText(static_cast<uint64_t>(std::ceil(left))) + " left");
}

std::string CopiesText(const control::ReplicasReport& replicas) {
  return fmt::format("{}, of which a commit needs {}{}", replicas.copies, replicas.min_replicas,
                     replicas.IsLowered() ? " (min_replicas is lowered)" : "");
}

Row NodeRow(const control::NodeReport& node) {
  auto of_usage = [&](auto text) { return node.usage ? text(*node.usage) : std::string("-"); };
  std::string state = control::StateName(node.info.state);
  if (node.info.full) state += ", full";
  return {(node.is_self ? "* " : "  ") + OneLine(node.info.name),
          state,
          node.info.address,
          node.info.domain.empty() ? "-" : OneLine(node.info.domain),
          fmt::format("{:.3g}", node.info.weight),
          of_usage([](const auto& usage) { return FormatSize(usage.stored_bytes); }),
          of_usage([](const auto& usage) { return FormatSize(usage.available_bytes); }),
          of_usage([](const auto& usage) { return DurationText(usage.session_age_seconds); }),
          node.info.id.ToHex()};
}

nlohmann::ordered_json NodeObject(const control::NodeReport& node) {
  nlohmann::ordered_json json = {
      {"id", node.info.id.ToHex()}, {"name", node.info.name},     {"address", node.info.address},
      {"domain", node.info.domain}, {"weight", node.info.weight}, {"state", control::StateName(node.info.state)},
      {"full", node.info.full},     {"is_self", node.is_self},
  };
  if (!node.usage) return json;
  json.update({{"session_age_seconds", node.usage->session_age_seconds},
               {"total_bytes", node.usage->total_bytes},
               {"available_bytes", node.usage->available_bytes},
               {"stored_bytes", node.usage->stored_bytes},
               {"missing_copies", node.usage->missing_copies},
               {"unacknowledged_bytes", node.usage->unacknowledged_bytes},
               {"repair_phase", node.usage->repair_phase},
               {"repair_chunks_left", node.usage->repair_chunks_left},
               {"repair_bytes_per_second", node.usage->repair_bytes_per_second}});
  return json;
}

nlohmann::ordered_json NodesArray(const control::ClusterReport& report) {
  nlohmann::ordered_json nodes = nlohmann::ordered_json::array();
  for (const control::NodeReport& node : report.nodes) nodes.push_back(NodeObject(node));
  return nodes;
}

}  // namespace

std::string ReplicasText(const control::ReplicasReport& replicas) {
  if (!replicas.IsLowered()) return fmt::format("a commit needs all {} copies\n", replicas.copies);
  return fmt::format(
      "while nodes are missing a commit needs {} of {} copies; what is saved so may be lost with {} more\n"
      "once they are back: cairnfs cluster set min-replicas default\n",
      replicas.min_replicas, replicas.copies,
      replicas.min_replicas == 1 ? "one" : fmt::format("{}", replicas.min_replicas));
}

std::string ReplicasJson(const control::ReplicasReport& replicas) {
  return JsonText({{"copies", replicas.copies},
                   {"min_replicas", replicas.min_replicas},
                   {"min_replicas_lowered", replicas.IsLowered()}});
}

std::string NodesText(const control::ClusterReport& report) {
  std::vector<Row> rows = {{"  name", "state", "address", "domain", "weight", "stored", "free", "session", "id"}};
  for (const control::NodeReport& node : report.nodes) rows.push_back(NodeRow(node));
  std::array<size_t, kColumns> widths{};
  for (const Row& row : rows) {
    for (size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (size_t i = 0; i + 1 < kColumns; ++i) text += fmt::format("{:<{}}  ", row[i], widths[i]);
    text += row.back() + "\n";
  }
  return text;
}

std::string ClusterText(const control::ClusterReport& report) {
  const Repair repair = Sum(report);
  std::string text;
  auto line = [&](std::string_view name, const std::string& value) { text += fmt::format("{:<14}{}\n", name, value); };
  line("filesystem", report.filesystem);
  line("metadata", report.metadata);
  line("copies", CopiesText(report.replicas));
  line("session", report.session.empty() ? "good" : report.session);
  line("nodes", fmt::format("{} up, {} down, {} out", CountOf(report, cluster::NodeState::kUp),
                            CountOf(report, cluster::NodeState::kDown), CountOf(report, cluster::NodeState::kOut)));
  line("copying", FormatSize(repair.unacknowledged_bytes) + " written that lack copies yet");
  line("missing", fmt::format("{} copies of stored chunks", repair.missing_copies));
  line("repair", RepairText(repair));
  return text + "\n" + NodesText(report);
}

std::string ClusterJson(const control::ClusterReport& report) {
  const Repair repair = Sum(report);
  nlohmann::ordered_json json = {
      {"filesystem", report.filesystem},
      {"metadata", report.metadata},
      {"copies", report.replicas.copies},
      {"min_replicas", report.replicas.min_replicas},
      {"min_replicas_lowered", report.replicas.IsLowered()},
      {"session", report.session.empty() ? "good" : report.session},
      {"nodes_up", CountOf(report, cluster::NodeState::kUp)},
      {"nodes_down", CountOf(report, cluster::NodeState::kDown)},
      {"nodes_out", CountOf(report, cluster::NodeState::kOut)},
      {"unacknowledged_bytes", repair.unacknowledged_bytes},
      {"missing_copies", repair.missing_copies},
      {"repair_phase", repair.phase},
      {"repair_chunks_left", repair.chunks_left},
      {"repair_bytes_per_second", repair.bytes_per_second},
  };
  if (const double left = repair.SecondsLeft(); left >= 0) json["repair_seconds_left"] = left;
  json["nodes"] = NodesArray(report);
  return JsonText(json);
}

std::string ForgottenJson(const control::ForgottenNode& node) {
  return JsonText({{"forgotten", true}, {"id", node.id}, {"name", node.name}});
}

std::string NodesJson(const control::ClusterReport& report) { return JsonText({{"nodes", NodesArray(report)}}); }

}  // namespace cairnfs::tools
