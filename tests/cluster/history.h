// Recorded histories as JSON lines: what the clients of one round were asked and answered.
//
// A line is one call: "client", "op", its arguments, "begin" and "end" (ns, CLOCK_MONOTONIC), and the answer ("error"
// and what else there is). A call that never answered has no "error"; its "end", if there is one, is the moment by
// which it took effect or never will (its host's session was lost then). An error that does not say whether the call
// took effect (EIO, ENOTCONN, ...) counts as no answer.
//
// Ops: those of TreeAct in small letters with "path", "target", "flags", "first_slot", "slots", "token", "mode";
// "lock" with "act" ("try", "wait", "unlock"), "path", "kind" ("flock", "process", "file"), "shared", "start", "length"
// (0: to the end), "session", and "opened", [begin, end] of the open(2) that the client's first call on a file and kind
// begins with; "lose_session" with "session", and without "error" when nobody knows whether it came to that.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client_operations.h"
#include "lock_specification.h"
#include "tree_specification.h"

namespace cairnfs::testing {

struct History {
  std::vector<TreeOperation> tree;
  std::vector<LockOperation> locks;
};

// Does this errno say that the call had no effect? Anything else leaves it open.
bool IsDefinite(int error);

bool IsTreeOp(const std::string& op);
TreeOperation TreeOperationFrom(const nlohmann::json& line);
LockOperation LockOperationFrom(const nlohmann::json& line);
LockFiles::Kind LockKindFrom(const nlohmann::json& line);
nlohmann::json ToJson(const TreeOperation& operation, const TreeResult& result);

// Throws nlohmann::json::exception or std::invalid_argument with what is wrong.
History ParseHistory(const std::string& text);

}  // namespace cairnfs::testing
