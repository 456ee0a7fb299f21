#include "deferred_commit.h"

#include <fmt/format.h>

#include <filesystem>

#include "commands.h"
#include "daemon/exit_codes.h"
#include "daemon/size_text.h"
#include "json_text.h"
#include "locate.h"
#include "meta/ticket_records.h"
#include "output.h"

namespace cairnfs::tools {
namespace {

namespace stdfs = std::filesystem;
using control::AwaitTicketReply;

Result<control::DeferRequest> MakeRequest(const std::string& from, const std::string& to, unsigned under_way_max) {
  CAIRNFS_ASSIGN_OR_RETURN(const CommitTarget target, LookAtCommit(from, to));
  control::DeferRequest request;
  request.set_directory(target.directory.value);
  request.set_final_parent(target.final_parent.value);
  request.set_final_name(target.final_name);
  request.set_under_way_max(under_way_max);
  return request;
}

const char* StateText(AwaitTicketReply::State state) {
  switch (state) {
    case AwaitTicketReply::COMMITTED: return "committed";
    case AwaitTicketReply::FAILED: return "failed";
    default: return "under_way";
  }
}

void PrintState(const CommitCommand& command, const std::string& path, const AwaitTicketReply& reply) {
  nlohmann::ordered_json json{{"ticket", command.ticket}, {"state", StateText(reply.state())}, {"path", path}};
  json["reason"] = reply.reason().empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(reply.reason());
  Print(JsonText(json));
}

int Tell(const CommitCommand& command, const std::string& path, const AwaitTicketReply& reply) {
  if (command.json) PrintState(command, path, reply);
  switch (reply.state()) {
    case AwaitTicketReply::COMMITTED:
      if (!command.json) Print(path + "\n");
      return daemon::kExitDone;
    case AwaitTicketReply::FAILED:
      return Fail(MakeError(ErrorCode::kFailed, fmt::format("not committed to {}: {}", path, reply.reason())));
    default:
      return Fail(
          MakeError(ErrorCode::kBusy, fmt::format("the commit to {} is under way still, and goes on{}{}", path,
                                                  reply.reason().empty() ? "" : "; it waits: ", reply.reason())));
  }
}

}  // namespace

int RunDeferCommit(const CommitCommand& command) {
  const std::string from = WithoutSlashes(command.from), to = WithoutSlashes(command.to);
  const auto request = MakeRequest(from, to, command.under_way_max);
  if (!request.ok()) return Fail(request.error());
  auto mount = LocateMount(stdfs::path(Absolute(to)).parent_path().string());
  if (!mount.ok()) return Fail(mount.error());
  auto client = Connect({mount->source, mount->mount_point});
  if (!client.ok()) return Fail(client.error());
  const auto ticket = client->Defer(*request);
  if (!ticket.ok()) return Fail(ticket.error().WithContext("cannot commit " + from));
  const std::string text = meta::TicketText(*ticket);
  Print(command.json ? JsonText({{"ticket", text}, {"path", Absolute(to)}}) : text + "\n");
  return daemon::kExitDone;
}

int RunAwaitTicket(const CommitCommand& command) {
  control::AwaitTicketRequest request;
  const auto ticket = meta::ParseTicket(command.ticket);
  if (!ticket.ok()) return Fail(ticket.error());
  request.set_ticket(*ticket);
  if (!command.timeout.empty()) {
    const auto timeout_ms = daemon::ParseDurationMs(command.timeout);
    if (!timeout_ms.ok()) return Fail(timeout_ms.error().WithContext("--timeout"));
    request.set_timeout_ms(*timeout_ms);
  }
  auto found = LocateDaemon({.path = command.from, .data = {}});
  if (!found.ok()) return Fail(found.error());
  const auto reply = found->client.AwaitTicket(request);
  if (!reply.ok() && reply.error().code == ErrorCode::kNotFound) {
    static_cast<void>(Fail(reply.error()));
    return CAIRNFS_EXIT_NONE;
  }
  if (!reply.ok()) return Fail(reply.error());
  return Tell(command, reply->path().empty() ? reply->name() : found->location.PathInMount(reply->path()), *reply);
}

}  // namespace cairnfs::tools
