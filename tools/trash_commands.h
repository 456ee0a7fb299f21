// `cairnfs trash`: what was removed and can be restored.
#pragma once

#include <string>

#include "locate.h"

namespace cairnfs::tools {

struct TrashCommand {
  Target target;
  std::string id;     // of an entry; empty, where that may be: all
  std::string to;     // of a restore: the new path; empty: where it lay
  bool tree = false;  // of a restore: also what lay below it
  bool json = false;
};

int RunTrashList(const TrashCommand& command);
int RunTrashRestore(const TrashCommand& command);
int RunTrashEmpty(const TrashCommand& command);

}  // namespace cairnfs::tools
