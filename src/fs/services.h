// Services: the parts of a filesystem that its themes of calls are written with. Which of them are those of a host
// alone, and which those of one of several, is decided where they are made (wiring.cc).
#pragma once

#include "base/task_queue.h"
#include "fs/atomic_rules.h"
#include "fs/backing_files.h"
#include "fs/calls.h"
#include "fs/closing.h"
#include "fs/commits.h"
#include "fs/contents.h"
#include "fs/copies.h"
#include "fs/error_names.h"
#include "fs/fills_ahead.h"
#include "fs/handle.h"
#include "fs/host_session.h"
#include "fs/keeping.h"
#include "fs/lost_files.h"
#include "fs/policies.h"
#include "fs/privileges.h"
#include "fs/quotas.h"
#include "fs/room.h"
#include "fs/saves.h"
#include "fs/seals.h"
#include "fs/sharing.h"
#include "fs/streams.h"
#include "fs/sync_rounds.h"
#include "fs/tickets.h"
#include "fs/totals.h"
#include "fs/trash.h"
#include "fs/waits.h"

namespace cairnfs::fs {

struct Services {  // all outlive who has them
  const FileSystem::Parts& parts;
  const FsOptions& options;  // as it was started with
  InodeTable& table;
  IdTable<Handle>& handles;
  FileRecords& records;
  Contents& contents;
  BackingFiles& backing_files;
  FillsAhead& fills_ahead;
  Streams& streams;
  SyncRounds& rounds;
  Room& room;
  Quotas& quotas;
  Privileges& privileges;
  LostFiles& lost;
  Totals& totals;
  Trash& trash;
  Saves& saves;
  Commits& commits;
  Keeping& keeping;
  AtomicRules& atomic_rules;
  Policies& policies;
  Tickets& tickets;
  Seals& seals;
  HostSession& session;
  Sharing& sharing;
  Closing& closing;
  Copies& copies;
  Calls& calls;
  Waits& waits;
  ErrorNames& error_names;
  TaskQueue& waiters;
};

}  // namespace cairnfs::fs
