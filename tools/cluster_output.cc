#include "cluster_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/printable.h"
#include "daemon/size_text.h"
#include "json_text.h"

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

Repair Sum(const control::ClusterReply& reply) {
  Repair sum;
  for (const control::Node& node : reply.nodes()) {
    const control::UsageMessage& usage = node.usage();
    sum.missing_copies += usage.missing_copies();
    sum.unacknowledged_bytes += usage.unacknowledged_bytes();
    sum.chunks_left += usage.repair_chunks_left();
    sum.bytes_per_second += usage.repair_bytes_per_second();
    sum.chunks_per_second += usage.repair_chunks_per_second();
    if (sum.phase.empty() || usage.repair_phase() == "copying") sum.phase = usage.repair_phase();
  }
  return sum;
}

size_t CountOf(const control::ClusterReply& reply, std::string_view state) {
  return static_cast<size_t>(std::ranges::count(reply.nodes(), state, &control::Node::state));
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

// Of the last collection, as the nodes tell it.
std::string CollectionText(const control::ClusterReply& reply) {
  if (!reply.collection_held_up().empty()) {
    return "held up: " + Printable(reply.collection_held_up()) + " (cairnfs gc --after-restore allows it)";
  }
  uint64_t bytes_freed = 0, latest = UINT64_MAX;
  std::string waits, errors;
  for (const control::Node& node : reply.nodes()) {
    const control::NodeCollection& part = node.collection();
    if (!node.has_collection()) continue;
    bytes_freed += part.bytes_freed();
    const bool is_over = part.phase() == "done" || part.phase() == "failed";
    if (!is_over) waits += (waits.empty() ? "" : ", ") + Printable(node.name()) + " (" + part.phase() + ")";
    if (is_over) latest = std::min(latest, part.ended_seconds_ago());
    if (!part.error().empty()) errors += "; " + Printable(node.name()) + ": " + Printable(part.error());
  }
  if (!waits.empty()) return "runs on " + waits + errors;
  if (latest == UINT64_MAX) return "none yet";
  return fmt::format("{} ago, {} freed on all nodes{}", DurationText(latest), FormatSize(bytes_freed), errors);
}

std::string NamesText(const control::NamesHosts& names) {
  const std::string primary =
      names.primary().empty() ? "served by none that answers" : "served by " + Printable(names.primary());
  if (names.standby().empty()) return primary + (names.primary().empty() ? "" : ", which has no standby");
  const std::string standby = Printable(names.standby()), witness = ", witness " + Printable(names.witness());
  if (names.state() == "whole") return fmt::format("{}, standby {} has all of them{}", primary, standby, witness);
  if (names.state() == "copying") return fmt::format("{}, being copied to standby {}{}", primary, standby, witness);
  return fmt::format("{}, standby {} is behind since {} ago, by {} revisions as far as known{}", primary, standby,
                     DurationText(names.detached_seconds_ago()), names.behind_revisions(), witness);
}

// Of a reply that has both numbers.
bool IsLowered(const auto& reply) { return reply.min_replicas() < reply.copies(); }

Row NodeRow(const control::Node& node) {
  auto of_usage = [&](auto text) { return node.has_usage() ? text(node.usage()) : std::string("-"); };
  return {(node.is_self() ? "* " : "  ") + Printable(node.name()),
          node.state() + (node.full() ? ", full" : "") + (node.drain().empty() ? "" : ", " + node.drain()),
          node.address(),
          node.domain().empty() ? "-" : Printable(node.domain()),
          fmt::format("{:.3g}", node.weight()),
          of_usage([](const auto& usage) { return FormatSize(usage.stored_bytes()); }),
          of_usage([](const auto& usage) { return FormatSize(usage.available_bytes()); }),
          of_usage([](const auto& usage) { return DurationText(usage.session_age_seconds()); }),
          node.id()};
}

nlohmann::ordered_json NodesArray(const control::ClusterReply& reply) {
  auto nodes = nlohmann::ordered_json::array();
  for (const control::Node& node : reply.nodes()) {
    nodes.push_back(FieldsOf(node));
    nodes.back().erase("repair_chunks_per_second");
  }
  return nodes;
}

}  // namespace

std::string ReplicasText(const control::SetMinReplicasReply& replicas) {
  if (!IsLowered(replicas)) return fmt::format("a commit needs all {} copies\n", replicas.copies());
  return fmt::format(
      "while nodes are missing a commit needs {} of {} copies; what is saved so may be lost with {} more\n"
      "once they are back: cairnfs cluster set min-replicas default\n",
      replicas.min_replicas(), replicas.copies(),
      replicas.min_replicas() == 1 ? "one" : fmt::format("{}", replicas.min_replicas()));
}

std::string ReplicasJson(const control::SetMinReplicasReply& replicas) {
  nlohmann::ordered_json json = FieldsOf(replicas);
  json["min_replicas_lowered"] = IsLowered(replicas);
  return JsonText(json);
}

std::string NodesText(const control::ClusterReply& reply) {
  std::vector<Row> rows = {{"  name", "state", "address", "domain", "weight", "stored", "free", "session", "id"}};
  for (const control::Node& node : reply.nodes()) rows.push_back(NodeRow(node));
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

std::string ClusterText(const control::ClusterReply& reply) {
  const Repair repair = Sum(reply);
  const size_t joined = CountOf(reply, "joined");
  std::string text;
  auto line = [&](std::string_view name, const std::string& value) { text += fmt::format("{:<14}{}\n", name, value); };
  line("filesystem", reply.filesystem());
  line("metadata", reply.metadata());
  if (reply.has_names()) line("names", NamesText(reply.names()));
  line("copies", fmt::format("{}, of which a commit needs {}{}", reply.copies(), reply.min_replicas(),
                             IsLowered(reply) ? " (min_replicas is lowered)" : ""));
  line("session", reply.session().empty() ? "good" : reply.session());
  line("nodes",
       fmt::format("{} up, {} down, {} out{}", CountOf(reply, "up"), CountOf(reply, "down"), CountOf(reply, "out"),
                   joined == 0 ? "" : fmt::format(", {} joined and never mounted", joined)));
  line("copying", FormatSize(repair.unacknowledged_bytes) + " written that lack copies yet");
  line("missing", fmt::format("{} copies of stored chunks", repair.missing_copies));
  line("repair", RepairText(repair));
  line("collection", CollectionText(reply));
  return text + "\n" + NodesText(reply);
}

std::string ClusterJson(const control::ClusterReply& reply) {
  const Repair repair = Sum(reply);
  nlohmann::ordered_json json = FieldsOf(reply);
  if (reply.session().empty()) json["session"] = "good";
  json.erase("nodes");  // they come last
  json.update({
      {"min_replicas_lowered", IsLowered(reply)},
      {"nodes_up", CountOf(reply, "up")},
      {"nodes_down", CountOf(reply, "down")},
      {"nodes_out", CountOf(reply, "out")},
      {"nodes_joined", CountOf(reply, "joined")},
      {"unacknowledged_bytes", repair.unacknowledged_bytes},
      {"missing_copies", repair.missing_copies},
      {"repair_phase", repair.phase},
      {"repair_chunks_left", repair.chunks_left},
      {"repair_bytes_per_second", repair.bytes_per_second},
  });
  if (const double left = repair.SecondsLeft(); left >= 0) json["repair_seconds_left"] = left;
  json["nodes"] = NodesArray(reply);
  return JsonText(json);
}

std::string TokenJson(const control::TokenReply& token) { return JsonText(FieldsOf(token)); }

std::string DrainText(const control::Node& node) {
  const std::string name = Printable(node.name());
  if (node.state() != "up") return fmt::format("{} is {}: it goes on when that node is back", name, node.state());
  if (!node.has_usage()) return name;
  const control::UsageMessage& usage = node.usage();
  const std::string stored = fmt::format("{} has {}", name, FormatSize(usage.stored_bytes()));
  if (usage.repair_chunks_left() == 0 || usage.repair_chunks_per_second() <= 0) return stored;
  const double seconds = static_cast<double>(usage.repair_chunks_left()) / usage.repair_chunks_per_second();
  return fmt::format("{}; {} chunks left to copy, {}/s, about {} left", stored, usage.repair_chunks_left(),
                     FormatSize(static_cast<uint64_t>(usage.repair_bytes_per_second())),
                     DurationText(static_cast<uint64_t>(std::ceil(seconds))));
}

std::string NodeJson(const control::NodeReply& node, const char* what) {
  nlohmann::ordered_json json = {{what, true}};
  json.update(FieldsOf(node));
  return JsonText(json);
}

std::string NodesJson(const control::ClusterReply& reply) { return JsonText({{"nodes", NodesArray(reply)}}); }

}  // namespace cairnfs::tools
