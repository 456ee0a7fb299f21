#include "control/rank_gate.h"

#include <fmt/format.h>

#include "control/rank_visit.h"
#include "control/required_files.h"

namespace cairnfs::control {
namespace {

Status CheckCall(const GateCall& call) {
  auto wrong = [](std::string message) { return MakeError(ErrorCode::kInvalidArgument, std::move(message)); };
  if (call.ranks == 0 || call.ranks > GateCall::kRanksMax) {
    return wrong(fmt::format("the number of ranks must lie between 1 and {}, not {}", GateCall::kRanksMax, call.ranks));
  }
  if (call.at_least > call.ranks) {
    return wrong(fmt::format("at least {} of {} ranks: that is more than there are", call.at_least, call.ranks));
  }
  if (const auto required = RequiredFiles::Parse(call.required); !required.ok()) return required.error();
  if (call.rank && *call.rank >= call.ranks) {
    return wrong(
        fmt::format("rank {} of {} ranks: they are numbered from 0 to {}", *call.rank, call.ranks, call.ranks - 1));
  }
  if (!call.rank && call.id.empty()) return wrong("a rank needs a number or a name of its own");
  if (call.id.size() > GateCall::kNameBytesMax) {
    return wrong(fmt::format("a rank's name may have {} bytes, not {}", GateCall::kNameBytesMax, call.id.size()));
  }
  if (call.final_name.size() > GateCall::kNameBytesMax) {
    return wrong(
        fmt::format("the final name may have {} bytes, not {}", GateCall::kNameBytesMax, call.final_name.size()));
  }
  if (call.timeout < std::chrono::milliseconds(0) || call.timeout > GateCall::kTimeoutMax) {
    return wrong(fmt::format("the timeout must be at most {} h", GateCall::kTimeoutMax.count()));
  }
  return {};
}

}  // namespace

Status RankGate::Commit(const GateCall& call, const Caller& caller) {
  CAIRNFS_RETURN_IF_ERROR(CheckCall(call));
  return RankVisit(options_, call, caller).Run();
}

}  // namespace cairnfs::control
