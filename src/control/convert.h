// Between the service's messages and what the filesystem and the rank gate know.
#pragma once

#include "base/result.h"
#include "control.pb.h"
#include "control/rank_gate.h"
#include "fs/filesystem.h"
#include "fs/runs.h"
#include "fs/trash.h"
#include "fs/unsaved.h"

namespace cairnfs::control {

// All that a filesystem tells, but for the age of its count and its failed commits. In `space` the bytes on disk are
// those of segments with data alone.
void ToMessage(const fs::FsStatus& status, StatusReply& reply);
void ToMessage(const fs::RunReport& run, Run& message);
void ToMessage(const fs::Unsaved& unsaved, Unsaved& message);
void ToMessage(const fs::MetadataOwner& owner, MetadataOwner& message);
void ToMessage(const fs::CollectionStatus& status, GcProgress& progress);
void ToMessage(const fs::CheckProgress& at, CheckProgress& progress);
void ToMessage(const fs::CheckReport& report, CheckReply& reply);
void ToMessage(const fs::TrashItem& item, TrashEntry& message);
void ToMessage(const GateCall& call, CommitArrival& arrival);
GateCall FromMessage(const CommitArrival& arrival);

}  // namespace cairnfs::control
