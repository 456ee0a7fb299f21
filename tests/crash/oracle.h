// Judges what is there after a crash against what was promised before it (docs/contract.md, items 5 to 7):
//
//  1. Each writer's surviving names are the state after some prefix of its namespace operations, and the prefixes of
//     all writers fit together: what returned before a surviving operation began survived too.
//  2. A sync point that returned keeps everything that returned before it began, of any writer; what is older than 5 s
//     survives without one.
//  3. Data comes before names: a surviving namespace operation finds every byte that was written and closed before it
//     began, and a surviving rename of a file every byte written to that file before.
//  4. Beyond that, each byte of a file is its last promised value or a later one, no zeros appear where none were
//     written, and the file is no longer and no shorter than one of these states.
#pragma once

#include <string>
#include <vector>

#include "history.h"
#include "tree_model.h"

namespace cairnfs::testing {

struct Writer {
  std::string name;  // of its directory below the root
  Track track;
};

struct Verdict {
  std::vector<std::string> violations;  // empty: every promise was kept
  uint64_t names_checked = 0, files_checked = 0, bytes_checked = 0, records_lost = 0;
};

// `root`: where the filesystem is mounted again. REQUIRES: no writer runs.
Verdict Judge(const std::vector<Writer>& writers, const CrashPoint& crash, const std::string& root);

}  // namespace cairnfs::testing
