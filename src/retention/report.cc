#include "retention/report.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace cairnfs::retention {
namespace {

using nlohmann::ordered_json;

std::string Dump(const ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Cut(const std::string& text) { return text.substr(0, Report::kTextBytesMax); }

ordered_json JsonOf(const Told& told) { return {{"name", Cut(told.name)}, {"reason", Cut(told.reason)}}; }

std::string LineOf(const char* key, const Told& told) { return Dump({{key, JsonOf(told)}}); }

std::optional<std::string> TextIn(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string()) return std::nullopt;
  return Cut(found->get<std::string>());
}

std::optional<Told> ToldIn(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_object()) return std::nullopt;
  auto name = TextIn(*found, "name"), reason = TextIn(*found, "reason");
  if (!name || !reason) return std::nullopt;
  return Told{*std::move(name), *std::move(reason)};
}

void Keep(std::vector<Told>& list, uint64_t& count, const Told& told) {
  ++count;
  if (list.size() < Report::kToldMax) list.push_back(told);
}

bool IsTrue(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_boolean() && found->get<bool>();
}

void AddEnd(const nlohmann::json& end, Report& report) {
  report.error = TextIn(end, "error").value_or("");
  report.has_policy = IsTrue(end, "has_policy");
  report.stays_for_now = IsTrue(end, "stays_for_now");
  if (const auto stay = end.find("stay_count"); stay != end.end() && stay->is_number_unsigned()) {
    report.stay_count = stay->get<uint64_t>();
  }
  if (const auto next = end.find("next"); next != end.end() && next->is_number_integer()) {
    report.next = next->get<int64_t>();
  }
  const auto notes = end.find("notes");
  if (notes == end.end() || !notes->is_array()) return;
  for (const auto& note : *notes) {
    if (note.is_string() && report.notes.size() < Report::kToldMax)
      report.notes.push_back(Cut(note.get<std::string>()));
  }
}

}  // namespace

std::string RemovedLine(const Told& removed) { return LineOf("removed", removed); }
std::string FailedLine(const Told& failed) { return LineOf("failed", failed); }

std::string EndLine(const Report& end) {
  ordered_json json;
  json["error"] = Cut(end.error);
  json["has_policy"] = end.has_policy;
  json["stays_for_now"] = end.stays_for_now;
  json["stay_count"] = end.stay_count;
  json["next"] = end.next ? ordered_json(*end.next) : nullptr;
  json["notes"] = ordered_json::array();
  for (const std::string& note : end.notes) {
    if (json["notes"].size() < Report::kToldMax) json["notes"].push_back(Cut(note));
  }
  return Dump({{"end", std::move(json)}});
}

Result<std::optional<Told>> Report::Add(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto strange = [] { return MakeError(ErrorCode::kInvalidArgument, "a line that tells nothing of a policy"); };
  if (!json.is_object()) return strange();
  if (auto told = ToldIn(json, "removed")) {
    Keep(removed, removed_count, *told);
    return told;
  }
  if (const auto told = ToldIn(json, "failed")) {
    Keep(failed, failed_count, *told);
    return std::optional<Told>();
  }
  const auto end = json.find("end");
  if (end == json.end() || !end->is_object()) return strange();
  AddEnd(*end, *this);
  return std::optional<Told>();
}

std::string Report::Text() const {
  ordered_json json;
  json["removed_count"] = removed_count;
  json["failed_count"] = failed_count;
  json["stay_count"] = stay_count;
  for (const auto& [key, list] : {std::pair("removed", &removed), std::pair("failed", &failed)}) {
    json[key] = ordered_json::array();
    for (const Told& told : *list) json[key].push_back(JsonOf(told));
  }
  json["notes"] = notes;
  json["error"] = error.empty() ? ordered_json() : ordered_json(error);
  return Dump(json);
}

}  // namespace cairnfs::retention
