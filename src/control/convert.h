// Converts between the service's messages and the structs of report.h.
#pragma once

#include "base/result.h"
#include "control.pb.h"
#include "control/rank_gate.h"
#include "control/report.h"

namespace cairnfs::control {

void ToMessage(const StatusReport& report, StatusReply& reply);
StatusReport FromMessage(const StatusReply& reply);
void ToMessage(const ClusterReport& report, ClusterReply& reply);
ClusterReport FromMessage(const ClusterReply& reply);
void ToMessage(const GateCall& call, CommitArrival& arrival);
GateCall FromMessage(const CommitArrival& arrival);
void ToMessage(const GcReport& report, GcProgress& progress);
GcReport FromMessage(const GcProgress& progress);
void ToMessage(const CheckReport& report, CheckReply& reply);
CheckReport FromMessage(const CheckReply& reply);

}  // namespace cairnfs::control
